//! The channel between a host and a node.
//!
//! The host sends assignments: what the node is to serve. The node reports what became of them, and the
//! traffic. A node in the host's process uses an in-process channel ([`in_process`]); the frames are the same
//! on a network, as JSON.
//!
//! The node sends [`ToHost::Hello`] first. The host answers with [`ToNode::Welcome`] and [`ToNode::Desired`]. After
//! that it sends a [`ToNode::Change`] whenever something has changed.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use uuid::Uuid;

use crate::base64_bytes::Base64Bytes;
use crate::control::NodeAddress;
use crate::lease_token::VerifyingKey;
use crate::target::DEFAULT_FLOW_IDLE_TIMEOUT;

/// Most frames that wait in one direction.
pub const QUEUE: usize = 1024;

/// What a node is to serve for one tunnel. The state is absolute: it replaces what was sent before.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Assignment {
    pub tunnel_id: Uuid,
    pub session_id: Uuid,
    /// The number of the tunnel's session. A node that serves it does not go back to a lower one.
    pub epoch: i64,
    /// The device that serves the tunnel, and the process of its agent.
    pub device_id: Uuid,
    pub boot_id: Uuid,
    /// The owner of the tunnel. Traffic is reported by scope.
    pub scope_id: Uuid,
    /// The tunnel's name, for logs.
    pub name: String,
    pub protocol: String,
    /// The tunnel's own port, then its extra ports.
    pub ports: Vec<AssignedPort>,
    /// Whether the agent has reported that it serves the tunnel. Visitors wait until then.
    pub ready: bool,
    pub idle_timeout_seconds: u32,
    /// How long a visitor of a UDP port may be silent.
    #[serde(default = "default_flow_idle_timeout")]
    pub flow_idle_timeout_seconds: u32,
    pub buffer_size_bytes: u32,
    /// The number of the local target within the run. What leads to a former one is not used again.
    #[serde(default)]
    pub target_version: u64,
    /// Changes with every replacement of the access rules.
    pub access_version: i64,
    pub firewall: Vec<FirewallRule>,
    pub countries: Vec<CountryRule>,
}

fn default_flow_idle_timeout() -> u32 {
    DEFAULT_FLOW_IDLE_TIMEOUT
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AssignedPort {
    pub port: u16,
    pub transport: Transport,
    /// The id of the extra port; `None` for the tunnel's own port.
    pub port_id: Option<Uuid>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    Tcp,
    Udp,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FirewallRule {
    /// `whitelist` or `blacklist`.
    pub rule: String,
    /// An address, or a network as an address and a prefix length.
    pub network: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CountryRule {
    /// ISO 3166-1 alpha-2.
    pub country: String,
    /// `allow` or `block`.
    pub action: String,
}

/// An http tunnel that is placed on a node, running or not: its names, and how its requests are passed on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    pub tunnel_id: Uuid,
    pub names: Vec<RouteName>,
    /// Whether visitors must come by HTTPS.
    pub https: bool,
    /// When the scope's next month begins, if the bandwidth of this one is used up.
    pub suspended_until: Option<DateTime<Utc>>,
    pub basic_auth: Option<BasicAuth>,
    /// The Host header of requests to the service; `None` for the visitor's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_header: Option<String>,
    /// Whether the service is spoken to by HTTP/2 without TLS.
    #[serde(default)]
    pub h2c: bool,
    /// Whether the service is told each connection's visitor. Then no connection serves two.
    #[serde(default)]
    pub names_visitors: bool,
    /// Whether visitors make TLS with the service itself.
    #[serde(default)]
    pub tls_passthrough: bool,
}

/// A public name of an http tunnel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteName {
    /// In lower case, without a final dot.
    pub name: String,
    /// The extra port that the name leads to; `None` for the tunnel's own port.
    pub port_id: Option<Uuid>,
    /// Whether the agent makes TLS with the service.
    #[serde(default)]
    pub tls: bool,
}

/// Who may visit an http tunnel (RFC 7617).
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BasicAuth {
    pub user: String,
    /// Argon2id (RFC 9106), in the PHC string format.
    pub password_hash: String,
}

/// Shows only the user.
impl std::fmt::Debug for BasicAuth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BasicAuth").field("user", &self.user).finish_non_exhaustive()
    }
}

