//! UDP ports: datagrams of visitors, by QUIC and by TLS.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use culvert_test_macros::both_engines;
use insta::{allow_duplicates, assert_snapshot};
use serde_json::{Value, json};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use uuid::Uuid;

use crate::support::api::Api;
use crate::support::device::{Remote, TestDevice};
use crate::support::host::{Engine, Person, TestHost, own_address, within};
use crate::support::visitor::{Visitor, echo_service, reached_at};
use crate::support::web::Browser;
use culvert::config::Listen;

/// What carries datagrams between node and agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Quic,
    Tls,
}

const WAYS: [Way; 2] = [Way::Quic, Way::Tls];

struct Stage {
    host: TestHost,
    ada: Person,
    api: Api,
    device: TestDevice,
}

impl Stage {
    async fn set(engine: Engine, way: Way) -> Self {
        let host = TestHost::with(engine, |config| {
            if way == Way::Tls {
                config.node.udp_listen = Some(Listen::Off);
            }
        });
        Self::on(host.await).await
    }

    async fn on(host: TestHost) -> Self {
        let ada = host.person("ada").await;
        let api = host.api(&ada.key);
        let device = host.device(&ada, ada.account_id, Remote::Enabled).await;
        Self { host, ada, api, device }
    }

    /// A tunnel that runs, and where it is reached.
    async fn running(&self, tunnel: Value) -> (Uuid, SocketAddr) {
        let tunnel = self.started(tunnel).await;
        (tunnel, self.host.public(&self.api, tunnel).await)
    }

    async fn started(&self, tunnel: Value) -> Uuid {
        let tunnel = self.api.post("/tunnels", tunnel).await.id();
        self.device.start_tunnel(&tunnel.to_string()).await.unwrap();
        self.host.until_found(async || self.device.tunnels().await.contains(&tunnel).then_some(())).await;
        tunnel
    }

    /// A udp tunnel to an echo service.
    async fn echo(engine: Engine, way: Way) -> (Self, Uuid, SocketAddr) {
        let stage = Self::set(engine, way).await;
        let service = Service::echo().await;
        let (tunnel, address) = stage.running(json!({"protocol": "udp", "local_port": service.port})).await;
        (stage, tunnel, address)
    }

    async fn drops(&self, cause: &str) -> f64 {
        self.host.metric(&format!("culvert_udp_drops_total{{cause=\"{cause}\"}}")).await.unwrap_or_default()
    }
}

/// A service on the device that takes datagrams.
struct Service {
    port: u16,
    /// What it has heard so far.
    heard: Arc<Mutex<Vec<Heard>>>,
}

/// From where, and what.
type Heard = (SocketAddr, Vec<u8>);

impl Service {
    async fn echo() -> Self {
        Self::answering(|payload| vec![payload.to_vec()]).await
    }

    async fn answering(answer: impl Fn(&[u8]) -> Vec<Vec<u8>> + Send + 'static) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let (port, heard) = (socket.local_addr().unwrap().port(), Arc::<Mutex<Vec<_>>>::default());
        let known = heard.clone();
        tokio::spawn(async move {
            let mut space = vec![0; 65_536];
            loop {
                let (length, from) = socket.recv_from(&mut space).await.unwrap();
                known.lock().unwrap().push((from, space[..length].to_vec()));
                for payload in answer(&space[..length]) {
                    socket.send_to(&payload, from).await.unwrap();
                }
            }
        });
        Self { port, heard }
    }

    /// The addresses from which it has heard such datagrams. The system may give the port of a closed socket to another
    /// one, so that sockets which are not open at the same time can have the same address.
    fn peers(&self, such: impl Fn(&[u8]) -> bool) -> HashSet<SocketAddr> {
        let heard = self.heard.lock().unwrap();
        heard.iter().filter(|(_, payload)| such(payload)).map(|(from, _)| *from).collect()
    }

