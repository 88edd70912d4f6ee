//! Visitors' bytes: whole, both ways, counted, and no longer than they may.

use std::time::Duration;

use culvert_test_macros::both_engines;
use insta::{allow_duplicates, assert_snapshot};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use crate::support::api::Api;
use crate::support::database::execute;
use crate::support::device::{Remote, TestDevice};
use crate::support::host::{Engine, Person, TestHost};
use crate::support::visitor::{Visitor, echo_service, exchange, patient_service, service, visit};

/// A tunnel that runs, to a local port.
struct Stage {
    host: TestHost,
    ada: Person,
    api: Api,
    device: TestDevice,
    tunnel: Uuid,
}

impl Stage {
    async fn set(engine: Engine, port: u16) -> Self {
        Self::set_with(engine, port, json!({"name": "tunnel"})).await
    }

    async fn set_with(engine: Engine, port: u16, change: Value) -> Self {
        let host = TestHost::start(engine).await;
        let ada = host.person("ada").await;
        let api = host.api(&ada.key);
        let device = host.device(&ada, ada.account_id, Remote::Disabled).await;
        let tunnel = api.post("/tunnels", json!({"local_port": port})).await.id();
        api.patch(&format!("/tunnels/{tunnel}"), change).await.data();
        host.run_tunnel(&api, &device, tunnel).await;
        Self { host, ada, api, device, tunnel }
    }

    async fn visit(&self, bytes: &[u8]) -> std::io::Result<Vec<u8>> {
        visit(&self.host, &self.api, self.tunnel, bytes).await
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.host.public(&self.api, self.tunnel).await).await.unwrap()
    }

    async fn tunnel(&self) -> Value {
        self.api.get(&format!("/tunnels/{}", self.tunnel)).await.data().clone()
    }
}

/// Bytes that no shifted or repeated copy of themselves equals.
fn bytes(count: usize) -> Vec<u8> {
    (0..count as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

const MIB: usize = 1024 * 1024;

/// What the next connection of a service became.
async fn watched_service() -> (u16, mpsc::UnboundedReceiver<TcpStream>) {
    let (streams, watched) = mpsc::unbounded_channel();
    let address = service(move |stream| {
        let _ = streams.send(stream);
        async {}
    })
    .await;
    (address.port(), watched)
}

/// Both ways at once, and one after the other: the visitor ends its own direction before a byte of
/// the answer comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transferred_bytes_arrive_intact_in_both_directions() {
    for address in [echo_service().await, patient_service().await] {
        let stage = Stage::set(Engine::Sqlite, address.port()).await;
        for size in [0, 1, 64 * 1024, 64 * MIB] {
            let sent = bytes(size);
            assert!(stage.visit(&sent).await.unwrap() == sent, "{size} bytes");
        }
    }
}

/// A service that has said all goes on listening.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_half_close_keeps_other_direction_open() {
    let (port, mut watched) = watched_service().await;
    let stage = Stage::set(Engine::Sqlite, port).await;
    let mut visitor = stage.connect().await;
    let mut served = watched.recv().await.unwrap();
    served.write_all(b"all that I say").await.unwrap();
    served.shutdown().await.unwrap();
    let mut heard = Vec::new();
    visitor.read_to_end(&mut heard).await.unwrap();
    assert_eq!(heard, b"all that I say");
    visitor.write_all(b"and an answer").await.unwrap();
    visitor.shutdown().await.unwrap();
    let mut answer = Vec::new();
    served.read_to_end(&mut answer).await.unwrap();
    assert_eq!(answer, b"and an answer");
}

/// What was cut short does not look complete, on either side.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_reset_is_forwarded_to_other_end() {
    let (port, mut watched) = watched_service().await;
    let stage = Stage::set(Engine::Sqlite, port).await;
    let visitor = Visitor(stage.connect().await);
    let mut served = watched.recv().await.unwrap();
    served.write_all(b"half of it").await.unwrap();
    served.set_zero_linger().unwrap();
    drop(served);
    assert!(visitor.was_reset().await);

    let visitor = stage.connect().await;
    let served = Visitor(watched.recv().await.unwrap());
    visitor.set_zero_linger().unwrap();
    drop(visitor);
    assert!(served.was_reset().await);
}

/// Nobody reads: the writer is held up, after what fits into the buffers of the way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_reader_applies_backpressure_to_writer() {
    let (port, mut watched) = watched_service().await;
    let stage = Stage::set(Engine::Sqlite, port).await;
    let visitor = stage.connect().await;
    let mut served = watched.recv().await.unwrap();
    // Far more than sockets and pipes hold, so that it can only be through when somebody reads.
    let sent = bytes(64 * MIB);
    let (mut reader, mut writer) = visitor.into_split();
    let (through, mut done) = oneshot::channel();
    let copy = sent.clone();
    tokio::spawn(async move {
        writer.write_all(&copy).await.unwrap();
        writer.shutdown().await.unwrap();
        through.send(()).unwrap();
    });
    // The other direction is not held up by it.
    for _ in 0..100 {
        served.write_all(b"ping").await.unwrap();
        let mut ping = [0; 4];
        reader.read_exact(&mut ping).await.unwrap();
    }
    assert!(done.try_recv().is_err(), "64 MiB are nowhere on the way");
    let mut got = Vec::new();
    served.read_to_end(&mut got).await.unwrap();
    assert!(got == sent);
    done.await.unwrap();
}

