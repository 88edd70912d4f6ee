//! The grant of a lease: what an agent needs to serve it.

use culvert_wire::base64_bytes::Base64Bytes;
use culvert_wire::control::{ExtraTarget, Grant, NodeAddress, Target};

use culvert_domain::tunnel::DEFAULT_IDLE_TIMEOUT;
use culvert_store::sessions::Lease;

pub fn target(lease: &Lease) -> Target {
    Target {
        host: lease.local_host.clone(),
        port: lease.local_port,
        idle_timeout: lease.idle_timeout.unwrap_or(DEFAULT_IDLE_TIMEOUT),
        buffer_size: lease.buffer_size,
        extra: lease.ports.iter().map(|port| ExtraTarget { port_id: port.id, port: port.local_port }).collect(),
    }
}

pub fn grant(lease: &Lease, node: NodeAddress, token: Vec<u8>) -> Grant {
    Grant {
        lease_id: lease.session_id,
        tunnel_id: lease.tunnel_id,
        name: lease.name.clone(),
        epoch: lease.epoch,
        token: Base64Bytes(token),
        public_address: format!("{}:{}", lease.hostname, lease.remote_port),
        node,
        target: target(lease),
    }
}
