//! Each rule of each shipped module, explained: the rule and its sentence, the module, and the fact that decided. With another
//! fact, the same is not refused.

use std::collections::BTreeSet;

use culvert_domain::audit_log::Actor;
use culvert_domain::caller::Role;
use culvert_policy::serve::status::ModuleStatus;
use culvert_service::locked_accounts;
use culvert_test_macros::both_engines;
use reqwest::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::dashboard_explain::{checks, explained, request_id};
use crate::support::api::{Answer, Api};
use crate::support::host::{Engine, Person, TestHost};
use crate::support::names::Names;
use crate::support::tab::Tab;

struct Stage {
    host: TestHost,
    ada: Person,
    tab: Tab,
    explained: BTreeSet<String>,
    problems: Vec<String>,
}

/// A request that a rule refuses, the fact that decides, and what is asked instead.
struct Case<'a> {
    rule: &'a str,
    fact: (&'a str, &'a str),
    refused: Answer,
    allowed: Answer,
}

impl Stage {
    async fn set(engine: Engine, resolver: Option<&Names>) -> Self {
        let host = TestHost::with(engine, |config| {
            config.rate_limit.per_minute = 10_000;
            config.dns.resolver = resolver.map(|resolver| resolver.address);
        })
        .await;
        let ada = host.person("ada").await;
        let tab = Tab::with_password(&host, ada.account_id).await;
        Self { host, ada, tab, explained: BTreeSet::new(), problems: Vec::new() }
    }

    async fn check(&mut self, scope: Uuid, case: Case<'_>) {
        let Case { rule, fact, refused, allowed } = case;
        if refused.status < 400 || allowed.status >= 300 {
            self.problems.push(format!("{rule}: {refused}, then {allowed}"));
        } else {
            self.explain(scope, rule, fact, request_id(&refused)).await;
        }
    }

    /// The page of a request names the rule, the module that decided, and the fact.
    async fn explain(&mut self, scope: Uuid, rule: &str, (name, value): (&str, &str), id: Uuid) {
        let shown = explained(&self.host, &mut self.tab, &scope.to_string(), id).await;
        let Some(policy) = shown.text.split("<h2>The policy</h2>").nth(1) else {
            return self.problems.push(format!("{rule}: no policy has decided: {}", checks(&shown).join(", ")));
        };
        let status = self.host.app.policies.status();
        let names = |module: &ModuleStatus| {
            let named = format!("{} {}, generation {}", module.name, module.version, status.generation);
            policy.contains(&named) && policy.contains(&module.sha256)
        };
        let fact = format!("<dt><code>{name}</code></dt><dd><code>{value}</code></dd>");
        let rule_named = policy.contains(&format!("Rule <code>{rule}</code>: “"));
        if rule_named && status.modules.iter().any(names) && policy.contains(&fact) {
            self.explained.insert(rule.to_owned());
        } else {
            let policy = policy.split("What it saw").nth(1).unwrap().split("</dl>").next().unwrap();
            self.problems.push(format!("{rule}: {name} = {value} is not in {policy}"));
        }
    }

    /// The rules of a module that no request has met.
    fn missing(&self, module: &str) -> Vec<String> {
        let policies = self.host.app.policies.current();
        let loaded = policies.modules().iter().find(|loaded| loaded.module.description.name == module).unwrap();
        let rules = loaded.module.description.rules.iter().map(|rule| rule.id.clone());
        rules.filter(|rule| !self.explained.contains(rule)).collect()
    }
}

async fn send(api: &Api, method: Method, path: &str, body: &Value) -> Answer {
    match method.as_str() {
        "POST" => api.post(path, body.clone()).await,
        "PUT" => api.put(path, body.clone()).await,
        _ => api.patch(path, body.clone()).await,
    }
}

