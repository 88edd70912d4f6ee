//! What all other requests feel of a module that takes as long as it may.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark ends where something is not as it must be")]
#![allow(clippy::disallowed_methods, reason = "this is what measures time, and its requests are made of chance")]

#[path = "../../it/support/hostile.rs"]
#[allow(dead_code, clippy::format_collect, reason = "it is the tests', which use more of it")]
mod hostile;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use culvert_bench::load::paced;
use culvert_bench::server::Servers;
use culvert_bench::{median, verdict};
use hostile::{GOOD, Module};
use uuid::Uuid;

/// Some 700 ms of one core, of a deadline of 1,000 ms: it is not given up, so that no breaker opens.
const SLOW: Module = Module {
    check: "(local $n i64)
        (loop $again
            (local.set $n (i64.add (local.get $n) (i64.const 1)))
            (br_if $again (i64.lt_u (local.get $n) (i64.const 700000000))))
        i32.const 512",
    ..GOOD
};
/// Never answers, so that it is given up at its deadline.
const ENDLESS: Module = Module { check: "(loop $again (br $again)) unreachable", ..GOOD };
const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_secs(6);
const PER_SECOND: u32 = 200;
const CONNECTIONS: u32 = 20;
/// Clients that ask the slow module.
const CLIENTS: usize = 8;

fn main() {
    // The servers' own process goes no further than this.
    let servers = Servers::start();
    std::env::set_current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        others_beside(&servers, "a module that takes 0.7 of its deadline", &SLOW).await;
        others_beside(&servers, "a module that is given up at its deadline", &ENDLESS).await;
    });
}

async fn others_beside(servers: &Servers, what: &str, module: &Module) {
    configure(servers, module).await;
    let (mut calm, mut busy, mut health, mut answered) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for _ in 0..ROUNDS {
        calm.push(p99(servers).await);
        let stop = Arc::new(AtomicBool::new(false));
        let count = Arc::new(AtomicUsize::new(0));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| tokio::spawn(keep_busy(client, ask(servers), stop.clone(), count.clone())))
            .collect();
        // The first of them are under way.
        tokio::time::sleep(Duration::from_millis(200)).await;
        let (others, slowest) = tokio::join!(p99(servers), slowest_health(servers));
        busy.push(others);
        health.push(slowest);
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            client.await.unwrap();
        }
        answered += count.load(Ordering::Relaxed);
    }
    println!("{PER_SECOND} reads a second beside {CLIENTS} clients of {what}, the median of {ROUNDS} rounds");
    let ratios = calm.iter().zip(&busy).map(|(calm, busy)| busy / calm).collect();
    println!(
        "  p99 in milliseconds: without {:.2}, beside {:.2}; {answered} of the clients' requests were answered",
        median(calm),
        median(busy)
    );
    let (ratio, health) = (median(ratios), health.into_iter().fold(0.0, f64::max));
    verdict("p99 beside to without", ratio, "<= 2.0", ratio <= 2.0);
    verdict("the slowest /healthz, in milliseconds", health, "<= 50", health <= 50.0);
}

/// Puts the module into use for team roles.
async fn configure(servers: &Servers, module: &Module) {
    let path = servers.addresses.folder.join("slow.wasm");
    std::fs::write(&path, module.component()).unwrap();
    let entry = |kind: &str, module: &str| format!("[[policy]]\nkind = \"{kind}\"\nmodule = \"{module}\"\n");
    let slow = entry("team-role", path.to_str().unwrap()) + "deadline_ms = 1000\n";
    let all = slow + &entry("plan-access", "builtin:plan-access") + &entry("validation", "builtin:validation");
    std::fs::write(servers.addresses.folder.join("culvert.toml"), all).unwrap();
    servers.reload().await;
}

fn client() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().build().unwrap()
}

/// A request that the slow module is asked about, of one of the accounts.
fn ask(servers: &Servers) -> impl Fn(usize) -> reqwest::RequestBuilder + use<> {
    let (keys, client) = (servers.addresses.keys.clone(), client());
    let url = format!("http://{}/v2/tunnels", servers.addresses.host);
    move |number| {
        let request = client.post(&url).bearer_auth(&keys[1 + number % (keys.len() - 1)]);
        request.header("idempotency-key", Uuid::new_v4().to_string()).json(&serde_json::json!({"local_port": 80}))
    }
}

async fn keep_busy(
    client: usize,
    ask: impl Fn(usize) -> reqwest::RequestBuilder,
    stop: Arc<AtomicBool>,
    count: Arc<AtomicUsize>,
) {
    let mut number = client;
    while !stop.load(Ordering::Relaxed) {
        let answer = ask(number).send().await.unwrap();
        assert!([201, 503].contains(&answer.status().as_u16()), "{}", answer.status());
        count.fetch_add(1, Ordering::Relaxed);
        number += CLIENTS;
        // As a client does that is told to come back later.
        if answer.status() == 503 {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}

/// Reads of an account that none of the slow module's clients uses.
async fn p99(servers: &Servers) -> f64 {
    let key = servers.addresses.keys[0].clone();
    let read = format!("GET /v2/tunnels HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {key}\r\n\r\n");
    let round = paced(servers.addresses.host, CONNECTIONS, PER_SECOND, ROUND, move || read.clone()).await;
    round.p99.as_secs_f64() * 1000.0
}

/// The slowest of the host's answers about its health, asked ten times a second.
async fn slowest_health(servers: &Servers) -> f64 {
    let (client, url) = (client(), format!("http://{}/healthz", servers.addresses.admin));
    let (start, mut slowest) = (Instant::now(), Duration::ZERO);
    while start.elapsed() < ROUND {
        let asked = Instant::now();
        assert!(client.get(&url).send().await.unwrap().status().is_success());
        slowest = slowest.max(asked.elapsed());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    slowest.as_secs_f64() * 1000.0
}
