//! Tunnels of commands in the foreground: `culvert-agent http` and `culvert-agent tcp`.

use std::time::Duration;

use culvert_agent::cli::preset::PRESETS;
use culvert_agent::ipc::{Answer, Attendance, ForegroundState, ForegroundStatus, TunnelStatus, WantedTunnel};
use culvert_domain::session::EndReason;
use culvert_service::devices;
use culvert_test_macros::both_engines;

use culvert_wire::control::{Capability, Failure, Hello, ToAgent, ToHost};
use insta::{allow_duplicates, assert_snapshot};
use serde_json::{Value, json};
use tokio::net::UdpSocket;
use uuid::Uuid;

use crate::support::api::Api;
use crate::support::device::{Remote, TestDevice};
use crate::support::host::{Engine, Person, TestHost, within};
use crate::support::program::{Place, Program};
use crate::support::visitor::echo_service;
use crate::support::web::{Browser, WebService, outcome};
use crate::support::wire::Wire;

struct Stage {
    host: TestHost,
    ada: Person,
    api: Api,
    device: TestDevice,
    service: WebService,
}

impl Stage {
    /// A device that lets nobody control it from afar.
    async fn set(engine: Engine) -> Self {
        Self::with(engine, Remote::Disabled).await
    }

    async fn with(engine: Engine, remote: Remote) -> Self {
        let host = TestHost::start(engine).await;
        let ada = host.person("ada").await;
        let api = host.api(&ada.key);
        let device = host.device(&ada, ada.account_id, remote).await;
        Self { host, ada, api, device, service: WebService::start().await }
    }

    fn wanted(&self) -> WantedTunnel {
        let body = json!({
            "name": "journal", "protocol": "http", "subdomain": "journal", "http_ssl_enabled": false,
            "local_host": "127.0.0.1", "local_port": self.service.port,
        });
        WantedTunnel {
            body,
            extra_ports: Vec::new(),
            keep: false,
            creation_id: Some(self.host.clock.id()),
            tunnel_id: None,
            ran_at: None,
        }
    }

    /// Begins a command, and waits until its tunnel runs.
    async fn begin(&self, wanted: &WantedTunnel) -> (Attendance, TunnelStatus) {
        let mut command = Attendance::begin(&self.device.state, wanted).await.unwrap().unwrap();
        let tunnel = until_running(&mut command).await;
        (command, tunnel)
    }

    async fn page(&self) -> String {
        let (head, _) = Browser::open(self.host.http_address().await).await.get("journal.tunnel.localhost", "/").await;
        outcome(&head)
    }

    async fn exists(&self, tunnel: Uuid) -> bool {
        self.api.get(&format!("/tunnels/{tunnel}")).await.status == 200
    }

    async fn until_gone(&self, tunnel: Uuid) {
        self.host.until(async || (!self.exists(tunnel).await).then_some(())).await;
    }
}

async fn until_running(command: &mut Attendance) -> TunnelStatus {
    until_status(command, |status| status.tunnel.filter(|_| status.state == ForegroundState::Running)).await
}

async fn until_status<T>(command: &mut Attendance, wanted: impl Fn(ForegroundStatus) -> Option<T>) -> T {
    loop {
        match command.next().await {
            Some(Ok(Answer::Foreground(status))) => {
                if let Some(found) = wanted(*status) {
                    return found;
                }
            }
            other => panic!("{other:?}"),
        }
    }
}

/// The last word of a command's agent.
async fn last_word(command: &mut Attendance) -> Result<(), Failure> {
    loop {
        match command.next().await.expect("the agent has ended") {
            Ok(Answer::Foreground(_)) => {}
            Ok(Answer::Ended) => return Ok(()),
            Ok(other) => panic!("{other:?}"),
            Err(failure) => return Err(failure),
        }
    }
}

#[both_engines]
async fn tunnel_of_command_serves_visitors_and_is_deleted_at_its_end(engine: Engine) {
    let stage = Stage::set(engine).await;
    let (mut command, tunnel) = stage.begin(&stage.wanted()).await;
    let port = stage.host.http_address().await.port();
    assert_eq!(tunnel.public_address, format!("http://journal.tunnel.localhost:{port}"));
    let shown = stage.api.get(&format!("/tunnels/{}", tunnel.tunnel_id)).await;
    assert_eq!((&shown.data()["status"], &shown.data()["name"]), (&json!("running"), &json!("journal")));
    assert_eq!(stage.page().await, "200");
    stage.device.clock.advance(Duration::from_secs(1));
    let served = until_status(&mut command, |status| status.tunnel.filter(|tunnel| tunnel.bytes_out > 0)).await;
    assert!(served.bytes_in > 0 && served.target_error.is_none(), "{served:?}");

    command.end().await;
    assert_eq!(last_word(&mut command).await, Ok(()));
    assert!(!stage.exists(tunnel.tunnel_id).await);
    assert_eq!(stage.page().await, "404 no_such_tunnel");
    assert!(stage.device.tunnels().await.is_empty());
}

