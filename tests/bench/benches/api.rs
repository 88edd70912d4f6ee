//! Requests through the whole path, beside a bare route on the same kind of pool: a read beside one read, a create beside
//! four statements in one transaction. On SQLite (`synchronous=FULL`), and on the empty PostgreSQL database that
//! `BENCH_POSTGRES` names by its URL.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark ends where something is not as it must be")]
#![allow(clippy::disallowed_methods, reason = "its requests are made of chance")]

use std::net::SocketAddr;
use std::time::Duration;

use culvert_bench::load::{Round, load};
use culvert_bench::server::{Decisions, Servers};
use culvert_bench::{median, verdict};
use uuid::Uuid;

const CONNECTIONS: usize = 32;
const ROUND: Duration = Duration::from_secs(2);
const ROUNDS: usize = 7;

fn main() {
    measure_on("SQLite", &Servers::start());
    if let Ok(database) = std::env::var("BENCH_POSTGRES") {
        measure_on("PostgreSQL", &Servers::on(Decisions::Forgotten, Some(&database)));
    }
}

fn measure_on(engine: &str, servers: &Servers) {
    println!("on {engine}");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (host, bare, keys) = (servers.addresses.host, servers.addresses.bare, servers.addresses.keys.clone());
        let authorization = |key: &str| format!("Authorization: Bearer {key}\r\n");
        let tunnel = tunnel(host, &keys[0]).await;
        let read = format!("GET /v2/tunnels/{tunnel} HTTP/1.1\r\nHost: h\r\n{}\r\n", authorization(&keys[0]));
        let bare_read = "GET /things HTTP/1.1\r\nHost: h\r\n\r\n".to_owned();
        compare("GET /v2/tunnels/{id}", servers, (host, move || read.clone()), (bare, move || bare_read.clone())).await;
        let create = move || {
            let at = usize::from(Uuid::new_v4().as_bytes()[0]) % keys.len();
            post("/v2/tunnels", &authorization(&keys[at]))
        };
        compare("POST /v2/tunnels", servers, (host, create), (bare, || post("/things", ""))).await;
    });
}

/// A create with a key of its own.
fn post(path: &str, authorization: &str) -> String {
    let body = r#"{"local_port":8080,"protocol":"tcp","name":"bench"}"#;
    format!(
        "POST {path} HTTP/1.1\r\nHost: h\r\n{authorization}Idempotency-Key: {}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        Uuid::new_v4(),
        body.len()
    )
}

async fn tunnel(host: SocketAddr, key: &str) -> String {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let request = client.post(format!("http://{host}/v2/tunnels")).bearer_auth(key);
    let request = request.header("idempotency-key", "first").json(&serde_json::json!({"local_port": 80}));
    let answer: serde_json::Value = request.send().await.unwrap().json().await.unwrap();
    answer["data"]["id"].as_str().unwrap().into()
}

/// Measures both in turns.
async fn compare<A, B>(what: &str, servers: &Servers, ours: (SocketAddr, A), bare: (SocketAddr, B))
where
    A: Fn() -> String + Clone + Send + 'static,
    B: Fn() -> String + Clone + Send + 'static,
{
    let (mut our_rounds, mut bare_rounds) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        bare_rounds.push(measure(servers, bare.0, bare.1.clone()).await);
        our_rounds.push(measure(servers, ours.0, ours.1.clone()).await);
    }
    println!("{what}, {CONNECTIONS} connections, the median of {ROUNDS} rounds of {} s", ROUND.as_secs());
    report("bare route", &bare_rounds);
    report("whole path", &our_rounds);
    let ratios = our_rounds.iter().zip(&bare_rounds).map(|((ours, _), (bare, _))| ours.per_second / bare.per_second);
    let ratio = median(ratios.collect());
    verdict("requests per second, whole path to bare route", ratio, ">= 0.50", ratio >= 0.5);
    let spread = our_rounds.iter().map(|(round, _)| round.p99.as_secs_f64() / round.p50.as_secs_f64());
    let spread = median(spread.collect());
    verdict("p99 to p50", spread, "<= 4.00", spread <= 4.0);
}

/// A round, and the CPU seconds of the servers for one request.
async fn measure(
    servers: &Servers,
    address: SocketAddr,
    request: impl Fn() -> String + Clone + Send + 'static,
) -> (Round, f64) {
    let before = servers.cpu();
    let round = load(address, CONNECTIONS, ROUND, request).await;
    (round, (servers.cpu() - before) / (round.per_second * ROUND.as_secs_f64()))
}

fn report(name: &str, rounds: &[(Round, f64)]) {
    let of = |value: fn(&(Round, f64)) -> f64| median(rounds.iter().map(value).collect());
    println!(
        "  {name:<12} {:>8.0}/s   p50 {:>6.2} ms   p99 {:>6.2} ms   CPU {:>6.0} us a request",
        of(|(round, _)| round.per_second),
        of(|(round, _)| round.p50.as_secs_f64() * 1e3),
        of(|(round, _)| round.p99.as_secs_f64() * 1e3),
        of(|(_, cpu)| cpu * 1e6),
    );
}
