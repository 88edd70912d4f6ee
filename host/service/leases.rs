//! Grants of leases: what an agent needs to serve one.

use std::time::Duration;

use culvert_domain::lease::{Lease, LeasePort};
use culvert_domain::local_service;
use culvert_domain::protocol::{Protocol, Transport};
use culvert_domain::tunnel::DEFAULT_IDLE_TIMEOUT;
use culvert_wire::base64_bytes::Base64Bytes;
use culvert_wire::control::{Failure, Grant, NodeAddress};
use culvert_wire::failure_code::FailureCode;
use culvert_wire::target::{DEFAULT_FLOW_IDLE_TIMEOUT, ExtraTarget, ProxyProtocol, Target};

use crate::Service;
use crate::nodes::ANSWER_WITHIN;

/// How long an agent that connects waits for the host of a node that serves it already.
const HELD_WITHIN: Duration = Duration::from_secs(2);

/// The local target of a lease's tunnel.
pub fn target(lease: &Lease) -> Target {
    let service = &lease.service;
    let uses_tls = |protocol: Protocol, port: u16| protocol == Protocol::Http && service.scheme.uses_tls(port);
    let extra = |port: &LeasePort| ExtraTarget {
        port_id: port.id,
        port: port.local_port,
        tls: uses_tls(port.protocol, port.local_port),
    };
    let mut protocols = lease.ports.iter().map(|port| port.protocol).chain([lease.protocol]);
    Target {
        host: lease.local_host.clone(),
        port: lease.local_port,
        idle_timeout: lease.idle_timeout.unwrap_or(DEFAULT_IDLE_TIMEOUT),
        flow_idle_timeout: lease.idle_timeout.unwrap_or(DEFAULT_FLOW_IDLE_TIMEOUT),
        buffer_size: lease.buffer_size,
        takes_connections: lease.protocol != Protocol::Udp,
        takes_datagrams: protocols.any(|protocol| protocol.transports().contains(&Transport::Udp)),
        proxy_protocol: match service.proxy_protocol {
            local_service::ProxyProtocol::None => ProxyProtocol::None,
            local_service::ProxyProtocol::V1 => ProxyProtocol::V1,
            local_service::ProxyProtocol::V2 => ProxyProtocol::V2,
            local_service::ProxyProtocol::Spp => ProxyProtocol::Spp,
        },
        tls: uses_tls(lease.protocol, lease.local_port),
        tls_verify: service.tls_verify,
        server_name: service.host_header.as_deref().map(|host| local_service::host_of(host).to_owned()),
        version: lease.target_version,
        extra: lease.ports.iter().map(extra).collect(),
    }
}

impl Service {
    /// Has the node serve a lease, and only then makes the agent's grant for it.
    ///
    /// # Errors
    ///
    /// Why the node does not serve it.
    pub(crate) async fn serve_and_grant(&self, lease: &Lease) -> Result<Grant, Failure> {
        let node = self.nodes.serve(lease, ANSWER_WITHIN).await?;
        Ok(self.grant(lease, node))
    }

    /// As [`Service::serve_and_grant`], for a lease that the agent holds: a node whose host does not answer serves it still.
    ///
    /// # Errors
    ///
    /// Why the node does not serve it.
    pub(crate) async fn grant_again(&self, lease: &Lease) -> Result<Grant, Failure> {
        let failure = match self.nodes.serve(lease, HELD_WITHIN).await {
            Ok(node) => return Ok(self.grant(lease, node)),
            Err(failure) => failure,
        };
        let address = match failure.code {
            FailureCode::NodeUnavailable => self.nodes.serving_address(lease).await,
            _ => None,
        };
        address.map(|node| self.grant(lease, node)).ok_or(failure)
    }

    fn grant(&self, lease: &Lease, node: NodeAddress) -> Grant {
        Grant {
            lease_id: lease.session_id,
            tunnel_id: lease.tunnel_id,
            name: lease.name.clone(),
            epoch: lease.epoch,
            token: Base64Bytes(self.nodes.token(lease)),
            device_token: Some(self.nodes.device_token(lease)),
            public_address: lease.public_address.clone(),
            node,
            target: target(lease),
        }
    }
}
