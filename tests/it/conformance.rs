//! What a review found that held the service against the API's contract: one test or more for each
//! finding.

use std::collections::BTreeMap;
use std::time::Duration;

use culvert::config::Config;
use culvert_agent::device::DeviceKey;
use culvert_agent::ipc::Request;
use culvert_domain::caller::Role;
use culvert_http::routes::table;
use culvert_policy::engine::kind::Kind;
use culvert_policy::load::chain::PolicyConfig;
use culvert_test_macros::both_engines;
use culvert_wire::control::Capability;
use culvert_wire::enrolment::{ENROL_PATH, Enrol};
use insta::{allow_duplicates, assert_snapshot};
use reqwest::{Client, Method, RequestBuilder};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use uuid::Uuid;

use crate::support::api::{Answer, Api};
use crate::support::device::{Remote, TestDevice};
use crate::support::host::{Engine, Person, TestHost};
use crate::support::hostile::GOOD;
use crate::support::names::{Answer as Says, Names};
use crate::support::program::Place;
use crate::support::receiver::{Authority, Reply};
use crate::support::visitor::{Visitor, echo_service, exchange, visit};

/// Tests that ask more often than a client would.
fn unlimited(config: &mut Config) {
    let limits = &mut config.rate_limit;
    (limits.per_minute, limits.per_day, limits.failed_auth_per_minute) = (1_000_000, 1_000_000, 1_000_000);
}

/// Without a validation policy that finds anything: what is left is the host's own.
fn lenient(config: &mut Config) {
    let wasm = GOOD.validation();
    let file = config.data_dir.join("lenient.wasm");
    std::fs::write(&file, &wasm).unwrap();
    let validation = config.policy.iter_mut().find(|policy| policy.kind == Kind::Validation).unwrap();
    *validation = PolicyConfig {
        module: file.to_str().unwrap().into(),
        sha256: Some(hex::encode(Sha256::digest(&wasm))),
        ..validation.clone()
    };
}

/// The shipped policies.
fn strict(_: &mut Config) {}

/// An answer to a request that is sent as it is written, on a connection of its own.
struct Raw {
    status: u16,
    /// By their names in lower case.
    headers: BTreeMap<String, String>,
    body: String,
}

