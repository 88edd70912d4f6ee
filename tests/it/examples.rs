//! The policies in `policies/examples`: built by the real program, loaded by a host, and seen to allow and to refuse.

use culvert_domain::caller::Role;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::api::Api;
use crate::support::device::{Remote, TestDevice};
use crate::support::host::{Engine, Person};
use crate::support::policies::{Swapped, builtin, entry};
use crate::support::program::Place;
use culvert_test_macros::both_engines;

/// A host with one example in front of the shipped modules, and a Team.
struct Stage {
    swapped: Swapped,
    ada: Person,
    team: Uuid,
    api: Api,
}

/// Most lines of an example.
const LINES: usize = 30;

impl Stage {
    async fn set(example: &str, kind: &str, settings: &str) -> Self {
        Self::set_on(Engine::Sqlite, example, kind, settings).await
    }

    async fn set_on(engine: Engine, example: &str, kind: &str, settings: &str) -> Self {
        let swapped = Swapped::on(engine, |_| {}).await;
        let module = build(&swapped, example).await;
        swapped.configure(
            &(entry(kind, &module, &format!("settings = {settings}"))
                + &builtin(&["plan-access", "team-role", "validation"])),
        );
        assert_eq!(swapped.reload().await, Ok(2));
        let ada = swapped.host.person("ada").await;
        let team = swapped.host.team("Acme", &ada).await;
        let api = swapped.host.api(&swapped.host.key(ada.account_id, team, "full_access").await.key);
        Self { swapped, ada, team, api }
    }

    /// A device of the Team, with a name.
    async fn device(&self, name: &str) -> TestDevice {
        let device = self.swapped.host.device(&self.ada, self.team, Remote::Enabled).await;
        self.api.patch(&format!("/devices/{}", device.id), json!({ "name": name })).await.data();
        device
    }

    async fn tunnel(&self, change: Value) -> Uuid {
        let mut body = json!({"local_port": 80});
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        self.api.post("/tunnels", body).await.id()
    }

    async fn starts(&self, api: &Api, tunnel: Uuid, device: &TestDevice) -> String {
        let path = format!("/tunnels/{tunnel}/actions/start");
        api.post(&path, json!({"device_id": device.id})).await.outcome()
    }
}

