//! HTTP tunnels: names, rules, basic authentication, streaming, WebSocket, and the node's own answers.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use culvert::config::Listen;
use culvert_domain::session::EndReason;
use culvert_service::{catalog, sessions};
use culvert_store::catalog::NodeRegistration;
use culvert_test_macros::both_engines;
use culvert_wire::control::Capability;
use futures_util::future::join_all;
use futures_util::{SinkExt, StreamExt};
use insta::{allow_duplicates, assert_snapshot};
use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message;
use uuid::Uuid;

use crate::support::api::Api;
use crate::support::device::{Remote, TestDevice};
use crate::support::host::{Engine, TestHost, own_address, second_node, within};
use crate::support::web::{Browser, WebService, header, outcome, read_chunk, read_head};

struct Stage {
    host: TestHost,
    api: Api,
    device: TestDevice,
    service: WebService,
}

impl Stage {
    async fn set(engine: Engine) -> Self {
        Self::on(TestHost::start(engine).await).await
    }

    async fn on(host: TestHost) -> Self {
        let ada = host.person("ada").await;
        let api = host.api(&ada.key);
        let device = host.device(&ada, ada.account_id, Remote::Enabled).await;
        Self { host, api, device, service: WebService::start().await }
    }

    async fn create(&self, name: &str, more: Value) -> Uuid {
        let mut body = json!({
            "protocol": "http", "subdomain": name, "local_port": self.service.port, "http_ssl_enabled": false,
        });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.api.post("/tunnels", body).await.id()
    }

    async fn run(&self, tunnel: Uuid) {
        self.host.run_tunnel(&self.api, &self.device, tunnel).await;
    }

    async fn running(&self, name: &str) -> Uuid {
        let tunnel = self.create(name, json!({})).await;
        self.run(tunnel).await;
        tunnel
    }

    /// Where the node's HTTP listener is.
    async fn address(&self) -> SocketAddr {
        self.host.http_address().await
    }

    async fn browser(&self) -> Browser {
        Browser::open(self.address().await).await
    }

    /// Bytes in and out that were counted for a tunnel.
    async fn counted(&self, tunnel: Uuid) -> (usize, usize) {
        self.host.record_traffic().await;
        let usage = self.api.get(&format!("/tunnels/{tunnel}/usage")).await.data()["bandwidth"]["month"].clone();
        let bytes = |field: &str| usize::try_from(usage[field].as_u64().unwrap()).unwrap();
        (bytes("bytes_in"), bytes("bytes_out"))
    }
}

/// Bytes of an answer's head that count: hyper adds the date.
fn counted_head(head: &str) -> usize {
    let date = head.lines().find(|line| line.starts_with("date: ")).map_or(0, |date| date.len() + 2);
    head.len() - date
}

/// A text with what differs from run to run replaced.
fn scrubbed(stage: &Stage, address: SocketAddr, text: &str) -> String {
    text.replace(&address.port().to_string(), "[port]")
        .replace(&address.ip().to_string(), "[node]")
        .replace(&stage.service.port.to_string(), "[service]")
        .replace('\r', "")
}

