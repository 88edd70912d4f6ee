//! Explores what two hosts and their database can come to: every order in which heartbeats are sent, applied, answered
//! and lost, hosts are stopped and go on, and the database is away; and what their nodes serve meanwhile. The rules are
//! those of `culvert_domain::fleet` themselves. Breadth-first, by hand: stateright was weighed, of which this would use a
//! queue and a set.

use std::collections::{BTreeMap, HashSet, VecDeque};

use chrono::{DateTime, TimeDelta, Utc};
use culvert_domain::fleet::{Beat, Cluster, END_AFTER, GRACE, HostLease, Leader, OUTAGE, WINDOW, dead_since};
use uuid::Uuid;

/// Time passes in steps, which divide the lease and the grace.
const STEP: TimeDelta = TimeDelta::seconds(5);
/// How long a heartbeat is under way, at most.
const UNDER_WAY: TimeDelta = TimeDelta::seconds(10);
/// How long nodes serve without the database. An operator may not set so little, but longer has many more states. From 70
/// seconds on a grace counts as well, which is for clocks that jump; time does not jump here.
const AUTHORITY: TimeDelta = TimeDelta::seconds(20);
/// States, at most: those that are the furthest away are left out.
const MOST: usize = 200_000;
/// How far time goes.
const STEPS: u32 = 32;

const HOSTS: [usize; 2] = [0, 1];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rules {
    AsTheyAre,
    /// A host acts whether it has heard of its heartbeat or not.
    NoWindow,
    /// The window begins when the answer comes.
    WindowFromTheAnswer,
    /// The authority of nodes begins when the answer comes.
    AuthorityFromTheAnswer,
    /// An outage causes no grace.
    NoGrace,
}