async fn raw(host: &TestHost, line: &str, headers: &[&str]) -> Raw {
    let mut stream = TcpStream::connect(host.address).await.unwrap();
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    stream.write_all(format!("{line}\r\n{headers}Connection: close\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let mut lines = head.lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let header = |line: &str| {
        let (name, value) = line.split_once(':').unwrap();
        (name.to_ascii_lowercase(), value.trim().to_owned())
    };
    Raw { status, headers: lines.map(header).collect(), body: body.into() }
}

impl Raw {
    /// `410 api_version_gone`, or only the status of a success.
    fn outcome(&self) -> String {
        let body: Value = serde_json::from_str(&self.body).unwrap_or_default();
        match body["code"].as_str() {
            Some(code) => format!("{} {code}", self.status),
            None => self.status.to_string(),
        }
    }

    /// Its headers, without what is different every time.
    fn lasting(&self) -> BTreeMap<String, String> {
        let mut headers = self.headers.clone();
        for name in ["date", "x-request-id", "x-ratelimit-remaining"] {
            headers.get_mut(name).into_iter().for_each(String::clear);
        }
        headers
    }
}

/// A request for a page, which needs no key.
fn page(host: &TestHost, path: &str) -> RequestBuilder {
    Client::builder().no_proxy().build().unwrap().get(format!("{}{path}", host.url()))
}

/// `url: must be …` for each field that an answer names.
fn faults(answer: &Answer) -> Vec<String> {
    let errors = answer.body["errors"].as_array().into_iter().flatten();
    errors
        .map(|error| format!("{}: {}", error["field"].as_str().unwrap(), error["message"].as_str().unwrap()))
        .collect()
}

/// Asks for a start that nobody takes up; the operation's id.
async fn queue(api: &Api, tunnel: Uuid, device: Uuid) -> Uuid {
    let asked = api.post(&format!("/tunnels/{tunnel}/actions/start"), json!({"device_id": device})).await;
    assert_eq!(asked.data()["status"], "queued", "{asked}");
    asked.id()
}

/// `canceled tunnel_deleted`: how an operation ended, and why.
async fn why(api: &Api, operation: Uuid) -> String {
    let answer = api.get(&format!("/operations/{operation}")).await;
    let (operation, error) = (answer.data(), &answer.data()["error"]);
    let said = error["detail"].as_str().is_some_and(|detail| !detail.is_empty());
    assert!(said && operation["result"].is_null() && operation["finished_at"].is_string(), "{answer}");
    format!("{} {}", operation["status"].as_str().unwrap(), error["code"].as_str().unwrap())
}

/// A start through the API that succeeds.
async fn start(host: &TestHost, api: &Api, tunnel: Uuid, device: Uuid) {
    let asked = api.post(&format!("/tunnels/{tunnel}/actions/start"), json!({"device_id": device})).await.id();
    let ended = host.until_ended(api, asked).await;
    assert_eq!(ended["status"], "succeeded", "{ended}");
}

/// Bytes that go through a tunnel, each way.
const CARRIED: usize = 50_000;

/// A tunnel to an echo service that runs on a device.
struct Run {
    host: TestHost,
    ada: Person,
    api: Api,
    device: TestDevice,
    tunnel: Uuid,
}

impl Run {
    async fn set(engine: Engine) -> Self {
        let host = TestHost::start(engine).await;
        let ada = host.person("ada").await;
        let device = host.device(&ada, ada.account_id, Remote::Enabled).await;
        Self::on(host, ada, device).await
    }

    async fn on(host: TestHost, ada: Person, device: TestDevice) -> Self {
        let api = host.api(&ada.key);
        let tunnel = api.post("/tunnels", json!({"local_port": echo_service().await.port()})).await.id();
        start(&host, &api, tunnel, device.id).await;
        Self { host, ada, api, device, tunnel }
    }

    /// Carries [`CARRIED`] bytes: some for a visitor who has left, the others for one who stays.
    async fn carry(&self) -> Visitor {
        let visited = visit(&self.host, &self.api, self.tunnel, &[7; 20_000]).await.unwrap();
        assert_eq!(visited.len(), 20_000);
        let mut visitor = self.host.visitor(&self.api, self.tunnel).await;
        visitor.echo(&[7; CARRIED - 20_000 - b"hello".len()]).await.unwrap();
        visitor
    }

    async fn is_told(&self, reason: &str) {
        is_told(&self.api, self.tunnel, reason).await;
    }
}

/// All that went through is in the session that has ended, and in the month.
async fn is_told(api: &Api, tunnel: Uuid, reason: &str) {
    let session = api.get(&format!("/tunnels/{tunnel}/sessions")).await.data()[0].clone();
    let told = (&session["end_reason"], &session["bytes_in"], &session["bytes_out"]);
    assert_eq!(told, (&json!(reason), &json!(CARRIED), &json!(CARRIED)), "{session}");
    assert!(session["ended_at"].is_string(), "{session}");
    is_counted(api, &format!("/tunnels/{tunnel}/usage")).await;
    is_counted(api, "/account/usage").await;
}

async fn is_counted(api: &Api, usage: &str) {
    let month = api.get(usage).await.data()["bandwidth"]["month"].clone();
    assert_eq!((&month["bytes_in"], &month["bytes_out"]), (&json!(CARRIED), &json!(CARRIED)), "{usage}");
}

/// Who reads of a session's end reads its figures, without waiting for them to be noted.
#[both_engines]
async fn api_stop_records_session_traffic(engine: Engine) {
    let run = Run::set(engine).await;
    let _visitor = run.carry().await;
    let stop = run.api.post(&format!("/tunnels/{}/actions/stop", run.tunnel), json!({})).await.id();
    assert_eq!(run.host.until_ended(&run.api, stop).await["status"], "succeeded");
    run.is_told("stopped_api").await;
    // Once, however often it is noted afterwards.
    run.host.record_traffic().await;
    run.is_told("stopped_api").await;
}

#[both_engines]
async fn local_stop_records_session_traffic(engine: Engine) {
    let run = Run::set(engine).await;
    let _visitor = run.carry().await;
    run.device.stop_tunnel(&run.tunnel.to_string()).await.unwrap();
    run.host.until_tunnel(&run.api, run.tunnel, "stopped").await;
    run.is_told("stopped_local").await;
}

#[both_engines]
async fn allowlist_removal_records_session_traffic(engine: Engine) {
    let run = Run::set(engine).await;
    let _visitor = run.carry().await;
    let other = run.host.enrol(&run.ada, run.ada.account_id, &Capability::ALL).await;
    let bound = run.api.put(&format!("/tunnels/{}/devices", run.tunnel), json!({"device_ids": [other.id]})).await;
    assert_eq!(bound.data()["stopped_device_id"], json!(run.device.id));
    run.is_told("device_not_allowed").await;
}

#[both_engines]
async fn lease_expiry_records_session_traffic(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let cable = host.cable().await;
    let device = host.device_over(&cable, &ada, Remote::Enabled).await;
    let run = Run::on(host, ada, device).await;
    let _visitor = run.carry().await;
    cable.cut();
    run.host.pass(Duration::from_secs(30)).await;
    run.is_told("lease_expired").await;
}

/// Nobody can ask for the sessions of a tunnel that is gone; the month has its bytes.
#[both_engines]
async fn deleted_tunnel_traffic_counts_in_account_usage(engine: Engine) {
    let run = Run::set(engine).await;
    let _visitor = run.carry().await;
    run.api.delete(&format!("/tunnels/{}", run.tunnel)).await.data();
    is_counted(&run.api, "/account/usage").await;
    run.host.record_traffic().await;
    is_counted(&run.api, "/account/usage").await;
}

/// What a client has read of an end is still so when the host was killed right after.
#[both_engines]
async fn stopped_session_traffic_survives_host_kill(engine: Engine) {
    let place = Place::new(engine).await.set("CULVERT_RATE_LIMIT__PER_MINUTE", "100000");
    let host = place.serve().await;
    place.json("culvert account create --email ada@example.com --name Ada").await;
    let key = place.json("culvert key create --account ada@example.com --scopes full_access").await;
    let code = place.json("culvert device code --account ada@example.com").await;
    let code = code["code"].as_str().unwrap();
    let enrol = format!("culvert-agent enroll --server {} --code {code} --remote-control", place.url());
    let enrolled = place.json(&enrol).await;
    assert_eq!(enrolled["remote_control_enabled"], true);
    let device = enrolled["device_id"].clone();
    let mut agent = place.start_logged("culvert-agent run");
    agent.until("connected").await;

    let api = Api::new(&place.url(), key["key"].as_str().unwrap());
    let tunnel = api.post("/tunnels", json!({"local_port": echo_service().await.port()})).await;
    let public = format!("{}:{}", place.address, tunnel.data()["remote_port"]).parse().unwrap();
    let path = format!("/tunnels/{}/actions", tunnel.id());
    succeeds(&api, &format!("{path}/start"), json!({"device_id": device})).await;
    assert_eq!(exchange(public, &[7; CARRIED]).await.unwrap().len(), CARRIED);
    succeeds(&api, &format!("{path}/stop"), json!({})).await;
    host.kill().await;
    let _host = place.serve().await;
    is_told(&api, tunnel.id(), "stopped_api").await;
}

/// A tunnel's record is a body that changes nothing of it, and one that makes another like it.
#[both_engines]
async fn tunnel_representation_is_accepted_by_patch_and_create(engine: Engine) {
    let host = TestHost::start(engine).await;
    let api = host.api(&host.person("ada").await.key);
    let extra_ports = json!([{"local_port": 82, "label": "query"}]);
    for made in [
        json!({"local_port": 80}),
        json!({"local_port": 81, "name": "game", "protocol": "both", "idle_timeout": 30, "buffer_size": 1024, "extra_ports": extra_ports}),
    ] {
        let path = format!("/tunnels/{}", api.post("/tunnels", made).await.id());
        let read = api.get(&path).await.data().clone();
        let patched = api.patch(&path, read.clone()).await;
        assert_eq!(patched.status, 200, "{patched}");
        let again = api.post("/tunnels", read.clone()).await;
        assert_eq!(again.status, 201, "{again}");
        assert_ne!(again.data()["id"], read["id"]);
        for field in ["name", "protocol", "local_host", "local_port", "idle_timeout", "buffer_size", "pro_network"] {
            assert_eq!(again.data()[field], read[field], "{field}");
            assert_eq!(patched.data()[field], read[field], "{field}");
        }
        let ports = async |id: &Value| {
            let ports = api.get(&format!("/tunnels/{}/extra-ports", id.as_str().unwrap())).await;
            let ports = ports.data().as_array().unwrap().clone();
            ports
                .into_iter()
                .map(|port| [port["local_port"].clone(), port["label"].clone(), port["protocol"].clone()])
                .collect::<Vec<_>>()
        };
        assert_eq!(ports(&again.data()["id"]).await, ports(&read["id"]).await);
    }
}

#[both_engines]
async fn null_tunnel_setting_resets_to_default(engine: Engine) {
    let host = TestHost::start(engine).await;
    let api = host.api(&host.person("ada").await.key);
    let made = api.post("/tunnels", json!({"local_port": 80, "idle_timeout": null, "buffer_size": null})).await;
    let limits = |answer: &Answer| (answer.data()["idle_timeout"].clone(), answer.data()["buffer_size"].clone());
    assert_eq!(limits(&made), (Value::Null, json!(65_536)));
    let path = format!("/tunnels/{}", made.id());
    for (change, idle_timeout, buffer_size) in [
        (json!({"idle_timeout": 30, "buffer_size": 1024}), json!(30), 1024),
        (json!({"idle_timeout": null}), Value::Null, 1024),
        (json!({"buffer_size": null}), Value::Null, 65_536),
        // What is the default already is no empty change.
        (json!({"idle_timeout": null}), Value::Null, 65_536),
        (json!({"idle_timeout": 3600, "buffer_size": 1_048_576}), json!(3600), 1_048_576),
        (json!({"idle_timeout": null, "buffer_size": null}), Value::Null, 65_536),
    ] {
        let changed = api.patch(&path, change.clone()).await;
        assert_eq!(limits(&changed), (idle_timeout, json!(buffer_size)), "{change}");
        assert_eq!(limits(&api.get(&path).await), limits(&changed), "{change}");
    }
    assert_eq!(api.patch(&path, json!({})).await.fields(), ["body"]);
}

/// What may be changed may be said at once, within the same bounds.
#[both_engines]
async fn tunnel_create_accepts_idle_timeout_and_buffer_size(engine: Engine) {
    let host = TestHost::start(engine).await;
    let api = host.api(&host.person("ada").await.key);
    let create = async |field: &str, value: Value| {
        let mut body = json!({"local_port": 80});
        body[field] = value;
        api.post("/tunnels", body).await
    };
    for (field, least, most) in [("idle_timeout", 30, 3600), ("buffer_size", 1024, 1_048_576)] {
        for value in [least, most] {
            assert_eq!(create(field, json!(value)).await.data()[field], json!(value));
        }
        for wrong in [json!(least - 1), json!(most + 1), json!(-1), json!(0), json!("60"), json!(60.5), json!(true)] {
            let refused = create(field, wrong.clone()).await;
            assert_eq!(
                (refused.outcome().as_str(), refused.fields()),
                ("422 validation_failed", vec![field.to_owned()]),
                "{wrong}"
            );
        }
    }
    assert_eq!(api.get("/account/usage").await.data()["total_tunnels"], 4);
}

/// Who is told at the device that a tunnel runs finds that the API knows it, and is served.
#[both_engines]
async fn local_start_is_visible_in_api_on_return(engine: Engine) {
    let host = TestHost::with(engine, unlimited).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let device = host.device(&ada, ada.account_id, Remote::Disabled).await;
    let echo = echo_service().await;
    for _ in 0..20 {
        let tunnel = api.post("/tunnels", json!({"local_port": echo.port()})).await.id();
        device.start_tunnel(&tunnel.to_string()).await.unwrap();
        let read = api.get(&format!("/tunnels/{tunnel}")).await;
        assert_eq!(
            (&read.data()["status"], &read.data()["runtime"]),
            (&json!("running"), &json!({"running": true, "device_id": device.id}))
        );
        assert_eq!(visit(&host, &api, tunnel, b"hello").await.unwrap(), b"hello");
    }
}

/// Asks a host in a process of its own for an action that succeeds. The requests are few: an
/// operation takes milliseconds.
async fn succeeds(api: &Api, action: &str, body: Value) {
    let id = api.post(action, body).await.id();
    loop {
        let operation = api.get(&format!("/operations/{id}")).await;
        if !operation.data()["finished_at"].is_null() {
            assert_eq!(operation.data()["status"], "succeeded", "{operation}");
            return;
        }
    }
}

/// Neither earlier than the tunnel says, nor more than a second later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connection_closes_within_a_second_of_timeout() {
    let host = TestHost::start(Engine::Sqlite).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let device = host.device(&ada, ada.account_id, Remote::Disabled).await;
    let tunnel = api.post("/tunnels", json!({"local_port": echo_service().await.port()})).await.id();
    api.patch(&format!("/tunnels/{tunnel}"), json!({"idle_timeout": 30})).await.data();
    host.run_tunnel(&api, &device, tunnel).await;
    let silent = host.visitor(&api, tunnel).await;
    let mut lively = host.visitor(&api, tunnel).await;
    let silent = tokio::spawn(silent.was_reset());
    // In steps that are shorter than what is to be told apart, each seen by both ends.
    for step in 1..=59 {
        host.clock.advance(Duration::from_millis(500));
        if step % 20 == 0 {
            host.until_renewed(tunnel).await;
            // The device must know of it as well, before its own count of the term runs out.
            device.until_told().await;
        }
        assert_eq!(lively.echo(b"still here").await.unwrap(), b"still here");
    }
    host.clock.advance(Duration::from_millis(400));
    assert_eq!(lively.echo(b"29.9 seconds").await.unwrap(), b"29.9 seconds");
    device.until_told().await;
    assert!(!silent.is_finished(), "it has a tenth of a second left");
    host.clock.advance(Duration::from_millis(1100));
    assert!(silent.await.unwrap());
    assert_eq!(lively.echo(b"still here").await.unwrap(), b"still here");
}