    /// Waits until the first socket that it has heard of is closed, and holds its port, so that no other gets it.
    async fn hold_first_port(&self, host: &TestHost) -> UdpSocket {
        let first = self.heard.lock().unwrap()[0].0;
        host.until_found(async || UdpSocket::bind(first).await.ok()).await
    }
}

/// A visitor with a socket of their own.
struct DatagramVisitor(UdpSocket);

impl DatagramVisitor {
    async fn to(address: SocketAddr) -> Self {
        let socket = UdpSocket::bind(SocketAddr::new(address.ip(), 0)).await.unwrap();
        socket.connect(address).await.unwrap();
        Self(socket)
    }

    async fn send(&self, payload: &[u8]) {
        self.0.send(payload).await.unwrap();
    }

    async fn receive(&self) -> Vec<u8> {
        let mut space = vec![0; 65_536];
        let length = within(10, self.0.recv(&mut space)).await.unwrap();
        space.truncate(length);
        space
    }

    async fn echo(&self, payload: &[u8]) -> Vec<u8> {
        self.send(payload).await;
        self.receive().await
    }
}

fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at.wrapping_mul(31) >> 3) as u8).collect()
}

/// A datagram of any length arrives whole, by itself, in two parts or on a stream.
#[both_engines]
async fn datagrams_of_any_length_arrive_whole(engine: Engine) {
    for way in WAYS {
        let (stage, tunnel, address) = Stage::echo(engine, way).await;
        let visitor = DatagramVisitor::to(address).await;
        // From here on, the visitor is proven.
        visitor.echo(&bytes(64)).await;
        stage.device.advance_with_leases(&stage.host, tunnel, 10).await;
        for length in [0, 1, 64, 1100, 1200, 1472, 2000, 4000, 9000, 65_507] {
            let payload = bytes(length);
            assert!(visitor.echo(&payload).await == payload, "{length} bytes by {way:?}");
        }
    }
}

/// The service sees each visitor at a port of its own, and none gets another's answers.
#[both_engines]
async fn each_visitor_has_a_socket_of_their_own(engine: Engine) {
    for way in WAYS {
        let stage = Stage::set(engine, way).await;
        let service = Service::echo().await;
        let (_, address) = stage.running(json!({"protocol": "udp", "local_port": service.port})).await;
        let mut visitors = Vec::new();
        for _ in 0..20 {
            visitors.push(DatagramVisitor::to(address).await);
        }
        for (number, visitor) in visitors.iter().enumerate() {
            visitor.send(format!("visitor {number}").as_bytes()).await;
        }
        for (number, visitor) in visitors.iter().enumerate() {
            assert_eq!(visitor.receive().await, format!("visitor {number}").as_bytes());
        }
        for (number, visitor) in visitors.iter().enumerate() {
            let again = format!("again {number}");
            assert_eq!(visitor.echo(again.as_bytes()).await, again.as_bytes());
        }
        assert_eq!(service.peers(|_| true).len(), 20, "{way:?}");
    }
}

