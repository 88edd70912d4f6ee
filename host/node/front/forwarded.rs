//! The headers that tell a service whom a request is from (RFC 7239, and those that came before it).

use std::net::IpAddr;
use std::sync::Arc;

use hyper::header::{FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue};

use super::peer::Peer;
use super::scheme::Scheme;

/// The values for one visitor and one name. They are made once for the requests of a connection.
pub(super) struct Forwarded {
    of: (IpAddr, Scheme, u16),
    name: String,
    values: Vec<(HeaderName, HeaderValue)>,
}

impl Forwarded {
    pub(super) fn new(peer: Peer, name: &str) -> Arc<Self> {
        let ip = peer.address.ip().to_canonical();
        // RFC 7239, section 6: an IPv6 address is quoted and in brackets.
        let node = match ip {
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("\"[{ip}]\""),
        };
        let values = [
            (HeaderName::from_static("x-forwarded-for"), ip.to_string()),
            (HeaderName::from_static("x-forwarded-proto"), peer.scheme.as_str().into()),
            (HeaderName::from_static("x-forwarded-port"), peer.port.to_string()),
            (FORWARDED, format!("for={node};host=\"{name}\";proto={}", peer.scheme.as_str())),
        ];
        let values = values.into_iter().filter_map(|(name, value)| Some((name, HeaderValue::try_from(value).ok()?)));
        Arc::new(Self { of: whom(peer), name: name.into(), values: values.collect() })
    }

    /// Whether these are the values for this visitor and this name.
    pub(super) fn is_of(&self, peer: Peer, name: &str) -> bool {
        self.of == whom(peer) && self.name == name
    }

    /// Sets the headers.
    pub(super) fn insert(&self, headers: &mut HeaderMap) {
        for (name, value) in &self.values {
            headers.insert(name, value.clone());
        }
        if let Some(host) = headers.get(HOST).cloned() {
            headers.insert("x-forwarded-host", host);
        }
    }
}

fn whom(peer: Peer) -> (IpAddr, Scheme, u16) {
    (peer.address.ip(), peer.scheme, peer.port)
}
