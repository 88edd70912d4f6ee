//! What swapping policies takes, what those feel who ask meanwhile, and what it costs to write
//! every decision down.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark ends where something is not as it must be")]
#![allow(clippy::disallowed_methods, reason = "this is what measures time, and its requests are made of chance")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use culvert_bench::load::load;
use culvert_bench::server::{Decisions, Servers};
use culvert_bench::{median, verdict};
use culvert_policy::load::sections;
use uuid::Uuid;

const KINDS: [&str; 3] = ["plan-access", "team-role", "validation"];
const SWAPS: usize = 31;
const ROUNDS: usize = 9;
const ROUND: Duration = Duration::from_secs(2);
/// Few enough to leave the processors some time: a queue would hide what a reload takes.
const IN_FLIGHT: usize = 2;
const CONNECTIONS: usize = 32;

fn main() {
    // The servers' own process goes no further than this.
    let plain = Servers::start();
    let recording = Servers::with(Decisions::Recorded);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        swaps(&plain).await;
        stalls(&plain).await;
        records(&plain, &recording).await;
    });
}

/// Three modules, of which the machine has never seen the ones of these kinds: each of them is read, configured, put to its
/// cases, and compiled, but for the functions that the module before it had.
fn write_new(servers: &Servers, new: &[&str]) {
    let mut entries = String::new();
    for kind in KINDS {
        let path = servers.addresses.folder.join(format!("{kind}.wasm"));
        entries += &format!("[[policy]]\nkind = \"{kind}\"\nmodule = \"{}\"\n", path.display());
        if !new.contains(&kind) {
            continue;
        }
        let dist = concat!(env!("CARGO_MANIFEST_DIR"), "/../../policies/dist");
        let mut wasm = std::fs::read(format!("{dist}/{kind}.wasm")).unwrap();
        sections::append(&mut wasm, "bench", Uuid::new_v4().as_bytes());
        std::fs::write(&path, wasm).unwrap();
    }
    std::fs::write(servers.addresses.folder.join("culvert.toml"), entries).unwrap();
}

async fn post(servers: &Servers, path: &str) -> Duration {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let token = std::fs::read_to_string(servers.addresses.folder.join("admin.token")).unwrap();
    let request = client.post(format!("http://{}/policies/{path}", servers.addresses.admin)).bearer_auth(token.trim());
    let start = Instant::now();
    let answer = request.send().await.unwrap();
    let took = start.elapsed();
    assert!(answer.status().is_success(), "{}", answer.text().await.unwrap());
    took
}

async fn swaps(servers: &Servers) {
    let (mut reloads, mut changed, mut rollbacks) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..SWAPS {
        write_new(servers, &KINDS);
        reloads.push(post(servers, "reload").await.as_secs_f64() * 1000.0);
        write_new(servers, &KINDS[..1]);
        changed.push(post(servers, "reload").await.as_secs_f64() * 1000.0);
        rollbacks.push(post(servers, "rollback").await.as_secs_f64() * 1000.0);
    }
    println!("swaps of three modules of the shipped size, the median of {SWAPS}, in milliseconds");
    let (reload, changed, rollback) = (median(reloads), median(changed), median(rollbacks));
    verdict("reload of modules never seen before", reload, "<= 200", reload <= 200.0);
    verdict("reload of one that was changed, of three", changed, "<= 100", changed <= 100.0);
    verdict("rollback", rollback, "<= 5", rollback <= 5.0);
}

/// The 99th percentile of requests while the policies are reloaded without a pause, and without.
async fn stalls(servers: &Servers) {
    let (mut calm, mut busy, mut reloads) = (Vec::new(), Vec::new(), 0);
    for _ in 0..ROUNDS {
        calm.push(p99(servers).await);
        let stop = Arc::new(AtomicBool::new(false));
        let swapping = async {
            while !stop.load(Ordering::Relaxed) {
                write_new(servers, &KINDS);
                post(servers, "reload").await;
                reloads += 1;
            }
        };
        let asking = async {
            busy.push(p99(servers).await);
            stop.store(true, Ordering::Relaxed);
        };
        tokio::join!(swapping, asking);
    }
    println!("{IN_FLIGHT} requests in flight, p99 in milliseconds, the median of {ROUNDS} rounds; {reloads} reloads");
    let (calm, busy) = (median(calm), median(busy));
    println!("  without reloads {calm:.2}, amid reloads {busy:.2}");
    verdict("what reloads add at p99", busy - calm, "<= 10", busy - calm <= 10.0);
}

async fn p99(servers: &Servers) -> f64 {
    let key = servers.addresses.keys[0].clone();
    let read = format!("GET /v2/tunnels HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {key}\r\n\r\n");
    let round = load(servers.addresses.host, IN_FLIGHT, ROUND, move || read.clone()).await;
    round.p99.as_secs_f64() * 1000.0
}

/// Creates: three decisions each.
async fn records(plain: &Servers, recording: &Servers) {
    let (mut forgotten, mut recorded, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (without, with) = (creates(plain).await, creates(recording).await);
        ratios.push(with / without);
        forgotten.push(without);
        recorded.push(with);
    }
    println!("POST /v2/tunnels, {CONNECTIONS} connections, the median of {ROUNDS} rounds of {} s", ROUND.as_secs());
    println!("  a second: {:.0} without records, {:.0} with all of them", median(forgotten), median(recorded));
    let ratio = median(ratios);
    verdict("with records to without", ratio, ">= 0.95", ratio >= 0.95);
    let file = recording.addresses.folder.join("decisions.jsonl");
    let lines = std::fs::read_to_string(file).unwrap().lines().count();
    println!("  {lines} records were written");
}

async fn creates(servers: &Servers) -> f64 {
    let keys = servers.addresses.keys.clone();
    let create = move || {
        let key = &keys[usize::from(Uuid::new_v4().as_bytes()[0]) % keys.len()];
        let body = r#"{"local_port":8080,"protocol":"tcp","name":"bench"}"#;
        let head = format!(
            "POST /v2/tunnels HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {key}\r\nIdempotency-Key: {}\r\n",
            Uuid::new_v4()
        );
        format!("{head}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    };
    load(servers.addresses.host, CONNECTIONS, ROUND, create).await.per_second
}
