//! Whether a host is this machine, for what may go in the clear there alone.

use std::net::IpAddr;

/// Whether the host of a URL is `localhost` or a loopback address; that of IPv6 may stand in brackets (RFC 3986, section
/// 3.2.2).
pub fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.trim_matches(['[', ']']).parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::is_loopback;

    #[test]
    fn loopback_is_by_name_or_address() {
        for host in ["localhost", "127.0.0.1", "127.9.9.9", "::1", "[::1]"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in ["", "localhost.example.com", "192.0.2.1", "[2001:db8::1]", "0.0.0.0"] {
            assert!(!is_loopback(host), "{host}");
        }
    }
}
