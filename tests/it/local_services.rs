//! What a local service is told of its visitors, and how it is spoken to: PROXY protocol, TLS, and TLS that is passed
//! through. Proxies and services are haproxy and nginx.

use std::net::SocketAddr;
use std::process::Output;
use std::time::Duration;

use culvert::config::Config;
use culvert_test_macros::both_engines;
use culvert_wire::clock::Clock;
use insta::{allow_duplicates, assert_snapshot};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tokio::process::Command;
use uuid::Uuid;

use crate::support::api::Api;
use crate::support::device::{Remote, TestDevice};
use crate::support::host::{Engine, TestHost, own_address, within};
use crate::support::proxies::{Proxy, SERVICE};
use crate::support::visitor::{Visitor, echo_service, reached_at};
use crate::support::web::{Browser, WebService, header, outcome, read_head};

/// Where visitors come from.
const ADA: &str = "127.0.1.1";
const EVE: &str = "127.0.1.2";

struct Stage {
    host: TestHost,
    api: Api,
    device: TestDevice,
}

impl Stage {
    async fn set(engine: Engine) -> Self {
        Self::with(engine, |_| {}).await
    }

    async fn with(engine: Engine, change: impl FnOnce(&mut Config)) -> Self {
        let host = TestHost::at_present(engine, change).await;
        let ada = host.person("ada").await;
        let api = host.api(&ada.key);
        let device = host.device(&ada, ada.account_id, Remote::Enabled).await;
        Self { host, api, device }
    }

    async fn running(&self, tunnel: Value) -> Uuid {
        let tunnel = self.api.post("/tunnels", tunnel).await.id();
        self.host.run_tunnel(&self.api, &self.device, tunnel).await;
        tunnel
    }

    /// A running http tunnel in the clear to a service at an address.
    async fn web(&self, name: &str, service: SocketAddr, more: &Value) -> Uuid {
        let mut tunnel = json!({
            "protocol": "http", "subdomain": name, "local_host": service.ip().to_string(), "local_port": service.port(),
            "http_ssl_enabled": false,
        });
        tunnel.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.running(tunnel).await
    }

    async fn change(&self, tunnel: Uuid, patch: Value) {
        let changed = self.api.patch(&format!("/tunnels/{tunnel}"), patch).await;
        assert_eq!(changed.status, 200, "{}", changed.outcome());
        self.host.app.service.nodes().wait_until_applied(self.host.app.service.nodes().ids()).await;
        let record = changed.data();
        let wanted = format!("{:?}", record["proxy_protocol"].as_str().unwrap());
        self.host
            .until_found(async || {
                let status = self.device.status().await;
                let tunnel = status.tunnels.into_iter().find(|running| running.tunnel_id == tunnel)?;
                (serde_json::to_string(&tunnel.proxy_protocol).unwrap() == wanted).then_some(())
            })
            .await;
    }

    async fn https(&self) -> SocketAddr {
        let node = self.host.app.store.nodes().await.unwrap().remove(0);
        SocketAddr::new(node.hostname.parse().unwrap(), node.https_port.unwrap())
    }

    /// curl, which finds all names at the node.
    async fn curl(&self, arguments: &[&str]) -> Output {
        let (http, https) = (self.host.http_address().await, self.https().await);
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--max-time", "20"]);
        for address in [http, https] {
            curl.args(["--resolve", &format!("*:{}:{}", address.port(), address.ip())]);
        }
        curl.args(arguments).output().await.unwrap()
    }
}

/// A connection from an address of the visitor's own.
async fn come(source: &str, address: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(source.parse().unwrap(), 0)).unwrap();
    within(20, socket.connect(address)).await.unwrap()
}

/// What haproxy has read of the header.
const TELLS: &str = "frontend service\n mode http\n bind ADDRESS:8000 accept-proxy\n http-request return status 200 \
                     content-type text/plain lf-string \"%[src]:%[src_port] at %[dst]:%[dst_port] asks for \
                     %[fc_pp_authority], visit %[fc_pp_unique_id]\"\n";