/// A Team of Ada's, and Bob in it, who will leave.
struct Crew {
    host: TestHost,
    ada: Person,
    bob: Person,
    team: Uuid,
    /// Ada's, in the Team.
    api: Api,
}

impl Crew {
    async fn set(engine: Engine, role: Role) -> Self {
        let host = TestHost::start(engine).await;
        let (ada, bob) = (host.person("ada").await, host.person("bob").await);
        let team = host.team("Engines", &ada).await;
        host.join(team, &bob, role).await;
        let api = host.api(&host.key(ada.account_id, team, "full_access").await.key);
        Self { host, ada, bob, team, api }
    }

    async fn leave(&self) {
        self.host.leave(self.team, &self.bob).await;
    }

    async fn tunnel(&self, id: Uuid) -> Value {
        self.api.get(&format!("/tunnels/{id}")).await.data().clone()
    }
}

/// They are gone from the Team at once, and at home as if they had been enrolled there.
#[both_engines]
async fn departing_member_device_moves_to_personal_scope(engine: Engine) {
    let crew = Crew::set(engine, Role::Member).await;
    let device = crew.host.device(&crew.bob, crew.team, Remote::Enabled).await;
    let echo = echo_service().await;
    let tunnel = crew.api.post("/tunnels", json!({"local_port": echo.port()})).await.id();
    start(&crew.host, &crew.api, tunnel, device.id).await;
    let home = crew.host.api(&crew.bob.key);
    assert_eq!(*home.get("/devices").await.data(), json!([]));
    let former = crew.host.connection_epoch(device.id).await;
    crew.leave().await;

    assert_eq!(*crew.api.get("/devices").await.data(), json!([]));
    assert_eq!(crew.api.get(&format!("/devices/{}", device.id)).await.outcome(), "404 not_found");
    let read = crew.tunnel(tunnel).await;
    assert_eq!((&read["authorized_devices"], &read["current_device"]), (&json!([]), &Value::Null));
    assert_eq!(read["runtime"], json!({"running": false, "device_id": null}));
    assert_eq!(read["bindings"], json!({"device_ids": [], "unrestricted": true}), "it never was about that device");
    let session = crew.api.get(&format!("/tunnels/{tunnel}/sessions")).await.data()[0].clone();
    assert_eq!((&session["end_reason"], session["ended_at"].is_string()), (&json!("device_not_allowed"), true));
    let refused = crew.api.post(&format!("/tunnels/{tunnel}/actions/start"), json!({"device_id": device.id})).await;
    assert_eq!((refused.outcome().as_str(), refused.fields()), ("422 validation_failed", vec!["device_id".to_owned()]));
    device.until(async || device.tunnels().await.is_empty()).await;

    let listed = home.get("/devices").await.data().clone();
    assert_eq!(listed.as_array().unwrap().len(), 1);
    assert_eq!(
        (&listed[0]["id"], &listed[0]["owner_id"], &listed[0]["remote_control_enabled"]),
        (&json!(device.id), &json!(crew.bob.account_id), &json!(false))
    );

    // Its agent comes back by itself. The host said when; the agent's time is the host's.
    let is_back = async || crew.host.has_reconnected(device.id, former).await;
    device.until(async || !device.status().await.connected || is_back().await).await;
    crew.host.clock.advance(Duration::from_secs(10));
    crew.host.until_reconnected(device.id, former).await;
    device.until_connected().await;
    assert!(!device.status().await.remote_control.enabled, "consent was given to the Team");
    let own = home.post("/tunnels", json!({"local_port": echo.port()})).await.id();
    let refused = home.post(&format!("/tunnels/{own}/actions/start"), json!({"device_id": device.id})).await;
    assert_eq!(refused.outcome(), "409 remote_control_disabled");
    device.ask(Request::RemoteControl { enabled: true, allow: Vec::new() }).await.unwrap();
    start(&crew.host, &home, own, device.id).await;
    assert_eq!(visit(&crew.host, &home, own, b"at home").await.unwrap(), b"at home");
    assert_eq!(
        device.start_tunnel(&tunnel.to_string()).await.unwrap_err().code,
        "not_found",
        "the Team's are the Team's"
    );
}

