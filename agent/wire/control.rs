//! The control channel between a host and a device's agent: one WebSocket, JSON text frames.
//!
//! The agent connects, the host sends a [`ToAgent::Challenge`], the agent proves by its signature
//! over it that it holds the device's key, and the host answers [`ToAgent::Welcome`]. From there
//! on either side sends what it has to say. Unknown fields are ignored and unknown frames are
//! skipped, so that either side may be the newer one; what may not be skipped comes with a new
//! [`PROTOCOL`]. The connections that carry visitors are apart, in [`data`](crate::data).

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::base64_bytes::Base64Bytes;

/// The WebSocket subprotocol (RFC 6455, section 1.9), versioned.
pub const PROTOCOL: &str = "culvert.agent.v1";

/// Bytes of one frame, at most.
pub const FRAME_LIMIT: usize = 256 * 1024;

/// The path of the WebSocket on the host.
pub const CONNECT_PATH: &str = "/agent/connect";

/// What an agent can do, by the names that the API shows.
pub struct Capability;

impl Capability {
    /// Speaks the command channel and enforces the local consent itself.
    pub const REMOTE_CONTROL: &str = "remote_control_v1";
    /// Runs a tunnel only under a lease, and stops by itself when it cannot renew it.
    pub const RUNTIME_LEASE: &str = "runtime_lease_v1";
    /// Journals commands, and executes none twice.
    pub const COMMAND_DEDUP: &str = "command_dedup_v1";
    /// Can replace its own process.
    pub const RESTART_AGENT: &str = "restart_agent_v1";

    pub const ALL: [&str; 4] = [Self::REMOTE_CONTROL, Self::RUNTIME_LEASE, Self::COMMAND_DEDUP, Self::RESTART_AGENT];
}

/// What the host says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToAgent {
    /// The first frame: to be signed with [`connect_statement`].
    Challenge {
        nonce: Base64Bytes,
    },
    Welcome(Welcome),
    /// Instead of a welcome; the connection ends.
    Refused {
        code: String,
        detail: String,
    },
    /// Asks for a remote action. Nothing begins before [`ToAgent::Proceed`].
    Command(Command),
    /// The effect may begin, with a lease where the action runs a tunnel.
    Proceed {
        operation_id: Uuid,
        grant: Option<Grant>,
    },
    /// The effect must not begin: the operation has ended otherwise.
    Abandon {
        operation_id: Uuid,
    },
    /// The operation is to end if its effect has not begun.
    Cancel {
        operation_id: Uuid,
    },
    /// The outcome is stored; the agent need not report it again.
    Settled {
        operation_id: Uuid,
    },
    /// A lease for a tunnel that the device ran before, while the connection lasts.
    Resume {
        grant: Grant,
    },
    /// These leases hold for another [`Welcome::lease_ms`], from when the renewal was sent.
    Renewed {
        sequence: u64,
        lease_ids: Vec<Uuid>,
    },
    /// The lease is over.
    Revoke {
        lease_id: Uuid,
        reason: String,
    },
    /// The tunnel was changed while it runs.
    Retarget {
        lease_id: Uuid,
        target: Target,
    },
    /// The tunnel under this lease runs, as far as everybody else is concerned: the answer to a
    /// [`ToHost::Serving`].
    Running {
        lease_id: Uuid,
    },
    /// Remote control as the host knows it.
    Consent(ConsentState),
    /// The answer to a [`ToHost::Start`] or [`ToHost::Stop`].
    Answer {
        request_id: Uuid,
        outcome: Result<Option<Grant>, Failure>,
    },
    Goodbye {
        reason: String,
        reconnect_after_ms: u64,
    },
    #[serde(other)]
    Unknown,
}

/// What the agent says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToHost {
    Hello(Box<Hello>),
    /// The command is in the journal.
    Claimed {
        operation_id: Uuid,
    },
    /// The agent is about to begin, and waits for [`ToAgent::Proceed`].
    Ready {
        operation_id: Uuid,
    },
    Finished {
        operation_id: Uuid,
        outcome: Result<Done, Failure>,
    },
    /// The command was canceled before it began.
    Canceled {
        operation_id: Uuid,
    },
    Renew {
        sequence: u64,
        lease_ids: Vec<Uuid>,
    },
    /// A tunnel under this lease stands ready for visitors.
    Serving {
        lease_id: Uuid,
    },
    /// Whether the local target answers.
    TargetState {
        lease_id: Uuid,
        error: Option<String>,
    },
    /// Somebody at the device wants to start a tunnel, by id or name.
    Start {
        request_id: Uuid,
        tunnel: String,
    },
    /// Somebody at the device stopped a tunnel.
    Stop {
        request_id: Uuid,
        lease_id: Uuid,
    },
    /// A tunnel that was to be resumed never came to stand ready. It may be resumed again.
    NotResumed {
        lease_id: Uuid,
        detail: String,
    },
    Consent(SignedConsent),
    /// The agent ends, and its tunnels with it.
    Goodbye,
    #[serde(other)]
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    pub device_id: Uuid,
    /// Over [`connect_statement`] of the challenge's nonce.
    pub signature: Base64Bytes,
    /// New with every start of the agent's process.
    pub boot_id: Uuid,
    pub version: String,
    pub platform: String,
    pub capabilities: Vec<String>,
    pub consent: ConsentState,
    /// A consent given while the agent was not connected.
    pub signed_consent: Option<SignedConsent>,
    /// The leases that this process still holds.
    pub lease_ids: Vec<Uuid>,
    /// The commands that this device has in its journal and that are not settled.
    pub operation_ids: Vec<Uuid>,
    /// The leases of tunnels that people at the device stopped while it was not connected.
    #[serde(default)]
    pub stopped: Vec<Uuid>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Welcome {
    /// Higher with every connection of the device.
    pub connection_epoch: i64,
    /// How often the agent renews, whether it holds leases or not.
    pub heartbeat_ms: u64,
    pub lease_ms: u64,
    pub consent: ConsentState,
    /// What the device is to run on: leases that it still holds, and new ones for what it ran
    /// before. Others that it holds are over.
    pub grants: Vec<Grant>,
    /// Whether the host answers [`ToHost::Serving`].
    #[serde(default)]
    pub confirms_running: bool,
}