#[both_engines]
async fn request_is_passed_on_by_its_name(engine: Engine) {
    let stage = Stage::set(engine).await;
    let tunnel = stage.running("hello").await;
    let address = stage.address().await;
    let record = stage.api.get(&format!("/tunnels/{tunnel}")).await.data().clone();
    let named = format!("hello.tunnel.localhost:{}", address.port());
    assert_eq!(record["public_address"]["url"], format!("http://{named}"));
    assert_eq!(
        (&record["remote_port"], &record["public_address"]["port"]),
        (&json!(address.port()), &json!(address.port()))
    );

    let mut browser = stage.browser().await;
    let request = format!(
        "POST /echo?a=b HTTP/1.1\r\nHost: {named}\r\nContent-Length: 5\r\nConnection: keep-alive, x-secret\r\n\
         X-Secret: 1\r\nX-Forwarded-For: 9.9.9.9\r\nForwarded: for=9.9.9.9\r\nTE: trailers\r\nX-Kept: yes\r\n\r\nhello"
    );
    let (head, body) = browser.send(&request).await;
    let body = scrubbed(&stage, address, &String::from_utf8(body).unwrap());
    let own = scrubbed(&stage, address, &browser.0.local_addr().unwrap().ip().to_string());
    assert_eq!(header(&head, "culvert-error"), None, "the service cannot forge it");
    assert_eq!(header(&head, "keep-alive"), None);
    allow_duplicates! { assert_snapshot!(body.replace(&own, "[visitor]"), @r#"
    POST /echo?a=b HTTP/1.1
    host: hello.tunnel.localhost:[port]
    content-length: 5
    x-kept: yes
    te: trailers
    x-forwarded-for: [visitor]
    x-forwarded-proto: http
    x-forwarded-port: [port]
    forwarded: for=[visitor];host="hello.tunnel.localhost";proto=http
    x-forwarded-host: hello.tunnel.localhost:[port]

    hello
    "#); }
}

#[both_engines]
async fn own_answers_are_in_the_form_that_is_asked_for(engine: Engine) {
    let stage = Stage::set(engine).await;
    stage.create("hello", json!({})).await;
    let mut browser = stage.browser().await;
    assert_eq!(browser.outcome("hello.tunnel.localhost", "/").await, "503 tunnel_offline");
    assert_eq!(browser.outcome("nobody.tunnel.localhost", "/").await, "404 no_such_tunnel");
    for (accept, expected) in [
        ("application/problem+json", "application/json"),
        ("text/html,*/*;q=0.8", "text/html; charset=utf-8"),
        ("*/*", "text/plain; charset=utf-8"),
    ] {
        let request = format!("GET / HTTP/1.1\r\nHost: hello.tunnel.localhost\r\nAccept: {accept}\r\n\r\n");
        let (head, body) = browser.send(&request).await;
        assert_eq!(header(&head, "content-type"), Some(expected));
        assert_eq!((header(&head, "cache-control"), header(&head, "retry-after")), (Some("no-store"), Some("10")));
        if expected == "application/json" {
            allow_duplicates! { assert_snapshot!(String::from_utf8(body).unwrap(), @r#"{"code":"tunnel_offline","detail":"The service behind this address is offline.","status":503,"title":"Service Unavailable"}"#); }
        } else {
            assert!(String::from_utf8(body).unwrap().contains("The service behind this address is offline."));
        }
    }
}

#[both_engines]
async fn unusable_requests_are_refused(engine: Engine) {
    let stage = Stage::set(engine).await;
    stage.running("hello").await;
    let host = "Host: hello.tunnel.localhost\r\n";
    for (request, expected) in [
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), "400 bad_request"),
        (format!("GET / HTTP/1.1\r\n{host}{host}\r\n"), "400 bad_request"),
        ("GET / HTTP/1.1\r\nHost: hello.tunnel.localhost, b\r\n\r\n".into(), "400 bad_request"),
        ("GET / HTTP/1.1\r\nHost: hello%2etunnel.localhost\r\n\r\n".into(), "400 bad_request"),
        ("GET / HTTP/1.1\r\nHost: hello.tunnel.localhost:0\r\n\r\n".into(), "400 bad_request"),
        ("GET / HTTP/1.1\r\nHost: [::1\r\n\r\n".into(), "400 bad_request"),
        ("GET / HTTP/1.1\r\nHost: h\u{e9}llo.tunnel.localhost\r\n\r\n".into(), "400 bad_request"),
        (format!("GET / HTTP/1.1\r\nHost: {}.tunnel.localhost\r\n\r\n", "a".repeat(300)), "400 bad_request"),
        (format!("PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\nGET / HTTP/1.1\r\n{host}\r\n"), "400"),
        (format!("GET http://other.tunnel.localhost/ HTTP/1.1\r\n{host}\r\n"), "400 bad_request"),
        (format!("CONNECT hello.tunnel.localhost:80 HTTP/1.1\r\n{host}\r\n"), "501 method_not_supported"),
        (format!("GET /{} HTTP/1.1\r\n{host}\r\n", "a".repeat(16 * 1024)), "414 uri_too_long"),
        (
            format!("GET / HTTP/1.1\r\n{host}Connection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 1\r\n\r\nx"),
            "400 bad_request",
        ),
        (format!("GET / HTTP/1.1\r\n{host}X-Long: {}\r\n\r\n", "a".repeat(33 * 1024)), "431"),
        (format!("GET / HTTP/1.1\r\n{host}{}\r\n", "X-Many: 1\r\n".repeat(101)), "431"),
        (format!("POST / HTTP/1.1\r\n{host}Content-Length: 1\r\nContent-Length: 2\r\n\r\n"), "400"),
        (format!("POST / HTTP/1.0\r\n{host}Transfer-Encoding: chunked\r\n\r\n"), "400"),
    ] {
        let mut browser = stage.browser().await;
        browser.0.write_all(request.as_bytes()).await.unwrap();
        let head = read_head(&mut browser.0).await.unwrap();
        assert_eq!(outcome(&head), expected, "{request:.80}");
    }
    assert_eq!(stage.service.connections(), 0);
}

/// Two tunnels on one connection: each request is judged by its own rules, and rules that change apply at once.
#[both_engines]
async fn rules_are_applied_to_each_request(engine: Engine) {
    let stage = Stage::set(engine).await;
    let (open, closed) = (stage.running("open").await, stage.running("closed").await);
    let rule = |rule: &str| json!({"rules": [{"rule_type": rule, "ip_cidr": "127.0.0.0/8"}]});
    let path = format!("/tunnels/{closed}/firewall");
    assert_eq!(stage.api.put(&path, rule("blacklist")).await.outcome(), "200");
    let mut browser = stage.browser().await;
    for _ in 0..2 {
        assert_eq!(browser.outcome("open.tunnel.localhost", "/echo").await, "200");
        assert_eq!(browser.outcome("closed.tunnel.localhost", "/echo").await, "403 visitor_not_allowed");
    }
    stage.api.put(&path, json!({"rules": []})).await;
    assert_eq!(browser.outcome("closed.tunnel.localhost", "/echo").await, "200");

    // An answer that is under way is cut.
    let stream = "POST /stream HTTP/1.1\r\nHost: open.tunnel.localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n";
    browser.0.write_all(stream.as_bytes()).await.unwrap();
    assert_eq!(outcome(&read_head(&mut browser.0).await.unwrap()), "200");
    assert_eq!(read_chunk(&mut browser.0).await, b"x");
    stage.api.put(&format!("/tunnels/{open}/firewall"), rule("blacklist")).await;
    let mut rest = Vec::new();
    let _ = within(20, browser.0.read_to_end(&mut rest)).await;
    assert_eq!(rest, b"", "no last chunk");
}

#[both_engines]
async fn basic_auth_is_asked_before_anything_reaches_the_device(engine: Engine) {
    let stage = Stage::set(engine).await;
    let auth = json!({"http_basic_auth_enabled": true, "http_basic_auth_username": "ada", "http_basic_auth_password": "correct horse"});
    let tunnel = stage.create("locked", auth).await;
    stage.run(tunnel).await;
    let mut browser = stage.browser().await;
    let asked = async |browser: &mut Browser, password: &str| {
        let given = STANDARD.encode(format!("ada:{password}"));
        let request =
            format!("GET /echo HTTP/1.1\r\nHost: locked.tunnel.localhost\r\nAuthorization: Basic {given}\r\n\r\n");
        browser.send(&request).await
    };
    let (head, _) = browser.get("locked.tunnel.localhost", "/echo").await;
    assert_eq!(outcome(&head), "401 authorization_required");
    assert_eq!(header(&head, "www-authenticate"), Some("Basic realm=\"locked.tunnel.localhost\", charset=\"UTF-8\""));
    assert_eq!(stage.service.connections(), 0);
    for _ in 0..3 {
        let (head, body) = asked(&mut browser, "correct horse").await;
        assert_eq!(outcome(&head), "200");
        assert!(!String::from_utf8(body).unwrap().to_lowercase().contains("authorization"), "it is not the service's");
    }
    // Whoever asks for more at once than may be guessed has guessed nothing.
    let change = json!({"http_basic_auth_password": "battery staple"});
    assert_eq!(stage.api.patch(&format!("/tunnels/{tunnel}"), change).await.outcome(), "200");
    let mut others = join_all((0..30).map(|_| stage.browser())).await;
    let heads = join_all(others.iter_mut().map(async |browser| asked(browser, "battery staple").await.0)).await;
    assert_eq!(heads.iter().map(|head| outcome(head)).collect::<Vec<_>>(), vec!["200"; 30]);
    let change = json!({"http_basic_auth_password": "another one"});
    assert_eq!(stage.api.patch(&format!("/tunnels/{tunnel}"), change).await.outcome(), "200");
    assert_eq!(outcome(&asked(&mut browser, "correct horse").await.0), "401 authorization_required");
    for guess in 1..10 {
        let (head, _) = asked(&mut browser, &guess.to_string()).await;
        assert_eq!(outcome(&head), "401 authorization_required", "guess {guess}");
    }
    let (head, _) = asked(&mut browser, "eleven").await;
    assert_eq!((outcome(&head).as_str(), header(&head, "retry-after")), ("429 too_many_attempts", Some("60")));
}

/// Each chunk is passed on when it comes, in both directions.
#[both_engines]
async fn bodies_are_streamed(engine: Engine) {
    let stage = Stage::set(engine).await;
    stage.running("hello").await;
    let mut browser = stage.browser().await;
    let head = "POST /stream HTTP/1.1\r\nHost: hello.tunnel.localhost\r\nTransfer-Encoding: chunked\r\n\r\n";
    browser.0.write_all(head.as_bytes()).await.unwrap();
    for number in 0..5 {
        browser.0.write_all(format!("1\r\n{number}\r\n").as_bytes()).await.unwrap();
        if number == 0 {
            assert_eq!(outcome(&read_head(&mut browser.0).await.unwrap()), "200");
        }
        assert_eq!(within(20, read_chunk(&mut browser.0)).await, number.to_string().as_bytes());
    }
    browser.0.write_all(b"0\r\n\r\n").await.unwrap();
    assert_eq!(read_chunk(&mut browser.0).await, b"");
    assert_eq!(browser.outcome("hello.tunnel.localhost", "/echo").await, "200", "the connection goes on");
}

#[both_engines]
async fn connections_to_the_service_are_reused(engine: Engine) {
    let stage = Stage::set(engine).await;
    stage.running("hello").await;
    let mut browser = stage.browser().await;
    for _ in 0..20 {
        assert_eq!(browser.outcome("hello.tunnel.localhost", "/echo").await, "200");
    }
    assert!(stage.service.connections() <= 2, "{}", stage.service.connections());
    // A service may close its connection at any time.
    for _ in 0..5 {
        assert_eq!(browser.outcome("hello.tunnel.localhost", "/close").await, "200");
        assert_eq!(browser.outcome("hello.tunnel.localhost", "/echo").await, "200");
    }
}

#[both_engines]
async fn failures_of_the_service_are_told(engine: Engine) {
    let stage = Stage::set(engine).await;
    stage.running("hello").await;
    let gone = stage.create("gone", json!({"local_port": 1})).await;
    stage.device.start_tunnel(&gone.to_string()).await.unwrap();
    let mut browser = stage.browser().await;
    assert_eq!(browser.outcome("gone.tunnel.localhost", "/").await, "502 local_target_refused");
    assert_eq!(browser.outcome("hello.tunnel.localhost", "/garbage").await, "502 local_answer_invalid");
    // What was cut short must not look complete.
    browser.0.write_all(b"GET /half HTTP/1.1\r\nHost: hello.tunnel.localhost\r\n\r\n").await.unwrap();
    assert_eq!(outcome(&read_head(&mut browser.0).await.unwrap()), "200");
    let mut body = Vec::new();
    let _ = within(20, browser.0.read_to_end(&mut body)).await;
    assert_eq!(body, b"half!");
}

#[both_engines]
async fn agent_that_is_killed_cuts_its_answers(engine: Engine) {
    let Stage { host, api, device, service } = Stage::set(engine).await;
    let stage = Stage { host, api, device, service };
    let tunnel = stage.running("hello").await;
    let mut browser = stage.browser().await;
    let stream =
        "POST /stream HTTP/1.1\r\nHost: hello.tunnel.localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n";
    browser.0.write_all(stream.as_bytes()).await.unwrap();
    assert_eq!(outcome(&read_head(&mut browser.0).await.unwrap()), "200");
    assert_eq!(read_chunk(&mut browser.0).await, b"x");
    let Stage { host, api, device, .. } = stage;
    device.kill().await;
    let mut rest = Vec::new();
    let _ = within(20, browser.0.read_to_end(&mut rest)).await;
    assert_eq!(rest, b"", "no last chunk");
    assert_eq!(api.get(&format!("/tunnels/{tunnel}")).await.data()["runtime"]["running"], true);
    drop(host);
}

#[both_engines]
async fn websocket_is_carried(engine: Engine) {
    let stage = Stage::set(engine).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let mut socket = tokio_tungstenite::accept_async(stream).await.unwrap();
            while let Some(Ok(message)) = socket.next().await {
                if message.is_close() || socket.send(message).await.is_err() {
                    break;
                }
            }
        }
    });
    let tunnel = stage.create("chat", json!({"local_port": port})).await;
    stage.run(tunnel).await;
    let stream = stage.browser().await.0;
    let (mut socket, _) = tokio_tungstenite::client_async("ws://chat.tunnel.localhost/", stream).await.unwrap();
    for size in [0, 1, 70_000, 1_000_000] {
        let message = Message::binary(vec![7; size]);
        socket.send(message.clone()).await.unwrap();
        assert!(socket.next().await.unwrap().unwrap() == message);
    }
    // The end of the tunnel ends it.
    stage.device.stop_tunnel(&tunnel.to_string()).await.unwrap();
    assert!(!matches!(within(20, socket.next()).await, Some(Ok(_))));
}

