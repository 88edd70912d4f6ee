//! Certificates of a public authority: orders, challenges, failures and renewals, with Pebble.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use culvert::config::{AcmeDns, Config, Listen};
use culvert_test_macros::both_engines;
use futures_util::future::join_all;
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio_rustls::TlsConnector;
use uuid::Uuid;

use crate::support::api::Api;
use crate::support::ari::RenewalDirectory;
use crate::support::device::{Remote, TestDevice};
use crate::support::host::{Engine, TestHost, own_address, within};
use crate::support::pebble::{HTTP_PORT, HTTPS_PORT, Pebble};
use crate::support::program::Place;
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
        Self::of(engine, node, pebble, |_, _| {}).await
    }

    async fn of(engine: Engine, node: IpAddr, pebble: Pebble, change: impl FnOnce(&mut Config, &Pebble)) -> Self {
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
            change(config, &pebble);
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
        self.host.run_tunnel(&self.api, &self.device, tunnel).await;
        tunnel
    }

    /// The same host with other settings.
    async fn restarted(self, change: impl FnOnce(&mut Config)) -> Self {
        let Self { host, api, device, service, pebble, node } = self;
        let host = host.restart_with(change).await;
        Self { host, api, device, service, pebble, node }
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
        self.curl(root, name, &[]).await
    }

    /// The certificates that a name is served with.
    async fn chain(&self, root: &PathBuf, name: &str) -> Option<String> {
        self.curl(root, name, &["--output", "/dev/null", "--write-out", "%{certs}"]).await
    }

    async fn curl(&self, root: &PathBuf, name: &str, arguments: &[&str]) -> Option<String> {
        let resolve = format!("{name}:{HTTPS_PORT}:{}", self.node);
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--max-time", "20", "--resolve", &resolve, "--cacert"]).arg(root).args(arguments);
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
    // The node hears of it after the API shows it.
    stage.until(async || stage.fetch(&root, "www.example.com").await).await;
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
    // The authority is led astray: the old one stays, with the reason.
    let domain = stage.api.get(&format!("/tunnels/{tunnel}/domain")).await;
    let target = domain.data()["cname_target"].as_str().unwrap().to_owned();
    stage.pebble.set_address(&target, &own_address().to_string()).await;
    stage.host.pass(life * 2 / 3 + Duration::from_hours(1)).await;
    let failed =
        stage.until(async || Some(stage.certificate(tunnel).await).filter(|now| !now["error"].is_null())).await;
    // Pebble takes one in a hundred names for proved still, and then a renewal before this one has succeeded.
    assert!(failed["status"] == "issued" && failed["expires_at"].is_string(), "{failed}");
    let root = stage.pebble.root().await;
    let chain = async || stage.chain(&root, "www.example.com").await;
    let old = chain().await.expect("it is served meanwhile");
    stage.pebble.clear_address(&target).await;
    stage.until(async || chain().await.filter(|now| *now != old)).await;
    assert!(stage.certificate(tunnel).await["error"].is_null());
}

/// The authority says when to renew, long before two thirds of a certificate's life are over (RFC 9773).
#[both_engines]
async fn certificate_is_renewed_when_the_authority_wants_it(engine: Engine) {
    let node = own_address();
    let pebble = Pebble::start(node, HTTPS_PORT).await;
    let at = |time: chrono::DateTime<chrono::Utc>| time.to_rfc3339_opts(chrono::SecondsFormat::Secs, true);
    let now = culvert_wire::clock::Clock::system().now();
    let window = (at(now + chrono::TimeDelta::days(30)), at(now + chrono::TimeDelta::days(31)));
    let authority = RenewalDirectory::start(&pebble, window).await;
    let url = authority.url.clone();
    let stage = Stage::of(engine, node, pebble, |config, _| config.acme.directory = Some(url)).await;
    let tunnel = stage.running("hello").await;
    stage.assign(tunnel, "www.example.com").await;
    let first = stage.until_certificate(tunnel, "issued").await;
    stage.host.pass(Duration::from_hours(13)).await;
    stage.until(async || Some(()).filter(|()| *authority.asked.lock().unwrap() >= 2)).await;
    assert_eq!(stage.certificate(tunnel).await, first, "it is not time yet");
    let now = stage.host.clock.now();
    *authority.window.lock().unwrap() = (at(now - chrono::TimeDelta::hours(2)), at(now - chrono::TimeDelta::hours(1)));
    stage.host.pass(Duration::from_hours(13)).await;
    stage.until(async || Some(stage.certificate(tunnel).await).filter(|found| *found != first)).await;
    stage.until_certificate(tunnel, "issued").await;
}

