//! A session: one unbroken run of one tunnel on one device. While it is open, it is the lease.

use std::time::Duration;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::local_service::LocalScheme;
use super::string_enum::string_enum;
use super::usage::Traffic;

/// How long a lease holds without being renewed.
pub const SESSION_LEASE: Duration = Duration::from_secs(30);

string_enum! {
    EndReason {
        StoppedLocal "stopped_local",
        StoppedApi "stopped_api",
        StopAll "stop_all",
        Restarted "restarted",
        Handoff "handoff",
        LeaseExpired "lease_expired",
        DeviceDisconnected "device_disconnected",
        AgentRestart "agent_restart",
        TunnelDeleted "tunnel_deleted",
        TunnelMoved "tunnel_moved",
        DeviceNotAllowed "device_not_allowed",
        LimitReached "limit_reached",
        NodeShutdown "node_shutdown",
        Error "error",
    }
}

/// What the device of a session agreed to lead to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub host: String,
    pub port: u16,
    pub scheme: LocalScheme,
    pub tls_verify: Option<bool>,
    /// Extra ports, by their ids.
    pub extra: Vec<(Uuid, u16)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    pub id: Uuid,
    pub tunnel_id: Uuid,
    pub device_id: Uuid,
    pub node_id: Uuid,
    pub started_at: DateTime<Utc>,
    pub ended_at: Option<DateTime<Utc>>,
    pub traffic: Traffic,
    pub end_reason: Option<EndReason>,
}

impl Session {
    /// Whole seconds from its start to its end, or to now.
    pub fn duration_seconds(&self, now: DateTime<Utc>) -> i64 {
        (self.ended_at.unwrap_or(now) - self.started_at).num_seconds().max(0)
    }
}
