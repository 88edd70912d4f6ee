//! What several hosts on one database cost and how fast they hear of each other, with three hosts and three agents: the
//! request, the agent and the node of a tunnel at one host, and each at another one.
//!
//! `BENCH_POSTGRES` names an empty database.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "this is what it is for")]
#![allow(clippy::disallowed_methods, reason = "it measures time")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use culvert_bench::fleet::{Fleet, Reach};
use culvert_bench::load::load;
use culvert_bench::service::until;
use culvert_bench::{median, verdict};
use futures_util::future::join_all;
use serde_json::json;

const HOSTS: u8 = 3;
const ROUNDS: usize = 100;
/// A start and a stop are seven frames of an agent, of which a host takes 20 a second.
const PAUSE: Duration = Duration::from_millis(350);
const CONNECTIONS: usize = 33;
const LOAD: Duration = Duration::from_secs(3);
const RELOADS: usize = 100;
const KILLS: usize = 5;
const AGENTS: usize = 30;
const END_LISTENERS: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                             WHERE datname = current_database() AND query LIKE 'LISTEN%'";

fn main() {
    let Ok(database) = std::env::var("BENCH_POSTGRES") else {
        println!("fleet: BENCH_POSTGRES names no empty database, so nothing is measured");
        return;
    };
    tokio::runtime::Runtime::new().unwrap().block_on(measure(&database));
}

async fn measure(database: &str) {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("secret.key");
    let mut fleet = Fleet::start(database, &keys, HOSTS, Reach::Own).await;
    for number in 0..usize::from(HOSTS) {
        fleet.add_agent(number).await;
    }
    idle(&fleet).await;
    starts(&fleet).await;
    starts_anywhere(&fleet).await;
    without_notifications(&fleet).await;
    throughput(&fleet).await;
    reloads(&mut fleet).await;
    drop(fleet);
    kills(database, &keys).await;
}

/// The p50 or another share of times, in milliseconds.
fn at(share: f64, times: &mut [Duration]) -> f64 {
    times.sort_unstable();
    times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3
}

async fn idle(fleet: &Fleet) {
    const WATCHED: Duration = Duration::from_secs(30);
    let statements = async || fleet.metric(&fleet.hosts[0], "culvert_database_statements_total").await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let before = statements().await;
    tokio::time::sleep(WATCHED).await;
    let each = (statements().await - before) / WATCHED.as_secs_f64();
    verdict("statements a second of an idle host with an agent", each, "<= 3", each <= 3.0);
}

/// Starts and stops a tunnel with everything at one host, and with everything at another one, in turns.
async fn starts(fleet: &Fleet) {
    let [a, b, c] = &fleet.hosts[..] else { unreachable!() };
    let (here, elsewhere) = (fleet.tunnel_on(a).await, fleet.tunnel_on(b).await);
    let mut heard = [Vec::new(), Vec::new()];
    let mut started = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (place, (asked, agent, tunnel)) in
            [(a, &fleet.agents[0], &here), (a, &fleet.agents[2], &elsewhere)].into_iter().enumerate()
        {
            let [claimed, done] = fleet.act(asked, agent, tunnel, "start").await.unwrap();
            heard[place].push(claimed);
            started[place].push(done);
            fleet.act(c, agent, tunnel, "stop").await.unwrap();
            tokio::time::sleep(PAUSE).await;
        }
    }
    let [mut same, mut other] = heard;
    let (p50, p99) = (at(0.5, &mut other), at(0.99, &mut other));
    verdict("ms until an agent elsewhere has a command, p50", p50, "<= 10", p50 <= 10.0);
    verdict("the same, p99", p99, "<= 100", p99 <= 100.0);
    let ratio = p50 / at(0.5, &mut same);
    verdict("to an agent at the same host, p50", ratio, "<= 2", ratio <= 2.0);
    let [mut same, mut other] = started;
    let (same, other) = (at(0.5, &mut same), at(0.5, &mut other));
    println!("  a start at one host: {same:.1} ms; with agent, node and request at three: {other:.1} ms (p50)");
    verdict("start elsewhere to start at one host, p50", other / same, "<= 1.5", other / same <= 1.5);
}

/// Starts through any host, of agents and nodes anywhere.
async fn starts_anywhere(fleet: &Fleet) {
    let grants = async |place: &str| {
        let name = format!("culvert_grants_total{{node=\"{place}\"}}");
        join_all(fleet.hosts.iter().map(|host| fleet.metric(host, &name))).await.iter().sum::<f64>()
    };
    let before = grants("elsewhere").await;
    let mut tunnels = Vec::new();
    for host in &fleet.hosts {
        tunnels.push(fleet.tunnel_on(host).await);
    }
    let (mut succeeded, mut all) = (0.0, 0.0);
    for round in 0..ROUNDS * 3 {
        // Each combination as often.
        let (asked, agent, tunnel) = (round % 3, round / 3 % 3, &tunnels[round / 9 % 3]);
        let (asked, agent) = (&fleet.hosts[asked], &fleet.agents[agent]);
        all += 1.0;
        succeeded += f64::from(u8::from(fleet.act(asked, agent, tunnel, "start").await.is_some()));
        fleet.act(asked, agent, tunnel, "stop").await;
        tokio::time::sleep(PAUSE).await;
    }
    verdict("starts through any host that succeed", succeeded / all, "= 1.000", succeeded >= all);
    let share = (grants("elsewhere").await - before) / all;
    verdict("of these, with the node at another host", share, ">= 0.5", share >= 0.5);
}

