//! Where remote control may lead: to what the device's owner has allowed, and to nothing else.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::Stdio;
use std::sync::Arc;

use culvert_agent::device::{Device, DeviceKey};
use culvert_agent::ipc::Answer;
use culvert_agent::state_dir::StateDir;
use culvert_test_macros::both_engines;
use culvert_wire::allowed_target::{self, AllowedTarget};
use culvert_wire::clock::Clock;
use culvert_wire::control::{ConsentState, Done, SignedConsent, ToAgent, ToHost, targets_statement};
use culvert_wire::enrolment::ENROL_PATH;
use culvert_wire::signature::verify;
use insta::{allow_duplicates, assert_snapshot};
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use uuid::Uuid;

use crate::support::agent_end::HostEnd;
use crate::support::api::Api;
use crate::support::device::{Remote, TestDevice};
use crate::support::host::{Engine, TestHost, start_of_time};
use crate::support::program::Place;
use crate::support::visitor::{named_service, visit};
use crate::support::wire::{Wire, signed_consent, signed_consent_to};

/// A device with remote control, and a tunnel to a service that says `inside`, at a port of 127.0.0.1.
struct Stage {
    host: TestHost,
    api: Api,
    device: TestDevice,
    tunnel: Uuid,
    port: u16,
}

impl Stage {
    async fn set(engine: Engine) -> Self {
        let host = TestHost::start(engine).await;
        let ada = host.person("ada").await;
        let api = host.api(&ada.key);
        let device = host.device(&ada, ada.account_id, Remote::Enabled).await;
        let port = named_service("inside").await.port();
        let tunnel = api.post("/tunnels", json!({"local_port": port})).await.id();
        Self { host, api, device, tunnel, port }
    }

    /// Starts the tunnel by remote control; the operation when it has ended.
    async fn start(&self) -> Value {
        let path = format!("/tunnels/{}/actions/start", self.tunnel);
        let asked = self.api.post(&path, json!({"device_id": self.device.id})).await.id();
        self.host.until_ended(&self.api, asked).await
    }

    async fn patch(&self, change: Value) -> crate::support::api::Answer {
        self.api.patch(&format!("/tunnels/{}", self.tunnel), change).await
    }

    async fn is_served(&self) {
        assert_eq!(visit(&self.host, &self.api, self.tunnel, b"").await.unwrap(), b"inside");
    }

    async fn until(&self, status: &str) {
        self.host.until_tunnel(&self.api, self.tunnel, status).await;
    }

    fn settled(&self, text: &Value) -> String {
        text.as_str().unwrap().replace(&self.port.to_string(), "[port]")
    }
}

/// Says a consent on the wire, and waits until the host has taken it in.
async fn consent(wire: &mut Wire, signed: SignedConsent) {
    wire.send(ToHost::Consent(signed)).await;
    wire.until(|frame| matches!(frame, ToAgent::Consent(_)).then_some(())).await;
}

/// Outside of the list nothing starts; inside it does, and no longer when it is revoked.
#[both_engines]
async fn remote_start_succeeds_only_for_allowed_target(engine: Engine) {
    let stage = Stage::set(engine).await;
    let inside = format!("127.0.0.1:{}", stage.port);
    stage.device.change_targets(&[], &["127.0.0.0/8"]).await;
    let failed = stage.start().await;
    assert_eq!((&failed["status"], &failed["error"]["code"]), (&json!("failed"), &json!("target_not_allowed")));
    allow_duplicates! { assert_snapshot!(
        stage.settled(&failed["error"]["detail"]),
        @"This device's owner has not allowed 127.0.0.1:[port] for remote control. On the device: `culvert-agent targets allow 127.0.0.1:[port]`."
    ) }
    assert_eq!(stage.device.change_targets(&[inside.as_str()], &[]).await, ["::1", "localhost", inside.as_str()]);
    assert_eq!(stage.start().await["status"], "succeeded");
    stage.is_served().await;
    stage.device.change_targets(&[], &[inside.as_str()]).await;
    assert!(visit(&stage.host, &stage.api, stage.tunnel, b"").await.is_err());
    stage.until("degraded").await;
}