/// What proves the names of a tunnel, or of a domain of the platform, to visitors that come by HTTPS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsIdentity {
    /// The tunnel, or the platform's domain.
    pub owner_id: Uuid,
    pub certificates: Vec<Certificate>,
    /// What an authority looks for at the moment (RFC 8555, section 8).
    pub challenges: Vec<Challenge>,
}

/// What proves a name to an authority.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Challenge {
    /// In lower case.
    pub name: String,
    /// `http-01` or `tls-alpn-01`.
    pub kind: String,
    pub token: String,
    /// RFC 8555, section 8.1.
    pub key_authorization: String,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Certificate {
    /// In lower case; `*.` stands for any one label.
    pub names: Vec<String>,
    /// The certificate, then those up to its root, as PEM (RFC 7468).
    pub chain: String,
    /// PKCS #8 (RFC 5958), as DER.
    pub key: Base64Bytes,
}

/// Shows only the names.
impl std::fmt::Debug for Certificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Certificate").field("names", &self.names).finish_non_exhaustive()
    }
}

/// Frames from the host to a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToNode {
    /// Answers a hello.
    Welcome {
        /// Increases with every connection of the node.
        connection_epoch: i64,
        /// Public keys that lease tokens are verified with. Tokens of other keys are refused.
        keys: Vec<VerifyingKey>,
    },
    /// The whole state. Everything else ends.
    Desired { revision: u64, assignments: Vec<Assignment>, routes: Vec<Route>, identities: Vec<TlsIdentity> },
    /// What has changed after the revision `from`, as it is now. `drop` and `drop_routes` list tunnels,
    /// `drop_identities` owners.
    Change {
        from: u64,
        revision: u64,
        put: Vec<Assignment>,
        drop: Vec<Uuid>,
        put_routes: Vec<Route>,
        drop_routes: Vec<Uuid>,
        put_identities: Vec<TlsIdentity>,
        drop_identities: Vec<Uuid>,
    },
    /// Until when the node may serve, unless it hears this again: its host has reached the database. A node that has never heard
    /// it serves as long as its process runs. When the time is over, it ends everything, and takes assignments only after it
    /// has heard this again, and asked for all of them ([`ToHost::Resync`]).
    Authority {
        /// In milliseconds of [`Clock::since_boot`](crate::clock::Clock::since_boot), which host and node share.
        until_ms: u64,
    },
    /// Ends a session now. The node answers with [`ToHost::Ended`].
    End { tunnel_id: Uuid, session_id: Uuid, epoch: i64 },
    /// These batches of traffic are stored. The node forgets them.
    TrafficApplied { boot_id: Uuid, numbers: Vec<u64> },
}

/// Frames from a node to the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToHost {
    /// The first frame.
    Hello(NodeHello),
    /// The tunnel's own port is open, and its rules are loaded.
    Serving {
        tunnel_id: Uuid,
        session_id: Uuid,
        epoch: i64,
        /// Extra ports that could not be opened. The node tries again every second.
        unopened: Vec<UnopenedPort>,
    },
    /// The tunnel's own port cannot be served. The node tries again every second.
    Failed {
        tunnel_id: Uuid,
        session_id: Uuid,
        epoch: i64,
        code: FailureCode,
        detail: String,
    },
    /// The listeners of a session are closed and its visitors are cut off. Its last traffic was sent before.
    Ended {
        tunnel_id: Uuid,
        session_id: Uuid,
        epoch: i64,
    },
    /// Everything up to this revision is in force.
    Applied {
        revision: u64,
    },
    /// The node holds an older revision than a change starts from. The host answers with
    /// [`ToNode::Desired`].
    Resync {
        revision: u64,
    },
    Traffic(TrafficBatch),
    /// How many visitors tunnels have, where that has changed since the channel's last report.
    Visitors(Vec<TunnelVisitors>),
    /// The number of served tunnels and of their visitors, and what was counted since the node's process started, once
    /// a second.
    Load {
        tunnels: u64,
        visitors: u64,
        #[serde(default)]
        counts: Vec<Count>,
        #[serde(default)]
        levels: Vec<Level>,
        #[serde(default)]
        times: Vec<Times>,
    },
}