/// Its agent notices at once.
#[both_engines]
async fn tunnel_of_killed_command_is_deleted_by_its_agent(engine: Engine) {
    let stage = Stage::set(engine).await;
    let (command, tunnel) = stage.begin(&stage.wanted()).await;
    drop(command);
    stage.until_gone(tunnel.tunnel_id).await;
}

#[both_engines]
async fn kept_tunnel_is_stopped_with_its_command(engine: Engine) {
    let stage = Stage::set(engine).await;
    let (mut command, tunnel) = stage.begin(&WantedTunnel { keep: true, ..stage.wanted() }).await;
    command.end().await;
    assert_eq!(last_word(&mut command).await, Ok(()));
    stage.host.until_tunnel(&stage.api, tunnel.tunnel_id, "stopped").await;
    let sessions = stage.api.get(&format!("/tunnels/{}/sessions", tunnel.tunnel_id)).await;
    assert_eq!(sessions.data()[0]["end_reason"], "stopped_local");
    stage.host.pass(Duration::from_hours(1)).await;
    assert!(stage.exists(tunnel.tunnel_id).await);
}

/// A tunnel without a lease is kept for ten minutes, and for no longer.
#[both_engines]
async fn tunnel_of_lost_agent_is_deleted_after_ten_minutes(engine: Engine) {
    let stage = Stage::set(engine).await;
    let (_command, tunnel) = stage.begin(&stage.wanted()).await;
    let Stage { host, api, device, .. } = stage;
    drop(device.kill().await);
    host.pass(Duration::from_mins(1)).await;
    let path = format!("/tunnels/{}", tunnel.tunnel_id);
    assert_eq!(api.get(&path).await.data()["status"], "stopped");
    let ended = api.get(&format!("{path}/sessions")).await;
    assert_eq!(ended.data()[0]["ended_at"], "2026-01-15T12:01:00Z");
    host.pass(Duration::from_secs(599)).await;
    assert_eq!(api.get(&path).await.status, 200);
    host.pass(Duration::from_secs(1)).await;
    assert_eq!(api.get(&path).await.outcome(), "404 not_found");
}

/// A tunnel that was created and never ran is deleted as well.
#[both_engines]
async fn tunnel_that_never_ran_is_deleted_after_ten_minutes(engine: Engine) {
    let stage = Stage::set(engine).await;
    let (_, mut wire) = stage.host.wired(&stage.ada, stage.ada.account_id).await;
    let tunnel = create(&mut wire, stage.host.clock.id(), stage.wanted().body).await.unwrap();
    stage.host.pass(Duration::from_secs(599)).await;
    assert!(stage.exists(tunnel).await);
    stage.host.pass(Duration::from_secs(1)).await;
    assert!(!stage.exists(tunnel).await);
}

/// A command that finds its agent again keeps its tunnel, and an agent alone does not resume it.
#[both_engines]
async fn command_that_comes_back_in_time_keeps_its_address(engine: Engine) {
    let stage = Stage::set(engine).await;
    let wanted = stage.wanted();
    let (command, tunnel) = stage.begin(&wanted).await;
    let Stage { host, ada, api, device, service } = stage;
    let (folder, state) = device.kill().await;
    drop(command);
    host.pass(Duration::from_mins(9)).await;
    let device = TestDevice::start_again(folder, state, host.clock.clone());
    device.until_connected().await;
    assert!(device.tunnels().await.is_empty(), "nobody at the device has asked for it");
    let stage = Stage { host, ada, api, device, service };
    let again = WantedTunnel { tunnel_id: Some(tunnel.tunnel_id), ..wanted };
    let (_command, found) = stage.begin(&again).await;
    assert_eq!((found.tunnel_id, found.public_address), (tunnel.tunnel_id, tunnel.public_address));
    for seconds in [10, 20] {
        stage.host.pass(Duration::from_secs(seconds)).await;
        stage.host.until_renewed(tunnel.tunnel_id).await;
        // The device must know of it as well, before its own count of the term runs out.
        stage.device.until_told().await;
    }
    assert_eq!(stage.page().await, "200");
}

