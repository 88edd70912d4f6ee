//! Three hosts on one database, with agents, clients and visitors, while one thing after the other goes wrong. What clients,
//! visitors and a receiver of events have seen must be what a service shows that keeps its promises.
//!
//! `TEST_CHAOS_SEED` names another order of what goes wrong, `TEST_CHAOS_ROUNDS` how often all of it does, and
//! `TEST_CHAOS_SECONDS` how long each thing lasts at most.

mod faults;
mod history;
mod load;
mod stage;

use std::sync::Arc;
use std::time::Duration;

use culvert_wire::clock::Clock;
use serde_json::json;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use faults::Fault;
use history::History;
use load::{Client, Random, visit};
use stage::Stage;

use crate::support::host::within;
use crate::support::server::Stop;

const HOSTS: usize = 3;
const CLIENTS: usize = 2;
const VISITORS: usize = 2;
/// Between two things that go wrong.
const PAUSE: Duration = Duration::from_secs(2);
/// Before and after the database is lost.
const UNDER_LOAD: Duration = Duration::from_secs(10);
/// How long something is wrong at least, in milliseconds.
const SHORTEST: u64 = 2000;
/// Everything runs again within this time after the last fault, the grace after an outage among it.
const RECOVERS_WITHIN: Duration = Duration::from_secs(35 + 75);
/// A device whose agent was killed is offline after 45 seconds, and a sweep.
const OFFLINE_WITHIN: Duration = Duration::from_secs(60 + 75);

const EVENTS: [&str; 5] =
    ["command.succeeded", "command.failed", "command.expired", "command.canceled", "device.offline"];

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

/// Shown where the test fails, or with `--no-capture`.
#[expect(clippy::print_stdout, reason = "whoever runs it for hours wants to see how far it is")]
fn say(line: &str) {
    println!("{line}");
}

/// Clients and visitors that are at work.
struct Load {
    seed: u64,
    stage: Arc<Stage>,
    history: Arc<History>,
    end: CancellationToken,
    clients: Vec<JoinHandle<Client>>,
    visitors: Vec<JoinHandle<()>>,
}

impl Load {
    async fn begin(seed: u64) -> Self {
        let stage = Arc::new(Stage::set(HOSTS, 2 * CLIENTS).await);
        let history = Arc::new(History::new(Clock::system()));
        let webhook = json!({"url": stage.receiver.lock().await.url(), "events": EVENTS});
        stage.hosts[0].api.post("/webhooks", webhook).await.data();
        let (end, mut clients, mut visitors) = (CancellationToken::new(), Vec::new(), Vec::new());
        for number in 0..CLIENTS {
            let client = Client::new(&stage, &history, seed, number).await;
            for visitor in 0..VISITORS {
                let random = Random::of(seed, (100 + VISITORS * number + visitor) as u64);
                let visits = visit(history.clone(), client.tunnel, client.public.clone(), random, end.clone());
                visitors.push(tokio::spawn(visits));
            }
            clients.push(tokio::spawn(client.run(end.clone())));
        }
        Self { seed, stage, history, end, clients, visitors }
    }