/// A change that the list alone shows to lead outside is refused, and nothing has changed.
///
/// covers: target_not_allowed
#[both_engines]
async fn change_to_disallowed_target_is_refused_while_running(engine: Engine) {
    let stage = Stage::set(engine).await;
    let path = format!("/tunnels/{}", stage.tunnel);
    assert_eq!(stage.start().await["status"], "succeeded");
    stage.until("running").await;
    let inside = format!("127.0.0.1:{}", stage.port);
    stage.device.change_targets(&[inside.as_str()], &["127.0.0.0/8", "::1", "localhost"]).await;
    let before = stage.api.get(&path).await.data().clone();
    let refused = stage.patch(json!({"name": "other", "local_host": "10.0.0.5"})).await;
    assert_eq!(refused.outcome(), "409 target_not_allowed");
    allow_duplicates! { assert_snapshot!(
        stage.settled(&refused.body["detail"]),
        @"This device's owner has not allowed 10.0.0.5:[port] for remote control. On the device: `culvert-agent targets allow 10.0.0.5:[port]`."
    ) }
    for change in [json!({"local_port": 1}), json!({"local_host": "localhost", "local_port": 1})] {
        assert_eq!(stage.patch(change).await.outcome(), "409 target_not_allowed");
    }
    let port = stage.api.post(&format!("{path}/extra-ports"), json!({"local_port": 1})).await;
    assert_eq!(port.outcome(), "409 target_not_allowed");
    assert_eq!(stage.api.get(&path).await.data(), &before);
    stage.is_served().await;

    // What does not run leads nowhere yet.
    stage.device.stop_tunnel(&stage.tunnel.to_string()).await.unwrap();
    stage.until("stopped").await;
    assert_eq!(stage.patch(json!({"local_host": "10.0.0.5"})).await.status, 200);
}

/// Where only the lookup can tell, the device keeps its former target, and says so until it is led
/// where it may be.
#[both_engines]
async fn hostname_resolving_to_disallowed_target_keeps_former_target(engine: Engine) {
    let stage = Stage::set(engine).await;
    stage.device.change_targets(&["127.0.0.1"], &["127.0.0.0/8"]).await;
    assert_eq!(stage.start().await["status"], "succeeded");
    // To a resolver this is a name; it is 127.0.0.2.
    assert_eq!(stage.patch(json!({"local_host": "0x7f000002"})).await.status, 200);
    stage.until("degraded").await;
    stage.is_served().await;
    stage.device.until_told().await;
    let tunnel = stage.device.status().await.tunnels.remove(0);
    assert_eq!(tunnel.local_target, format!("127.0.0.1:{}", stage.port));
    let said = tunnel.target_error.unwrap();
    assert!(said.contains(&format!("`culvert-agent targets allow 127.0.0.2:{}`", stage.port)), "{said}");
    assert_eq!(stage.api.get(&format!("/tunnels/{}", stage.tunnel)).await.data()["status"], "degraded");

    assert_eq!(stage.patch(json!({"local_host": "0x7f000001"})).await.status, 200);
    stage.until("running").await;
    assert!(stage.device.target(stage.tunnel).await.starts_with("0x7f000001"));
    stage.is_served().await;
}

/// What was refused is followed when the device's owner allows it.
#[both_engines]
async fn refused_target_is_applied_once_allowed(engine: Engine) {
    let stage = Stage::set(engine).await;
    stage.device.change_targets(&["127.0.0.1"], &["127.0.0.0/8"]).await;
    assert_eq!(stage.start().await["status"], "succeeded");
    assert_eq!(stage.patch(json!({"local_host": "0x7f000002"})).await.status, 200);
    stage.until("degraded").await;
    stage.device.change_targets(&["127.0.0.2"], &[]).await;
    stage.device.until(async || stage.device.target(stage.tunnel).await.starts_with("0x7f000002")).await;
}

