//! Facts: what modules are told beside the request, and that they are told nothing else.

use culvert_policy::engine::engines::Engines;
use culvert_policy::load::artefact::Artefacts;
use culvert_policy::load::component::Module as Policy;
use culvert_wire::control::{ToAgent, ToHost};
use insta::{assert_json_snapshot, assert_snapshot};
use serde_json::{Value, json};

use crate::support::device::Remote;
use crate::support::host::Engine;
use crate::support::hostile::{GOOD, Module};
use crate::support::policies::{Swapped, builtin, entry};
use culvert_test_macros::both_engines;

/// A schema that asks for every fact.
const EVERY: &str = r#"{"x-culvert-facts": ["credential", "now", "team.name", "key.id", "key.preset", "key.scopes",
    "key.created_at", "caller.account_id", "caller.role", "tunnel.name", "tunnel.protocol", "tunnel.region",
    "tunnel.subdomain", "tunnel.local_port", "tunnel.created_at", "tunnel.running", "tunnel.rules", "device.name",
    "device.platform", "device.owner", "source_device.name", "source_device.platform", "source_device.owner",
    "usage.tunnels", "usage.running_tunnels", "usage.callers_tunnels", "usage.callers_running_tunnels", "client.ip",
    "request.method", "request.action", "request.id", "input.host_header", "input.local_scheme",
    "current.host_header", "current.local_scheme"]}"#;

/// A host with a module of each kind that asks for every fact, in front of the shipped ones.
async fn stage(engine: Engine) -> Swapped {
    let swapped = Swapped::on(engine, |config| {
        config.decisions.file = Some(config.data_dir.join("decisions.jsonl"));
    })
    .await;
    let curious = Module { schema: EVERY, ..GOOD };
    let modules = [
        ("plan-access", curious.plan_access()),
        ("team-role", curious.component()),
        ("validation", curious.validation()),
    ];
    let mut policies = String::new();
    for (kind, wasm) in modules {
        let file = swapped.write_wasm(&format!("{kind}.wasm"), &wasm);
        policies += &entry(kind, &file, "");
        policies += &builtin(&[kind]);
    }
    swapped.configure(&policies);
    assert_eq!(swapped.reload().await, Ok(2));
    swapped
}

/// The facts in a record, by name.
fn facts(record: &Value) -> Value {
    let input = &record["input"];
    let attributes = input["attributes"].as_array().or(input["facts"]["attributes"].as_array());
    let attributes = attributes.unwrap_or_else(|| panic!("{record}"));
    let fact = |attribute: &Value| {
        let value: Value = serde_json::from_str(attribute["value"].as_str().unwrap()).unwrap();
        (attribute["name"].as_str().unwrap().to_owned(), value)
    };
    attributes.iter().map(fact).collect::<serde_json::Map<_, _>>().into()
}

