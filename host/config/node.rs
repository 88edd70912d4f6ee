//! Settings of a node in this process.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use serde::{Deserialize, Serialize};

use culvert_domain::port::PortRange;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeConfig {
    /// Name under which visitors and agents reach this node.
    pub hostname: String,
    /// Address of the agents' data connections (TLS, with a pinned certificate).
    pub listen: SocketAddr,
    /// Address that public ports are bound to.
    pub bind: IpAddr,
    /// Domain under which http tunnels get names; visitors have to reach this node by all names below it. Without one, the node takes no http tunnels.
    #[serde(default)]
    pub domain: Option<String>,
    /// Address for visitors of http tunnels, or `off`.
    #[serde(default)]
    pub http_listen: Listen,
    /// The port of `http_listen` as visitors see it, where a firewall or load balancer maps it (default: its own).
    #[serde(default)]
    pub http_port: Option<u16>,
    /// Connections to `http_listen` from one address (IPv6: a /64) at the same time.
    #[serde(default = "NodeConfig::default_http_connections_per_address")]
    pub http_connections_per_address: usize,
    /// Range of public ports.
    pub ports: PortRange,
    /// Visitors of all tunnels at the same time; one more is reset.
    #[serde(default = "NodeConfig::default_visitors")]
    pub visitors: usize,
    /// Visitors of one tunnel at the same time.
    #[serde(default = "NodeConfig::default_visitors_per_tunnel")]
    pub visitors_per_tunnel: usize,
    /// Visitors of one tunnel from one address (IPv6: a /64) at the same time.
    #[serde(default = "NodeConfig::default_visitors_per_address")]
    pub visitors_per_address: usize,
    /// MiB of all buffers together. A connection that cannot have more goes on with what it has.
    #[serde(default = "NodeConfig::default_buffer_mib")]
    pub buffer_mib: usize,
    /// Share of the process's file descriptors that is kept for the API and the agents, from 0 to 1. Visitors
    /// wait meanwhile.
    #[serde(default = "NodeConfig::default_descriptor_reserve")]
    pub descriptor_reserve: f64,
    /// Agents' connections that have not proved a lease yet; the oldest one is closed for a new one.
    #[serde(default = "NodeConfig::default_unproven")]
    pub unproven: usize,
    /// Of these, connections from one address (IPv6: a /64).
    #[serde(default = "NodeConfig::default_unproven_per_address")]
    pub unproven_per_address: usize,
}

impl NodeConfig {
    fn default_visitors() -> usize {
        20_000
    }

    fn default_visitors_per_tunnel() -> usize {
        1000
    }

    fn default_visitors_per_address() -> usize {
        100
    }

    fn default_buffer_mib() -> usize {
        256
    }

    fn default_descriptor_reserve() -> f64 {
        0.1
    }

    fn default_unproven() -> usize {
        1024
    }

    fn default_unproven_per_address() -> usize {
        64
    }

    fn default_http_connections_per_address() -> usize {
        256
    }
}

impl Default for NodeConfig {
    fn default() -> Self {
        Self {
            hostname: "localhost".into(),
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 7835)),
            bind: Ipv4Addr::LOCALHOST.into(),
            domain: Some("tunnel.localhost".into()),
            http_listen: Listen::At(SocketAddr::from((Ipv4Addr::LOCALHOST, 8081))),
            http_port: None,
            http_connections_per_address: Self::default_http_connections_per_address(),
            ports: PortRange { first: 20_000, last: 29_999 },
            visitors: Self::default_visitors(),
            visitors_per_tunnel: Self::default_visitors_per_tunnel(),
            visitors_per_address: Self::default_visitors_per_address(),
            buffer_mib: Self::default_buffer_mib(),
            descriptor_reserve: Self::default_descriptor_reserve(),
            unproven: Self::default_unproven(),
            unproven_per_address: Self::default_unproven_per_address(),
        }
    }
}

/// The address of a listener, or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Listen {
    #[default]
    Off,
    At(SocketAddr),
}

impl Listen {
    pub fn address(self) -> Option<SocketAddr> {
        match self {
            Self::Off => None,
            Self::At(address) => Some(address),
        }
    }
}

impl TryFrom<String> for Listen {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        if text == "off" {
            return Ok(Self::Off);
        }
        text.parse().map(Self::At).map_err(|_| "must be `off` or <address>:<port>")
    }
}

impl From<Listen> for String {
    fn from(listen: Listen) -> Self {
        listen.address().map_or_else(|| "off".into(), |address| address.to_string())
    }
}

/// Checks a domain for the names of tunnels. A name of a tunnel has a label of at most 63 characters in front.
pub(super) fn check_domain(domain: &str) -> Result<(), &'static str> {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if domain.len() > 189 || !domain.split('.').all(is_label) {
        return Err("must be a domain in lower case, such as `tunnels.example.com`, of at most 189 characters");
    }
    if domain.parse::<IpAddr>().is_ok() {
        return Err("must be a domain, not an address");
    }
    Ok(())
}