/// Somebody at the device sees where a tunnel leads before it does.
#[both_engines]
async fn local_start_of_unlisted_target_requires_acceptance(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let device = host.device(&ada, ada.account_id, Remote::Disabled).await;
    let tunnel = api.post("/tunnels", json!({"name": "web", "local_host": "10.0.0.5", "local_port": 5432})).await.id();
    let refused = device.start_tunnel("web").await.unwrap_err();
    assert_eq!(refused.code, "target_not_accepted");
    assert_eq!(refused.detail, "web leads to 10.0.0.5:5432, which is not in this device's list.");
    assert_eq!(refused.accept.as_deref(), Some("10.0.0.5:5432"));
    assert_eq!(device.accept_tunnel("web", "10.0.0.6:5432").await.unwrap_err().code, "target_not_accepted");
    host.until_tunnel(&api, tunnel, "stopped").await;
    assert_eq!(device.tunnels().await, Vec::<Uuid>::new());

    let Ok(Answer::Started(started)) = device.accept_tunnel("web", "10.0.0.5:5432").await else {
        panic!("not started")
    };
    assert_eq!(started.local_target, "10.0.0.5:5432");
    host.until_tunnel(&api, tunnel, "running").await;
    // It was agreed to: the next process of the agent goes on with it.
    let (folder, state) = device.shut_down().await;
    let device = TestDevice::start_again(folder, state, host.clock.clone());
    device.until_connected().await;
    device.until(async || device.tunnels().await == [tunnel]).await;

    // In the list, nobody is asked.
    device.stop_tunnel("web").await.unwrap();
    host.until_tunnel(&api, tunnel, "stopped").await;
    assert_eq!(device.start_tunnel("web").await.unwrap_err().code, "target_not_accepted");
    device.change_targets(&["10.0.0.0/24:5432"], &[]).await;
    assert!(device.start_tunnel("web").await.is_ok());
}

/// A list counts that the device has signed; where it has told none, the host judges nothing.
#[both_engines]
async fn target_list_without_valid_signature_is_ignored(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let (device, mut wire) = host.wired(&ada, ada.account_id).await;
    let tunnel = api.post("/tunnels", json!({"local_port": 80})).await.id();
    let path = format!("/tunnels/{tunnel}");
    api.post(&format!("{path}/actions/start"), json!({"device_id": device.id})).await.id();
    wire.obey(Done::Start).await.unwrap();
    let lead = async |host: &str| api.patch(&path, json!({"local_host": host})).await.outcome();
    assert_eq!(lead("10.0.0.5").await, "200");

    let mut forged = signed_consent_to(&device, 0, &["127.0.0.0/8"]);
    forged.targets.as_mut().unwrap().targets = vec!["127.0.0.1".into()];
    consent(&mut wire, forged).await;
    assert_eq!(lead("10.0.0.6").await, "200", "nobody signed this");
    consent(&mut wire, signed_consent_to(&device, 0, &[&"x".repeat(2_000)])).await;
    assert_eq!(lead("10.0.0.6").await, "200", "an entry is not that long");
    consent(&mut wire, signed_consent_to(&device, 0, &["127.0.0.0/8", "what a newer agent may write"])).await;
    assert_eq!(lead("10.0.0.7").await, "409 target_not_allowed");
    assert_eq!(lead("127.0.0.1").await, "200");
    // An older agent has no list.
    consent(&mut wire, signed_consent(&device, true, 0)).await;
    assert_eq!(lead("10.0.0.8").await, "200");
}

/// A state folder as an agent left it that knew of no list.
fn older_agent(server: &str, consent: &Value) -> (Arc<tempfile::TempDir>, StateDir, Clock, Vec<u8>) {
    let clock = Clock::manual(start_of_time());
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let state = StateDir::open(folder.path()).unwrap();
    let key = DeviceKey::generate(&clock);
    let public = key.public().0;
    Device { id: Uuid::from_u128(5), name: None, server: server.into(), key }.save(&state).unwrap();
    let target = json!({
        "host": "10.0.0.5", "port": 5432, "idle_timeout": 3600, "buffer_size": 65536,
        "extra": [{"port_id": Uuid::from_u128(8), "port": 80}],
    });
    state.write("consent.json", consent).unwrap();
    state.write("targets.json", &json!({(Uuid::from_u128(9).to_string()): target})).unwrap();
    (folder, state, clock, public)
}

