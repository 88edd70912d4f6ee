//! What strangers, tenants and devices can do to each other: nothing that the others would notice.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io::Write;
use std::net::{Ipv6Addr, SocketAddr};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use culvert::config::Config;
use culvert_agent::device::{Device, DeviceKey};
use culvert_domain::caller::Role;
use culvert_domain::key::{ApiKey, EnrolmentCode};
use culvert_domain::port::PortRange;
use culvert_domain::session::{EndReason, SESSION_LEASE};
use culvert_service::jobs::Ticker;
use culvert_service::jobs::ticker;
use culvert_service::sessions;
use culvert_store::Hint;
use culvert_test_macros::both_engines;
use culvert_webhook::sign::signature;
use culvert_wire::control::{CONNECT_PATH, Capability, Done, Failure, Grant, Hello, PROTOCOL, ToAgent, ToHost};
use culvert_wire::enrolment::{ENROL_PATH, Enrol};
use culvert_wire::failure_code::FailureCode;
use culvert_wire::socket;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, SinkExt, StreamExt};
use reqwest::Method;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use sqlx::{Connection, Executor, PgConnection};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_tungstenite::connect_async;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use uuid::Uuid;

use crate::support::api::{Answer, Api};
use crate::support::database::{execute, texts_of};
use crate::support::device::Remote;
use crate::support::host::{Engine, Person, TestHost, start_of_time, within};
use crate::support::own_artefacts;
use crate::support::program::{Place, fails};
use crate::support::receiver::{Authority, Delivered, Receiver, Reply};
use crate::support::visitor::{Visitor, echo_service, exchange, is_closed, named_service, service, visit};
use crate::support::wire::{Wire, hello_of};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_mins(1);
const DAY: Duration = Duration::from_hours(24);

/// Seconds of real time within which whatever is to come has come.
const SOON: u64 = 20;

/// A tunnel, and a device that runs it, of which the test holds the wire.
struct Stage {
    host: TestHost,
    ada: Person,
    api: Api,
    tunnel: Uuid,
    device: Device,
    wire: Wire,
    grant: Grant,
}

impl Stage {
    async fn set(engine: Engine) -> Self {
        Self::of(TestHost::with(engine, unhurried).await).await
    }

    async fn of(host: TestHost) -> Self {
        let ada = host.person("ada").await;
        let Run { api, tunnel, device, wire, grant } = run(&host, &ada, ada.account_id).await;
        Self { host, ada, api, tunnel, device, wire, grant }
    }

    /// Where agents bring their connections.
    fn node(&self) -> SocketAddr {
        format!("{}:{}", self.grant.node.host, self.grant.node.port).parse().unwrap()
    }

    /// An agent attaches and serves a visitor.
    async fn serves(&self) {
        let service = named_service("served").await;
        let visit = visit(&self.host, &self.api, self.tunnel, b"");
        let (said, ()) = within(SOON, async { tokio::join!(visit, self.wire.serve(&self.grant, service)) }).await;
        assert_eq!(said.unwrap(), b"served");
    }

    async fn public(&self) -> SocketAddr {
        self.host.public(&self.api, self.tunnel).await
    }
}

/// A tunnel of a scope that runs on a new device of somebody.
struct Run {
    api: Api,
    tunnel: Uuid,
    device: Device,
    wire: Wire,
    grant: Grant,
}

async fn run(host: &TestHost, owner: &Person, scope_id: Uuid) -> Run {
    let key = host.key(owner.account_id, scope_id, "full_access").await;
    let api = host.api(&key.key);
    let tunnel = tunnel_to(&api, 80).await;
    let (device, mut wire) = host.wired(owner, scope_id).await;
    let grant = start(&api, tunnel, &device, &mut wire).await;
    Run { api, tunnel, device, wire, grant }
}

/// Tests ask more often than clients may.
fn unhurried(config: &mut Config) {
    (config.rate_limit.per_minute, config.rate_limit.per_day) = (100_000, 100_000);
}

async fn tunnel_to(api: &Api, port: u16) -> Uuid {
    api.post("/tunnels", json!({"local_port": port})).await.id()
}

/// Starts a tunnel from afar, and holds the wire while that is done.
async fn start(api: &Api, tunnel: Uuid, device: &Device, wire: &mut Wire) -> Grant {
    let path = format!("/tunnels/{tunnel}/actions/start");
    api.post(&path, json!({"device_id": device.id})).await.id();
    within(SOON, wire.obey(Done::Start)).await.unwrap()
}

async fn connect_from(source: &str, address: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(source.parse().unwrap(), 0)).unwrap();
    socket.connect(address).await.unwrap()
}

/// Waits until the other side has closed a connection, on which it has said nothing.
async fn until_closed(connection: &mut (impl AsyncRead + Unpin)) {
    let ended = within(SOON, connection.read(&mut [0])).await;
    assert!(matches!(ended, Ok(0) | Err(_)), "it was answered");
}

/// Whether nothing has come on a connection so far, not even its end.
fn is_open(connection: &mut (impl AsyncRead + Unpin)) -> bool {
    connection.read(&mut [0]).now_or_never().is_none()
}

/// How often the nodes have refused somebody for one of their bounds.
async fn refused(host: &TestHost, bound: &str) -> f64 {
    host.metric(&format!("culvert_node_refused_total{{bound=\"{bound}\"}}")).await.unwrap_or_default()
}

/// What visitors' buffers hold on the nodes.
async fn buffered(host: &TestHost) -> f64 {
    host.metric("culvert_node_buffer_bytes").await.unwrap()
}

fn unknown(count: u128) -> Vec<Uuid> {
    (1..=count).map(Uuid::from_u128).collect()
}

fn has_control_characters(text: &str) -> bool {
    text.chars().any(char::is_control)
}

/// The lease of a tunnel, while there is one.
async fn session_of(host: &TestHost, tunnel: Uuid) -> Option<Uuid> {
    host.app.store.lease_of_tunnel(tunnel).await.unwrap().map(|lease| lease.session_id)
}

/// A place for the operator's programs beside a host of this process.
async fn operator(host: &TestHost) -> Place {
    let place = Place::new(Engine::Sqlite).await;
    let place = place.set("CULVERT_DATA_DIR", host.config().data_dir.to_str().unwrap());
    place.set("CULVERT_DATABASE_URL", &host.config().database_url())
}

/// Permissions, as `chmod` is told of them.
fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o777
}

// The agents' door.

/// More connections than there are places, all from one address and all silent: the oldest of them
/// gives way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_node_connections_do_not_block_agents() {
    socket::allow_many();
    let stage = Stage::set(Engine::Sqlite).await;
    let mut silent = Vec::new();
    for _ in 0..1_100 {
        silent.push(TcpStream::connect(stage.node()).await.unwrap());
    }
    stage.serves().await;
    for connection in &mut silent[..1_000] {
        until_closed(connection).await;
    }
    assert!(is_open(&mut silent[1_099]));
    assert!(refused(&stage.host, "unproven").await >= 1_000.0);
}

/// The same on the API's listener, where agents connect: silent connections from as many addresses as
/// there are places, and more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_api_connections_do_not_block_agents() {
    socket::allow_many();
    let host = proxied(Engine::Sqlite).await;
    let ada = host.person("ada").await;
    let mut silent = Vec::new();
    for number in 0..1_100 {
        let mut connection = TcpStream::connect(host.address).await.unwrap();
        let upgrade = format!(
            "GET {CONNECT_PATH} HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\
             Sec-WebSocket-Protocol: {PROTOCOL}\r\nX-Forwarded-For: 198.51.{}.{}\r\n\r\n",
            number / 250,
            number % 250
        );
        connection.write_all(upgrade.as_bytes()).await.unwrap();
        assert!(within(SOON, head_of(&mut connection)).await.starts_with("HTTP/1.1 101 "));
        silent.push(connection);
    }
    let (_, mut wire) = within(SOON, host.wired(&ada, ada.account_id)).await;
    assert_eq!(within(SOON, wire.renew(&[])).await, Vec::<Uuid>::new());
    // It was told a challenge, and when to come back.
    let mut told = Vec::new();
    let _ = within(SOON, silent[0].read_to_end(&mut told)).await;
    assert!(String::from_utf8_lossy(&told).contains("many agents connect to the host at once"));
    assert!(host.metric("culvert_api_refused_total{bound=\"unproven\"}").await.unwrap() >= 76.0);
}

/// The oldest of the address where that has its share, and of all where all places are taken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unauthenticated_connection_limit_evicts_oldest() {
    let host = TestHost::with(Engine::Sqlite, |config| {
        unhurried(config);
        (config.node.unproven, config.node.unproven_per_address) = (6, 4);
    });
    let stage = Stage::of(host.await).await;
    let mut first = Vec::new();
    for _ in 0..5 {
        first.push(connect_from("127.1.0.1", stage.node()).await);
    }
    until_closed(&mut first[0]).await;
    let mut second = Vec::new();
    for _ in 0..3 {
        second.push(connect_from("127.2.0.1", stage.node()).await);
    }
    until_closed(&mut first[1]).await;
    stage.serves().await;
    until_closed(&mut first[2]).await;
    assert!(first[3..].iter_mut().all(is_open) && second.iter_mut().all(is_open));
    assert_eq!(refused(&stage.host, "unproven").await, 3.0);
}

/// Three seconds to begin, ten to attach.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unauthenticated_connection_is_closed_after_timeout() {
    let stage = Stage::set(Engine::Sqlite).await;
    let mut silent = TcpStream::connect(stage.node()).await.unwrap();
    let mut polite = stage.wire.shake_hands(&stage.grant).await;
    // Who comes later is served, so both have been taken in.
    stage.serves().await;
    stage.host.clock.advance(Duration::from_millis(2_999));
    stage.serves().await;
    assert!(is_open(&mut silent) && is_open(&mut polite));
    stage.host.clock.advance(Duration::from_millis(1));
    until_closed(&mut silent).await;
    stage.host.clock.advance(Duration::from_millis(6_999));
    stage.serves().await;
    assert!(is_open(&mut polite));
    stage.host.clock.advance(Duration::from_millis(1));
    until_closed(&mut polite).await;
    stage.serves().await;
}