/// `both` has one number for both transports, and extra ports have protocols of their own.
#[both_engines]
async fn both_and_extra_ports_carry_connections_and_datagrams(engine: Engine) {
    let stage = Stage::set(engine, Way::Quic).await;
    let (connections, datagrams) = (echo_service().await.port(), Service::echo().await);
    // Two services on one port number, as a game server has them.
    let both = loop {
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = tcp.local_addr().unwrap().port();
        if let Ok(udp) = UdpSocket::bind(("127.0.0.1", port)).await {
            break (tcp, udp);
        }
    };
    let port = both.0.local_addr().unwrap().port();
    let (tunnel, address) = stage.running(json!({"protocol": "both", "local_port": port})).await;
    let path = format!("/tunnels/{tunnel}/extra-ports");
    let tcp = stage.api.post(&path, json!({"protocol": "tcp", "local_port": connections})).await;
    let udp = stage.api.post(&path, json!({"protocol": "udp", "local_port": datagrams.port})).await;
    let ids = [tcp.id(), udp.id()];
    let (tcp, udp) = (reached_at(tcp.data()), reached_at(udp.data()));

    let visitor = DatagramVisitor::to(address).await;
    visitor.send(b"over udp").await;
    let mut space = [0; 64];
    let (length, from) = within(10, both.1.recv_from(&mut space)).await.unwrap();
    assert_eq!(&space[..length], b"over udp");
    both.1.send_to(b"from udp", from).await.unwrap();
    assert_eq!(visitor.receive().await, b"from udp");

    let mut stream = TcpStream::connect(address).await.unwrap();
    let (mut accepted, _) = within(10, both.0.accept()).await.unwrap();
    stream.write_all(b"over tcp").await.unwrap();
    let mut read = [0; 8];
    within(10, accepted.read_exact(&mut read)).await.unwrap();
    assert_eq!(&read, b"over tcp");

    stage
        .device
        .until(async || {
            let leads = ids.iter().all(|id| stage.device.leads(tunnel, *id));
            // What it has noted, it has done when it answers.
            stage.device.status().await;
            leads
        })
        .await;
    stage.host.until_found(async || TcpStream::connect(tcp).await.ok()).await;
    assert_eq!(Visitor(TcpStream::connect(tcp).await.unwrap()).echo(b"extra").await.unwrap(), b"extra");
    assert_eq!(DatagramVisitor::to(udp).await.echo(b"extra").await, b"extra");
}

/// Usage is to the byte, for each direction.
#[both_engines]
async fn usage_of_datagrams_is_exact(engine: Engine) {
    let stage = Stage::set(engine, Way::Quic).await;
    let service = Service::answering(|payload| vec![payload.to_vec(), payload[..1].to_vec()]).await;
    let (tunnel, address) = stage.running(json!({"protocol": "udp", "local_port": service.port})).await;
    let visitor = DatagramVisitor::to(address).await;
    for length in [1, 10, 1000, 3000, 20_000] {
        visitor.send(&bytes(length)).await;
        // The short one may overtake the long one.
        let mut came = [visitor.receive().await.len(), visitor.receive().await.len()];
        came.sort_unstable();
        assert_eq!(came, [1, length]);
    }
    // A datagram is counted when it is sent, and the visitor may have it a moment earlier.
    let counted = async || {
        stage.host.record_traffic().await;
        let sessions = stage.api.get(&format!("/tunnels/{tunnel}/sessions")).await;
        let session = &sessions.data()[0];
        let seen = (session["bytes_in"].as_u64().unwrap(), session["bytes_out"].as_u64().unwrap());
        if seen == (24_011, 24_016) { Ok(()) } else { Err(seen) }
    };
    stage.host.until_seen(counted).await;
    assert_eq!(stage.host.metric("culvert_udp_datagrams_total{direction=\"in\"}").await, Some(5.0));
    assert_eq!(stage.host.metric("culvert_udp_datagrams_total{direction=\"out\"}").await, Some(10.0));
}

/// A silent visitor's flow ends at both sides after the idle timeout. Their next datagram begins another one.
#[both_engines]
async fn silent_flow_ends_after_idle_timeout(engine: Engine) {
    let stage = Stage::set(engine, Way::Quic).await;
    let service = Service::echo().await;
    let tunnel = json!({"protocol": "udp", "local_port": service.port, "idle_timeout": 60});
    let (tunnel, address) = stage.running(tunnel).await;
    let visitor = DatagramVisitor::to(address).await;
    visitor.echo(b"one").await;
    let flows = async || stage.host.metric("culvert_node_visitors{kind=\"udp\"}").await;
    stage.device.advance_with_leases(&stage.host, tunnel, 50).await;
    visitor.echo(b"two").await;
    stage.device.advance_with_leases(&stage.host, tunnel, 50).await;
    assert_eq!(flows().await, Some(1.0), "it was not silent for 60 seconds");
    stage.device.advance_with_leases(&stage.host, tunnel, 10).await;
    stage.host.until_found(async || flows().await.filter(|flows| *flows == 0.0)).await;
    let _held = service.hold_first_port(&stage.host).await;
    visitor.echo(b"three").await;
    assert_eq!(service.peers(|_| true).len(), 2, "the agent has opened another socket");
}

