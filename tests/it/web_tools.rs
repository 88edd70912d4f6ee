//! Http tunnels with clients and services that nobody here wrote: gRPC, WebSocket and HTTP/2 in Python (`tests/web`).

use std::path::PathBuf;
use std::process::Stdio;

use culvert_test_macros::both_engines;
use insta::{allow_duplicates, assert_snapshot};
use serde_json::json;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use uuid::Uuid;

use crate::support::api::Api;
use crate::support::device::{Remote, TestDevice};
use crate::support::host::{Engine, Person, TestHost, within};
use crate::support::program::python;
use crate::support::web::{Browser, WebService, outcome};

/// How long a program has for all that it does, in seconds.
const SOON: u64 = 60;

/// A service in Python. Dropping it ends it.
struct Service {
    port: u16,
    _program: Child,
}

impl Service {
    async fn start(kind: &str) -> Self {
        Self::run(python("service.py").arg(kind)).await
    }

    /// A service over TLS, with a certificate that nobody has signed.
    async fn over_tls(kind: &str, folder: &TempDir) -> Self {
        let certified = rcgen::generate_simple_self_signed(["service.internal".to_owned()]).unwrap();
        std::fs::write(folder.path().join("cert.pem"), certified.cert.pem()).unwrap();
        std::fs::write(folder.path().join("key.pem"), certified.signing_key.serialize_pem()).unwrap();
        Self::run(python("service.py").arg(kind).arg(folder.path())).await
    }

    async fn run(program: &mut Command) -> Self {
        let mut program = program.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
        let port = within(SOON, lines.next_line()).await.unwrap().expect("the service has ended");
        Self { port: port.parse().unwrap(), _program: program }
    }
}

/// A running http tunnel with the name `hello.tunnel.localhost`.
struct Stage {
    host: TestHost,
    ada: Person,
    api: Api,
    tunnel: Uuid,
    device: TestDevice,
}

impl Stage {
    async fn set(engine: Engine, port: u16) -> Self {
        let host = TestHost::at_present(engine, |_| {}).await;
        let ada = host.person("ada").await;
        let api = host.api(&ada.key);
        let device = host.device(&ada, ada.account_id, Remote::Enabled).await;
        let tunnel = json!({"protocol": "http", "subdomain": "hello", "local_port": port, "idle_timeout": 30});
        let tunnel = api.post("/tunnels", tunnel).await.id();
        host.run_tunnel(&api, &device, tunnel).await;
        Self { host, ada, api, tunnel, device }
    }

    async fn node(&self) -> (String, String) {
        let node = self.host.app.store.nodes().await.unwrap().remove(0);
        (node.hostname.clone(), node.https_port.unwrap().to_string())
    }

    fn root(&self) -> PathBuf {
        self.host.config().ca_dir().join("tunnel.localhost/root.pem")
    }
}

async fn said(command: &mut Command) -> String {
    let output = within(SOON, command.output()).await.unwrap();
    let (said, problem) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}\n{problem}");
    said.trim_end().to_owned()
}

