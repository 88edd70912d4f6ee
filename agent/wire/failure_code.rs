//! Codes of failures: of operations, of starts and stops at the device, and of the agent's own commands.

use crate::open_enum::open_enum;

open_enum! {
    /// Why something that was asked for was not done.
    FailureCode {
        /// Whoever asked for it, or the device, may no longer act for the scope.
        AccessLost "access_lost",
        AgentRejected "agent_rejected",
        AgentStopped "agent_stopped",
        Ambiguous "ambiguous",
        ConsentOutdated "consent_outdated",
        /// Commands at the device may not create tunnels.
        CreationNotAllowed "creation_not_allowed",
        DeviceDisconnected "device_disconnected",
        DeviceNotAllowed "device_not_allowed",
        DeviceRemoved "device_removed",
        ExecutionTimeout "execution_timeout",
        FeatureNotAvailable "feature_not_available",
        InternalError "internal_error",
        LeaseConflict "lease_conflict",
        LocalTargetUnreachable "local_target_unreachable",
        /// The service does not speak TLS, or its certificate is not good.
        LocalTlsFailed "local_tls_failed",
        NodeUnavailable "node_unavailable",
        /// The device did not take the command in time.
        NotClaimed "not_claimed",
        NotConnected "not_connected",
        NotFound "not_found",
        OperationInProgress "operation_in_progress",
        OutcomeUnknown "outcome_unknown",
        RateLimited "rate_limited",
        Refused "refused",
        RemoteControlDisabled "remote_control_disabled",
        TargetNotAccepted "target_not_accepted",
        TargetNotAllowed "target_not_allowed",
        TargetNotListed "target_not_listed",
        TooManyTargets "too_many_targets",
        TunnelAlreadyRunning "tunnel_already_running",
        TunnelDeleted "tunnel_deleted",
        TunnelNotRunning "tunnel_not_running",
        TunnelStartFailed "tunnel_start_failed",
        TunnelSuspended "tunnel_suspended",
        UnsupportedAction "unsupported_action",
    }
}
