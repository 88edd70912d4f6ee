//! A tunnel, what it is doing, and where it is reached.

use std::net::{Ipv4Addr, Ipv6Addr};

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::error::{Code, Error, Result};
use super::local_service::{LocalScheme, LocalService, ProxyProtocol};
use super::node::Node;
use super::operation::{OperationStatus, RemoteAction};
use super::port::{ExtraPort, extra_subdomain};
use super::protocol::{Protocol, Transport};
use super::session::Target;
use super::string_enum::string_enum;

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

/// Seconds without a byte after which a connection is closed, where its tunnel says nothing.
pub const DEFAULT_IDLE_TIMEOUT: u32 = 3600;

/// Bytes that one direction of a connection is copied with, where nothing else was asked for.
pub const DEFAULT_BUFFER_SIZE: u32 = 65_536;

/// What a client defines of a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelSpec {
    pub name: String,
    pub protocol: Protocol,
    pub local_host: String,
    pub local_port: u16,
    pub subdomain: Option<String>,
    pub region: Option<String>,
    pub country: Option<String>,
    pub preset_id: Option<Uuid>,
    /// Managed HTTPS, for http tunnels.
    pub https: bool,
    pub basic_auth: bool,
    pub basic_auth_user: Option<String>,
    /// Seconds without a byte in either direction after which one connection is closed.
    pub idle_timeout: Option<u32>,
    /// Bytes that each direction of a connection is copied with.
    pub buffer_size: u32,
    pub pro_network: bool,
    pub service: LocalService,
}