#[both_engines]
async fn every_rule_of_the_plans_is_explained(engine: Engine) {
    let resolver = Names::open().await;
    let mut stage = Stage::set(engine, Some(&resolver)).await;
    let (scope, api) = (stage.ada.account_id, stage.host.api(&stage.ada.key));
    let (device, _wire) = stage.host.wired(&stage.ada, scope).await;
    let restart = format!("/devices/{}/actions/restart-agent", device.id);
    let tunnel = api.post("/tunnels", json!({"local_port": 80, "protocol": "http", "subdomain": "hello"})).await.id();
    let (ports, verify) =
        (format!("/tunnels/{tunnel}/extra-ports"), format!("/tunnels/{tunnel}/domain/actions/verify"));
    let (port, domain) = (json!({"local_port": 81, "protocol": "tcp"}), json!({"domain": "www.example.test"}));
    let webhook = json!({"url": "https://8.8.8.8/", "events": ["device.online"]});
    let premium = json!({"local_port": 1, "pro_network": true});
    api.post(&ports, port.clone()).await.data();
    api.post("/webhooks", webhook.clone()).await.data();
    for number in 0..2 {
        api.post("/tunnels", json!({"local_port": 80, "name": format!("t{number}")})).await.data();
    }
    let extra = api.post(&ports, json!({"local_port": 82, "protocol": "tcp"})).await.id();
    api.delete(&format!("{ports}/{extra}")).await.data();

    let plan = async |stage: &Stage, plan: &str| stage.host.set_plan(scope, plan).await;
    let cases = [
        ("remote-action", ("caller.plan", "free"), restart.as_str(), json!({})),
        ("tunnel-limit", ("usage.tunnels", "3"), "/tunnels", json!({"local_port": 80})),
        ("extra-port-limit", ("usage.extra-ports", "1"), ports.as_str(), port),
        ("webhook-limit", ("usage.webhook-endpoints", "1"), "/webhooks", webhook),
        ("custom-domain", ("wants.domain", "www.example.test"), verify.as_str(), domain),
    ];
    for (rule, fact, path, body) in cases {
        plan(&stage, "free").await;
        let refused = api.post(path, body.clone()).await;
        plan(&stage, "pro").await;
        let allowed = api.post(path, body).await;
        stage.check(scope, Case { rule, fact, refused, allowed }).await;
    }
    for tunnel in api.get("/tunnels").await.data().as_array().unwrap().iter().skip(1) {
        api.delete(&format!("/tunnels/{}", tunnel["id"].as_str().unwrap())).await.data();
    }
    plan(&stage, "free").await;
    let refused = api.post("/tunnels", premium).await;
    let allowed = api.post("/tunnels", json!({"local_port": 1})).await;
    let fact = ("wants.premium-network", "true");
    stage.check(scope, Case { rule: "premium-network", fact, refused, allowed }).await;
    // The host refuses a key by what the plan includes; whoever has signed in is refused by the module.
    plan(&stage, "none").await;
    let path = format!("/dashboard/{scope}/tunnels");
    let form = stage.tab.made_up(&stage.host, &path, &[("local_port", "80"), ("protocol", "tcp")]).await;
    let refused = stage.tab.post(&path, &form).await;
    assert_eq!(refused.outcome(), "403 feature_not_available");
    stage.explain(scope, "api-access", ("caller.plan", "none"), refused.request_id()).await;
    plan(&stage, "pro").await;
    let form = stage.tab.made_up(&stage.host, &path, &[("local_port", "80"), ("protocol", "tcp")]).await;
    assert_eq!(stage.tab.post(&path, &form).await.status, 303);
    assert!(stage.problems.is_empty(), "{:#?}", stage.problems);
    assert_eq!(stage.missing("plan-access"), [] as [&str; 0]);
}