/// What is explored of heartbeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heartbeats {
    /// Question and answer are under way for a while, or lost.
    ByMessage,
    /// They succeed at once: fewer states, of which those come that take long.
    AtOnce,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    now: DateTime<Utc>,
    cluster: Cluster,
    rows: [HostLease; 2],
    hosts: [Process; 2],
    is_database_up: bool,
    /// When the database was reached again after the last outage.
    outage_ended: DateTime<Utc>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Process {
    is_stopped: bool,
    /// What the last heartbeat told it.
    cluster: Cluster,
    window: DateTime<Utc>,
    /// Until when its nodes serve.
    authority: DateTime<Utc>,
    heartbeat: Option<Heartbeat>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Heartbeat {
    sent: DateTime<Utc>,
    answer: Option<(bool, Cluster)>,
}

fn id(host: usize) -> Uuid {
    Uuid::from_u128(host as u128 + 1)
}

impl State {
    fn first() -> Self {
        let now = DateTime::UNIX_EPOCH;
        let row = |host| HostLease { id: id(host), until: now, ended: false, drains: false };
        let host =
            Process { is_stopped: false, cluster: Cluster::default(), window: now, authority: now, heartbeat: None };
        let (rows, hosts) = (HOSTS.map(row), [host.clone(), host]);
        Self { now, cluster: Cluster::default(), rows, hosts, is_database_up: true, outage_ended: now - GRACE }
    }

    fn acts(&self, host: usize, rules: Rules) -> bool {
        let process = &self.hosts[host];
        !process.is_stopped && (rules == Rules::NoWindow || self.now < process.window)
    }

    fn leads(&self, host: usize, rules: Rules) -> bool {
        self.acts(host, rules) && self.hosts[host].cluster.leads(id(host), self.now)
    }

    /// What can come next, by its name.
    fn next(&self, rules: Rules, heartbeats: Heartbeats) -> Vec<(&'static str, Self)> {
        let mut next = vec![("time passes", self.after_a_step())];
        next.push(("database goes or comes", Self { is_database_up: !self.is_database_up, ..self.clone() }));
        for host in HOSTS {
            let mut with = |name, change: &dyn Fn(&mut Self)| {
                let mut state = self.clone();
                change(&mut state);
                next.push((name, state));
            };
            let process = &self.hosts[host];
            // One of them is enough: they are alike.
            if host == 1 {
                with("host is stopped or goes on", &|state| state.hosts[host].is_stopped = !process.is_stopped);
            }
            if heartbeats == Heartbeats::AtOnce {
                if self.is_database_up && !process.is_stopped {
                    with("heartbeat", &|state| {
                        state.hosts[host].heartbeat = Some(Heartbeat { sent: state.now, answer: None });
                        state.apply(host, rules);
                        state.answer(host, rules);
                    });
                }
            } else {
                self.messages(host, rules, &mut with);
            }
            let other = 1 - host;
            let may_end = self.acts(host, rules) && process.cluster.may_end(id(host), self.now);
            if self.is_database_up
                && may_end
                && !self.rows[other].ended
                && self.rows[other].until <= dead_since(self.now)
            {
                with("host is ended", &|state| state.rows[other].ended = true);
            }
        }
        next
    }

    /// What can become of a heartbeat.
    fn messages(&self, host: usize, rules: Rules, with: &mut impl FnMut(&'static str, &dyn Fn(&mut Self))) {
        let process = &self.hosts[host];
        match &process.heartbeat {
            None if !process.is_stopped => {
                let heartbeat = Heartbeat { sent: self.now, answer: None };
                with("heartbeat is sent", &|state| state.hosts[host].heartbeat = Some(heartbeat.clone()));
            }
            None => {}
            Some(Heartbeat { answer: None, .. }) => {
                if self.is_database_up {
                    with("heartbeat is applied", &|state| state.apply(host, rules));
                }
                with("heartbeat is lost", &|state| state.hosts[host].heartbeat = None);
            }
            Some(Heartbeat { answer: Some(_), .. }) => {
                if !process.is_stopped {
                    with("answer comes", &|state| state.answer(host, rules));
                }
                with("answer is lost", &|state| state.hosts[host].heartbeat = None);
            }
        }
    }

    fn after_a_step(&self) -> Self {
        let mut state = Self { now: self.now + STEP, ..self.clone() };
        for host in HOSTS {
            let late = |heartbeat: &Heartbeat| state.now - heartbeat.sent > UNDER_WAY;
            if state.hosts[host].heartbeat.as_ref().is_some_and(late) {
                state.hosts[host].heartbeat = None;
            }
        }
        state
    }

    fn apply(&mut self, host: usize, rules: Rules) {
        let now = self.now;
        if self.cluster.alive_at.is_some_and(|alive_at| now - alive_at > OUTAGE) && !self.rows[host].ended {
            self.outage_ended = now;
        }
        let beat = self.cluster.heartbeat(&mut self.rows[host], now);
        if rules == Rules::NoGrace {
            self.cluster.grace_until = DateTime::UNIX_EPOCH;
        }
        let answer = Some((beat == Beat::Renewed, self.cluster.clone()));
        self.hosts[host].heartbeat.as_mut().unwrap().answer = answer;
    }

    fn answer(&mut self, host: usize, rules: Rules) {
        let now = self.now;
        let process = &mut self.hosts[host];
        let Heartbeat { sent, answer } = process.heartbeat.take().unwrap();
        let (renewed, cluster) = answer.unwrap();
        let from = |late| if rules == late { now } else { sent };
        if renewed {
            process.window = from(Rules::WindowFromTheAnswer) + TimeDelta::from_std(WINDOW).unwrap();
            process.authority = from(Rules::AuthorityFromTheAnswer) + AUTHORITY;
            process.cluster = cluster;
        } else {
            // It starts anew, and does nothing before its next heartbeat.
            process.window = now;
            self.rows[host] = HostLease { id: id(host), until: now, ended: false, drains: false };
        }
    }

    /// What is wrong, if something is.
    fn fault(&self, came_by: &str, rules: Rules) -> Option<String> {
        for host in HOSTS {
            let row = &self.rows[host];
            let has_begun = self.hosts[host].cluster.alive_at.is_some();
            if has_begun && self.acts(host, rules) && (row.ended || row.until <= self.now) {
                return Some(format!("host {host} acts without a lease"));
            }
            let nodes_serve = self.now < self.hosts[host].authority;
            // The database's time may have jumped by so much without a grace.
            if nodes_serve && !self.cluster.nodes_may_serve(row, AUTHORITY, self.now + OUTAGE) {
                return Some(format!("nodes of host {host} serve what others may take"));
            }
        }
        if HOSTS.iter().all(|host| self.leads(*host, rules)) {
            return Some("two hosts lead".into());
        }
        if came_by == "host is ended" && self.now - self.outage_ended < GRACE {
            return Some("a host was ended in the grace".into());
        }
        None
    }

    /// The same, as if it were the beginning of time: what follows does not depend on when it is.
    fn at_the_beginning(&self) -> Self {
        let by = self.now - DateTime::UNIX_EPOCH;
        // What is longer ago is not told apart.
        let moved = |time: DateTime<Utc>, oldest: TimeDelta| (time - by).max(DateTime::UNIX_EPOCH - oldest);
        let over = |time: DateTime<Utc>| moved(time, TimeDelta::zero());
        let cluster = |cluster: &Cluster, oldest: TimeDelta| {
            let leader = &cluster.leader;
            let (until, ends_from) = (over(leader.until), over(leader.ends_from));
            let leader = Leader { host_id: leader.host_id, term: 0, until, ends_from };
            let alive_at = cluster.alive_at.map(|alive_at| moved(alive_at, oldest));
            Cluster { leader, alive_at, grace_until: over(cluster.grace_until) }
        };
        // A host does not ask when another one was heard of.
        let told = |told: &Cluster| cluster(told, TimeDelta::zero());
        let mut state = self.clone();
        state.now = DateTime::UNIX_EPOCH;
        state.cluster = cluster(&self.cluster, OUTAGE + STEP);
        state.outage_ended = moved(self.outage_ended, GRACE);
        state.rows.iter_mut().for_each(|row| row.until = moved(row.until, END_AFTER + STEP));
        for process in &mut state.hosts {
            (process.window, process.authority) = (over(process.window), over(process.authority));
            process.cluster = told(&process.cluster);
            if let Some(heartbeat) = &mut process.heartbeat {
                heartbeat.sent = moved(heartbeat.sent, UNDER_WAY);
                heartbeat.answer = heartbeat.answer.as_ref().map(|(renewed, cluster)| (*renewed, told(cluster)));
            }
        }
        state
    }
}

/// How many states each action led to first, or what went wrong and how.
fn explore(rules: Rules, heartbeats: Heartbeats) -> Result<BTreeMap<&'static str, usize>, String> {
    let first = State::first();
    let mut seen = HashSet::from([first.clone()]);
    let mut queue = VecDeque::from([(first, Vec::new(), 0)]);
    let mut reached = BTreeMap::new();
    while let Some((state, path, steps)) = queue.pop_front() {
        for (action, next) in state.next(rules, heartbeats) {
            let steps = steps + u32::from(action == "time passes");
            if let Some(fault) = next.fault(action, rules) {
                return Err(format!("{fault}, after {path:?} and {action}"));
            }
            let next = next.at_the_beginning();
            if steps <= STEPS && seen.len() < MOST && seen.insert(next.clone()) {
                *reached.entry(action).or_default() += 1;
                let path = if rules == Rules::AsTheyAre { Vec::new() } else { [&path[..], &[action]].concat() };
                queue.push_back((next, path, steps));
            }
        }
    }
    Ok(reached)
}

/// The exploration notices when a rule is left out.
#[test]
fn exploration_finds_each_rule_that_is_left_out() {
    for (rules, heartbeats, fault) in [
        (Rules::NoWindow, Heartbeats::ByMessage, "acts without a lease"),
        (Rules::WindowFromTheAnswer, Heartbeats::ByMessage, "acts without a lease"),
        (Rules::AuthorityFromTheAnswer, Heartbeats::ByMessage, "nodes of host 0 serve what others may take"),
        (Rules::NoGrace, Heartbeats::AtOnce, "a host was ended in the grace"),
    ] {
        let found = explore(rules, heartbeats).unwrap_err();
        assert!(found.contains(fault), "{rules:?}: {found}");
    }
}

#[test]
fn whoever_acts_has_a_lease_one_leads_nodes_are_waited_for_and_nothing_ends_in_the_grace() {
    for (heartbeats, actions) in [(Heartbeats::AtOnce, 5), (Heartbeats::ByMessage, 8)] {
        let reached = explore(Rules::AsTheyAre, heartbeats).unwrap();
        assert_eq!(reached.len(), actions, "some actions lead nowhere: {reached:?}");
    }
}
