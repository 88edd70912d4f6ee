//! Data connections of version 2, by hand: how they are attached, reused, refused, retired and cut.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use culvert_test_macros::both_engines;
use culvert_wire::base64_bytes::Base64Bytes;
use culvert_wire::control::{Done, Grant, ToAgent};
use culvert_wire::data2::attach::{Attach, DenialCode, LaneKind, Wanted};
use culvert_wire::data2::connection::Connection;
use culvert_wire::data2::frame::{DATA_LIMIT, Frame, HEADER};
use culvert_wire::data2::stream::{Finished, REST_AFTER, VisitStream};
use culvert_wire::data2::visit::{Accepted, RefusalCode, Refused, Visit, VisitKind};
use culvert_wire::data2::{ALPN, MAX_WARM};
use culvert_wire::device_token::{self, AgentProcess};
use culvert_wire::lease_token::SigningKey;
use culvert_wire::tls;
use proptest::prelude::*;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use uuid::Uuid;

use crate::support::api::Api;
use crate::support::device::Remote;
use crate::support::host::{Engine, TestHost, within};
use crate::support::visitor::{Visitor, echo_service};
use crate::support::wire::Wire;

type Carrier = Connection<TlsStream<TcpStream>>;

/// A running tunnel whose agent is the test.
pub struct Stage {
    pub host: TestHost,
    pub api: Api,
    pub tunnel: Uuid,
    pub wire: Wire,
    pub grant: Grant,
}

impl Stage {
    pub async fn set(engine: Engine) -> Self {
        let host = TestHost::start(engine).await;
        let ada = host.person("ada").await;
        let api = host.api(&ada.key);
        let tunnel = api.post("/tunnels", json!({"local_port": 80})).await.id();
        let (device, mut wire) = host.wired(&ada, ada.account_id).await;
        api.post(&format!("/tunnels/{tunnel}/actions/start"), json!({"device_id": device.id})).await.id();
        let grant = within(20, wire.obey(Done::Start)).await.unwrap();
        wire.send(culvert_wire::control::ToHost::Serving { lease_id: grant.lease_id }).await;
        wire.until(|frame| matches!(frame, ToAgent::Running { .. }).then_some(())).await;
        Self { host, api, tunnel, wire, grant }
    }

    async fn carrier(&self) -> Carrier {
        let token = self.grant.device_token.clone().unwrap().token;
        attach(&self.grant, token).await.unwrap()
    }

    async fn denial(&self, token: Vec<u8>) -> DenialCode {
        attach(&self.grant, Base64Bytes(token)).await.err().unwrap()
    }

    pub async fn visitor(&self) -> Visitor {
        Visitor(TcpStream::connect(self.host.public(&self.api, self.tunnel).await).await.unwrap())
    }
}

async fn attach(grant: &Grant, token: Base64Bytes) -> Result<Carrier, DenialCode> {
    let mut carrier = Connection::new(raw(grant).await);
    carrier.send(&Frame::Attach(Attach { token, version: "test".into(), lane: LaneKind::Visits })).await.unwrap();
    match carrier.next().await.unwrap() {
        Some(Frame::Attached(_)) => Ok(carrier),
        Some(Frame::Denied(denied)) => {
            assert!(carrier.next().await.unwrap().is_none(), "the node closes the connection");
            Err(denied.code)
        }
        other => panic!("{other:?}"),
    }
}

async fn next_visit(carrier: &mut Carrier) -> Visit {
    match within(20, carrier.next()).await.unwrap() {
        Some(Frame::Visit(visit)) => visit,
        other => panic!("{other:?}"),
    }
}

/// Serves one visit as an echo service does.
async fn echo(mut carrier: Carrier) -> (Visit, Carrier) {
    let visit = next_visit(&mut carrier).await;
    let mut stream = VisitStream::accept(carrier, Accepted::default(), false).unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.unwrap();
    stream.write_all(&bytes).await.unwrap();
    stream.shutdown().await.unwrap();
    let Finished::Warm(carrier) = stream.finish() else { panic!("not warm") };
    (visit, carrier)
}

