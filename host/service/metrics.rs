//! The metrics of `/metrics`, in the OpenMetrics text format.
//!
//! Counters are incremented where something happens; gauges are read from the host on request.

pub(crate) mod fleet;
mod nodes;

use std::sync::atomic::Ordering;
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use culvert_domain::certificate::CertificateStatus;
use culvert_domain::string_enum::StringEnum;
use culvert_domain::webhook::Outcome;
pub use culvert_store::statements::counted;
use culvert_store::statements::{OF_PROCESS, StatementCounts};
use culvert_wire::node::Level;
pub use fleet::{FleetLevels, FleetMetrics};
pub use nodes::NodeMetrics;

/// Buckets for the duration of one request, in seconds.
const BUCKETS: [f64; 12] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];

const METHODS: [&str; 5] = ["GET", "POST", "PUT", "PATCH", "DELETE"];

/// All metrics of the host, except the policies' own.
pub struct Metrics {
    pub registry: Registry,
    pub http: HttpMetrics,
    refusals: Family<Refusal, Counter>,
    deliveries: Family<Ended, Counter>,
    delivery_lag: Gauge,
    mails: Family<Ended, Counter>,
    pub certificates: CertificateMetrics,
    pub nodes: NodeMetrics,
    pub fleet: FleetMetrics,
    pub heartbeats: HeartbeatMetrics,
    /// Connections that nodes refused.
    pub refused: Refusals,
    /// Connections to the API that were refused.
    pub connections: ConnectionRefusals,
    statements: Family<PartOf, Counter>,
    node_buffers: Gauge,
    agents: Gauge,
    tunnels: Gauge,
    visitors: Gauge,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Request {
    method: &'static str,
    route: &'static str,
    status: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Route {
    route: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Refusal {
    window: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Ended {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PartOf {
    part_of: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StatementsOf {
    method: &'static str,
    route: &'static str,
    part_of: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CertificateLabel {
    status: &'static str,
}

/// Metrics of the certificates of public names.
#[derive(Clone, Default)]
pub struct CertificateMetrics {
    orders: Family<Ended, Counter>,
    expiry: Gauge,
    certificates: Family<CertificateLabel, Gauge>,
}

impl CertificateMetrics {
    /// Counts an order at an authority that has ended.
    pub fn ordered(&self, succeeded: bool) {
        let outcome = if succeeded { "succeeded" } else { "failed" };
        self.orders.get_or_create(&Ended { outcome }).inc();
    }

    /// Notes how long the first certificate that ends is still good.
    pub fn expires_in(&self, seconds: i64) {
        self.expiry.set(seconds);
    }

    /// Notes how many certificates have each status.
    pub fn stand(&self, counts: &[(CertificateStatus, i64)]) {
        for status in CertificateStatus::ALL {
            let count = counts.iter().find(|(found, _)| found == status).map_or(0, |(_, count)| *count);
            self.certificates.get_or_create(&CertificateLabel { status: status.as_str() }).set(count);
        }
    }
}

/// Metrics of the heartbeats of agents.
#[derive(Clone, Default)]
pub struct HeartbeatMetrics {
    heartbeats: Counter,
    statements: Counter,
}

impl HeartbeatMetrics {
    pub fn count(&self, sent: &StatementCounts) {
        let (alone, in_transactions) = sent.totals();
        self.heartbeats.inc();
        self.statements.inc_by(alone + in_transactions);
    }
}

/// Counter of connections that nodes refused, by limit.
#[derive(Clone, Default)]
pub struct Refusals(Family<RefusedBy, Counter>);

impl Refusals {
    pub fn count(&self, bound: &'static str) {
        self.0.get_or_create(&RefusedBy { bound }).inc();
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusedBy {
    bound: &'static str,
}

/// Counter of connections to `listen` that were refused, by limit.
#[derive(Clone, Default)]
pub struct ConnectionRefusals(Family<RefusedBy, Counter>);

impl ConnectionRefusals {
    /// `address` is for `api.connections_per_address`, `agents` for `api.agents`, `unproven` for connections
    /// of agents that were closed before they proved their device, `arrivals` and `starts` for devices that
    /// connect or start tunnels too often, `codes` for addresses with too many wrong enrolment codes.
    pub const BOUNDS: [&str; 6] = ["address", "agents", "unproven", "arrivals", "starts", "codes"];

    pub fn count(&self, bound: &'static str) {
        self.0.get_or_create(&RefusedBy { bound }).inc();
    }
}

/// Metrics of the requests to the API.
pub struct HttpMetrics {
    requests: Family<Request, Counter>,
    statements: Family<StatementsOf, Counter>,
    durations: Family<Route, Histogram, fn() -> Histogram>,
}

impl HttpMetrics {
    /// Counts an answer. Unknown methods count as `other`, so that clients cannot add labels.
    pub fn count(&self, method: &str, route: &'static str, status: u16, took: Duration, sent: &StatementCounts) {
        let known = METHODS.into_iter().find(|known| *known == method);
        let method = known.unwrap_or("other");
        self.requests.get_or_create(&Request { method, route, status }).inc();
        let (alone, in_transactions) = sent.totals();
        for (part_of, count) in [("nothing", alone), ("transaction", in_transactions)] {
            self.statements.get_or_create(&StatementsOf { method, route, part_of }).inc_by(count);
        }
        self.durations.get_or_create(&Route { route }).observe(took.as_secs_f64());
    }
}

impl HttpMetrics {
    fn new() -> Self {
        Self {
            requests: Family::default(),
            statements: Family::default(),
            durations: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
        }
    }

    fn register(&self, registry: &mut Registry) {
        registry.register("http_requests", "Answers to requests", self.requests.clone());
        let statements = self.statements.clone();
        registry.register("http_request_statements", "Statements that requests sent to the database", statements);
        let durations = self.durations.clone();
        registry.register_with_unit("http_request_duration", "One request", Unit::Seconds, durations);
    }
}

impl Metrics {
    /// `node_bounds` are the names of the limits by which nodes refuse connections.
    pub fn new(node_bounds: impl IntoIterator<Item = &'static str>) -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("culvert"),
            http: HttpMetrics::new(),
            refusals: Family::default(),
            deliveries: Family::default(),
            delivery_lag: Gauge::default(),
            mails: Family::default(),
            certificates: CertificateMetrics::default(),
            nodes: NodeMetrics::default(),
            fleet: FleetMetrics::default(),
            heartbeats: HeartbeatMetrics::default(),
            refused: Refusals::default(),
            connections: ConnectionRefusals::default(),
            statements: Family::default(),
            node_buffers: Gauge::default(),
            agents: Gauge::default(),
            tunnels: Gauge::default(),
            visitors: Gauge::default(),
        };
        let registry = &mut metrics.registry;
        metrics.http.register(registry);
        registry.register("rate_limited", "Requests that were too many, by the window", metrics.refusals.clone());
        registry.register("webhook_attempts", "Attempts to deliver an event", metrics.deliveries.clone());
        let lag = metrics.delivery_lag.clone();
        registry.register_with_unit("webhook_lag", "Since the oldest delivery that waits was due", Unit::Seconds, lag);
        registry.register("mail_attempts", "Attempts to send a mail", metrics.mails.clone());
        metrics.nodes.register(registry);
        metrics.fleet.register(registry);
        registry.register("acme_orders", "Orders at an authority that have ended", metrics.certificates.orders.clone());
        let certificates = metrics.certificates.certificates.clone();
        registry.register("certificates", "Certificates of public names", certificates);
        let expiry = metrics.certificates.expiry.clone();
        registry.register_with_unit("certificate_expiry", "Until the first certificate ends", Unit::Seconds, expiry);
        let heartbeats = metrics.heartbeats.clone();
        registry.register("agent_heartbeats", "Heartbeats of agents", heartbeats.heartbeats);
        registry.register(
            "agent_heartbeat_statements",
            "Statements that heartbeats sent to the database",
            heartbeats.statements,
        );
        let refused = metrics.refused.0.clone();
        registry.register("node_refused", "Connections that a node refused, by the bound", refused);
        let refused = metrics.connections.0.clone();
        registry.register("api_refused", "Connections to the API that were one too many, by the bound", refused);
        registry.register("database_statements", "Statements sent to the database", metrics.statements.clone());
        let buffers = metrics.node_buffers.clone();
        registry.register_with_unit("node_buffer", "Buffers that visitors' bytes are in", Unit::Bytes, buffers);
        registry.register("agents_connected", "Agents on this host", metrics.agents.clone());
        registry.register("tunnels_served", "Tunnels that this host's nodes serve", metrics.tunnels.clone());
        registry.register("visitors", "Visitors that are being served", metrics.visitors.clone());
        metrics.begin(node_bounds);
        metrics
    }

    /// Sets counters to zero at the start. Otherwise the first failure would not show as an increase.
    fn begin(&self, node_bounds: impl IntoIterator<Item = &'static str>) {
        for window in ["minute", "day", "address"] {
            self.refusals.get_or_create(&Refusal { window }).inc_by(0);
        }
        for outcome in ["succeeded", "failed"] {
            self.deliveries.get_or_create(&Ended { outcome }).inc_by(0);
            self.certificates.orders.get_or_create(&Ended { outcome }).inc_by(0);
        }
        for outcome in ["sent", "later", "given_up"] {
            self.mails.get_or_create(&Ended { outcome }).inc_by(0);
        }
        self.certificates.stand(&[]);
        self.nodes.begin();
        self.fleet.begin();
        for bound in node_bounds {
            self.refused.0.get_or_create(&RefusedBy { bound }).inc_by(0);
        }
        for bound in ConnectionRefusals::BOUNDS {
            self.connections.0.get_or_create(&RefusedBy { bound }).inc_by(0);
        }
    }

    /// A request was refused by a window: `minute`, `day`, or `address` for failed authentications.
    pub fn count_refusal(&self, window: &'static str) {
        self.refusals.get_or_create(&Refusal { window }).inc();
    }

    /// How long the oldest delivery has waited that is due, in seconds.
    pub(crate) fn set_delivery_lag(&self, seconds: i64) {
        self.delivery_lag.set(seconds);
    }

    pub fn count_delivery(&self, outcome: &Outcome) {
        let succeeded =
            outcome.status_code.is_some_and(|status| (200..300).contains(&status)) && outcome.error.is_none();
        let outcome = if succeeded { "succeeded" } else { "failed" };
        self.deliveries.get_or_create(&Ended { outcome }).inc();
    }

    /// An attempt to send a mail: `sent`, `later` or `given_up`.
    pub fn count_mail(&self, outcome: &'static str) {
        self.mails.get_or_create(&Ended { outcome }).inc();
    }

    /// All metrics as text, with the given gauges.
    pub fn text(&self, gauges: &Gauges) -> String {
        let gauge = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.agents.set(gauge(gauges.agents));
        self.tunnels.set(gauge(gauges.tunnels));
        self.visitors.set(gauge(gauges.visitors));
        self.node_buffers.set(gauge(gauges.buffer_bytes));
        self.nodes.set_levels(&gauges.nodes);
        self.fleet.set_levels(gauges.fleet);
        let (alone, in_transactions) = OF_PROCESS.totals();
        for (part_of, count) in [("nothing", alone), ("transaction", in_transactions)] {
            self.statements.get_or_create(&PartOf { part_of }).inner().store(count, Ordering::Relaxed);
        }
        let mut text = String::new();
        // Writing into a string does not fail.
        let _ = text::encode(&mut text, &self.registry);
        text
    }
}

/// The current values of the gauges.
#[derive(Clone, Debug)]
pub struct Gauges {
    pub agents: usize,
    pub tunnels: usize,
    pub visitors: usize,
    pub buffer_bytes: usize,
    /// What all nodes measure together.
    pub nodes: Vec<Level>,
    pub fleet: FleetLevels,
}
