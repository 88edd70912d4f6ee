//! Visitors of http tunnels who come through a proxy in front of the node.

use culvert_test_macros::both_engines;
use serde_json::json;
use uuid::Uuid;

use crate::support::api::Api;
use crate::support::device::Remote;
use crate::support::host::{Engine, TestHost};
use crate::support::web::{Browser, WebService, outcome};

/// A node whose proxies are on loopback, with a tunnel that wants HTTPS and one that does not.
struct Stage {
    host: TestHost,
    api: Api,
    plain: Uuid,
}

impl Stage {
    async fn set(engine: Engine) -> Self {
        let trust = ["127.0.0.0/8", "198.51.100.0/24"].map(|network| network.parse().unwrap());
        let host = TestHost::with(engine, |config| {
            config.node.trusted_proxies = trust.into();
            config.node.http.connections_per_address = 1;
        });
        let host = host.await;
        let ada = host.person("ada").await;
        let api = host.api(&ada.key);
        let device = host.device(&ada, ada.account_id, Remote::Enabled).await;
        let port = WebService::start().await.port;
        let mut ids = Vec::new();
        for (name, https) in [("plain", false), ("secure", true)] {
            let tunnel = json!({"protocol": "http", "subdomain": name, "local_port": port, "http_ssl_enabled": https});
            let id = api.post("/tunnels", tunnel).await.id();
            host.run_tunnel(&api, &device, id).await;
            ids.push(id);
        }
        Self { plain: ids[0], host, api }
    }

    /// The head of the answer, and the request as the service got it.
    async fn ask(&self, name: &str, headers: &str) -> (String, String) {
        let request = format!("GET /echo HTTP/1.1\r\nHost: {name}.tunnel.localhost\r\n{headers}\r\n");
        let (head, body) = Browser::open(self.host.http_address().await).await.send(&request).await;
        (outcome(&head), String::from_utf8(body).unwrap())
    }
}

/// The last address that is no proxy's is the visitor's, for the service as for the rules.
#[both_engines]
async fn trusted_proxy_says_who_the_visitor_is(engine: Engine) {
    let stage = Stage::set(engine).await;
    let headers = "X-Forwarded-For: 192.0.2.1, 203.0.113.7, 198.51.100.2\r\n";
    let (answered, request) = stage.ask("plain", headers).await;
    assert_eq!(answered, "200");
    let forwarded: Vec<&str> = request.lines().filter(|line| line.contains("orwarded")).collect();
    let port = stage.host.http_address().await.port();
    insta::assert_snapshot!(forwarded.join("\n").replace(&port.to_string(), "[port]"), @r#"
    x-forwarded-for: 203.0.113.7
    x-forwarded-proto: http
    x-forwarded-port: [port]
    forwarded: for=203.0.113.7;host="plain.tunnel.localhost";proto=http
    x-forwarded-host: plain.tunnel.localhost
    "#);
    let rule = json!({"rules": [{"rule_type": "blacklist", "ip_cidr": "203.0.113.7/32"}]});
    stage.api.put(&format!("/tunnels/{}/firewall", stage.plain), rule).await;
    assert_eq!(stage.ask("plain", headers).await.0, "403 visitor_not_allowed");
    assert_eq!(stage.ask("plain", "X-Forwarded-For: 203.0.113.7, 192.0.2.1\r\n").await.0, "200");
    // Nobody hides behind what is no text.
    let hidden = "X-Forwarded-For: h\u{e9}, 203.0.113.7\r\n";
    assert_eq!(stage.ask("plain", hidden).await.0, "403 visitor_not_allowed");
}

/// A proxy that ends TLS says so: nothing is redirected, and the service is told the public scheme and port.
#[both_engines]
async fn trusted_proxy_says_that_the_visitor_came_by_https(engine: Engine) {
    let stage = Stage::set(engine).await;
    assert_eq!(stage.ask("secure", "X-Forwarded-For: 192.0.2.1\r\n").await.0, "308");
    let by_https = "X-Forwarded-For: 192.0.2.1\r\nX-Forwarded-Proto: https\r\n";
    let (answered, request) = stage.ask("secure", by_https).await;
    assert_eq!(answered, "200");
    assert!(
        request.contains("x-forwarded-proto: https\r\n") && request.contains("x-forwarded-port: 443\r\n"),
        "{request}"
    );
    let (_, request) = stage.ask("secure", &format!("{by_https}X-Forwarded-Port: 8443\r\n")).await;
    assert!(request.contains("x-forwarded-port: 8443\r\n"), "{request}");
}

/// A proxy brings many visitors, so the limit for one address is not its own.
#[both_engines]
async fn trusted_proxy_may_open_many_connections(engine: Engine) {
    let stage = Stage::set(engine).await;
    let mut kept = Vec::new();
    for _ in 0..3 {
        let mut browser = Browser::open(stage.host.http_address().await).await;
        assert_eq!(browser.outcome("plain.tunnel.localhost", "/echo").await, "200");
        kept.push(browser);
    }
}
