//! Connections to web services, which are kept from one request to the next.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use culvert::config::Listen;
use culvert_agent::carrier::TransportChoice;
use culvert_agent::ipc::{Answer, Request};
use culvert_test_macros::both_engines;
use futures_util::future::join_all;
use insta::{allow_duplicates, assert_snapshot};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};

use crate::support::api::Api;
use crate::support::device::{Remote, TestDevice};
use crate::support::host::{Engine, TestHost, within};
use crate::support::visitor::{Visitor, echo_service};
use crate::support::web::{Browser, WebService, outcome, read_chunk, read_head};

const NAME: &str = "hello.tunnel.localhost";
const IDLE: Duration = Duration::from_secs(5);
/// More visitors than there are warm connections.
const BURST: usize = 40;
/// Visits that a connection of QUIC carries at a time.
const STREAMS: usize = 56;
/// How long a service may take to end its direction.
const END_WITHIN: Duration = Duration::from_secs(15);

const BUSY: &str = r#"culvert_node_carriers{transport="tls",state="busy"}"#;
/// Bytes with which HTTP/2 begins (RFC 9113, section 3.4).
const PREFACE: usize = 24;
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

struct Stage {
    host: TestHost,
    api: Api,
    device: TestDevice,
}

impl Stage {
    /// An http tunnel to a port.
    async fn set(engine: Engine, port: u16) -> Self {
        Self::to(engine, port, json!({})).await
    }

    /// An http tunnel to a port, with these fields.
    async fn to(engine: Engine, port: u16, more: Value) -> Self {
        let host = TestHost::with(engine, |config| config.node.http.upstream_idle_ms = IDLE.as_millis() as u64);
        Self::on(host.await, port, more).await
    }

    async fn on(host: TestHost, port: u16, more: Value) -> Self {
        Self::by(host, port, more, TransportChoice::Auto).await
    }

    async fn by(host: TestHost, port: u16, more: Value, choice: TransportChoice) -> Self {
        let ada = host.person("ada").await;
        let api = host.api(&ada.key);
        let device = host.device_by(&ada, Remote::Disabled, choice).await;
        let mut tunnel =
            json!({"protocol": "http", "subdomain": "hello", "local_port": port, "http_ssl_enabled": false});
        tunnel.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let tunnel = api.post("/tunnels", tunnel).await.id();
        host.run_tunnel(&api, &device, tunnel).await;
        Self { host, api, device }
    }

    async fn browser(&self) -> Browser {
        Browser::open(self.host.http_address().await).await
    }

    /// As many requests at once, each of whose answers has begun.
    async fn begin_requests(&self, count: usize) -> Vec<Browser> {
        let begin = format!("POST /stream HTTP/1.1\r\nHost: {NAME}\r\nTransfer-Encoding: chunked\r\n\r\n");
        let begun = (0..count).map(async |_| {
            let mut browser = self.browser().await;
            browser.0.write_all(begin.as_bytes()).await.unwrap();
            let head = read_head(&mut browser.0).await.unwrap();
            assert!(head.starts_with("HTTP/1.1 200"), "{head}");
            browser
        });
        within(60, join_all(begun)).await
    }

    /// The address of a tcp tunnel of the same device.
    async fn echo_tunnel(&self) -> SocketAddr {
        let echo = json!({"local_port": echo_service().await.port()});
        let tunnel = self.api.post("/tunnels", echo).await.id();
        self.host.run_tunnel(&self.api, &self.device, tunnel).await;
        self.host.public(&self.api, tunnel).await
    }

    async fn until_reached_by_quic(&self) {
        let transport = async || match self.device.ask(Request::Status).await {
            Ok(Answer::Status(status)) => status.nodes.first().map(|node| node.transport.clone()),
            other => panic!("{other:?}"),
        };
        self.host.until_found(async || transport().await.filter(|transport| transport == "TLS + QUIC")).await;
    }

    /// Waits until no connection of TLS serves a visit.
    async fn until_idle(&self) {
        self.host.until_found(async || self.host.metric(BUSY).await.filter(|busy| *busy == 0.0)).await;
    }

