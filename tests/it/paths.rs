//! Paths between agent and node: where UDP is blocked from the begin or from a moment on, and where the device moves to
//! another network.

use std::net::SocketAddr;
use std::time::Duration;

use culvert_agent::carrier::TransportChoice;
use culvert_test_macros::both_engines;
use culvert_wire::clock::Clock;
use insta::assert_snapshot;
use serde_json::json;
use tokio::net::UdpSocket;
use uuid::Uuid;

use crate::support::api::Api;
use crate::support::device::{Remote, TestDevice};
use crate::support::host::{Engine, TestHost, within};
use crate::support::program::Place;
use crate::support::relay::{Path, Relay};
use crate::support::visitor::{Visitor, echo_service};

/// Where nothing else is said, one of the two is there.
const BOTH: &str = "TLS + QUIC";
const BLOCKED: &str = "TLS only: UDP blocked, next try in 5 min";

/// How long the agent waits for QUIC, and after a loss until it tries again.
const ATTACH_WITHIN: Duration = Duration::from_secs(3);
const RETRY_AFTER: Duration = Duration::from_millis(250);

/// A device that reaches its node by a path, with a tunnel for connections and one for datagrams.
struct Stage {
    host: TestHost,
    api: Api,
    device: TestDevice,
    path: Path,
    tcp: SocketAddr,
    udp: (Uuid, SocketAddr),
}

impl Stage {
    async fn set(engine: Engine, is_blocked: bool) -> Self {
        Self::over(engine, is_blocked, TransportChoice::Auto).await
    }

    async fn over(engine: Engine, is_blocked: bool, choice: TransportChoice) -> Self {
        let relay = Relay::bind().await;
        let host = TestHost::with(engine, |config| relay.stand_before(config)).await;
        let (node, bind) = (host.config().node.listen, host.config().node.bind);
        let path = relay.run(node).await;
        path.swallow(is_blocked);
        let ada = host.person("ada").await;
        let api = host.api(&ada.key);
        let device = host.device_by(&ada, Remote::Disabled, choice).await;
        let echo = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let ports = [("tcp", echo_service().await.port()), ("udp", echo.local_addr().unwrap().port())];
        tokio::spawn(async move {
            let mut space = [0; 2048];
            while let Ok((length, from)) = echo.recv_from(&mut space).await {
                echo.send_to(&space[..length], from).await.unwrap();
            }
        });
        let mut tunnels = Vec::new();
        for (protocol, port) in ports {
            let tunnel = api.post("/tunnels", json!({"protocol": protocol, "local_port": port})).await.id();
            host.run_tunnel(&api, &device, tunnel).await;
            // The node is named by the relay's address, and its public ports are at its own.
            let port = host.public(&api, tunnel).await.port();
            tunnels.push((tunnel, SocketAddr::new(bind, port)));
        }
        let (tcp, udp) = (tunnels[0].1, tunnels[1]);
        Self { host, api, device, path, tcp, udp }
    }

    async fn transport(&self) -> Option<String> {
        self.device.status().await.nodes.first().map(|node| node.transport.clone())
    }

    async fn until_transport(&self, wanted: &str) {
        self.host.until_found(async || self.transport().await.filter(|transport| transport == wanted)).await;
    }

    /// Lets a time pass that somebody waits.
    async fn pass(&self, time: Duration) {
        self.until_awaited(time).await;
        self.host.clock.advance(time);
    }

    /// Waits until somebody waits that long from now on.
    async fn until_awaited(&self, time: Duration) {
        let clock = &self.host.clock;
        within(20, clock.until_awaited(clock.moment().plus(time))).await;
    }

    async fn player(&self) -> Player {
        let socket = UdpSocket::bind("127.0.1.1:0").await.unwrap();
        socket.connect(self.udp.1).await.unwrap();
        Player(socket)
    }
}

/// A visitor who sends datagrams.
struct Player(UdpSocket);

impl Player {
    /// Sends until something comes back: on a path that loses datagrams, nothing else can be asked for.
    async fn is_answered(&self) {
        let answered = async {
            let (clock, mut space) = (Clock::system(), [0; 2048]);
            loop {
                self.0.send(b"hello").await.unwrap();
                let answer = self.0.recv(&mut space);
                if clock.timeout(Duration::from_millis(50), answer).await.is_ok() {
                    return;
                }
            }
        };
        within(20, answered).await;
    }
}