/// Datagrams that agents do not take cut off nobody. Only CAP_NET_RAW, which root has, lets the test send from port 0.
#[both_engines]
async fn datagrams_that_nobody_can_answer_are_dropped_at_the_node(engine: Engine) {
    for way in WAYS {
        let (stage, _, address) = Stage::echo(engine, way).await;
        let visitor = DatagramVisitor::to(address).await;
        visitor.echo(b"before").await;
        let before = stage.drops("unknown_flow").await;
        let raw = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::UDP)).expect("this needs CAP_NET_RAW");
        for _ in 0..200 {
            // Source port 0, the port, a length of 8 and no checksum.
            let [high, low] = address.port().to_be_bytes();
            raw.send_to(&[0, 0, high, low, 0, 8, 0, 0], &SocketAddr::new(address.ip(), 0).into()).unwrap();
        }
        stage.host.until_found(async || (stage.drops("malformed").await == 200.0).then_some(())).await;
        assert_eq!(visitor.echo(b"after").await, b"after");
        assert_eq!(stage.drops("unknown_flow").await, before, "{way:?}: the agent knows the visitor's flow still");
    }
}

/// The rules are for datagrams, too, and a change of them ends flows.
#[both_engines]
async fn rules_apply_to_datagrams(engine: Engine) {
    let (stage, tunnel, address) = Stage::echo(engine, Way::Quic).await;
    let visitor = DatagramVisitor::to(address).await;
    visitor.echo(b"let in").await;
    let rules = async |rules: Value| {
        let set = stage.api.put(&format!("/tunnels/{tunnel}/firewall"), json!({"rules": rules})).await;
        assert_eq!(set.status, 200, "{}", set.outcome());
        stage.host.app.service.nodes().wait_until_applied(stage.host.app.service.nodes().ids()).await;
    };
    rules(json!([{"rule_type": "blacklist", "ip_address": address.ip().to_string()}])).await;
    let before = stage.drops("rules").await;
    visitor.send(b"turned away").await;
    stage.host.until_found(async || (stage.drops("rules").await > before).then_some(())).await;
    assert_eq!(stage.host.metric("culvert_node_visitors{kind=\"udp\"}").await, Some(0.0));
    rules(json!([])).await;
    // Nobody answered what was turned away.
    assert_eq!(visitor.echo(b"let in again").await, b"let in again");
}

/// An address that nobody has proved is answered with eight times what it has sent, at most.
#[both_engines]
async fn unproven_visitor_is_not_answered_with_much(engine: Engine) {
    let stage = Stage::set(engine, Way::Quic).await;
    let service = Service::answering(|_| vec![bytes(100); 10]).await;
    let (tunnel, address) = stage.running(json!({"protocol": "udp", "local_port": service.port})).await;
    let visitor = DatagramVisitor::to(address).await;
    visitor.send(&bytes(50)).await;
    for _ in 0..4 {
        assert_eq!(visitor.receive().await.len(), 100);
    }
    stage.host.until_found(async || (stage.drops("unproven").await == 6.0).then_some(())).await;
    // Three datagrams over a second: somebody is there.
    visitor.send(b"again").await;
    stage.host.until_found(async || (stage.drops("unproven").await >= 15.0).then_some(())).await;
    stage.device.advance_with_leases(&stage.host, tunnel, 10).await;
    visitor.send(b"again").await;
    for _ in 0..10 {
        assert_eq!(visitor.receive().await.len(), 100);
    }
}