#[both_engines]
async fn one_connection_serves_visitor_after_visitor(engine: Engine) {
    let stage = Stage::set(engine).await;
    let mut carrier = stage.carrier().await;
    for number in 1..=3_u64 {
        let mut visitor = stage.visitor().await.0;
        let (own, other) = (visitor.local_addr().unwrap(), visitor.peer_addr().unwrap());
        let (visit, warm) = tokio::join!(echo(carrier), async {
            visitor.write_all(format!("visit {number}").as_bytes()).await.unwrap();
            visitor.shutdown().await.unwrap();
            let mut answer = String::new();
            visitor.read_to_string(&mut answer).await.unwrap();
            assert_eq!(answer, format!("visit {number}"));
        })
        .0;
        assert_eq!(
            (visit.visit, visit.tunnel_id, visit.epoch, visit.port_id, visit.waiting),
            (number, stage.tunnel, stage.grant.epoch, None, 0)
        );
        assert_eq!((visit.visitor, visit.local), (own, other));
        carrier = warm;
    }
}

/// A visit says how many wait when it begins. Of those that come later, the agent learns at once, while it connects to its
/// service, so that it need not wait for the next visit to dial for them.
#[both_engines]
async fn agent_learns_of_visitors_who_wait(engine: Engine) {
    let stage = Stage::set(engine).await;
    let (waiting, mut told) = tokio::sync::mpsc::unbounded_channel();
    let on_wanted = move |wanted: Wanted| waiting.send(wanted.waiting).unwrap();
    let mut carrier = stage.carrier().await.on_wanted(Arc::new(on_wanted));
    let _first = stage.visitor().await;
    assert_eq!(next_visit(&mut carrier).await.waiting, 0);
    let mut visitors = Vec::new();
    for number in 1..=3 {
        visitors.push(stage.visitor().await);
        let frame = async {
            tokio::select! {
                frame = carrier.next() => panic!("{frame:?}"),
                waiting = told.recv() => waiting,
            }
        };
        assert_eq!(within(20, frame).await, Some(number));
    }
    visitors.push(stage.visitor().await);
    let while_it_dials = async {
        tokio::select! {
            never = carrier.note_wanted() => match never {},
            waiting = told.recv() => waiting,
        }
    };
    assert_eq!(within(20, while_it_dials).await, Some(4));
    drop(visitors);
}

#[both_engines]
async fn node_denies_tokens_that_do_not_hold(engine: Engine) {
    let stage = Stage::set(engine).await;
    let lease = stage.host.app.store.lease_of_tunnel(stage.tunnel).await.unwrap().unwrap();
    let genuine = stage.grant.device_token.clone().unwrap().token.0;
    let token = |change: &dyn Fn(&mut culvert_domain::lease::Lease)| {
        let mut other = lease.clone();
        change(&mut other);
        stage.host.app.service.nodes().device_token(&other).token.0
    };
    let process = AgentProcess { device_id: lease.device_id, boot_id: lease.boot_id };
    let strangers = SigningKey::from_seed(&[9; 32]);
    let strangers = device_token::sign(&strangers, lease.node_id, process, stage.host.clock.now()).token.0;
    for (token, expected) in [
        (token(&|lease| lease.boot_id = Uuid::from_u128(5)), DenialCode::Fenced),
        (token(&|lease| lease.device_id = Uuid::from_u128(5)), DenialCode::Fenced),
        (token(&|lease| lease.node_id = Uuid::from_u128(5)), DenialCode::Invalid),
        (strangers, DenialCode::Invalid),
        (genuine[..genuine.len() - 1].to_vec(), DenialCode::Invalid),
        (Vec::new(), DenialCode::Invalid),
    ] {
        assert_eq!(stage.denial(token).await, expected);
    }
    stage.carrier().await;
}

