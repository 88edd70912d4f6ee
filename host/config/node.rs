//! Settings of a node in this process.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use culvert_domain::port::PortRange;
use culvert_node::WebLimits;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeConfig {
    /// Name or address under which visitors and agents reach this node.
    pub hostname: String,
    /// Address of the agents' data connections (TLS, with a pinned certificate).
    pub listen: SocketAddr,
    /// Address of the agents' connections of QUIC (UDP), or `off` (default: that of `listen`).
    #[serde(default)]
    pub udp_listen: Option<Listen>,
    /// Address that public ports are bound to.
    pub bind: IpAddr,
    /// Domain under which http tunnels get names; visitors have to reach this node by all names below it. Without one, the node takes no http tunnels.
    #[serde(default)]
    pub domain: Option<String>,
    /// Address for visitors of http tunnels in the clear, or `off`.
    #[serde(default)]
    pub http_listen: Listen,
    /// Address for visitors of http tunnels by HTTPS, or `off`.
    #[serde(default)]
    pub https_listen: Listen,
    /// The port of `http_listen` as visitors see it, where a firewall or load balancer maps it (default: its own).
    #[serde(default)]
    pub http_port: Option<u16>,
    /// The port of `https_listen` as visitors see it (default: its own).
    #[serde(default)]
    pub https_port: Option<u16>,
    /// Networks of proxies in front of the node. On public ports their connections must begin with a header of the PROXY protocol; on `http_listen` and `https_listen` they may, and their `X-Forwarded-For`, `-Proto` and `-Port` are believed.
    #[serde(default)]
    pub trusted_proxies: Vec<IpNet>,
    #[serde(default)]
    pub http: HttpConfig,
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
    /// Visitors of UDP ports at the same time, of all tunnels. The oldest that sent a single datagram goes for a new one.
    #[serde(default = "NodeConfig::default_flows")]
    pub flows: usize,
    /// Of these, visitors of one tunnel.
    #[serde(default = "NodeConfig::default_flows_per_tunnel")]
    pub flows_per_tunnel: usize,
    /// Of these, ports of one address (IPv6: of a /64).
    #[serde(default = "NodeConfig::default_flows_per_address")]
    pub flows_per_address: usize,
    /// New visitors of one tunnel's UDP ports in a second.
    #[serde(default = "NodeConfig::default_new_flows_per_second")]
    pub new_flows_per_second: usize,
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

/// What becomes of the tunnels of a node whose host is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeReplace {
    /// They wait for it, or for somebody who moves them.
    #[default]
    Off,
    /// They go to any other node.
    Any,
}

impl NodeConfig {
    /// The port of `http_listen` as visitors see it.
    pub fn public_http_port(&self) -> Option<u16> {
        self.http_port.or(self.http_listen.address().map(|listen| listen.port()))
    }

    /// The port of `https_listen` as visitors see it.
    pub fn public_https_port(&self) -> Option<u16> {
        self.https_port.or(self.https_listen.address().map(|listen| listen.port()))
    }

    /// Where agents come by QUIC.
    pub fn udp_address(&self) -> Option<SocketAddr> {
        self.udp_listen.unwrap_or(Listen::At(self.listen)).address()
    }

    fn default_visitors() -> usize {
        20_000
    }

    fn default_visitors_per_tunnel() -> usize {
        1000
    }

    fn default_visitors_per_address() -> usize {
        100
    }

    fn default_flows() -> usize {
        100_000
    }

    fn default_flows_per_tunnel() -> usize {
        4096
    }

    fn default_flows_per_address() -> usize {
        256
    }

    fn default_new_flows_per_second() -> usize {
        200
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
}

impl Default for NodeConfig {
    fn default() -> Self {
        Self {
            hostname: "127.0.0.1".into(),
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 7835)),
            udp_listen: None,
            bind: Ipv4Addr::LOCALHOST.into(),
            domain: Some("tunnel.localhost".into()),
            http_listen: Listen::At(SocketAddr::from((Ipv4Addr::LOCALHOST, 8081))),
            https_listen: Listen::At(SocketAddr::from((Ipv4Addr::LOCALHOST, 8443))),
            http_port: None,
            https_port: None,
            trusted_proxies: Vec::new(),
            http: HttpConfig::default(),
            ports: PortRange { first: 20_000, last: 29_999 },
            visitors: Self::default_visitors(),
            visitors_per_tunnel: Self::default_visitors_per_tunnel(),
            visitors_per_address: Self::default_visitors_per_address(),
            flows: Self::default_flows(),
            flows_per_tunnel: Self::default_flows_per_tunnel(),
            flows_per_address: Self::default_flows_per_address(),
            new_flows_per_second: Self::default_new_flows_per_second(),
            buffer_mib: Self::default_buffer_mib(),
            descriptor_reserve: Self::default_descriptor_reserve(),
            unproven: Self::default_unproven(),
            unproven_per_address: Self::default_unproven_per_address(),
        }
    }
}