// Visitors.

/// An address has its share of a tunnel, a tunnel of the node, and who is one too many is reset.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn visitor_limits_apply_per_address_tunnel_and_node() {
    let host = TestHost::with(Engine::Sqlite, |config| {
        unhurried(config);
        let node = &mut config.node;
        (node.visitors, node.visitors_per_tunnel, node.visitors_per_address) = (6, 4, 2);
    })
    .await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let device = host.device(&ada, ada.account_id, Remote::Disabled).await;
    let echo = echo_service().await.port();
    let mut places = Vec::new();
    for _ in 0..2 {
        let tunnel = tunnel_to(&api, echo).await;
        device.start_tunnel(&tunnel.to_string()).await.unwrap();
        places.push(host.public(&api, tunnel).await);
    }
    let (one, other) = (places[0], places[1]);
    let come = async |source: &str, place: SocketAddr| within(SOON, Visitor::from(source, place)).await;
    let mut inside = vec![come("127.1.0.1", one).await.unwrap(), come("127.1.0.1", one).await.unwrap()];
    assert!(come("127.1.0.1", one).await.is_none(), "an address has two places in a tunnel");
    inside.push(come("127.2.0.1", one).await.unwrap());
    inside.push(come("127.2.0.1", one).await.unwrap());
    assert!(come("127.3.0.1", one).await.is_none(), "the tunnel has four");
    // Another tunnel is another's, and the same address may be there as well.
    inside.push(come("127.1.0.1", other).await.unwrap());
    inside.push(come("127.1.0.1", other).await.unwrap());
    assert!(come("127.3.0.1", other).await.is_none(), "the node has six");
    for bound in ["address", "tunnel", "node"] {
        assert_eq!(refused(&host, bound).await, 1.0, "{bound}");
    }
    for visitor in &mut inside {
        assert_eq!(within(SOON, visitor.echo(b"still here")).await.unwrap(), b"still here");
    }
    // Who leaves makes room, as soon as the node has seen it.
    drop(inside.remove(0));
    within(SOON, async { while come("127.1.0.1", one).await.is_none() {} }).await;
}

/// What is said little by little takes no buffer. A connection on which nothing is said for a second gives back those that
/// it took, and carries what is said later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quiet_visitor_holds_no_buffers() {
    let host = TestHost::with(Engine::Sqlite, unhurried).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let device = host.device(&ada, ada.account_id, Remote::Disabled).await;
    let tunnel = tunnel_to(&api, echo_service().await.port()).await;
    device.start_tunnel(&tunnel.to_string()).await.unwrap();
    let public = host.public(&api, tunnel).await;
    let mut visitor = Visitor::from("127.1.0.1", public).await.unwrap();
    for said in [&b"a"[..], &[b'b'; 100_000], b"c"] {
        assert!(within(SOON, visitor.echo(said)).await.unwrap() == said);
        assert_eq!(buffered(&host).await > 0.0, said.len() > 1024);
        host.clock.advance(Duration::from_secs(1));
        within(SOON, async { while buffered(&host).await > 0.0 {} }).await;
    }
}

/// Visitors whose service stalls do not hold more than there is for all, and lose nothing by it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn visitor_buffers_stay_within_node_limit() {
    const MIB: usize = 1024 * 1024;
    let host = TestHost::with(Engine::Sqlite, |config| {
        unhurried(config);
        config.node.buffer_mib = 1;
    })
    .await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let device = host.device(&ada, ada.account_id, Remote::Disabled).await;
    let leave = Arc::new(Semaphore::new(0));
    let stalls = leave.clone();
    let address = service(move |mut stream| {
        let stalls = stalls.clone();
        async move {
            stalls.acquire().await.unwrap().forget();
            let mut all = Vec::new();
            let _ = stream.read_to_end(&mut all).await;
            let _ = stream.write_all(&Sha256::digest(&all)).await;
            let _ = stream.shutdown().await;
        }
    })
    .await;
    let tunnel = tunnel_to(&api, address.port()).await;
    api.patch(&format!("/tunnels/{tunnel}"), json!({"buffer_size": MIB})).await.data();
    device.start_tunnel(&tunnel.to_string()).await.unwrap();
    let public = host.public(&api, tunnel).await;

    let bytes: Vec<u8> = (0..16 * MIB).map(|at| (at % 251) as u8).collect();
    let over = AtomicBool::new(false);
    let visits = async {
        let answers = join_all((0..4).map(|_| exchange(public, &bytes))).await;
        over.store(true, Ordering::Release);
        answers
    };
    let watch = async {
        // Until something is held, and for a while then.
        while buffered(&host).await == 0.0 {}
        for _ in 0..50 {
            let held = buffered(&host).await;
            assert!(held > 0.0 && held <= MIB as f64, "{held}");
        }
        leave.add_permits(4);
        while !over.load(Ordering::Acquire) {
            let held = buffered(&host).await;
            assert!(held <= MIB as f64, "{held}");
        }
    };
    let (answers, ()) = within(SOON, async { tokio::join!(visits, watch) }).await;
    for answer in answers {
        assert_eq!(answer.unwrap(), Sha256::digest(&bytes).to_vec());
    }
    within(SOON, async { while buffered(&host).await > 0.0 {} }).await;
}

// Devices.

/// A hello whose lists are longer than a device can have reasons for is no hello.
#[both_engines]
async fn handshake_with_oversized_id_lists_is_refused(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let device = host.enrol(&ada, ada.account_id, &Capability::ALL).await;
    let path = format!("/devices/{}", device.id);
    let before = api.get(&path).await.data().clone();
    let lists: [fn(&mut Hello) -> &mut Vec<Uuid>; 3] =
        [|hello| &mut hello.lease_ids, |hello| &mut hello.stopped, |hello| &mut hello.operation_ids];
    for list in lists {
        let answer = host.hello(&device, |hello| {
            *list(hello) = unknown(257);
            hello.platform = "another".into();
        });
        let answer = within(SOON, answer).await;
        assert!(matches!(answer, Err(Some(ToAgent::Goodbye { .. } | ToAgent::Refused { .. }))));
        assert_eq!(api.get(&path).await.data(), &before, "nothing was written");
        host.clock.advance(SECOND);
    }
    let within_bounds = host.hello(&device, |hello| lists.iter().for_each(|list| *list(hello) = unknown(256)));
    assert!(within(SOON, within_bounds).await.is_ok());
}

/// So with heartbeats; and one that is within its bounds is answered once.
#[both_engines]
async fn heartbeat_with_too_many_leases_closes_connection(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let lease = stage.grant.lease_id;
    let most = [vec![lease], unknown(256)].concat();
    stage.wire.send(ToHost::Renew { sequence: 7, lease_ids: most.clone() }).await;
    let mut revoked = Vec::new();
    let renewed = loop {
        match within(SOON, stage.wire.next()).await.unwrap() {
            ToAgent::Revoke { lease_id, .. } => revoked.push(lease_id),
            ToAgent::Renewed { sequence, lease_ids, .. } => break (sequence, lease_ids),
            _ => {}
        }
    };
    assert_eq!(renewed, (7, vec![lease]));
    let distinct: HashSet<_> = revoked.iter().collect();
    assert!(distinct.len() == revoked.len() && !revoked.contains(&lease), "each at most once");

    let until = async || stage.host.app.store.lease_of_tunnel(stage.tunnel).await.unwrap().unwrap().lease_until;
    stage.host.clock.advance(SECOND);
    let too_many = [most, vec![Uuid::from_u128(1000)]].concat();
    stage.wire.send(ToHost::Renew { sequence: 8, lease_ids: too_many }).await;
    let goodbye = stage.wire.until(|frame| match frame {
        ToAgent::Goodbye { .. } => Some(()),
        ToAgent::Renewed { .. } => panic!("renewed"),
        _ => None,
    });
    within(SOON, goodbye).await;
    assert_eq!(within(SOON, stage.wire.next()).await, None);
    // Nothing was renewed: the end of the connection leaves the time of the first renewal.
    stage.host.until(async || (until().await == start_of_time() + SESSION_LEASE).then_some(())).await;
}

/// Twenty frames a second, a hundred at once; what is more waits, and nothing is lost.
#[both_engines]
async fn agent_frame_flood_is_throttled_without_loss(engine: Engine) {
    let host = TestHost::with(engine, unhurried).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let (device, mut wire) = host.wired(&ada, ada.account_id).await;
    for sequence in 0..150 {
        wire.send(ToHost::Renew { sequence, lease_ids: Vec::new() }).await;
    }
    let renewed = |frame| match frame {
        ToAgent::Renewed { sequence, .. } => Some(sequence),
        _ => None,
    };
    let mut answered: Vec<u64> = Vec::new();
    // Its hello may have counted as one.
    while answered.len() < 99 {
        answered.push(within(SOON, wire.until(renewed)).await);
    }
    // Had more been read, it would have been answered by the time that these are.
    for _ in 0..20 {
        api.get("/account").await.data();
    }
    while let Some(frame) = wire.next().now_or_never() {
        answered.extend(renewed(frame.unwrap()));
    }
    assert!(answered.len() <= 100, "{} were answered at once", answered.len());
    host.clock.advance(3 * SECOND);
    while answered.len() < 150 {
        answered.push(within(SOON, wire.until(renewed)).await);
    }
    assert_eq!(answered, (0..150).collect::<Vec<u64>>());
    assert_eq!(api.get(&format!("/devices/{}", device.id)).await.data()["online"], true);
}

/// A newer connection of the device, while a start waits for its scope.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn start_of_replaced_connection_opens_no_session() {
    let host = TestHost::with(Engine::Postgres, unhurried).await;
    let ada = host.person("ada").await;
    let tunnel = tunnel_to(&host.api(&ada.key), 80).await;
    let (_, mut wire) = host.wired(&ada, ada.account_id).await;
    let url = host.config().database_url();
    let mut sitter = PgConnection::connect(&url).await.unwrap();
    sitter.execute("BEGIN").await.unwrap();
    sitter.execute("SELECT id FROM scopes FOR UPDATE").await.unwrap();
    wire.send(ToHost::Start { request_id: Uuid::from_u128(1), tunnel: tunnel.to_string() }).await;
    let waiting = "SELECT 'one' AS text FROM pg_stat_activity \
                   WHERE datname = current_database() AND wait_event_type = 'Lock'";
    within(SOON, async { while texts_of(&url, waiting).await.is_empty() {} }).await;
    sitter.execute("UPDATE device_presence SET epoch = epoch + 1").await.unwrap();
    sitter.execute("COMMIT").await.unwrap();
    // The connection ends without an answer.
    within(SOON, async {
        while let Some(frame) = wire.next().await {
            assert!(!matches!(frame, ToAgent::Answer { .. }), "{frame:?}");
        }
    })
    .await;
    assert_eq!(session_of(&host, tunnel).await, None);
}

