//! Certificates of a public authority: orders, challenges, failures and renewals, with Pebble.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use culvert::config::Listen;
use culvert_test_macros::both_engines;
use serde_json::{Value, json};
use std::net::SocketAddr;
use tokio::process::Command;
use uuid::Uuid;

use crate::support::api::Api;
use crate::support::device::{Remote, TestDevice};
use crate::support::host::{Engine, TestHost, own_address, within};
use crate::support::pebble::{HTTP_PORT, HTTPS_PORT, Pebble};
use crate::support::web::{Browser, WebService};

/// How long an order may take, in seconds of real time.
const SOON: u64 = 60;

struct Stage {
    host: TestHost,
    api: Api,
    device: TestDevice,
    service: WebService,
    pebble: Pebble,
    node: IpAddr,
}

impl Stage {
    async fn set(engine: Engine) -> Self {
        Self::with(engine, HTTPS_PORT).await
    }

    /// An authority that looks for TLS-ALPN-01 at this port.
    async fn with(engine: Engine, https_port: u16) -> Self {
        let node = own_address();
        let pebble = Pebble::start(node, https_port).await;
        let host = TestHost::at_present(engine, |config| {
            (config.node.hostname, config.node.bind) = (node.to_string(), node);
            config.node.listen = SocketAddr::new(node, 0);
            config.node.http_listen = Listen::At(SocketAddr::new(node, HTTP_PORT));
            config.node.https_listen = Listen::At(SocketAddr::new(node, HTTPS_PORT));
            // A test asks again and again.
            (config.rate_limit.per_minute, config.rate_limit.per_day) = (1_000_000, 1_000_000);
            config.acme.directory = Some(pebble.directory());
            config.acme.root_certificates = Some(pebble.certificate());
            config.dns.resolver = Some(pebble.dns());
        })
        .await;
        let ada = host.person("ada").await;
        let api = host.api(&ada.key);
        let device = host.device(&ada, ada.account_id, Remote::Enabled).await;
        Self { host, api, device, service: WebService::start().await, pebble, node }
    }

    async fn running(&self, subdomain: &str) -> Uuid {
        let body = json!({"protocol": "http", "subdomain": subdomain, "local_port": self.service.port});
        let tunnel = self.api.post("/tunnels", body).await.id();
        self.device.start_tunnel(&tunnel.to_string()).await.unwrap();
        self.host.until_tunnel(&self.api, tunnel, "running").await;
        tunnel
    }

    /// Proves and assigns a custom domain; returns its record.
    async fn assign(&self, tunnel: Uuid, domain: &str) -> Value {
        let path = format!("/tunnels/{tunnel}/domain");
        let target = self.api.get(&path).await.data()["cname_target"].as_str().unwrap().to_owned();
        self.pebble.set_cname(domain, &target).await;
        let verified = self.api.post(&format!("{path}/actions/verify"), json!({"domain": domain})).await;
        assert_eq!(verified.data()["status"], "verified");
        self.api.put(&path, json!({"domain": domain})).await.data().clone()
    }

    async fn certificate(&self, tunnel: Uuid) -> Value {
        self.api.get(&format!("/tunnels/{tunnel}/domain")).await.data()["certificate"].clone()
    }

    /// Lets time pass until something is there.
    async fn until<T>(&self, mut look: impl AsyncFnMut() -> Option<T>) -> T {
        within(SOON, async {
            loop {
                if let Some(found) = look().await {
                    return found;
                }
                self.host.pass(Duration::from_secs(1)).await;
            }
        })
        .await
    }

    async fn until_certificate(&self, tunnel: Uuid, status: &str) -> Value {
        self.until(async || Some(self.certificate(tunnel).await).filter(|found| found["status"] == status)).await
    }

    /// Fetches a page by a name, and trusts the authority alone; `None` if that fails.
    async fn fetch(&self, root: &PathBuf, name: &str) -> Option<String> {
        let resolve = format!("{name}:{HTTPS_PORT}:{}", self.node);
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--max-time", "20", "--resolve", &resolve, "--cacert"]).arg(root);
        let output = curl.arg(format!("https://{name}:{HTTPS_PORT}/")).output().await.unwrap();
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
    }
}

#[both_engines]
async fn subdomain_gets_a_certificate_of_its_own(engine: Engine) {
    let stage = Stage::set(engine).await;
    let root = stage.pebble.root().await;
    let tunnel = stage.running("hello").await;
    let name = "hello.tunnel.localhost";
    let seen = stage.until(async || stage.fetch(&root, name).await).await;
    assert!(seen.contains("x-forwarded-proto: https"), "{seen}");
    // So does each http extra port.
    let port = json!({"protocol": "http", "local_port": stage.service.port});
    assert_eq!(stage.api.post(&format!("/tunnels/{tunnel}/extra-ports"), port).await.status, 201);
    let extra = format!("p{}-hello.tunnel.localhost", stage.service.port);
    stage.until(async || stage.fetch(&root, &extra).await).await;
    // One that does not ask for HTTPS gets none.
    let plain = json!({"protocol": "http", "subdomain": "plain", "local_port": 80, "http_ssl_enabled": false});
    assert_eq!(stage.api.post("/tunnels", plain).await.status, 201);
    stage.host.pass(Duration::from_secs(5)).await;
    let stored = stage.host.app.store.due_certificates().await.unwrap();
    assert_eq!(stored, [], "nothing is left to do");
    assert_eq!(stage.fetch(&root, "plain.tunnel.localhost").await, None);
}

