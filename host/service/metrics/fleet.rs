//! Where this host stands among the hosts on its database, as metrics.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use super::{BUCKETS, Ended};
use culvert_domain::node_request::RequestKind;
use culvert_domain::string_enum::StringEnum;

/// What came of a request to a node of another host.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NodeAnswer {
    Answered,
    TimedOut,
    /// Its host is not heard of.
    HostAway,
}

impl NodeAnswer {
    const ALL: [Self; 3] = [Self::Answered, Self::TimedOut, Self::HostAway];

    fn outcome(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::TimedOut => "timed_out",
            Self::HostAway => "host_away",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Asked {
    kind: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AskedFor {
    kind: &'static str,
}

/// How long something took.
#[derive(Clone)]
struct Durations(Histogram);

impl Default for Durations {
    fn default() -> Self {
        Self(Histogram::new(BUCKETS))
    }
}

#[derive(Clone)]
struct DurationsOfRequests(Family<AskedFor, Histogram, fn() -> Histogram>);

impl Default for DurationsOfRequests {
    fn default() -> Self {
        Self(Family::new_with_constructor(|| Histogram::new(BUCKETS)))
    }
}

#[derive(Clone, Default)]
pub struct FleetMetrics {
    heartbeats: Family<Ended, Counter>,
    heartbeat_durations: Durations,
    echoes: Durations,
    gaps: Counter,
    hints: Counter,
    went_back: Counter,
    sent_away: Counter,
    asked: Family<Asked, Counter>,
    request_durations: DurationsOfRequests,
    lease: Gauge,
    leads: Gauge,
    term: Gauge,
    grace: Gauge,
    drains: Gauge,
    settings_differ: Gauge,
    waits_for_standby: Gauge,
}

/// Where a host stands at the moment.
#[derive(Clone, Copy, Debug)]
pub struct FleetLevels {
    /// Seconds until it takes itself for dead.
    pub lease_seconds: u64,
    pub leads: bool,
    /// Raised with each other leader.
    pub term: u64,
    pub in_grace: bool,
    pub drains: bool,
    pub settings_differ: bool,
    pub waits_for_standby: bool,
}

impl FleetMetrics {
    pub(crate) fn beat(&self, succeeded: bool, took: Duration) {
        self.heartbeat_durations.0.observe(took.as_secs_f64());
        let outcome = if succeeded { "succeeded" } else { "failed" };
        self.heartbeats.get_or_create(&Ended { outcome }).inc();
    }

    /// This host has heard itself, so long after it has notified itself.
    pub(crate) fn heard_itself(&self, after: Duration) {
        self.echoes.0.observe(after.as_secs_f64());
    }

    pub(crate) fn took_hints(&self, hints: usize) {
        self.hints.inc_by(hints as u64);
    }

    /// Notifications may have been missed.
    pub(crate) fn missed(&self) {
        self.gaps.inc();
    }

    /// The database has lost what was written last.
    pub(crate) fn went_back(&self) {
        self.went_back.inc();
    }

    pub(crate) fn sent_away(&self, agents: usize) {
        self.sent_away.inc_by(agents as u64);
    }

    pub(crate) fn asked(&self, kind: RequestKind, answer: NodeAnswer, took: Duration) {
        if matches!(answer, NodeAnswer::Answered) {
            self.request_durations.0.get_or_create(&AskedFor { kind: kind.as_str() }).observe(took.as_secs_f64());
        }
        self.count(kind, answer, 1);
    }

    fn count(&self, kind: RequestKind, answer: NodeAnswer, more: u64) {
        self.asked.get_or_create(&Asked { kind: kind.as_str(), outcome: answer.outcome() }).inc_by(more);
    }

    pub(super) fn set_levels(&self, levels: FleetLevels) {
        self.lease.set(i64::try_from(levels.lease_seconds).unwrap_or(i64::MAX));
        self.leads.set(levels.leads.into());
        self.term.set(i64::try_from(levels.term).unwrap_or(i64::MAX));
        self.grace.set(levels.in_grace.into());
        self.drains.set(levels.drains.into());
        self.settings_differ.set(levels.settings_differ.into());
        self.waits_for_standby.set(levels.waits_for_standby.into());
    }

    /// Sets counters to zero at the start.
    pub(super) fn begin(&self) {
        for outcome in ["succeeded", "failed"] {
            self.heartbeats.get_or_create(&Ended { outcome }).inc_by(0);
        }
        for kind in RequestKind::ALL {
            drop(self.request_durations.0.get_or_create(&AskedFor { kind: kind.as_str() }));
            NodeAnswer::ALL.into_iter().for_each(|answer| self.count(*kind, answer, 0));
        }
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        let heartbeats = self.heartbeats.clone();
        registry.register("host_heartbeats", "Heartbeats of this host to its database", heartbeats);
        let took = self.heartbeat_durations.0.clone();
        registry.register_with_unit("host_heartbeat_duration", "One heartbeat", Unit::Seconds, took);
        let term = self.term.clone();
        registry.register("leader_term", "How often the leader has changed, as far as this host knows", term);
        let lease = self.lease.clone();
        registry.register_with_unit("host_lease", "Until this host takes itself for dead", Unit::Seconds, lease);
        registry.register("leader", "Whether this host does what is done once for all hosts", self.leads.clone());
        registry.register(
            "grace",
            "Whether nothing is taken for dead, because the database was away",
            self.grace.clone(),
        );
        registry.register("draining", "Whether this host is about to be stopped", self.drains.clone());
        let went_back = self.went_back.clone();
        registry.register("store_went_back", "Times that the database had lost its last writes", went_back);
        let differ = self.settings_differ.clone();
        registry.register("settings_differ", "Whether the hosts have different settings", differ);
        let standby = self.waits_for_standby.clone();
        registry.register("database_standby", "Whether commits wait for a standby of the database", standby);
        registry.register("agents_sent_away", "Agents that were sent to other hosts", self.sent_away.clone());
        let gaps = self.gaps.clone();
        let echoes = self.echoes.0.clone();
        registry.register_with_unit(
            "notification_echo_duration",
            "A notification of this host to itself, until it is heard",
            Unit::Seconds,
            echoes,
        );
        registry.register("hints_taken", "Notes of other hosts for agents of this one", self.hints.clone());
        registry.register("notification_gaps", "Times that notifications of other hosts may have been missed", gaps);
        registry.register("node_requests", "Requests to nodes of other hosts", self.asked.clone());
        let took = self.request_durations.0.clone();
        registry.register_with_unit(
            "node_request_duration",
            "A request to a node of another host, until it is answered",
            Unit::Seconds,
            took,
        );
    }
}