    async fn streams(&self) -> f64 {
        self.host.metric(r#"culvert_node_carriers{transport="quic",state="busy"}"#).await.unwrap_or_default()
    }
}

/// Ends the requests that were begun, and waits for the end of the answers.
async fn end_requests(browsers: &mut [Browser]) {
    let ended = browsers.iter_mut().map(async |browser| {
        browser.0.write_all(b"0\r\n\r\n").await.unwrap();
        assert!(read_chunk(&mut browser.0).await.is_empty());
    });
    within(60, join_all(ended)).await;
}

/// The next connection to a service that brings a request.
async fn next_request(listener: &TcpListener) -> TcpStream {
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        // An agent looks whether the service is there.
        if read_head(&mut stream).await.is_some() {
            return stream;
        }
    }
}

/// Requests at once find few warm connections of TLS, and the others get streams of QUIC. Those cost more with each
/// request, so that the next requests leave them.
#[both_engines]
async fn requests_after_a_burst_go_by_tls(engine: Engine) {
    let stage = Stage::set(engine, WebService::start().await.port).await;
    stage.until_reached_by_quic().await;
    let mut browsers = stage.begin_requests(BURST).await;
    stage.host.until_found(async || (stage.streams().await > 0.0).then_some(())).await;
    end_requests(&mut browsers).await;
    stage
        .host
        .until_found(async || {
            let asked = browsers.iter_mut().map(async |browser| browser.outcome(NAME, "/echo").await);
            assert!(join_all(asked).await.iter().all(|outcome| outcome == "200"));
            (stage.streams().await == 0.0).then_some(())
        })
        .await;
}

/// Connections to a service have all streams of an agent that uses QUIC alone. Idle ones end when visitors wait, and those
/// that become idle then at once.
#[both_engines]
async fn idle_connections_end_for_visitors_who_wait(engine: Engine) {
    let port = WebService::start().await.port;
    let stage = Stage::by(TestHost::start(engine).await, port, json!({}), TransportChoice::Quic).await;
    let address = stage.echo_tunnel().await;
    let mut browsers = stage.begin_requests(STREAMS).await;
    end_requests(&mut browsers).await;
    assert_eq!(stage.streams().await, STREAMS as f64, "none is left");
    let visitor = tokio::spawn(Visitor::from("127.0.1.1", address));
    let is_served = async || {
        stage.host.pass(Duration::ZERO).await;
        visitor.is_finished().then_some(())
    };
    stage.host.until_found(is_served).await;
    let _visitor = visitor.await.unwrap().unwrap();
    let mut browsers = stage.begin_requests(STREAMS - 1).await;
    assert_eq!(stage.streams().await, STREAMS as f64, "none is left");
    let next = tokio::spawn(Visitor::from("127.0.1.1", address));
    stage.host.until_visitors("tcp", 2).await;
    end_requests(&mut browsers[..1]).await;
    assert!(within(20, next).await.unwrap().is_some());
}

/// A stream is free a second after its idle connection has begun to end, whether or not the service ends its direction.
#[both_engines]
async fn service_that_does_not_end_keeps_no_visitor_out(engine: Engine) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let stage = Stage::by(TestHost::start(engine).await, port, json!({}), TransportChoice::Quic).await;
    let address = stage.echo_tunnel().await;
    let (ended, mut ends) = mpsc::unbounded_channel();
    let served = tokio::spawn(async move {
        let mut asking = Vec::new();
        while asking.len() < STREAMS {
            asking.push(next_request(&listener).await);
        }
        let answered = asking.into_iter().map(async |mut stream| {
            stream.write_all(ANSWER).await.unwrap();
            ended.send(stream.read(&mut [0]).await.map_err(|error| error.kind())).unwrap();
            stream
        });
        let _open = join_all(answered).await;
        std::future::pending::<()>().await;
    });
    let mut browsers = join_all((0..STREAMS).map(|_| stage.browser())).await;
    let asked = browsers.iter_mut().map(async |browser| browser.outcome(NAME, "/").await);
    assert_eq!(within(60, join_all(asked)).await, vec!["200"; STREAMS]);
    let visitor = tokio::spawn(Visitor::from("127.0.1.1", address));
    stage.host.until_visitors("tcp", 1).await;
    stage.host.pass(Duration::ZERO).await;
    for _ in 0..STREAMS {
        assert_eq!(within(20, ends.recv()).await.unwrap(), Ok(0));
    }
    stage.host.pass(Duration::from_secs(1)).await;
    assert!(within(20, visitor).await.unwrap().is_some());
    served.abort();
}