/// Another device takes the tunnel over: its datagrams go there, and what the former one still says reaches nobody.
#[both_engines]
async fn handoff_moves_flows_to_the_other_device(engine: Engine) {
    for way in WAYS {
        let stage = Stage::set(engine, way).await;
        let service = Service::echo().await;
        let (tunnel, address) = stage.running(json!({"protocol": "udp", "local_port": service.port})).await;
        let visitor = DatagramVisitor::to(address).await;
        visitor.echo(b"first").await;
        let second = stage.host.device(&stage.ada, stage.ada.account_id, Remote::Enabled).await;
        let start = json!({"device_id": second.id, "handoff": true});
        let asked = stage.api.post(&format!("/tunnels/{tunnel}/actions/start"), start).await;
        let ended = stage.host.until_ended(&stage.api, asked.id()).await;
        assert_eq!(ended["status"], "succeeded", "{ended}");
        assert!(stage.device.tunnels().await.is_empty());
        let _held = service.hold_first_port(&stage.host).await;
        assert_eq!(visitor.echo(b"second").await, b"second");
        assert_eq!(service.peers(|_| true).len(), 2, "each device has opened a socket");
    }
}

/// A service that does not listen is reported, and found when it is back.
#[both_engines]
async fn service_that_is_away_is_reported_and_found_again(engine: Engine) {
    let stage = Stage::set(engine, Way::Quic).await;
    let place = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let port = place.local_addr().unwrap().port();
    drop(place);
    let (tunnel, address) = stage.running(json!({"protocol": "udp", "local_port": port})).await;
    let visitor = DatagramVisitor::to(address).await;
    visitor.send(b"is anybody there?").await;
    stage.host.until_tunnel(&stage.api, tunnel, "degraded").await;
    let service = UdpSocket::bind(("127.0.0.1", port)).await.unwrap();
    visitor.send(b"now?").await;
    let mut space = [0; 64];
    let (length, from) = within(10, service.recv_from(&mut space)).await.unwrap();
    service.send_to(&space[..length], from).await.unwrap();
    assert_eq!(visitor.receive().await, b"now?");
    stage.host.until_tunnel(&stage.api, tunnel, "running").await;
}

/// Whoever forges addresses takes the place of others who do: the oldest flow with a single datagram goes first.
#[both_engines]
async fn flow_with_a_single_datagram_gives_way(engine: Engine) {
    let host = TestHost::with(engine, |config| config.node.flows_per_tunnel = 4);
    let stage = Stage::on(host.await).await;
    let service = Service::echo().await;
    let (_, address) = stage.running(json!({"protocol": "udp", "local_port": service.port})).await;
    let player = DatagramVisitor::to(address).await;
    player.echo(b"one").await;
    player.echo(b"two").await;
    for _ in 0..20 {
        assert_eq!(DatagramVisitor::to(address).await.echo(b"once").await, b"once");
        assert_eq!(player.echo(b"again").await, b"again");
    }
    assert_eq!(stage.host.metric("culvert_node_visitors{kind=\"udp\"}").await, Some(4.0));
    let from_player = service.peers(|payload| payload != b"once");
    assert_eq!(from_player.len(), 1, "the player has kept their flow: {from_player:?}");
}

/// A tunnel has so many new visitors in a second, and an address so many ports.
#[both_engines]
async fn new_flows_are_bounded(engine: Engine) {
    let host = TestHost::with(engine, |config| {
        (config.node.new_flows_per_second, config.node.flows_per_address) = (3, 5);
    });
    let stage = Stage::on(host.await).await;
    let service = Service::echo().await;
    let (tunnel, address) = stage.running(json!({"protocol": "udp", "local_port": service.port})).await;
    let mut visitors = Vec::new();
    for _ in 0..3 {
        visitors.push(DatagramVisitor::to(address).await);
        assert_eq!(visitors.last().unwrap().echo(b"hello").await, b"hello");
    }
    let late = DatagramVisitor::to(address).await;
    late.send(b"one too many").await;
    stage.host.until_found(async || (stage.drops("bounds").await == 1.0).then_some(())).await;
    stage.device.advance_with_leases(&stage.host, tunnel, 10).await;
    assert_eq!(late.echo(b"a second later").await, b"a second later");
    let (fifth, sixth) = (DatagramVisitor::to(address).await, DatagramVisitor::to(address).await);
    assert_eq!(fifth.echo(b"the last port").await, b"the last port");
    sixth.send(b"one port too many").await;
    stage.host.until_found(async || (stage.drops("bounds").await == 2.0).then_some(())).await;
}

