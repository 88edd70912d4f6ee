//! The control channel between a host and a device's agent: one WebSocket with JSON text frames.
//!
//! The agent connects and the host sends a [`ToAgent::Challenge`]. The agent signs it to prove that it
//! holds the device's key, and the host answers with [`ToAgent::Welcome`]. After this handshake, either
//! side may send frames at any time. Unknown fields and unknown frames are ignored, so either side may
//! be the newer one. A change that must not be ignored needs a new [`PROTOCOL`]. Visitors' data uses
//! separate connections, see [`data2`](crate::data2).

use chrono::TimeDelta;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::base64_bytes::Base64Bytes;
use crate::device_token::DeviceToken;
use crate::failure_code::FailureCode;
use crate::open_enum::open_enum;
use crate::target::Target;

/// The WebSocket subprotocol (RFC 6455, section 1.9), with its version.
pub const PROTOCOL: &str = "culvert.agent.v1";

/// Most hosts that an agent is told.
pub const MOST_HOSTS: usize = 16;

/// Most bytes of one frame.
pub const FRAME_LIMIT: usize = 256 * 1024;

/// How long a host keeps a temporary tunnel whose command is away.
pub const TEMPORARY_TUNNEL_KEPT: TimeDelta = TimeDelta::minutes(10);

/// The path of the WebSocket on the host.
pub const CONNECT_PATH: &str = "/agent/connect";

/// The capabilities of an agent, by the names that the API shows.
pub struct Capability;

impl Capability {
    /// Supports remote commands, and enforces the local consent itself.
    pub const REMOTE_CONTROL: &str = "remote_control_v1";
    /// Runs a tunnel only under a lease, and stops it when the lease cannot be renewed.
    pub const RUNTIME_LEASE: &str = "runtime_lease_v1";
    /// Records commands in a journal, and executes none twice.
    pub const COMMAND_DEDUP: &str = "command_dedup_v1";
    /// Can restart itself by replacing its own process.
    pub const RESTART_AGENT: &str = "restart_agent_v1";

    /// Serves visits over connections of the device (`culvert-data/2`).
    pub const DATA_CHANNEL_V2: &str = "data_channel_v2";

    /// Serves the datagrams of UDP ports.
    pub const DATAGRAMS: &str = "datagrams_v1";
    /// Makes TLS with local services, and tells them who visitors are (PROXY protocol).
    pub const LOCAL_SERVICES: &str = "local_services_v1";

    pub const ALL: [&str; 7] = [
        Self::REMOTE_CONTROL,
        Self::RUNTIME_LEASE,
        Self::COMMAND_DEDUP,
        Self::RESTART_AGENT,
        Self::DATA_CHANNEL_V2,
        Self::DATAGRAMS,
        Self::LOCAL_SERVICES,
    ];
}

/// Frames from the host to the agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToAgent {
    /// The first frame. The agent signs the nonce with [`connect_statement`].
    Challenge {
        nonce: Base64Bytes,
    },
    Welcome(Welcome),
    /// Sent instead of a welcome; the connection then ends.
    Refused {
        code: String,
        detail: String,
    },
    /// Requests a remote action. The agent must not start it before [`ToAgent::Proceed`].
    Command(Command),
    /// The agent may start the action. The grant is present if the action runs a tunnel.
    Proceed {
        operation_id: Uuid,
        grant: Option<Grant>,
    },
    /// The agent must not start the action, because the operation has already ended.
    Abandon {
        operation_id: Uuid,
    },
    /// Ends the operation, unless its action has started.
    Cancel {
        operation_id: Uuid,
    },
    /// The outcome is stored; the agent need not report it again.
    Settled {
        operation_id: Uuid,
    },
    /// A new lease for a tunnel that the device ran before, sent during a connection.
    Resume {
        grant: Grant,
    },
    /// Extends these leases by [`Welcome::lease_ms`], counted from when the renewal was sent.
    Renewed {
        sequence: u64,
        lease_ids: Vec<Uuid>,
        /// New device tokens, when half of the life of those before is over.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        device_tokens: Vec<DeviceToken>,
        /// The host does not reach its database. It goes on with what it knows; another host may know more.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        grace: bool,
    },
    /// The lease has ended.
    Revoke {
        lease_id: Uuid,
        reason: RevokeReason,
    },
    /// The tunnel's target changed while the tunnel runs.
    Retarget {
        lease_id: Uuid,
        target: Target,
    },
    /// The host's confirmation that the tunnel under this lease is running: the answer to a
    /// [`ToHost::Serving`].
    Running {
        lease_id: Uuid,
    },
    /// The state of remote control as the host knows it.
    Consent(ConsentState),
    /// The answer to a [`ToHost::Create`]: the tunnel's id.
    Created {
        request_id: Uuid,
        outcome: Result<Uuid, Failure>,
    },
    /// The answer to a [`ToHost::Start`], [`ToHost::Stop`] or [`ToHost::Delete`].
    Answer {
        request_id: Uuid,
        outcome: Result<Option<Grant>, Failure>,
    },
    /// [`Welcome::hosts`] have changed.
    Hosts {
        hosts: Vec<String>,
    },
    Goodbye {
        reason: String,
        reconnect_after_ms: u64,
    },
    #[serde(other)]
    Unknown,
}