/// An agent that was consenting keeps what it leads to, and tells the host.
#[tokio::test]
async fn upgraded_agent_with_consent_builds_signed_target_list() {
    let host = HostEnd::open().await;
    let consent = json!({"enabled": true, "revision": 3, "pending": null});
    let (folder, state, clock, public) = older_agent(&host.url, &consent);
    let device = TestDevice::start_again(folder, state.clone(), clock);
    let agent = host.welcome(ConsentState { enabled: true, revision: 3 }).await;
    let signed = agent.hello.signed_consent.clone().unwrap();
    assert_eq!((signed.enabled, signed.revision), (true, 3));
    let list = signed.targets.unwrap();
    let expected = ["127.0.0.0/8", "::1", "localhost", "10.0.0.5:5432", "10.0.0.5:80"];
    assert_eq!(list.targets, expected);
    let statement = targets_statement(Uuid::from_u128(5), 3, &signed.nonce.0, &list.targets);
    assert!(verify(&public, &statement, &list.signature.0));
    assert_eq!(state.read::<Vec<String>>("allowed_targets.json").unwrap().unwrap(), expected);
    device.shut_down().await;
}

/// An agent without consent has nothing to keep.
#[tokio::test]
async fn upgraded_agent_without_consent_builds_no_target_list() {
    let host = HostEnd::open().await;
    let consent = json!({"enabled": false, "revision": 3, "pending": null});
    let (folder, state, clock, _) = older_agent(&host.url, &consent);
    let device = TestDevice::start_again(folder, state.clone(), clock);
    let agent = host.welcome(ConsentState { enabled: false, revision: 3 }).await;
    assert_eq!(agent.hello.signed_consent, None);
    assert_eq!(state.read::<Vec<String>>("allowed_targets.json").unwrap(), None);
    device.shut_down().await;
}

/// The command line, with nobody at its terminal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_cli_edits_targets_and_needs_yes_for_unlisted_start() {
    let place = Place::new(Engine::Sqlite).await;
    let mut host = place.serve().await;
    place.json("culvert account create --email ada@example.com --name Ada").await;
    let key = place.json("culvert key create --account ada@example.com --scopes full_access").await;
    let code = place.json("culvert device code --account ada@example.com").await;
    // The code need not stand among the arguments.
    let mut enrol = place.command_of(Place::programs().join("culvert-agent"));
    enrol.args(["enroll", "--server", &place.url(), "--code", "-"]).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut enrol = enrol.spawn().unwrap();
    let line = format!("{}\n", code["code"].as_str().unwrap());
    enrol.stdin.take().unwrap().write_all(line.as_bytes()).await.unwrap();
    assert!(enrol.wait().await.unwrap().success());

    // No agent runs: what is decided waits in the state folder.
    place.json("culvert-agent remote-control enable --allow db.internal:5432").await;
    let list = place.json("culvert-agent targets allow 10.1.0.0/16").await;
    assert_eq!(
        list,
        json!({"targets": ["127.0.0.0/8", "::1", "localhost", "db.internal:5432", "10.1.0.0/16"], "confirmed": false})
    );
    let mut agent = place.start_logged("culvert-agent run");
    agent.until("connected").await;
    host.until("connected").await;
    let list = place.json("culvert-agent targets revoke 10.1.0.0/16").await;
    assert_eq!(list, json!({"targets": ["127.0.0.0/8", "::1", "localhost", "db.internal:5432"], "confirmed": true}));
    assert_eq!(place.json("culvert-agent targets list").await["targets"], list["targets"]);
    assert_eq!(place.json("culvert-agent status").await["agent"]["allowed_targets"], list["targets"]);
    let unknown = place.run("culvert-agent targets revoke 10.1.0.0/16").await;
    assert_eq!(
        String::from_utf8_lossy(&unknown.stderr),
        "culvert-agent: 10.1.0.0/16 is not in the list; `culvert-agent targets list` shows it.\n"
    );

    let api = Api::new(&place.url(), key["key"].as_str().unwrap());
    let web = json!({"name": "web", "local_host": "10.0.0.5", "local_port": 5432});
    let tunnel = api.post("/tunnels", web).await.id();
    let refused = place.run("culvert-agent start web").await;
    assert!(!refused.status.success());
    assert_eq!(
        String::from_utf8_lossy(&refused.stderr),
        "culvert-agent: web leads to 10.0.0.5:5432, which is not in this device's list. Start it with `--yes`, or allow \
         it: `culvert-agent targets allow 10.0.0.5:5432`.\n"
    );
    let started = place.json("culvert-agent start web --yes").await;
    assert_eq!((&started["tunnel_id"], &started["local_target"]), (&json!(tunnel), &json!("10.0.0.5:5432")));
}