#[both_engines]
async fn every_rule_of_the_roles_is_explained(engine: Engine) {
    let mut stage = Stage::set(engine, None).await;
    let (eve, bob) = (stage.host.person("eve").await, stage.host.person("bob").await);
    let team = stage.host.team("Lab", &stage.ada).await;
    for member in [&eve, &bob] {
        stage.host.join(team, member, Role::Member).await;
    }
    let adas = stage.host.api(&stage.host.key(stage.ada.account_id, team, "full_access").await.key);
    let eves = stage.host.api(&stage.host.key(eve.account_id, team, "full_access").await.key);
    let (hers, _her_wire) = stage.host.wired(&stage.ada, team).await;
    let (own, _own_wire) = stage.host.wired(&eve, team).await;
    let (bobs, _bobs_wire) = stage.host.wired(&bob, team).await;
    let stop_all = |device: Uuid| format!("/devices/{device}/actions/stop-all");
    let (adas_tunnel, eves_tunnel) = (
        adas.post("/tunnels", json!({"local_port": 80})).await.id(),
        eves.post("/tunnels", json!({"local_port": 80})).await.id(),
    );

    let refused = eves.delete(&format!("/tunnels/{adas_tunnel}")).await;
    let allowed = eves.delete(&format!("/tunnels/{eves_tunnel}")).await;
    stage.check(team, Case { rule: "own-tunnel", fact: ("tunnel.created-by-caller", "false"), refused, allowed }).await;
    let refused = eves.post(&stop_all(hers.id), json!({})).await;
    let allowed = eves.post(&stop_all(own.id), json!({})).await;
    let fact = ("devices.0.owned-by-caller", "false");
    stage.check(team, Case { rule: "own-device", fact, refused, allowed }).await;
    let name = json!({"name": "mine"});
    let refused = adas.patch(&format!("/devices/{}", own.id), name.clone()).await;
    let allowed = adas.patch(&format!("/devices/{}", hers.id), name).await;
    stage.check(team, Case { rule: "device-owner", fact, refused, allowed }).await;
    let webhook = json!({"url": "https://8.8.8.8/", "events": ["device.online"]});
    let refused = eves.post("/webhooks", webhook.clone()).await;
    let allowed = adas.post("/webhooks", webhook).await;
    stage.check(team, Case { rule: "webhooks", fact: ("caller.role", "member"), refused, allowed }).await;

    // Only in the dashboard.
    let path = format!("/dashboard/{team}/team/name");
    let mut eves_tab = Tab::with_password(&stage.host, eve.account_id).await;
    let form = eves_tab.made_up(&stage.host, &path, &[("name", "Works")]).await;
    let refused = eves_tab.post(&path, &form).await;
    assert_eq!(refused.outcome(), "403 team_role_forbidden");
    stage.explain(team, "membership-changes", ("caller.role", "member"), refused.request_id()).await;
    let form = stage.tab.made_up(&stage.host, &path, &[("name", "Works")]).await;
    assert_eq!(stage.tab.post(&path, &form).await.status, 303);

    locked_accounts::lock(&stage.host.app.store, bob.account_id, Actor::CLI).await.unwrap();
    let refused = adas.post(&stop_all(bobs.id), json!({})).await;
    locked_accounts::unlock(&stage.host.app.store, bob.account_id, Actor::CLI).await.unwrap();
    let fact = ("devices.0.owner-active", "false");
    stage.explain(team, "active-member", fact, request_id(&refused)).await;
    assert_eq!(adas.post(&stop_all(bobs.id), json!({})).await.outcome(), "409 device_offline");
    // Nobody without a role is asked about, and every action of this host is one that the rules name.
    assert!(stage.problems.is_empty(), "{:#?}", stage.problems);
    assert_eq!(stage.missing("team-role"), ["membership", "unknown-action"]);
}