/// The service takes no more connections, so that a request cannot leave its stream of QUIC and is answered there.
#[both_engines]
async fn request_that_cannot_leave_its_stream_is_answered_there(engine: Engine) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let stage = Stage::set(engine, listener.local_addr().unwrap().port()).await;
    stage.until_reached_by_quic().await;
    let mut browsers = join_all((0..BURST).map(|_| stage.browser())).await;
    let served = tokio::spawn(async move {
        let mut asking = Vec::new();
        while asking.len() < BURST {
            asking.push(next_request(&listener).await);
        }
        drop(listener);
        let answered = asking.into_iter().map(async |mut stream| {
            loop {
                stream.write_all(ANSWER).await.unwrap();
                if read_head(&mut stream).await.is_none() {
                    break;
                }
            }
        });
        join_all(answered).await;
    });
    for _ in 0..2 {
        let asked = browsers.iter_mut().map(async |browser| browser.outcome(NAME, "/").await);
        assert_eq!(within(60, join_all(asked)).await, vec!["200"; BURST]);
        stage.host.until_found(async || (stage.streams().await > 0.0).then_some(())).await;
    }
    served.abort();
}

/// The service sees a regular end, and a later visit uses the same connection to the agent.
#[both_engines]
async fn idle_connection_ends_regularly(engine: Engine) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let stage = Stage::set(engine, listener.local_addr().unwrap().port()).await;
    let (ended, end) = oneshot::channel();
    let served = tokio::spawn(async move {
        let mut ended = Some(ended);
        loop {
            let mut stream = next_request(&listener).await;
            stream.write_all(ANSWER).await.unwrap();
            if let Some(ended) = ended.take() {
                let _ = ended.send(stream.read(&mut [0]).await.map_err(|error| error.kind()));
            } else {
                tokio::spawn(async move { stream.read(&mut [0]).await });
            }
        }
    });
    let mut browser = stage.browser().await;
    assert_eq!(browser.outcome(NAME, "/").await, "200");
    stage.host.pass(IDLE).await;
    assert_eq!(within(20, end).await.unwrap(), Ok(0));
    stage.until_idle().await;
    // The connection that waits for the shortest time is used first, which may be one that the agent has just opened.
    stage
        .host
        .until_found(async || {
            assert_eq!(browser.outcome(NAME, "/").await, "200");
            stage.host.pass(IDLE).await;
            stage.host.metric("culvert_node_reuses_total").await.filter(|reuses| *reuses > 0.0)
        })
        .await;
    served.abort();
}

/// The same by HTTP/2.
#[both_engines]
async fn idle_connection_of_http2_ends_regularly(engine: Engine) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let scheme = json!({"local_scheme": "h2c"});
    let stage = Stage::to(engine, listener.local_addr().unwrap().port(), scheme).await;
    let (ended, mut ends) = mpsc::unbounded_channel();
    let served = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            // An agent looks whether the service is there.
            if stream.read_exact(&mut [0; PREFACE]).await.is_ok() {
                let _ = ended.send(answer_http2(&mut stream).await.map_err(|error| error.kind()));
            }
        }
    });
    let mut browser = stage.browser().await;
    stage
        .host
        .until_found(async || {
            assert_eq!(browser.outcome(NAME, "/").await, "200");
            stage.host.pass(IDLE).await;
            assert_eq!(within(20, ends.recv()).await.unwrap(), Err(ErrorKind::UnexpectedEof));
            stage.until_idle().await;
            stage.host.metric("culvert_node_reuses_total").await.filter(|reuses| *reuses > 0.0)
        })
        .await;
    served.abort();
}

/// Answers each request on a connection of HTTP/2 by a head alone (RFC 9113, section 4.1), until the connection ends.
async fn answer_http2(stream: &mut TcpStream) -> std::io::Result<()> {
    const HEADERS: u8 = 1;
    // An empty SETTINGS.
    stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await?;
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        stream.read_exact(&mut vec![0; length as usize]).await?;
        if head[3] == HEADERS {
            // END_STREAM and END_HEADERS, and `:status: 200` (RFC 7541, appendix A).
            stream.write_all(&[&[0, 0, 1, HEADERS, 5], &head[5..], &[0x88]].concat()).await?;
        }
    }
}

