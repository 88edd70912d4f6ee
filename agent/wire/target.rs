//! Where a tunnel leads on its device, and how connections there are handled.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Ports of TLS, where nothing else is said.
pub const TLS_PORTS: [u16; 2] = [443, 8443];

/// The local target of a tunnel, and how connections to it are handled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    pub host: String,
    pub port: u16,
    /// In seconds.
    pub idle_timeout: u32,
    /// How long a visitor of a UDP port may be silent, in seconds.
    #[serde(default = "default_flow_idle_timeout")]
    pub flow_idle_timeout: u32,
    /// In bytes.
    pub buffer_size: u32,
    /// Whether the tunnel's own port takes connections.
    #[serde(default = "yes")]
    pub takes_connections: bool,
    /// Whether one of the tunnel's ports takes datagrams.
    #[serde(default)]
    pub takes_datagrams: bool,
    /// How the service is told who a visitor is.
    #[serde(default)]
    pub proxy_protocol: ProxyProtocol,
    /// Whether HTTP is spoken to the service over TLS.
    #[serde(default)]
    pub tls: bool,
    /// Whether its certificate is verified; `None`: unless its address is loopback or private.
    #[serde(default)]
    pub tls_verify: Option<bool>,
    /// The name that the certificate is for; `None`: `host`.
    #[serde(default)]
    pub server_name: Option<String>,
    /// The number of this target within the run.
    #[serde(default)]
    pub version: u64,
    /// The targets of the tunnel's extra ports, on the same host.
    #[serde(default)]
    pub extra: Vec<ExtraTarget>,
}

impl Target {
    /// A target of tcp, with the defaults for the rest.
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self {
            host: host.into(),
            port,
            idle_timeout: 3600,
            flow_idle_timeout: DEFAULT_FLOW_IDLE_TIMEOUT,
            buffer_size: 65_536,
            takes_connections: true,
            takes_datagrams: false,
            proxy_protocol: ProxyProtocol::None,
            tls: false,
            tls_verify: None,
            server_name: None,
            version: 0,
            extra: Vec::new(),
        }
    }
}

/// How a local service is told who a visitor is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProxyProtocol {
    #[default]
    None,
    /// PROXY protocol, version 1.
    V1,
    /// PROXY protocol, version 2.
    V2,
    /// Simple Proxy Protocol, for datagrams.
    Spp,
    /// One of a newer host.
    #[serde(other)]
    Other,
}

/// How long a visitor of a UDP port may be silent by default, in seconds.
pub const DEFAULT_FLOW_IDLE_TIMEOUT: u32 = 300;

fn default_flow_idle_timeout() -> u32 {
    DEFAULT_FLOW_IDLE_TIMEOUT
}

fn yes() -> bool {
    true
}

/// The target of one extra port of a tunnel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtraTarget {
    pub port_id: Uuid,
    pub port: u16,
    /// Whether HTTP is spoken to the service over TLS.
    #[serde(default)]
    pub tls: bool,
}
