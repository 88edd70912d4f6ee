//! Leases: open sessions, as nodes and agents serve them.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::local_service::LocalService;
use super::protocol::Protocol;

/// An open session, with everything that a node and an agent need to serve it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    pub session_id: Uuid,
    pub tunnel_id: Uuid,
    pub scope_id: Uuid,
    pub device_id: Uuid,
    pub node_id: Uuid,
    pub epoch: i64,
    pub boot_id: Uuid,
    pub name: String,
    /// Where visitors reach it: `host:port`, or the URL of an http tunnel.
    pub public_address: String,
    pub local_host: String,
    pub local_port: u16,
    pub protocol: Protocol,
    /// As the device has agreed to it.
    pub service: LocalService,
    pub idle_timeout: Option<u32>,
    pub buffer_size: u32,
    /// How often the target has changed within the run.
    pub target_version: u64,
    pub ready: bool,
    pub lease_until: DateTime<Utc>,
    /// The extra ports that the session's device has agreed to serve.
    pub ports: Vec<LeasePort>,
}

/// An extra port of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeasePort {
    pub id: Uuid,
    pub local_port: u16,
    pub remote_port: u16,
    pub protocol: Protocol,
}
