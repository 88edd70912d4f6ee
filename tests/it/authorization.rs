//! Who may do what to whose: every route, for every role, on one's own, another member's, a
//! stranger's and nobody's. The table is for review: a change in it is a change of the rules.

use std::collections::HashMap;
use std::time::Duration;

use culvert_domain::caller::Role;
use culvert_domain::permission::Permission;
use culvert_domain::string_enum::StringEnum;
use culvert_http::routes::table;
use culvert_http::row::Row;
use culvert_test_macros::both_engines;
use culvert_wire::control::{Failure, ToHost};
use culvert_wire::failure_code::FailureCode;
use insta::{allow_duplicates, assert_snapshot};
use reqwest::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::api::Api;
use crate::support::device::{Remote, TestDevice};
use crate::support::host::{Engine, Person, TestHost};
use crate::support::names::Names;
use crate::support::visitor::{named_service, visit};

/// Somebody in a scope, with a device on which one of their tunnels runs.
pub struct Member {
    pub api: Api,
    /// Keys that must not do: none, one that is none, a revoked one.
    useless: [Api; 3],
    /// For every scope, a key that has all the others.
    narrow: HashMap<Permission, Api>,
    pub device: TestDevice,
    running: Uuid,
    operation: Uuid,
    pub scope: Uuid,
}

impl Member {
    pub async fn new(host: &TestHost, person: &Person, scope: Uuid) -> Self {
        let api = host.api(&host.key(person.account_id, scope, "full_access").await.key);
        let revoked = host.key(person.account_id, scope, "full_access").await;
        host.revoke(revoked.key_id).await;
        let useless = [api.without_key(), api.with_key("ctk_nothing"), api.with_key(&revoked.key)];
        let mut narrow = HashMap::new();
        for lacking in Permission::ALL {
            let others: Vec<_> = Permission::ALL
                .iter()
                .filter(|permission| *permission != lacking)
                .map(|permission| permission.as_str())
                .collect();
            narrow.insert(*lacking, host.api(&host.key(person.account_id, scope, &others.join(" ")).await.key));
        }
        let device = host.device(person, scope, Remote::Enabled).await;
        let running = api.post("/tunnels", json!({"local_port": 1})).await.id();
        device.start_tunnel(&running.to_string()).await.unwrap();
        host.until(async || {
            (api.get(&format!("/tunnels/{running}")).await.data()["runtime"]["running"] == true).then_some(())
        })
        .await;
        // What may be done is refused for a reason that only comes after the permission.
        let operation =
            api.post(&format!("/tunnels/{running}/actions/start"), json!({"device_id": device.id})).await.id();
        api.patch(&format!("/devices/{}", device.id), json!({"remote_control_enabled": false})).await.data();
        Self { api, useless, narrow, device, running, operation, scope }
    }

    /// A request to a route, about this member's things.
    pub async fn target(&self, host: &TestHost, row: &Row) -> (String, Value) {
        let acts_on_running = row.path.ends_with("/stop") || row.path.ends_with("/restart");
        let of_domains = row.path.contains("/domain");
        let tunnel = match row.path.contains("{tunnel_id}") {
            true if acts_on_running => self.running,
            true if of_domains => self.api.post("/tunnels", json!({"local_port": 80, "protocol": "http"})).await.id(),
            true => self.api.post("/tunnels", json!({"local_port": 80})).await.id(),
            false => Uuid::nil(),
        };
        let port = if row.path.contains("{port_id}") {
            self.api.post(&format!("/tunnels/{tunnel}/extra-ports"), json!({"local_port": 81})).await.id()
        } else {
            Uuid::nil()
        };
        let webhook = if row.path.contains("{webhook_id}") { host.webhook(self.scope).await } else { Uuid::nil() };
        let ids = Ids { tunnel, port, webhook, device: self.device.id, operation: self.operation };
        if row.method == Method::DELETE && of_domains {
            // Something to delete: a name that was looked for.
            let verify = format!("/tunnels/{tunnel}/domain/actions/verify");
            self.api.post(&verify, json!({"domain": "1.example.test"})).await.data();
        }
        (ids.fill(row), body(row, self.device.id))
    }