/// More visitors at once than the agent has dialled ahead for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundred_concurrent_visitors_are_served_and_counted() {
    let stage = Stage::set(Engine::Sqlite, echo_service().await.port()).await;
    let address = stage.host.public(&stage.api, stage.tunnel).await;
    // As many as may come from one address.
    let visits = (0..100_u32).map(|number| async move {
        let said = number.to_string().into_bytes();
        assert_eq!(exchange(address, &said).await.unwrap(), said);
    });
    futures_util::future::join_all(visits).await;
    // And they are counted.
    stage.host.record_traffic().await;
    let usage = stage.api.get(&format!("/tunnels/{}/usage", stage.tunnel)).await;
    let expected: u64 = (0..100_u32).map(|number| number.to_string().len() as u64).sum();
    let month = &usage.data()["bandwidth"]["month"];
    assert_eq!((&month["bytes_in"], &month["bytes_out"]), (&json!(expected), &json!(expected)));
}

/// Silence both ways for as long as the tunnel says ends a connection, and only that one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connection_is_reset_after_timeout() {
    let stage = Stage::set_with(Engine::Sqlite, echo_service().await.port(), json!({"idle_timeout": 60})).await;
    let silent = stage.host.visitor(&stage.api, stage.tunnel).await;
    let mut lively = stage.host.visitor(&stage.api, stage.tunnel).await;
    let silent = tokio::spawn(silent.was_reset());
    let mut seconds = 0;
    while !silent.is_finished() {
        stage.host.clock.advance(Duration::from_secs(10));
        seconds += 10;
        stage.host.until_renewed(stage.tunnel).await;
        // The device must know of it as well, before its own count of the term runs out.
        stage.device.until_told().await;
        assert_eq!(lively.echo(b"still here").await.unwrap(), b"still here");
    }
    assert!(silent.await.unwrap());
    assert!(seconds >= 60, "{seconds}");
    assert_eq!(lively.echo(b"still here").await.unwrap(), b"still here");
}

/// A stopped tunnel's visitors are cut off, and its port is closed when the stop has succeeded.
///
/// covers: POST /tunnels/{tunnel_id}/actions/stop
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_tunnel_closes_port_and_resets_visitors() {
    let host = TestHost::start(Engine::Sqlite).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let device = host.device(&ada, ada.account_id, Remote::Enabled).await;
    let tunnel = api.post("/tunnels", json!({"local_port": echo_service().await.port()})).await.id();
    for _ in 0..3 {
        let start = api.post(&format!("/tunnels/{tunnel}/actions/start"), json!({"device_id": device.id})).await.id();
        host.until_operation(&api, start, "succeeded").await;
        let visitor = host.visitor(&api, tunnel).await;
        let stop = api.post(&format!("/tunnels/{tunnel}/actions/stop"), json!({})).await.id();
        host.until_operation(&api, stop, "succeeded").await;
        let refused = TcpStream::connect(host.public(&api, tunnel).await).await.unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
        assert!(visitor.was_reset().await);
    }
}

/// A target that does not answer is told, and so is its return.
#[both_engines]
async fn tunnel_is_degraded_while_its_target_is_unreachable(engine: Engine) {
    let (port, mut watched) = watched_service().await;
    let stage = Stage::set(engine, port).await;
    // Whoever is there answers; then nobody is.
    let free = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let second = stage.api.post("/tunnels", json!({"local_port": address.port()})).await.id();
    let started = stage.device.start_tunnel(&second.to_string()).await;
    assert!(started.is_ok(), "somebody here may start it before its service");
    assert!(visit(&stage.host, &stage.api, second, b"anybody?").await.is_err());
    stage.host.until_tunnel(&stage.api, second, "degraded").await;
    let listener = tokio::net::TcpListener::bind(address).await.unwrap();
    let came = tokio::spawn(async move { listener.accept().await.unwrap() });
    let _visitor = TcpStream::connect(stage.host.public(&stage.api, second).await).await.unwrap();
    came.await.unwrap();
    stage.host.until_tunnel(&stage.api, second, "running").await;
    assert!(watched.try_recv().is_err(), "nobody visited the first one");
}