/// Another authority, then none: what is served stays until there is something else, and is not kept without an authority.
#[both_engines]
async fn authority_may_be_changed_and_left(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    stage.running("hello").await;
    let name = "hello.tunnel.localhost";
    let root = stage.pebble.root().await;
    stage.until(async || stage.fetch(&root, name).await).await;

    let other = Pebble::start(stage.node, HTTPS_PORT).await;
    let other_root = other.root().await;
    stage = stage
        .restarted(|config| {
            config.acme.directory = Some(other.directory());
            config.acme.root_certificates = Some(other.certificate());
        })
        .await;
    let first = stage.fetch(&root, name).await.is_some() || stage.fetch(&other_root, name).await.is_some();
    assert!(first, "there is one at any time");
    stage.until(async || stage.fetch(&other_root, name).await).await;

    let local_root = stage.host.config().ca_dir().join("tunnel.localhost/root.pem");
    stage = stage.restarted(|config| config.acme.directory = None).await;
    assert!(stage.fetch(&local_root, name).await.is_some(), "the local authority's wildcard");
}

/// `kill -9` of the real program, again and again, while 20 orders are under way.
#[both_engines]
async fn orders_survive_the_host_being_killed(engine: Engine) {
    let mut place = Place::new(engine).await;
    let node = place.address;
    let pebble = Pebble::start(node, HTTPS_PORT).await;
    let resolver = pebble.dns().to_string();
    for (name, value) in [
        ("CULVERT_ACME__DIRECTORY", &pebble.directory()[..]),
        ("CULVERT_ACME__ROOT_CERTIFICATES", &pebble.certificate().display().to_string()),
        ("CULVERT_ACME__ORDERS_PER_HOUR", "1000"),
        ("CULVERT_RATE_LIMIT__PER_MINUTE", "100000"),
        ("CULVERT_DNS__RESOLVER", &resolver),
    ] {
        place = place.set(name, value);
    }
    let mut host = place.serve().await;
    place.json("culvert account create --email ada@example.com --name Ada").await;
    let key = place.json("culvert key create --account ada@example.com --scopes full_access").await;
    let auth = format!("-H 'Authorization: Bearer {}'", key["key"].as_str().unwrap());
    for number in 0..20 {
        let body = json!({"protocol": "http", "subdomain": format!("name-{number}"), "local_port": 80});
        let url = format!("{}/v2/tunnels", place.url());
        let json = "-H 'Content-Type: application/json'";
        let create = format!("curl -sSf {auth} {json} -H 'Idempotency-Key: key-{number}' -d '{body}' {url}");
        place.shell(&create).await;
    }
    let root = pebble.root().await;
    let proved = async || {
        let mut count = 0;
        for number in 0..20 {
            let name = format!("name-{number}.tunnel.localhost:{HTTPS_PORT}");
            let mut curl = Command::new("curl");
            curl.args(["-sS", "--max-time", "20", "--resolve", &format!("{name}:{node}"), "--cacert"]).arg(&root);
            let output = curl.arg(format!("https://{name}/")).output().await.unwrap();
            count += usize::from(output.status.success());
        }
        count
    };
    for _ in 0..3 {
        let before = proved().await;
        host.kill().await;
        host = place.serve().await;
        assert!(proved().await >= before, "what was issued is there");
    }
    // An authority that has looked while the host was down has found nothing: that is tried again after a
    // minute. An order takes half a minute where the authority refuses every second request.
    let missing = 20 - proved().await;
    let all_issued = async {
        for _ in 0..missing {
            host.until("a certificate was issued").await;
        }
        while proved().await < 20 {}
    };
    within(180, all_issued).await;
    assert_eq!(host.interrupt().await, Some(0));
}