    /// Whatever the request is about, it is refused without a key that is good for it.
    async fn is_refused_without_a_good_key(&self, row: &Row, target: &(String, Value)) {
        let [none, unknown, revoked] = &self.useless;
        for (api, refused) in [
            (none, "401 missing_api_key"),
            (unknown, "401 invalid_api_key"),
            (revoked, "401 invalid_api_key"),
            (&self.narrow[&row.action.permission().unwrap()], "403 insufficient_scope"),
        ] {
            assert_eq!(ask(api, row, target.clone()).await, refused, "{} {}", row.method, row.path);
        }
    }
}

/// What the path of a route leads to.
pub struct Ids {
    tunnel: Uuid,
    port: Uuid,
    webhook: Uuid,
    device: Uuid,
    operation: Uuid,
}

impl Ids {
    pub fn all(id: Uuid) -> Self {
        Self { tunnel: id, port: id, webhook: id, device: id, operation: id }
    }

    pub fn fill(&self, row: &Row) -> String {
        row.path
            .replace("{tunnel_id}", &self.tunnel.to_string())
            .replace("{port_id}", &self.port.to_string())
            .replace("{webhook_id}", &self.webhook.to_string())
            .replace("{device_id}", &self.device.to_string())
            .replace("{operation_id}", &self.operation.to_string())
    }
}

fn body(row: &Row, device: Uuid) -> Value {
    match (row.method.as_str(), row.path) {
        ("POST", "/tunnels") => json!({"local_port": 80}),
        ("POST", "/webhooks") => json!({"url": "https://8.8.8.8/", "events": ["device.online"]}),
        ("PATCH", "/webhooks/{webhook_id}") => json!({"description": "changed"}),
        ("PATCH", _) => json!({"name": "changed"}),
        (_, path) if path.ends_with("/extra-ports") => json!({"local_port": 81}),
        (_, path) if path.ends_with("/devices") => json!({"device_ids": []}),
        ("PUT", path) if path.ends_with("/firewall") || path.ends_with("/geoip") => json!({"rules": []}),
        // What may be done is refused for a reason that only comes after the permission.
        (_, path) if path.contains("/domain") && row.method != Method::DELETE => json!({"domain": "1.example.test"}),
        (_, path) if path.ends_with("/move") => json!({"node_id": device}),
        (_, path) if path.ends_with("/start") => json!({"device_id": device}),
        _ => json!({}),
    }
}

pub async fn ask(api: &Api, row: &Row, (path, body): (String, Value)) -> String {
    let request = match row.method {
        Method::GET => api.request(Method::GET, &path),
        ref method => api
            .request(method.clone(), &path)
            .json(&body)
            .header("idempotency-key", Uuid::from_bytes(culvert_wire::clock::Clock::system().random()).to_string()),
    };
    api.send(request).await.outcome()
}