#[both_engines]
async fn http_extra_port_has_a_name_of_its_own(engine: Engine) {
    let stage = Stage::set(engine).await;
    let other = WebService::start().await;
    let ports = json!({"extra_ports": [{"local_port": other.port, "protocol": "http"}]});
    let tunnel = stage.create("hello", ports).await;
    stage.run(tunnel).await;
    let extra = stage.api.get(&format!("/tunnels/{tunnel}")).await.data()["extra_ports"][0].clone();
    let name = format!("p{}-hello.tunnel.localhost", other.port);
    assert_eq!(extra["public_address"]["hostname"], name);
    assert_eq!(extra["remote_port"], stage.address().await.port());
    let mut browser = stage.browser().await;
    assert_eq!(browser.outcome(&name, "/echo").await, "200");
    assert_eq!((other.connections(), stage.service.connections()), (1, 0));
    let path = format!("/tunnels/{tunnel}/extra-ports/{}", extra["id"].as_str().unwrap());
    assert_eq!(stage.api.delete(&path).await.outcome(), "200");
    assert_eq!(browser.outcome(&name, "/echo").await, "404 no_such_tunnel");
    assert_eq!(browser.outcome("hello.tunnel.localhost", "/echo").await, "200");
}

/// What is counted: heads in the form of HTTP/1.1, and bodies without their framing, on the visitor's side.
#[both_engines]
async fn exchanges_are_counted(engine: Engine) {
    let stage = Stage::set(engine).await;
    let tunnel = stage.running("hello").await;
    let mut browser = stage.browser().await;
    let request = "POST /echo HTTP/1.1\r\nhost: hello.tunnel.localhost\r\ncontent-length: 5\r\n\r\nhello";
    let (head, body) = browser.send(request).await;
    assert_eq!(browser.outcome("nobody.tunnel.localhost", "/").await, "404 no_such_tunnel", "not counted");
    assert_eq!(stage.counted(tunnel).await, (request.len(), counted_head(&head) + body.len()));
}