/// A stranger's handshakes cost no order.
#[both_engines]
async fn unknown_names_are_not_ordered(engine: Engine) {
    let (node, many) =
        (own_address(), |config: &mut Config, _: &Pebble| config.node.http.handshakes_per_second = 20_000);
    let stage = Stage::of(engine, node, Pebble::start(node, HTTPS_PORT).await, many).await;
    let config = rustls::ClientConfig::builder().with_root_certificates(rustls::RootCertStore::empty());
    let connector = TlsConnector::from(Arc::new(config.with_no_client_auth()));
    let strange = async |number: usize| {
        let name = ServerName::try_from(format!("n{number}.example.com")).unwrap();
        let stream = TcpStream::connect((node, HTTPS_PORT)).await.unwrap();
        connector.connect(name, stream).await.is_err()
    };
    for hundred in 0..100 {
        let refused = join_all((0..100).map(|number| strange(hundred * 100 + number))).await;
        assert!(refused.into_iter().all(|refused| refused));
    }
    let root = stage.pebble.root().await;
    for number in 0..20 {
        assert_eq!(stage.fetch(&root, &format!("n{number}.example.com")).await, None);
        stage.host.pass(Duration::from_secs(1)).await;
    }
    assert_eq!(stage.host.app.store.orders_of_last_hour().await.unwrap(), 0);
}

/// With DNS-01 there is one certificate for all names of the domain.
#[both_engines]
async fn wildcard_is_proved_by_a_command(engine: Engine) {
    let node = own_address();
    let pebble = Pebble::start(node, HTTPS_PORT).await;
    let stage = Stage::of(engine, node, pebble, |config, pebble| {
        // Resolvers answer for `localhost` by themselves (RFC 6761, section 6.3).
        config.node.domain = Some("tunnels.example.com".into());
        (config.acme.dns, config.acme.dns_command) = (Some(AcmeDns::Command), Some(pebble.dns_command()));
    })
    .await;
    let root = stage.pebble.root().await;
    for name in ["one", "two"] {
        stage.running(name).await;
        stage.until(async || stage.fetch(&root, &format!("{name}.tunnels.example.com")).await).await;
    }
    let store = &stage.host.app.store;
    let node = store.nodes().await.unwrap().remove(0);
    assert_eq!(store.served_certificates(node.id).await.unwrap().len(), 1);
}

#[both_engines]
async fn wildcard_is_proved_by_the_built_in_dns_server(engine: Engine) {
    let node = own_address();
    let dns = SocketAddr::new(node, 8053);
    let pebble = Pebble::asking(node, HTTPS_PORT, Some(dns)).await;
    let stage = Stage::of(engine, node, pebble, |config, _| {
        config.node.domain = Some("tunnels.example.com".into());
        (config.acme.dns, config.acme.dns_listen) = (Some(AcmeDns::Builtin), Some(dns));
        config.dns.resolver = Some(dns);
    })
    .await;
    let root = stage.pebble.root().await;
    stage.running("hello").await;
    stage.until(async || stage.fetch(&root, "hello.tunnels.example.com").await).await;
    // It is no resolver: everything else is refused.
    let answers = async |name: &str, kind: u8| ask(dns, name, kind).await;
    let (refused, none, one) = ((5, 0), (0, 0), (0, 1));
    assert_eq!(answers("hello.tunnels.example.com", TXT).await, refused);
    assert_eq!(answers("example.com", SOA).await, refused);
    assert_eq!(answers("_acme-challenge.tunnels.example.com", TXT).await, none, "nothing is left of the order");
    assert_eq!(answers("_ACME-challenge.tunnels.example.com", SOA).await, one);
}

const SOA: u8 = 6;
const TXT: u8 = 16;

/// Asks a DNS server a question; returns the response code and the number of answers (RFC 1035, section 4.1).
async fn ask(server: SocketAddr, name: &str, kind: u8) -> (u8, u8) {
    let labels = name.split('.').flat_map(|label| [&[label.len() as u8], label.as_bytes()].concat());
    let head = [0, 7, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    let question: Vec<u8> = head.into_iter().chain(labels).chain([0, 0, kind, 0, 1]).collect();
    let socket = tokio::net::UdpSocket::bind((server.ip(), 0)).await.unwrap();
    socket.send_to(&question, server).await.unwrap();
    let mut answer = [0; 512];
    within(SOON, socket.recv(&mut answer)).await.unwrap();
    assert_eq!(answer[..2], [0, 7]);
    (answer[3] & 15, answer[7])
}
