//! How a node speaks to the local service of an http tunnel.

use super::string_enum::string_enum;

string_enum! {
    /// The protocol that is spoken to the local service.
    LocalScheme {
        /// HTTP/1.1, and HTTP/2 for gRPC.
        Auto "auto",
        /// HTTP/1.1, and HTTP/2 for gRPC, whatever the port.
        Http "http",
        /// HTTP/2 by prior knowledge (RFC 9113, section 3.3).
        H2c "h2c",
    }
}

/// Characters of a Host header.
const MOST: usize = 255;

/// What is wrong with a text as the Host header (RFC 9110, section 7.2) of requests to a service.
pub fn host_header_fault(text: &str) -> Option<&'static str> {
    let (name, port) = match text.rsplit_once(':') {
        Some((name, port)) if !name.ends_with(':') && (!name.contains(':') || name.ends_with(']')) => {
            (name, Some(port))
        }
        _ => (text, None),
    };
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