/// A tunnel that only they might run is nobody's to run, until somebody says whose.
#[both_engines]
async fn allowlist_emptied_by_departure_stays_restricted(engine: Engine) {
    let crew = Crew::set(engine, Role::Member).await;
    let bobs = crew.host.enrol(&crew.bob, crew.team, &Capability::ALL).await.id;
    let adas = crew.host.device(&crew.ada, crew.team, Remote::Enabled).await;
    let echo = echo_service().await;
    let create = async |devices: &[Uuid]| {
        crew.api.post("/tunnels", json!({"local_port": echo.port(), "device_ids": devices})).await.id()
    };
    let (pinned, shared) = (create(&[bobs]).await, create(&[bobs, adas.id]).await);
    crew.leave().await;

    let nobodys = json!({"device_ids": [], "unrestricted": false});
    let read = crew.tunnel(pinned).await;
    assert_eq!((&read["bindings"], &read["authorized_devices"]), (&nobodys, &json!([])));
    let listed = crew.api.get("/tunnels").await.data().as_array().unwrap().clone();
    let listed = listed.iter().find(|tunnel| tunnel["id"] == json!(pinned)).unwrap();
    assert_eq!(listed["bindings"], nobodys);
    let read = crew.tunnel(shared).await;
    assert_eq!(read["bindings"], json!({"device_ids": [adas.id], "unrestricted": false}));
    assert_eq!(read["authorized_devices"][0]["id"], json!(adas.id));
    assert_eq!(read["authorized_devices"].as_array().unwrap().len(), 1);

    let path = format!("/tunnels/{pinned}");
    let refused = crew.api.post(&format!("{path}/actions/start"), json!({"device_id": adas.id})).await;
    assert_eq!(refused.outcome(), "409 device_not_allowed");
    assert_eq!(adas.start_tunnel(&pinned.to_string()).await.unwrap_err().code, "device_not_allowed");
    // A change of something else is none of this.
    assert_eq!(crew.api.patch(&path, json!({"name": "renamed"})).await.data()["bindings"], nobodys);

    let bound = crew.api.put(&format!("{path}/devices"), json!({"device_ids": [adas.id]})).await;
    assert_eq!(*bound.data(), json!({"device_ids": [adas.id], "unrestricted": false, "stopped_device_id": null}));
    start(&crew.host, &crew.api, pinned, adas.id).await;
    let open = crew.api.put(&format!("{path}/devices"), json!({"device_ids": []})).await;
    assert_eq!(*open.data(), json!({"device_ids": [], "unrestricted": true, "stopped_device_id": null}));
    assert_eq!(crew.tunnel(pinned).await["bindings"], json!({"device_ids": [], "unrestricted": true}));
}

/// As an empty list from the start is anybody's, so it is where it was made one.
#[both_engines]
async fn allowlist_emptied_by_departure_can_be_reopened(engine: Engine) {
    let crew = Crew::set(engine, Role::Member).await;
    let bobs = crew.host.enrol(&crew.bob, crew.team, &Capability::ALL).await.id;
    let adas = crew.host.device(&crew.ada, crew.team, Remote::Enabled).await;
    let pinned = json!({"local_port": echo_service().await.port(), "device_ids": [bobs]});
    let pinned = crew.api.post("/tunnels", pinned).await.id();
    crew.leave().await;
    let open = crew.api.put(&format!("/tunnels/{pinned}/devices"), json!({"device_ids": []})).await;
    assert_eq!(open.data()["unrestricted"], true);
    assert_eq!(crew.tunnel(pinned).await["authorized_devices"][0]["id"], json!(adas.id));
    start(&crew.host, &crew.api, pinned, adas.id).await;
}

/// Somebody who stays asked something of the device of somebody who leaves.
#[both_engines]
async fn command_queued_for_departing_device_is_canceled(engine: Engine) {
    let crew = Crew::set(engine, Role::Member).await;
    let (device, _wire) = crew.host.wired(&crew.bob, crew.team).await;
    let tunnel = crew.api.post("/tunnels", json!({"local_port": 80})).await.id();
    let queued = queue(&crew.api, tunnel, device.id).await;
    crew.leave().await;
    assert_eq!(why(&crew.api, queued).await, "canceled access_lost");
    assert_eq!(crew.tunnel(tunnel).await["status"], "stopped");
    // The device is let in again, to where its owner is.
    let wire = crew.host.connect(&device, |_| {}).await.unwrap();
    assert!(!wire.welcome.consent.enabled);
    let read = crew.host.api(&crew.bob.key).get(&format!("/devices/{}", device.id)).await;
    assert_eq!((&read.data()["online"], &read.data()["remote_control_enabled"]), (&json!(true), &json!(false)));
}

/// Somebody who leaves asked something of a device that stays.
#[both_engines]
async fn command_queued_by_departing_member_is_canceled(engine: Engine) {
    let crew = Crew::set(engine, Role::Admin).await;
    let (device, _wire) = crew.host.wired(&crew.ada, crew.team).await;
    let tunnel = crew.api.post("/tunnels", json!({"local_port": 80})).await.id();
    let bobs = crew.host.api(&crew.host.key(crew.bob.account_id, crew.team, "full_access").await.key);
    let queued = queue(&bobs, tunnel, device.id).await;
    crew.leave().await;
    assert_eq!(why(&crew.api, queued).await, "canceled access_lost");
}