#[both_engines]
async fn tcp_service_is_told_who_the_visitor_is(engine: Engine) {
    let (stage, service) = (Stage::set(engine).await, Proxy::haproxy(TELLS, 8000).await);
    let target = json!({"local_host": service.address.to_string(), "local_port": 8000, "proxy_protocol": "v1"});
    let tunnel = stage.running(target).await;
    let public = stage.host.public(&stage.api, tunnel).await;
    let told = async || {
        let mut visitor = Browser(come(ADA, public).await);
        let own = visitor.0.local_addr().unwrap();
        let (_, body) = within(20, visitor.get("anything", "/")).await;
        let body = String::from_utf8(body).unwrap();
        body.replace(&own.to_string(), "[visitor]").replace(&public.to_string(), "[public]")
    };
    let line = told().await;
    allow_duplicates! { assert_snapshot!(line, @"[visitor] at [public] asks for , visit"); }
    stage.change(tunnel, json!({"proxy_protocol": "v2"})).await;
    let header = told().await;
    allow_duplicates! { assert_snapshot!(header, @"[visitor] at [public] asks for , visit 2"); }
    // A service that expects none reads it as a part of what the visitor says.
    stage.change(tunnel, json!({"proxy_protocol": "none"})).await;
    let mut visitor = Browser(come(ADA, public).await);
    visitor.0.write_all(b"GET / HTTP/1.1\r\nHost: anything\r\n\r\n").await.unwrap();
    assert_eq!(within(20, read_head(&mut visitor.0)).await, None, "haproxy closes what has no header");
}

