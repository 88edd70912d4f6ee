//! The event kinds that webhook endpoints can ask for; see
//! `docs/develop/decisions/0011-events-and-webhooks.md`.

use super::operation::OperationStatus;
use super::string_enum::string_enum;

string_enum! {
    /// An event kind, as a webhook's `events` names it.
    EventKind {
        CommandQueued "command.queued",
        CommandClaimed "command.claimed",
        CommandRunning "command.running",
        CommandSucceeded "command.succeeded",
        CommandFailed "command.failed",
        CommandExpired "command.expired",
        CommandCanceled "command.canceled",
        TunnelStarted "tunnel.started",
        TunnelStopped "tunnel.stopped",
        DeviceOnline "device.online",
        DeviceOffline "device.offline",
    }
}

/// The kind of a test event, which no endpoint has to ask for.
pub const TEST_EVENT: &str = "webhook.test";

impl EventKind {
    /// An operation has come to a state.
    pub fn of_operation(status: OperationStatus) -> Self {
        match status {
            OperationStatus::Queued => Self::CommandQueued,
            OperationStatus::Claimed => Self::CommandClaimed,
            OperationStatus::Running => Self::CommandRunning,
            OperationStatus::Succeeded => Self::CommandSucceeded,
            OperationStatus::Failed => Self::CommandFailed,
            OperationStatus::Expired => Self::CommandExpired,
            OperationStatus::Canceled => Self::CommandCanceled,
        }
    }
}

string_enum! {
    /// Why a device counts as offline.
    OfflineReason {
        /// Its agent said goodbye.
        Shutdown "shutdown",
        /// It was not heard of for too long.
        Timeout "timeout",
        /// Its owner has left the Team.
        NotAllowed "not_allowed",
        /// The operator removed it.
        Removed "removed",
    }
}