/// covers: missing_api_key
/// covers: invalid_api_key
/// covers: not_found
/// covers: insufficient_scope
/// covers: feature_not_available
#[both_engines]
async fn every_route_enforces_role_and_ownership(engine: Engine) {
    let names = Names::open().await;
    let host = TestHost::with(engine, |config| {
        config.dns.resolver = Some(names.address);
        config.rate_limit.per_minute = 10_000;
        config.rate_limit.failed_auth_per_minute = 100_000;
    })
    .await;
    let people =
        [host.person("ada").await, host.person("bea").await, host.person("cem").await, host.person("dan").await];
    let [ada, bea, cem, dan] = &people;
    let team = host.team("Engines", ada).await;
    host.join(team, bea, Role::Admin).await;
    host.join(team, cem, Role::Member).await;
    let (owner, admin, member) =
        (Member::new(&host, ada, team).await, Member::new(&host, bea, team).await, Member::new(&host, cem, team).await);
    let alone = Member::new(&host, dan, dan.account_id).await;
    let nobodys = Uuid::from_u128(7);

    let mut text = String::new();
    for row in table() {
        let mut line = format!("{} {}\n", row.method, row.path);
        let columns: &[(&str, &Member, &Member)] = if row.path.contains('{') {
            &[
                ("alone, own", &alone, &alone),
                ("alone, a stranger's", &alone, &member),
                ("owner, own", &owner, &owner),
                ("owner, a member's", &owner, &member),
                ("admin, the owner's", &admin, &owner),
                ("admin, a member's", &admin, &member),
                ("member, own", &member, &member),
                ("member, the owner's", &member, &owner),
                ("owner, a stranger's", &owner, &alone),
            ]
        } else {
            &[
                ("alone", &alone, &alone),
                ("owner", &owner, &owner),
                ("admin", &admin, &admin),
                ("member", &member, &member),
            ]
        };
        for (who, caller, whose) in columns {
            let target = whose.target(&host, &row).await;
            caller.is_refused_without_a_good_key(&row, &target).await;
            line += &format!("  {who:20} {}\n", ask(&caller.api, &row, target).await);
        }
        if row.path.contains('{') {
            let target = (Ids::all(nobodys).fill(&row), body(&row, owner.device.id));
            line += &format!("  {:20} {}\n", "owner, nobody's", ask(&owner.api, &row, target).await);
        }
        text += &line;
    }
    allow_duplicates! { assert_snapshot!(text, @"
    GET /
      alone                200
      owner                200
      admin                200
      member               200
    GET /account
      alone                200
      owner                200
      admin                200
      member               200
    GET /account/usage
      alone                200
      owner                200
      admin                200
      member               200
    GET /nodes
      alone                200
      owner                200
      admin                200
      member               200
    GET /presets
      alone                200
      owner                200
      admin                200
      member               200
    GET /domains
      alone                200
      owner                200
      admin                200
      member               200
    GET /scope-presets
      alone                200
      owner                200
      admin                200
      member               200
    GET /tunnels
      alone                200
      owner                200
      admin                200
      member               200
    POST /tunnels
      alone                201
      owner                201
      admin                201
      member               201
    GET /tunnels/{tunnel_id}
      alone, own           200
      alone, a stranger's  404 not_found
      owner, own           200
      owner, a member's    200
      admin, the owner's   200
      admin, a member's    200
      member, own          200
      member, the owner's  200
      owner, a stranger's  404 not_found
      owner, nobody's      404 not_found
    PATCH /tunnels/{tunnel_id}
      alone, own           200
      alone, a stranger's  404 not_found
      owner, own           200
      owner, a member's    200
      admin, the owner's   200
      admin, a member's    200
      member, own          200
      member, the owner's  403 team_role_forbidden
      owner, a stranger's  404 not_found
      owner, nobody's      404 not_found
    DELETE /tunnels/{tunnel_id}
      alone, own           200
      alone, a stranger's  404 not_found
      owner, own           200
      owner, a member's    200
      admin, the owner's   200
      admin, a member's    200
      member, own          200
      member, the owner's  403 team_role_forbidden
      owner, a stranger's  404 not_found
      owner, nobody's      404 not_found
    PUT /tunnels/{tunnel_id}/devices
      alone, own           200
      alone, a stranger's  404 not_found
      owner, own           200
      owner, a member's    200
      admin, the owner's   200
      admin, a member's    200
      member, own          200
      member, the owner's  403 team_role_forbidden
      owner, a stranger's  404 not_found
      owner, nobody's      404 not_found
    POST /tunnels/{tunnel_id}/actions/start
      alone, own           409 remote_control_disabled
      alone, a stranger's  404 not_found
      owner, own           409 remote_control_disabled
      owner, a member's    409 remote_control_disabled
      admin, the owner's   409 remote_control_disabled
      admin, a member's    409 remote_control_disabled
      member, own          409 remote_control_disabled
      member, the owner's  403 team_role_forbidden
      owner, a stranger's  404 not_found
      owner, nobody's      404 not_found
    POST /tunnels/{tunnel_id}/actions/stop
      alone, own           409 remote_control_disabled
      alone, a stranger's  404 not_found
      owner, own           409 remote_control_disabled
      owner, a member's    409 remote_control_disabled
      admin, the owner's   409 remote_control_disabled
      admin, a member's    409 remote_control_disabled
      member, own          409 remote_control_disabled
      member, the owner's  403 team_role_forbidden
      owner, a stranger's  404 not_found
      owner, nobody's      404 not_found
    POST /tunnels/{tunnel_id}/actions/restart
      alone, own           409 remote_control_disabled
      alone, a stranger's  404 not_found
      owner, own           409 remote_control_disabled
      owner, a member's    409 remote_control_disabled
      admin, the owner's   409 remote_control_disabled
      admin, a member's    409 remote_control_disabled
      member, own          409 remote_control_disabled
      member, the owner's  403 team_role_forbidden
      owner, a stranger's  404 not_found
      owner, nobody's      404 not_found
    GET /tunnels/{tunnel_id}/extra-ports
      alone, own           200
      alone, a stranger's  404 not_found
      owner, own           200
      owner, a member's    200
      admin, the owner's   200
      admin, a member's    200
      member, own          200
      member, the owner's  200
      owner, a stranger's  404 not_found
      owner, nobody's      404 not_found
    POST /tunnels/{tunnel_id}/extra-ports
      alone, own           201
      alone, a stranger's  404 not_found
      owner, own           201
      owner, a member's    201
      admin, the owner's   201
      admin, a member's    201
      member, own          201
      member, the owner's  403 team_role_forbidden
      owner, a stranger's  404 not_found
      owner, nobody's      404 not_found
    DELETE /tunnels/{tunnel_id}/extra-ports/{port_id}
      alone, own           200
      alone, a stranger's  404 not_found
      owner, own           200
      owner, a member's    200
      admin, the owner's   200
      admin, a member's    200
      member, own          200
      member, the owner's  403 team_role_forbidden
      owner, a stranger's  404 not_found
      owner, nobody's      404 not_found
    GET /tunnels/{tunnel_id}/domain
      alone, own           200
      alone, a stranger's  404 not_found
      owner, own           200
      owner, a member's    200
      admin, the owner's   200
      admin, a member's    200
      member, own          200
      member, the owner's  200
      owner, a stranger's  404 not_found
      owner, nobody's      404 not_found
    PUT /tunnels/{tunnel_id}/domain
      alone, own           422 domain_not_verified
      alone, a stranger's  404 not_found
      owner, own           422 domain_not_verified
      owner, a member's    422 domain_not_verified
      admin, the owner's   422 domain_not_verified
      admin, a member's    422 domain_not_verified
      member, own          422 domain_not_verified
      member, the owner's  403 team_role_forbidden
      owner, a stranger's  404 not_found
      owner, nobody's      404 not_found
    DELETE /tunnels/{tunnel_id}/domain
      alone, own           200
      alone, a stranger's  404 not_found
      owner, own           200
      owner, a member's    200
      admin, the owner's   200
      admin, a member's    200
      member, own          200
      member, the owner's  403 team_role_forbidden
      owner, a stranger's  404 not_found
      owner, nobody's      404 not_found
    POST /tunnels/{tunnel_id}/domain/actions/verify
      alone, own           200
      alone, a stranger's  404 not_found
      owner, own           200
      owner, a member's    200
      admin, the owner's   200
      admin, a member's    200
      member, own          200
      member, the owner's  403 team_role_forbidden
      owner, a stranger's  404 not_found
      owner, nobody's      404 not_found
    GET /tunnels/{tunnel_id}/firewall
      alone, own           200
      alone, a stranger's  404 not_found
      owner, own           200
      owner, a member's    200
      admin, the owner's   200
      admin, a member's    200
      member, own          200
      member, the owner's  200
      owner, a stranger's  404 not_found
      owner, nobody's      404 not_found
    PUT /tunnels/{tunnel_id}/firewall
      alone, own           200
      alone, a stranger's  404 not_found
      owner, own           200
      owner, a member's    200
      admin, the owner's   200
      admin, a member's    200
      member, own          200
      member, the owner's  403 team_role_forbidden
      owner, a stranger's  404 not_found
      owner, nobody's      404 not_found
    GET /tunnels/{tunnel_id}/geoip
      alone, own           200
      alone, a stranger's  404 not_found
      owner, own           200
      owner, a member's    200
      admin, the owner's   200
      admin, a member's    200
      member, own          200
      member, the owner's  200
      owner, a stranger's  404 not_found
      owner, nobody's      404 not_found
    PUT /tunnels/{tunnel_id}/geoip
      alone, own           200
      alone, a stranger's  404 not_found
      owner, own           200
      owner, a member's    200
      admin, the owner's   200
      admin, a member's    200
      member, own          200
      member, the owner's  403 team_role_forbidden
      owner, a stranger's  404 not_found
      owner, nobody's      404 not_found
    POST /tunnels/{tunnel_id}/move
      alone, own           422 validation_failed
      alone, a stranger's  404 not_found
      owner, own           422 validation_failed
      owner, a member's    422 validation_failed
      admin, the owner's   422 validation_failed
      admin, a member's    422 validation_failed
      member, own          422 validation_failed
      member, the owner's  403 team_role_forbidden
      owner, a stranger's  404 not_found
      owner, nobody's      404 not_found
    GET /tunnels/{tunnel_id}/usage
      alone, own           200
      alone, a stranger's  404 not_found
      owner, own           200
      owner, a member's    200
      admin, the owner's   200
      admin, a member's    200
      member, own          200
      member, the owner's  200
      owner, a stranger's  404 not_found
      owner, nobody's      404 not_found
    GET /tunnels/{tunnel_id}/sessions
      alone, own           200
      alone, a stranger's  404 not_found
      owner, own           200
      owner, a member's    200
      admin, the owner's   200
      admin, a member's    200
      member, own          200
      member, the owner's  200
      owner, a stranger's  404 not_found
      owner, nobody's      404 not_found
    GET /devices
      alone                200
      owner                200
      admin                200
      member               200
    GET /devices/{device_id}
      alone, own           200
      alone, a stranger's  404 not_found
      owner, own           200
      owner, a member's    200
      admin, the owner's   200
      admin, a member's    200
      member, own          200
      member, the owner's  200
      owner, a stranger's  404 not_found
      owner, nobody's      404 not_found
    PATCH /devices/{device_id}
      alone, own           200
      alone, a stranger's  404 not_found
      owner, own           200
      owner, a member's    403 not_device_owner
      admin, the owner's   403 not_device_owner
      admin, a member's    403 not_device_owner
      member, own          200
      member, the owner's  403 not_device_owner
      owner, a stranger's  404 not_found
      owner, nobody's      404 not_found
    POST /devices/{device_id}/actions/stop-all
      alone, own           409 remote_control_disabled
      alone, a stranger's  404 not_found
      owner, own           409 remote_control_disabled
      owner, a member's    409 remote_control_disabled
      admin, the owner's   409 remote_control_disabled
      admin, a member's    409 remote_control_disabled
      member, own          409 remote_control_disabled
      member, the owner's  403 team_role_forbidden
      owner, a stranger's  404 not_found
      owner, nobody's      404 not_found
    POST /devices/{device_id}/actions/restart-agent
      alone, own           409 remote_control_disabled
      alone, a stranger's  404 not_found
      owner, own           409 remote_control_disabled
      owner, a member's    409 remote_control_disabled
      admin, the owner's   409 remote_control_disabled
      admin, a member's    409 remote_control_disabled
      member, own          409 remote_control_disabled
      member, the owner's  403 team_role_forbidden
      owner, a stranger's  404 not_found
      owner, nobody's      404 not_found
    GET /operations
      alone                200
      owner                200
      admin                200
      member               200
    GET /operations/{operation_id}
      alone, own           200
      alone, a stranger's  404 not_found
      owner, own           200
      owner, a member's    200
      admin, the owner's   200
      admin, a member's    200
      member, own          200
      member, the owner's  200
      owner, a stranger's  404 not_found
      owner, nobody's      404 not_found
    GET /webhooks
      alone                200
      owner                200
      admin                200
      member               200
    POST /webhooks
      alone                201
      owner                201
      admin                201
      member               403 team_role_forbidden
    GET /webhooks/{webhook_id}
      alone, own           200
      alone, a stranger's  404 not_found
      owner, own           200
      owner, a member's    200
      admin, the owner's   200
      admin, a member's    200
      member, own          200
      member, the owner's  200
      owner, a stranger's  404 not_found
      owner, nobody's      404 not_found
    PATCH /webhooks/{webhook_id}
      alone, own           200
      alone, a stranger's  404 not_found
      owner, own           200
      owner, a member's    200
      admin, the owner's   200
      admin, a member's    200
      member, own          403 team_role_forbidden
      member, the owner's  403 team_role_forbidden
      owner, a stranger's  404 not_found
      owner, nobody's      404 not_found
    DELETE /webhooks/{webhook_id}
      alone, own           200
      alone, a stranger's  404 not_found
      owner, own           200
      owner, a member's    200
      admin, the owner's   200
      admin, a member's    200
      member, own          403 team_role_forbidden
      member, the owner's  403 team_role_forbidden
      owner, a stranger's  404 not_found
      owner, nobody's      404 not_found
    POST /webhooks/{webhook_id}/test
      alone, own           202
      alone, a stranger's  404 not_found
      owner, own           202
      owner, a member's    202
      admin, the owner's   202
      admin, a member's    202
      member, own          403 team_role_forbidden
      member, the owner's  403 team_role_forbidden
      owner, a stranger's  404 not_found
      owner, nobody's      404 not_found
    GET /webhooks/{webhook_id}/deliveries
      alone, own           200
      alone, a stranger's  404 not_found
      owner, own           200
      owner, a member's    200
      admin, the owner's   200
      admin, a member's    200
      member, own          200
      member, the owner's  200
      owner, a stranger's  404 not_found
      owner, nobody's      404 not_found
    ") }

    // Without access to the API, nobody does anything with anything.
    host.set_plan(team, "none").await;
    host.set_plan(dan.account_id, "none").await;
    host.pass(Duration::from_secs(1)).await;
    for row in table() {
        for caller in [&alone, &owner, &admin, &member] {
            for whose in [&alone, &owner, &admin, &member] {
                let ids = Ids {
                    tunnel: whose.running,
                    device: whose.device.id,
                    operation: whose.operation,
                    ..Ids::all(nobodys)
                };
                let target = (ids.fill(&row), body(&row, whose.device.id));
                assert_eq!(ask(&caller.api, &row, target).await, "403 feature_not_available", "{}", row.path);
            }
        }
    }
}

/// A member's own tunnel, which somebody else runs on their device: what ends or moves the run is
/// theirs to do, and what leads the device somewhere else is not.
#[both_engines]
async fn team_member_cannot_redirect_device_of_another_member(engine: Engine) {
    let host = TestHost::with(engine, |config| config.rate_limit.per_minute = 10_000).await;
    let (ada, cem) = (host.person("ada").await, host.person("cem").await);
    let team = host.team("Engines", &ada).await;
    host.join(team, &cem, Role::Member).await;
    let member = host.api(&host.key(cem.account_id, team, "full_access").await.key);
    let owner = host.api(&host.key(ada.account_id, team, "full_access").await.key);
    let office = host.device(&ada, team, Remote::Enabled).await;
    let own = host.device(&cem, team, Remote::Enabled).await;
    let (site, private) = (named_service("the web site").await, named_service("what nobody offered").await);
    let mut text = String::new();
    for (what, method, path, body) in [
        ("name", Method::PATCH, "", json!({"name": "changed"})),
        ("local_port", Method::PATCH, "", json!({"local_port": private.port()})),
        ("local_host", Method::PATCH, "", json!({"local_host": "localhost"})),
        ("the same target", Method::PATCH, "", json!({"local_host": "127.0.0.1", "local_port": site.port()})),
        ("idle_timeout", Method::PATCH, "", json!({"idle_timeout": 60})),
        ("add an extra port", Method::POST, "/extra-ports", json!({"local_port": private.port()})),
        ("remove an extra port", Method::DELETE, "/extra-ports/{port}", json!({})),
        ("firewall", Method::PUT, "/firewall", json!({"rules": []})),
        ("start there", Method::POST, "/actions/start", json!({"device_id": office.id})),
        ("hand over to own", Method::POST, "/actions/start", json!({"device_id": own.id, "handoff": true})),
        ("stop", Method::POST, "/actions/stop", json!({})),
        ("restart", Method::POST, "/actions/restart", json!({})),
        ("move", Method::POST, "/move", json!({"node_id": host.app.service.nodes().ids()[0]})),
        ("allowlist", Method::PUT, "/devices", json!({"device_ids": [own.id]})),
        ("delete", Method::DELETE, "", json!({})),
    ] {
        let tunnel = member.post("/tunnels", json!({"name": what, "local_port": site.port()})).await.id();
        let port =
            member.post(&format!("/tunnels/{tunnel}/extra-ports"), json!({"local_port": site.port()})).await.id();
        let start = owner.post(&format!("/tunnels/{tunnel}/actions/start"), json!({"device_id": office.id})).await.id();
        host.until_operation(&owner, start, "succeeded").await;
        let path = format!("/tunnels/{tunnel}{path}").replace("{port}", &port.to_string());
        let request = member.request(method, &path).header("idempotency-key", host.clock.id().to_string());
        let outcome = member.send(request.json(&body)).await.outcome();
        text += &format!("{what:20} {outcome}\n");
        if outcome.starts_with("403") {
            assert_eq!(visit(&host, &owner, tunnel, b"").await.unwrap(), b"the web site", "{what}");
            let ports = owner.get(&format!("/tunnels/{tunnel}/extra-ports")).await.data().as_array().unwrap().len();
            assert_eq!(ports, 1, "{what}");
        }
    }
    allow_duplicates! { assert_snapshot!(text, @"
    name                 200
    local_port           403 team_role_forbidden
    local_host           403 team_role_forbidden
    the same target      200
    idle_timeout         200
    add an extra port    403 team_role_forbidden
    remove an extra port 200
    firewall             200
    start there          403 team_role_forbidden
    hand over to own     403 team_role_forbidden
    stop                 403 team_role_forbidden
    restart              403 team_role_forbidden
    move                 409 already_on_node
    allowlist            200
    delete               200
    ") }

    // The device has sent nearly as many frames as it may at once; with time it may send more.
    host.clock.advance(Duration::from_secs(5));
    // Nor before it runs: a device that is to run it again would be led there when it is back.
    let tunnel = member.post("/tunnels", json!({"name": "again", "local_port": site.port()})).await.id();
    let start = owner.post(&format!("/tunnels/{tunnel}/actions/start"), json!({"device_id": office.id})).await.id();
    host.until_operation(&owner, start, "succeeded").await;
    let (folder, state) = office.shut_down().await;
    host.until_tunnel(&owner, tunnel, "stopped").await;
    let path = format!("/tunnels/{tunnel}");
    let change = json!({"local_port": private.port()});
    assert_eq!(member.patch(&path, change.clone()).await.outcome(), "403 team_role_forbidden");
    let office = TestDevice::start_again(folder, state, host.clock.clone());
    host.until_tunnel(&owner, tunnel, "running").await;
    assert_eq!(visit(&host, &owner, tunnel, b"").await.unwrap(), b"the web site");

    // Nor while it is handed over: where that fails, the device gets the tunnel back.
    let (new, mut wire) = host.wired(&cem, team).await;
    let over = json!({"device_id": new.id, "handoff": true});
    let handoff = owner.post(&format!("{path}/actions/start"), over).await.id();
    assert!(wire.begin(handoff).await.is_some());
    host.until_operation(&owner, handoff, "running").await;
    assert_eq!(member.patch(&path, change.clone()).await.outcome(), "403 team_role_forbidden");
    let outcome = Err(Failure::new(FailureCode::TunnelStartFailed, "It does not start."));
    wire.send(ToHost::Finished { operation_id: handoff, outcome }).await;
    host.until_operation(&owner, handoff, "failed").await;
    host.until_tunnel(&owner, tunnel, "running").await;

    // Once the run has ended for good, the tunnel is its creator's alone.
    office.stop_tunnel(&tunnel.to_string()).await.unwrap();
    host.until_tunnel(&owner, tunnel, "stopped").await;
    assert_eq!(member.patch(&path, change).await.outcome(), "200");
}
