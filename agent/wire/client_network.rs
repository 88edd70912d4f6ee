//! The client behind an address, for limits that count clients, visitors or agents by address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::IpNet;

/// The network that counts as one client: an IPv4 address itself, or the /64 of an IPv6 address.
pub fn prefix(address: IpAddr) -> IpAddr {
    network(address, 32, 64)
}

/// The first address of an address's network, with the prefix length `v4` or `v6` of its family.
pub fn network(address: IpAddr, v4: u32, v6: u32) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => {
            IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() & !u32::MAX.checked_shr(v4).unwrap_or(0)))
        }
        IpAddr::V6(address) => {
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::MAX.checked_shr(v6).unwrap_or(0)))
        }
    }
}

/// An address in the notation of IPv6 (RFC 4291, section 2.5.5.2).
pub fn as_v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

/// Whether an address is a trusted proxy's, which brings the requests of many clients.
pub fn is_trusted(address: IpAddr, trusted: &[IpNet]) -> bool {
    let address = address.to_canonical();
    trusted.iter().any(|network| network.contains(&address))
}

/// The client's address: the peer's own, or the one that trusted proxies report. `forwarded` are the
/// values of the `X-Forwarded-For` headers, in their order. What a client has put before may be no text.
pub fn client_address<'a>(peer: IpAddr, forwarded: impl Iterator<Item = &'a [u8]>, trusted: &[IpNet]) -> IpAddr {
    let peer = peer.to_canonical();
    if !is_trusted(peer, trusted) {
        return peer;
    }
    // Each proxy appends the address from which it received the request.
    let hops: Vec<&[u8]> = forwarded.flat_map(|list| list.split(|byte| *byte == b',')).collect();
    let mut client = peer;
    for hop in hops.iter().rev() {
        let Some(address) = address_of_hop(hop) else { break };
        client = address.to_canonical();
        if !is_trusted(client, trusted) {
            break;
        }
    }
    client
}

/// An address, with or without a port.
fn address_of_hop(hop: &[u8]) -> Option<IpAddr> {
    let hop = std::str::from_utf8(hop).ok()?.trim();
    hop.parse().ok().or_else(|| hop.parse().ok().map(|address: SocketAddr| address.ip()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_is_the_last_address_that_is_no_proxy() {
        let trusted: Vec<IpNet> = vec!["10.0.0.0/8".parse().unwrap()];
        let of = |peer: &str, forwarded: &[&[u8]]| {
            client_address(peer.parse().unwrap(), forwarded.iter().copied(), &trusted).to_string()
        };
        assert_eq!(of("192.0.2.1", &[b"198.51.100.7"]), "192.0.2.1");
        assert_eq!(of("10.0.0.1", &[b"192.0.2.9, 198.51.100.7", b"10.0.0.2"]), "198.51.100.7");
        // What the client itself has sent hides nothing.
        assert_eq!(of("10.0.0.1", &[b"\xff, 198.51.100.7"]), "198.51.100.7");
        assert_eq!(of("10.0.0.1", &[b"198.51.100.7:4711"]), "198.51.100.7");
        assert_eq!(of("10.0.0.1", &[b"[2001:db8::1]:80"]), "2001:db8::1");
    }

    #[test]
    fn client_prefix_is_ipv4_address_or_ipv6_64_network() {
        let of = |text: &str| prefix(text.parse().unwrap()).to_string();
        assert_eq!(of("192.0.2.1"), "192.0.2.1");
        assert_eq!(of("::ffff:192.0.2.1"), "192.0.2.1");
        assert_eq!(of("2001:db8:1:2:3::4"), "2001:db8:1:2::");
        assert_eq!(network("192.0.2.1".parse().unwrap(), 24, 48).to_string(), "192.0.2.0");
        assert_eq!(network("2001:db8:1:2:3::4".parse().unwrap(), 24, 48).to_string(), "2001:db8:1::");
    }
}
