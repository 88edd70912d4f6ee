//! How visitors are passed on to a local service.

use culvert_wire::target::TLS_PORTS;

use super::protocol::Protocol;
use super::string_enum::string_enum;

string_enum! {
    /// The protocol that is spoken to the local service.
    LocalScheme {
        /// `https` for the ports 443 and 8443, else `http`.
        Auto "auto",
        /// HTTP/1.1, and HTTP/2 for gRPC, without TLS.
        Http "http",
        /// HTTP/2 or HTTP/1.1 over TLS, as the service chooses.
        Https "https",
        /// HTTP/2 by prior knowledge (RFC 9113, section 3.3).
        H2c "h2c",
    }
}

string_enum! {
    /// How the local service is told who a visitor is.
    ProxyProtocol {
        None "none",
        /// A line of text (PROXY protocol, version 1).
        V1 "v1",
        /// PROXY protocol, version 2.
        V2 "v2",
        /// Simple Proxy Protocol: 38 bytes before each datagram.
        Spp "spp",
    }
}

/// How the service of a tunnel is spoken to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalService {
    /// The Host header of requests; `None` for the visitor's own.
    pub host_header: Option<String>,
    pub scheme: LocalScheme,
    /// Whether its certificate is verified; `None`: unless its address is loopback or private.
    pub tls_verify: Option<bool>,
    pub proxy_protocol: ProxyProtocol,
    /// Whether visitors make TLS with the service itself.
    pub tls_passthrough: bool,
}

impl Default for LocalService {
    fn default() -> Self {
        Self {
            host_header: None,
            scheme: LocalScheme::Auto,
            tls_verify: None,
            proxy_protocol: ProxyProtocol::None,
            tls_passthrough: false,
        }
    }
}

impl LocalService {
    /// What is wrong with it for a tunnel of a protocol: fields and messages. The defaults are fine for all, so that what
    /// was read can be written back.
    pub fn faults(&self, protocol: Protocol, has_basic_auth: bool) -> Vec<(&'static str, String)> {
        let is_http = protocol == Protocol::Http;
        let mut faults = Vec::new();
        let mut check = |holds: bool, field, message: &str| {
            if !holds {
                faults.push((field, message.to_owned()));
            }
        };
        match &self.host_header {
            Some(_) if !is_http => check(false, "host_header", "is for http tunnels only"),
            Some(text) => host_header_fault(text).into_iter().for_each(|fault| check(false, "host_header", fault)),
            None => {}
        }
        let is_auto = self.scheme == LocalScheme::Auto;
        check(is_http || is_auto, "local_scheme", "must be `auto`: any other value is for http tunnels only");
        check(is_http || self.tls_verify.is_none(), "local_tls_verify", "must be null: it is for http tunnels only");
        let known = ProxyProtocol::of(protocol);
        let list = known.iter().map(|known| format!("`{known}`")).collect::<Vec<_>>().join(", ");
        let message = format!("must be one of {list} for {protocol} tunnels");
        check(known.contains(&self.proxy_protocol), "proxy_protocol", &message);
        let message = "must be false: it is for http tunnels only";
        check(is_http || !self.tls_passthrough, "tls_passthrough", message);
        let message = "must be false with basic auth: the node does not see the requests";
        check(!(is_http && self.tls_passthrough && has_basic_auth), "tls_passthrough", message);
        faults
    }
}

impl LocalScheme {
    /// Whether a service on a port of the device is spoken to over TLS.
    pub fn uses_tls(self, port: u16) -> bool {
        match self {
            Self::Auto => TLS_PORTS.contains(&port),
            Self::Https => true,
            Self::Http | Self::H2c => false,
        }
    }
}

impl ProxyProtocol {
    /// Those that have a form for a tunnel of this protocol.
    fn of(protocol: Protocol) -> &'static [Self] {
        match protocol {
            Protocol::Tcp | Protocol::Http => &[Self::None, Self::V1, Self::V2],
            Protocol::Udp => &[Self::None, Self::V2, Self::Spp],
            Protocol::Both => &[Self::None, Self::V2],
        }
    }
}

/// Characters of a Host header.
const MOST: usize = 255;

/// The name or address of a Host header, without the port and without brackets.
pub fn host_of(host_header: &str) -> &str {
    let host = split_port(host_header).0;
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

fn split_port(host_header: &str) -> (&str, Option<&str>) {
    match host_header.rsplit_once(':') {
        Some((name, port)) if !name.ends_with(':') && (!name.contains(':') || name.ends_with(']')) => {
            (name, Some(port))
        }
        _ => (host_header, None),
    }
}

/// What is wrong with a text as the Host header (RFC 9110, section 7.2) of requests to a service.
fn host_header_fault(text: &str) -> Option<&'static str> {
    let (name, port) = split_port(text);
    let in_brackets = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    let is_name = match in_brackets {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_')),
    };
    let is_port =
        |port: &str| port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0);
    let fits = text.len() <= MOST && is_name && port.is_none_or(is_port);
    (!fits).then_some(
        "must be a host name or an address, with a port or without, of at most 255 characters: app.internal:8080",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_header_is_a_name_with_a_port_or_without() {
        for good in ["app", "app.internal", "app.internal:8080", "10.0.0.5:80", "[::1]", "[::1]:80", "my_app"] {
            assert_eq!(host_header_fault(good), None, "{good}");
        }
        assert_eq!(["app:80", "[::1]:80", "[::1]", "10.0.0.5"].map(host_of), ["app", "::1", "::1", "10.0.0.5"]);
        let long = "a".repeat(256);
        for bad in [
            "",
            ":80",
            "app:",
            "app:0",
            "app:65536",
            "app:+1",
            "a b",
            "user@app",
            "app/",
            "::1",
            "[::1",
            "a\r\nb",
            "ä",
            &long,
        ] {
            assert!(host_header_fault(bad).is_some(), "{bad}");
        }
    }
}