/// Sixty starts at once, over all of its connections.
#[both_engines]
async fn start_rate_limit_persists_across_reconnects(engine: Engine) {
    let host = TestHost::with(engine, unhurried).await;
    let ada = host.person("ada").await;
    let (device, mut wire) = host.wired(&ada, ada.account_id).await;
    let start = async |wire: &mut Wire| {
        wire.send(ToHost::Start { request_id: Uuid::from_u128(1), tunnel: "none".into() }).await;
        within(
            SOON,
            wire.until(|frame| match frame {
                ToAgent::Answer { outcome, .. } => Some(outcome.unwrap_err().code),
                _ => None,
            }),
        )
        .await
    };
    for number in 0..60 {
        assert_eq!(start(&mut wire).await, "not_found", "{number}");
    }
    assert_eq!(start(&mut wire).await, "rate_limited");
    let mut wire = host.connect(&device, |_| {}).await.unwrap();
    assert_eq!(start(&mut wire).await, "rate_limited");
    host.clock.advance(SECOND);
    assert_eq!(start(&mut wire).await, "not_found");
    assert_eq!(host.metric("culvert_api_refused_total{bound=\"starts\"}").await, Some(2.0));
}

/// One device that connects over and over, with all that a hello can hold.
#[both_engines]
async fn handshake_flood_does_not_delay_api_requests(engine: Engine) {
    let stage = Stage::set(engine).await;
    let eve = stage.host.person("eve").await;
    let device = stage.host.enrol(&eve, eve.account_id, &Capability::ALL).await;
    let flood = join_all((0..5).map(|_| async {
        for _ in 0..10_000 {
            let _ = stage.host.hello(&device, |hello| hello.stopped = unknown(256)).await;
        }
    }));
    let path = format!("/tunnels/{}", stage.tunnel);
    let patches = async {
        for number in 0..25 {
            let patched = stage.api.patch(&path, json!({"name": format!("number {number}")})).await;
            assert_eq!(patched.outcome(), "200");
            stage.host.clock.advance(Duration::from_millis(100));
        }
    };
    within(SOON, async {
        tokio::select! {
            _ = flood => panic!("the flood has ended first"),
            () = patches => {}
        }
    })
    .await;
}

/// Ten are let in at once, and then each a second after the one before.
#[both_engines]
async fn handshake_rate_limit_allows_burst_then_one_per_second(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let (device, mut first) = host.wired(&ada, ada.account_id).await;
    let first_epoch = first.welcome.connection_epoch;
    for later in 1..10 {
        first = host.connect(&device, |_| {}).await.unwrap();
        assert_eq!(first.welcome.connection_epoch, first_epoch + later);
    }
    let second = host.connect(&device, |_| {});
    let meanwhile = async {
        for _ in 0..20 {
            // The one that counts is answered; were the newer one in, it would be told goodbye.
            first.renew(&[]).await;
        }
        host.clock.advance(SECOND);
    };
    let (second, ()) = within(SOON, async { tokio::join!(second, meanwhile) }).await;
    assert_eq!(second.unwrap().welcome.connection_epoch, host.clock.now().timestamp_micros());
}

/// An agent that does not read what it is answered is gone in ten seconds.
#[both_engines]
async fn agent_that_stops_reading_is_disconnected(engine: Engine) {
    let host = TestHost::with(engine, unhurried).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let (_, mut wire) = host.wired(&ada, ada.account_id).await;
    assert_eq!(host.app.control.agents.count(), 1);
    let sent = AtomicUsize::new(0);
    // The answer to each repeats the name, so a few of them fill what lies between the two.
    let flood = async {
        for number in 0..100 {
            let request_id = Uuid::from_u128(number);
            if !wire.try_send(ToHost::Start { request_id, tunnel: "x".repeat(200_000) }).await {
                break;
            }
            sent.fetch_add(1, Ordering::Relaxed);
        }
        std::future::pending::<()>().await;
    };
    let watch = async {
        loop {
            let before = sent.load(Ordering::Relaxed);
            for _ in 0..20 {
                api.get("/account").await.data();
            }
            if host.app.control.agents.count() == 0 {
                break;
            }
            // The host may only be slow to read: then it is given the time once more.
            if before > 0 && sent.load(Ordering::Relaxed) == before {
                host.clock.advance(10 * SECOND);
            }
        }
    };
    within(SOON, async {
        tokio::select! {
            () = flood => {}
            () = watch => {}
        }
    })
    .await;
}

// Webhooks.

const COMMANDS: [&str; 4] = ["command.queued", "command.claimed", "command.running", "command.succeeded"];

/// An endpoint; where it is, and what its deliveries are signed with.
async fn register(api: &Api, url: &str, events: &[&str]) -> (String, String) {
    let created = api.post("/webhooks", json!({"url": url, "events": events})).await;
    (format!("/webhooks/{}", created.id()), created.data()["secret"].as_str().unwrap().to_owned())
}

/// Schedules a test event; its id.
async fn send(api: &Api, webhook: &str) -> String {
    let answer = api.post(&format!("{webhook}/test"), json!({})).await;
    answer.data()["event_id"].as_str().unwrap().to_owned()
}

async fn deliveries(api: &Api, webhook: &str) -> Vec<Value> {
    api.get(&format!("{webhook}/deliveries?limit=100")).await.data().as_array().unwrap().clone()
}

/// An event's first attempt, once it has ended.
async fn first_attempt(host: &TestHost, api: &Api, webhook: &str, event: &str) -> Value {
    let ended =
        |attempt: &Value| attempt["event_id"] == event && attempt["attempt"] == 1 && attempt["status"] != "pending";
    within(SOON, host.until(async || deliveries(api, webhook).await.into_iter().find(ended))).await
}

/// Whether a delivery is signed with a secret.
fn is_signed_with(secret: &str, delivered: &Delivered) -> bool {
    let id = Uuid::parse_str(delivered.header("service-webhook-id")).unwrap();
    let timestamp = delivered.header("service-webhook-timestamp").parse().unwrap();
    signature(secret, id, timestamp, &delivered.body) == delivered.header("service-webhook-signature")
}

async fn hung(authority: &Authority, host: &TestHost) -> Receiver {
    let receiver = authority.receiver(&host.clock).await;
    receiver.reply(Reply::hang());
    receiver
}

/// Forty endpoints of two scopes hang, and fifty events wait for each. No time passes meanwhile.
#[both_engines]
async fn hung_endpoints_do_not_delay_other_scopes(engine: Engine) {
    let authority = Authority::new();
    let host = TestHost::with(engine, |config| authority.let_in(config)).await;
    let hung = hung(&authority, &host).await;
    let ada = host.person("ada").await;
    let team = host.team("hung", &ada).await;
    for scope_id in [ada.account_id, team] {
        let Run { api, tunnel, device, wire: _wire, .. } = run(&host, &ada, scope_id).await;
        for _ in 0..20 {
            register(&api, &hung.url(), &COMMANDS).await;
        }
        // It runs already, and every state is told of all the same.
        for _ in 0..13 {
            let path = format!("/tunnels/{tunnel}/actions/start");
            let again = api.post(&path, json!({"device_id": device.id})).await;
            assert_eq!(again.data()["result"]["already_running"], true);
        }
    }
    within(SOON, hung.until_at_work(32)).await;
    let before = host.clock.now();
    let bob = host.person("bob").await;
    let api = host.api(&bob.key);
    let mut receiver = authority.receiver(&host.clock).await;
    let (webhook, _) = register(&api, &receiver.url(), &["device.offline"]).await;
    let event = send(&api, &webhook).await;
    assert_eq!(within(SOON, receiver.next()).await.header("service-webhook-id"), event);
    assert_eq!(first_attempt(&host, &api, &webhook, &event).await["status"], "succeeded");
    assert_eq!((host.clock.now(), hung.at_work(), hung.most_at_work()), (before, 32, 32));
}

/// Sixteen attempts for a scope, sixty-four in all; the others follow.
#[both_engines]
async fn concurrent_deliveries_are_limited_per_scope(engine: Engine) {
    let authority = Authority::new();
    let host = TestHost::with(engine, |config| authority.let_in(config)).await;
    let mut receiver = authority.receiver(&host.clock).await;
    let leave = Arc::new(Semaphore::new(0));
    receiver.reply(Reply::Wait(leave.clone()));
    let ada = host.person("ada").await;
    let mut endpoints = Vec::new();
    for number in 0..5 {
        let team = host.team(&format!("team {number}"), &ada).await;
        let api = host.api(&host.key(ada.account_id, team, "full_access").await.key);
        for _ in 0..10 {
            let url = format!("{}{number}", receiver.url());
            endpoints.push((api.clone(), register(&api, &url, &["device.offline"]).await.0));
        }
    }
    let mut events = HashSet::new();
    for _ in 0..2 {
        events.extend(join_all(endpoints.iter().map(|(api, webhook)| send(api, webhook))).await);
    }
    within(SOON, receiver.until_at_work(64)).await;
    let mut heard = HashSet::new();
    let mut at_work: BTreeMap<String, usize> = BTreeMap::new();
    for _ in 0..64 {
        let delivered = receiver.next().await;
        heard.insert(delivered.header("service-webhook-id").to_owned());
        *at_work.entry(delivered.what).or_default() += 1;
    }
    assert!(at_work.values().all(|count| *count <= 16), "{at_work:?}");
    // All of the others are answered at once.
    leave.add_permits(100);
    for _ in 64..100 {
        heard.insert(within(SOON, receiver.next()).await.header("service-webhook-id").to_owned());
    }
    assert_eq!((heard, receiver.most_at_work()), (events, 64));
}