/// Each preset makes a tunnel whose ports carry what they say.
#[both_engines]
async fn presets_make_tunnels_that_carry(engine: Engine) {
    let stage = Stage::set(engine, Way::Quic).await;
    let device = own_address();
    let presets = stage.api.get("/presets").await.data().as_array().unwrap().clone();
    let mut carried = Vec::new();
    for preset in &presets {
        let port = preset["local_port"].as_u64().unwrap();
        let tunnel = json!({"game_preset_id": preset["id"], "local_host": device.to_string(), "local_port": port});
        let web = json!({"http_ssl_enabled": false});
        let tunnel = if preset["protocol"] == "http" { merged(tunnel, &web) } else { tunnel };
        let tunnel = stage.started(tunnel).await;
        let tunnel = stage.api.get(&format!("/tunnels/{tunnel}")).await.data().clone();
        let extra = tunnel["extra_ports"].as_array().unwrap().clone();
        for port in [&tunnel].into_iter().chain(&extra) {
            let local = SocketAddr::new(device, u16::try_from(port["local_port"].as_u64().unwrap()).unwrap());
            let protocol = port["protocol"].as_str().unwrap();
            if ["tcp", "both"].contains(&protocol) {
                let listener = TcpListener::bind(local).await.unwrap();
                let mut visitor = TcpStream::connect(reached_at(port)).await.unwrap();
                let (mut service, _) = within(10, listener.accept()).await.unwrap();
                service.write_all(b"tcp").await.unwrap();
                let mut read = [0; 3];
                within(10, visitor.read_exact(&mut read)).await.unwrap();
            }
            if ["udp", "both"].contains(&protocol) {
                let service = UdpSocket::bind(local).await.unwrap();
                let visitor = DatagramVisitor::to(reached_at(port)).await;
                visitor.send(b"udp").await;
                let (_, from) = within(10, service.recv_from(&mut [0; 3])).await.unwrap();
                service.send_to(b"udp", from).await.unwrap();
                assert_eq!(visitor.receive().await, b"udp");
            }
            if protocol == "http" {
                let listener = TcpListener::bind(local).await.unwrap();
                let mut visitor = Browser::open(stage.host.http_address().await).await;
                let served = async {
                    let (mut service, _) = within(10, listener.accept()).await.unwrap();
                    service.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
                    service
                };
                let name = tunnel["public_address"]["hostname"].as_str().unwrap();
                let (answer, _service) = tokio::join!(visitor.outcome(name, "/"), served);
                assert_eq!(answer, "204");
            }
            carried.push(format!("{} {protocol} {}", preset["slug"].as_str().unwrap(), local.port()));
        }
        stage.device.stop_tunnel(tunnel["id"].as_str().unwrap()).await.unwrap();
    }
    allow_duplicates! { assert_snapshot!(carried.join("\n"), @r"
    minecraft-java tcp 25565
    minecraft-bedrock udp 19132
    valheim udp 2456
    valheim udp 2457
    terraria tcp 7777
    rust udp 28015
    rust tcp 28016
    7-days-to-die both 26900
    palworld udp 8211
    ssh tcp 22
    rdp both 3389
    http http 8080
    "); }
}

fn merged(mut object: Value, more: &Value) -> Value {
    object.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    object
}