/// Requests of two visitors in turn: each comes on a connection that says the right name and address.
#[both_engines]
async fn http_service_is_told_who_each_visitor_is(engine: Engine) {
    let (stage, service) = (Stage::set(engine).await, Proxy::haproxy(TELLS, 8000).await);
    stage.web("hello", service.at(8000), &json!({"proxy_protocol": "v2"})).await;
    let http = stage.host.http_address().await;
    let mut visitors = [Browser(come(ADA, http).await), Browser(come(EVE, http).await)];
    let mut told = Vec::new();
    for _ in 0..3 {
        for visitor in &mut visitors {
            let own = visitor.0.local_addr().unwrap();
            let (head, body) = within(20, visitor.get("hello.tunnel.localhost", "/")).await;
            assert_eq!(outcome(&head), "200");
            let body = String::from_utf8(body).unwrap().replace(&http.to_string(), "[public]");
            assert!(body.starts_with(&own.to_string()), "{body} for {own}");
            told.push(body.replace(&own.to_string(), "[visitor]"));
        }
    }
    // A connection for each visitor, and no more.
    allow_duplicates! { assert_snapshot!(told.join("\n"), @r"
    [visitor] at [public] asks for hello.tunnel.localhost, visit 1
    [visitor] at [public] asks for hello.tunnel.localhost, visit 2
    [visitor] at [public] asks for hello.tunnel.localhost, visit 1
    [visitor] at [public] asks for hello.tunnel.localhost, visit 2
    [visitor] at [public] asks for hello.tunnel.localhost, visit 1
    [visitor] at [public] asks for hello.tunnel.localhost, visit 2
    "); }
}

/// haproxy in front of a public port says who the visitor is, and the rules are for that address.
#[both_engines]
async fn trusted_proxy_says_who_comes_to_a_port(engine: Engine) {
    let front = own_address();
    let stage = Stage::with(engine, |config| {
        config.node.trusted_proxies = vec![format!("{front}/32").parse().unwrap()];
    })
    .await;
    let tunnel = stage.running(json!({"local_port": echo_service().await.port()})).await;
    let public = stage.host.public(&stage.api, tunnel).await;
    for send in ["send-proxy", "send-proxy-v2"] {
        let sections =
            format!("listen front\n mode tcp\n bind ADDRESS:9000\n server node {public} {send} source {front}\n");
        let proxy = Proxy::haproxy(&sections, 9000).await;
        let rules = json!({"rules": [{"rule_type": "blacklist", "ip_address": EVE}]});
        stage.api.put(&format!("/tunnels/{tunnel}/firewall"), rules).await;
        stage.host.app.service.nodes().wait_until_applied(stage.host.app.service.nodes().ids()).await;
        assert!(Visitor::from(ADA, proxy.at(9000)).await.is_some(), "{send}");
        let mut turned_away = come(EVE, proxy.at(9000)).await;
        let ended = within(20, turned_away.read_to_end(&mut Vec::new())).await;
        assert!(ended.is_err() || ended.unwrap() == 0, "{send}");
    }
    // Whoever is not trusted cannot say anything: it is a part of the stream.
    let mut stranger = Visitor(come(ADA, public).await);
    let header = b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n";
    assert_eq!(within(20, stranger.echo(header)).await.unwrap(), header);
}

/// On a port, a proxy must say it, within three seconds.
#[both_engines]
async fn trusted_proxy_that_says_nothing_is_turned_away(engine: Engine) {
    let stage = Stage::with(engine, |config| {
        config.node.trusted_proxies = vec![format!("{ADA}/32").parse().unwrap()];
    })
    .await;
    let tunnel = stage.running(json!({"local_port": echo_service().await.port()})).await;
    let public = stage.host.public(&stage.api, tunnel).await;
    let signature = b"\r\n\r\n\0\r\nQUIT\n";
    for begin in [
        b"hello".to_vec(),
        b"PROXY TCP4 192.0.2.1\r\n".to_vec(),
        b"PROXY TCP4 192.0.2.1 192.0.2.2 1 65536\r\n".to_vec(),
        [&b"PROXY "[..], &[b'x'; 2000]].concat(),
        // Version 3; addresses that are too short; more than is ever read.
        [&signature[..], b"\x31\x11\0\x0c", &[1; 12]].concat(),
        [&signature[..], b"\x21\x11\0\x04", &[1; 4]].concat(),
        [&signature[..], b"\x21\x11\xff\xff", &[1; 2000]].concat(),
    ] {
        let mut proxy = Visitor(come(ADA, public).await);
        proxy.0.write_all(&begin).await.unwrap();
        assert!(within(20, proxy.was_reset()).await, "{begin:?}");
    }
    // What names nobody is taken off, and the proxy is the visitor.
    for anonymous in [b"PROXY UNKNOWN\r\n".to_vec(), [&signature[..], b"\x20\0\0\0"].concat()] {
        let mut proxy = Visitor(come(ADA, public).await);
        proxy.0.write_all(&anonymous).await.unwrap();
        assert_eq!(within(20, proxy.echo(b"healthy?")).await.unwrap(), b"healthy?");
    }
    let clock = &stage.host.clock;
    // The agent has its connections, whose first bytes are waited for as long as a header.
    stage
        .host
        .until_found(async || {
            let status = stage.device.status().await;
            status.nodes.first().filter(|node| node.transport == "TLS + QUIC").map(drop)
        })
        .await;
    for too_little in [&b""[..], b"PRO", b"PROXY TCP4 192.0.2.1 192.0.2.2 1", &signature[..]] {
        let mut proxy = Visitor(come(ADA, public).await);
        proxy.0.write_all(too_little).await.unwrap();
        // One more of them may come meanwhile: then the wait for it is over first.
        let time_passes = async {
            loop {
                clock.until_awaited(clock.moment().plus(Duration::from_secs(3))).await;
                clock.advance(Duration::from_secs(3));
            }
        };
        let was_reset = within(20, async {
            tokio::select! {
                was_reset = proxy.was_reset() => was_reset,
                never = time_passes => never,
            }
        });
        assert!(was_reset.await, "{too_little:?}");
    }
    let mut patient = Visitor(come(ADA, public).await);
    for piece in [&b"PROXY TCP4 192.0.2.1"[..], b" 192.0.2.2 1 2\r\none"] {
        patient.0.write_all(piece).await.unwrap();
    }
    let mut echoed = [0; 3];
    within(20, patient.0.read_exact(&mut echoed)).await.unwrap();
    assert_eq!(&echoed, b"one");
    clock.advance(Duration::from_secs(3));
    assert_eq!(within(20, patient.echo(b"two")).await.unwrap(), b"two");
}

/// On a listener for http tunnels a proxy may say it, before TLS or HTTP.
#[both_engines]
async fn trusted_proxy_says_who_comes_to_a_name(engine: Engine) {
    let front = own_address();
    let stage = Stage::with(engine, |config| {
        config.node.trusted_proxies = vec![format!("{front}/32").parse().unwrap()];
    })
    .await;
    let service = WebService::start().await;
    stage.web("hello", ([127, 0, 0, 1], service.port).into(), &json!({})).await;
    let (http, https) = (stage.host.http_address().await, stage.https().await);
    let sections = format!(
        "listen clear\n mode tcp\n bind ADDRESS:9000\n server node {http} send-proxy source {front}\n\
         listen tls\n mode tcp\n bind ADDRESS:9001\n server node {https} send-proxy-v2 source {front}\n"
    );
    let proxy = Proxy::haproxy(&sections, 9001).await;
    let mut seen = Vec::new();
    for url in ["http://hello.tunnel.localhost:9000/", "https://hello.tunnel.localhost:9001/"] {
        let root = stage.host.config().ca_dir().join("tunnel.localhost/root.pem");
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--max-time", "20", "--interface", ADA, "--cacert"]).arg(root);
        for port in [9000, 9001] {
            curl.args(["--resolve", &format!("hello.tunnel.localhost:{port}:{}", proxy.address)]);
        }
        let output = curl.arg(url).output().await.unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        seen.extend(said.lines().filter(|line| line.starts_with("x-forwarded-for")).map(String::from));
    }
    assert_eq!(seen, [format!("x-forwarded-for: {ADA}"), format!("x-forwarded-for: {ADA}")]);
    // Without a header, the headers of the request are believed.
    let mut silent = Browser(come(&front.to_string(), http).await);
    let request = "GET /echo HTTP/1.1\r\nHost: hello.tunnel.localhost\r\nX-Forwarded-For: 192.0.2.9\r\n\r\n";
    let (_, body) = within(20, silent.send(request)).await;
    assert!(String::from_utf8(body).unwrap().contains("x-forwarded-for: 192.0.2.9\r\n"));
    // From anybody else, it is no HTTP.
    let mut stranger = Browser(come(EVE, http).await);
    let forged = "PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\nGET / HTTP/1.1\r\nHost: hello.tunnel.localhost\r\n\r\n";
    assert_eq!(outcome(&within(20, stranger.send(forged)).await.0), "400");
}

/// What nginx has seen.
const SAW: &str = "$server_protocol over $scheme for $ssl_server_name and $http_host, from $proxy_protocol_addr";

#[both_engines]
async fn service_is_spoken_to_over_tls(engine: Engine) {
    let stage = Stage::set(engine).await;
    let service = Proxy::nginx("ssl http2", 8443, SAW).await;
    // 8443 is a port of TLS, and an address of the device's own network needs no certificate of an authority.
    let tunnel = stage.web("hello", service.at(8443), &json!({"host_header": "service.internal:81"})).await;
    let mut visitor = Browser::open(stage.host.http_address().await).await;
    let mut ask = async || {
        let (head, body) = within(20, visitor.get("hello.tunnel.localhost", "/")).await;
        format!("{} {}", outcome(&head), String::from_utf8(body).unwrap().lines().next().unwrap_or_default())
    };
    assert_eq!(ask().await, "200 HTTP/2.0 over https for service.internal and service.internal:81, from ");
    // A change is followed as soon as the agent knows it: no connection to the former target is used for long.
    for (change, answer) in [
        // An address is no name (RFC 6066, section 3).
        (json!({"host_header": null}), "200 HTTP/2.0 over https for  and hello.tunnel.localhost, from "),
        (json!({"local_tls_verify": true}), "502 local_tls_failed"),
        (
            json!({"local_tls_verify": false, "local_scheme": "https"}),
            "200 HTTP/2.0 over https for  and hello.tunnel.localhost",
        ),
        // nginx wants TLS.
        (json!({"local_scheme": "http"}), "400 "),
    ] {
        stage.change(tunnel, change).await;
        let followed = async { while !ask().await.starts_with(answer) {} };
        within(20, followed).await;
    }
}

/// A service that chooses HTTP/1.1, and one that makes no TLS.
#[both_engines]
async fn service_over_tls_chooses_its_version(engine: Engine) {
    let stage = Stage::set(engine).await;
    let old = Proxy::nginx("ssl proxy_protocol", 9443, SAW).await;
    let settings = json!({"local_scheme": "https", "host_header": "service.internal", "proxy_protocol": "v2"});
    stage.web("hello", old.at(9443), &settings).await;
    let clear = WebService::start().await;
    stage.web("clear", ([127, 0, 0, 1], clear.port).into(), &json!({"local_scheme": "https"})).await;
    let http = stage.host.http_address().await;
    for source in [ADA, EVE, ADA] {
        let mut visitor = Browser(come(source, http).await);
        for _ in 0..2 {
            let (_, body) = within(20, visitor.get("hello.tunnel.localhost", "/")).await;
            let expected = format!("HTTP/1.1 over https for service.internal and service.internal, from {source}");
            assert_eq!(String::from_utf8(body).unwrap(), expected);
        }
    }
    let mut visitor = Browser::open(http).await;
    let clock = &stage.host.clock;
    let answered = async { tokio::join!(visitor.outcome("clear.tunnel.localhost", "/"), given_up(clock)).0 };
    assert_eq!(within(20, answered).await, "502 local_tls_failed");
}

/// Lets the time pass that a service has to make TLS.
async fn given_up(clock: &Clock) {
    let limit = Duration::from_secs(4);
    clock.until_awaited(clock.moment().plus(limit)).await;
    clock.advance(limit);
}

/// The visitor makes TLS with the service: its certificate, its protocol, and the visitor's address in front.
#[both_engines]
async fn tls_is_passed_through(engine: Engine) {
    let stage = Stage::set(engine).await;
    let service = Proxy::nginx("ssl http2 proxy_protocol", 8443, SAW).await;
    let passed = json!({"tls_passthrough": true, "http_ssl_enabled": true, "proxy_protocol": "v2"});
    let tunnel = stage.web("own", service.at(8443), &passed).await;
    let own_certificate = service.certificate();
    let https = stage.https().await;
    let url = format!("https://{SERVICE}:{}/", https.port());
    let fetch = async |source: &str| {
        let certificate = own_certificate.to_str().unwrap();
        let output = stage.curl(&["--interface", source, "--cacert", certificate, &url]).await;
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let expected = format!("HTTP/2.0 over https for {SERVICE} and {SERVICE}:{}, from {ADA}", https.port());
    assert_eq!(fetch(ADA).await, (Some(0), expected));
    // In the clear, it is sent to HTTPS.
    let mut browser = Browser::open(stage.host.http_address().await).await;
    let (head, _) = within(20, browser.get(SERVICE, "/a?b")).await;
    assert_eq!(outcome(&head), "308");
    assert_eq!(header(&head, "location"), Some(&*format!("https://{SERVICE}:{}/a?b", https.port())));
    // A connection to another name is not for this one, whatever its certificate covers.
    let other = WebService::start().await;
    stage.web("hello", ([127, 0, 0, 1], other.port).into(), &json!({"http_ssl_enabled": true})).await;
    let root = stage.host.config().ca_dir().join("tunnel.localhost/root.pem");
    let hello = format!("https://hello.tunnel.localhost:{}/echo", https.port());
    let misdirected = format!("Host: {SERVICE}");
    let outcome = ["-o", "/dev/null", "-w", "%{http_code} "];
    let asked =
        stage.curl(&[&["--http1.1", "--cacert", root.to_str().unwrap()], &outcome[..], &[&hello]].concat()).await;
    assert_eq!(String::from_utf8(asked.stdout).unwrap(), "200 ");
    let asked = stage
        .curl(
            &[&["--http1.1", "--cacert", root.to_str().unwrap(), "-H", &misdirected], &outcome[..], &[&hello]].concat(),
        )
        .await;
    assert_eq!(String::from_utf8(asked.stdout).unwrap(), "421 ");
    // The rules are for connections.
    let rules = json!({"rules": [{"rule_type": "blacklist", "ip_address": EVE}]});
    stage.api.put(&format!("/tunnels/{tunnel}/firewall"), rules).await;
    stage.host.app.service.nodes().wait_until_applied(stage.host.app.service.nodes().ids()).await;
    assert_eq!(fetch(EVE).await.0, Some(35), "the handshake fails");
    assert_eq!(fetch(ADA).await.0, Some(0));
    // A name that nobody has ends the handshake.
    let unknown = stage.curl(&["-k", &format!("https://unknown.example:{}/", https.port())]).await;
    assert_eq!(unknown.status.code(), Some(35));
    // As before, with the node's certificate.
    stage.change(tunnel, json!({"tls_passthrough": false, "proxy_protocol": "none", "local_scheme": "https"})).await;
    let again = stage.curl(&["--cacert", root.to_str().unwrap(), "-o", "/dev/null", "-w", "%{http_code}", &url]).await;
    assert_eq!(String::from_utf8(again.stdout).unwrap(), "502", "nginx expects a header that nobody sends now");
}

/// A first message in many pieces is put together, and one without end is not waited for.
#[both_engines]
async fn handshake_in_pieces_is_passed_through(engine: Engine) {
    let stage = Stage::set(engine).await;
    let service = echo_service().await;
    let tunnel = stage.web("own", service, &json!({"tls_passthrough": true, "http_ssl_enabled": true})).await;
    let https = stage.https().await;
    let hello = client_hello(SERVICE);
    let mut visitor = come(ADA, https).await;
    visitor.set_nodelay(true).unwrap();
    for piece in hello.chunks(7) {
        visitor.write_all(piece).await.unwrap();
        visitor.flush().await.unwrap();
    }
    let mut echoed = vec![0; hello.len()];
    within(20, visitor.read_exact(&mut echoed)).await.unwrap();
    assert!(echoed == hello, "the service has got every byte");
    // Both directions are counted, as the service has them.
    drop(visitor);
    stage.device.stop_tunnel(&tunnel.to_string()).await.unwrap();
    stage.host.until_tunnel(&stage.api, tunnel, "stopped").await;
    let usage = stage.api.get(&format!("/tunnels/{tunnel}/usage")).await.data().clone();
    let today = &usage["bandwidth"]["today"];
    assert_eq!((&today["bytes_in"], &today["bytes_out"]), (&json!(hello.len()), &json!(hello.len())), "{usage}");
}

/// Whoever was let in without a password is cut off when one is asked for.
#[both_engines]
async fn end_of_pass_through_ends_its_visitors(engine: Engine) {
    let stage = Stage::set(engine).await;
    let passed = json!({"tls_passthrough": true, "http_ssl_enabled": true});
    let tunnel = stage.web("own", echo_service().await, &passed).await;
    let hello = client_hello(SERVICE);
    let mut visitor = Visitor(come(ADA, stage.https().await).await);
    assert!(within(20, visitor.echo(&hello)).await.unwrap() == hello);
    // Another change leaves it alone.
    stage.change(tunnel, json!({"name": "another"})).await;
    assert_eq!(within(20, visitor.echo(b"still there")).await.unwrap(), b"still there");
    let change = json!({
        "tls_passthrough": false, "http_basic_auth_enabled": true, "http_basic_auth_username": "ada",
        "http_basic_auth_password": "correct horse",
    });
    stage.change(tunnel, change).await;
    assert!(within(20, visitor.was_reset()).await);
}

/// A trusted proxy that does not say who its visitor is brings nobody to a service that makes TLS itself: nothing later
/// could say it.
#[both_engines]
async fn pass_through_needs_the_visitors_address(engine: Engine) {
    let stage = Stage::with(engine, |config| {
        config.node.trusted_proxies = vec![format!("{ADA}/32").parse().unwrap()];
    })
    .await;
    let passed = json!({"tls_passthrough": true, "http_ssl_enabled": true});
    stage.web("own", echo_service().await, &passed).await;
    let (https, hello) = (stage.https().await, client_hello(SERVICE));
    let mut unnamed = Visitor(come(ADA, https).await);
    unnamed.0.write_all(&hello).await.unwrap();
    assert!(within(20, unnamed.was_reset()).await);
    let mut named = Visitor(come(ADA, https).await);
    named.0.write_all(b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n").await.unwrap();
    assert!(within(20, named.echo(&hello)).await.unwrap() == hello);
}

#[both_engines]
async fn handshake_that_does_not_come_is_not_waited_for(engine: Engine) {
    // No other wait is as long.
    let limit = Duration::from_millis(7_777);
    let stage = Stage::with(engine, |config| config.node.http.handshake_timeout_ms = limit.as_millis() as u64).await;
    let passed = json!({"tls_passthrough": true, "http_ssl_enabled": true});
    stage.web("own", echo_service().await, &passed).await;
    let (https, clock, hello) = (stage.https().await, &stage.host.clock, client_hello(SERVICE));
    for begun in [&hello[..0], &hello[..20], &hello[..hello.len() - 1]] {
        let mut slow = come(ADA, https).await;
        slow.write_all(begun).await.unwrap();
        within(20, clock.until_awaited(clock.moment().plus(limit))).await;
        clock.advance(limit);
        let ended = within(20, slow.read_to_end(&mut Vec::new())).await;
        assert!(ended.is_err() || ended.unwrap() == 0);
    }
}

/// The first message of a visitor who asks for a name.
fn client_hello(name: &str) -> Vec<u8> {
    let config =
        rustls::ClientConfig::builder().with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth();
    let name = name.to_owned().try_into().unwrap();
    let mut connection = rustls::ClientConnection::new(std::sync::Arc::new(config), name).unwrap();
    let mut hello = Vec::new();
    connection.write_tls(&mut hello).unwrap();
    hello
}

/// The service of a udp tunnel is told in the first datagram of a flow, or in each.
#[both_engines]
async fn udp_service_is_told_who_the_visitor_is(engine: Engine) {
    let stage = Stage::set(engine).await;
    let service = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let port = service.local_addr().unwrap().port();
    let tunnel = stage.running(json!({"protocol": "udp", "local_port": port, "proxy_protocol": "v2"})).await;
    let public = stage.host.public(&stage.api, tunnel).await;
    let visit = async || {
        let visitor = UdpSocket::bind((ADA, 0)).await.unwrap();
        visitor.connect(public).await.unwrap();
        visitor
    };
    let received = async || {
        let mut space = [0; 256];
        let (length, from) = within(20, service.recv_from(&mut space)).await.unwrap();
        (space[..length].to_vec(), from)
    };
    let visitor = visit().await;
    // PROXY protocol, version 2, section 2.2: signature, version and command, IPv4 and datagrams, length, addresses, ports.
    let (SocketAddr::V4(own), SocketAddr::V4(at)) = (visitor.local_addr().unwrap(), public) else { panic!() };
    let mut header = b"\r\n\r\n\0\r\nQUIT\n\x21\x12\0\x0c".to_vec();
    header.extend([own.ip().octets(), at.ip().octets()].concat());
    header.extend([own.port().to_be_bytes(), at.port().to_be_bytes()].concat());
    visitor.send(b"first").await.unwrap();
    assert_eq!(received().await.0, [&header[..], b"first"].concat());
    visitor.send(b"second").await.unwrap();
    assert_eq!(received().await.0, b"second");
    // Another visitor comes while the service is away: the header is in the first datagram that it gets.
    let visitor = visit().await;
    let SocketAddr::V4(own) = visitor.local_addr().unwrap() else { panic!() };
    drop(service);
    visitor.send(b"lost").await.unwrap();
    stage.host.until_tunnel(&stage.api, tunnel, "degraded").await;
    let service = UdpSocket::bind(("127.0.0.1", port)).await.unwrap();
    let received = async || {
        let mut space = [0; 256];
        let (length, from) = within(20, service.recv_from(&mut space)).await.unwrap();
        (space[..length].to_vec(), from)
    };
    visitor.send(b"third").await.unwrap();
    let mut header = header[..16].to_vec();
    header.extend([own.ip().octets(), at.ip().octets()].concat());
    header.extend([own.port().to_be_bytes(), at.port().to_be_bytes()].concat());
    assert_eq!(received().await.0, [&header[..], b"third"].concat());
    stage.change(tunnel, json!({"proxy_protocol": "spp"})).await;
    let visitor = visit().await;
    let SocketAddr::V4(own) = visitor.local_addr().unwrap() else { panic!() };
    // Simple Proxy Protocol: a magic number, addresses of 16 bytes, ports.
    let mut header = vec![0x56, 0xec];
    header.extend([own.ip().to_ipv6_mapped().octets(), at.ip().to_ipv6_mapped().octets()].concat());
    header.extend([own.port().to_be_bytes(), at.port().to_be_bytes()].concat());
    for payload in [&b"one"[..], b"two", b""] {
        visitor.send(payload).await.unwrap();
        let (datagram, from) = received().await;
        assert_eq!(datagram, [&header[..], payload].concat());
        // A service may answer in the same form, or without.
        for answer in [datagram, payload.to_vec()] {
            service.send_to(&answer, from).await.unwrap();
            let mut space = [0; 256];
            let length = within(20, visitor.recv(&mut space)).await.unwrap();
            assert_eq!(&space[..length], payload);
        }
    }
}

/// A value that has no form on a port's transport adds nothing there.
#[both_engines]
async fn extra_port_of_another_transport_gets_no_header(engine: Engine) {
    let stage = Stage::set(engine).await;
    let (tcp, udp) = (echo_service().await, UdpSocket::bind("127.0.0.1:0").await.unwrap());
    let tunnel = stage.running(json!({"local_port": tcp.port(), "proxy_protocol": "v1"})).await;
    let extra = json!({"protocol": "udp", "local_port": udp.local_addr().unwrap().port()});
    let extra = stage.api.post(&format!("/tunnels/{tunnel}/extra-ports"), extra).await.id();
    let visitor = UdpSocket::bind((ADA, 0)).await.unwrap();
    let port = stage.host.until_found(async || {
        let record = stage.api.get(&format!("/tunnels/{tunnel}")).await.data().clone();
        let ports = record["extra_ports"].as_array().unwrap().clone();
        ports.into_iter().find(|port| port["id"] == extra.to_string() && port["public_address"].is_object())
    });
    visitor.connect(reached_at(&port.await)).await.unwrap();
    stage.device.until(async || stage.device.leads(tunnel, extra)).await;
    stage.device.status().await;
    stage.host.app.service.nodes().wait_until_applied(stage.host.app.service.nodes().ids()).await;
    visitor.send(b"plain").await.unwrap();
    let mut space = [0; 64];
    let (length, _) = within(20, udp.recv_from(&mut space)).await.unwrap();
    assert_eq!(&space[..length], b"plain");
    let mut visitor = come(ADA, stage.host.public(&stage.api, tunnel).await).await;
    let line = format!("PROXY TCP4 {ADA} {} ", stage.host.public(&stage.api, tunnel).await.ip());
    let mut told = vec![0; line.len()];
    within(20, visitor.read_exact(&mut told)).await.unwrap();
    assert_eq!(String::from_utf8(told).unwrap(), line);
}