/// Bytes that pass after the service has agreed count as they are.
#[both_engines]
async fn bytes_of_a_websocket_are_counted(engine: Engine) {
    let stage = Stage::set(engine).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let tunnel = stage.create("chat", json!({"local_port": listener.local_addr().unwrap().port()})).await;
    stage.run(tunnel).await;
    let served = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            // An agent looks whether the service is there.
            if read_head(&mut stream).await.is_some() {
                let agreed = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
                stream.write_all(agreed.as_bytes()).await.unwrap();
                let (mut reader, mut writer) = stream.split();
                tokio::io::copy(&mut reader, &mut writer).await.unwrap();
            }
        }
    });
    let mut browser = stage.browser().await;
    let request = "GET / HTTP/1.1\r\nhost: chat.tunnel.localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                   sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n";
    browser.0.write_all(request.as_bytes()).await.unwrap();
    let head = read_head(&mut browser.0).await.unwrap();
    assert_eq!(outcome(&head), "101");
    let mut echoed = [0; 1000];
    browser.0.write_all(&echoed).await.unwrap();
    within(20, browser.0.read_exact(&mut echoed)).await.unwrap();
    // It goes on meanwhile.
    assert_eq!(stage.counted(tunnel).await, (request.len() + 1000, counted_head(&head) + 1000));
    drop(browser);
    served.abort();
}