#[both_engines]
async fn grpc_is_carried_with_streams_and_trailers(engine: Engine) {
    let service = Service::start("grpc").await;
    let stage = Stage::set(engine, service.port).await;
    let (address, port) = stage.node().await;
    let mut calls = python("grpc_calls.py");
    calls.args([&format!("{address}:{port}"), "hello.tunnel.localhost"]).arg(stage.root());
    let seen = said(&mut calls).await;
    allow_duplicates! { assert_snapshot!(seen, @r#"
    unary: b'hello'
    status: NOT_FOUND, there is no such thing, told in the trailers
    stream out: b'n 0, n 1, n 2, n 3, n 4'
    stream in: b'5'
    both: b'A B'
    cancel: b'0', then CANCELLED
    deadline: DEADLINE_EXCEEDED, Deadline Exceeded, None
    16 MiB: True
    "#); }
}

/// `local_scheme: h2c` is HTTP/2 without TLS, and `host_header` is what the service reads.
#[both_engines]
async fn service_of_http2_alone_is_reached_by_the_name_it_wants(engine: Engine) {
    let service = Service::start("h2c").await;
    let stage = Stage::set(engine, service.port).await;
    let (address, port) = stage.node().await;
    let fetch = async || {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--max-time", "20", "-w", " %{http_code}", "--cacert"]).arg(stage.root());
        curl.args(["--resolve", &format!("hello.tunnel.localhost:{port}:{address}")]);
        let url = format!("https://hello.tunnel.localhost:{port}/a?b");
        said(curl.args(["--http1.1", "-d", "five!", &url])).await.replace(&port, "[port]")
    };
    assert!(fetch().await.ends_with(" 502"), "HTTP/1.1 is not understood");
    let change = json!({"local_scheme": "h2c", "host_header": "app.internal:81"});
    let record = stage.api.patch(&format!("/tunnels/{}", stage.tunnel), change).await.data().clone();
    assert_eq!((&record["local_scheme"], &record["host_header"]), (&json!("h2c"), &json!("app.internal:81")));
    assert_eq!(fetch().await, "POST http /a?b app.internal:81 hello.tunnel.localhost:[port] 5\n 200");
    stage.api.patch(&format!("/tunnels/{}", stage.tunnel), json!({"host_header": null})).await.data();
    assert_eq!(fetch().await, "POST http /a?b hello.tunnel.localhost:[port] hello.tunnel.localhost:[port] 5\n 200");
}

/// Requests that a service does not answer take all streams of its connection of HTTP/2. The next one goes by another.
#[both_engines]
async fn unanswered_requests_of_http2_hold_up_no_other(engine: Engine) {
    let service = Service::start("h2c").await;
    let stage = Stage::set(engine, service.port).await;
    let change = json!({"local_scheme": "h2c", "http_ssl_enabled": false});
    stage.api.patch(&format!("/tunnels/{}", stage.tunnel), change).await.data();
    let http = stage.host.http_address().await;
    let answered = async || Browser::open(http).await.outcome("hello.tunnel.localhost", "/").await;
    stage.host.until_found(async || Some(answered().await).filter(|outcome| outcome == "200")).await;
    let mut open = Vec::new();
    for _ in 0..100 {
        let mut browser = Browser::open(http).await;
        // The service answers at the end of a request.
        let half = "POST / HTTP/1.1\r\nHost: hello.tunnel.localhost\r\nContent-Length: 5\r\n\r\nhalf";
        browser.0.write_all(half.as_bytes()).await.unwrap();
        open.push(browser);
    }
    stage.host.until_visitors("http", 100).await;
    assert_eq!(within(20, answered()).await, "200");
    for mut browser in open {
        assert_eq!(outcome(&within(20, browser.send("!")).await.0), "200");
    }
}

/// A service over TLS that speaks HTTP/2 alone, and reads the scheme (RFC 9113, section 8.3.1); and one that ends its answers
/// by closing the connection, without a word of TLS.
#[both_engines]
async fn services_over_tls_are_understood(engine: Engine) {
    let folder = tempfile::tempdir().unwrap();
    let (h2, abrupt) = (Service::over_tls("h2", &folder).await, Service::over_tls("abrupt", &folder).await);
    let stage = Stage::set(engine, h2.port).await;
    let (address, port) = stage.node().await;
    let fetch = async || {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--max-time", "20", "-w", " %{http_code}", "--cacert"]).arg(stage.root());
        curl.args(["--resolve", &format!("hello.tunnel.localhost:{port}:{address}")]);
        said(curl.args(["-d", "five!", &format!("https://hello.tunnel.localhost:{port}/a?b")])).await
    };
    let change = json!({"local_scheme": "https", "host_header": "service.internal"});
    stage.api.patch(&format!("/tunnels/{}", stage.tunnel), change).await.data();
    let answered = stage.host.until_found(async || Some(fetch().await).filter(|answer| answer.ends_with(" 200"))).await;
    let answered = answered.replace(&port, "[port]");
    allow_duplicates! { assert_snapshot!(answered, @r"
    POST https /a?b service.internal hello.tunnel.localhost:[port] 5
     200
    "); }
    stage.api.patch(&format!("/tunnels/{}", stage.tunnel), json!({"local_port": abrupt.port})).await.data();
    let whole = format!("{} 200", "x".repeat(300_000));
    stage.host.until_found(async || Some(fetch().await).filter(|answer| *answer == whole)).await;
}

/// A service that does not speak HTTP/2 gets the request by HTTP/1.1.
#[both_engines]
async fn grpc_request_goes_to_http1_service_as_well(engine: Engine) {
    let service = WebService::start().await;
    let stage = Stage::set(engine, service.port).await;
    let (address, port) = stage.node().await;
    let mut curl = Command::new("curl");
    curl.args([
        "-sS",
        "--http2",
        "--max-time",
        "20",
        "-d",
        "five!",
        "-H",
        "content-type: application/grpc",
        "--cacert",
    ]);
    curl.arg(stage.root()).args(["--resolve", &format!("hello.tunnel.localhost:{port}:{address}")]);
    let seen = said(curl.arg(format!("https://hello.tunnel.localhost:{port}/a.Service/Call"))).await;
    assert!(seen.starts_with("POST /a.Service/Call HTTP/1.1\r\n") && seen.ends_with("five!"), "{seen}");
    assert_eq!(service.connections(), 2, "HTTP/2 was tried first");
}

#[both_engines]
async fn websocket_is_carried_by_https(engine: Engine) {
    let service = Service::start("websocket").await;
    let stage = Stage::set(engine, service.port).await;
    let (address, port) = stage.node().await;
    let mut calls = python("websocket_calls.py");
    calls.args([&address, &port, "hello.tunnel.localhost"]).arg(stage.root());
    let seen = said(&mut calls).await;
    allow_duplicates! { assert_snapshot!(seen, @"
    text: True
    bytes: True
    1 MiB of text: True
    pong: True
    closed: 4321 as asked
    "); }
    let mut by_h2 = python("h2_calls.py");
    by_h2.args(["websocket", &address, &port, "hello.tunnel.localhost"]).arg(stage.root());
    let seen = said(&mut by_h2).await;
    allow_duplicates! { assert_snapshot!(seen, @r"enabled 1, status 200, b'\x81\x05hello'"); }
}

/// Visitors that cost the node more than themselves: RFC 9113 allows each step, CVE-2023-44487, CVE-2025-8671 and
/// CVE-2024-27316 repeat it.
#[both_engines]
async fn floods_of_http2_are_ended(engine: Engine) {
    let service = WebService::start().await;
    let stage = Stage::set(engine, service.port).await;
    let (address, port) = stage.node().await;
    let mut outcomes = Vec::new();
    for attack in ["rapid_reset", "made_you_reset", "continuation_flood"] {
        let mut calls = python("h2_calls.py");
        calls.args([attack, &address, &port, "hello.tunnel.localhost"]).arg(stage.root());
        outcomes.push(format!("{attack}: {}", said(&mut calls).await));
    }
    allow_duplicates! { assert_snapshot!(outcomes.join("\n"), @r"
    rapid_reset: ended by the node
    made_you_reset: ended by the node
    continuation_flood: ended by the node
    "); }
}

/// A visitor by HTTP/2 who says when something has begun, and how it ended.
struct Watcher {
    lines: Lines<BufReader<ChildStdout>>,
    program: Child,
}

impl Watcher {
    async fn start(stage: &Stage, what: &str) -> Self {
        let (address, port) = stage.node().await;
        let mut calls = python("h2_calls.py");
        calls.args([what, &address, &port, "hello.tunnel.localhost"]).arg(stage.root());
        let mut program = calls.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        Self { lines: BufReader::new(program.stdout.take().unwrap()).lines(), program }
    }

    async fn goes_on(&mut self) {
        self.program.stdin.as_mut().unwrap().write_all(b"\n").await.unwrap();
    }

    async fn says(&mut self) -> String {
        within(SOON, self.lines.next_line()).await.unwrap().expect("it has ended")
    }
}

/// An answer whose agent was killed does not look complete, and the visitor's connection goes on.
#[both_engines]
async fn agent_that_is_killed_resets_its_answers(engine: Engine) {
    let service = WebService::start().await;
    let stage = Stage::set(engine, service.port).await;
    let mut visitor = Watcher::start(&stage, "slow_download").await;
    assert_eq!(visitor.says().await, "begun");
    stage.device.kill().await;
    visitor.goes_on().await;
    assert_eq!(visitor.says().await, "reset");
}

/// An answer that stalls is cut, and the visitor's connection goes on.
#[both_engines]
async fn stream_that_stalls_is_reset_after_idle_timeout(engine: Engine) {
    let service = WebService::start().await;
    let stage = Stage::set(engine, service.port).await;
    let mut visitor = Watcher::start(&stage, "stalled_download").await;
    assert_eq!(visitor.says().await, "begun");
    stage.device.advance_with_leases(&stage.host, stage.tunnel, 30).await;
    assert_eq!(visitor.says().await, "reset, then 200");
}

/// A WebSocket ends with the run that it belongs to, and the next one is served by the other device.
#[both_engines]
async fn handoff_ends_a_websocket(engine: Engine) {
    let service = Service::start("websocket").await;
    let stage = Stage::set(engine, service.port).await;
    let mut visitor = Watcher::start(&stage, "held_websocket").await;
    assert_eq!(visitor.says().await, "open: 200");
    let other = stage.host.device(&stage.ada, stage.ada.account_id, Remote::Enabled).await;
    let start = format!("/tunnels/{}/actions/start", stage.tunnel);
    let operation = stage.api.post(&start, json!({"device_id": other.id, "handoff": true})).await.id();
    stage.host.until_operation(&stage.api, operation, "succeeded").await;
    let ended = visitor.says().await;
    assert!(ended == "reset" || ended == "ended", "{ended}");
    assert_eq!(other.tunnels().await, [stage.tunnel]);
    let mut visitor = Watcher::start(&stage, "websocket").await;
    assert_eq!(visitor.says().await, r"enabled 1, status 200, b'\x81\x05hello'");
}

/// A service that answers 200 has not agreed to a WebSocket. By HTTP/2 its visitor would take that for one.
#[both_engines]
async fn websocket_that_the_service_does_not_agree_to_is_refused(engine: Engine) {
    let service = WebService::start().await;
    let stage = Stage::set(engine, service.port).await;
    let mut visitor = Watcher::start(&stage, "refused_websocket").await;
    assert_eq!(visitor.says().await, "502 local_answer_invalid");
}
