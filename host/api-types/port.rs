//! Extra ports of a tunnel.

use schemars::JsonSchema;
use serde::Serialize;
use uuid::Uuid;

use crate::address::AddressResponse;
use culvert_domain::port::ExtraPort;
use culvert_domain::protocol::Protocol;
use culvert_domain::tunnel::Tunnel;

/// Extra port
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ExtraPort")]
pub struct ExtraPortResponse {
    id: Uuid,
    local_port: u16,
    remote_port: u16,
    protocol: Protocol,
    label: Option<String>,
    public_address: AddressResponse,
}

impl ExtraPortResponse {
    /// All of a tunnel.
    pub fn all(tunnel: &Tunnel) -> Vec<Self> {
        tunnel.extra_ports.iter().map(|port| Self::new(port.clone(), tunnel)).collect()
    }

    pub fn new(port: ExtraPort, tunnel: &Tunnel) -> Self {
        let address = tunnel.extra_address(&port);
        let remote_port = address.port;
        let ExtraPort { id, local_port, remote_port: _, protocol, label } = port;
        Self { id, local_port, remote_port, protocol, label, public_address: address.into() }
    }
}