/// One attempt instead of two, and five seconds to the first byte at every other attempt: who is
/// slow and answers is heard.
#[both_engines]
async fn timed_out_endpoint_gets_less_time_and_concurrency(engine: Engine) {
    let authority = Authority::new();
    let host = TestHost::with(engine, |config| authority.let_in(config)).await;
    let api = host.api(&host.person("ada").await.key);
    let mut receiver = hung(&authority, &host).await;
    let (webhook, _) = register(&api, &receiver.url(), &["device.offline"]).await;
    let outcome = |attempt: &Value| ["status", "error", "duration_ms"].map(|field| attempt[field].clone());
    let first = send(&api, &webhook).await;
    within(SOON, receiver.next()).await;
    host.pass(15 * SECOND).await;
    let attempt = first_attempt(&host, &api, &webhook, &first).await;
    assert_eq!(outcome(&attempt), [json!("failed"), json!("timeout"), json!(15_000)]);
    let events = [send(&api, &webhook).await, send(&api, &webhook).await, send(&api, &webhook).await];
    for (event, seconds) in events.iter().zip([5, 15, 5]) {
        assert_eq!(within(SOON, receiver.next()).await.header("service-webhook-id"), event);
        host.pass((seconds * SECOND).checked_sub(Duration::from_millis(1)).unwrap()).await;
        assert!(
            deliveries(&api, &webhook)
                .await
                .iter()
                .any(|attempt| attempt["event_id"] == *event && attempt["status"] == "pending")
        );
        host.pass(Duration::from_millis(1)).await;
        let attempt = first_attempt(&host, &api, &webhook, event).await;
        assert_eq!(outcome(&attempt), [json!("failed"), json!("timeout"), json!(seconds * 1_000)]);
    }
    assert_eq!(receiver.most_at_work(), 1);
}

/// Beyond ten thousand that wait for an endpoint, new ones are canceled, and say why.
#[both_engines]
async fn full_delivery_queue_cancels_new_delivery(engine: Engine) {
    let authority = Authority::new();
    let host = TestHost::with(engine, |config| authority.let_in(config)).await;
    let api = host.api(&host.person("ada").await.key);
    let mut receiver = authority.receiver(&host.clock).await;
    let leave = Arc::new(Semaphore::new(0));
    receiver.reply(Reply::Wait(leave.clone()));
    let (webhook, _) = register(&api, &receiver.url(), &["device.offline"]).await;
    execute(&host, "UPDATE webhooks SET waiting = 9999").await;
    let last = send(&api, &webhook).await;
    within(SOON, receiver.next()).await;
    let refused = send(&api, &webhook).await;
    let attempt = first_attempt(&host, &api, &webhook, &refused).await;
    assert_eq!(
        ["status", "error", "next_attempt_at"].map(|field| attempt[field].clone()),
        [json!("canceled"), json!("too_many_waiting"), Value::Null]
    );
    // Whatever is settled makes room.
    leave.add_permits(1);
    assert_eq!(first_attempt(&host, &api, &webhook, &last).await["status"], "succeeded");
    let next = send(&api, &webhook).await;
    assert_eq!(
        within(SOON, receiver.next()).await.header("service-webhook-id"),
        next,
        "the one that was canceled never came"
    );
}

// Bodies.

/// Fields that nobody knows, as many as fit beside so many bytes of others; how many.
fn failed_auth(room: usize) -> (String, usize) {
    const EACH: usize = "\"x00000\":0,".len();
    let count = room / EACH;
    ((0..count).map(|number| format!("\"x{number:05}\":0,")).collect(), count)
}

/// Sends a body that must be refused, in few words.
async fn is_refused(api: &Api, method: &Method, path: &str, body: String) -> Answer {
    assert!(body.len() < 256 * 1024, "{}", body.len());
    let key = Uuid::from_bytes(culvert_wire::clock::Clock::system().random());
    let request = api.request(method.clone(), path).header("idempotency-key", key.to_string());
    let answer = api.send(request.header("content-type", "application/json").body(body)).await;
    assert_eq!(answer.outcome(), "422 validation_failed", "{method} {path}");
    assert!(answer.text.len() <= 64 * 1024, "{method} {path} was answered with {} bytes", answer.text.len());
    assert!(faults(&answer).len() <= 1_000);
    answer
}

/// Field and message of what an answer faults.
fn faults(answer: &Answer) -> Vec<(String, String)> {
    let text = |error: &Value, name: &str| error[name].as_str().unwrap().to_owned();
    let errors = answer.body["errors"].as_array().unwrap();
    errors.iter().map(|error| (text(error, "field"), text(error, "message"))).collect()
}

/// Twenty strangers are named, and the others counted.
fn names_few(answer: &Answer, count: usize) {
    let faults = faults(answer);
    let named = faults.iter().filter(|(_, message)| message == "is not a field of this request").count();
    assert_eq!(named, count.min(20));
    let counted: Vec<_> = faults.iter().filter(|(field, _)| field == "body").map(|(_, message)| message).collect();
    if count > 20 {
        assert_eq!(counted.len(), 1, "{counted:?}");
        assert!(counted[0].contains(&format!("and {} more unknown fields", count - 20)), "{}", counted[0]);
    }
}