/// Where the agent's data connections go, and the certificate that must answer there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeAddress {
    pub host: String,
    pub port: u16,
    /// SHA-256 of the certificate (DER).
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
    /// What is left to claim it.
    pub expires_in_ms: u64,
}

/// The right to run a tunnel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    pub lease_id: Uuid,
    pub tunnel_id: Uuid,
    pub name: String,
    /// The number of this run. A node serves no lower one.
    pub epoch: i64,
    /// Proves the lease to the node.
    pub token: Base64Bytes,
    pub public_address: String,
    /// Where its visitors come from: the node that it is placed on.
    pub node: NodeAddress,
    pub target: Target,
}

/// What a tunnel leads to on the device, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    pub host: String,
    pub port: u16,
    /// Seconds.
    pub idle_timeout: u32,
    /// Bytes.
    pub buffer_size: u32,
    /// What its extra ports lead to, on the same host.
    #[serde(default)]
    pub extra: Vec<ExtraTarget>,
}

/// What one extra port of a tunnel leads to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtraTarget {
    pub port_id: Uuid,
    pub port: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsentState {
    pub enabled: bool,
    /// Raised by everything that turns remote control off.
    pub revision: i64,
}

/// What somebody at the device decided about remote control.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedConsent {
    pub enabled: bool,
    /// The revision that the decision was made on; void, if there is a higher one.
    pub revision: i64,
    pub nonce: Base64Bytes,
    /// Over [`consent_statement`].
    pub signature: Base64Bytes,
    /// Where remote control may lead. An agent that knew of no list signs none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub targets: Option<SignedTargets>,
}

/// The local targets that the device's owner has allowed, as they stand with a consent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedTargets {
    pub targets: Vec<String>,
    /// Over [`targets_statement`], with the consent's revision and nonce.
    pub signature: Base64Bytes,
}

/// What a successful action leaves to say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case")]
pub enum Done {
    Start,
    Stop,
    Restart,
    StopAll { stopped: Vec<Uuid> },
    RestartAgent { previous_version: String, version: String, boot_id: Uuid },
}

/// Why something was not done; `code` as in the API's operation errors or problem codes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub code: String,
    pub detail: String,
    /// What is to be repeated to whoever refused, where that is all that it takes: for
    /// `target_not_accepted`, the local targets that somebody has to accept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accept: Option<String>,
}

impl Failure {
    pub fn new(code: &str, detail: impl Into<String>) -> Self {
        Self { code: code.into(), detail: detail.into(), accept: None }
    }
}

/// What a device signs to connect.
pub fn connect_statement(device_id: Uuid, nonce: &[u8]) -> Vec<u8> {
    statement("culvert connect v1", device_id, &[nonce])
}

/// What a device signs to turn remote control on or off.
pub fn consent_statement(device_id: Uuid, enabled: bool, revision: i64, nonce: &[u8]) -> Vec<u8> {
    statement("culvert consent v1", device_id, &[&[u8::from(enabled)], &revision.to_be_bytes(), nonce])
}

/// What a device signs to say where remote control may lead: every part with its length before it.
pub fn targets_statement(device_id: Uuid, revision: i64, nonce: &[u8], targets: &[String]) -> Vec<u8> {
    let mut statement = statement("culvert targets v1", device_id, &[&revision.to_be_bytes()]);
    for part in std::iter::once(nonce).chain(targets.iter().map(String::as_bytes)) {
        statement.extend((part.len() as u64).to_be_bytes());
        statement.extend(part);
    }
    statement
}

/// The parts have fixed lengths but for the last, so no two statements read the same.
fn statement(purpose: &str, device_id: Uuid, parts: &[&[u8]]) -> Vec<u8> {
    let mut statement = Vec::from(purpose);
    statement.push(0);
    statement.extend(device_id.as_bytes());
    parts.iter().for_each(|part| statement.extend(*part));
    statement
}