/// covers: GET /account/usage
/// covers: GET /tunnels/{tunnel_id}/usage
/// covers: GET /tunnels/{tunnel_id}/sessions
#[both_engines]
async fn visitor_traffic_is_counted_in_usage_and_sessions(engine: Engine) {
    let stage = Stage::set(engine, echo_service().await.port()).await;
    stage.host.clock.advance(Duration::from_secs(9));
    stage.visit(&bytes(1000)).await.unwrap();
    stage.host.record_traffic().await;
    stage.visit(&bytes(234)).await.unwrap();
    stage.device.stop_tunnel(&stage.tunnel.to_string()).await.unwrap();
    stage.host.until_tunnel(&stage.api, stage.tunnel, "stopped").await;
    stage.host.record_traffic().await;
    let usage = stage.api.get(&format!("/tunnels/{}/usage", stage.tunnel)).await;
    allow_duplicates! { assert_snapshot!(usage, @r#"
    200
    {
      "data": {
        "as_of": "[time]",
        "bandwidth": {
          "month": {
            "bytes_in": 1234,
            "bytes_out": 1234,
            "bytes_total": 2468,
            "period_start": "[time]"
          },
          "today": {
            "bytes_in": 1234,
            "bytes_out": 1234,
            "bytes_total": 2468,
            "period_start": "[time]"
          }
        },
        "tunnel_id": "[uuid]"
      },
      "meta": {
        "request_id": "[uuid]"
      }
    }
    "#) }
    let sessions = stage.api.get(&format!("/tunnels/{}/sessions", stage.tunnel)).await;
    allow_duplicates! { assert_snapshot!(sessions, @r#"
    200
    {
      "data": [
        {
          "bytes_in": 1234,
          "bytes_out": 1234,
          "device_id": "[uuid]",
          "duration_seconds": 9,
          "end_reason": "stopped_local",
          "ended_at": "[time]",
          "id": "[uuid]",
          "node_id": "[uuid]",
          "started_at": "[time]",
          "tunnel_id": "[uuid]"
        }
      ],
      "meta": {
        "next_cursor": null,
        "request_id": "[uuid]"
      }
    }
    "#) }
    let account = stage.api.get("/account/usage").await;
    allow_duplicates! { assert_snapshot!(account, @r#"
    200
    {
      "data": {
        "active_tunnels": 0,
        "as_of": "[time]",
        "bandwidth": {
          "month": {
            "bytes_in": 1234,
            "bytes_out": 1234,
            "bytes_total": 2468,
            "period_start": "[time]"
          },
          "today": {
            "bytes_in": 1234,
            "bytes_out": 1234,
            "bytes_total": 2468,
            "period_start": "[time]"
          }
        },
        "total_tunnels": 1
      },
      "meta": {
        "request_id": "[uuid]"
      }
    }
    "#) }
}

/// A month's bandwidth used up suspends what runs until the month turns.
///
/// covers: tunnel_suspended
#[both_engines]
async fn exhausted_monthly_bandwidth_suspends_tunnel_until_next_month(engine: Engine) {
    let stage = Stage::set(engine, echo_service().await.port()).await;
    let (scope, tunnel) = (stage.ada.account_id, stage.tunnel);
    stage.host.use_up_month(scope, tunnel).await;
    stage.host.set_plan(scope, "free").await;
    stage.host.record_traffic().await;
    assert_eq!(stage.tunnel().await["status"], "running");

    // As long as other policies decide than this host has, it suspends nothing by its own.
    execute(&stage.host, "UPDATE cluster SET policy_generation = policy_generation + 98").await;
    drop(stage.host.visitor(&stage.api, stage.tunnel).await);
    stage.host.record_traffic().await;
    assert_eq!(stage.tunnel().await["status"], "running");
    execute(&stage.host, "UPDATE cluster SET policy_generation = policy_generation - 98").await;

    let visitor = stage.host.visitor(&stage.api, stage.tunnel).await;
    stage.host.record_traffic().await;
    assert_eq!(stage.tunnel().await["status"], "suspended");
    assert!(visitor.was_reset().await);
    let sessions = stage.api.get(&format!("/tunnels/{}/sessions", stage.tunnel)).await;
    assert_eq!(sessions.data()[0]["end_reason"], "limit_reached");
    assert_eq!(stage.device.start_tunnel(&stage.tunnel.to_string()).await.unwrap_err().code, "tunnel_suspended");
    stage.device.ask(culvert_agent::ipc::Request::RemoteControl { enabled: true, allow: Vec::new() }).await.unwrap();
    let refused = stage
        .api
        .post(&format!("/tunnels/{}/actions/start", stage.tunnel), json!({"device_id": stage.device.id}))
        .await;
    assert_eq!(refused.outcome(), "409 tunnel_suspended");

    // 16 days and 12 hours later it is February.
    stage.host.pass(Duration::from_hours(396)).await;
    stage.device.until_connected().await;
    stage.host.until_tunnel(&stage.api, stage.tunnel, "running").await;
    assert_eq!(stage.visit(b"a new month").await.unwrap(), b"a new month");
}