/// After more than ten minutes, the command gets a new tunnel of the same name.
#[both_engines]
async fn command_that_comes_back_too_late_gets_another_tunnel(engine: Engine) {
    let stage = Stage::set(engine).await;
    let ran_at = Some(stage.host.clock.now() - chrono::TimeDelta::minutes(10));
    let gone = WantedTunnel { tunnel_id: Some(Uuid::from_u128(1)), ran_at, ..stage.wanted() };
    let (_command, tunnel) = stage.begin(&gone).await;
    assert_ne!(Some(tunnel.tunnel_id), gone.tunnel_id);
    assert_eq!(stage.page().await, "200");
}

/// The host ends the lease while the agent is connected; the command starts the tunnel again.
#[both_engines]
async fn lost_lease_is_replaced_while_the_command_runs(engine: Engine) {
    let stage = Stage::set(engine).await;
    let (mut command, tunnel) = stage.begin(&stage.wanted()).await;
    let session = stage.host.app.store.lease_of_tunnel(tunnel.tunnel_id).await.unwrap().unwrap().session_id;
    let scope = stage.ada.account_id;
    culvert_service::sessions::end_all(&stage.host.app.store, scope, vec![session], EndReason::Error).await.unwrap();
    until_status(&mut command, |status| (status.state != ForegroundState::Running).then_some(())).await;
    assert_eq!(until_running(&mut command).await.tunnel_id, tunnel.tunnel_id);
    assert_eq!(stage.page().await, "200");
}

/// What somebody else does with the tunnel ends the command.
#[both_engines]
async fn command_ends_when_its_tunnel_is_deleted_or_stopped(engine: Engine) {
    let stage = Stage::set(engine).await;
    let (mut command, tunnel) = stage.begin(&stage.wanted()).await;
    stage.api.delete(&format!("/tunnels/{}", tunnel.tunnel_id)).await.data();
    assert_eq!(last_word(&mut command).await.unwrap_err().detail, "The tunnel was deleted.");

    let (mut command, tunnel) = stage.begin(&WantedTunnel { keep: true, ..again(&stage) }).await;
    stage.device.stop_tunnel(&tunnel.tunnel_id.to_string()).await.unwrap();
    assert_eq!(last_word(&mut command).await.unwrap_err().detail, "The tunnel was stopped: stopped_local.");
}

/// Another name than the one that rests.
fn again(stage: &Stage) -> WantedTunnel {
    let mut wanted = stage.wanted();
    wanted.body["subdomain"] = "journal-2".into();
    wanted
}

async fn create(wire: &mut Wire, request_id: Uuid, tunnel: Value) -> Result<Uuid, Failure> {
    wire.send(ToHost::Create { request_id, tunnel, temporary: true }).await;
    wire.until(|frame| match frame {
        ToAgent::Created { request_id: of, outcome } if of == request_id => Some(outcome),
        _ => None,
    })
    .await
}

/// An agent that has not heard the answer asks again on its next connection.
#[both_engines]
async fn repeated_creation_makes_one_tunnel(engine: Engine) {
    let stage = Stage::set(engine).await;
    let (device, mut wire) = stage.host.wired(&stage.ada, stage.ada.account_id).await;
    let (request_id, body) = (stage.host.clock.id(), stage.wanted().body);
    let tunnel = create(&mut wire, request_id, body.clone()).await.unwrap();
    wire.hang_up().await;
    let mut wire = stage.host.connect(&device, |_| {}).await.unwrap();
    assert_eq!(create(&mut wire, request_id, body.clone()).await, Ok(tunnel));
    let other = create(&mut wire, request_id, json!({"local_port": 1})).await.unwrap_err();
    assert_eq!(other.code, "idempotency_conflict");
    assert_eq!(stage.api.get("/tunnels").await.data().as_array().unwrap().len(), 1);
}