    /// Ends it; everything must run again, and nothing that was seen may break a promise.
    async fn judge(self, injected: &[Fault]) {
        self.end.cancel();
        let mut clients = Vec::new();
        for client in self.clients {
            clients.push(client.await.unwrap());
        }
        for visitor in self.visitors {
            visitor.await.unwrap();
        }
        recover(&self.history, &mut clients).await;
        events(&self.stage, &self.history).await;
        let seed = self.seed;
        let faults = {
            let records = self.history.note();
            let (visits, writes, operations) = (records.visits.len(), records.written.len(), records.operations.len());
            say(&format!("seed {seed}: {visits} visits, {writes} writes, {operations} looks at operations"));
            assert!(visits > 100 && writes > 10 && operations > 10, "nothing was under way");
            records.faults()
        };
        if faults.is_empty() {
            return;
        }
        let kept = self.stage.keep(&format!("seed-{seed}")).await;
        std::fs::write(kept.join("history"), format!("{:#?}", self.history.note())).unwrap();
        panic!("seed {seed}, {injected:?}, logs in {}:\n{}", kept.display(), faults.join("\n"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn promises_are_kept_whatever_goes_wrong() {
    let seed = setting("TEST_CHAOS_SEED", 1);
    let load = Load::begin(seed).await;
    let (mut random, mut injected) = (Random::of(seed, 1000), Vec::new());
    for _ in 0..setting("TEST_CHAOS_ROUNDS", 1) {
        for fault in Fault::each(&mut random, HOSTS, 2 * CLIENTS) {
            let most = setting("TEST_CHAOS_SECONDS", 6) * 1000 - SHORTEST;
            let lasting = Duration::from_millis(SHORTEST + random.below(usize::try_from(most).unwrap()) as u64);
            say(&format!("{fault:?} for {lasting:?}"));
            fault.inject(&load.stage, &load.history, lasting).await;
            injected.push(fault);
            load.history.clock.sleep(PAUSE).await;
        }
    }
    load.judge(&injected).await;
}

/// The standby that each commit waits for takes the place of a database that is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_that_was_acknowledged_is_lost_with_the_database() {
    let load = Load::begin(setting("TEST_CHAOS_SEED", 1)).await;
    let standby = load.stage.server.standby().await;
    load.history.clock.sleep(UNDER_LOAD).await;
    load.stage.server.stop(Stop::Immediate).await;
    standby.promote().await;
    standby.sql("ALTER SYSTEM SET synchronous_standby_names = ''").await;
    standby.sql("SELECT pg_reload_conf()").await;
    load.stage.hosts.iter().for_each(|host| host.store.lead_to(standby.address));
    load.history.clock.sleep(UNDER_LOAD).await;
    load.judge(&[]).await;
}

/// The database is put back to an earlier state while agents and nodes know of a later one: what was to run then runs again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restored_backup_serves_what_was_to_run_then() {
    let stage = Arc::new(Stage::set(HOSTS, 2).await);
    let history = Arc::new(History::new(Clock::system()));
    let mut kept = Client::new(&stage, &history, 1, 0).await;
    assert!(kept.start(0).await);
    let dump = stage.server.dump().await;
    // Its device, and all epochs, are others from here on.
    for device in [1, 0, 1] {
        assert!(kept.start(device).await);
    }
    let lost = Client::new(&stage, &history, 2, 0).await;
    for host in &stage.hosts {
        let program = host.program.lock().await.take().unwrap();
        assert_eq!(within(60, program.terminate()).await, Some(0));
    }
    stage.server.restore(&dump).await;
    for host in &stage.hosts {
        *host.program.lock().await = Some(within(60, host.place.serve()).await);
    }
    let end = CancellationToken::new();
    let visits = visit(history.clone(), kept.tunnel, kept.public.clone(), Random::of(0, 0), end.clone());
    let visits = tokio::spawn(visits);
    within(60, async {
        while history.note().visits.is_empty() {
            history.clock.sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    end.cancel();
    visits.await.unwrap();
    assert_eq!(history.note().visits[0].device, "device-0");
    assert_eq!(stage.hosts[1].api.get(&format!("/tunnels/{}", lost.tunnel)).await.status, 404);
    assert!(kept.start(1).await);
}

/// Each tunnel can be started and visited.
async fn recover(history: &Arc<History>, clients: &mut [Client]) {
    let begun = history.clock.moment();
    for client in clients {
        let end = CancellationToken::new();
        while !client.start(0).await {
            if history.clock.moment().since(begun) > RECOVERS_WITHIN {
                history.note().wrong.push(format!("recovery: {} does not start", client.tunnel));
                return;
            }
            history.clock.sleep(Duration::from_secs(1)).await;
        }
        let seen = history.note().visits.len();
        let visits =
            tokio::spawn(visit(history.clone(), client.tunnel, client.public.clone(), Random::of(0, 0), end.clone()));
        let visited = async {
            while history.note().visits.len() == seen {
                history.clock.sleep(Duration::from_millis(100)).await;
            }
        };
        if history.clock.timeout(Duration::from_secs(10), visited).await.is_err() {
            history.note().wrong.push(format!("recovery: nobody answers visitors of {}", client.tunnel));
        }
        end.cancel();
        visits.await.unwrap();
    }
}

/// An agent that is killed is offline, and none that was not. Every event that was to come has come by then.
async fn events(stage: &Stage, history: &History) {
    let last = &stage.devices[2 * CLIENTS - 1];
    let path = format!("/devices/{}", last.id);
    let online = async {
        while stage.hosts[0].api.get(&path).await.data()["online"] != true {
            history.clock.sleep(Duration::from_millis(200)).await;
        }
    };
    within(90, online).await;
    last.kill().await;
    let killed = history.clock.moment();
    let mut receiver = stage.receiver.lock().await;
    loop {
        for delivered in receiver.waiting() {
            let event = delivered.event();
            let kind = event["type"].as_str().unwrap().to_owned();
            let of = if kind.starts_with("command.") {
                &event["data"]["operation"]["id"]
            } else {
                &event["data"]["device"]["id"]
            };
            let of = of.as_str().unwrap_or_default();
            if kind == "device.offline" {
                let after = history.clock.moment().since(killed);
                if of != last.id {
                    history.note().wrong.push(format!("quiet: {of} is said to be offline"));
                } else if after < Duration::from_secs(30) {
                    history.note().wrong.push(format!("quiet: {of} is said to be offline after {after:?}"));
                } else {
                    return;
                }
            }
            if let Ok(id) = of.parse() {
                history.note().events.push((kind, id));
            }
        }
        if history.clock.moment().since(killed) > OFFLINE_WITHIN {
            history.note().wrong.push("quiet: a killed agent is not said to be offline".into());
            return;
        }
        history.clock.sleep(Duration::from_millis(200)).await;
    }
}