#[both_engines]
async fn every_rule_of_the_fields_is_explained(engine: Engine) {
    let mut stage = Stage::set(engine, None).await;
    let (scope, api) = (stage.ada.account_id, stage.host.api(&stage.ada.key));
    let (device, _wire) = stage.host.wired(&stage.ada, scope).await;
    let tcp = api.post("/tunnels", json!({"local_port": 80})).await.id();
    let http = api.post("/tunnels", json!({"local_port": 80, "protocol": "http", "subdomain": "hello"})).await.id();
    let hook = json!({"url": "https://8.8.8.8/", "events": ["device.online"]});
    let webhook = api.post("/webhooks", hook).await.id();
    let tunnels = || (Method::POST, "/tunnels".to_owned());
    let change = |tunnel: Uuid| (Method::PATCH, format!("/tunnels/{tunnel}"));
    let put = |part: &str| (Method::PUT, format!("/tunnels/{tcp}/{part}"));
    let extra = || (Method::POST, format!("/tunnels/{tcp}/extra-ports"));
    let (long, longer) = ("x".repeat(101), "x".repeat(256));
    let webhooks = || (Method::POST, "/webhooks".to_owned());
    let new = |field: &str, value: Value| json!({"local_port": 80, "protocol": "http", field: value});
    let hook = |url: &str, events: &[&str]| json!({"url": url, "events": events});
    let refuse = |address: &str| json!({"rules": [{"rule_type": "blacklist", "ip_address": address}]});
    let many: Vec<Value> =
        (0..201).map(|n| json!({"rule_type": "blacklist", "ip_address": format!("10.0.0.{n}")})).collect();
    let devices: Vec<Uuid> = (0..101).map(Uuid::from_u128).collect();
    let cases = [
        (
            "required",
            tunnels(),
            json!({"name": "a"}),
            json!({"name": "a", "local_port": 80}),
            ("input.tunnel-create.name", "a"),
        ),
        ("empty-change", change(tcp), json!({}), json!({"name": "b"}), ("facts.current.tunnel.name", "tcp-80")),
        (
            "port",
            tunnels(),
            json!({"local_port": 0}),
            json!({"local_port": 1}),
            ("input.tunnel-create.local-port", "0"),
        ),
        ("name", change(tcp), json!({"name": long}), json!({"name": "x"}), ("input.tunnel-update.name", &long)),
        (
            "local-host",
            tunnels(),
            new("local_host", json!("a b")),
            new("local_host", json!("localhost")),
            ("input.tunnel-create.local-host", "a b"),
        ),
        (
            "region",
            tunnels(),
            new("region", json!("EU")),
            new("region", json!(null)),
            ("input.tunnel-create.region", "EU"),
        ),
        (
            "country",
            tunnels(),
            new("country", json!("XX")),
            new("country", json!(null)),
            ("input.tunnel-create.country", "XX"),
        ),
        (
            "subdomain",
            tunnels(),
            new("subdomain", json!("a--b")),
            new("subdomain", json!("a-b")),
            ("input.tunnel-create.subdomain", "a--b"),
        ),
        (
            "reserved-subdomain",
            tunnels(),
            new("subdomain", json!("www")),
            new("subdomain", json!("www2")),
            ("input.tunnel-create.subdomain", "www"),
        ),
        (
            "label",
            extra(),
            json!({"local_port": 81, "protocol": "tcp", "label": longer}),
            json!({"local_port": 81, "protocol": "tcp", "label": "x"}),
            ("input.extra-port-create.label", &longer),
        ),
        (
            "idle-timeout",
            change(tcp),
            json!({"idle_timeout": 29}),
            json!({"idle_timeout": 30}),
            ("input.tunnel-update.idle-timeout", "29"),
        ),
        (
            "buffer-size",
            change(tcp),
            json!({"buffer_size": 1023}),
            json!({"buffer_size": 1024}),
            ("input.tunnel-update.buffer-size", "1023"),
        ),
        (
            "host-header",
            change(tcp),
            json!({"host_header": "a"}),
            json!({"name": "c"}),
            ("input.host_header", "&quot;a&quot;"),
        ),
        (
            "local-scheme",
            change(tcp),
            json!({"local_scheme": "https"}),
            json!({"local_scheme": "auto"}),
            ("input.local_scheme", "&quot;https&quot;"),
        ),
        (
            "local-tls-verify",
            change(tcp),
            json!({"local_tls_verify": true}),
            json!({"local_tls_verify": null}),
            ("input.local_tls_verify", "true"),
        ),
        (
            "proxy-protocol",
            change(tcp),
            json!({"proxy_protocol": "spp"}),
            json!({"proxy_protocol": "v1"}),
            ("input.proxy_protocol", "&quot;spp&quot;"),
        ),
        (
            "tls-passthrough",
            change(tcp),
            json!({"tls_passthrough": true}),
            json!({"tls_passthrough": false}),
            ("input.tls_passthrough", "true"),
        ),
        (
            "http-only",
            change(tcp),
            json!({"http_basic_auth_enabled": true}),
            json!({"name": "d"}),
            ("facts.current.tunnel.protocol", "tcp"),
        ),
        (
            "basic-auth-incomplete",
            change(http),
            json!({"http_basic_auth_enabled": true}),
            json!({"name": "e"}),
            ("input.tunnel-update.http-basic-auth-enabled", "true"),
        ),
        (
            "basic-auth-user",
            change(http),
            json!({"http_basic_auth_username": "a:b"}),
            json!({"http_basic_auth_username": "ab"}),
            ("input.tunnel-update.http-basic-auth-username.text", "a:b"),
        ),
        (
            "basic-auth-password",
            change(http),
            json!({"http_basic_auth_password": "short"}),
            json!({"http_basic_auth_password": "long enough"}),
            ("input.tunnel-update.http-basic-auth-password.text", "********"),
        ),
        (
            "device-count",
            put("devices"),
            json!({"device_ids": devices}),
            json!({"device_ids": []}),
            ("input.device-bindings.device-ids.20", "101 in all"),
        ),
        (
            "remote-consent",
            (Method::PATCH, format!("/devices/{}", device.id)),
            json!({"remote_control_enabled": true}),
            json!({"remote_control_enabled": false}),
            ("input.device-update.remote-control-enabled", "true"),
        ),
        (
            "domain",
            (Method::POST, format!("/tunnels/{http}/domain/actions/verify")),
            json!({"domain": "one"}),
            json!({"domain": "www.example.test"}),
            ("input.domain-verify.domain", "one"),
        ),
        (
            "rule-count",
            put("firewall"),
            json!({"rules": many}),
            json!({"rules": []}),
            ("input.firewall-replace.rules.20", "201 in all"),
        ),
        (
            "one-address",
            put("firewall"),
            json!({"rules": [{"rule_type": "blacklist", "ip_address": "10.0.0.1", "ip_cidr": "10.0.0.0/8"}]}),
            refuse("10.0.0.1"),
            ("input.firewall-replace.rules.0.ip-cidr", "10.0.0.0/8"),
        ),
        (
            "address",
            put("firewall"),
            refuse("10.0.0"),
            refuse("10.0.0.1"),
            ("input.firewall-replace.rules.0.ip-address", "10.0.0"),
        ),
        (
            "duplicate",
            webhooks(),
            hook("https://8.8.8.8/", &["device.online", "device.online"]),
            hook("https://8.8.8.8/", &["device.online"]),
            ("input.webhook-create.events.1", "device.online"),
        ),
        (
            "url",
            webhooks(),
            hook("http://8.8.8.8/", &["device.online"]),
            hook("https://8.8.8.8/", &["device.online"]),
            ("input.webhook-create.url", "http://8.8.8.8/"),
        ),
        (
            "event",
            webhooks(),
            hook("https://8.8.8.8/", &["moon.rise"]),
            hook("https://8.8.8.8/", &["device.online"]),
            ("input.webhook-create.events.0", "moon.rise"),
        ),
        (
            "events-empty",
            (Method::PATCH, format!("/webhooks/{webhook}")),
            json!({"events": []}),
            json!({"events": ["device.offline"]}),
            ("input.webhook-update.events", "[]"),
        ),
    ];
    for (rule, (method, path), refused, allowed, fact) in cases {
        let refused = send(&api, method.clone(), &path, &refused).await;
        let allowed = send(&api, method, &path, &allowed).await;
        stage.check(scope, Case { rule, fact, refused, allowed }).await;
    }
    assert!(stage.problems.is_empty(), "{:#?}", stage.problems);
    assert_eq!(stage.missing("validation"), [] as [&str; 0]);
}