/// A token holds for a day, and the agent gets another one after half of it.
#[tokio::test]
async fn token_is_renewed_after_half_of_its_life() {
    let mut stage = Stage::set(Engine::Sqlite).await;
    let first = stage.grant.device_token.clone().unwrap().token;
    let (step, mut passed) = (Duration::from_secs(25), Duration::ZERO);
    let renewed = loop {
        stage.host.clock.advance(step);
        passed += step;
        stage
            .wire
            .send(culvert_wire::control::ToHost::Renew { sequence: 1, lease_ids: vec![stage.grant.lease_id] })
            .await;
        let tokens = stage.wire.until(|frame| match frame {
            ToAgent::Renewed { device_tokens, .. } => Some(device_tokens),
            _ => None,
        });
        if let Some(token) = tokens.await.pop() {
            break token;
        }
        assert!(passed < Duration::from_hours(13), "no new token came");
    };
    assert_eq!(passed, Duration::from_hours(12));
    stage.host.clock.advance(Duration::from_hours(12) + Duration::from_secs(61));
    assert_ne!(renewed.token, first);
    assert_eq!(stage.denial(first.0).await, DenialCode::Expired);
}

#[both_engines]
async fn refused_visit_resets_visitor_and_keeps_connection(engine: Engine) {
    let stage = Stage::set(engine).await;
    let mut carrier = stage.carrier().await;
    let visitor = stage.visitor().await;
    // More than what waits in buffers, so that some comes after the refusal.
    let _ = visitor.0.try_write(&[1; 300_000]);
    next_visit(&mut carrier).await;
    let refused = Refused { code: RefusalCode::TargetRefused, detail: "nobody is there".into() };
    carrier.send(&Frame::Refused(refused)).await.unwrap();
    carrier.discard().await.unwrap();
    assert!(visitor.was_reset().await);
    let mut visitor = stage.visitor().await.0;
    visitor.shutdown().await.unwrap();
    let (visit, _) = echo(carrier).await;
    assert_eq!(visit.visit, 2);
    assert_eq!(visitor.read(&mut [0; 1]).await.unwrap(), 0);
}

#[both_engines]
async fn retired_connection_gets_no_visit(engine: Engine) {
    let stage = Stage::set(engine).await;
    let (mut leaving, staying) = (stage.carrier().await, stage.carrier().await);
    leaving.send(&Frame::Retire).await.unwrap();
    assert_eq!(leaving.next().await.unwrap(), Some(Frame::Retired));
    assert_eq!(leaving.next().await.unwrap(), None);
    let mut visitor = stage.visitor().await.0;
    visitor.shutdown().await.unwrap();
    echo(staying).await;
    assert_eq!(visitor.read(&mut [0; 1]).await.unwrap(), 0);
}

/// The agent wants to close a connection when a visit is on its way.
#[both_engines]
async fn visit_that_crosses_with_retire_is_served(engine: Engine) {
    let stage = Stage::set(engine).await;
    let mut carrier = stage.carrier().await;
    let mut visitor = stage.visitor().await;
    next_visit(&mut carrier).await;
    carrier.send(&Frame::Retire).await.unwrap();
    let mut stream = VisitStream::accept(carrier, Accepted::default(), false).unwrap();
    stream.write_all(b"served").await.unwrap();
    let mut answer = [0; 6];
    visitor.0.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"served");
}

/// The end of a run ends its visits at once, and with the last run of a process its connections.
#[both_engines]
async fn end_of_last_session_ends_connections(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let mut warm = stage.carrier().await;
    let mut busy = stage.carrier().await;
    let visitor = stage.visitor().await;
    next_visit(&mut busy).await;
    let mut stream = VisitStream::accept(busy, Accepted::default(), false).unwrap();
    stream.write_all(b"x").await.unwrap();
    let path = format!("/tunnels/{}/actions/stop", stage.tunnel);
    let stop = stage.api.post(&path, json!({})).await.id();
    within(20, stage.wire.obey(Done::Stop)).await;
    assert_eq!(stage.host.until_ended(&stage.api, stop).await["status"], "succeeded");
    assert!(stream.read(&mut [0; 1]).await.is_err(), "a cut, not an end");
    assert!(warm.next().await.unwrap().is_none());
    assert!(visitor.was_reset().await);
    assert_eq!(stage.denial(stage.grant.device_token.clone().unwrap().token.0).await, DenialCode::Fenced);
}