/// Datagrams that nobody answers: no visitor waits for them, and the agent says what it has found.
#[both_engines]
async fn agent_goes_on_with_tls_where_udp_is_blocked(engine: Engine) {
    let stage = Stage::set(engine, true).await;
    assert!(Visitor::from("127.0.1.1", stage.tcp).await.is_some(), "nobody waits for QUIC");
    stage.player().await.is_answered().await;
    stage.pass(ATTACH_WITHIN).await;
    stage.until_transport(BLOCKED).await;
    assert!(Visitor::from("127.0.1.1", stage.tcp).await.is_some());
    // It is tried again when five minutes are over.
    stage.path.swallow(false);
    stage.until_awaited(Duration::from_mins(5)).await;
    stage.device.advance_with_leases(&stage.host, stage.udp.0, 300).await;
    stage.until_transport(BOTH).await;
}

/// Datagrams go over TLS when the connection of QUIC is found dead, and nobody is cut off.
#[both_engines]
async fn datagrams_go_over_tls_where_udp_is_blocked_later(engine: Engine) {
    let stage = Stage::set(engine, false).await;
    stage.until_transport(BOTH).await;
    let player = stage.player().await;
    player.is_answered().await;
    let mut visitor = Visitor::from("127.0.1.1", stage.tcp).await.unwrap();
    stage.path.swallow(true);
    player.is_answered().await;
    assert_eq!(visitor.echo(b"still there").await.unwrap(), b"still there");
    assert!(Visitor::from("127.0.1.2", stage.tcp).await.is_some());
    stage.pass(RETRY_AFTER).await;
    stage.pass(ATTACH_WITHIN).await;
    stage.until_transport(BLOCKED).await;
}

/// A device that moves to another network has another address, and keeps its connection (RFC 9000, section 9): visits and
/// datagrams go on.
#[both_engines]
async fn device_that_moves_keeps_its_visitors(engine: Engine) {
    let stage = Stage::over(engine, false, TransportChoice::Quic).await;
    assert_eq!(stage.transport().await.as_deref(), Some("QUIC"));
    let player = stage.player().await;
    player.is_answered().await;
    let mut visitor = Visitor::from("127.0.1.1", stage.tcp).await.unwrap();
    for _ in 0..3 {
        stage.path.change_address().await;
        assert_eq!(within(20, visitor.echo(b"on the way")).await.unwrap(), b"on the way");
        player.is_answered().await;
    }
    let accepted = stage.host.metric("culvert_node_visits_total{carrier=\"tls\",outcome=\"accepted\"}").await;
    assert_eq!(accepted.unwrap_or_default(), 0.0, "nothing went over TLS");
    drop(visitor);
    assert_eq!(stage.api.get("/").await.status, 200);
}

/// With TLS alone, no connection of QUIC is opened, and datagrams are carried all the same.
#[both_engines]
async fn transport_can_be_chosen(engine: Engine) {
    let stage = Stage::over(engine, false, TransportChoice::Tcp).await;
    assert_eq!(stage.transport().await.as_deref(), Some("TLS"));
    stage.player().await.is_answered().await;
    assert!(Visitor::from("127.0.1.1", stage.tcp).await.is_some());
    assert_eq!(stage.transport().await.as_deref(), Some("TLS"));
}

/// The same with the programs themselves, in a network of their own in which nftables drops UDP. Where the system lets nobody
/// make a network, the tests above are what there is.
#[tokio::test]
async fn visitors_are_served_where_nftables_drops_udp() {
    let place = Place::new(Engine::Sqlite).await;
    if !place.command_of("unshare").args(["-rn", "true"]).status().await.unwrap().success() {
        return;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/paths/udp_dropped");
    let mut command = place.command_of("unshare");
    let output = within(200, command.args(["-rn", script]).arg(Place::programs()).output()).await.unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert_snapshot!(said, @r"
    UDP is dropped before the start
    Hello
    status: TLS only: UDP blocked
    Hello
    UDP is dropped later
    status: TLS + QUIC
    Hello
    status: TLS only: UDP blocked
    Hello
    ");
}
