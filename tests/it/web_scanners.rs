//! The real programs before tools that look for weaknesses: testssl.sh, slowhttptest and h2load.

use std::process::Output;
use std::time::Duration;

use insta::assert_snapshot;
use serde_json::Value;

use crate::support::host::{Engine, within};
use crate::support::program::{Place, Program};
use crate::support::web::WebService;

const NAME: &str = "journal.tunnel.localhost";
/// Seconds in which visitors are slow.
const SLOW_FOR: &str = "15";

/// A host and one tunnel, as a newcomer starts them.
struct Stage {
    place: Place,
    _programs: [Program; 2],
}

impl Stage {
    async fn set(settings: &[(&str, &str)]) -> Self {
        let mut place = Place::new(Engine::Sqlite).await;
        for (name, value) in settings {
            place = place.set(name, value);
        }
        let host = place.serve().await;
        place.json("culvert account create --email ada@example.com --name Ada").await;
        let code = place.json("culvert device code --account ada@example.com").await;
        let code = code["code"].as_str().unwrap();
        place.json(&format!("culvert-agent enroll --server {} --code {code}", place.url())).await;
        let service = WebService::start().await;
        let mut command = place.start(&format!("culvert-agent http {} --subdomain journal --no-https", service.port));
        command.until("running").await;
        Self { place, _programs: [host, command] }
    }

    async fn run(&self, line: &str) -> Output {
        let mut command = self.place.command_of("sh");
        within(110, command.args(["-c", line]).output()).await.unwrap()
    }
}

/// Versions, ciphers, the certificate and the headers, as testssl.sh judges them. What it finds fault with is the short
/// life of the local authority's certificates, which are not revoked, and headers that are the service's.
#[tokio::test]
async fn testssl_finds_no_weakness() {
    let stage = Stage::set(&[("CULVERT_NODE__HTTP__HANDSHAKES_PER_SECOND", "100000")]).await;
    let address = stage.place.address;
    let shown = stage.place.run("culvert ca show --path").await.stdout;
    let root = std::str::from_utf8(&shown).unwrap().trim();
    let line = format!(
        "testssl --quiet --warnings off --color 0 --ip {address} --add-ca {root} --jsonfile found.json -p -s -S -h -f \
         https://{NAME}:8443/ >&2; cat found.json"
    );
    let scan = stage.run(&line).await;
    let found: Vec<Value> = serde_json::from_slice(&scan.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&scan.stderr)));
    let line = |found: &Value| format!("{} {}", found["id"].as_str().unwrap(), found["finding"].as_str().unwrap());
    let faults =
        found.iter().filter(|found| matches!(found["severity"].as_str(), Some("MEDIUM" | "HIGH" | "CRITICAL")));
    let faults: Vec<&str> = faults.map(|found| found["id"].as_str().unwrap()).collect();
    assert_snapshot!(faults.join("\n"), @"
    cert_expirationStatus
    cert_notAfter
    cert_revocation
    security_headers
    ");
    let shown = ["SSLv", "TLS1", "ALPN", "cipherlist", "cert_chain_of_trust", "cert_keySize", "PFS "];
    let of = |found: &&Value| shown.iter().any(|begin| line(found).starts_with(begin));
    let lines: Vec<String> = found.iter().filter(of).map(line).collect();
    assert_snapshot!(lines.join("\n"), @"
    SSLv2 not offered
    SSLv3 not offered
    TLS1 not offered
    TLS1_1 not offered
    TLS1_2 offered
    TLS1_3 offered with final
    ALPN_HTTP2 h2
    ALPN http/1.1
    cipherlist_NULL not offered
    cipherlist_aNULL not offered
    cipherlist_EXPORT not offered
    cipherlist_LOW not offered
    cipherlist_3DES_IDEA not offered
    cipherlist_AVERAGE not offered
    cipherlist_STRONG offered
    PFS offered
    cert_keySize EC 256 bits
    cert_chain_of_trust passed.
    ");
}

/// 2,000 connections that send heads and bodies and read answers as slowly as they can. Visitors from elsewhere are
/// served meanwhile, each within seconds.
#[tokio::test]
async fn slow_visitors_keep_nobody_out() {
    let stage = Stage::set(&[]).await;
    let address = stage.place.address;
    // The name is in no DNS, so that the node is asked as a proxy is.
    let slow = |kind: &str| {
        let line = format!(
            "slowhttptest {kind} -c 500 -r 200 -i 5 -l {SLOW_FOR} -p 3 -d {address}:8081 -u http://{NAME}:8081/echo"
        );
        stage.place.command_of("sh").args(["-c", &line]).output()
    };
    let attacks = async {
        tokio::join!(slow("-H"), slow("-B -s 8192 -t POST"), slow("-R -t GET"), slow("-X -w 1 -y 1 -n 5 -z 1 -k 3"))
    };
    let mut attacks = std::pin::pin!(attacks);
    let mut served = 0;
    let (head, body, range, read) = loop {
        let line = format!(
            "curl -sS -o /dev/null -w '%{{http_code}}' --max-time 5 --interface 127.0.0.99 \
             --resolve {NAME}:8081:{address} http://{NAME}:8081/echo"
        );
        tokio::select! {
            biased;
            ended = &mut attacks => break ended,
            probe = stage.run(&line) => {
                assert_eq!(String::from_utf8_lossy(&probe.stdout), "200", "{}", String::from_utf8_lossy(&probe.stderr));
                served += 1;
            }
        }
    };
    for attack in [head, body, range, read] {
        let said = String::from_utf8_lossy(&attack.unwrap().stdout).into_owned();
        assert!(said.contains("Hit test time limit") || said.contains("No open connections left"), "{said}");
    }
    assert!(served > Duration::from_secs(SLOW_FOR.parse().unwrap()).as_secs(), "{served} probes");
}

/// Many requests at once, by both versions of HTTP: each is answered.
#[tokio::test]
async fn h2load_sees_no_failed_request() {
    let stage = Stage::set(&[]).await;
    let address = stage.place.address;
    for (how, url) in
        [("--h1 -c16", format!("http://{NAME}:8081/echo")), ("-c4 -m16", format!("https://{NAME}:8443/echo"))]
    {
        let port = if url.starts_with("https") { 8443 } else { 8081 };
        let load = stage.run(&format!("h2load -n3000 {how} --connect-to={address}:{port} {url}")).await;
        let said = String::from_utf8(load.stdout).unwrap();
        assert!(said.contains(" 3000 succeeded, 0 failed, 0 errored, 0 timeout"), "{said}");
        assert!(said.contains("status codes: 3000 2xx"), "{said}");
    }
}