impl TunnelSpec {
    /// Whether visitors come by HTTPS: its node makes TLS, or passes it through.
    pub fn needs_https(&self) -> bool {
        self.https || self.service.tls_passthrough
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tunnel {
    pub id: Uuid,
    pub scope_id: Uuid,
    pub created_by: Uuid,
    pub spec: TunnelSpec,
    pub remote_port: u16,
    pub node: Node,
    /// The platform domain that its subdomain belongs to.
    pub domain: String,
    pub basic_auth_password_set: bool,
    /// In the order of their creation.
    pub extra_ports: Vec<ExtraPort>,
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
    /// The node that it was moved from, until that one serves it no longer.
    pub moving_from: Option<FormerNode>,
    /// The name of its owner's own that is assigned to it.
    pub custom_domain: Option<String>,
    pub run: Option<Run>,
    pub operation: Option<ActiveOperation>,
    pub created_at: DateTime<Utc>,
    pub updated_at: DateTime<Utc>,
}

/// A node that a tunnel was moved from, and that may serve it still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormerNode {
    pub node_id: Uuid,
    /// The device that it may serve it for.
    pub device_id: Uuid,
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
    /// Whether another operation on it may begin: there is one at a time.
    ///
    /// # Errors
    ///
    /// [`Code::OperationInProgress`]
    pub fn check_idle(&self) -> Result<()> {
        let Some(operation) = &self.operation else { return Ok(()) };
        let detail = format!("The operation {} has not ended yet.", operation.id);
        Err(Error::new(Code::OperationInProgress, detail))
    }

    /// Whether another node or another device may get it: the node that it was moved from may serve it still.
    ///
    /// # Errors
    ///
    /// [`Code::OperationInProgress`]
    pub fn check_settled(&self) -> Result<()> {
        if self.moving_from.is_none() {
            return Ok(());
        }
        Err(Error::new(Code::OperationInProgress, "The node that the tunnel was moved from may serve it still."))
    }

    pub fn status(&self) -> TunnelStatus {
        let action = self.operation.as_ref().map(|operation| operation.action);
        match &self.run {
            _ if self.suspended => TunnelStatus::Suspended,
            Some(_) if action == Some(RemoteAction::Stop) => TunnelStatus::Stopping,
            Some(run) if !run.ready && self.moving => TunnelStatus::Moving,
            Some(run) if !run.ready => TunnelStatus::Starting,
            Some(run) if !run.agent_connected || run.target_error.is_some() => TunnelStatus::Degraded,
            Some(_) if !self.node.is_online() => TunnelStatus::Degraded,
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

    /// Whether it runs or is being started.
    pub fn runs_or_starts(&self) -> bool {
        let starts =
            |operation: &ActiveOperation| matches!(operation.action, RemoteAction::Start | RemoteAction::Restart);
        self.run.is_some() || self.operation.as_ref().is_some_and(starts)
    }

    /// Whether one of its ports takes UDP.
    pub fn takes_datagrams(&self) -> bool {
        self.protocols().any(|(protocol, _)| protocol.transports().contains(&Transport::Udp))
    }

    /// The protocol and the local port of each of its ports.
    fn protocols(&self) -> impl Iterator<Item = (Protocol, u16)> {
        let extra = self.extra_ports.iter().map(|port| (port.protocol, port.local_port));
        extra.chain([(self.spec.protocol, self.spec.local_port)])
    }

    /// Whether an agent has to make TLS with its service, or say who visitors are.
    pub fn needs_local_services(&self) -> bool {
        let service = &self.spec.service;
        let uses_tls = match service.scheme {
            LocalScheme::Https => true,
            LocalScheme::Auto => {
                self.protocols().any(|(protocol, port)| protocol == Protocol::Http && service.scheme.uses_tls(port))
            }
            LocalScheme::Http | LocalScheme::H2c => false,
        };
        uses_tls || service.proxy_protocol != ProxyProtocol::None
    }

    /// The local target that its settings define.
    pub fn target(&self) -> Target {
        let TunnelSpec { local_host, local_port, service, .. } = &self.spec;
        Target {
            host: local_host.clone(),
            port: *local_port,
            scheme: service.scheme,
            tls_verify: service.tls_verify,
            extra: self.extra_ports.iter().map(|port| (port.id, port.local_port)).collect(),
        }
    }

    pub fn allows(&self, device_id: Uuid) -> bool {
        !self.restricted || self.device_ids.contains(&device_id)
    }

    pub fn public_address(&self) -> PublicAddress {
        address(self.spec.protocol, self.remote_port, self.spec.needs_https(), self.name_in_domain(), &self.node)
    }

    /// The address of one of its extra ports.
    pub fn extra_address(&self, port: &ExtraPort) -> PublicAddress {
        let name = self.name_in_domain();
        let (name, number) = match port.protocol {
            Protocol::Http => {
                (name.map(|name| extra_subdomain(port.local_port, &name)), self.node.web_port(self.spec.needs_https()))
            }
            _ => (name, port.remote_port),
        };
        address(port.protocol, number, self.spec.needs_https(), name, &self.node)
    }

    /// What a custom domain must be an alias of. It is the tunnel's alone, else an alias would prove
    /// nothing; `cname` is nobody's subdomain.
    pub fn cname_target(&self) -> String {
        format!("{}.cname.{}", self.id.simple(), self.domain)
    }

    fn name_in_domain(&self) -> Option<String> {
        self.spec.subdomain.as_ref().map(|subdomain| format!("{subdomain}.{}", self.domain))
    }
}

/// The URL of an http tunnel.
pub fn web_url(https: bool, hostname: &str, port: u16) -> String {
    let (scheme, usual) = if https { ("https", 443) } else { ("http", 80) };
    if port == usual { format!("{scheme}://{hostname}") } else { format!("{scheme}://{hostname}:{port}") }
}

fn address(protocol: Protocol, port: u16, https: bool, name: Option<String>, node: &Node) -> PublicAddress {
    let hostname = name.unwrap_or_else(|| node.hostname.clone());
    let url = (protocol == Protocol::Http).then(|| web_url(https, &hostname, port));
    let (ipv4, ipv6) = (node.hostname.parse().ok(), node.hostname.parse().ok());
    PublicAddress { hostname, port, url, ipv4, ipv6 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::tests::node;

    fn tunnel() -> Tunnel {
        Tunnel {
            id: Uuid::from_u128(1),
            scope_id: Uuid::from_u128(2),
            created_by: Uuid::from_u128(2),
            spec: TunnelSpec {
                name: "web".into(),
                protocol: Protocol::Tcp,
                local_host: "127.0.0.1".into(),
                local_port: 80,
                subdomain: None,
                region: None,
                country: None,
                preset_id: None,
                https: true,
                basic_auth: false,
                basic_auth_user: None,
                idle_timeout: None,
                buffer_size: DEFAULT_BUFFER_SIZE,
                pro_network: false,
                service: LocalService::default(),
            },
            remote_port: 20_000,
            node: node(1, "berlin", "DE"),
            domain: "example.com".into(),
            basic_auth_password_set: false,
            extra_ports: Vec::new(),
            device_ids: Vec::new(),
            restricted: false,
            desired_device_id: None,
            start_error: None,
            suspended: false,
            moving: false,
            moving_from: None,
            custom_domain: None,
            run: None,
            operation: None,
            created_at: DateTime::UNIX_EPOCH,
            updated_at: DateTime::UNIX_EPOCH,
        }
    }

    fn run() -> Run {
        Run {
            session_id: Uuid::from_u128(3),
            device_id: Uuid::from_u128(4),
            ready: true,
            target_error: None,
            agent_connected: true,
        }
    }

    fn operation(action: RemoteAction) -> Option<ActiveOperation> {
        Some(ActiveOperation {
            id: Uuid::from_u128(5),
            action,
            status: OperationStatus::Queued,
            device_id: Uuid::from_u128(4),
            handoff_from_device_id: None,
        })
    }

    #[test]
    fn tunnel_without_session_is_stopped_starting_or_failed() {
        let stopped = tunnel();
        assert_eq!(stopped.status(), TunnelStatus::Stopped);
        assert_eq!(Tunnel { start_error: Some("no".into()), ..tunnel() }.status(), TunnelStatus::Error);
        for action in [RemoteAction::Start, RemoteAction::Restart] {
            let asked = Tunnel { operation: operation(action), start_error: Some("before".into()), ..tunnel() };
            assert_eq!(asked.status(), TunnelStatus::Starting);
        }
        assert_eq!(stopped.running_on(), None);
    }

    #[test]
    fn tunnel_with_session_follows_agent_target_and_operation() {
        let with = |run: Run, change: fn(&mut Tunnel)| {
            let mut tunnel = Tunnel { run: Some(run), ..tunnel() };
            change(&mut tunnel);
            (tunnel.status(), tunnel.running_on().is_some())
        };
        assert_eq!(with(run(), |_| {}), (TunnelStatus::Running, true));
        assert_eq!(with(Run { agent_connected: false, ..run() }, |_| {}), (TunnelStatus::Degraded, true));
        assert_eq!(with(Run { target_error: Some("refused".into()), ..run() }, |_| {}), (TunnelStatus::Degraded, true));
        assert_eq!(with(Run { ready: false, ..run() }, |_| {}), (TunnelStatus::Starting, false));
        assert_eq!(with(Run { ready: false, ..run() }, |t| t.moving = true), (TunnelStatus::Moving, false));
        assert_eq!(with(run(), |t| t.moving = true), (TunnelStatus::Running, true));
        assert_eq!(with(run(), |t| t.operation = operation(RemoteAction::Stop)), (TunnelStatus::Stopping, true));
        assert_eq!(with(run(), |t| t.operation = operation(RemoteAction::Restart)), (TunnelStatus::Running, true));
        assert_eq!(with(run(), |t| t.suspended = true), (TunnelStatus::Suspended, false));
    }

    #[test]
    fn suspension_comes_before_every_other_status() {
        let mut suspended = Tunnel { suspended: true, ..tunnel() };
        for operation in [None, operation(RemoteAction::Start), operation(RemoteAction::Stop)] {
            suspended.operation = operation;
            assert_eq!(suspended.status(), TunnelStatus::Suspended);
        }
    }
}