#[both_engines]
async fn every_world_gets_the_facts_that_its_module_asks_for(engine: Engine) {
    let swapped = stage(engine).await;
    let host = &swapped.host;
    let ada = host.person("ada").await;
    let team = host.team("Acme", &ada).await;
    let key = host.key(ada.account_id, team, "tunnel_manager").await;
    let api = host.api(&key.key);
    let device = host.device(&ada, team, Remote::Enabled).await;
    let body = json!({"name": "web", "local_port": 8080, "protocol": "tcp"});
    let (tunnel, _other) = (api.post("/tunnels", body.clone()).await.id(), api.post("/tunnels", body).await.id());
    let rules = json!({"rules": [{"rule_type": "blacklist", "ip_cidr": "192.0.2.0/24"}]});
    api.put(&format!("/tunnels/{tunnel}/firewall"), rules).await.data();
    let rules = json!({"rules": [{"country_code": "de", "action": "allow"}]});
    api.put(&format!("/tunnels/{tunnel}/geoip"), rules).await.data();
    let started = api.post(&format!("/tunnels/{tunnel}/actions/start"), json!({"device_id": device.id})).await;
    assert_eq!(started.status, 202, "{started}");
    let request_id = started.header("x-request-id").unwrap().to_owned();
    drop(device);

    let host = swapped.host.restart().await;
    let text = std::fs::read_to_string(host.config().decisions.file.clone().unwrap()).unwrap();
    let records: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of_start: Vec<&Value> = records.iter().filter(|record| record["request_id"] == *request_id).collect();
    let (curious, shipped): (Vec<&Value>, Vec<_>) =
        of_start.into_iter().partition(|record| record["module"] == "hostile");
    let own: Vec<Value> = shipped.into_iter().map(facts).collect();
    let of_service = json!({
        "input.host_header": null, "input.local_scheme": null, "input.local_tls_verify": null,
        "input.proxy_protocol": null, "input.tls_passthrough": null, "current.tls_passthrough": false,
    });
    assert_eq!(own, [json!({}), json!({}), of_service]);
    let told: Vec<Value> = curious.into_iter().map(facts).collect();
    assert!(told.len() == 3 && told.iter().all(|one| one == &told[0]), "{told:?}");
    let ids = [("<ada>", ada.account_id.to_string()), ("<key>", key.key_id.to_string()), ("<request>", request_id)];
    let mut text = serde_json::to_string(&told[0]).unwrap();
    ids.iter().for_each(|(name, id)| text = text.replace(id, name));
    assert_json_snapshot!(serde_json::from_str::<Value>(&text).unwrap(), @r#"
    {
      "caller.account_id": "<ada>",
      "caller.role": "owner",
      "client.ip": "127.0.0.1",
      "credential": "key",
      "current.host_header": null,
      "current.local_scheme": "auto",
      "device.name": "machine",
      "device.owner": "<ada>",
      "device.platform": "linux/x86_64",
      "input.host_header": null,
      "input.local_scheme": null,
      "key.created_at": "2026-01-15T12:00:00.000000Z",
      "key.id": "<key>",
      "key.preset": "tunnel_manager",
      "key.scopes": [
        "account:read",
        "tunnels:read",
        "tunnels:write",
        "tunnels:control",
        "devices:read",
        "operations:read"
      ],
      "now": "2026-01-15T12:00:00.000000Z",
      "request.action": "tunnels.start",
      "request.id": "<request>",
      "request.method": "POST",
      "source_device.name": null,
      "source_device.owner": null,
      "source_device.platform": null,
      "team.name": "Acme",
      "tunnel.created_at": "2026-01-15T12:00:00.000000Z",
      "tunnel.local_port": 8080,
      "tunnel.name": "web",
      "tunnel.protocol": "tcp",
      "tunnel.region": null,
      "tunnel.rules": {
        "firewall": [
          {
            "ip_address": null,
            "ip_cidr": "192.0.2.0/24",
            "rule_type": "blacklist"
          }
        ],
        "geoip": [
          {
            "action": "allow",
            "country_code": "DE"
          }
        ]
      },
      "tunnel.running": false,
      "tunnel.subdomain": null,
      "usage.callers_running_tunnels": 0,
      "usage.callers_tunnels": 2,
      "usage.running_tunnels": 0,
      "usage.tunnels": 2
    }
    "#);
}

/// A request about no tunnel and no device, in a personal scope.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fact_that_does_not_apply_is_null() {
    let swapped = stage(Engine::Sqlite).await;
    let api = swapped.host.api(&swapped.host.person("ada").await.key);
    let created = api.post("/tunnels", json!({"local_port": 80})).await;
    let request_id = created.header("x-request-id").unwrap().to_owned();
    let host = swapped.host.restart().await;
    let text = std::fs::read_to_string(host.config().decisions.file.clone().unwrap()).unwrap();
    let records = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let told = records
        .filter(|record| record["request_id"] == *request_id && record["module"] == "hostile")
        .filter(|record| record["call"] != "entitlements")
        .map(|record| facts(&record))
        .next()
        .unwrap();
    let null = told.as_object().unwrap().iter().filter(|(_, value)| value.is_null());
    assert_snapshot!(null.map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(" "), @"caller.role current.host_header current.local_scheme device.name device.owner device.platform input.host_header input.local_scheme source_device.name source_device.owner source_device.platform team.name tunnel.created_at tunnel.local_port tunnel.name tunnel.protocol tunnel.region tunnel.rules tunnel.running tunnel.subdomain");
}

#[test]
fn module_that_asks_for_an_unknown_fact_is_refused() {
    let engines = Engines::new(1).unwrap();
    let load = |schema| {
        let module = Module { schema, ..GOOD };
        Policy::read(&engines, &Artefacts::none(), module.component(), None).err().unwrap().to_string()
    };
    let problem = load(r#"{"x-culvert-facts": ["tunnel.size"]}"#);
    assert!(problem.contains("there is no fact `tunnel.size`; there are credential, now, team.name"), "{problem}");
    assert_snapshot!(load(r#"{"x-culvert-facts": "now"}"#), @"its describe failed: its answer breaks the contract: `x-culvert-facts` is a list of names of facts");
    assert_snapshot!(load(r#"{"x-culvert-facts": [1]}"#), @"its describe failed: its answer breaks the contract: `x-culvert-facts` is a list of names of facts");
}

/// A command at a device acts without a key, from the agent's address.
#[both_engines]
async fn command_at_a_device_has_no_facts_of_a_key(engine: Engine) {
    let swapped = stage(engine).await;
    let host = &swapped.host;
    let ada = host.person("ada").await;
    let (_, mut wire) = host.wired(&ada, ada.account_id).await;
    let request_id = host.clock.id();
    wire.send(ToHost::Create { request_id, tunnel: json!({"local_port": 80}), temporary: true }).await;
    let created = |frame| if let ToAgent::Created { outcome, .. } = frame { Some(outcome) } else { None };
    wire.until(created).await.unwrap();
    drop(wire);

    let host = swapped.host.restart().await;
    let text = std::fs::read_to_string(host.config().decisions.file.clone().unwrap()).unwrap();
    let records = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let told: Vec<Value> = records
        .filter(|record| record["request_id"] == json!(request_id) && record["module"] == "hostile")
        .map(|record| facts(&record))
        .collect();
    assert_eq!(told.len(), 3);
    let named = |name: &str| told[0][name].clone();
    assert_eq!(named("credential"), "device");
    assert_eq!(["key.id", "key.preset", "key.created_at"].map(named), [Value::Null, Value::Null, Value::Null]);
    assert_eq!((named("key.scopes"), named("caller.account_id")), (json!([]), json!(ada.account_id)));
    assert_eq!(
        ["client.ip", "request.action", "request.method"].map(named),
        [json!("127.0.0.1"), json!("tunnels.create"), Value::Null]
    );
}