#[both_engines]
async fn custom_domain_gets_a_certificate_while_it_is_assigned(engine: Engine) {
    let stage = Stage::set(engine).await;
    let root = stage.pebble.root().await;
    let tunnel = stage.running("hello").await;
    let assigned = stage.assign(tunnel, "www.example.com").await;
    assert_eq!(assigned["certificate"], json!({"status": "pending", "expires_at": null, "error": null}));
    let mut browser = Browser::open(SocketAddr::new(stage.node, HTTP_PORT)).await;
    let outcome = browser.outcome("www.example.com", "/").await;
    assert!(["503 certificate_pending", "308"].contains(&&outcome[..]), "{outcome}");
    let issued = stage.until_certificate(tunnel, "issued").await;
    assert!(issued["expires_at"].is_string() && issued["error"].is_null(), "{issued}");
    assert!(stage.fetch(&root, "www.example.com").await.is_some());
    let mut browser = Browser::open(SocketAddr::new(stage.node, HTTP_PORT)).await;
    assert_eq!(browser.outcome("www.example.com", "/").await, "308");

    let removed = stage.api.delete(&format!("/tunnels/{tunnel}/domain")).await;
    assert_eq!(removed.outcome(), "200");
    assert_eq!(stage.fetch(&root, "www.example.com").await, None, "nobody proves it any longer");
}

/// An authority that cannot reach the HTTPS port is asked to look at the other one.
#[both_engines]
async fn name_is_proved_by_http_after_tls_has_failed(engine: Engine) {
    let stage = Stage::with(engine, 1).await;
    let tunnel = stage.running("hello").await;
    stage.assign(tunnel, "www.example.com").await;
    let failed = stage.until_certificate(tunnel, "failed").await;
    assert!(failed["error"].as_str().unwrap().starts_with("Failed to connect to "), "{failed}");
    // A token that no authority waits for is the service's.
    let mut browser = Browser::open(SocketAddr::new(stage.node, HTTP_PORT)).await;
    let other = browser.outcome("www.example.com", "/.well-known/acme-challenge/other").await;
    assert_eq!(other, "503 certificate_pending");
    stage.until_certificate(tunnel, "issued").await;
}

#[both_engines]
async fn failed_order_waits_longer_each_time(engine: Engine) {
    let stage = Stage::set(engine).await;
    let tunnel = stage.running("hello").await;
    // The authority is led to a machine that has nothing of it.
    stage.pebble.set_address("www.example.com", "127.0.0.1").await;
    let path = format!("/tunnels/{tunnel}/domain");
    let target = stage.api.get(&path).await.data()["cname_target"].as_str().unwrap().to_owned();
    stage.pebble.set_address(&target, &own_address().to_string()).await;
    stage.assign(tunnel, "www.example.com").await;
    stage.until_certificate(tunnel, "failed").await;
    let orders = async || stage.host.metric("culvert_acme_orders_total{outcome=\"failed\"}").await.unwrap();
    assert_eq!(orders().await, 1.0);
    stage.host.pass(Duration::from_secs(30)).await;
    assert_eq!(orders().await, 1.0, "the next try is a minute later");
    stage.until(async || Some(orders().await).filter(|failed| *failed == 2.0)).await;
    stage.host.pass(Duration::from_mins(2)).await;
    assert_eq!(orders().await, 2.0, "and the one after that five minutes");
}

#[both_engines]
async fn certificate_is_renewed_while_the_old_one_serves(engine: Engine) {
    let stage = Stage::set(engine).await;
    let tunnel = stage.running("hello").await;
    stage.assign(tunnel, "www.example.com").await;
    let first = stage.until_certificate(tunnel, "issued").await;
    let end: chrono::DateTime<chrono::Utc> = first["expires_at"].as_str().unwrap().parse().unwrap();
    let life = (end - stage.host.clock.now()).to_std().unwrap();
    // While the authority cannot be reached, the old one stays, with the reason.
    stage.pebble.set_address("www.example.com", "127.0.0.1").await;
    stage.host.pass(life * 2 / 3 + Duration::from_hours(1)).await;
    let root = stage.pebble.root().await;
    let renewed = stage
        .until(async || {
            let now = stage.certificate(tunnel).await;
            assert_eq!(now["status"], "issued");
            Some(now).filter(|now| now["expires_at"] != first["expires_at"] || !now["error"].is_null())
        })
        .await;
    assert!(renewed["error"].is_null(), "{renewed}");
    assert!(stage.fetch(&root, "www.example.com").await.is_some());
}

/// A stranger's handshakes cost no order.
#[both_engines]
async fn unknown_names_are_not_ordered(engine: Engine) {
    let stage = Stage::set(engine).await;
    let root = stage.pebble.root().await;
    for number in 0..20 {
        assert_eq!(stage.fetch(&root, &format!("n{number}.example.com")).await, None);
        stage.host.pass(Duration::from_secs(1)).await;
    }
    assert_eq!(stage.host.app.store.orders_since(chrono::DateTime::UNIX_EPOCH).await.unwrap(), 0);
}
