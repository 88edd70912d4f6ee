//! Three hosts on one database, with agents, clients and visitors, while one thing after the other goes wrong. What clients,
//! visitors and a receiver of events have seen must be what a service shows that keeps its promises.
//!
//! `TEST_CHAOS_SEED` is the first seed, which stands for an order of what goes wrong, `TEST_CHAOS_SEEDS` says how many there
//! are, and `TEST_CHAOS_SECONDS` how long each thing lasts at most. With `TEST_PREVIOUS`, hosts and agents of two versions run.

mod asker;
mod faults;
mod history;
mod load;
mod silence;
mod stage;

use std::sync::Arc;
use std::time::Duration;

use culvert_wire::clock::Clock;
use futures_util::future::join_all;
use serde_json::json;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use asker::{Random, answer_within};
use faults::{Fault, Together};
use history::History;
use load::{Client, make_too_many};
use silence::{silence, until_started};
use stage::{Stage, Way};

use crate::support::host::within;
use crate::support::server::Stop;

const HOSTS: usize = 3;
const CLIENTS: usize = 2;
/// Two for each client.
const DEVICES: usize = 2 * CLIENTS;
const VISITORS: usize = 2;
/// How often something goes wrong under each seed but the first three.
const SOME: usize = 3;
/// Between two things that go wrong.
const PAUSE: Duration = Duration::from_secs(2);
/// Before and after the database is lost.
const UNDER_LOAD: Duration = Duration::from_secs(10);
/// How long something is wrong at least.
const SHORTEST: Duration = Duration::from_secs(2);
/// Everything runs again within this time after the last fault, the grace after an outage among it.
const RECOVERS_WITHIN: Duration = Duration::from_secs(35 + 75);
/// A device whose agent was killed is offline after 45 seconds, and a sweep.
const OFFLINE_WITHIN: Duration = Duration::from_secs(60 + 75);

const EVENTS: [&str; 5] =
    ["command.succeeded", "command.failed", "command.expired", "command.canceled", "device.offline"];

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

/// In seconds.
fn longest_fault() -> u64 {
    setting("TEST_CHAOS_SECONDS", 4)
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
    random: Random,
    end: CancellationToken,
    clients: Vec<JoinHandle<Client>>,
    others: Vec<JoinHandle<()>>,
}

impl Load {
    async fn begin(stage: &Arc<Stage>, history: &Arc<History>, seed: u64) -> Self {
        let (end, mut clients, mut others) = (CancellationToken::new(), Vec::new(), Vec::new());
        for number in 0..CLIENTS {
            let client = Client::new(stage, history, Random::of(seed, number as u64), number).await;
            for visitor in 0..VISITORS {
                let random = Random::of(seed, (100 + VISITORS * number + visitor) as u64);
                others.push(tokio::spawn(client.visitor(random, answer_within()).visit(end.clone())));
            }
            clients.push(tokio::spawn(client.run(end.clone())));
        }
        others.push(tokio::spawn(make_too_many(stage.clone(), history.clone(), seed, end.clone())));
        let (stage, history, random) = (stage.clone(), history.clone(), Random::of(seed, 1000));
        Self { seed, stage, history, random, end, clients, others }
    }

    /// The faults of the first seed: each one that does not last long.
    async fn each_once(&mut self) {
        for together in Fault::each(&mut self.random, HOSTS, DEVICES, &[]) {
            self.inject(together).await;
        }
    }

