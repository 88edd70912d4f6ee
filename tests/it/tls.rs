//! HTTPS of http tunnels: certificates of the local authority, HTTP/2, and which names a connection may ask for.

use std::net::SocketAddr;
use std::process::Output;
use std::time::Duration;

use culvert::config::Config;
use culvert_certificates::local_ca::Root;
use culvert_test_macros::both_engines;
use culvert_wire::private_dir;
use futures_util::future::join_all;
use insta::{allow_duplicates, assert_snapshot};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Command;
use uuid::Uuid;

use crate::support::api::Api;
use crate::support::database::execute;
use crate::support::device::{Remote, TestDevice};
use crate::support::host::{Engine, TestHost, start_of_time, within};
use crate::support::web::{Browser, WebService, header, outcome};

struct Stage {
    host: TestHost,
    api: Api,
    device: TestDevice,
    service: WebService,
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
        Self { host, api, device, service: WebService::start().await }
    }

    async fn running(&self, name: &str, more: Value) -> Uuid {
        let mut body = json!({"protocol": "http", "subdomain": name, "local_port": self.service.port});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let tunnel = self.api.post("/tunnels", body).await.id();
        self.host.run_tunnel(&self.api, &self.device, tunnel).await;
        tunnel
    }

    /// The serial number and the end of the certificate that the node shows.
    async fn serial(&self) -> Option<String> {
        let (_, https) = self.addresses().await;
        let shown = format!(
            "openssl s_client -connect {https} -servername hello.tunnel.localhost </dev/null 2>/dev/null \
             | openssl x509 -noout -serial -enddate"
        );
        let output = Command::new("sh").args(["-c", &shown]).output().await.unwrap();
        String::from_utf8(output.stdout).ok().filter(|said| said.starts_with("serial="))
    }

    async fn url(&self, tunnel: Uuid) -> String {
        let record = self.api.get(&format!("/tunnels/{tunnel}")).await;
        record.data()["public_address"]["url"].as_str().unwrap().to_owned()
    }

    /// The node's listeners: in the clear, and for HTTPS.
    async fn addresses(&self) -> (SocketAddr, SocketAddr) {
        let node = self.host.app.store.nodes().await.unwrap().remove(0);
        let ip = node.hostname.parse().unwrap();
        (SocketAddr::new(ip, node.http_port.unwrap()), SocketAddr::new(ip, node.https_port.unwrap()))
    }

    /// curl, which trusts the domain's root alone and finds all names at the node. It makes these transfers, on one
    /// connection where it can.
    async fn curl(&self, transfers: &[&[&str]]) -> Output {
        let (http, https) = self.addresses().await;
        let root = self.host.config().ca_dir().join("tunnel.localhost/root.pem");
        let mut curl = Command::new("curl");
        for (number, transfer) in transfers.iter().enumerate() {
            if number > 0 {
                curl.arg("--next");
            }
            curl.args(["-sS", "--max-time", "20", "--cacert"]).arg(&root);
            for address in [http, https] {
                curl.args(["--resolve", &format!("*:{}:{}", address.port(), address.ip())]);
            }
            curl.args(*transfer);
        }
        curl.output().await.unwrap()
    }

    async fn fetch(&self, transfers: &[&[&str]]) -> String {
        let output = self.curl(transfers).await;
        assert!(output.status.success(), "{transfers:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }
}

#[both_engines]
async fn tunnel_is_served_by_https_with_the_domains_root(engine: Engine) {
    let stage = Stage::set(engine).await;
    let tunnel = stage.running("hello", json!({})).await;
    let (_, https) = stage.addresses().await;
    let url = stage.url(tunnel).await;
    assert_eq!(url, format!("https://hello.tunnel.localhost:{}", https.port()));
    for version in ["--http1.1", "--http2"] {
        let seen =
            stage.fetch(&[&[version, "-w", "%{http_version} %{ssl_verify_result}", "-d", "by curl", &url]]).await;
        let expected = if version == "--http2" { "by curl2 0" } else { "by curl1.1 0" };
        assert!(seen.ends_with(expected), "{seen}");
        assert!(seen.starts_with("POST / HTTP/1.1\r\n") && seen.contains("x-forwarded-proto: https\r\n"), "{seen}");
        assert!(seen.contains(&format!("host: hello.tunnel.localhost:{}\r\n", https.port())), "{seen}");
    }
    // Who trusts the root trusts it for this domain alone.
    let root = stage.host.config().ca_dir().join("tunnel.localhost/root.pem");
    let shown = Command::new("openssl").args(["x509", "-noout", "-ext", "nameConstraints", "-in"]).arg(root).output();
    let shown = String::from_utf8(shown.await.unwrap().stdout).unwrap();
    allow_duplicates! { assert_snapshot!(shown, @r"
    X509v3 Name Constraints: critical
        Permitted:
          DNS:tunnel.localhost
        Excluded:
          IP:0.0.0.0/0.0.0.0
          IP:0:0:0:0:0:0:0:0/0:0:0:0:0:0:0:0
    "); }
    // Without the root, nobody trusts it.
    let distrusted = Command::new("curl")
        .args(["-sS", "--resolve", &format!("hello.tunnel.localhost:{}:{}", https.port(), https.ip()), &url])
        .output();
    assert_eq!(distrusted.await.unwrap().status.code(), Some(60), "peer certificate cannot be authenticated");
}

/// An exchange counts as many bytes by either version of HTTP.
#[both_engines]
async fn exchange_counts_the_same_by_both_versions(engine: Engine) {
    let stage = Stage::set(engine).await;
    let mut counted = Vec::new();
    for (name, version) in [("first", "--http1.1"), ("other", "--http2")] {
        let tunnel = stage.running(name, json!({})).await;
        stage.fetch(&[&[version, "-d", "by curl", &stage.url(tunnel).await]]).await;
        stage.host.record_traffic().await;
        let sessions = stage.api.get(&format!("/tunnels/{tunnel}/sessions")).await;
        counted.push(["bytes_in", "bytes_out"].map(|bytes| sessions.data()[0][bytes].as_u64().unwrap()));
    }
    assert!(counted[0] == counted[1] && counted[0].iter().all(|bytes| *bytes > 100), "{counted:?}");
}

#[both_engines]
async fn request_in_the_clear_is_sent_to_https(engine: Engine) {
    let stage = Stage::set(engine).await;
    stage.running("hello", json!({})).await;
    stage.running("plain", json!({"http_ssl_enabled": false})).await;
    let (http, https) = stage.addresses().await;
    let mut browser = Browser::open(http).await;
    let (head, body) = browser.get(&format!("hello.tunnel.localhost:{}", http.port()), "/a?b=c").await;
    assert_eq!((outcome(&head), body.len()), ("308".into(), 0));
    let expected = format!("https://hello.tunnel.localhost:{}/a?b=c", https.port());
    assert_eq!(header(&head, "location"), Some(&expected[..]));
    // The wildcard covers the other one as well; it is served in both ways.
    assert_eq!(browser.outcome("plain.tunnel.localhost", "/").await, "200");
    let url = format!("https://plain.tunnel.localhost:{}/", https.port());
    assert!(stage.fetch(&[&[&url]]).await.contains("x-forwarded-proto: https\r\n"));
}

/// Browsers send requests for one name on a connection that they have opened for another one, where the certificate is
/// good for both.
#[both_engines]
async fn each_request_of_a_connection_is_judged_by_its_own_name(engine: Engine) {
    let stage = Stage::set(engine).await;
    let open = stage.running("open", json!({})).await;
    let closed = stage.running("closed", json!({})).await;
    let rules = json!({"rules": [{"rule_type": "blacklist", "ip_cidr": "127.0.0.0/8"}]});
    assert_eq!(stage.api.put(&format!("/tunnels/{closed}/firewall"), rules).await.outcome(), "200");
    let (open, closed) = (stage.url(open).await, stage.url(closed).await);
    let to_other = format!("host: {}", closed.trim_start_matches("https://"));
    let report = "%{http_code} %{num_connects} ";
    let transfer = |host| ["--http2", "-o", "/dev/null", "-w", report, "-H", host, &open];
    let seen = stage.fetch(&[&transfer("x: y"), &transfer(&to_other), &transfer("host: www.example.com")]).await;
    assert_eq!(seen, "200 1 403 0 421 0 ", "statuses, and new connections");
}

#[both_engines]
async fn name_without_certificate_ends_the_handshake(engine: Engine) {
    let stage = Stage::set(engine).await;
    let (_, https) = stage.addresses().await;
    for (name, code) in [("www.example.com", 35), ("a.b.tunnel.localhost", 35)] {
        let refused = stage.curl(&[&[&format!("https://{name}:{}/", https.port())]]).await;
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(code), "{said}");
        assert!(said.contains("unrecognized name"), "{said}");
    }
    // Also without any name: the handshake is by address.
    let refused = stage.curl(&[&[&format!("https://{https}/")]]).await;
    assert_eq!(refused.status.code(), Some(35), "{}", String::from_utf8_lossy(&refused.stderr));
}

/// The alert that ends a connection which is not TLS.
async fn alert(address: SocketAddr) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"nothing of it").await?;
    let mut alert = [0; 7];
    stream.read_exact(&mut alert).await?;
    assert_eq!(alert[0], 21, "a record with an alert");
    Ok(())
}

