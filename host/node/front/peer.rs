//! Whom a visitor's request is from, and how it came.

use std::net::SocketAddr;

use culvert_wire::client_network::{client_address, is_trusted};
use hyper::header::{HeaderMap, HeaderValue};
use ipnet::IpNet;

use super::scheme::Scheme;

/// One end of a visitor's connection, and how it is spoken on.
#[derive(Clone, Copy)]
pub(super) struct Peer {
    pub address: SocketAddr,
    /// The node's address that the visitor came to.
    pub local: SocketAddr,
    pub scheme: Scheme,
    /// The port as the visitor sees it.
    pub port: u16,
}

impl Peer {
    /// Whom a request is from and how it came, where a trusted proxy in front of the node says so.
    pub(super) fn behind(self, headers: &HeaderMap, trusted: &[IpNet]) -> Self {
        if !is_trusted(self.address.ip(), trusted) {
            return self;
        }
        let values = |name| headers.get_all(name).iter();
        let ip = client_address(self.address.ip(), values("x-forwarded-for").map(HeaderValue::as_bytes), trusted);
        // The nearest proxy has written the last value.
        let said = |name| values(name).next_back()?.to_str().ok()?.rsplit(',').next().map(str::trim);
        let scheme = match said("x-forwarded-proto") {
            Some("https") => Scheme::Https,
            Some("http") => Scheme::Http,
            _ => self.scheme,
        };
        let usual = if scheme == self.scheme { self.port } else { scheme.usual_port() };
        let port = said("x-forwarded-port").and_then(|port| port.parse().ok()).unwrap_or(usual);
        Self { address: SocketAddr::new(ip, 0), scheme, port, ..self }
    }
}
