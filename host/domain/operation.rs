//! A remote action on its way: asked for by a client, claimed by an agent, done or not.

use std::time::Duration;

use chrono::{DateTime, Utc};
use culvert_wire::control::Capability;
use culvert_wire::failure_code::FailureCode;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::string_enum::string_enum;

/// How long an operation waits to be claimed.
pub const CLAIM_WITHIN: Duration = Duration::from_mins(1);

string_enum! {
    RemoteAction {
        Start "start",
        Stop "stop",
        Restart "restart",
        StopAll "stop_all",
        RestartAgent "restart_agent",
    }
}

string_enum! {
    OperationStatus {
        Queued "queued",
        Claimed "claimed",
        Running "running",
        Succeeded "succeeded",
        Failed "failed",
        Expired "expired",
        Canceled "canceled",
    }
}

impl RemoteAction {
    /// What the agent must be capable of.
    pub fn capabilities(self) -> &'static [&'static str] {
        match self {
            RemoteAction::RestartAgent => {
                &[Capability::REMOTE_CONTROL, Capability::COMMAND_DEDUP, Capability::RESTART_AGENT]
            }
            _ => &[Capability::REMOTE_CONTROL, Capability::COMMAND_DEDUP, Capability::RUNTIME_LEASE],
        }
    }

    /// Whether it acts on a device as a whole, rather than on one tunnel.
    pub fn is_of_device(self) -> bool {
        matches!(self, RemoteAction::StopAll | RemoteAction::RestartAgent)
    }

    /// How long it may take from the claim on.
    pub fn execution_timeout(self) -> Duration {
        match self {
            RemoteAction::RestartAgent => Duration::from_mins(3),
            _ => Duration::from_mins(2),
        }
    }
}

impl OperationStatus {
    pub fn is_terminal(self) -> bool {
        use OperationStatus::{Canceled, Expired, Failed, Succeeded};
        matches!(self, Succeeded | Failed | Expired | Canceled)
    }

    /// The states that an operation goes through on its way to another, that one included: an
    /// agent's later report implies the earlier ones. `None` where no way leads there.
    pub fn states_until(self, to: OperationStatus) -> Option<&'static [OperationStatus]> {
        use OperationStatus::{Canceled, Claimed, Expired, Failed, Queued, Running, Succeeded};
        match (self, to) {
            (Queued, Claimed) => Some(&[Claimed]),
            (Queued, Running) => Some(&[Claimed, Running]),
            (Queued, Succeeded) => Some(&[Claimed, Running, Succeeded]),
            (Queued, Failed) => Some(&[Claimed, Failed]),
            (Queued, Expired) => Some(&[Expired]),
            (Queued | Claimed, Canceled) => Some(&[Canceled]),
            (Claimed, Running) => Some(&[Running]),
            (Claimed, Succeeded) => Some(&[Running, Succeeded]),
            (Running, Succeeded) => Some(&[Succeeded]),
            (Claimed | Running, Failed) => Some(&[Failed]),
            _ => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Operation {
    pub id: Uuid,
    pub scope_id: Uuid,
    pub account_id: Uuid,
    pub action: RemoteAction,
    pub status: OperationStatus,
    pub device_id: Uuid,
    pub tunnel_id: Option<Uuid>,
    /// The device that a handoff takes the tunnel from.
    pub handoff_from_device_id: Option<Uuid>,
    pub session_id: Option<Uuid>,
    pub result: Option<serde_json::Value>,
    pub error: Option<OperationError>,
    pub created_at: DateTime<Utc>,
    pub claimed_at: Option<DateTime<Utc>>,
    pub started_at: Option<DateTime<Utc>>,
    pub finished_at: Option<DateTime<Utc>>,
    pub expires_at: DateTime<Utc>,
}

impl Operation {
    /// When an operation that has not ended has to be claimed, or to have ended.
    pub fn due_at(&self) -> Option<DateTime<Utc>> {
        match self.status {
            OperationStatus::Queued => Some(self.expires_at),
            OperationStatus::Claimed | OperationStatus::Running => {
                Some(self.claimed_at.unwrap_or(self.created_at) + self.action.execution_timeout())
            }
            _ => None,
        }
    }

    /// The state that ends an operation whose time is over. `None` while it is not.
    pub fn timeout_status(&self, now: DateTime<Utc>) -> Option<OperationStatus> {
        self.due_at().filter(|due_at| *due_at <= now)?;
        let is_queued = self.status == OperationStatus::Queued;
        Some(if is_queued { OperationStatus::Expired } else { OperationStatus::Failed })
    }

    /// Takes the operation to a state, with a time for every state on the way.
    ///
    /// Returns it as it was in every state passed; none where it cannot go there, and then nothing
    /// changes.
    pub fn advance(&mut self, to: OperationStatus, now: DateTime<Utc>) -> Vec<Operation> {
        let way = self.status.states_until(to).unwrap_or_default();
        let pass = |status: &OperationStatus| {
            self.status = *status;
            match status {
                OperationStatus::Queued => {}
                OperationStatus::Claimed => self.claimed_at = Some(now),
                OperationStatus::Running => self.started_at = Some(now),
                _ => self.finished_at = Some(now),
            }
            self.as_passed()
        };
        way.iter().map(pass).collect()
    }

    /// What comes of it is there when it has ended, and not before.
    fn as_passed(&self) -> Operation {
        let passed = self.clone();
        if self.status.is_terminal() { passed } else { Operation { result: None, error: None, ..passed } }
    }
}

/// Why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct OperationError {
    #[schemars(with = "String")]
    pub code: FailureCode,
    pub detail: String,
}

impl OperationError {
    pub fn new(code: FailureCode, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into() }
    }
}