/// Builds an example beside the host's configuration.
async fn build(swapped: &Swapped, example: &str) -> std::path::PathBuf {
    let module = swapped.host.folder.path().join(format!("{example}.wasm"));
    let mut command = tokio::process::Command::new(Place::programs().join("culvert"));
    command.args(["policy", "build", &format!("policies/examples/{example}"), "--out"]).arg(&module);
    let built = command.output().await.unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    module
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn business_hours_example_refuses_starts_at_night() {
    let settings = r#"{ zone = "+01:00", from = "08:00", until = "18:00" }"#;
    let stage = Stage::set("business-hours", "team-role", settings).await;
    let (tunnel, device) = (stage.tunnel(json!({})).await, stage.device("server").await);
    // It is Thursday, 13:00 in that zone.
    assert_eq!(stage.starts(&stage.api, tunnel, &device).await, "202");
    let late =
        Stage::set("business-hours", "team-role", r#"{ zone = "+06:00", from = "08:00", until = "18:00" }"#).await;
    let (tunnel, device) = (late.tunnel(json!({})).await, late.device("server").await);
    assert_eq!(late.starts(&late.api, tunnel, &device).await, "403 outside_business_hours");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn naming_example_judges_names_and_subdomains() {
    let stage = Stage::set("naming", "validation", r#"{ name = "^[a-z]+-[0-9]{2}$" }"#).await;
    let named = async |name: &str, subdomain: &str| {
        let body = json!({"local_port": 80, "protocol": "http", "name": name, "subdomain": subdomain});
        let answer = stage.api.post("/tunnels", body).await;
        (answer.status, answer.fields())
    };
    assert_eq!(named("web-01", "acme-shop").await, (201, vec![]));
    assert_eq!(named("web", "other-shop").await, (422, vec!["name".into(), "subdomain".into()]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn domain_suffixes_example_refuses_other_domains() {
    let stage = Stage::set("domain-suffixes", "validation", r#"{ suffixes = ["example.com"] }"#).await;
    let tunnel = stage.tunnel(json!({"protocol": "http"})).await;
    let path = format!("/tunnels/{tunnel}/domain/actions/verify");
    let refused = stage.api.post(&path, json!({"domain": "shop.example.net"})).await;
    assert_eq!(
        refused.body["errors"],
        json!([{"field": "domain", "message": "must lie below example.com", "rule": "domain-suffix"}])
    );
    assert_eq!(stage.api.post(&path, json!({"domain": "shop.example.com"})).await.outcome(), "200");
}

#[both_engines]
async fn running_tunnels_example_holds_two_starts_at_once_to_a_limit_of_one(engine: Engine) {
    let stage = Stage::set_on(engine, "running-tunnels", "team-role", "{ limits = { owner = 1 } }").await;
    let (one, two) = (stage.tunnel(json!({})).await, stage.tunnel(json!({})).await);
    let (first, second) = (stage.device("first").await, stage.device("second").await);
    let (of_one, of_two) = tokio::join!(stage.starts(&stage.api, one, &first), stage.starts(&stage.api, two, &second));
    let mut outcomes = [of_one.clone(), of_two];
    outcomes.sort();
    assert_eq!(outcomes, ["202", "403 too_many_running_tunnels"]);
    let refused = if of_one == "202" { two } else { one };
    // What the refused one may not, a member may, whose role has no limit.
    let bea = stage.swapped.host.person("bea").await;
    stage.swapped.host.join(stage.team, &bea, Role::Admin).await;
    let admin = stage.swapped.host.api(&stage.swapped.host.key(bea.account_id, stage.team, "full_access").await.key);
    assert_eq!(stage.starts(&admin, refused, &second).await, "202");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn webhook_hosts_example_refuses_other_hosts() {
    let stage = Stage::set("webhook-hosts", "validation", r#"{ hosts = ["hooks.example.com"] }"#).await;
    let body = json!({"url": "https://hooks.example.com@93.184.216.34/", "events": ["tunnel.started"]});
    let refused = stage.api.post("/webhooks", body).await;
    assert_eq!((refused.status, &refused.body["errors"][0]["rule"]), (422, &json!("webhook-host")));
    // A known host passes the rule, and is then looked up, which the test's host does not find.
    let body = json!({"url": "https://hooks.example.com/", "events": ["tunnel.started"]});
    let unknown = stage.api.post("/webhooks", body).await;
    assert_eq!((unknown.fields(), &unknown.body["errors"][0]["rule"]), (vec!["url".into()], &Value::Null));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ci_devices_example_binds_tunnels_to_devices_by_name() {
    let stage = Stage::set("ci-devices", "team-role", r#"{ tunnels = "ci-*", devices = "ci-*" }"#).await;
    let tunnel = stage.tunnel(json!({"name": "ci-preview"})).await;
    let (laptop, runner) = (stage.device("laptop").await, stage.device("ci-runner").await);
    assert_eq!(stage.starts(&stage.api, tunnel, &laptop).await, "403 wrong_device");
    assert_eq!(stage.starts(&stage.api, tunnel, &runner).await, "202");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn protected_deletes_example_asks_for_the_right_key() {
    let settings = r#"{ tunnels = "prod-*", preset = "full_access" }"#;
    let stage = Stage::set("protected-deletes", "team-role", settings).await;
    let tunnel = stage.tunnel(json!({"name": "prod-db"})).await;
    let lesser = stage.swapped.host.key(stage.ada.account_id, stage.team, "tunnel_manager").await;
    let path = format!("/tunnels/{tunnel}");
    assert_eq!(stage.swapped.host.api(&lesser.key).delete(&path).await.outcome(), "403 tunnel_protected");
    assert_eq!(stage.api.delete(&path).await.outcome(), "200");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn countries_example_asks_for_geoip_rules_before_a_start() {
    let stage = Stage::set("countries", "team-role", r#"{ countries = ["DE"] }"#).await;
    let (tunnel, device) = (stage.tunnel(json!({})).await, stage.device("server").await);
    assert_eq!(stage.starts(&stage.api, tunnel, &device).await, "403 country_rules_required");
    let rules = json!({"rules": [{"country_code": "de", "action": "allow"}]});
    stage.api.put(&format!("/tunnels/{tunnel}/geoip"), rules).await.data();
    assert_eq!(stage.starts(&stage.api, tunnel, &device).await, "202");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn startup_plan_example_is_judged_by_the_module_that_knows_it() {
    let stage = Stage::set("startup-plan", "plan-access", "{ tunnels = 2 }").await;
    stage.swapped.host.set_plan(stage.team, "startup").await;
    let api =
        stage.swapped.host.api(&stage.swapped.host.key(stage.ada.account_id, stage.team, "full_access").await.key);
    assert_eq!(api.get("/account").await.data()["tunnel_limit"], 2);
    let create = async || api.post("/tunnels", json!({"local_port": 80})).await.outcome();
    let outcomes = [create().await, create().await, create().await];
    assert_eq!(outcomes, ["201", "201", "403 plan_limit_reached"]);
    // What the plan does not include, the host refuses, though the module checks only its tunnels.
    let premium = api.post("/tunnels", json!({"local_port": 80, "pro_network": true})).await;
    assert_eq!(premium.outcome(), "403 plan_limit_reached");
    let hook = api.post("/webhooks", json!({"url": "https://example.com/", "events": ["tunnel.started"]})).await;
    assert_eq!(hook.outcome(), "403 plan_limit_reached");
    let device = stage.device("server").await;
    let restart = api.post(&format!("/devices/{}/actions/restart-agent", device.id), json!({})).await;
    assert_eq!(restart.outcome(), "403 feature_not_available");
    // The shipped plans are judged as before, and one that nobody knows includes nothing.
    stage.swapped.host.set_plan(stage.team, "nobody-knows-it").await;
    let unknown = stage.swapped.host.key(stage.ada.account_id, stage.team, "full_access").await;
    let refused = stage.swapped.host.api(&unknown.key).post("/tunnels", json!({"local_port": 80})).await;
    assert_eq!(refused.outcome(), "403 feature_not_available");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn default_region_example_names_the_region_to_give() {
    let stage = Stage::set("default-region", "validation", r#"{ regions = { Acme = "eu" } }"#).await;
    let refused = stage.api.post("/tunnels", json!({"local_port": 80})).await;
    let expected = json!({"field": "region", "message": "must be eu for this Team", "rule": "region"});
    assert_eq!((refused.status, &refused.body["errors"][0]), (422, &expected));
}

/// Without blank lines, comments and imports.
#[test]
fn every_example_has_thirty_lines_or_less() {
    let mut seen = 0;
    for example in std::fs::read_dir("policies/examples").unwrap() {
        let path = example.unwrap().path();
        let Ok(source) = std::fs::read_to_string(path.join("src/lib.rs")) else { continue };
        let counted = |line: &&str| !(line.is_empty() || line.starts_with("//") || line.starts_with("use "));
        let lines = source.lines().map(str::trim).filter(counted).count();
        assert!(lines <= LINES, "{} has {lines} lines", path.display());
        seen += 1;
    }
    assert_eq!(seen, 10);
}