/// An exchange that is cut counts what has moved, once, whoever cuts it.
#[both_engines]
async fn cut_exchanges_are_counted_once(engine: Engine) {
    let stage = Stage::set(engine).await;
    let tunnel = stage.running("hello").await;
    let half = "GET /half HTTP/1.1\r\nhost: hello.tunnel.localhost\r\n\r\n";
    let mut browser = stage.browser().await;
    browser.0.write_all(half.as_bytes()).await.unwrap();
    let head = read_head(&mut browser.0).await.unwrap();
    let mut body = Vec::new();
    let _ = within(20, browser.0.read_to_end(&mut body)).await;
    assert_eq!(body, b"half!", "of ten bytes");
    let upload = "POST /echo HTTP/1.1\r\nhost: hello.tunnel.localhost\r\ncontent-length: 10\r\n\r\nhalf!";
    let mut browser = stage.browser().await;
    browser.0.write_all(upload.as_bytes()).await.unwrap();
    let expected = (half.len() + upload.len(), counted_head(&head) + body.len());
    stage.host.until_found(async || (stage.counted(tunnel).await == expected).then_some(())).await;
    drop(browser);
    stage.host.until_visitors("http", 0).await;
    assert_eq!(stage.counted(tunnel).await, expected);
}

/// A tunnel whose owner asks for HTTPS is no longer served in the clear.
#[both_engines]
async fn tunnel_that_wants_https_is_not_served_in_the_clear(engine: Engine) {
    let stage = Stage::set(engine).await;
    let tunnel = stage.running("hello").await;
    let change = json!({"http_ssl_enabled": true});
    assert_eq!(stage.api.patch(&format!("/tunnels/{tunnel}"), change).await.outcome(), "200");
    let mut browser = stage.browser().await;
    assert_eq!(browser.outcome("hello.tunnel.localhost", "/echo").await, "308");
    assert_eq!(stage.service.connections(), 0);
}

/// A body in chunks is passed on whatever the method, and no header of a proxy can be forged.
#[both_engines]
async fn chunked_get_keeps_its_body_and_loses_forged_headers(engine: Engine) {
    let stage = Stage::set(engine).await;
    stage.running("hello").await;
    let request = "GET /echo HTTP/1.1\r\nHost: hello.tunnel.localhost\r\nTransfer-Encoding: chunked\r\n\
                   X-Forwarded-User: root\r\nX_Forwarded_For: 9.9.9.9\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    let (_, body) = stage.browser().await.send(request).await;
    let body = String::from_utf8(body).unwrap().to_lowercase();
    assert!(body.ends_with("\r\n\r\nhello"), "{body}");
    assert!(!body.contains("root") && !body.contains("9.9.9.9"), "{body}");
}

/// Trailers are passed on as headers are: without what proxies set.
#[both_engines]
async fn trailers_are_kept_and_lose_forged_headers(engine: Engine) {
    let stage = Stage::set(engine).await;
    stage.running("hello").await;
    let request = "POST /echo HTTP/1.1\r\nHost: hello.tunnel.localhost\r\nTransfer-Encoding: chunked\r\n\
                   Trailer: X-Checksum, X-Forwarded-For\r\n\r\n\
                   5\r\nhello\r\n0\r\nX-Checksum: 1\r\nX-Forwarded-For: 9.9.9.9\r\n\r\n";
    let (_, body) = stage.browser().await.send(request).await;
    let body = String::from_utf8(body).unwrap().to_lowercase();
    assert!(body.ends_with("\r\n\r\nhellox-checksum: 1\r\n"), "{body}");
}