    /// Those of the second: a device is silent and a host is cut off until they are taken for dead, and others meanwhile.
    async fn silent_device(&mut self) {
        let silent = self.random.below(CLIENTS);
        let device = 2 * (CLIENTS - 1 - silent);
        let host = self.stage.host_of(&self.stage.devices[device]).await;
        let (stage, history) = (self.stage.clone(), self.history.clone());
        let mut steady = Client::new(&stage, &history, Random::of(self.seed, 500), device / 2).await;
        let started = until_started(&history, &mut steady, 0).await;
        let ended =
            format!("SELECT count(*) FROM sessions WHERE tunnel_id = '{}' AND ended_at IS NOT NULL", steady.tunnel);
        let before = stage.server.sql(&ended).await;
        let silence = tokio::spawn(silence(stage.clone(), history.clone(), self.seed, silent));
        self.beside(Fault::CutOffHost { host, device }, Some(Fault::KillAgent(2 * silent))).await;
        if let Err(missing) = started {
            history.note().wrong.push(missing);
        } else if stage.server.sql(&ended).await != before {
            history.note().wrong.push(format!("quiet: {} has ended, whose device stayed connected", steady.tunnel));
        }
        if let Err(missing) = silence.await.unwrap() {
            self.history.note().wrong.push(missing);
        }
    }

    /// Those of the third: a host stands still until it is taken for dead, and others meanwhile.
    async fn silent_host(&mut self) {
        let host = self.random.below(HOSTS);
        self.beside(Fault::SuspendHostUntilEnded(host), None).await;
    }

    /// A fault that lasts long, and others meanwhile, which do not concern the same, nor the one that is left out.
    async fn beside(&mut self, long: Fault, left_out: Option<Fault>) {
        let leave_alone: Vec<_> = [long].into_iter().chain(left_out).collect();
        let mut short = Fault::each(&mut self.random, HOSTS, DEVICES, &leave_alone).into_iter().cycle();
        let (stage, history, lasting) = (self.stage.clone(), self.history.clone(), vec![self.lasting()]);
        let long = tokio::spawn(inject(stage, history, self.seed, vec![long], lasting));
        while !long.is_finished() {
            self.inject(short.next().unwrap()).await;
        }
        long.await.unwrap();
    }

    /// Those of any other.
    async fn some(&mut self) {
        for together in Fault::each(&mut self.random, HOSTS, DEVICES, &[]).into_iter().take(SOME) {
            self.inject(together).await;
        }
    }

    fn lasting(&mut self) -> Duration {
        self.random.between(SHORTEST, Duration::from_secs(longest_fault()))
    }

    async fn inject(&mut self, together: Together) {
        let lasting = together.iter().map(|_| self.lasting()).collect();
        inject(self.stage.clone(), self.history.clone(), self.seed, together, lasting).await;
        self.history.clock.sleep(PAUSE).await;
    }

    /// Ends it; everything must run again.
    async fn end(self) {
        self.end.cancel();
        let mut clients = Vec::new();
        for client in self.clients {
            clients.push(client.await.unwrap());
        }
        for other in self.others {
            other.await.unwrap();
        }
        recover(&self.history, &mut clients).await;
    }
}

async fn inject(stage: Arc<Stage>, history: Arc<History>, seed: u64, together: Together, lasting: Vec<Duration>) {
    say(&format!("seed {seed}: {together:?} for {lasting:?}"));
    let unanswered = history.unanswered();
    let injected = together.iter().zip(&lasting).map(|(fault, lasting)| fault.inject(&stage, &history, *lasting));
    join_all(injected).await;
    history.note().faults.push((together, history.unanswered() > unanswered));
}

async fn set_up() -> (Arc<Stage>, Arc<History>) {
    let stage = Arc::new(Stage::set(HOSTS, DEVICES).await);
    let webhook = json!({"url": stage.receiver.lock().await.url(), "events": EVENTS});
    stage.hosts[0].api.post("/webhooks", webhook).await.data();
    (stage, Arc::new(History::new(Clock::system())))
}