/// The code goes to the server that was named: no redirect and no proxy takes it elsewhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn enrolment_code_is_not_sent_via_redirect_or_proxy() {
    let place = Place::new(Engine::Sqlite).await;
    let _host = place.serve().await;
    place.json("culvert account create --email ada@example.com --name Ada").await;
    let code = place.json("culvert device code --account ada@example.com").await;
    let code = code["code"].as_str().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let elsewhere = format!("http://{}", listener.local_addr().unwrap());
    let redirect = format!(
        "HTTP/1.1 307 Temporary Redirect\r\nLocation: {}{ENROL_PATH}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        place.url()
    );
    let answer = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut asked = [0; 4096];
        assert!(stream.read(&mut asked).await.unwrap() > 0);
        stream.write_all(redirect.as_bytes()).await.unwrap();
    };
    let line = format!("culvert-agent enroll --server {elsewhere} --code {code}");
    let (redirected, ()) = tokio::join!(place.run(&line), answer);
    assert!(!redirected.status.success());

    // The code is still good, and the proxy of the environment, where nobody answers, is not asked.
    let mut enrol = place.command_of(Place::programs().join("culvert-agent"));
    enrol.args(["enroll", "--server", &place.url(), "--code", code]);
    enrol.envs([("HTTP_PROXY", &elsewhere), ("http_proxy", &elsewhere)]);
    drop(listener);
    assert!(enrol.status().await.unwrap().success());
}

/// Link-local addresses, and those where clouds keep their machines' secrets.
const RESERVED: [&str; 9] = [
    "169.254.169.254",
    "169.254.0.1",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "fe80::1",
    "fd00:ec2::254",
    "fd20:ce::254",
    "::ffff:169.254.169.254",
];

/// A network of more than one address, often around a reserved one.
fn network() -> impl Strategy<Value = String> {
    let v4 = (any::<u32>(), 0..32_u8).prop_map(|(bits, prefix)| format!("{}/{prefix}", Ipv4Addr::from(bits)));
    let v6 = (any::<u128>(), 0..128_u8).prop_map(|(bits, prefix)| format!("{}/{prefix}", Ipv6Addr::from(bits)));
    let near = (prop::sample::select(RESERVED.to_vec()), 0..128_u8).prop_map(|(address, prefix)| {
        let prefix = if address.contains(':') { prefix } else { prefix % 32 };
        format!("{address}/{prefix}")
    });
    prop_oneof![v4, v6, near]
}

proptest! {
    /// However wide the networks of a list are, only an entry of its own allows a reserved address.
    #[test]
    fn network_entry_never_allows_reserved_address(
        networks in prop::collection::vec(network(), 0..8),
        address in prop::sample::select(RESERVED.to_vec()),
        port in 1..=u16::MAX,
    ) {
        let mut list: Vec<AllowedTarget> = networks.iter().map(|text| text.parse().unwrap()).collect();
        let ip: IpAddr = address.parse().unwrap();
        prop_assert!(!allowed_target::admits(&list, address, ip, port), "{networks:?} allow {address}");
        prop_assert!(allowed_target::forbids(&list, address, port));
        list.push(address.parse().unwrap());
        prop_assert!(allowed_target::admits(&list, address, ip, port));
    }
}