/// As [`starts`], while no host hears another one.
async fn without_notifications(fleet: &Fleet) {
    let (a, b) = (&fleet.hosts[0], &fleet.hosts[1]);
    let tunnel = fleet.tunnel_on(b).await;
    let is_over = Arc::new(AtomicBool::new(false));
    let (over, database) = (is_over.clone(), fleet.database.clone());
    let cutting = tokio::spawn(async move {
        while !over.load(Ordering::Relaxed) {
            sqlx::query(END_LISTENERS).execute(&database).await.unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let (mut heard, mut started) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let [claimed, done] = fleet.act(a, &fleet.agents[2], &tunnel, "start").await.unwrap();
        heard.push(claimed);
        started.push(done);
        fleet.act(a, &fleet.agents[2], &tunnel, "stop").await.unwrap();
        tokio::time::sleep(PAUSE).await;
    }
    is_over.store(true, Ordering::Relaxed);
    cutting.await.unwrap();
    let p99 = at(0.99, &mut heard);
    verdict("ms until a command is heard without LISTEN, p99", p99, "<= 1200", p99 <= 1200.0);
    let p99 = at(0.99, &mut started);
    verdict("ms of a start elsewhere without LISTEN, p99", p99, "<= 3000", p99 <= 3000.0);
}

async fn throughput(fleet: &Fleet) {
    let ask = async |hosts: usize| {
        let loads = fleet.hosts[..hosts].iter().map(|host| {
            let request = format!("GET /v2/account HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {}\r\n\r\n", fleet.key);
            let address = format!("{}:8080", host.address).parse().unwrap();
            load(address, CONNECTIONS / hosts, LOAD, move || request.clone())
        });
        join_all(loads).await.iter().map(|round| round.per_second).sum::<f64>()
    };
    let mut ratios = Vec::new();
    for _ in 0..5 {
        let one = ask(1).await;
        ratios.push(ask(3).await / one);
    }
    let ratio = median(ratios);
    verdict("reads of three hosts to those of one", ratio, ">= 0.9", ratio >= 0.9);
}

/// Policies of so many milliseconds a decision: another number is another generation.
fn policies(milliseconds: usize) -> String {
    let entry = |kind| format!("[[policy]]\nkind = \"{kind}\"\nmodule = \"builtin:{kind}\"\n");
    ["plan-access", "team-role", "validation"].map(entry).concat() + &format!("deadline_ms = {milliseconds}\n")
}

/// Reloads while eight clients create and delete tunnels at all hosts, and how long they take at three hosts and at one.
async fn reloads(fleet: &mut Fleet) {
    let (is_over, [done, failed]) = (AtomicBool::new(false), [AtomicU64::new(0), AtomicU64::new(0)]);
    let write = async |client: usize| {
        let host = &fleet.hosts[client % 3];
        while !is_over.load(Ordering::Relaxed) {
            let tunnel = fleet.post(host, "tunnels", json!({"local_port": 80})).await;
            let deleted = match tunnel["id"].as_str() {
                Some(id) => fleet.delete(host, &format!("tunnels/{id}")).await,
                None => false,
            };
            (if deleted { &done } else { &failed }).fetch_add(1, Ordering::Relaxed);
        }
    };
    let swap = async {
        let mut times = Vec::new();
        for number in 0..RELOADS {
            times.push(fleet.reload(&fleet.hosts[number % 3], &policies(50 + number)).await);
        }
        is_over.store(true, Ordering::Relaxed);
        times
    };
    let (mut loaded, _) = tokio::join!(swap, join_all((0..8).map(write)));
    let (done, failed) = (done.into_inner(), failed.into_inner() as f64);
    println!(
        "  a reload under load: {:.0} ms (p50); {done} tunnels created and deleted meanwhile",
        at(0.5, &mut loaded)
    );
    verdict("writes that failed during 100 reloads", failed, "= 0", failed == 0.0);
    let (mut three, mut one) = (Vec::new(), Vec::new());
    for number in 0..RELOADS / 3 {
        three.push(fleet.reload(&fleet.hosts[0], &policies(200 + number)).await);
    }
    fleet.stop(2);
    fleet.stop(1);
    for number in 0..RELOADS / 3 {
        one.push(fleet.reload(&fleet.hosts[0], &policies(300 + number)).await);
    }
    let (three, one) = (at(0.5, &mut three), at(0.5, &mut one));
    println!("  a reload of three hosts: {three:.0} ms; of one: {one:.0} ms (p50)");
    verdict("reload of three hosts to that of one", three / one, "<= 1.5", three / one <= 1.5);
}

/// Agents of a host that is killed find another one.
async fn kills(database: &str, keys: &Path) {
    let mut fleet = Fleet::start(database, keys, HOSTS, Reach::All).await;
    for number in 0..AGENTS {
        fleet.add_agent(number % 3).await;
    }
    let connected = async |fleet: &Fleet, hosts: [usize; 2]| {
        let each = hosts.map(|number| fleet.metric(&fleet.hosts[number], "culvert_agents_connected"));
        join_all(each).await.iter().sum::<f64>() as usize
    };
    let mut times = Vec::new();
    for round in 0..KILLS {
        let killed = round % 3;
        fleet.kill(killed);
        let began = Instant::now();
        until(async || connected(&fleet, [(killed + 1) % 3, (killed + 2) % 3]).await == AGENTS).await;
        times.push(began.elapsed());
        fleet.serve(killed).await;
        // The next one to be killed gets some of them back when another one is.
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    let last = at(1.0, &mut times) / 1e3;
    verdict("s until all agents of a killed host are back, at most", last, "<= 5", last <= 5.0);
}