/// Nothing that was seen may break a promise.
async fn judge(stage: &Stage, history: &History) {
    events(stage, history).await;
    let wrong = {
        let records = history.note();
        let (visits, writes, operations) = (records.visits.len(), records.written.len(), records.operations.len());
        let (faults, bursts, moved) = (records.faults.len(), records.bursts.len(), records.moved);
        let met = records.faults.iter().filter(|(_, was_met)| *was_met).count();
        say(&format!(
            "{visits} visits, {writes} writes, {operations} looks at operations, {bursts} bursts, {moved} moves"
        ));
        say(&format!("{faults} times something went wrong, {met} times somebody met it"));
        assert!(visits > 100 && writes > 10 && operations > 10 && bursts > 3 && moved > 0, "nothing was under way");
        records.wrongs()
    };
    if wrong.is_empty() {
        return;
    }
    let kept = stage.keep().await;
    std::fs::write(kept.join("history"), format!("{:#?}", history.note())).unwrap();
    panic!("logs in {}:\n{}", kept.display(), wrong.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn promises_are_kept_whatever_goes_wrong() {
    let (stage, history) = set_up().await;
    let first = setting("TEST_CHAOS_SEED", 1);
    for number in 0..setting("TEST_CHAOS_SEEDS", 6) {
        let mut load = Load::begin(&stage, &history, first + number).await;
        match number {
            0 => load.each_once().await,
            1 => load.silent_device().await,
            2 => load.silent_host().await,
            _ => load.some().await,
        }
        load.end().await;
    }
    judge(&stage, &history).await;
}

/// The standby that each commit waits for takes the place of a database that is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_that_was_acknowledged_is_lost_with_the_database() {
    let (stage, history) = set_up().await;
    let load = Load::begin(&stage, &history, setting("TEST_CHAOS_SEED", 1)).await;
    let standby = stage.server.standby().await;
    history.clock.sleep(UNDER_LOAD).await;
    stage.server.stop(Stop::Immediate).await;
    standby.promote().await;
    standby.sql("ALTER SYSTEM SET synchronous_standby_names = ''").await;
    standby.sql("SELECT pg_reload_conf()").await;
    stage.hosts.iter().for_each(|host| host.link(Way::Store).lead_to(standby.address));
    history.clock.sleep(UNDER_LOAD).await;
    load.end().await;
    judge(&stage, &history).await;
}

/// The database is put back to an earlier state while agents and nodes know of a later one: what was to run then runs again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restored_backup_serves_what_was_to_run_then() {
    let stage = Arc::new(Stage::set(HOSTS, 2).await);
    let history = Arc::new(History::new(Clock::system()));
    let mut kept = Client::new(&stage, &history, Random::of(1, 0), 0).await;
    assert!(kept.start(0).await);
    let dump = stage.server.dump().await;
    // Its device, and all epochs, are others from here on.
    for device in [1, 0, 1] {
        assert!(kept.start(device).await);
    }
    let lost = Client::new(&stage, &history, Random::of(2, 0), 0).await;
    for host in &stage.hosts {
        let program = host.program.lock().await.take().unwrap();
        assert_eq!(within(60, program.terminate()).await, Some(0));
    }
    stage.server.restore(&dump).await;
    for host in &stage.hosts {
        *host.program.lock().await = Some(host.serve().await);
    }
    let end = CancellationToken::new();
    let visits = tokio::spawn(kept.visitor(Random::of(0, 0), answer_within()).visit(end.clone()));
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
        let visits = tokio::spawn(client.visitor(Random::of(0, 0), answer_within()).visit(end.clone()));
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
    let last = &stage.devices[DEVICES - 1];
    let path = format!("/devices/{}", last.id);
    let online = async {
        while stage.hosts[0].api.get(&path).await.data()["online"] != true {
            history.clock.sleep(Duration::from_millis(200)).await;
        }
    };
    if history.clock.timeout(RECOVERS_WITHIN, online).await.is_err() {
        history.note().wrong.push(format!("recovery: {} is not online", last.id));
    }
    last.kill().await;
    let killed = history.clock.moment();
    let mut receiver = stage.receiver.lock().await;
    let mut is_told = false;
    while !is_told {
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
                let was_silent = history.note().silent.iter().any(|id| id == of);
                if of == last.id && after >= Duration::from_secs(30) {
                    is_told = true;
                } else if !was_silent {
                    history.note().wrong.push(format!("quiet: {of} is said to be offline, {after:?} after the kill"));
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
