//! QUIC between agent and node: a stream for each visitor who finds no warm connection.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use culvert_agent::ipc::{Answer, Request};
use culvert_test_macros::both_engines;
use culvert_wire::base64_bytes::Base64Bytes;
use culvert_wire::clock::Clock;
use culvert_wire::control::Done;
use culvert_wire::data2::attach::{Attach, DenialCode, LaneKind};
use culvert_wire::data2::connection::Connection;
use culvert_wire::data2::frame::Frame;
use culvert_wire::data2::stream::VisitStream;
use culvert_wire::data2::transport::Transport;
use culvert_wire::data2::visit::{Accepted, RefusalCode, Refused};
use culvert_wire::quic::{self, QuicStream};
use futures_util::future::join_all;
use quinn::Endpoint;
use rustls::pki_types::PrivateKeyDer;
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use uuid::Uuid;

use crate::data_connections::Stage;
use crate::support::api::Api;
use crate::support::device::{Remote, TestDevice};
use crate::support::host::{Engine, TestHost, own_address, within};
use crate::support::visitor::{Visitor, echo_service};

/// The test's connection as the agent, with the stream on which it attached.
struct Attached {
    connection: quinn::Connection,
    first: Connection<Transport>,
}

impl Attached {
    async fn to(stage: &Stage, token: Vec<u8>) -> Result<Self, DenialCode> {
        let node = &stage.grant.node;
        let address = SocketAddr::new(node.host.parse().unwrap(), node.udp_port.unwrap());
        let endpoint = Endpoint::client((Ipv4Addr::UNSPECIFIED, 0).into()).unwrap();
        let config = quic::client(node.fingerprint.0.clone()).unwrap();
        let connecting = endpoint.connect_with(config, address, "node").unwrap();
        let connection = within(20, connecting).await.unwrap();
        let mut first = Connection::new(Transport::Quic(QuicStream::new(connection.open_bi().await.unwrap())));
        let attach = Attach { token: Base64Bytes(token), version: "test".into(), lane: LaneKind::Visits };
        first.send(&Frame::Attach(attach)).await.unwrap();
        match within(20, first.next()).await.unwrap() {
            Some(Frame::Attached(_)) => Ok(Self { connection, first }),
            Some(Frame::Denied(denied)) => Err(denied.code),
            other => panic!("{other:?}"),
        }
    }

    async fn next(&self) -> Connection<Transport> {
        let stream = within(20, self.connection.accept_bi()).await.unwrap();
        let mut carrier = Connection::single(Transport::Quic(QuicStream::new(stream)));
        match within(20, carrier.next()).await.unwrap() {
            Some(Frame::Visit(_)) => carrier,
            other => panic!("{other:?}"),
        }
    }
}

/// A tunnel to an echo service that a real agent runs.
struct Running {
    host: TestHost,
    api: Api,
    device: TestDevice,
    tunnel: Uuid,
}

impl Running {
    async fn on(host: TestHost) -> Self {
        let ada = host.person("ada").await;
        let api = host.api(&ada.key);
        let device = host.device(&ada, ada.account_id, Remote::Disabled).await;
        let tunnel = api.post("/tunnels", json!({"local_port": echo_service().await.port()})).await.id();
        host.run_tunnel(&api, &device, tunnel).await;
        Self { host, api, device, tunnel }
    }

    /// What the agent says that visitors come over.
    async fn transport(&self) -> Option<String> {
        match self.device.ask(Request::Status).await {
            Ok(Answer::Status(status)) => status.nodes.first().map(|node| node.transport.clone()),
            other => panic!("{other:?}"),
        }
    }

    async fn address(&self) -> SocketAddr {
        self.host.public(&self.api, self.tunnel).await
    }
}

fn token(stage: &Stage) -> Vec<u8> {
    stage.grant.device_token.clone().unwrap().token.0
}

async fn attach(stage: &Stage) -> Attached {
    Attached::to(stage, token(stage)).await.unwrap()
}

