//! Grants of leases: what an agent needs to serve one.

use culvert_domain::lease::Lease;
use culvert_domain::protocol::{Protocol, Transport};
use culvert_domain::tunnel::DEFAULT_IDLE_TIMEOUT;
use culvert_wire::base64_bytes::Base64Bytes;
use culvert_wire::control::{DEFAULT_FLOW_IDLE_TIMEOUT, ExtraTarget, Failure, Grant, NodeAddress, Target};

use crate::Service;

/// The local target of a lease's tunnel.
pub fn target(lease: &Lease) -> Target {
    let mut protocols = lease.ports.iter().map(|port| port.protocol).chain([lease.protocol]);
    Target {
        host: lease.local_host.clone(),
        port: lease.local_port,
        idle_timeout: lease.idle_timeout.unwrap_or(DEFAULT_IDLE_TIMEOUT),
        flow_idle_timeout: lease.idle_timeout.unwrap_or(DEFAULT_FLOW_IDLE_TIMEOUT),
        buffer_size: lease.buffer_size,
        takes_connections: lease.protocol != Protocol::Udp,
        takes_datagrams: protocols.any(|protocol| protocol.transports().contains(&Transport::Udp)),
        extra: lease.ports.iter().map(|port| ExtraTarget { port_id: port.id, port: port.local_port }).collect(),
    }
}

impl Service {
    /// Has the node serve a lease, and only then makes the agent's grant for it.
    ///
    /// # Errors
    ///
    /// Why the node does not serve it.
    pub(crate) async fn serve_and_grant(&self, lease: &Lease) -> Result<Grant, Failure> {
        let node = self.nodes.serve(lease).await?;
        Ok(self.grant(lease, node))
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