/// A connection that says nothing, and one that begins too often.
#[both_engines]
async fn slow_and_frequent_handshakes_are_ended(engine: Engine) {
    let stage = Stage::set(engine).await;
    let (_, https) = stage.addresses().await;
    let mut silent = TcpStream::connect(https).await.unwrap();
    silent.write_all(&[22, 3, 1]).await.unwrap();
    // They are accepted in their order: after this one, the first one is being waited for.
    alert(https).await.unwrap();
    stage.host.clock.advance(Duration::from_secs(1));
    let mut ended = 0;
    for _ in 0..51 {
        // It is not TLS: those that are let in hear an alert, the others a reset.
        ended += usize::from(alert(https).await.is_err());
    }
    assert_eq!(ended, 1, "51 handshakes in a second");
    stage.host.clock.advance(Duration::from_secs(10));
    let mut rest = Vec::new();
    let _ = silent.read_to_end(&mut rest).await;
    assert!(rest.is_empty());
}

#[both_engines]
async fn certificate_is_renewed_and_its_root_is_kept(engine: Engine) {
    let stage = Stage::set(engine).await;
    let first = stage.serial().await.unwrap();
    stage.host.pass(Duration::from_hours(19 * 24)).await;
    assert_eq!(stage.serial().await.as_ref(), Some(&first));
    stage.host.pass(Duration::from_hours(2 * 24)).await;
    // The node hears of it a moment after it is stored.
    stage.host.until_found(async || stage.serial().await.filter(|serial| *serial != first)).await;
}