#[both_engines]
async fn device_has_bounded_number_of_warm_connections(engine: Engine) {
    let stage = Stage::set(engine).await;
    let mut held = Vec::new();
    for _ in 0..MAX_WARM {
        held.push(stage.carrier().await);
    }
    assert_eq!(stage.denial(stage.grant.device_token.clone().unwrap().token.0).await, DenialCode::Full);
    drop(held.pop());
    within(20, async { while attach_again(&stage).await.is_err() {} }).await;
}

async fn attach_again(stage: &Stage) -> Result<Carrier, DenialCode> {
    attach(&stage.grant, stage.grant.device_token.clone().unwrap().token).await
}

/// What does not keep to the protocol ends the connection, and nothing else.
#[both_engines]
async fn malformed_frames_end_their_connection_only(engine: Engine) {
    let stage = Stage::set(engine).await;
    let well = stage.carrier().await;
    let frames: [&[u8]; 7] = [
        &[0x01, 0, 0, 0],
        &[0x01, 1, 0, 1],
        &[0x02, 0, 0, 1, 0],
        &[0x05, 0, 0, 0],
        &[0x10, 0, 0, 2, b'{', b'}'],
        &[0x20, 0, 0x10, 1],
        &[0x80, 0, 0x10, 1],
    ];
    for frame in frames {
        let mut connection = raw(&stage.grant).await;
        connection.write_all(frame).await.unwrap();
        assert!(matches!(connection.read(&mut [0; 16]).await, Ok(0) | Err(_)), "{frame:02x?}");
        let mut warm = stage.carrier().await;
        warm.send(&Frame::Attached(culvert_wire::data2::attach::Attached { ahead: 0, most: 0 })).await.unwrap();
        assert!(matches!(warm.next().await, Ok(None) | Err(_)));
    }
    let mut visitor = stage.visitor().await.0;
    visitor.shutdown().await.unwrap();
    echo(well).await;
    assert_eq!(visitor.read(&mut [0; 1]).await.unwrap(), 0);
}

async fn raw(grant: &Grant) -> TlsStream<TcpStream> {
    let node = &grant.node;
    let tcp = TcpStream::connect((node.host.as_str(), node.port)).await.unwrap();
    let tls = TlsConnector::from(tls::client(node.fingerprint.0.clone(), ALPN).unwrap());
    tls.connect(node.host.clone().try_into().unwrap(), tcp).await.unwrap()
}

/// A real agent serves visitors one after another over the same connections, and keeps as many warm as visitors came
/// at once.
#[both_engines]
async fn agent_reuses_its_connections(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let device = host.device(&ada, ada.account_id, Remote::Disabled).await;
    let tunnel = api.post("/tunnels", json!({"local_port": echo_service().await.port()})).await.id();
    device.start_tunnel(&tunnel.to_string()).await.unwrap();
    for _ in 0..20 {
        host.visitor(&api, tunnel).await;
    }
    let mut held = Vec::new();
    for _ in 0..20 {
        held.push(host.visitor(&api, tunnel).await);
    }
    drop(held);
    let big = vec![7; 3 * REST_AFTER as usize];
    let mut visitor = host.visitor(&api, tunnel).await;
    let (mut reader, mut writer) = visitor.0.split();
    let (sent, received) = tokio::join!(writer.write_all(&big), async {
        let mut bytes = vec![0; big.len()];
        reader.read_exact(&mut bytes).await.map(|_| bytes)
    });
    sent.unwrap();
    assert!(received.unwrap() == big);
}

fn visit() -> Visit {
    let address = "127.0.0.1:9".parse().unwrap();
    Visit {
        visit: 1,
        tunnel_id: Uuid::from_u128(1),
        epoch: 1,
        port_id: None,
        visitor: address,
        local: address,
        kind: VisitKind::Tcp,
        name: None,
        alpn: None,
        waiting: 0,
    }
}