/// What a visitor of http tunnels may take.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HttpConfig {
    /// Connections from one address (IPv6: a /64) at the same time.
    pub connections_per_address: usize,
    /// TLS handshakes of one address (IPv6: a /64) in a second; one more is reset.
    pub handshakes_per_second: usize,
    /// Milliseconds for a TLS handshake.
    pub handshake_timeout_ms: u64,
    /// Milliseconds until the first byte of a connection of HTTP/1.1, after its TLS handshake.
    pub first_byte_timeout_ms: u64,
    /// Milliseconds from the first byte of a request of HTTP/1.1 until its head is complete.
    pub header_timeout_ms: u64,
    /// Milliseconds after which a connection without a request is closed.
    pub keep_alive_ms: u64,
    /// KiB of a request's head.
    pub header_kib: usize,
    /// Fields of a request's head.
    pub header_count: usize,
    /// KiB of a request's target.
    pub uri_kib: usize,
    /// Requests on one connection of HTTP/2 at the same time.
    pub h2_streams: u32,
    /// KiB that a visitor may send ahead for one request of HTTP/2.
    pub h2_stream_window_kib: u32,
    /// KiB that a visitor may send ahead on one connection of HTTP/2.
    pub h2_connection_window_kib: u32,
    /// Connections to local services that are kept for the next request, of HTTP/1.1 and as many of HTTP/2.
    pub upstream_connections: usize,
    /// Milliseconds that each is kept.
    pub upstream_idle_ms: u64,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            connections_per_address: 256,
            handshakes_per_second: 50,
            handshake_timeout_ms: 10_000,
            first_byte_timeout_ms: 10_000,
            header_timeout_ms: 15_000,
            keep_alive_ms: 75_000,
            header_kib: 32,
            header_count: 100,
            uri_kib: 16,
            h2_streams: 128,
            h2_stream_window_kib: 256,
            h2_connection_window_kib: 4096,
            upstream_connections: 256,
            upstream_idle_ms: 60_000,
        }
    }
}

impl HttpConfig {
    /// Each setting with its value and the values that it may have.
    pub(super) fn bounds(&self) -> [(&'static str, u64, RangeInclusive<u64>); 14] {
        let any = 1..=u64::from(u32::MAX);
        // RFC 9113, section 6.5.2: windows are below 2 GiB.
        let window = 64..=2_097_151;
        [
            ("connections_per_address", self.connections_per_address as u64, any.clone()),
            ("handshakes_per_second", self.handshakes_per_second as u64, any.clone()),
            ("handshake_timeout_ms", self.handshake_timeout_ms, any.clone()),
            ("first_byte_timeout_ms", self.first_byte_timeout_ms, any.clone()),
            ("header_timeout_ms", self.header_timeout_ms, any.clone()),
            ("keep_alive_ms", self.keep_alive_ms, any.clone()),
            ("header_kib", self.header_kib as u64, 8..=1024),
            ("header_count", self.header_count as u64, 16..=4096),
            ("uri_kib", self.uri_kib as u64, 1..=63),
            ("h2_streams", self.h2_streams.into(), 1..=65_535),
            ("h2_stream_window_kib", self.h2_stream_window_kib.into(), window.clone()),
            ("h2_connection_window_kib", self.h2_connection_window_kib.into(), window),
            ("upstream_connections", self.upstream_connections as u64, 0..=u64::from(u32::MAX)),
            ("upstream_idle_ms", self.upstream_idle_ms, any),
        ]
    }

    /// The same for a node.
    pub fn limits(&self) -> WebLimits {
        WebLimits {
            connections_per_address: self.connections_per_address,
            handshakes_per_second: self.handshakes_per_second,
            handshake_timeout: Duration::from_millis(self.handshake_timeout_ms),
            first_byte_timeout: Duration::from_millis(self.first_byte_timeout_ms),
            header_timeout: Duration::from_millis(self.header_timeout_ms),
            keep_alive: Duration::from_millis(self.keep_alive_ms),
            header_bytes: self.header_kib * 1024,
            header_count: self.header_count,
            uri_bytes: self.uri_kib * 1024,
            h2_streams: self.h2_streams,
            h2_stream_window: self.h2_stream_window_kib * 1024,
            h2_connection_window: self.h2_connection_window_kib * 1024,
            upstream_connections: self.upstream_connections,
            upstream_idle: Duration::from_millis(self.upstream_idle_ms),
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
