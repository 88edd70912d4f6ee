//! What nodes report, as metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::{Registry, Unit};

use culvert_wire::node::{Counted, Level, Measured, TIME_BOUNDS, Timed, Times, TrafficBatch};

/// A node of this host, or of another one.
const HERE: &str = "here";
const ELSEWHERE: &str = "elsewhere";

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Direction {
    direction: &'static str,
}

/// Metrics of what nodes report.
#[derive(Clone, Default)]
pub struct NodeMetrics {
    /// Payload bytes of tunnels.
    bytes: Family<Direction, Counter>,
    corrections: Counter,
    grants: Family<NodePlace, Counter>,
    answers: Family<StatusClass, Counter>,
    pages: Family<PageCode, Counter>,
    handshakes: Family<NodeOutcome, Counter>,
    basic_auth: Family<NodeOutcome, Counter>,
    visits: Family<Visit, Counter>,
    reuses: Counter,
    datagrams: Family<Direction, Counter>,
    dropped_datagrams: Family<Cause, Counter>,
    visitors: Family<VisitorKind, Gauge>,
    carriers: Family<Carrier, Gauge>,
    unproven: Gauge,
    visit_waits: ReportedTimes,
    exchanges: ReportedTimes,
}

/// Whether a node belongs to this host.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NodePlace {
    node: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StatusClass {
    status_class: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PageCode {
    code: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NodeOutcome {
    outcome: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Visit {
    carrier: &'static str,
    outcome: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Cause {
    cause: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VisitorKind {
    kind: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Carrier {
    transport: &'static str,
    state: String,
}

/// Why nodes drop datagrams.
const DROP_CAUSES: &[&str] = &[
    "bounds",
    "malformed",
    "no_connection",
    "part",
    "queue",
    "rules",
    "socket",
    "streams",
    "too_long",
    "unknown_flow",
    "unproven",
];
/// What carries visitors to agents.
const TLS: &str = "tls";
const QUIC: &str = "quic";

impl NodeMetrics {
    /// Counts traffic that was stored.
    pub fn count(&self, batch: &TrafficBatch) {
        for row in &batch.rows {
            self.add(row.bytes_in, row.bytes_out);
        }
    }

    /// Adds what a node has counted since it last said so.
    pub fn add_counts(&self, what: Counted, label: &str, more: u64) {
        let (outcome, label) = (NodeOutcome { outcome: label.into() }, label.to_owned());
        match what {
            Counted::Answers => self.answers.get_or_create(&StatusClass { status_class: label }).inc_by(more),
            Counted::Pages => self.pages.get_or_create(&PageCode { code: label }).inc_by(more),
            Counted::Handshakes => self.handshakes.get_or_create(&outcome).inc_by(more),
            Counted::BasicAuth => self.basic_auth.get_or_create(&outcome).inc_by(more),
            Counted::Visits => self.visits.get_or_create(&Visit { carrier: TLS, outcome: label }).inc_by(more),
            Counted::QuicVisits => self.visits.get_or_create(&Visit { carrier: QUIC, outcome: label }).inc_by(more),
            Counted::Reuses => self.reuses.inc_by(more),
            Counted::Datagrams => {
                let direction = if label == "in" { "in" } else { "out" };
                self.datagrams.get_or_create(&Direction { direction }).inc_by(more)
            }
            Counted::DroppedDatagrams => self.dropped_datagrams.get_or_create(&Cause { cause: label }).inc_by(more),
            Counted::Other => return,
        };
    }

    /// Adds what a node has taken the time of since it last said so.
    pub fn add_times(&self, times: &Times, before: Option<&Times>) {
        match times.what {
            Timed::VisitWaits => self.visit_waits.add(times, before),
            Timed::Exchanges => self.exchanges.add(times, before),
            Timed::Other => {}
        }
    }

    /// Sets what all nodes have together at the moment.
    pub fn set_levels(&self, levels: &[Level]) {
        // A node that has gone has nothing.
        self.visitors.clear();
        self.carriers.clear();
        self.unproven.set(0);
        for Level { what, label, level } in levels {
            let (label, level) = (label.clone(), i64::try_from(*level).unwrap_or(i64::MAX));
            match what {
                Measured::Visitors => self.visitors.get_or_create(&VisitorKind { kind: label }).set(level),
                Measured::Carriers => self.carriers.get_or_create(&Carrier { transport: TLS, state: label }).set(level),
                Measured::QuicCarriers => {
                    self.carriers.get_or_create(&Carrier { transport: QUIC, state: label }).set(level)
                }
                Measured::Unproven => self.unproven.set(level),
                Measured::Other => continue,
            };
        }
    }

    /// Sets counters to zero at the start.
    pub(super) fn begin(&self) {
        self.add(0, 0);
        for node in [HERE, ELSEWHERE] {
            self.grants.get_or_create(&NodePlace { node }).inc_by(0);
        }
        for (what, labels) in [
            (Counted::Answers, ["2xx", "3xx", "4xx", "5xx"].as_slice()),
            (Counted::Handshakes, &["succeeded", "failed"]),
            (Counted::BasicAuth, &["passed", "refused"]),
            (Counted::Visits, &["accepted", "refused", "lost", "protocol"]),
            (Counted::QuicVisits, &["accepted", "refused", "lost", "protocol"]),
            (Counted::Datagrams, &["in", "out"]),
            (Counted::DroppedDatagrams, DROP_CAUSES),
        ] {
            labels.iter().for_each(|label| self.add_counts(what, label, 0));
        }
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register("tunnel_bytes", "Payload, as it was noted", self.bytes.clone());
        let corrections = self.corrections.clone();
        registry.register("node_corrections", "Tunnels whose newest state a node was not sent", corrections);
        registry.register("grants", "Leases given to agents, by where the node is", self.grants.clone());
        registry.register("edge_requests", "Answers to visitors of http tunnels", self.answers.clone());
        registry.register("edge_pages", "The nodes' own answers to them", self.pages.clone());
        registry.register("edge_handshakes", "TLS handshakes of visitors", self.handshakes.clone());
        let basic_auth = self.basic_auth.clone();
        registry.register("edge_basic_auth", "Requests to tunnels that ask for a password", basic_auth);
        let visits = self.visits.clone();
        registry.register("node_visits", "Connections to local services that have ended", visits);
        registry.register("node_reuses", "Those on a data connection that had served another one", self.reuses.clone());
        registry.register("udp_datagrams", "Datagrams of visitors that were passed on", self.datagrams.clone());
        let dropped = self.dropped_datagrams.clone();
        registry.register("udp_drops", "Datagrams of visitors that nodes have dropped", dropped);
        registry.register("node_visitors", "Visitors of the nodes that are being served", self.visitors.clone());
        registry.register("node_carriers", "Data connections of agents", self.carriers.clone());
        registry.register("node_unproven", "Connections of agents that have not attached yet", self.unproven.clone());
        let waits = self.visit_waits.clone();
        registry.register_with_unit("node_visit_wait", "Until a visitor has a data connection", Unit::Seconds, waits);
        let exchanges = self.exchanges.clone();
        registry.register_with_unit(
            "edge_request_duration",
            "Until a visitor's answer begins",
            Unit::Seconds,
            exchanges,
        );
    }

    /// Counts a tunnel whose newest state a node was not sent.
    pub fn corrected(&self) {
        self.corrections.inc();
    }

    /// Counts a lease that an agent is given.
    pub fn granted(&self, is_here: bool) {
        self.grants.get_or_create(&NodePlace { node: if is_here { HERE } else { ELSEWHERE } }).inc();
    }

    fn add(&self, bytes_in: u64, bytes_out: u64) {
        for (direction, bytes) in [("in", bytes_in), ("out", bytes_out)] {
            self.bytes.get_or_create(&Direction { direction }).inc_by(bytes);
        }
    }
}

/// A histogram that nodes fill. That of the library takes single observations only.
#[derive(Clone, Debug, Default)]
struct ReportedTimes(Arc<Histogram>);

#[derive(Debug, Default)]
struct Histogram {
    buckets: [AtomicU64; TIME_BOUNDS.len() + 1],
    sum_micros: AtomicU64,
}

impl ReportedTimes {
    fn add(&self, times: &Times, before: Option<&Times>) {
        for (number, (bucket, count)) in self.0.buckets.iter().zip(&times.buckets).enumerate() {
            let before = before.and_then(|before| before.buckets.get(number)).copied().unwrap_or_default();
            bucket.fetch_add(count.saturating_sub(before), Ordering::Relaxed);
        }
        let before = before.map_or(0, |before| before.sum_micros);
        self.0.sum_micros.fetch_add(times.sum_micros.saturating_sub(before), Ordering::Relaxed);
    }
}

impl TypedMetric for ReportedTimes {
    const TYPE: MetricType = MetricType::Histogram;
}

impl EncodeMetric for ReportedTimes {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> std::fmt::Result {
        let bounds = TIME_BOUNDS.into_iter().chain([f64::MAX]);
        let counts = self.0.buckets.iter().map(|count| count.load(Ordering::Relaxed));
        let buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let sum = self.0.sum_micros.load(Ordering::Relaxed) as f64 / 1e6;
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}