/// Whatever ends an operation that nobody has begun, it says so.
#[both_engines]
async fn canceled_or_expired_operation_reports_reason(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let tunnel = async || api.post("/tunnels", json!({"local_port": 80})).await.id();
    let mut said = String::new();

    let (device, _wire) = host.wired(&ada, ada.account_id).await;
    let deleted = tunnel().await;
    let queued = queue(&api, deleted, device.id).await;
    api.delete(&format!("/tunnels/{deleted}")).await.data();
    said += &format!("the tunnel is deleted: {}\n", why(&api, queued).await);

    let queued = queue(&api, tunnel().await, device.id).await;
    api.patch(&format!("/devices/{}", device.id), json!({"remote_control_enabled": false})).await.data();
    said += &format!("consent is taken back: {}\n", why(&api, queued).await);

    let (device, _wire) = host.wired(&ada, ada.account_id).await;
    let queued = queue(&api, tunnel().await, device.id).await;
    let id = device.id;
    let removed = host.app.store.write(Some(ada.account_id), move |write| {
        Box::pin(async move { culvert_service::devices::remove(write, id).await })
    });
    removed.await.unwrap();
    said += &format!("the device is removed: {}\n", why(&api, queued).await);

    let (device, mut wire) = host.wired(&ada, ada.account_id).await;
    let queued = queue(&api, tunnel().await, device.id).await;
    for _ in 0..3 {
        host.pass(Duration::from_secs(20)).await;
        wire.renew(&[]).await;
    }
    said += &format!("nobody takes it up: {}\n", why(&api, queued).await);
    allow_duplicates! { assert_snapshot!(said, @"
    the tunnel is deleted: canceled tunnel_deleted
    consent is taken back: canceled remote_control_disabled
    the device is removed: canceled device_removed
    nobody takes it up: expired not_claimed
    ") }
}

/// A record says when its attempt was made, which is not when it became due to be made.
#[both_engines]
async fn delivery_attempt_records_actual_attempt_time(engine: Engine) {
    let authority = Authority::new();
    let host = TestHost::with(engine, |config| authority.let_in(config)).await;
    let api = host.api(&host.person("ada").await.key);
    let mut receiver = authority.receiver(&host.clock).await;
    let webhook = api.post("/webhooks", json!({"url": receiver.url(), "events": ["device.offline"]})).await.id();
    let attempt = async |number: u32, status: &str| {
        host.until(async || {
            let attempts = api.get(&format!("/webhooks/{webhook}/deliveries")).await.data().as_array().unwrap().clone();
            attempts.into_iter().find(|attempt| attempt["attempt"] == number && attempt["status"] == status)
        })
        .await
    };
    receiver.reply_first([Reply::Status(500), Reply::hang()]);
    let first = host.clock.now();
    api.post(&format!("/webhooks/{webhook}/test"), json!({})).await.data();
    receiver.next().await;
    let failed = attempt(1, "failed").await;
    assert_eq!(failed["attempted_at"], json!(first));
    let due = attempt(2, "pending").await;
    assert_eq!((due.get("attempted_at"), &due["created_at"]), (Some(&Value::Null), &json!(first)));

    host.pass(Duration::from_mins(1)).await;
    receiver.next().await;
    let second = host.clock.now();
    let under_way = attempt(2, "pending").await;
    assert_eq!(under_way.get("attempted_at"), Some(&Value::Null), "while nobody knows what comes of it");
    host.pass(Duration::from_secs(15)).await;
    let failed = attempt(2, "failed").await;
    assert_eq!((&failed["error"], &failed["duration_ms"]), (&json!("timeout"), &json!(15_000)));
    assert_eq!(failed["attempted_at"], json!(second), "when it began, not when it was given up");
    assert_eq!(failed["created_at"], json!(first));
}

/// However a path is spelled, it is one path: to version 1 and to this one.
#[tokio::test]
async fn equivalent_path_spellings_reach_same_route() {
    let host = TestHost::with(Engine::Sqlite, unlimited).await;
    let ada = host.person("ada").await;
    let key = format!("Authorization: Bearer {}", ada.key);
    let tunnel = host.api(&ada.key).post("/tunnels", json!({"local_port": 80})).await.id();
    for gone in [
        "/v1",
        "/v1/",
        "//v1",
        "//v1/tunnels",
        "///v1//tunnels/",
        "/%761/tunnels",
        "/v%31/tunnels",
        "/v1/tunnels/?limit=1",
    ] {
        for headers in [&["Host: h"][..], &["Host: h", key.as_str()]] {
            let answer = raw(&host, &format!("GET {gone} HTTP/1.1"), headers).await;
            assert_eq!(answer.outcome(), "410 api_version_gone", "{gone}");
        }
    }
    for here in ["/v2/tunnels", "/v2/tunnels/", "//v2//tunnels", "///v2/tunnels//", "/v2/%74unnels", "/%762/tunnels/"] {
        let answer = raw(&host, &format!("GET {here} HTTP/1.1"), &["Host: h", key.as_str()]).await;
        let body: Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!((answer.status, &body["data"][0]["id"]), (200, &json!(tunnel)), "{here}");
        let stranger = raw(&host, &format!("GET {here} HTTP/1.1"), &["Host: h"]).await;
        assert_eq!(stranger.outcome(), "401 missing_api_key", "{here}");
    }
    for one in [format!("//v2//tunnels/{tunnel}/"), format!("/v2/tunnels/{tunnel}").replace('-', "%2D")] {
        let answer = raw(&host, &format!("GET {one} HTTP/1.1"), &["Host: h", key.as_str()]).await;
        assert_eq!(answer.status, 200, "{one}");
    }
}

/// A key names one effect, however the request for it is spelled.
#[both_engines]
async fn equivalent_request_spelling_replays_first_response(engine: Engine) {
    let host = TestHost::start(engine).await;
    let api = host.api(&host.person("ada").await.key);
    let create = async |path: &str, body: &str| {
        let request = api.request(Method::POST, path).header("idempotency-key", "k");
        api.send(request.header("content-type", "application/json").body(body.to_owned())).await
    };
    let first = create("/tunnels", r#"{"local_port":7}"#).await;
    assert_eq!((first.status, first.header("idempotent-replayed")), (201, None));
    for (path, body) in [
        ("/tunnels/", r#"{"local_port":7}"#),
        ("//tunnels", r#"{"local_port":7}"#),
        ("/%74unnels", r#"{"local_port":7}"#),
        ("/tunnels", r#"{"local_port":7.0}"#),
        ("/tunnels", r#"{"local_port":7.000}"#),
        ("/tunnels", r#"{"local_port":70e-1}"#),
        ("/tunnels", r#"{"local_port":0.7e1}"#),
        ("/tunnels", r#"{"local_port":7E0}"#),
        ("//tunnels/", r#"{ "local_port": 0.07e+2 }"#),
    ] {
        let again = create(path, body).await;
        assert_eq!(
            (again.status, again.header("idempotent-replayed"), &again.text),
            (201, Some("true"), &first.text),
            "{path} {body}"
        );
    }
    for (path, body) in [
        ("/tunnels", r#"{"local_port":8}"#),
        ("/tunnels", r#"{"local_port":7.5}"#),
        ("/tunnels", r#"{"local_port":-7}"#),
        ("/tunnels", r#"{"local_port":70}"#),
        ("/tunnels", r#"{"local_port":"7"}"#),
        ("/tunnels?x=1", r#"{"local_port":7}"#),
    ] {
        assert_eq!(create(path, body).await.outcome(), "409 idempotency_conflict", "{path} {body}");
    }
    assert_eq!(api.get("/account/usage").await.data()["total_tunnels"], 1);
}

/// There is no port 0 to deliver to.
#[both_engines]
async fn webhook_url_with_port_zero_is_rejected(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let path = format!("/webhooks/{}", host.webhook(ada.account_id).await);
    for url in ["https://8.8.8.8:0/", "https://8.8.8.8:00/", "https://[2606:4700::1111]:0/"] {
        let created = api.post("/webhooks", json!({"url": url, "events": ["device.online"]})).await;
        let changed = api.patch(&path, json!({"url": url})).await;
        for answer in [created, changed] {
            assert_eq!(
                (answer.outcome().as_str(), answer.fields()),
                ("422 validation_failed", vec!["url".to_owned()]),
                "{url}"
            );
        }
    }
    assert_eq!(api.patch(&path, json!({"url": "https://8.8.8.8:1/"})).await.data()["url"], "https://8.8.8.8:1/");
}

/// A prefix length has one spelling.
#[both_engines]
async fn cidr_prefix_with_leading_zero_is_rejected(engine: Engine) {
    let host = TestHost::start(engine).await;
    let api = host.api(&host.person("ada").await.key);
    let path = format!("/tunnels/{}/firewall", api.post("/tunnels", json!({"local_port": 80})).await.id());
    let put =
        async |range: &str| api.put(&path, json!({"rules": [{"rule_type": "whitelist", "ip_cidr": range}]})).await;
    for wrong in ["1.1.1.0/08", "1.1.1.0/008", "0.0.0.0/00", "2001:db8::/032", "::/00"] {
        let refused = put(wrong).await;
        assert_eq!(
            (refused.outcome().as_str(), refused.fields()),
            ("422 validation_failed", vec!["rules[0].ip_cidr".to_owned()]),
            "{wrong}"
        );
    }
    for (right, kept) in [
        ("1.1.1.0/8", "1.0.0.0/8"),
        ("0.0.0.0/0", "0.0.0.0/0"),
        ("2001:db8::/32", "2001:db8::/32"),
        ("10.1.2.3/10", "10.0.0.0/10"),
    ] {
        assert_eq!(put(right).await.data()["rules"][0]["ip_cidr"], kept);
    }
}

/// What is packed is refused as that, and not as broken JSON.
///
/// covers: unsupported_content_encoding
#[both_engines]
async fn compressed_request_body_is_rejected(engine: Engine) {
    let host = TestHost::start(engine).await;
    let api = host.api(&host.person("ada").await.key);
    let packed = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3].to_vec();
    let plain = br#"{"local_port":80}"#.to_vec();
    let send = async |encoding: &str, body: &[u8]| {
        let key = Uuid::from_bytes(host.clock.random()).to_string();
        let request = api
            .request(Method::POST, "/tunnels")
            .header("idempotency-key", key)
            .header("content-type", "application/json");
        api.send(request.header("content-encoding", encoding).body(body.to_vec())).await
    };
    for (encoding, body) in [
        ("gzip", &packed),
        ("gzip", &plain),
        ("x-gzip", &plain),
        ("br", &plain),
        ("zstd", &plain),
        ("identity, gzip", &plain),
    ] {
        let refused = send(encoding, body).await;
        assert_eq!(refused.outcome(), "415 unsupported_content_encoding", "{encoding}");
        assert!(refused.body["detail"].as_str().unwrap().contains("identity"), "{refused}");
    }
    for encoding in ["identity", "Identity"] {
        assert_eq!(send(encoding, &plain).await.status, 201, "{encoding}");
    }
    assert_eq!(api.get("/account/usage").await.data()["total_tunnels"], 2);
}

/// Wherever GET is answered, HEAD is, with its headers.
#[both_engines]
async fn head_request_matches_get_without_body(engine: Engine) {
    let host = TestHost::with(engine, unlimited).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let (device, _wire) = host.wired(&ada, ada.account_id).await;
    let tunnel = api.post("/tunnels", json!({"local_port": 80, "extra_ports": [{"local_port": 81}]})).await.id();
    let operation = queue(&api, tunnel, device.id).await;
    let webhook = host.webhook(ada.account_id).await;
    let key = format!("Authorization: Bearer {}", ada.key);
    let ids =
        [("{tunnel_id}", tunnel), ("{device_id}", device.id), ("{operation_id}", operation), ("{webhook_id}", webhook)];
    let mut heads = 0;
    for row in table().iter().filter(|row| row.method == Method::GET) {
        let path = ids.iter().fold(format!("/v2{}", row.path), |path, (name, id)| path.replace(name, &id.to_string()));
        let get = raw(&host, &format!("GET {path} HTTP/1.1"), &["Host: h", key.as_str()]).await;
        let head = raw(&host, &format!("HEAD {path} HTTP/1.1"), &["Host: h", key.as_str()]).await;
        assert_eq!((get.status, head.status, head.body.as_str()), (200, 200, ""), "{path}");
        assert_eq!(head.lasting(), get.lasting(), "{path}");
        for name in ["content-type", "content-length", "x-request-id", "x-ratelimit-limit", "x-ratelimit-remaining"] {
            assert!(!head.headers[name].is_empty(), "{path}: {name}");
        }
        assert_eq!(head.headers["content-length"], get.body.len().to_string(), "{path}");
        let stranger = raw(&host, &format!("HEAD {path} HTTP/1.1"), &["Host: h"]).await;
        assert_eq!((stranger.status, stranger.body.as_str()), (401, ""), "{path}");
        heads += 1;
    }
    assert!(heads >= 20, "only {heads} routes were asked");
    // What is not there for GET is not there for HEAD.
    for (path, status) in [("/v2/nothing", 404), ("/v1/tunnels", 410), ("/v2/webhooks/no-id/test", 405)] {
        let get = raw(&host, &format!("GET {path} HTTP/1.1"), &["Host: h", key.as_str()]).await;
        let head = raw(&host, &format!("HEAD {path} HTTP/1.1"), &["Host: h", key.as_str()]).await;
        assert_eq!((get.status, head.status, head.body.as_str()), (status, status, ""), "{path}");
        assert_eq!(head.lasting(), get.lasting(), "{path}");
    }
    for path in ["/docs", "/docs/errors", "/docs/policies", "/v2/openapi.json"] {
        let get = raw(&host, &format!("GET {path} HTTP/1.1"), &["Host: h"]).await;
        let head = raw(&host, &format!("HEAD {path} HTTP/1.1"), &["Host: h"]).await;
        assert_eq!((get.status, head.status, head.body.as_str()), (200, 200, ""), "{path}");
        assert_eq!(head.lasting(), get.lasting(), "{path}");
    }
}

/// Nothing of the API is kept by anybody, nor taken for what it is not.
#[both_engines]
async fn api_response_is_marked_no_store(engine: Engine) {
    let host = TestHost::start(engine).await;
    let api = host.api(&host.person("ada").await.key);
    let create =
        || api.request(Method::POST, "/tunnels").json(&json!({"local_port": 80})).header("idempotency-key", "k");
    let secret = json!({"url": "https://8.8.8.8/", "events": ["device.online"]});
    let broken = api
        .request(Method::POST, "/tunnels")
        .header("content-type", "application/json")
        .body("{")
        .header("idempotency-key", "b");
    let replayed = async || {
        api.send(create()).await.data();
        api.send(create()).await
    };
    for (answer, outcome) in [
        (api.get("/account").await, "200"),
        (api.get("/tunnels?limit=1").await, "200"),
        (api.post("/tunnels", json!({"local_port": 80})).await, "201"),
        (replayed().await, "201"),
        (api.post("/webhooks", secret).await, "201"),
        (api.post("/tunnels", json!({})).await, "422 validation_failed"),
        (api.send(broken).await, "400 invalid_json"),
        (api.send(api.request(Method::POST, "/tunnels").json(&json!({}))).await, "400 idempotency_key_required"),
        (api.get(&format!("/tunnels/{}", Uuid::from_u128(7))).await, "404 not_found"),
        (api.get("/nothing").await, "404 not_found"),
        (api.put("/tunnels", json!({})).await, "405 method_not_allowed"),
        (api.without_key().get("/account").await, "401 missing_api_key"),
        (api.with_key("ctk_nothing").get("/account").await, "401 invalid_api_key"),
        (api.send(page(&host, "/v1/tunnels")).await, "410 api_version_gone"),
    ] {
        assert_eq!(answer.outcome(), outcome);
        let kept = (answer.header("cache-control"), answer.header("x-content-type-options"));
        assert_eq!(kept, (Some("no-store"), Some("nosniff")), "{answer}");
    }
}

/// So it is with what is refused for being too often.
#[tokio::test]
async fn rate_limited_response_is_marked_no_store() {
    let host = TestHost::with(Engine::Sqlite, |config| config.rate_limit.per_minute = 1).await;
    let api = host.api(&host.person("ada").await.key);
    api.get("/account").await.data();
    let refused = api.get("/account").await;
    assert_eq!((refused.outcome().as_str(), refused.header("cache-control")), ("429 rate_limited", Some("no-store")));
    assert_eq!(refused.header("x-content-type-options"), Some("nosniff"));
}

/// HTTP/1.1 says whom it asks (RFC 9112, section 3.2); HTTP/1.0 need not.
///
/// covers: host_required
#[tokio::test]
async fn http11_request_without_host_header_is_rejected() {
    let host = TestHost::start(Engine::Sqlite).await;
    let key = format!("Authorization: Bearer {}", host.person("ada").await.key);
    for path in ["/v2/account", "/v2/nothing", "/v1/tunnels", "/docs"] {
        let refused = raw(&host, &format!("GET {path} HTTP/1.1"), &[key.as_str()]).await;
        assert_eq!(refused.outcome(), "400 host_required", "{path}");
        assert_eq!(refused.headers["content-type"], "application/problem+json");
    }
    assert_eq!(raw(&host, "GET /v2/account HTTP/1.1", &[]).await.outcome(), "400 host_required");
    assert_eq!(raw(&host, "GET /v2/account HTTP/1.1", &["Host: h", key.as_str()]).await.status, 200);
    assert_eq!(raw(&host, "GET /v2/account HTTP/1.0", &[key.as_str()]).await.status, 200);
    assert_eq!(raw(&host, "GET /docs HTTP/1.0", &[]).await.status, 200);
}

/// The pages are shown in nobody's frame, tell nobody of their readers, and are fetched once.
#[tokio::test]
async fn docs_page_with_matching_etag_returns_not_modified() {
    let host = TestHost::start(Engine::Sqlite).await;
    let api = host.api("none").without_key();
    for path in ["/docs", "/docs/errors", "/docs/policies"] {
        let shown = api.send(page(&host, path)).await;
        assert_eq!(shown.status, 200, "{path}");
        let header = |name: &str| shown.header(name).unwrap_or_else(|| panic!("{path} has no {name}")).to_owned();
        assert!(header("content-security-policy").contains("frame-ancestors 'none'"), "{path}");
        assert_eq!(header("x-content-type-options"), "nosniff");
        assert!(!header("referrer-policy").is_empty() && !header("cache-control").contains("no-store"), "{path}");
        let etag = header("etag");
        for known in [etag.clone(), format!("\"another\", {etag}"), "*".into()] {
            let same = api.send(page(&host, path).header("if-none-match", &known)).await;
            assert_eq!(
                (same.status, same.text.as_str(), same.header("etag")),
                (304, "", Some(&*etag)),
                "{path} {known}"
            );
        }
        let changed = api.send(page(&host, path).header("if-none-match", "\"another\"")).await;
        assert_eq!((changed.status, &changed.text), (200, &shown.text), "{path}");
    }
}

/// Characters by which a text looks like another one, or like none: bidirectional overrides and
/// isolates, separators, what has no width, and control characters.
const DECEPTIVE: [char; 9] =
    ['\u{202e}', '\u{2066}', '\u{2028}', '\u{feff}', '\u{200b}', '\n', '\u{7}', '\u{7f}', '\u{85}'];

/// Texts that people write: a joined emoji, Arabic, Hebrew, and Persian with its non-joiner.
const HONEST: [&str; 4] = ["👩\u{200d}💻 laptop", "خادم الألعاب", "שרת הבית", "خانه\u{200c}ها"];

/// One of everything that people give names to.
struct Named {
    host: TestHost,
    ada: Person,
    api: Api,
    tunnel: Uuid,
    webhook: Uuid,
    device: Uuid,
}

impl Named {
    async fn set(engine: Engine, policies: fn(&mut Config)) -> Self {
        let host = TestHost::with(engine, |config| {
            unlimited(config);
            policies(config);
        })
        .await;
        let ada = host.person("ada").await;
        let api = host.api(&ada.key);
        let tunnel = api.post("/tunnels", json!({"local_port": 80})).await.id();
        let webhook = host.webhook(ada.account_id).await;
        let device = host.enrol(&ada, ada.account_id, &Capability::ALL).await.id;
        Self { host, ada, api, tunnel, webhook, device }
    }

    /// Puts a text wherever one can be put; each answer, with the field that the text was in.
    async fn put(&self, text: &str) -> Vec<(&'static str, Answer)> {
        let Self { api, .. } = self;
        let (tunnel, webhook) = (format!("/tunnels/{}", self.tunnel), format!("/webhooks/{}", self.webhook));
        let with_port = json!({"local_port": 80, "extra_ports": [{"local_port": 81, "label": text}]});
        let rules = json!({"rules": [{"rule_type": "blacklist", "ip_address": "10.0.0.1", "description": text}]});
        let endpoint = json!({"url": "https://8.8.8.8/", "events": ["device.online"], "description": text});
        vec![
            ("name", api.post("/tunnels", json!({"local_port": 80, "name": text})).await),
            ("name", api.patch(&tunnel, json!({"name": text})).await),
            ("extra_ports[0].label", api.post("/tunnels", with_port).await),
            ("label", api.post(&format!("{tunnel}/extra-ports"), json!({"local_port": 82, "label": text})).await),
            ("rules[0].description", api.put(&format!("{tunnel}/firewall"), rules).await),
            ("description", api.post("/webhooks", endpoint).await),
            ("description", api.patch(&webhook, json!({"description": text})).await),
            ("name", api.patch(&format!("/devices/{}", self.device), json!({"name": text})).await),
        ]
    }

    /// Enrols a device of a name.
    async fn enrol(&self, name: &str) -> Answer {
        let enrol = Enrol {
            code: self.host.device_code(self.ada.account_id, self.ada.account_id).await,
            name: Some(name.into()),
            platform: "test".into(),
            version: "1".into(),
            capabilities: Vec::new(),
            public_key: DeviceKey::generate(&self.host.clock).public(),
        };
        let client = Client::builder().no_proxy().build().unwrap();
        self.api.send(client.post(format!("{}{ENROL_PATH}", self.host.url())).json(&enrol)).await
    }
}

/// Whatever the policies say: nobody reads a list wrongly for what somebody has named in it.
#[both_engines]
async fn text_with_deceptive_characters_is_rejected(engine: Engine) {
    for policies in [strict as fn(&mut Config), lenient] {
        let named = Named::set(engine, policies).await;
        for character in DECEPTIVE {
            let text = format!("left{character}right");
            let mut answers = named.put(&text).await;
            answers.push(("name", named.enrol(&text).await));
            for (place, (field, answer)) in answers.into_iter().enumerate() {
                let refused = (answer.outcome(), answer.fields());
                assert_eq!(
                    refused,
                    ("422 validation_failed".into(), vec![field.to_owned()]),
                    "{character:?} in place {place}"
                );
            }
        }
        for text in HONEST {
            let mut answers = named.put(text).await;
            answers.push(("name", named.enrol(text).await));
            for (field, answer) in answers {
                assert!(answer.status < 300, "{text} in {field}: {answer}");
            }
            assert_eq!(named.api.get(&format!("/tunnels/{}", named.tunnel)).await.data()["name"], text);
            assert_eq!(named.api.get(&format!("/devices/{}", named.device)).await.data()["name"], text);
        }
    }
}

/// So it is with what is too long to be read at all.
#[both_engines]
async fn text_longer_than_255_characters_is_rejected(engine: Engine) {
    let named = Named::set(engine, lenient).await;
    for (field, answer) in named.put(&"ü".repeat(255)).await {
        assert!(answer.status < 300, "{field}: {answer}");
    }
    for length in [256, 10_000] {
        for (field, answer) in named.put(&"ü".repeat(length)).await {
            let refused = (answer.outcome(), answer.fields());
            assert_eq!(refused, ("422 validation_failed".into(), vec![field.to_owned()]), "{length}");
        }
    }
}

/// Beyond the plan's number it is the plan that refuses; beyond the host's own, the host.
#[both_engines]
async fn port_and_webhook_limits_follow_plan_and_host(engine: Engine) {
    let host = TestHost::with(engine, unlimited).await;
    let ports = |count: u16| (0..count).map(|port| json!({"local_port": 1000 + port})).collect::<Vec<_>>();
    for (plan, most_ports, most_webhooks, no_port, no_webhook) in [
        ("free", 1, 1, "403 plan_limit_reached", "403 plan_limit_reached"),
        ("pro", 5, 10, "403 plan_limit_reached", "403 plan_limit_reached"),
        ("team", 10, 20, "403 plan_limit_reached", "403 plan_limit_reached"),
        ("self-hosted", 10, 20, "409 extra_port_limit_reached", "409 webhook_limit_reached"),
    ] {
        let owner = host.person(plan).await;
        host.set_plan(owner.account_id, plan).await;
        let api = host.api(&owner.key);
        let tunnel = api.post("/tunnels", json!({"local_port": 80, "extra_ports": ports(most_ports)})).await.id();
        let one_more = api.post(&format!("/tunnels/{tunnel}/extra-ports"), json!({"local_port": 80})).await;
        assert_eq!(one_more.outcome(), no_port, "{plan}");
        let create = async || {
            api.post("/webhooks", json!({"url": "https://8.8.8.8/", "events": ["device.online"]})).await.outcome()
        };
        for _ in 0..most_webhooks {
            assert_eq!(create().await, "201", "{plan}");
        }
        assert_eq!(create().await, no_webhook, "{plan}");
    }
}

/// No tunnel has eleven: a request for one is wrong in itself.
#[both_engines]
async fn tunnel_create_with_eleven_extra_ports_is_rejected(engine: Engine) {
    for policies in [strict as fn(&mut Config), lenient] {
        let host = TestHost::with(engine, policies).await;
        let api = host.api(&host.person("ada").await.key);
        let ports = |count: u16| (0..count).map(|port| json!({"local_port": 1000 + port})).collect::<Vec<_>>();
        for count in [11, 12, 200] {
            let refused = api.post("/tunnels", json!({"local_port": 80, "extra_ports": ports(count)})).await;
            assert_eq!(
                (refused.outcome().as_str(), refused.fields()),
                ("422 validation_failed", vec!["extra_ports".to_owned()]),
                "{count}"
            );
        }
        assert_eq!(api.get("/account/usage").await.data()["total_tunnels"], 0);
        assert_eq!(api.post("/tunnels", json!({"local_port": 80, "extra_ports": ports(10)})).await.status, 201);
    }
}

/// Nobody learns by a webhook's URL which names there are inside.
#[both_engines]
async fn webhook_url_error_does_not_reveal_internal_names(engine: Engine) {
    let names = Names::open().await;
    for (name, addresses) in [
        ("inside.example.test", Says::addresses(["10.1.2.3"])),
        ("inside6.example.test", Says::addresses(["fd00::1"])),
        ("mixed.example.test", Says::addresses(["93.184.215.14", "192.168.1.1"])),
        ("empty.example.test", Says::addresses([])),
        ("alias.example.test", Says::Alias("inside.example.test".into())),
        ("broken.example.test", Says::Failure),
    ] {
        names.set(name, [addresses]);
    }
    let host = TestHost::with(engine, |config| config.dns.resolver = Some(names.address)).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let path = format!("/webhooks/{}", host.webhook(ada.account_id).await);
    let mut answers = Vec::new();
    for name in ["nothing", "inside", "inside6", "mixed", "empty", "alias", "broken"] {
        let url = format!("https://{name}.example.test/");
        let created = api.post("/webhooks", json!({"url": url, "events": ["device.online"]})).await;
        let changed = api.patch(&path, json!({"url": url})).await;
        for answer in [created, changed] {
            assert_eq!(faults(&answer), ["url: must have a host name with a public address"], "{name}");
            answers.push(answer.to_string());
        }
    }
    answers.dedup();
    assert_eq!(answers.len(), 1, "{answers:?}");
    // An address that was spelled out is no secret.
    for literal in ["https://10.0.0.1/", "https://127.0.0.1:8443/", "https://[::1]/", "https://2130706433/"] {
        let refused = api.patch(&path, json!({"url": literal})).await;
        assert_eq!(faults(&refused), ["url: must lead to public addresses only"], "{literal}");
    }
}

/// Nor by a custom domain which names others are aliases for, but for the platform's own.
#[both_engines]
async fn domain_verification_does_not_reveal_foreign_alias(engine: Engine) {
    let names = Names::open().await;
    let host = TestHost::with(engine, |config| {
        config.node.domain = Some("tunnels.example.test".into());
        config.dns.resolver = Some(names.address);
    })
    .await;
    let api = host.api(&host.person("ada").await.key);
    let tunnel = api.post("/tunnels", json!({"local_port": 80, "protocol": "http"})).await.id();
    let detail = async |alias: &str| {
        names.alias("www.example.com", alias);
        let looked =
            api.post(&format!("/tunnels/{tunnel}/domain/actions/verify"), json!({"domain": "www.example.com"})).await;
        assert_eq!(
            (&looked.data()["status"], &looked.data()["error"]["code"]),
            (&json!("pending"), &json!("cname_mismatch")),
            "{alias}"
        );
        let read = api.get(&format!("/tunnels/{tunnel}/domain")).await;
        assert_eq!(read.data()["error"], looked.data()["error"]);
        looked.data()["error"]["detail"].as_str().unwrap().to_owned()
    };
    for alias in ["internal-7.example.net", "nottunnels.example.test", "tunnels.example.test.example.net"] {
        let said = detail(alias).await;
        assert!(said.contains("is an alias for another name") && !said.contains(alias), "{said}");
    }
    for alias in ["other.tunnels.example.test", "a.b.tunnels.example.test"] {
        let said = detail(alias).await;
        assert!(said.contains(alias), "{said}");
    }
}

/// A scope that is none is wrong usage, as an option that is none.
#[tokio::test]
async fn key_create_with_unknown_permission_is_usage_error() {
    let place = Place::new(Engine::Sqlite).await;
    place.json("culvert account create --email ada@example.com --name Ada").await;
    for scopes in ["nope:x", "tunnels:read,nope:x"] {
        let output = place.run(&format!("culvert key create --account ada@example.com --scopes {scopes}")).await;
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), output.stdout.is_empty()), (Some(2), true), "{said}");
        assert!(said.contains("nope:x"), "{said}");
    }
    assert_eq!(place.json("culvert key list").await["data"], json!([]));
}