/// The largest body of nothing but strangers costs neither a policy's time nor a long answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_unknown_fields_get_bounded_error_response() {
    const MOST: usize = 255 * 1024;
    let host = TestHost::with(Engine::Sqlite, unhurried).await;
    let api = host.api(&host.person("ada").await.key);
    let tunnel = format!("/tunnels/{}", tunnel_to(&api, 80).await);
    let before = api.get(&tunnel).await.data().clone();
    let of = |rest: &str| format!("{tunnel}/{rest}");
    let places = [
        (Method::POST, "/tunnels".to_owned(), r#""local_port":80"#),
        (Method::PATCH, tunnel.clone(), r#""name":"another""#),
        (Method::PUT, of("firewall"), r#""rules":[]"#),
        (Method::PUT, of("geoip"), r#""rules":[]"#),
        (Method::PUT, of("devices"), r#""device_ids":[]"#),
        (Method::POST, of("extra-ports"), r#""local_port":81"#),
        (Method::POST, "/webhooks".into(), r#""url":"https://8.8.8.8/","events":["device.online"]"#),
    ];
    let (many, count) = failed_auth(MOST);
    for (method, path, right) in &places {
        let answer = is_refused(&api, method, path, format!("{{{many}{right}}}")).await;
        names_few(&answer, count);
        let (few, count) = failed_auth(20 * 11);
        assert_eq!(count, 20);
        let answer = is_refused(&api, method, path, format!("{{{few}{right}}}")).await;
        names_few(&answer, count);
        assert!(faults(&answer).iter().all(|(field, _)| field != "body"), "{answer}");
        let long: String = ["a", "b"].map(|letter| format!("\"{}\":0,", letter.repeat(100_000))).concat();
        let answer = is_refused(&api, method, path, format!("{{{long}{right}}}")).await;
        names_few(&answer, 2);
        assert!(faults(&answer).iter().all(|(field, _)| field.chars().count() <= 110), "their names are cut");
    }
    let stop =
        is_refused(&api, &Method::POST, &of("actions/stop"), format!("{{{}}}", many.trim_end_matches(','))).await;
    names_few(&stop, count);

    // In 200 objects of a list; and beside 200 rules that say nothing.
    let (each, count) = failed_auth(1_200);
    let rule = |number: usize| format!(r#"{{{each}"rule_type":"blacklist","ip_address":"10.0.0.{number}"}}"#);
    let rules: Vec<_> = (0..200).map(rule).collect();
    let answer = is_refused(&api, &Method::PUT, &of("firewall"), format!(r#"{{"rules":[{}]}}"#, rules.join(","))).await;
    names_few(&answer, 200 * count);
    let ports = vec![format!(r#"{{{each}"local_port":82}}"#); 200];
    let body = format!(r#"{{"local_port":80,"extra_ports":[{}]}}"#, ports.join(","));
    let answer = is_refused(&api, &Method::POST, "/tunnels", body).await;
    names_few(&answer, 200 * count);
    let (many, count) = failed_auth(MOST - 1024);
    let body = format!(r#"{{{many}"rules":[{}]}}"#, vec!["{}"; 200].join(","));
    let answer = is_refused(&api, &Method::PUT, &of("firewall"), body).await;
    names_few(&answer, count);
    assert_eq!(api.get(&tunnel).await.data(), &before);
    assert_eq!(api.get(&of("firewall")).await.data(), &json!({"rules": [], "enforced": true}));
}

// What an agent says of itself.

/// Whatever a hello says, people are shown a few plain words.
#[both_engines]
async fn handshake_text_is_truncated_and_sanitized(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let device = host.enrol(&ada, ada.account_id, &Capability::ALL).await;
    let path = format!("/devices/{}", device.id);
    type Change = fn(&mut Hello);
    let changes: [Change; 4] = [
        |hello| hello.platform = "x".repeat(120_000),
        |hello| hello.version = "x".repeat(120_000),
        |hello| (hello.platform, hello.version) = ("\u{1b}[31mred\u{1b}[0m".into(), "1\0.2\u{7}\n\u{9b}3".into()),
        |hello| {
            let odd = ["\u{1b}[31m", "a\0b", "", "two words", "\u{85}"].map(String::from);
            let many = (0..3_000).map(|number| format!("capability_{number:05}"));
            hello.capabilities.extend(odd.into_iter().chain(["x".repeat(500)]).chain(many));
        },
    ];
    for change in changes {
        let wire = within(SOON, host.hello(&device, change)).await;
        assert!(wire.is_ok(), "it is let in");
        let shown = api.get(&path).await;
        for field in ["platform", "version"] {
            let text = shown.data()[field].as_str().unwrap_or_default();
            assert!(text.chars().count() <= 100 && !has_control_characters(text), "{field}: {text:?}");
        }
        let capabilities: Vec<_> =
            shown.data()["capabilities"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
        assert!(capabilities.len() <= 50, "{}", capabilities.len());
        for word in capabilities {
            assert!(
                (1..=64).contains(&word.chars().count()) && !word.contains(' ') && !has_control_characters(word),
                "{word:?}"
            );
        }
        let place = operator(&host).await;
        for line in ["culvert device list", "culvert device list --json"] {
            let listed = within(SOON, place.run(line)).await;
            assert!(listed.status.success());
            let listed = String::from_utf8(listed.stdout).unwrap();
            assert!(listed.contains(&device.id.to_string()));
            assert!(
                listed.lines().all(|line| line.chars().count() <= 2_000 && !has_control_characters(line)),
                "{listed:?}"
            );
        }
        host.clock.advance(SECOND);
    }
}

/// So with why something failed.
#[both_engines]
async fn agent_failure_text_is_truncated_and_sanitized(engine: Engine) {
    let host = TestHost::with(engine, unhurried).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let tunnel = tunnel_to(&api, 80).await;
    let (device, mut wire) = host.wired(&ada, ada.account_id).await;
    let dirty = |text: &str| format!("\u{1b}[31m\0{}\u{7}", text.repeat(100 * 1024 / text.len()));
    for (code, detail) in [
        (dirty("code_"), "It failed.".to_owned()),
        ("agent_rejected".into(), dirty("It failed. ")),
        (String::new(), String::new()),
    ] {
        let asked = api.post(&format!("/tunnels/{tunnel}/actions/start"), json!({"device_id": device.id})).await.id();
        within(SOON, wire.begin(asked)).await.unwrap();
        within(SOON, wire.finish(asked, Err(Failure::new(code.into(), detail)))).await;
        let failed = api.get(&format!("/operations/{asked}")).await;
        assert_eq!(failed.data()["status"], "failed");
        for (field, most) in [("code", 64), ("detail", 500)] {
            let text = failed.data()["error"][field].as_str().unwrap();
            assert!(text.chars().count() <= most && !has_control_characters(text), "{field}: {text:?}");
        }
        let shown = api.get(&format!("/tunnels/{tunnel}")).await;
        assert!(shown.text.len() < 4_096 && !shown.text.contains("\\u001b"), "{}", shown.text);
    }
}

/// A device that comes and goes is told of ten times a minute at most, and in the end as it is.
#[both_engines]
async fn flapping_device_emits_limited_presence_events(engine: Engine) {
    let authority = Authority::new();
    let host = TestHost::with(engine, |config| authority.let_in(config)).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let receiver = authority.receiver(&host.clock).await;
    let (webhook, _) = register(&api, &receiver.url(), &["device.online", "device.offline"]).await;
    let device = host.enrol(&ada, ada.account_id, &Capability::ALL).await;
    let mut told = Vec::new();
    for _ in 0..100 {
        let mut wire = within(SOON, host.connect(&device, |_| {})).await.unwrap();
        wire.send(ToHost::Goodbye).await;
        within(SOON, async { while wire.next().await.is_some() {} }).await;
        host.pass(SECOND).await;
        told.push(deliveries(&api, &webhook).await.len());
    }
    assert!(told[0] >= 1, "a first change is told of at once");
    assert!(told[58] <= 10 && told[99] <= 20, "{told:?}");
    let settled = async || {
        let attempts = deliveries(&api, &webhook).await;
        attempts.iter().all(|attempt| attempt["status"] == "succeeded").then_some(attempts)
    };
    // An attempt that was under way would run out of time in this minute.
    within(SOON, host.until(async || settled().await)).await;
    host.pass(MINUTE).await;
    let attempts = within(SOON, host.until(async || settled().await)).await;
    assert_eq!((&attempts[0]["event"], attempts.len() <= 30), (&json!("device.offline"), true));
    // Where it ends the other way round, that is what is told of last.
    let _wire = within(SOON, host.connect(&device, |_| {})).await.unwrap();
    for _ in 0..20 {
        host.pass(SECOND).await;
        within(SOON, host.until(async || settled().await)).await;
    }
    assert_eq!(deliveries(&api, &webhook).await[0]["event"], "device.online");
}

// Keys and codes that are none.

/// Enrols with a code, from an address that a trusted proxy names; the status of the answer.
async fn enrol_from(host: &TestHost, address: &str, code: &str) -> u16 {
    let enrol = Enrol {
        code: code.into(),
        name: None,
        platform: "test".into(),
        version: "1".into(),
        capabilities: Vec::new(),
        public_key: DeviceKey::generate(&host.clock).public(),
    };
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let request = client.post(format!("{}{ENROL_PATH}", host.url())).header("x-forwarded-for", address);
    within(SOON, request.json(&enrol).send()).await.unwrap().status().as_u16()
}

/// Asks for the account from an address that a trusted proxy names.
async fn ask_from(api: &Api, address: &str) -> String {
    let request = api.request(Method::GET, "/account").header("x-forwarded-for", address);
    within(SOON, api.send(request)).await.outcome()
}

/// A host behind a proxy.
async fn proxied(engine: Engine) -> TestHost {
    TestHost::with(engine, |config| config.trusted_proxies = vec!["127.0.0.0/8".parse().unwrap()]).await
}

#[both_engines]
async fn wrong_enrolment_codes_block_only_their_address(engine: Engine) {
    let host = proxied(engine).await;
    let ada = host.person("ada").await;
    let wrong = || EnrolmentCode::generate(&host.clock).reveal().to_owned();
    for _ in 0..30 {
        assert_eq!(enrol_from(&host, "192.0.2.1", &wrong()).await, 422);
    }
    let good = host.device_code(ada.account_id, ada.account_id).await;
    assert_eq!(enrol_from(&host, "192.0.2.1", &wrong()).await, 429);
    assert_eq!(enrol_from(&host, "192.0.2.1", &good).await, 429, "whether it is good is not looked at");
    let other = host.device_code(ada.account_id, ada.account_id).await;
    assert_eq!(enrol_from(&host, "192.0.2.2", &other).await, 200, "others are not hurt");
    host.clock.advance(MINUTE);
    assert_eq!(enrol_from(&host, "192.0.2.1", &good).await, 200, "and neither is the code");

    for _ in 0..30 {
        enrol_from(&host, "192.0.2.3", &wrong()).await;
    }
    // Without a store nobody can ask it.
    host.app.store.close().await;
    assert_eq!(enrol_from(&host, "192.0.2.3", &wrong()).await, 429);
    for none in ["", "guess", "AAAA-BBBB", "ÄÄÄÄ-ÄÄÄÄ-ÄÄÄÄ-ÄÄÄÄ-ÄÄÄÄ", &"A".repeat(10_000)] {
        assert_eq!(enrol_from(&host, "192.0.2.4", none).await, 422, "{none}");
    }
    assert_eq!(enrol_from(&host, "192.0.2.4", &wrong()).await, 503, "what could be one is looked up");
}

#[both_engines]
async fn unknown_api_keys_do_not_block_valid_key(engine: Engine) {
    let host = proxied(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    assert_eq!(ask_from(&api, "192.0.2.1").await, "200");
    let clock = host.clock.clone();
    let unknown = |api: &Api| api.with_key(ApiKey::generate(&clock).reveal());
    for _ in 0..30 {
        assert_eq!(ask_from(&unknown(&api), "192.0.2.1").await, "401 invalid_api_key");
    }
    assert_eq!(ask_from(&unknown(&api), "192.0.2.1").await, "429 rate_limited");
    assert_eq!(ask_from(&api, "192.0.2.1").await, "200");
    // Not only while it is remembered from a moment ago.
    host.pass(2 * SECOND).await;
    assert_eq!(ask_from(&api, "192.0.2.1").await, "200");
    assert_eq!(ask_from(&unknown(&api), "192.0.2.2").await, "401 invalid_api_key");
    // Nor only until the host starts again.
    let host = within(SOON, host.restart()).await;
    let api = host.api(&ada.key);
    for _ in 0..31 {
        ask_from(&unknown(&api), "192.0.2.1").await;
    }
    assert_eq!(ask_from(&api, "192.0.2.1").await, "200");
    host.app.store.close().await;
    assert_eq!(ask_from(&unknown(&api), "192.0.2.1").await, "429 rate_limited", "without a question to the store");
    assert_eq!(ask_from(&unknown(&api), "192.0.2.2").await, "503 service_unavailable");
}

/// A key that is revoked while its request waits for its turn changes nothing.
#[both_engines]
async fn request_waiting_when_key_is_revoked_is_rejected(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let other = host.key(ada.account_id, ada.account_id, "full_access").await;
    let path = format!("/tunnels/{}", tunnel_to(&api, 80).await);
    let before = api.get(&path).await.data().clone();
    let (held, is_held) = oneshot::channel();
    let (let_go, go) = oneshot::channel::<()>();
    let key_id = ada.key_id;
    let turn = host.app.store.write(Some(ada.account_id), move |write| {
        Box::pin(async move {
            held.send(()).unwrap();
            go.await.unwrap();
            write.revoke_key(key_id).await
        })
    });
    let request = async {
        is_held.await.unwrap();
        let patch = api.patch(&path, json!({"name": "changed"}));
        // What is read meanwhile is answered, with the key as it was a moment ago.
        let meanwhile = async {
            for _ in 0..5 {
                assert_eq!(api.get(&path).await.outcome(), "200");
            }
            let_go.send(()).unwrap();
        };
        tokio::join!(patch, meanwhile).0
    };
    let (revoked, answer) = within(SOON, async { tokio::join!(turn, request) }).await;
    revoked.unwrap();
    assert_eq!(answer.outcome(), "401 invalid_api_key");
    assert_eq!(host.api(&other.key).get(&path).await.data(), &before);
}

/// Windows that a wrong date has left in the future are over.
#[both_engines]
async fn rate_window_in_the_future_is_discarded(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let ahead = (start_of_time() + DAY).timestamp_micros();
    let insert = format!(
        "INSERT INTO rate_windows (api_key_id, minute_start, minute_count, day_start, day_count) \
                          SELECT id, {ahead}, 120, {ahead}, 10000 FROM api_keys"
    );
    execute(&host, insert.leak()).await;
    let first = host.api(&ada.key).get("/account").await;
    assert_eq!((first.outcome().as_str(), first.header("x-ratelimit-remaining")), ("200", Some("119")));
    // Nor do they come back with what is saved.
    host.pass(SECOND).await;
    assert_eq!(host.api(&ada.key).get("/account").await.header("x-ratelimit-remaining"), Some("118"));
    let host = host.restart().await;
    assert_eq!(host.api(&ada.key).get("/account").await.header("x-ratelimit-remaining"), Some("117"));
}

/// A hundred thousand networks of one provider are remembered as few, and nobody waits for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_auth_tracking_of_many_addresses_is_bounded() {
    let host = TestHost::start(Engine::Sqlite).await;
    let (failed_auth, now) = (&host.app.api.authentication.failed_auth, host.clock.moment());
    let provider = "2001:db8::".parse::<Ipv6Addr>().unwrap().to_bits();
    for number in 0..100_000_u128 {
        failed_auth.count(Some(Ipv6Addr::from_bits(provider | number << 64).into()), now);
        if number.is_multiple_of(1_000) {
            assert!(failed_auth.remembered() < 20_000, "{}", failed_auth.remembered());
        }
    }
    assert!(failed_auth.remembered() < 20_000, "{}", failed_auth.remembered());
    // Who comes last is counted all the same.
    let last = Some("192.0.2.1".parse().unwrap());
    for _ in 0..30 {
        assert_eq!(failed_auth.count(last, now), None);
    }
    assert!(failed_auth.count(last, now).is_some());
    host.clock.advance(MINUTE);
    assert_eq!(failed_auth.count(last, host.clock.moment()), None);
}

// The listener of the API.

/// Asks for something without a key, on a connection that stays; whether it is answered.
async fn is_answered(connection: &mut TcpStream) -> bool {
    if connection.write_all(b"GET /v2/account HTTP/1.1\r\nHost: h\r\n\r\n").await.is_err() {
        return false;
    }
    let mut bytes = Vec::new();
    loop {
        match connection.read_buf(&mut bytes).await {
            Ok(0) | Err(_) => return false,
            Ok(_) => {}
        }
        let text = String::from_utf8_lossy(&bytes).to_ascii_lowercase();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
            if !head.starts_with("http/1.1 401") || body.len() >= length.unwrap_or(0) {
                return head.starts_with("http/1.1 401");
            }
        }
    }
}

/// What comes on a connection until it ends or an answer's head is whole.
async fn head_of(connection: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    while !bytes.windows(4).any(|end| end == b"\r\n\r\n") {
        if !matches!(connection.read_buf(&mut bytes).await, Ok(read) if read > 0) {
            break;
        }
    }
    String::from_utf8_lossy(&bytes).into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn api_connection_limit_applies_per_address() {
    let host = TestHost::with(Engine::Sqlite, |config| {
        config.api.connections_per_address = 3;
        config.rate_limit.failed_auth_per_minute = 100_000;
    })
    .await;
    let come = async |source: &str| {
        let mut connection = connect_from(source, host.address).await;
        within(SOON, is_answered(&mut connection)).await.then_some(connection)
    };
    let mut connections = Vec::new();
    for _ in 0..3 {
        connections.push(come("127.1.0.1").await.unwrap());
    }
    assert!(come("127.1.0.1").await.is_none());
    assert!(come("127.2.0.1").await.is_some(), "another address has its own");
    for connection in &mut connections {
        assert!(within(SOON, is_answered(connection)).await);
    }
    drop(connections.pop());
    within(SOON, async { while come("127.1.0.1").await.is_none() {} }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_beyond_host_limit_is_refused() {
    let host = TestHost::with(Engine::Sqlite, |config| config.api.agents = 2).await;
    let ada = host.person("ada").await;
    let (_, first) = host.wired(&ada, ada.account_id).await;
    let (_, mut second) = host.wired(&ada, ada.account_id).await;
    let device = host.enrol(&ada, ada.account_id, &Capability::ALL).await;
    let refused = within(SOON, host.hello(&device, |_| {})).await;
    assert!(matches!(refused, Err(Some(ToAgent::Goodbye { .. }))));
    assert_eq!(within(SOON, second.renew(&[])).await, Vec::<Uuid>::new());
    within(SOON, first.hang_up()).await;
    // As soon as the host has seen that.
    let come = async {
        while host.hello(&device, |_| {}).await.is_err() {
            host.clock.advance(SECOND);
        }
    };
    within(SOON, come).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_with_oversized_headers_is_rejected() {
    let host = TestHost::start(Engine::Sqlite).await;
    let mut connection = TcpStream::connect(host.address).await.unwrap();
    let long = format!("GET /v2/account HTTP/1.1\r\nHost: h\r\nX-Long: {}\r\n\r\n", "x".repeat(40_000));
    let _ = connection.write_all(long.as_bytes()).await;
    let head = within(SOON, head_of(&mut connection)).await;
    assert!(head.is_empty() || head.starts_with("HTTP/1.1 431 "), "{head}");
    let mut connection = TcpStream::connect(host.address).await.unwrap();
    let fits = format!("GET /v2/account HTTP/1.1\r\nHost: h\r\nX-Long: {}\r\n\r\n", "x".repeat(10_000));
    connection.write_all(fits.as_bytes()).await.unwrap();
    assert!(within(SOON, head_of(&mut connection)).await.starts_with("HTTP/1.1 401 "));
}

/// Ten seconds for the whole of an enrolment, however its bytes drip.
///
/// covers: request_timeout
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_enrolment_request_times_out() {
    let host = TestHost::start(Engine::Sqlite).await;
    let mut connection = TcpStream::connect(host.address).await.unwrap();
    let head = format!(
        "POST {ENROL_PATH} HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n\
         Content-Length: 1000\r\n\r\n"
    );
    connection.write_all(head.as_bytes()).await.unwrap();
    // It is told to go on when somebody reads.
    assert!(within(SOON, head_of(&mut connection)).await.starts_with("HTTP/1.1 100 "));
    for byte in [b"{", b" "] {
        connection.write_all(byte).await.unwrap();
        host.clock.advance(4 * SECOND);
    }
    host.clock.advance(2 * SECOND);
    let head = within(SOON, head_of(&mut connection)).await;
    assert!(head.is_empty() || head.starts_with("HTTP/1.1 408 "), "{head}");
}

// What time brings about.

/// However many wake-ups come, what is due is done.
#[both_engines]
async fn wake_up_flood_does_not_delay_lease_expiry(engine: Engine) {
    let stage = Stage::set(engine).await;
    let (host, tunnel) = (&stage.host, stage.tunnel);
    let node = host.app.service.nodes().ids()[0];
    let (wakes, woken) = mpsc::unbounded_channel();
    for _ in 0..2_000 {
        wakes.send(Hint::Node(node)).unwrap();
    }
    let relay = tokio::spawn(ticker::run(host.app.jobs.clone(), woken, Ticker::Auto));
    let busy = async {
        for _ in 0..u64::MAX {
            wakes.send(Hint::Node(node)).unwrap();
            host.clock.advance(Duration::from_millis(1));
            tokio::task::yield_now().await;
        }
    };
    let expired = host.until(async || session_of(host, tunnel).await.is_none().then_some(()));
    within(SOON, async {
        tokio::select! {
            () = busy => {}
            () = expired => {}
        }
    })
    .await;
    assert_eq!(session_of(host, tunnel).await, None);
    relay.abort();
}

/// A row that nobody can read is its own problem.
#[both_engines]
async fn unreadable_operation_does_not_block_expiry_of_others(engine: Engine) {
    let host = TestHost::with(engine, unhurried).await;
    let mut asked = Vec::new();
    for name in ["ada", "bob", "eve"] {
        let person = host.person(name).await;
        let api = host.api(&person.key);
        let tunnel = tunnel_to(&api, 80).await;
        let (device, wire) = host.wired(&person, person.account_id).await;
        let id = api.post(&format!("/tunnels/{tunnel}/actions/start"), json!({"device_id": device.id})).await.id();
        asked.push((api, id, wire));
        host.clock.advance(SECOND);
    }
    // That of the one in the middle.
    execute(
        &host,
        "UPDATE operations SET error = 'not json' WHERE created_at = \
                    (SELECT created_at FROM operations ORDER BY created_at LIMIT 1 OFFSET 1)",
    )
    .await;
    host.pass(MINUTE).await;
    for (api, id, _) in [&asked[0], &asked[2]] {
        assert_eq!(api.get(&format!("/operations/{id}")).await.data()["status"], "expired");
    }
    let (api, id, _) = &asked[1];
    assert_eq!(api.get(&format!("/operations/{id}")).await.outcome(), "500 internal_error");
}

/// Somebody who sits on one scope's row keeps no other scope's lease alive.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locked_scope_does_not_delay_lease_expiry_of_others() {
    let host = TestHost::with(Engine::Postgres, unhurried).await;
    let mut runs = Vec::new();
    for name in ["ada", "bob", "eve"] {
        let person = host.person(name).await;
        runs.push(run(&host, &person, person.account_id).await);
    }
    let mut sitter = PgConnection::connect(&host.config().database_url()).await.unwrap();
    sitter.execute("BEGIN").await.unwrap();
    sitter.execute("SELECT id FROM scopes WHERE name = 'bob' FOR UPDATE").await.unwrap();
    within(SOON, host.pass(SESSION_LEASE + SECOND)).await;
    for (number, run) in runs.iter().enumerate() {
        assert_eq!(session_of(&host, run.tunnel).await.is_some(), number == 1, "{number}");
    }
    sitter.execute("ROLLBACK").await.unwrap();
    within(SOON, host.pass(SECOND)).await;
    assert_eq!(session_of(&host, runs[1].tunnel).await, None);
}

// Files, and the operator's listener.

/// Whatever the umask: what a host and its operator's commands write is theirs alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_files_are_accessible_to_owner_only() {
    fn check(path: &Path, found: &mut Vec<String>) {
        let wanted = if path.is_dir() { 0o700 } else { 0o600 };
        assert_eq!(mode(path), wanted, "{}", path.display());
        found.push(path.file_name().unwrap().to_str().unwrap().to_owned());
        if path.is_dir() {
            fs::read_dir(path).unwrap().for_each(|entry| check(&entry.unwrap().path(), found));
        }
    }
    let place = Place::new(Engine::Sqlite).await.set("CULVERT_DATA_DIR", "fresh");
    place.json("culvert account create --email ada@example.com --name Ada").await;
    let folder = place.folder.path().join("fresh");
    let mut made = Vec::new();
    check(&folder, &mut made);
    for file in ["culvert.db", "secret.key"] {
        assert!(made.iter().any(|name| name == file), "{file} is not in {made:?}");
    }
    fs::remove_dir_all(&folder).unwrap();
    let _host = within(120, place.serve_under("022")).await;
    let mut made = Vec::new();
    check(&folder, &mut made);
    for file in ["culvert.db", "culvert.db-wal", "culvert.db-shm", "host.lock", "secret.key", "admin.token"] {
        assert!(made.iter().any(|name| name == file), "{file} is not in {made:?}");
    }
}

/// What a full disk has left of the operator's token is none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn empty_admin_token_file_is_refused() {
    let place = Place::new(Engine::Sqlite).await.set("CULVERT_DATA_DIR", "fresh");
    place.json("culvert account create --email ada@example.com --name Ada").await;
    fs::write(place.folder.path().join("fresh/admin.token"), "").unwrap();
    assert_eq!(
        fails(&place, "culvert serve").await,
        "2: culvert: data_dir: admin.token: it holds no token; delete it, and a new one is made"
    );
}

/// What an operator's listener answers, with and without its token.
async fn admin(host: &TestHost, method: Method, path: &str, token: Option<&str>) -> u16 {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let request = client.request(method, format!("http://{}{path}", host.admin_address));
    let request = match token {
        Some(token) => request.bearer_auth(token),
        None => request,
    };
    request.send().await.unwrap().status().as_u16()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn admin_listener_requires_token() {
    let host = TestHost::start(Engine::Sqlite).await;
    let token = host.admin_token();
    let reads = ["/status", "/metrics", "/policies"].map(|path| (Method::GET, path));
    let changes = ["/policies/reload", "/policies/rollback"].map(|path| (Method::POST, path));
    for (method, path) in reads.iter().chain(&changes) {
        for wrong in [None, Some(""), Some("x"), Some(&token[1..]), Some(&*format!("{token}x"))] {
            assert_eq!(admin(&host, method.clone(), path, wrong).await, 401, "{path} {wrong:?}");
        }
    }
    for path in ["/healthz", "/readyz"] {
        assert_eq!(admin(&host, Method::GET, path, None).await, 200, "{path}");
    }
    for (method, path) in reads {
        assert_eq!(admin(&host, method, path, Some(&token)).await, 200, "{path}");
    }
    assert_ne!(admin(&host, Method::POST, "/policies/reload", Some(&token)).await, 401);
    assert_eq!(mode(&host.config().data_dir.join("admin.token")), 0o600);
    let host = host.restart().await;
    assert_eq!(admin(&host, Method::GET, "/status", Some(&host.admin_token())).await, 200);

    let open = TestHost::with(Engine::Sqlite, |config| config.metrics_open = true).await;
    assert_eq!(admin(&open, Method::GET, "/metrics", None).await, 200);
    assert_eq!(admin(&open, Method::GET, "/status", None).await, 401);
    assert_eq!(admin(&open, Method::POST, "/policies/reload", None).await, 401);
}

/// The operator's commands find the token by themselves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operator_commands_read_admin_token_file() {
    let place = Place::new(Engine::Sqlite).await;
    let _host = place.serve().await;
    assert_eq!(mode(&place.folder.path().join("culvert-data/admin.token")), 0o600);
    let status = place.json("culvert policy status").await;
    assert!(status.is_object(), "{status}");
    fs::write(place.folder.path().join("culvert-data/admin.token"), "another\n").unwrap();
    let refused = place.run("culvert policy status").await;
    assert!(!refused.status.success());
    assert_eq!(String::from_utf8(refused.stderr).unwrap().lines().count(), 1);
}

/// Compiled policies that somebody else has written are made again, whatever digest they carry.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_compiled_policy_is_recompiled() {
    const DIGEST: usize = 32;
    let host = within(120, TestHost::with(Engine::Sqlite, own_artefacts)).await;
    let folder = host.config().data_dir.join("policies");
    let ada = host.person("ada").await;
    let files = || -> BTreeMap<_, _> {
        let paths = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
        let read = paths.map(|path| (path.clone(), fs::read(path).unwrap()));
        read.filter(|(_, content)| content.len() > DIGEST).collect()
    };
    let made = files();
    assert!(made.len() >= 2, "{}", made.len());
    // Each gets the code of the next.
    let contents: Vec<_> = made.values().cycle().skip(1).take(made.len()).cloned().collect();
    let forged: Vec<_> =
        contents.iter().map(|next| [&Sha256::digest(&next[DIGEST..])[..], &next[DIGEST..]].concat()).collect();
    for (path, forged) in made.keys().zip(&forged) {
        fs::write(path, forged).unwrap();
    }
    let host = within(120, host.restart()).await;
    assert_eq!(host.api(&ada.key).post("/tunnels", json!({"local_port": 80})).await.status, 201);
    let again = files();
    for path in made.keys() {
        assert!(again.get(path).is_none_or(|content| !forged.contains(content)), "{}", path.display());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn world_writable_policy_folder_is_refused() {
    let place = Place::new(Engine::Sqlite).await;
    let folder = place.folder.path().join("culvert-data/policies");
    fs::remove_file(&folder).unwrap();
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
    let said = fails(&place, "culvert serve").await;
    assert!(said.starts_with("2: culvert: ") && said.contains("culvert-data/policies"), "{said}");
}

// Handoffs.

/// A tunnel of a Team, handed from a device of one member to that of another, which has begun.
struct Handoff {
    host: TestHost,
    team: Uuid,
    api: Api,
    tunnel: Uuid,
    bob: Person,
    /// Whom it goes to.
    latter: Device,
    wire: Wire,
    /// Held, so that the former one is there.
    former: Wire,
    operation: Uuid,
}

impl Handoff {
    async fn begin(engine: Engine) -> Self {
        let host = TestHost::with(engine, unhurried).await;
        let (ada, bob) = (host.person("ada").await, host.person("bob").await);
        let team = host.team("Engines", &ada).await;
        host.join(team, &bob, Role::Admin).await;
        let Run { api, tunnel, wire: former, .. } = run(&host, &bob, team).await;
        let api = api.with_key(&host.key(ada.account_id, team, "full_access").await.key);
        let (latter, mut wire) = host.wired(&ada, team).await;
        let body = json!({"device_id": latter.id, "handoff": true});
        let operation = api.post(&format!("/tunnels/{tunnel}/actions/start"), body).await.id();
        within(SOON, wire.begin(operation)).await.unwrap();
        Self { host, team, api, tunnel, bob, latter, wire, former, operation }
    }

    /// The new device fails; the tunnel is nobody's then.
    async fn fails_for_good(mut self) {
        let failure = Failure::new(FailureCode::LocalTargetUnreachable, "nothing there");
        within(SOON, self.wire.finish(self.operation, Err(failure))).await;
        let failed = self.api.get(&format!("/operations/{}", self.operation)).await;
        assert_eq!(failed.data()["error"]["code"], "local_target_unreachable");
        assert_ne!(failed.data()["result"]["rolled_back"], true, "{failed}");
        assert_eq!(session_of(&self.host, self.tunnel).await, None);
        drop(self.former);
    }
}

#[both_engines]
async fn failed_handoff_does_not_restore_disallowed_device(engine: Engine) {
    let handoff = Handoff::begin(engine).await;
    let path = format!("/tunnels/{}/devices", handoff.tunnel);
    handoff.api.put(&path, json!({"device_ids": [handoff.latter.id]})).await.data();
    handoff.fails_for_good().await;
}

#[both_engines]
async fn failed_handoff_does_not_restore_departed_member(engine: Engine) {
    let handoff = Handoff::begin(engine).await;
    handoff.host.leave(handoff.team, &handoff.bob).await;
    handoff.fails_for_good().await;
}

#[both_engines]
async fn failed_handoff_does_not_restore_suspended_scope(engine: Engine) {
    let handoff = Handoff::begin(engine).await;
    let (team, until) = (handoff.team, handoff.host.clock.now() + DAY);
    let suspended = handoff
        .host
        .app
        .store
        .write(Some(team), move |write| Box::pin(async move { write.suspend_scope(team, until).await }));
    suspended.await.unwrap();
    handoff.fails_for_good().await;
}

// Plans, ports, logs, settings and secrets.

/// A plan that nobody knows includes nothing, at the device as well.
#[both_engines]
async fn unknown_plan_stops_and_refuses_tunnels(engine: Engine) {
    let host = TestHost::with(engine, unhurried).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let device = host.device(&ada, ada.account_id, Remote::Disabled).await;
    let tunnel = tunnel_to(&api, echo_service().await.port()).await;
    let other = tunnel_to(&api, 80).await;
    device.start_tunnel(&tunnel.to_string()).await.unwrap();
    let visitor = host.visitor(&api, tunnel).await;
    host.set_plan(ada.account_id, "nobody-knows-it").await;
    assert_eq!(device.start_tunnel(&other.to_string()).await.unwrap_err().code, "feature_not_available");
    host.pass(SECOND).await;
    assert_eq!(session_of(&host, tunnel).await, None);
    assert!(within(SOON, visitor.was_reset()).await);
    within(SOON, device.until(async || device.tunnels().await.is_empty())).await;
    assert_eq!(device.start_tunnel(&tunnel.to_string()).await.unwrap_err().code, "feature_not_available");
    // Back on one that is known, it runs again.
    host.set_plan(ada.account_id, "self-hosted").await;
    device.start_tunnel(&tunnel.to_string()).await.unwrap();
    assert_eq!(visit(&host, &api, tunnel, b"again").await.unwrap(), b"again");
}

/// Who still dials a port that was freed reaches nobody else for a day, while there are others.
#[both_engines]
async fn freed_port_is_not_reused_while_others_are_free(engine: Engine) {
    let host = TestHost::with(engine, |config| {
        unhurried(config);
        config.node.ports = PortRange { first: 20_000, last: 20_011 };
    })
    .await;
    let (ada, bob) = (host.person("ada").await, host.person("bob").await);
    let (adas, bobs) = (host.api(&ada.key), host.api(&bob.key));
    let create = async |api: &Api| {
        let created = api.post("/tunnels", json!({"local_port": 80})).await;
        (created.id(), created.data()["remote_port"].as_u64().unwrap())
    };
    let mut freed = HashSet::new();
    let mut tunnels = Vec::new();
    for _ in 0..11 {
        let (tunnel, port) = create(&adas).await;
        freed.insert(port);
        tunnels.push(tunnel);
    }
    for tunnel in tunnels {
        adas.delete(&format!("/tunnels/{tunnel}")).await.data();
    }
    let (_, port) = create(&bobs).await;
    assert!(!freed.contains(&port), "{port} of {freed:?}");
    // Where there is none else, one that rests is better than none.
    let mut given = HashSet::from([port]);
    for _ in 1..12 {
        given.insert(create(&bobs).await.1);
    }
    assert_eq!(given, (20_000..=20_011).collect::<HashSet<u64>>());
    assert_eq!(bobs.post("/tunnels", json!({"local_port": 80})).await.outcome(), "409 no_port_available");
}

/// A port that was closed stays closed until the store has heard of it.
#[both_engines]
async fn reconcile_does_not_reopen_port_of_ended_lease(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let public = stage.public().await;
    let (nodes, store) = (&stage.host.app.service.nodes(), &stage.host.app.store);
    assert!(!is_closed(public).await);
    let lease = store.lease_of_tunnel(stage.tunnel).await.unwrap().unwrap();
    let ended = nodes.end(std::slice::from_ref(&lease)).await.unwrap();
    for _ in 0..3 {
        // Something else changes the assignment meanwhile.
        store.resend_assignments(lease.node_id, vec![lease.tunnel_id]).await.unwrap();
        nodes.wait_until_applied([lease.node_id]).await;
        assert!(is_closed(public).await, "its session is still open in the store");
    }
    let ended_sessions = vec![lease.session_id];
    sessions::end_all(store, stage.ada.account_id, ended_sessions, EndReason::StoppedApi).await.unwrap();
    nodes.release(ended).await;
    nodes.wait_until_applied([lease.node_id]).await;
    assert!(is_closed(public).await);
    let grant = start(&stage.api, stage.tunnel, &stage.device, &mut stage.wire).await;
    assert_eq!(grant.epoch, lease.epoch + 1);
    // A new run is a new one.
    stage.grant = grant;
    stage.serves().await;
}

/// A key that has leaked can be replaced: nothing new is vouched for by the old one, and what it
/// had sealed is sealed anew.
#[both_engines]
async fn secret_key_rotation_reseals_stored_secrets(engine: Engine) {
    let authority = Authority::new();
    let host = TestHost::with(engine, |config| authority.let_in(config)).await;
    let ada = host.person("ada").await;
    let mut receiver = authority.receiver(&host.clock).await;
    let url = receiver.url();
    let create = async |host: &TestHost| {
        let api = host.api(&ada.key);
        let body = json!({"url": url, "events": ["device.offline"]});
        api.send(api.request(Method::POST, "/webhooks").header("idempotency-key", "once").json(&body)).await
    };
    let created = create(&host).await;
    let (webhook, secret) =
        (format!("/webhooks/{}", created.id()), created.data()["secret"].as_str().unwrap().to_owned());
    let api = host.api(&ada.key);
    for _ in 0..2 {
        tunnel_to(&api, 80).await;
    }
    let page = api.get("/tunnels?limit=1").await;
    let next = format!("/tunnels?limit=1&cursor={}", page.body["meta"]["next_cursor"].as_str().unwrap());
    assert_eq!(api.get(&next).await.outcome(), "200");

    let certificate = async |host: &TestHost| {
        host.app.store.served_certificates(host.node_id()).await.unwrap().remove(0).issued.unwrap().0
    };
    let issued = certificate(&host).await;

    let file = host.config().data_dir.join("secret.key");
    let new = format!("v2:{}\n", STANDARD.encode([7; 32]));
    fs::OpenOptions::new().append(true).open(&file).unwrap().write_all(new.as_bytes()).unwrap();
    // A host that does not have the new key yet could open nothing any longer.
    let early = within(SOON, operator(&host).await.run("culvert secrets reseal")).await;
    assert_eq!(
        String::from_utf8_lossy(&early.stderr),
        "culvert: no host uses the newest key of secret_key_file; start the host, or where several share the database, run \
         `culvert secrets activate`\n"
    );
    let host = within(SOON, host.restart()).await;
    let api = host.api(&ada.key);
    assert_eq!(api.get(&next).await.fields(), ["cursor"]);
    let replay = create(&host).await;
    assert_eq!((replay.header("idempotent-replayed"), &replay.text), (Some("true"), &created.text));
    send(&api, &webhook).await;
    assert!(is_signed_with(&secret, &within(SOON, receiver.next()).await));

    let replay = create(&host).await;
    assert_eq!((replay.header("idempotent-replayed"), &replay.text), (Some("true"), &created.text));
    let resealed = within(SOON, operator(&host).await.run("culvert secrets reseal")).await;
    assert!(resealed.status.success(), "{}", String::from_utf8_lossy(&resealed.stderr));
    fs::write(&file, &new).unwrap();
    let host = within(SOON, host.restart()).await;
    let api = host.api(&ada.key);
    assert_eq!(certificate(&host).await, issued, "its key can be opened, so it is not issued anew");
    // What a request was is vouched for by the key of its day.
    assert_eq!(create(&host).await.outcome(), "409 idempotency_conflict");
    let event = send(&api, &webhook).await;
    // One that the restart interrupted may come again.
    let delivered = within(SOON, async {
        loop {
            let delivered = receiver.next().await;
            if delivered.header("service-webhook-id") == event {
                return delivered;
            }
        }
    })
    .await;
    assert!(is_signed_with(&secret, &delivered));
}

/// Nobody fills the log with a path.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_request_path_is_truncated_in_log() {
    let place = Place::new(Engine::Sqlite).await;
    let mut host = place.serve().await;
    for length in [10 * 1024, 60 * 1024] {
        let mut connection = TcpStream::connect((place.address, 8080)).await.unwrap();
        let request = format!("GET /v2/{} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", "x".repeat(length));
        let _ = connection.write_all(request.as_bytes()).await;
        within(SOON, head_of(&mut connection)).await;
    }
    // A last one, which says that all before it is in the log.
    let mut connection = TcpStream::connect((place.address, 8080)).await.unwrap();
    connection.write_all(b"GET /v2/the-last HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut line = within(SOON, host.until("answered")).await;
    assert!(line.contains("/v2/xxx"), "{line}");
    while !line.contains("/v2/the-last") {
        assert!(line.len() < 1_000 && !line.contains(&"x".repeat(200)), "{} bytes", line.len());
        line = within(SOON, host.until("answered")).await;
    }
}

/// A tunnel's port that is the host's own would never open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_ports_overlapping_host_listeners_are_refused() {
    for (ports, setting) in [
        ("8000-8100", "listen"),
        ("9000-9200", "admin_listen"),
        ("7835-7835", "node.listen"),
        ("8081-8081", "node.http_listen"),
        ("8443-8443", "node.https_listen"),
    ] {
        let place = Place::new(Engine::Sqlite).await.set("CULVERT_NODE__PORTS", ports);
        let said = fails(&place, "culvert serve").await;
        assert!(said.starts_with("2: culvert: node.ports: ") && said.contains(setting), "{said}");
    }
    // Beside each other is not over each other.
    let place = Place::new(Engine::Sqlite).await.set("CULVERT_NODE__PORTS", "8444-9179");
    assert_eq!(place.serve().await.interrupt().await, Some(0));
}

/// Many agents at once, as after a start of the host: 8 handshakes are worked on, 512 wait, and one more comes back later.
#[tokio::test]
async fn agent_that_is_one_too_many_at_once_is_told_to_come_back() {
    let host = proxied(Engine::Postgres).await;
    let ada = host.person("ada").await;
    let device = host.enrol(&ada, ada.account_id, &Capability::ALL).await;
    let mut locking = PgConnection::connect(&host.config().database_url()).await.unwrap();
    sqlx::raw_sql("BEGIN; LOCK TABLE devices").execute(&mut locking).await.unwrap();
    let greet = async |number: usize| {
        let mut request = format!("ws://{}{CONNECT_PATH}", host.address).into_client_request().unwrap();
        request.headers_mut().insert("sec-websocket-protocol", PROTOCOL.parse().unwrap());
        let from = format!("198.51.{}.{}", number / 200, number % 200);
        request.headers_mut().insert("x-forwarded-for", from.parse().unwrap());
        let (mut socket, _) = connect_async(request).await.unwrap();
        let challenge = socket.next().await.unwrap().unwrap();
        let ToAgent::Challenge { nonce } = serde_json::from_str(challenge.to_text().unwrap()).unwrap() else {
            panic!()
        };
        let hello = ToHost::Hello(Box::new(hello_of(&device, &nonce.0)));
        socket.send(Message::text(serde_json::to_string(&hello).unwrap())).await.unwrap();
        socket
    };
    let mut sockets = Vec::new();
    for number in 0..530 {
        sockets.push(greet(number).await);
    }
    // Whoever is answered while nothing is read from the table is told to come back.
    let mut answers = sockets.iter_mut().map(StreamExt::next).collect::<FuturesUnordered<_>>();
    let sent_away = within(SOON, async {
        loop {
            let answer = answers.next().await.unwrap().unwrap().unwrap();
            if answer.to_text().unwrap().contains("many agents") {
                break answer;
            }
        }
    });
    let ToAgent::Goodbye { reason, reconnect_after_ms } =
        serde_json::from_str(sent_away.await.to_text().unwrap()).unwrap()
    else {
        panic!("no goodbye")
    };
    assert_eq!((reason.as_str(), reconnect_after_ms), ("many agents connect to the host at once", 1000));
    sqlx::raw_sql("ROLLBACK").execute(&mut locking).await.unwrap();
}
