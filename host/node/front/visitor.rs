//! A visitor's connection, as its requests see it.

use std::net::SocketAddr;
use std::sync::Arc;

use culvert_wire::client_network::{client_address, is_trusted};
use hyper::header::{HeaderMap, HeaderValue};
use ipnet::IpNet;

use super::addresses::Entry;
use super::certificates::Held;
use super::exchanges::Exchanges;
use super::phase::ConnectionPhase;
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

/// A visitor's connection. It is counted for its address as long as anything of it is there, a WebSocket too.
pub(super) struct VisitorConnection {
    pub peer: Peer,
    /// The certificate that the visitor was shown; `None` in the clear.
    pub shown: Option<Arc<Held>>,
    pub version: HttpVersion,
    /// `None` for a trusted proxy, which is not counted.
    pub _entry: Option<Entry>,
}

/// What an exchange needs of its connection, by the version of HTTP.
pub(super) enum HttpVersion {
    /// One exchange at a time: to cut it, the connection is cut.
    Http1(Arc<ConnectionPhase>),
    /// Many exchanges at a time: each is cut alone.
    Http2(Arc<Exchanges>),
}

impl VisitorConnection {
    /// The phase of a connection of HTTP/1.1.
    pub(super) fn phase(&self) -> Option<&Arc<ConnectionPhase>> {
        match &self.version {
            HttpVersion::Http1(phase) => Some(phase),
            HttpVersion::Http2(_) => None,
        }
    }

    /// Whether requests for a name may come on this connection: what was shown must prove it, whatever name the handshake
    /// was for.
    pub(super) fn proves(&self, name: &str) -> bool {
        self.shown.as_ref().is_none_or(|shown| shown.covers(name))
    }
}