/// The gate is the API's: plan, validation, and the rules behind them.
#[both_engines]
async fn refused_creation_names_code_rule_and_fields(engine: Engine) {
    let stage = Stage::set(engine).await;
    let (_, mut wire) = stage.host.wired(&stage.ada, stage.ada.account_id).await;
    let mut said = Vec::new();
    for body in [
        json!({"local_port": 80, "subdomain": "a b", "surprise": 1}),
        json!({"local_port": 0, "protocol": "http", "subdomain": "-"}),
        json!([1]),
        json!(7),
    ] {
        let failure = create(&mut wire, stage.host.clock.id(), body).await.unwrap_err();
        let faults = failure.faults.iter().map(|f| format!("{} {} {:?}", f.field, f.message, f.rule));
        said.push(format!("{} {:?} {}", failure.code, failure.rule, faults.collect::<Vec<_>>().join("; ")));
    }
    stage.host.set_plan(stage.ada.account_id, "free").await;
    for _ in 0..3 {
        create(&mut wire, stage.host.clock.id(), json!({"local_port": 80})).await.unwrap();
    }
    let refused = create(&mut wire, stage.host.clock.id(), json!({"local_port": 80})).await.unwrap_err();
    said.push(format!("{} {:?} {}", refused.code, refused.rule, refused.detail));
    allow_duplicates! { assert_snapshot!(said.join("\n"), @r#"
    validation_failed None subdomain must have 3 to 63 characters of a-z, 0-9 and single inner hyphens Some("subdomain"); surprise is not a field of this request None
    validation_failed None local_port must be between 1 and 65535 Some("port"); subdomain must have 3 to 63 characters of a-z, 0-9 and single inner hyphens Some("subdomain")
    invalid_json_object None 
    invalid_json_object None 
    plan_limit_reached Some("tunnel-limit") The plan includes 3 tunnels; 3 exist.
    "#); }
}

/// What a device may not do, its owner's key may still do.
#[both_engines]
async fn device_creates_tunnels_only_as_long_as_it_may(engine: Engine) {
    let stage = Stage::set(engine).await;
    let (device, mut wire) = stage.host.wired(&stage.ada, stage.ada.account_id).await;
    let (scope, body) = (stage.ada.account_id, json!({"local_port": 80}));
    let tunnel = create(&mut wire, stage.host.clock.id(), body.clone()).await.unwrap();
    devices::set_may_create(&stage.host.app.store, scope, device.id, false).await.unwrap();
    let refused = create(&mut wire, stage.host.clock.id(), body.clone()).await.unwrap_err();
    assert_eq!(refused.code, "creation_not_allowed");
    assert!(refused.detail.contains(&format!("culvert device allow-create {}", device.id)), "{}", refused.detail);
    // What it has made may still end. A tunnel of somebody else's making is not the command's to delete.
    let other = stage.api.post("/tunnels", body).await.id();
    for (tunnel, gone) in [(other, false), (tunnel, true)] {
        delete(&mut wire, &stage, tunnel).await;
        assert_eq!(!stage.exists(tunnel).await, gone);
    }
}

/// The host deletes a tunnel only where its command is away, not where it cannot start.
#[both_engines]
async fn tunnel_that_cannot_start_is_kept_for_its_command(engine: Engine) {
    let stage = Stage::set(engine).await;
    let (device, mut wire) = stage.host.wired(&stage.ada, stage.ada.account_id).await;
    let tunnel = create(&mut wire, stage.host.clock.id(), stage.wanted().body).await.unwrap();
    for _ in 0..2 {
        wire.hang_up().await;
        stage.host.pass(Duration::from_mins(9)).await;
        let too_old = |hello: &mut Hello| hello.capabilities.retain(|word| word != Capability::DATA_CHANNEL_V2);
        wire = stage.host.connect(&device, too_old).await.unwrap();
        let request_id = stage.host.clock.id();
        wire.send(ToHost::Start { request_id, tunnel: tunnel.to_string() }).await;
        let refused = wire.until(|frame| match frame {
            ToAgent::Answer { request_id: of, outcome } if of == request_id => Some(outcome),
            _ => None,
        });
        assert!(refused.await.is_err());
    }
    assert!(stage.exists(tunnel).await);
    stage.host.pass(Duration::from_mins(10)).await;
    assert!(!stage.exists(tunnel).await);
}

/// A command that ends does not end what another device runs by now.
#[both_engines]
async fn tunnel_that_runs_elsewhere_is_not_deleted(engine: Engine) {
    let stage = Stage::set(engine).await;
    let (_, mut wire) = stage.host.wired(&stage.ada, stage.ada.account_id).await;
    let tunnel = create(&mut wire, stage.host.clock.id(), stage.wanted().body).await.unwrap();
    let other = stage.host.device(&stage.ada, stage.ada.account_id, Remote::Enabled).await;
    let start = format!("/tunnels/{tunnel}/actions/start");
    let operation = stage.api.post(&start, json!({"device_id": other.id})).await.id();
    stage.host.until_operation(&stage.api, operation, "succeeded").await;
    delete(&mut wire, &stage, tunnel).await;
    assert!(stage.exists(tunnel).await);
    assert_eq!(other.tunnels().await, vec![tunnel]);
}

async fn delete(wire: &mut Wire, stage: &Stage, tunnel_id: Uuid) {
    let request_id = stage.host.clock.id();
    wire.send(ToHost::Delete { request_id, tunnel_id }).await;
    wire.until(|frame| matches!(frame, ToAgent::Answer { request_id: of, .. } if of == request_id).then_some(())).await;
}

/// Bounded as local starts are.
#[both_engines]
async fn device_that_creates_too_often_is_told_to_wait(engine: Engine) {
    let stage = Stage::set(engine).await;
    let (_, mut wire) = stage.host.wired(&stage.ada, stage.ada.account_id).await;
    let mut refused = None;
    for _ in 0..61 {
        refused = create(&mut wire, stage.host.clock.id(), json!({"local_port": 0})).await.err();
    }
    assert_eq!(refused.unwrap().code, "rate_limited");
}

/// The programs themselves, on a machine where no agent runs: the command is the agent.
#[both_engines]
async fn command_line_opens_a_page_and_ends_it(engine: Engine) {
    let place = Place::new(engine).await;
    let _host = place.serve().await;
    place.json("culvert account create --email ada@example.com --name Ada").await;
    let key = place.json("culvert key create --account ada@example.com --scopes full_access").await;
    let api = Api::new(&place.url(), key["key"].as_str().unwrap());
    let code = place.json("culvert device code --account ada@example.com --no-create").await;
    let enrol = format!("culvert-agent enroll --server {} --code {}", place.url(), code["code"].as_str().unwrap());
    let device = place.json(&enrol).await["device_id"].as_str().unwrap().to_owned();
    let service = WebService::start().await;
    let line = format!("culvert-agent http {} --subdomain journal --no-https", service.port);
    let refused = place.run(&line).await;
    assert_eq!(refused.status.code(), Some(1));
    assert_eq!(
        String::from_utf8_lossy(&refused.stderr),
        format!(
            "culvert-agent: Commands at this device may not create tunnels; the operator lets them: `culvert device \
             allow-create {device}`. (creation_not_allowed)\n"
        )
    );
    place.json(&format!("culvert device allow-create {device}")).await;
    assert_eq!(place.json("culvert device list").await["data"][0]["may_create_tunnels"], true);

    let mut command = place.start(&line);
    let said = command.until("running").await;
    assert_eq!(said, format!("running: http://journal.tunnel.localhost:8081 → 127.0.0.1:{}", service.port));
    let fetch = format!(
        "curl -sS --resolve journal.tunnel.localhost:8081:{} http://journal.tunnel.localhost:8081/",
        place.address
    );
    assert!(!place.shell(&fetch).await.is_empty());
    let status = place.json("culvert-agent status").await;
    assert_eq!(
        (&status["running"], &status["agent"]["tunnels"][0]["name"]),
        (&json!(true), &json!(format!("http {}", service.port)))
    );
    assert_eq!(command.interrupt().await, Some(0));
    assert_eq!(api.get("/tunnels").await.data(), &json!([]));
    assert_eq!(place.json("culvert-agent status").await["running"], false);

    // A second command uses the agent of the first one, and carries on when that has ended.
    let echo = echo_service().await;
    let mut first = place.start(&format!("culvert-agent tcp {}", echo.port()));
    first.until("running").await;
    let mut second = place.start(&format!("culvert-agent tcp {} --name second --json", echo.port()));
    let address = address(&mut second).await;
    assert_eq!(first.interrupt().await, Some(0));
    second.until("the agent has ended").await;
    assert_eq!(self::address(&mut second).await, address);
    assert_eq!(second.interrupt().await, Some(0));
    assert_eq!(api.get("/tunnels").await.data(), &json!([]));

    // A service of datagrams.
    let service = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let port = service.local_addr().unwrap().port();
    let mut command = place.start(&format!("culvert-agent udp {port} --json"));
    let address = self::address(&mut command).await;
    let visitor = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    visitor.send_to(b"hello", address.as_str().unwrap()).await.unwrap();
    let mut space = [0; 16];
    let (length, from) = within(20, service.recv_from(&mut space)).await.unwrap();
    service.send_to(&space[..length], from).await.unwrap();
    let answered = within(20, visitor.recv(&mut space)).await.unwrap();
    assert_eq!(&space[..answered], b"hello");
    assert_eq!(command.interrupt().await, Some(0));
}

/// The catalogue that commands know is the host's own, and a command by preset makes all of its ports.
#[both_engines]
async fn presets_of_the_command_line_are_those_of_the_host(engine: Engine) {
    let stage = Stage::with(engine, Remote::Enabled).await;
    let of_host: Vec<_> = stage.api.get("/presets").await.data().as_array().unwrap().clone();
    let of_agent = PRESETS.map(|preset| {
        let extra = preset.extra_ports.iter().map(|port| json!(port)).collect::<Vec<_>>();
        json!([preset.slug, preset.id, preset.protocol, preset.local_port, extra])
    });
    let of_host = of_host.iter().map(|preset| {
        let extra = preset["extra_ports"].as_array().unwrap().iter().map(|port| port["local_port"].clone());
        json!([preset["slug"], preset["id"], preset["protocol"], preset["local_port"], extra.collect::<Vec<_>>()])
    });
    assert_eq!(of_agent.to_vec(), of_host.collect::<Vec<_>>());
}

/// Enrols the device of a place for somebody; what their key opens.
async fn enrolled(place: &Place) -> Api {
    place.json("culvert account create --email ada@example.com --name Ada").await;
    let key = place.json("culvert key create --account ada@example.com --scopes full_access").await;
    let api = Api::new(&place.url(), key["key"].as_str().unwrap());
    let code = place.json("culvert device code --account ada@example.com").await;
    let enrol = format!("culvert-agent enroll --server {} --code {}", place.url(), code["code"].as_str().unwrap());
    place.json(&enrol).await;
    api
}

/// The status that curl gets from a tunnel, with these options.
async fn status_of(place: &Place, subdomain: &str, options: &str) -> String {
    let name = format!("{subdomain}.tunnel.localhost:8081");
    let curl = format!("curl -sS -o /dev/null -w %{{http_code}} {options} --resolve {name}:{}", place.address);
    place.shell(&format!("{curl} http://{name}/")).await
}

/// What a preset, `--proxy-protocol` and `--local-scheme` make of a tunnel.
#[both_engines]
async fn command_line_says_how_a_service_is_spoken_to(engine: Engine) {
    let place = Place::new(engine).await;
    let _host = place.serve().await;
    let api = enrolled(&place).await;
    let mut agent = place.start_logged("culvert-agent run");
    agent.until("connected").await;
    let mut seen = Vec::new();
    for line in [
        "culvert-agent udp --preset valheim --proxy-protocol spp",
        "culvert-agent tcp 25570 --preset minecraft-java --proxy-protocol v2",
        "culvert-agent http 8443 --local-scheme h2c --proxy-protocol v1",
    ] {
        let mut command = place.start(&format!("{line} --json"));
        address(&mut command).await;
        let tunnel = api.get("/tunnels").await.data()[0].clone();
        let tunnel = api.get(&format!("/tunnels/{}", tunnel["id"].as_str().unwrap())).await.data().clone();
        let extra = tunnel["extra_ports"].as_array().unwrap().iter().map(|port| format!(" and {}", port["local_port"]));
        seen.push(format!(
            "{}, {} {}{}: {} {}",
            tunnel["name"],
            tunnel["protocol"],
            tunnel["local_port"],
            extra.collect::<String>(),
            tunnel["proxy_protocol"],
            tunnel["local_scheme"],
        ));
        assert_eq!(command.interrupt().await, Some(0));
    }
    allow_duplicates! { assert_snapshot!(seen.join("\n"), @r#"
    "Valheim", "udp" 2456 and 2457: "spp" "auto"
    "Minecraft: Java Edition", "tcp" 25570: "v2" "auto"
    "http 8443", "http" 8443: "v1" "h2c"
    "#); }
    for (line, says) in [
        ("tcp --preset valheim", "valheim"),
        ("udp --preset nothing", "must be one of minecraft-java"),
        ("udp", "PORT|HOST:PORT"),
    ] {
        let refused = place.run(&format!("culvert-agent {line}")).await;
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && said.contains(says), "{line}: {said}");
    }
    let refused = place.run("culvert-agent udp 19132 --proxy-protocol v1").await;
    assert!(String::from_utf8_lossy(&refused.stderr).contains("proxy_protocol must be one of `none`, `v2`, `spp`"));
    let report = place.json("culvert-agent doctor").await;
    assert_eq!((&report["connected"], report["nodes"].as_array().map(Vec::len)), (&json!(true), Some(0)));
}

/// `--basic-auth` with a password, or with one that is typed; `--region`; and `--keep`, which only stops the tunnel at the end.
#[both_engines]
async fn command_line_protects_and_keeps_a_tunnel(engine: Engine) {
    let place = Place::new(engine).await;
    let _host = place.serve().await;
    let api = enrolled(&place).await;
    let port = WebService::start().await.port;
    std::fs::write(place.folder.path().join("typed"), "typed secret\n").unwrap();
    let line = format!("culvert-agent http {port} --no-https --region local --json");
    let mut given = place.start(&format!("{line} --subdomain given --basic-auth ada:s:ecretly --keep"));
    address(&mut given).await;
    let mut typed = place.start_reading(&format!("{line} --subdomain typed --basic-auth ada"), "typed");
    address(&mut typed).await;
    for (name, user, status) in [
        ("given", "ada:s:ecretly", "200"),
        ("given", "ada:s", "401"),
        ("typed", "ada:typed secret", "200"),
        ("typed", "ada:", "401"),
    ] {
        assert_eq!(status_of(&place, name, &format!("-u '{user}'")).await, status, "{name} {user}");
    }
    assert_eq!(typed.interrupt().await, Some(0));
    assert_eq!(given.interrupt().await, Some(0));
    let kept = api.get("/tunnels").await;
    let kept: Vec<_> =
        kept.data().as_array().unwrap().iter().map(|tunnel| json!([tunnel["subdomain"], tunnel["region"]])).collect();
    assert_eq!(kept, [json!(["given", "local"])]);
    // Nothing is typed.
    let refused = place.run(&format!("{line} --basic-auth ada")).await;
    assert_eq!(String::from_utf8_lossy(&refused.stderr), "culvert-agent: --basic-auth: the password is empty\n");
    let refused = place.run(&format!("culvert-agent http {port} --region Anywhere")).await;
    let refused = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.contains("region must have 1 to 32 characters of a-z, 0-9 and -"), "{refused}");
}

/// A service that speaks TLS where HTTP is expected answers with an alert. The log says what to change, once.
#[both_engines]
async fn service_that_speaks_tls_is_named_in_the_log(engine: Engine) {
    let place = Place::new(engine).await;
    let mut host = place.serve().await;
    enrolled(&place).await;
    // The node's own listener for HTTPS is such a service.
    let line =
        format!("culvert-agent http {}:8443 --local-scheme http --no-https --subdomain journal --json", place.address);
    let mut command = place.start(&line);
    address(&mut command).await;
    for _ in 0..2 {
        assert_eq!(status_of(&place, "journal", "").await, "502");
    }
    let hint = host.until("speaks TLS").await;
    assert!(hint.contains(r#"its tunnel needs `local_scheme`: "https""#) && hint.contains(":8443"), "{hint}");
    assert_eq!(command.interrupt().await, Some(0));
    assert_eq!(host.terminate().await, Some(0));
    let log = std::fs::read_to_string(place.log()).unwrap();
    assert_eq!(log.matches("speaks TLS").count(), 1, "{log}");
}

/// The address in the next line that says that the tunnel runs.
async fn address(command: &mut Program) -> Value {
    let line: Value = serde_json::from_str(&command.until("\"running\"").await).unwrap();
    line["tunnel"]["public_address"].clone()
}

/// Another device has taken the tunnel over: the command ends, and the tunnel goes on there.
#[both_engines]
async fn tunnel_that_is_handed_over_outlives_its_command(engine: Engine) {
    let stage = Stage::set(engine).await;
    let (mut command, tunnel) = stage.begin(&stage.wanted()).await;
    let other = stage.host.device(&stage.ada, stage.ada.account_id, Remote::Enabled).await;
    let start = format!("/tunnels/{}/actions/start", tunnel.tunnel_id);
    let operation = stage.api.post(&start, json!({"device_id": other.id, "handoff": true})).await.id();
    assert_eq!(last_word(&mut command).await.unwrap_err().detail, "Another device has taken the tunnel over.");
    stage.host.until_operation(&stage.api, operation, "succeeded").await;
    stage.host.until_tunnel(&stage.api, tunnel.tunnel_id, "running").await;
    assert_eq!((stage.page().await.as_str(), other.tunnels().await), ("200", vec![tunnel.tunnel_id]));
}

/// A handoff that fails does not give the tunnel back to a command that has ended.
#[both_engines]
async fn failed_handoff_leaves_no_tunnel_without_its_command(engine: Engine) {
    let stage = Stage::set(engine).await;
    // Nothing answers there, which only a start by remote control minds.
    let mut wanted = stage.wanted();
    wanted.body["local_port"] = 9.into();
    let (mut command, tunnel) = stage.begin(&wanted).await;
    let other = stage.host.device(&stage.ada, stage.ada.account_id, Remote::Enabled).await;
    let start = format!("/tunnels/{}/actions/start", tunnel.tunnel_id);
    let operation = stage.api.post(&start, json!({"device_id": other.id, "handoff": true})).await.id();
    assert!(last_word(&mut command).await.is_err());
    stage.host.until_operation(&stage.api, operation, "failed").await;
    stage.host.until_tunnel(&stage.api, tunnel.tunnel_id, "error").await;
    assert!(stage.device.tunnels().await.is_empty());
}

/// A command serves what was typed. What its tunnel was led to since needs remote control.
#[both_engines]
async fn changed_target_is_not_served_by_a_command_without_consent(engine: Engine) {
    let stage = Stage::set(engine).await;
    let (mut command, tunnel) = stage.begin(&stage.wanted()).await;
    let path = format!("/tunnels/{}", tunnel.tunnel_id);
    stage.api.patch(&path, json!({"local_port": 22})).await.data();
    let session = stage.host.app.store.lease_of_tunnel(tunnel.tunnel_id).await.unwrap().unwrap().session_id;
    let scope = stage.ada.account_id;
    culvert_service::sessions::end_all(&stage.host.app.store, scope, vec![session], EndReason::Error).await.unwrap();
    let ended = last_word(&mut command).await.unwrap_err();
    assert_snapshot!(format!("{}: {}", ended.code, ended.detail), @"target_not_accepted: The tunnel was led to 127.0.0.1:22, which nobody at this device has agreed to.");
    stage.until_gone(tunnel.tunnel_id).await;
}

/// What was deleted while its command was away for a moment is not made again.
#[both_engines]
async fn deleted_tunnel_is_not_made_again(engine: Engine) {
    let stage = Stage::set(engine).await;
    let now = stage.host.clock.now();
    for (keep, ran_at) in [(false, Some(now)), (false, None), (true, Some(now - chrono::TimeDelta::hours(1)))] {
        let gone = WantedTunnel { tunnel_id: Some(Uuid::from_u128(1)), ran_at, keep, ..stage.wanted() };
        let mut command = Attendance::begin(&stage.device.state, &gone).await.unwrap().unwrap();
        assert_eq!(last_word(&mut command).await.unwrap_err().detail, "The tunnel was deleted.");
    }
    assert_eq!(stage.api.get("/tunnels").await.data(), &json!([]));
}

/// A restart by remote control gives the tunnel another lease, which the command follows.
#[both_engines]
async fn command_follows_a_restart(engine: Engine) {
    let stage = Stage::with(engine, Remote::Enabled).await;
    let (mut command, tunnel) = stage.begin(&stage.wanted()).await;
    let act = async |action: &str| {
        let path = format!("/tunnels/{}/actions/{action}", tunnel.tunnel_id);
        let operation = stage.api.post(&path, json!({})).await.id();
        stage.host.until_operation(&stage.api, operation, "succeeded").await;
    };
    act("restart").await;
    act("stop").await;
    assert_eq!(within(20, last_word(&mut command)).await.unwrap_err().detail, "The tunnel was stopped: stopped_api.");
}

/// Whenever a command with `--keep` is ended, its tunnel does not run on.
#[both_engines]
async fn kept_tunnel_does_not_run_without_its_command(engine: Engine) {
    let stage = Stage::set(engine).await;
    for moments in 0..20 {
        let mut wanted = WantedTunnel { keep: true, ..stage.wanted() };
        wanted.body["subdomain"] = format!("journal-{moments}").into();
        let mut command = Attendance::begin(&stage.device.state, &wanted).await.unwrap().unwrap();
        for _ in 0..moments {
            stage.device.status().await;
        }
        command.end().await;
        assert_eq!(last_word(&mut command).await, Ok(()));
    }
    for tunnel in stage.api.get("/tunnels").await.data().as_array().unwrap() {
        stage.host.until_tunnel(&stage.api, tunnel["id"].as_str().unwrap().parse().unwrap(), "stopped").await;
    }
    assert!(stage.device.tunnels().await.is_empty());
}

/// What a command asks for has a bound, and the device's connection to the host does not suffer from more.
#[both_engines]
async fn tunnel_that_is_too_large_is_refused(engine: Engine) {
    let stage = Stage::set(engine).await;
    let mut wanted = stage.wanted();
    wanted.body["name"] = "\n".repeat(50_000).into();
    let mut command = Attendance::begin(&stage.device.state, &wanted).await.unwrap().unwrap();
    assert_eq!(last_word(&mut command).await.unwrap_err().detail, "A tunnel takes at most 32768 bytes.");
    let (_command, _) = stage.begin(&stage.wanted()).await;
    assert_eq!(stage.page().await, "200");
}