#[both_engines]
async fn certificate_whose_key_cannot_be_opened_is_issued_anew(engine: Engine) {
    let stage = Stage::set(engine).await;
    let first = stage.serial().await.unwrap();
    execute(&stage.host, "UPDATE certificates SET key = substr(key, 2)").await;
    let stage = Stage { host: stage.host.restart().await, ..stage };
    stage.host.until_found(async || stage.serial().await.filter(|serial| *serial != first)).await;
}

/// Visitors who come while a certificate is replaced are shown the former one or the next, and all are answered.
#[both_engines]
async fn visitors_are_answered_while_a_certificate_is_renewed(engine: Engine) {
    // The clock stands still while most of them come.
    let stage = Stage::with(engine, |config| config.node.http.handshakes_per_second = 1000).await;
    let (_, https) = stage.addresses().await;
    let come = || {
        let url = format!("https://hello.tunnel.localhost:{}/", https.port());
        let resolve = format!("hello.tunnel.localhost:{}:{}", https.port(), https.ip());
        let mut curl = Command::new("curl");
        // The time of the test is not curl's, so it does not judge the certificate; it shows its serial number.
        curl.args([
            "-sk",
            "--max-time",
            "20",
            "--resolve",
            &resolve,
            "-o",
            "/dev/null",
            "-w",
            "%{http_code} %{certs}",
            &url,
        ]);
        curl
    };
    let round = || async {
        let answers = join_all((0..4).map(|_| async { come().output().await.unwrap() })).await;
        let serials = answers.into_iter().filter_map(|answer| {
            let said = String::from_utf8_lossy(&answer.stdout).into_owned();
            assert!(answer.status.success() && !said.starts_with("000"), "{said}");
            said.lines().find_map(|line| line.strip_prefix("Serial Number:")).map(String::from)
        });
        serials.collect::<std::collections::BTreeSet<_>>()
    };
    // A longer step of time would end the handshakes that are under way.
    stage.host.pass(Duration::from_secs(20 * 24 * 3600 - 2)).await;
    // The renewal may be over before the first of those who come beside it.
    let mut serials = round().await;
    assert_eq!(serials.len(), 1, "{serials:?}");
    let renewal = async {
        for _ in 0..4 {
            stage.host.pass(Duration::from_secs(1)).await;
        }
    };
    let until_renewed = async {
        let ((), beside) = tokio::join!(renewal, round());
        serials.extend(beside);
        while serials.len() < 2 {
            // Nobody is there now whom this would cut off.
            stage.host.pass(Duration::from_secs(1)).await;
            serials.extend(round().await);
        }
    };
    within(60, until_renewed).await;
}

/// The root that an earlier version has kept in files goes on signing. Its key is in the database alone from then on, and the
/// file of the certificate is a copy.
#[both_engines]
async fn root_of_an_earlier_version_is_taken_over(engine: Engine) {
    let root = Root::create("tunnel.localhost", start_of_time()).unwrap();
    let host = TestHost::with(engine, |config| {
        let folder = config.ca_dir().join("tunnel.localhost");
        private_dir::open(&config.ca_dir()).unwrap();
        private_dir::open(&folder).unwrap();
        std::fs::write(folder.join("root.pem"), &root.pem).unwrap();
        std::fs::write(folder.join("root.key"), root.key()).unwrap();
    })
    .await;
    let folder = host.config().ca_dir().join("tunnel.localhost");
    assert!(!folder.join("root.key").exists());
    std::fs::remove_dir_all(&folder).unwrap();
    let host = host.restart().await;
    assert_eq!(std::fs::read_to_string(folder.join("root.pem")).unwrap(), root.pem);
    let served = host.app.store.served_certificates(host.node_id()).await.unwrap().remove(0).issued.unwrap().0;
    std::fs::write(folder.join("served.pem"), served).unwrap();
    let files = [folder.join("root.pem"), folder.join("served.pem")];
    let verified =
        Command::new("openssl").args(["verify", "-no_check_time", "-CAfile"]).args(files).output().await.unwrap();
    assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
}