/// A connection whose service is told who the visitor is ends as well, while the visitor's own goes on.
#[both_engines]
async fn idle_connection_for_one_visitor_ends_regularly(engine: Engine) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let stage = Stage::to(engine, listener.local_addr().unwrap().port(), json!({"proxy_protocol": "v1"})).await;
    let (ended, mut ends) = mpsc::unbounded_channel();
    let served = tokio::spawn(async move {
        loop {
            let mut stream = next_request(&listener).await;
            stream.write_all(ANSWER).await.unwrap();
            let ended = ended.clone();
            tokio::spawn(async move { ended.send(stream.read(&mut [0]).await.map_err(|error| error.kind())) });
        }
    });
    let mut browser = stage.browser().await;
    for _ in 0..2 {
        assert_eq!(browser.outcome(NAME, "/").await, "200");
        stage.host.pass(IDLE).await;
        assert_eq!(within(20, ends.recv()).await.unwrap(), Ok(0));
    }
    served.abort();
}

/// A service may end a connection when the next request is on its way. A request that changes nothing is sent once more, and
/// no other: the service may have done what it asks for.
#[both_engines]
async fn only_requests_that_change_nothing_are_sent_again(engine: Engine) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    // On QUIC, requests leave their stream for another connection.
    let host = TestHost::with(engine, |config| config.node.udp_listen = Some(Listen::Off)).await;
    let stage = Stage::on(host, port, json!({})).await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let heard = seen.clone();
    let served = tokio::spawn(async move {
        let hear = |head: &str| heard.lock().unwrap().push(head[..head.find(" HTTP").unwrap()].to_owned());
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            if let Some(head) = read_head(&mut stream).await {
                hear(&head);
                stream.write_all(ANSWER).await.unwrap();
            }
            // The second request on a connection gets no answer.
            if let Some(head) = read_head(&mut stream).await {
                hear(&head);
            }
        }
    });
    let mut browser = stage.browser().await;
    let mut outcomes = Vec::new();
    for request in ["GET /a", "GET /b", "POST /c", "GET /d", "GET /with-a-body"] {
        let body = if request == "GET /with-a-body" { "Content-Length: 5\r\n\r\nbody!" } else { "\r\n" };
        let (head, _) = browser.send(&format!("{request} HTTP/1.1\r\nHost: {NAME}\r\n{body}")).await;
        outcomes.push(format!("{request}: {}", outcome(&head)));
    }
    served.abort();
    allow_duplicates! {
        assert_snapshot!(outcomes.join("\n"), @r"
        GET /a: 200
        GET /b: 200
        POST /c: 502 device_connection_lost
        GET /d: 200
        GET /with-a-body: 502 device_connection_lost
        ");
        assert_snapshot!(seen.lock().unwrap().join("\n"), @r"
        GET /a
        GET /b
        GET /b
        POST /c
        GET /d
        GET /with-a-body
        ");
    }
}

/// A service that does not end its direction as well keeps a connection to the agent for a while, and no longer.
#[both_engines]
async fn connection_that_the_service_does_not_end_is_cut(engine: Engine) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let stage = Stage::set(engine, listener.local_addr().unwrap().port()).await;
    let (ended, end) = oneshot::channel();
    let served = tokio::spawn(async move {
        let mut stream = next_request(&listener).await;
        stream.write_all(ANSWER).await.unwrap();
        ended.send(stream.read(&mut [0]).await.map_err(|error| error.kind())).unwrap();
        stream
    });
    let mut browser = stage.browser().await;
    assert_eq!(browser.outcome(NAME, "/").await, "200");
    stage.host.pass(IDLE).await;
    assert_eq!(within(20, end).await.unwrap(), Ok(0));
    let open = within(20, served).await.unwrap();
    assert_eq!(stage.host.metric(BUSY).await, Some(1.0));
    stage.host.pass(END_WITHIN).await;
    stage.until_idle().await;
    drop(open);
}