/// A visitor who takes nothing of an answer does not hold up the end of the tunnel.
#[both_engines]
async fn visitor_who_takes_nothing_is_cut_off(engine: Engine) {
    let stage = Stage::set(engine).await;
    let tunnel = stage.running("hello").await;
    let mut browser = stage.browser().await;
    browser.0.write_all(b"GET /big HTTP/1.1\r\nHost: hello.tunnel.localhost\r\n\r\n").await.unwrap();
    assert_eq!(outcome(&read_head(&mut browser.0).await.unwrap()), "200");
    within(20, stage.device.stop_tunnel(&tunnel.to_string())).await.unwrap();
    let mut rest = Vec::new();
    let ended = within(20, browser.0.read_to_end(&mut rest)).await;
    assert_eq!(ended.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    assert_eq!(stage.browser().await.outcome("hello.tunnel.localhost", "/").await, "503 tunnel_offline");
}

/// A service that says nothing for the tunnel's `idle_timeout` is given up, and an answer that it has begun is cut.
#[both_engines]
async fn silent_service_is_given_up_after_idle_timeout(engine: Engine) {
    let stage = Stage::set(engine).await;
    let tunnel = stage.create("hello", json!({"idle_timeout": 30})).await;
    stage.run(tunnel).await;
    let (mut silent, mut stalled) = (stage.browser().await, stage.browser().await);
    assert_eq!(silent.outcome("hello.tunnel.localhost", "/echo").await, "200");
    silent.0.write_all(b"GET /silence HTTP/1.1\r\nHost: hello.tunnel.localhost\r\n\r\n").await.unwrap();
    stalled.0.write_all(b"GET /stall HTTP/1.1\r\nHost: hello.tunnel.localhost\r\n\r\n").await.unwrap();
    assert_eq!(outcome(&read_head(&mut stalled.0).await.unwrap()), "200");
    let mut half = [0; 5];
    stalled.0.read_exact(&mut half).await.unwrap();
    stage.host.until_visitors("http", 2).await;
    stage.device.advance_with_leases(&stage.host, tunnel, 30).await;
    assert_eq!(outcome(&within(20, read_head(&mut silent.0)).await.unwrap()), "504 local_target_silent");
    let cut = within(20, stalled.0.read(&mut half)).await;
    assert_eq!(cut.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
}

/// A visitor who does not send the rest of a request is told so. The service is not blamed for it.
#[both_engines]
async fn request_that_does_not_come_is_ended_after_idle_timeout(engine: Engine) {
    let stage = Stage::set(engine).await;
    let tunnel = stage.create("hello", json!({"idle_timeout": 30})).await;
    stage.run(tunnel).await;
    let mut browser = stage.browser().await;
    // The agent has reached the service.
    assert_eq!(browser.outcome("hello.tunnel.localhost", "/echo").await, "200");
    let request = b"POST /echo HTTP/1.1\r\nHost: hello.tunnel.localhost\r\nExpect: 100-continue\r\n\
                    Content-Length: 5\r\n\r\n";
    browser.0.write_all(request).await.unwrap();
    assert_eq!(outcome(&read_head(&mut browser.0).await.unwrap()), "100");
    stage.device.advance_with_leases(&stage.host, tunnel, 30).await;
    assert_eq!(outcome(&within(20, read_head(&mut browser.0)).await.unwrap()), "408 request_timeout");
}

/// More requests than a tunnel may have are answered, and more connections than an address may have are reset.
#[both_engines]
async fn too_many_visitors_are_refused(engine: Engine) {
    let host = TestHost::with(engine, |config| {
        config.node.visitors_per_tunnel = 2;
        config.node.http.connections_per_address = 4;
    });
    let stage = Stage::on(host.await).await;
    stage.running("hello").await;
    stage.running("other").await;
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut browser = stage.browser().await;
        browser.0.write_all(b"GET /stall HTTP/1.1\r\nHost: hello.tunnel.localhost\r\n\r\n").await.unwrap();
        assert_eq!(outcome(&read_head(&mut browser.0).await.unwrap()), "200");
        held.push(browser);
    }
    let mut third = stage.browser().await;
    let (head, _) = third.get("hello.tunnel.localhost", "/echo").await;
    assert_eq!((outcome(&head).as_str(), header(&head, "retry-after")), ("503 tunnel_busy", Some("1")));
    assert_eq!(third.outcome("other.tunnel.localhost", "/echo").await, "200");
    let _fourth = stage.browser().await;
    let address = stage.address().await;
    let fifth = async { TcpStream::connect(address).await?.read(&mut [0]).await };
    assert_eq!(within(20, fifth).await.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    drop(held.pop());
    let answered = async || Some(third.outcome("hello.tunnel.localhost", "/echo").await).filter(|said| said == "200");
    stage.host.until_found(answered).await;
}

/// A service whose backlog is full: the system answers no handshake.
#[both_engines]
async fn service_that_takes_no_connection_in_time_is_silent(engine: Engine) {
    let stage = Stage::set(engine).await;
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    socket.listen(0).unwrap();
    socket.set_nonblocking(true).unwrap();
    let listener = Arc::new(TcpListener::from_std(socket.into()).unwrap());
    let address = listener.local_addr().unwrap();
    let tunnel = stage.create("full", json!({"local_port": address.port()})).await;
    let accepting = listener.clone();
    let accepting = tokio::spawn(async move { while accepting.accept().await.is_ok() {} });
    stage.run(tunnel).await;
    accepting.abort();
    let _ = accepting.await;
    let _waiting = TcpStream::connect(address).await.unwrap();
    let mut browser = stage.browser().await;
    browser.0.write_all(b"GET / HTTP/1.1\r\nHost: full.tunnel.localhost\r\n\r\n").await.unwrap();
    // To this port, in the state SYN_SENT (proc(5)).
    let handshake = format!("0100007F:{:04X} 02 ", address.port());
    let sockets = async || std::fs::read_to_string("/proc/net/tcp").unwrap();
    stage.host.until_found(async || sockets().await.contains(&handshake).then_some(())).await;
    stage.device.advance_with_leases(&stage.host, tunnel, 10).await;
    assert_eq!(outcome(&within(20, read_head(&mut browser.0)).await.unwrap()), "504 local_target_silent");
}

/// A tunnel that is moved gets the name below the other node's domain.
#[both_engines]
async fn moved_tunnel_gets_the_name_of_the_other_domain(engine: Engine) {
    let address = own_address();
    let host = TestHost::with(engine, |config| {
        let mut second = second_node(config, address, "south.localhost");
        second.http_listen = Listen::At(SocketAddr::new(address, 0));
        config.extra_node.push(second);
    })
    .await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let nodes = host.app.store.nodes().await.unwrap();
    let (south, north): (Vec<_>, Vec<_>) = nodes.into_iter().partition(|node| node.hostname == address.to_string());
    let body = json!({"protocol": "http", "subdomain": "hello", "local_port": 80, "http_ssl_enabled": false});
    let tunnel = api.post("/tunnels", body).await.data().clone();
    let is_south = tunnel["public_address"]["hostname"] == "hello.south.localhost";
    let (from, to, domain) = if is_south { (&south, &north, "tunnel") } else { (&north, &south, "south") };
    let path = format!("/tunnels/{}", tunnel["id"].as_str().unwrap());
    let moved = api.post(&format!("{path}/move"), json!({"node_id": to[0].id})).await;
    assert!(moved.outcome().starts_with('2'), "{}", moved.outcome());
    let port = to[0].http_port.unwrap();
    let name = format!("hello.{domain}.localhost");
    let record = api.get(&path).await.data().clone();
    assert_eq!(record["public_address"]["url"], format!("http://{name}:{port}"));
    let at =
        |node: &culvert_domain::node::Node| SocketAddr::new(node.hostname.parse().unwrap(), node.http_port.unwrap());
    assert_eq!(Browser::open(at(&to[0])).await.outcome(&name, "/").await, "503 tunnel_offline");
    assert_eq!(Browser::open(at(&from[0])).await.outcome(&name, "/").await, "404 no_such_tunnel");
}

/// An earlier version named the domain of subdomains like the node. It gets the name of `node.domain`, once.
#[both_engines]
async fn domain_of_an_earlier_version_is_renamed(engine: Engine) {
    let host = TestHost::with(engine, |config| {
        (config.node.domain, config.node.http_listen) = (None, Listen::Off);
    })
    .await;
    let api = host.api(&host.person("ada").await.key);
    let node = host.app.store.nodes().await.unwrap().remove(0);
    let tunnel = api.post("/tunnels", json!({"local_port": 80, "subdomain": "hello"})).await.id();
    let named = async || {
        let tunnel = api.get(&format!("/tunnels/{tunnel}")).await.data().clone();
        tunnel["public_address"]["hostname"].as_str().unwrap().to_owned()
    };
    assert_eq!(named().await, format!("hello.{}", node.hostname));
    for (domain, expected) in [("a.example", "hello.a.example"), ("b.example", "hello.a.example")] {
        let registration = NodeRegistration {
            id: node.id,
            name: node.name.clone(),
            hostname: node.hostname.clone(),
            ports: node.ports,
            knows_countries: false,
            domain: Some(domain.into()),
            http_port: Some(80),
            https_port: None,
            agent_address: String::new(),
        };
        catalog::register_node(&host.app.store, registration).await.unwrap();
        assert_eq!(named().await, expected);
    }
    let body = json!({"protocol": "http", "local_port": 80, "subdomain": "hello", "http_ssl_enabled": false});
    let new = api.post("/tunnels", body).await.data()["public_address"]["url"].clone();
    assert_eq!(new, "http://hello.b.example", "new tunnels get the node's present domain");
}

#[both_engines]
async fn agent_that_is_too_old_gets_no_http_tunnel(engine: Engine) {
    let stage = Stage::set(engine).await;
    let grace = stage.host.person("grace").await;
    let api = stage.host.api(&grace.key);
    let known: Vec<&str> =
        Capability::ALL.into_iter().filter(|capability| *capability != Capability::DATA_CHANNEL_V2).collect();
    let (device, _wire) = stage.host.wired_with(&grace, grace.account_id, &known).await;
    let body = json!({"protocol": "http", "local_port": 80, "http_ssl_enabled": false});
    let tunnel = api.post("/tunnels", body).await.id();
    let start = api.post(&format!("/tunnels/{tunnel}/actions/start"), json!({"device_id": device.id})).await;
    assert_eq!(start.outcome(), "409 upgrade_required");
}

#[both_engines]
async fn node_without_http_listener_takes_no_http_tunnel(engine: Engine) {
    let host = TestHost::with(engine, |config| config.node.http_listen = Listen::Off).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let body = json!({"protocol": "http", "local_port": 80, "http_ssl_enabled": false});
    assert_eq!(api.post("/tunnels", body).await.outcome(), "409 node_unavailable");
}

/// A browser that nobody here wrote: curl, by the address that the API gives.
#[both_engines]
async fn curl_reaches_tunnel_by_its_url(engine: Engine) {
    let stage = Stage::set(engine).await;
    let tunnel = stage.running("hello").await;
    let address = stage.address().await;
    let url = stage.api.get(&format!("/tunnels/{tunnel}")).await.data()["public_address"]["url"].clone();
    let url = format!("{}/echo", url.as_str().unwrap());
    let resolve = format!("hello.tunnel.localhost:{}:{}", address.port(), address.ip());
    let fetched = tokio::task::spawn_blocking(move || {
        Command::new("curl").args(["-sS", "--max-time", "20", "--resolve", &resolve, "-d", "by curl", &url]).output()
    });
    let fetched = fetched.await.unwrap().unwrap();
    let body = String::from_utf8(fetched.stdout).unwrap();
    assert!(body.starts_with("POST /echo HTTP/1.1\r\n") && body.ends_with("by curl"), "{body}");
}

/// A body of many MiB is neither collected nor limited.
#[both_engines]
async fn large_bodies_pass_both_ways(engine: Engine) {
    let stage = Stage::set(engine).await;
    stage.running("hello").await;
    let mut browser = stage.browser().await;
    let size = 16 * 1024 * 1024;
    let head = format!("POST /echo HTTP/1.1\r\nHost: hello.tunnel.localhost\r\nContent-Length: {size}\r\n\r\n");
    browser.0.write_all(head.as_bytes()).await.unwrap();
    browser.0.write_all(&vec![7; size]).await.unwrap();
    let head = read_head(&mut browser.0).await.unwrap();
    let body = crate::support::web::read_body(&mut browser.0, &head).await;
    assert!(body.ends_with(&vec![7; size]));
}

/// What nodes answer, refuse and pass on is counted for `/metrics`.
#[both_engines]
async fn answers_and_visits_are_counted(engine: Engine) {
    let stage = Stage::set(engine).await;
    stage.running("hello").await;
    let more = json!({
        "http_basic_auth_enabled": true, "http_basic_auth_username": "ada", "http_basic_auth_password": "correct horse",
    });
    let secret = stage.create("secret", more).await;
    stage.run(secret).await;
    let mut browser = stage.browser().await;
    for (name, seen) in [
        ("hello.tunnel.localhost", "200"),
        ("secret.tunnel.localhost", "401 authorization_required"),
        ("nothing.tunnel.localhost", "404 no_such_tunnel"),
    ] {
        assert_eq!(browser.outcome(name, "/echo").await, seen);
    }
    let node = stage.host.app.store.nodes().await.unwrap().remove(0);
    let mut strange = TcpStream::connect((node.hostname.as_str(), node.https_port.unwrap())).await.unwrap();
    strange.write_all(b"this is no handshake").await.unwrap();
    let mut rest = Vec::new();
    let _ = within(20, strange.read_to_end(&mut rest)).await;
    drop(browser);
    for figure in [
        r#"culvert_edge_requests_total{status_class="2xx"}"#,
        r#"culvert_edge_pages_total{code="authorization_required"}"#,
        r#"culvert_edge_pages_total{code="no_such_tunnel"}"#,
        r#"culvert_edge_basic_auth_total{outcome="refused"}"#,
        r#"culvert_edge_handshakes_total{outcome="failed"}"#,
    ] {
        within(20, stage.host.until_found(async || stage.host.metric(figure).await.filter(|count| *count == 1.0)))
            .await;
    }
    for (figure, seen) in [
        (r#"culvert_edge_requests_total{status_class="4xx"}"#, 2.0),
        ("culvert_edge_request_duration_seconds_count", 3.0),
        ("culvert_node_visit_wait_seconds_count", 1.0),
        (r#"culvert_node_visitors{kind="http"}"#, 0.0),
        // The connection to the service is kept for the next request.
        (r#"culvert_node_carriers{transport="tls",state="busy"}"#, 1.0),
        ("culvert_node_unproven", 0.0),
    ] {
        let found = async || stage.host.metric(figure).await.filter(|count| *count == seen);
        within(20, stage.host.until_found(found)).await;
    }
    let warm = r#"culvert_node_carriers{transport="tls",state="warm"}"#;
    within(20, stage.host.until_found(async || stage.host.metric(warm).await.filter(|count| *count >= 1.0))).await;
}

/// The end of a lease of which the device has heard is followed by a new one, while its agent is connected.
#[both_engines]
async fn http_tunnel_is_resumed_by_its_connected_device(engine: Engine) {
    let stage = Stage::set(engine).await;
    let tunnel = stage.running("hello").await;
    let lease = stage.host.app.store.lease_of_tunnel(tunnel).await.unwrap().unwrap();
    let store = &stage.host.app.store;
    sessions::end_all(store, lease.scope_id, vec![lease.session_id], EndReason::Error).await.unwrap();
    stage.host.until_found(async || stage.device.tunnels().await.is_empty().then_some(())).await;
    stage.host.clock.advance(Duration::from_secs(10));
    stage.host.until_tunnel(&stage.api, tunnel, "running").await;
    assert_eq!(stage.browser().await.outcome("hello.tunnel.localhost", "/").await, "200");
}