/// What a node counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Counted {
    /// Answers to the visitors of http tunnels, by the class of their status: `2xx`.
    Answers,
    /// The node's own answers, by their code.
    Pages,
    /// Handshakes of visitors that came by HTTPS: `succeeded` or `failed`.
    Handshakes,
    /// Requests to tunnels with basic authentication: `passed` or `refused`.
    BasicAuth,
    /// Connections to local services: `accepted`, `refused`, `lost` before either was known, or `protocol` where the
    /// agent did not keep to it.
    Visits,
    /// The same on streams of QUIC.
    QuicVisits,
    /// Datagrams of visitors that were passed on: `in` to the device, `out` to the visitor.
    Datagrams,
    /// Datagrams that were dropped, by cause.
    DroppedDatagrams,
    /// Those of [`Counted::Visits`] on a data connection that had served another one.
    Reuses,
    /// What a newer node counts.
    #[serde(other)]
    Other,
}

/// One of a node's counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    pub what: Counted,
    pub label: String,
    pub count: u64,
}

/// What a node has at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measured {
    /// Visitors: connections of `tcp` tunnels, exchanges of `http` tunnels.
    Visitors,
    /// Data connections of agents over TLS that are `warm` or `busy`.
    Carriers,
    /// Connections of agents over QUIC that are `open`, and their streams that are `busy`.
    QuicCarriers,
    /// Connections of agents that have not attached yet.
    Unproven,
    /// What a newer node measures.
    #[serde(other)]
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Level {
    pub what: Measured,
    pub label: String,
    pub level: u64,
}

/// What a node takes the time of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Timed {
    /// From a visitor's arrival to a data connection.
    VisitWaits,
    /// From the head of a request to the head of its answer.
    Exchanges,
    /// What a newer node takes the time of.
    #[serde(other)]
    Other,
}

/// The upper bounds of [`Times::buckets`], in seconds. One more bucket has what took longer.
pub const TIME_BOUNDS: [f64; 12] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];

/// How often something took how long, since the node's process started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    pub what: Timed,
    pub buckets: Vec<u64>,
    pub sum_micros: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeHello {
    pub node_id: Uuid,
    /// A new id for every start of the node's process.
    pub boot_id: Uuid,
    /// The revision that the node holds; 0 if it holds none.
    pub revision: u64,
    /// Where agents reach the node.
    pub address: NodeAddress,
    /// Whether the node can look up countries, and so enforce GeoIP rules.
    pub has_countries: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnopenedPort {
    pub port: u16,
    pub detail: String,
}

/// Why a tunnel cannot be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureCode {
    PortInUse,
    PermissionDenied,
    UnsupportedProtocol,
    /// No file descriptors or no memory are left.
    Exhausted,
    #[serde(other)]
    Other,
}

/// Bytes that went through the tunnels of one scope since the batch before. The host stores each batch exactly
/// once: it knows a batch by the node's id, the boot id and the number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrafficBatch {
    pub boot_id: Uuid,
    /// From 1, for each boot id.
    pub number: u64,
    /// The lowest number that the host has not acknowledged. It can forget those below.
    pub oldest: u64,
    pub scope_id: Uuid,
    pub rows: Vec<SessionTraffic>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionTraffic {
    pub session_id: Uuid,
    pub tunnel_id: Uuid,
    /// Payload bytes from visitors.
    pub bytes_in: u64,
    /// Payload bytes to visitors.
    pub bytes_out: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunnelVisitors {
    pub tunnel_id: Uuid,
    pub scope_id: Uuid,
    /// Connections, exchanges of HTTP, and flows of UDP.
    pub visitors: u64,
}

/// The host's end of a channel.
pub struct HostEnd {
    pub sender: mpsc::Sender<ToNode>,
    pub receiver: mpsc::Receiver<ToHost>,
}

/// The node's end of a channel.
pub struct NodeEnd {
    pub sender: mpsc::Sender<ToHost>,
    pub receiver: mpsc::Receiver<ToNode>,
}

/// A channel within one process.
pub fn in_process() -> (HostEnd, NodeEnd) {
    let (to_node, from_host) = mpsc::channel(QUEUE);
    let (to_host, from_node) = mpsc::channel(QUEUE);
    (HostEnd { sender: to_node, receiver: from_node }, NodeEnd { sender: to_host, receiver: from_host })
}