/// Frames from the agent to the host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToHost {
    Hello(Box<Hello>),
    /// The agent has recorded the command in its journal.
    Claimed {
        operation_id: Uuid,
    },
    /// The agent is ready to start the action, and waits for [`ToAgent::Proceed`].
    Ready {
        operation_id: Uuid,
    },
    Finished {
        operation_id: Uuid,
        outcome: Result<Done, Failure>,
    },
    /// The command was canceled before its action started.
    Canceled {
        operation_id: Uuid,
    },
    Renew {
        sequence: u64,
        lease_ids: Vec<Uuid>,
    },
    /// The tunnel under this lease is ready for visitors.
    Serving {
        lease_id: Uuid,
    },
    /// Whether the local target can be reached; `error` says why not.
    TargetState {
        lease_id: Uuid,
        error: Option<String>,
    },
    /// A person at the device wants to start a tunnel, given by id or name.
    Start {
        request_id: Uuid,
        tunnel: String,
    },
    /// A command at the device creates a tunnel, for the device's owner. Repeated with the same request id, it
    /// creates no second one.
    Create {
        request_id: Uuid,
        /// The body of `POST /v2/tunnels`.
        tunnel: serde_json::Value,
        /// The tunnel is deleted ten minutes after its last lease has ended.
        temporary: bool,
    },
    /// A command at the device has ended, and its temporary tunnel with it.
    Delete {
        request_id: Uuid,
        tunnel_id: Uuid,
    },
    /// A person at the device stopped a tunnel.
    Stop {
        request_id: Uuid,
        lease_id: Uuid,
    },
    /// A tunnel that was to be resumed did not become ready. It may be resumed again.
    NotResumed {
        lease_id: Uuid,
        detail: String,
    },
    Consent(SignedConsent),
    /// The agent stops, and so do its tunnels.
    Goodbye,
    #[serde(other)]
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    pub device_id: Uuid,
    /// Signature over [`connect_statement`] with the challenge's nonce.
    pub signature: Base64Bytes,
    /// A new id for every start of the agent's process.
    pub boot_id: Uuid,
    pub version: String,
    pub platform: String,
    pub capabilities: Vec<String>,
    pub consent: ConsentState,
    /// A consent given while the agent was not connected.
    pub signed_consent: Option<SignedConsent>,
    /// The leases that this process still holds.
    pub lease_ids: Vec<Uuid>,
    /// The commands in this device's journal that are not settled.
    pub operation_ids: Vec<Uuid>,
    /// The leases of tunnels that were stopped at the device while it was not connected.
    #[serde(default)]
    pub stopped: Vec<Uuid>,
    /// Whether the agent takes the token of a repeated grant.
    #[serde(default)]
    pub renews_tokens: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Welcome {
    /// Increases with every connection of the device.
    pub connection_epoch: i64,
    /// Interval at which the agent sends renewals, even without leases, in milliseconds.
    pub heartbeat_ms: u64,
    pub lease_ms: u64,
    pub consent: ConsentState,
    /// The leases that the device should have: those that it still holds, and new ones for tunnels that
    /// it ran before. Any other lease that it holds has ended.
    pub grants: Vec<Grant>,
    /// Whether the host answers [`ToHost::Serving`].
    #[serde(default)]
    pub confirms_running: bool,
    /// Whether the host answers [`ToHost::Create`] and [`ToHost::Delete`].
    #[serde(default)]
    pub creates_tunnels: bool,
    /// The base URLs of the hosts that the agent may connect to, as [`server_url`](crate::server_url) has them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
}

/// Address of the node for the agent's data connections, and the certificate that the node must
/// present.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NodeAddress {
    pub host: String,
    pub port: u16,
    /// The UDP port for QUIC, where the node has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub udp_port: Option<u16>,
    /// SHA-256 of the DER-encoded certificate.
    pub fingerprint: Base64Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    Start,
    Stop,
    Restart,
    StopAll,
    RestartAgent,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    pub operation_id: Uuid,
    pub action: Action,
    pub tunnel_id: Option<Uuid>,
    /// Time left to claim the command, in milliseconds.
    pub expires_in_ms: u64,
}