/// Each direction ends alone, and nothing is lost.
#[both_engines]
async fn stream_carries_one_visit_to_its_end(engine: Engine) {
    let stage = Stage::set(engine).await;
    let agent = attach(&stage).await;
    for size in [0, 1, 3 * 1024 * 1024] {
        let mut visitor = stage.visitor().await.0;
        let sent = vec![7; size];
        let served = async {
            let mut stream = VisitStream::accept(agent.next().await, Accepted::default(), false).unwrap();
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes).await.unwrap();
            stream.write_all(&bytes).await.unwrap();
            stream.shutdown().await.unwrap();
        };
        let visited = async {
            let (mut reader, mut writer) = visitor.split();
            writer.write_all(&sent).await.unwrap();
            writer.shutdown().await.unwrap();
            let mut answer = Vec::new();
            reader.read_to_end(&mut answer).await.unwrap();
            answer
        };
        let ((), answer) = within(20, async { tokio::join!(served, visited) }).await;
        assert_eq!(answer.len(), size);
    }
}

#[both_engines]
async fn stream_that_is_cut_resets_its_visitor_alone(engine: Engine) {
    let stage = Stage::set(engine).await;
    let agent = attach(&stage).await;
    let mut visitors = [stage.visitor().await, stage.visitor().await];
    let mut streams = Vec::new();
    for _ in &visitors {
        let mut stream = VisitStream::accept(agent.next().await, Accepted::default(), false).unwrap();
        stream.write_all(b"x").await.unwrap();
        streams.push(stream);
    }
    for visitor in &mut visitors {
        within(20, visitor.0.read_u8()).await.unwrap();
    }
    drop(streams.remove(0));
    let cut = async {
        let [one, other] = &mut visitors;
        tokio::select! {
            ended = one.0.read_u8() => (ended, other),
            ended = other.0.read_u8() => (ended, one),
        }
    };
    let (ended, goes_on) = within(20, cut).await;
    assert_eq!(ended.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    streams[0].write_all(b"y").await.unwrap();
    assert_eq!(within(20, goes_on.0.read_u8()).await.unwrap(), b'y');
}

#[both_engines]
async fn refused_visit_resets_its_visitor(engine: Engine) {
    let stage = Stage::set(engine).await;
    let agent = attach(&stage).await;
    let visitor = stage.visitor().await;
    let mut carrier = agent.next().await;
    let refused = Refused { code: RefusalCode::TargetRefused, detail: "nobody listens".into() };
    carrier.send(&Frame::Refused(refused)).await.unwrap();
    assert!(visitor.was_reset().await);
    within(20, carrier.discard()).await.unwrap();
}

#[both_engines]
async fn node_denies_tokens_that_do_not_hold_by_quic(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let mut changed = token(&stage);
    changed[100] ^= 1;
    assert_eq!(Attached::to(&stage, changed).await.err(), Some(DenialCode::Invalid));
    let agent = attach(&stage).await;
    let newer = attach(&stage).await;
    within(20, agent.connection.closed()).await;
    drop(agent.first);
    let stop = stage.api.post(&format!("/tunnels/{}/actions/stop", stage.tunnel), json!({})).await.id();
    within(20, stage.wire.obey(Done::Stop)).await;
    assert_eq!(stage.host.until_ended(&stage.api, stop).await["status"], "succeeded");
    within(20, newer.connection.closed()).await;
    assert_eq!(Attached::to(&stage, token(&stage)).await.err(), Some(DenialCode::Fenced));
}

/// Also by a newer connection than the one that they wait for, which has no stream left.
#[both_engines]
async fn visitors_who_wait_get_a_stream_of_the_next_connection(engine: Engine) {
    let stage = Stage::set(engine).await;
    let _visitor = stage.visitor().await;
    stage.host.until_visitors("tcp", 1).await;
    let agent = attach(&stage).await;
    let mut carried = vec![agent.next().await];
    let visitors = join_all((0..quic::VISITS).map(|_| stage.visitor())).await;
    while carried.len() < quic::VISITS {
        carried.push(agent.next().await);
    }
    stage.host.until_visitors("tcp", quic::VISITS + 1).await;
    let newer = attach(&stage).await;
    newer.next().await;
    drop(visitors);
}

/// A hundred is what quinn allows by itself.
#[both_engines]
async fn visitors_who_come_at_once_are_served_by_streams(engine: Engine) {
    let stage = Running::on(TestHost::start(engine).await).await;
    stage.host.until_found(async || stage.transport().await.filter(|transport| transport == "TLS + QUIC")).await;
    let address = stage.address().await;
    let sources = ["127.0.1.1", "127.0.1.2"];
    let visitors = (0..160).map(|number| Visitor::from(sources[number % 2], address));
    let visitors = within(60, join_all(visitors)).await;
    assert!(visitors.iter().all(Option::is_some));
    drop(visitors);
    let streams = async || stage.host.metric("culvert_node_visits_total{carrier=\"quic\",outcome=\"accepted\"}").await;
    stage.host.until_found(async || streams().await.filter(|streams| *streams > 0.0)).await;
}

/// A second visitor gets a stream, so one connection over TLS is enough while nobody comes.
#[both_engines]
async fn agent_keeps_one_warm_connection_beside_quic(engine: Engine) {
    let stage = Running::on(TestHost::start(engine).await).await;
    stage.host.until_found(async || stage.transport().await.filter(|transport| transport == "TLS + QUIC")).await;
    let warm = async || stage.host.metric("culvert_node_carriers{transport=\"tls\",state=\"warm\"}").await;
    for (passed, left) in [(Duration::ZERO, 2.0), (Duration::from_secs(10), 1.0)] {
        stage.host.pass(passed).await;
        stage.host.until_found(async || warm().await.filter(|warm| *warm == left)).await;
    }
}

/// A node that was killed resets the connections of its former process, which the new one does not know (RFC 9000, section
/// 10.3). Agents would wait for an answer otherwise.
#[test]
fn connections_of_a_killed_node_are_reset() {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(["node".to_owned()]).unwrap().self_signed(&key).unwrap();
    let fingerprint = Sha256::digest(certificate.der()).to_vec();
    let key = || PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let serve = |socket: std::net::UdpSocket| {
        let process = tokio::runtime::Runtime::new().unwrap();
        let server = quic::server(certificate.der().clone(), key(), 16).unwrap();
        let endpoint = process.block_on(async {
            let runtime = std::sync::Arc::new(quinn::TokioRuntime);
            Endpoint::new(quic::endpoint(&key()), Some(server), socket, runtime).unwrap()
        });
        process.spawn(async move {
            while let Some(incoming) = endpoint.accept().await {
                let connection = incoming.await.unwrap();
                connection.closed().await;
            }
        });
        process
    };
    let socket = std::net::UdpSocket::bind(SocketAddr::new(own_address(), 0)).unwrap();
    let address = socket.local_addr().unwrap();
    let former = serve(socket);
    let agent = tokio::runtime::Runtime::new().unwrap();
    let connection = agent.block_on(async {
        let endpoint = Endpoint::client((Ipv4Addr::UNSPECIFIED, 0).into()).unwrap();
        let connecting = endpoint.connect_with(quic::client(fingerprint).unwrap(), address, "node").unwrap();
        within(20, connecting).await.unwrap()
    });
    former.shutdown_timeout(Duration::from_secs(20));
    let _latter = serve(std::net::UdpSocket::bind(address).unwrap());
    let ended = agent.block_on(within(20, connection.closed()));
    assert!(matches!(ended, quinn::ConnectionError::Reset), "{ended}");
}

/// Visitors who read nothing hold up none of the others.
#[both_engines]
async fn visitors_that_read_nothing_hold_up_nobody(engine: Engine) {
    let host = TestHost::start(engine).await;
    let running = Running::on(host).await;
    running.host.until_found(async || running.transport().await.filter(|transport| transport == "TLS + QUIC")).await;
    let address = running.host.public(&running.api, running.tunnel).await;
    // What they send comes back, and they read none of it. Each goes on until nothing more is taken.
    let stalled = join_all((0..40).map(|_| async {
        let mut visitor = TcpStream::connect(address).await.unwrap();
        let piece = vec![7; 64 * 1024];
        while let Ok(written) = Clock::system().timeout(Duration::from_millis(500), visitor.write_all(&piece)).await {
            written.unwrap();
        }
        visitor
    }));
    let stalled = within(60, stalled).await;
    let others = join_all((0..30).map(|_| async {
        let mut visitor = Visitor(TcpStream::connect(address).await.unwrap());
        assert_eq!(within(10, visitor.echo(b"hello")).await.unwrap(), b"hello");
    }));
    others.await;
    drop(stalled);
}