/// Sends all bytes, ends the direction, and reads up to the other end.
async fn exchange<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut VisitStream<S>, bytes: &[u8]) -> io::Result<Vec<u8>> {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let send = async {
        writer.write_all(bytes).await?;
        writer.shutdown().await
    };
    let mut received = Vec::new();
    tokio::try_join!(send, reader.read_to_end(&mut received))?;
    Ok(received)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Visit after visit, both ends get exactly what the other one sent, through pipes of any size. A connection is
    /// used again unless one side has sent without frames.
    #[test]
    fn visits_carry_exactly_their_bytes(
        pipe in 1..200_000_usize,
        sizes in prop::collection::vec((size(), size()), 1..5),
    ) {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
            let (node, agent) = tokio::io::duplex(pipe);
            let (mut node, mut agent) = (Connection::new(node), Connection::new(agent));
            for (number, (up, down)) in sizes.into_iter().enumerate() {
                let (up, down) = (vec![number as u8; up], vec![!number as u8; down]);
                let visitor = async {
                    let mut stream = VisitStream::offer(node, visit(), Arc::default()).unwrap();
                    assert!(exchange(&mut stream, &up).await.unwrap() == down);
                    stream.finish()
                };
                let target = async {
                    assert_eq!(agent.next().await.unwrap(), Some(Frame::Visit(visit())));
                    let mut stream = VisitStream::accept(agent, Accepted::default(), false).unwrap();
                    assert!(exchange(&mut stream, &down).await.unwrap() == up);
                    stream.finish()
                };
                let most = up.len().max(down.len()) as u64;
                match tokio::join!(visitor, target) {
                    (Finished::Warm(former), Finished::Warm(other)) if most < REST_AFTER => (node, agent) = (former, other),
                    (Finished::Used(_), Finished::Used(_)) if most >= REST_AFTER => return,
                    _ => panic!("cut"),
                }
            }
        });
    }

    #[test]
    fn connection_answers_arbitrary_bytes(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
            let mut connection = Connection::new(tokio::io::join(&bytes[..], tokio::io::sink()));
            // Frames, then the end or an error, and no panic.
            for _ in 0..=bytes.len() {
                match connection.next().await {
                    Ok(Some(Frame::Data { length })) => prop_assert!((1..=DATA_LIMIT).contains(&length)),
                    Ok(Some(_)) => {}
                    Ok(None) | Err(_) => return Ok(()),
                }
            }
            prop_assert!(false, "more frames than bytes");
            Ok(())
        })?;
    }
}

/// Sizes around the limits of frames, buffers and the switch to bytes without frames.
fn size() -> impl Strategy<Value = usize> {
    let rest = REST_AFTER as usize;
    prop_oneof![
        4 => 0..100_usize,
        2 => (DATA_LIMIT - HEADER - 2)..(DATA_LIMIT + HEADER + 2),
        1 => (rest - 2)..(rest + 2),
        1 => (2 * rest)..(2 * rest + 10),
    ]
}

/// A visit that is cut at any byte never looks complete, and its connection is never used again.
#[tokio::test]
async fn cut_visit_never_looks_complete() {
    let mut sent = Vec::new();
    for frame in [Frame::Accepted(Accepted::default()), Frame::Data { length: 5 }] {
        frame.write(&mut sent).unwrap();
    }
    sent.extend(b"hello");
    Frame::End.write(&mut sent).unwrap();
    for cut in 0..=sent.len() {
        let connection = Connection::new(tokio::io::join(&sent[..cut], tokio::io::sink()));
        let mut stream = VisitStream::offer(connection, visit(), Arc::default()).unwrap();
        let mut bytes = Vec::new();
        let read = stream.read_to_end(&mut bytes).await;
        let _ = stream.shutdown().await;
        let is_warm = matches!(stream.finish(), Finished::Warm(_));
        assert_eq!((read.is_ok(), is_warm), (cut == sent.len(), cut == sent.len()), "cut after {cut} bytes");
    }
}