/// A lease: the right to run a tunnel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    pub lease_id: Uuid,
    pub tunnel_id: Uuid,
    pub name: String,
    /// The number of this run of the tunnel. A node accepts no lower number than the last one.
    pub epoch: i64,
    /// Proves to the node that the agent holds the lease: [`data`](crate::data).
    pub token: Base64Bytes,
    /// Proves to the node who the agent is: [`data2`](crate::data2). Absent from hosts that do not know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_token: Option<DeviceToken>,
    pub public_address: String,
    /// The node that the tunnel is placed on, from which its visitors come.
    pub node: NodeAddress,
    pub target: Target,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsentState {
    pub enabled: bool,
    /// Increased whenever remote control is turned off.
    pub revision: i64,
}

/// A decision about remote control, made by a person at the device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedConsent {
    pub enabled: bool,
    /// The revision at the time of the decision. The decision is void if there is a higher revision.
    pub revision: i64,
    pub nonce: Base64Bytes,
    /// Signature over [`consent_statement`].
    pub signature: Base64Bytes,
    /// The targets that remote control may use. Absent from agents that do not support the list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub targets: Option<SignedTargets>,
}

/// The local targets that the device's owner allows, at the time of the consent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedTargets {
    pub targets: Vec<String>,
    /// Signature over [`targets_statement`] with the consent's revision and nonce.
    pub signature: Base64Bytes,
}

/// The result of a successful action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case")]
pub enum Done {
    Start,
    Stop,
    Restart,
    StopAll { stopped: Vec<Uuid> },
    RestartAgent { previous_version: String, version: String, boot_id: Uuid },
}

open_enum! {
    /// Why a lease has ended: the reasons that this program knows by name.
    RevokeReason {
        /// For another reason.
        Ended "ended",
        /// The node does not take the lease any longer. The host says why, if it is reached.
        Fenced "fenced",
        /// A newer run of the tunnel has taken over.
        Handoff "handoff",
        LeaseExpired "lease_expired",
        StopAll "stop_all",
        StoppedApi "stopped_api",
        StoppedLocal "stopped_local",
        TunnelDeleted "tunnel_deleted",
    }
}

impl RevokeReason {
    /// Whether somebody wanted the tunnel to stop. Otherwise it may be resumed.
    pub fn is_stop(&self) -> bool {
        matches!(self, Self::StoppedLocal | Self::StoppedApi | Self::StopAll | Self::TunnelDeleted)
    }
}

/// Why something was not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub code: FailureCode,
    pub detail: String,
    /// What the client must repeat for its request to be accepted, if nothing else is missing. For
    /// `target_not_accepted`, these are the local targets that a person has to accept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accept: Option<String>,
    /// The rule of a policy that refuses the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// The fields of the request that are wrong.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<FieldFault>,
}

/// A field of a request that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FieldFault {
    /// A path into the request: `extra_ports[2].local_port`.
    pub field: String,
    pub message: String,
    /// The rule of a policy that refuses the field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
}

impl Failure {
    pub fn new(code: FailureCode, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into(), accept: None, rule: None, faults: Vec::new() }
    }
}

/// The bytes that a device signs to connect.
pub fn connect_statement(device_id: Uuid, nonce: &[u8]) -> Vec<u8> {
    statement("culvert connect v1", device_id, &[nonce])
}

/// The bytes that a device signs to turn remote control on or off.
pub fn consent_statement(device_id: Uuid, enabled: bool, revision: i64, nonce: &[u8]) -> Vec<u8> {
    statement("culvert consent v1", device_id, &[&[u8::from(enabled)], &revision.to_be_bytes(), nonce])
}

/// The bytes that a device signs to limit the targets of remote control. The nonce and each target are
/// preceded by their length, so that different lists never give the same bytes.
pub fn targets_statement(device_id: Uuid, revision: i64, nonce: &[u8], targets: &[String]) -> Vec<u8> {
    let mut statement = statement("culvert targets v1", device_id, &[&revision.to_be_bytes()]);
    for part in std::iter::once(nonce).chain(targets.iter().map(String::as_bytes)) {
        statement.extend((part.len() as u64).to_be_bytes());
        statement.extend(part);
    }
    statement
}

/// Joins the parts of a signed statement. All parts but the last must have a fixed length, so that
/// different statements never give the same bytes.
fn statement(purpose: &str, device_id: Uuid, parts: &[&[u8]]) -> Vec<u8> {
    let mut statement = Vec::from(purpose);
    statement.push(0);
    statement.extend(device_id.as_bytes());
    parts.iter().for_each(|part| statement.extend(*part));
    statement
}
