//! A tunnel, what it is doing, and where it is reached.

use std::net::{Ipv4Addr, Ipv6Addr};

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::node::Node;
use super::operation::{OperationStatus, RemoteAction};
use super::string_enum::string_enum;

string_enum! {
    Protocol {
        Tcp "tcp",
        Udp "udp",
        Both "both",
        Http "http",
    }
}

string_enum! {
    /// What a tunnel is doing, as far as its owner is concerned.
    TunnelStatus {
        Stopped "stopped",
        Starting "starting",
        Running "running",
        /// It holds its lease, but the agent is away or the local target refuses.
        Degraded "degraded",
        Stopping "stopping",
        Moving "moving",
        /// The month's bandwidth is used up.
        Suspended "suspended",
        /// The last start failed.
        Error "error",
    }
}

/// Why no tunnel of a protocol can be started yet.
pub fn not_carried(protocol: &str) -> String {
    format!("This version's nodes carry tcp; {protocol} tunnels cannot be started yet.")
}

/// Seconds without a byte after which a connection is closed, where its tunnel says nothing.
pub const DEFAULT_IDLE_TIMEOUT: u32 = 3600;

/// Bytes that one direction of a connection is copied with, where nothing else was asked for.
pub const DEFAULT_BUFFER_SIZE: u32 = 65_536;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tunnel {
    pub id: Uuid,
    pub scope_id: Uuid,
    pub created_by: Uuid,
    pub name: String,
    pub protocol: Protocol,
    pub local_host: String,
    pub local_port: u16,
    pub remote_port: u16,
    pub node: Node,
    /// The platform domain that its subdomain belongs to.
    pub domain: String,
    pub subdomain: Option<String>,
    pub region: Option<String>,
    pub country: Option<String>,
    pub preset_id: Option<Uuid>,
    /// Managed HTTPS, for http tunnels.
    pub https: bool,
    pub basic_auth: bool,
    pub basic_auth_user: Option<String>,
    pub basic_auth_password_set: bool,
    /// Seconds without a byte in either direction after which one connection is closed.
    pub idle_timeout: Option<u32>,
    pub buffer_size: u32,
    pub pro_network: bool,
    /// The devices that may run it.
    pub device_ids: Vec<Uuid>,
    /// Whether only these may; otherwise any of the scope. They can have become none.
    pub restricted: bool,
    /// The device that is to run it whenever it can.
    pub desired_device_id: Option<Uuid>,
    pub start_error: Option<String>,
    pub suspended: bool,
    /// On its way to another node.
    pub moving: bool,
    /// The name of its owner's own that is assigned to it.
    pub custom_domain: Option<String>,
    pub run: Option<Run>,
    pub operation: Option<ActiveOperation>,
    pub created_at: DateTime<Utc>,
    pub updated_at: DateTime<Utc>,
}

/// The open session of a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    pub session_id: Uuid,
    pub device_id: Uuid,
    /// The agent has stood ready for visitors.
    pub ready: bool,
    pub target_error: Option<String>,
    pub agent_connected: bool,
}

/// An operation on the tunnel that has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveOperation {
    pub id: Uuid,
    pub action: RemoteAction,
    pub status: OperationStatus,
    pub device_id: Uuid,
    /// The device that it takes the tunnel from.
    pub handoff_from_device_id: Option<Uuid>,
}

/// Where visitors reach a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicAddress {
    pub hostname: String,
    pub port: u16,
    pub url: Option<String>,
    /// Where the node is known by an address instead of a name.
    pub ipv4: Option<Ipv4Addr>,
    pub ipv6: Option<Ipv6Addr>,
}

impl Tunnel {
    pub fn status(&self) -> TunnelStatus {
        let action = self.operation.as_ref().map(|operation| operation.action);
        match &self.run {
            _ if self.suspended => TunnelStatus::Suspended,
            Some(_) if action == Some(RemoteAction::Stop) => TunnelStatus::Stopping,
            Some(run) if !run.ready && self.moving => TunnelStatus::Moving,
            Some(run) if !run.ready => TunnelStatus::Starting,
            Some(run) if !run.agent_connected || run.target_error.is_some() => TunnelStatus::Degraded,
            Some(_) => TunnelStatus::Running,
            None if matches!(action, Some(RemoteAction::Start | RemoteAction::Restart)) => TunnelStatus::Starting,
            None if self.start_error.is_some() => TunnelStatus::Error,
            None => TunnelStatus::Stopped,
        }
    }

    /// The device that runs it now.
    pub fn running_on(&self) -> Option<Uuid> {
        use TunnelStatus::{Degraded, Running, Stopping};
        let run = self.run.as_ref()?;
        matches!(self.status(), Running | Degraded | Stopping).then_some(run.device_id)
    }

    pub fn allows(&self, device_id: Uuid) -> bool {
        !self.restricted || self.device_ids.contains(&device_id)
    }

    pub fn public_address(&self) -> PublicAddress {
        address(self.protocol, self.remote_port, self.https, self.name_in_domain(), &self.node)
    }

    /// The address of one of its extra ports.
    pub fn extra_address(&self, port: &super::port::ExtraPort) -> PublicAddress {
        let name = self.name_in_domain();
        let name = match port.protocol {
            Protocol::Http => name.map(|name| format!("p{}-{name}", port.local_port)),
            _ => name,
        };
        address(port.protocol, port.remote_port, self.https, name, &self.node)
    }

    /// What a custom domain must be an alias of. It is the tunnel's alone, else an alias would prove
    /// nothing; `cname` is nobody's subdomain.
    pub fn cname_target(&self) -> String {
        format!("{}.cname.{}", self.id.simple(), self.domain)
    }

    fn name_in_domain(&self) -> Option<String> {
        self.subdomain.as_ref().map(|subdomain| format!("{subdomain}.{}", self.domain))
    }
}

fn address(protocol: Protocol, port: u16, https: bool, name: Option<String>, node: &Node) -> PublicAddress {
    let hostname = name.unwrap_or_else(|| node.hostname.clone());
    let scheme = if https { "https" } else { "http" };
    let url = (protocol == Protocol::Http).then(|| format!("{scheme}://{hostname}"));
    let (ipv4, ipv6) = (node.hostname.parse().ok(), node.hostname.parse().ok());
    PublicAddress { hostname, port, url, ipv4, ipv6 }
}

/// The public port of an http tunnel, which shares it with all others of its node.
pub fn http_port(https: bool) -> u16 {
    if https { 443 } else { 80 }
}
