//! The headers by which a local service is told who a visitor is: PROXY protocol, versions 1 and 2
//! (<https://www.haproxy.org/download/2.9/doc/proxy-protocol.txt>), and Simple Proxy Protocol
//! (<https://developers.cloudflare.com/spectrum/reference/simple-proxy-protocol-header>).

use std::net::SocketAddr;

use culvert_wire::client_network::as_v6;
use culvert_wire::data2::datagram::Open;
use culvert_wire::data2::visit::Visit;
use culvert_wire::target::ProxyProtocol;
use proxy_header::{ProxiedAddress, ProxyHeader, Tlv};

/// The first bytes of Simple Proxy Protocol.
const SPP_MAGIC: [u8; 2] = [0x56, 0xEC];
/// Its length: magic, two addresses, two ports.
const SPP_LENGTH: usize = 38;
/// Characters of a name that are passed on, at most: those of a host name.
const LONGEST_NAME: usize = 255;

/// What precedes the bytes of a connection.
pub(crate) fn of_visit(protocol: ProxyProtocol, visit: &Visit) -> Option<Vec<u8>> {
    let (visitor, local) = of_one_family(visit.visitor, visit.local);
    let addresses = ProxiedAddress::stream(visitor, local);
    let mut bytes = Vec::new();
    let encoded = match protocol {
        ProxyProtocol::V1 => ProxyHeader::with_address(addresses).encode_v1(&mut bytes),
        ProxyProtocol::V2 => {
            let name = visit.name.as_deref().filter(|name| name.len() <= LONGEST_NAME);
            let authority = name.map(|name| Tlv::Authority(name.into()));
            let id = Tlv::UniqueId(visit.visit.to_string().into_bytes().into());
            ProxyHeader::with_tlvs(Some(addresses), authority.into_iter().chain([id])).encode_v2(&mut bytes)
        }
        ProxyProtocol::None | ProxyProtocol::Spp | ProxyProtocol::Other => return None,
    };
    encoded.ok().map(|()| bytes)
}

/// What precedes the datagrams of a flow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum FlowHeader {
    #[default]
    None,
    /// Of the first datagram that the service gets.
    First { bytes: Vec<u8>, is_sent: bool },
    /// Of each datagram. A service that answers in the same form begins with the same bytes.
    Each([u8; SPP_LENGTH]),
}

impl FlowHeader {
    pub(crate) fn of(protocol: ProxyProtocol, open: &Open) -> Self {
        match protocol {
            ProxyProtocol::V2 => {
                let (visitor, local) = of_one_family(open.visitor, open.local);
                let mut bytes = Vec::new();
                let header = ProxyHeader::with_address(ProxiedAddress::datagram(visitor, local));
                header.encode_v2(&mut bytes).map_or(Self::None, |()| Self::First { bytes, is_sent: false })
            }
            ProxyProtocol::Spp => Self::Each(spp(open.visitor, open.local)),
            ProxyProtocol::None | ProxyProtocol::V1 | ProxyProtocol::Other => Self::None,
        }
    }

    /// What precedes the next datagram.
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::None | Self::First { is_sent: true, .. } => &[],
            Self::First { bytes, .. } => bytes,
            Self::Each(bytes) => bytes,
        }
    }

    /// A datagram was sent, or (`false`) nobody has taken those before.
    pub(crate) fn note_sent(&mut self, sent: bool) {
        if let Self::First { is_sent, .. } = self {
            *is_sent = sent;
        }
    }

    /// The length of the header at the begin of an answer.
    pub(crate) fn length_in(&self, answer: &[u8]) -> usize {
        match self {
            Self::Each(bytes) if answer.starts_with(bytes) => SPP_LENGTH,
            _ => 0,
        }
    }
}

fn spp(visitor: SocketAddr, local: SocketAddr) -> [u8; SPP_LENGTH] {
    let mut header = [0; SPP_LENGTH];
    header[..2].copy_from_slice(&SPP_MAGIC);
    header[2..18].copy_from_slice(&as_v6(visitor.ip()).octets());
    header[18..34].copy_from_slice(&as_v6(local.ip()).octets());
    header[34..36].copy_from_slice(&visitor.port().to_be_bytes());
    header[36..].copy_from_slice(&local.port().to_be_bytes());
    header
}

/// Both addresses in one family: as IPv6 if they are of two (RFC 4291, section 2.5.5.2).
fn of_one_family(visitor: SocketAddr, local: SocketAddr) -> (SocketAddr, SocketAddr) {
    let canonical = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
    let (visitor, local) = (canonical(visitor), canonical(local));
    if visitor.is_ipv4() == local.is_ipv4() {
        return (visitor, local);
    }
    let in_v6 = |address: SocketAddr| SocketAddr::new(as_v6(address.ip()).into(), address.port());
    (in_v6(visitor), in_v6(local))
}

#[cfg(test)]
mod tests {
    use super::*;
    use culvert_wire::data2::visit::VisitKind;
    use proxy_header::{ParseConfig, Protocol};
    use uuid::Uuid;

    fn visit(visitor: &str, local: &str, name: Option<&str>) -> Visit {
        Visit {
            visit: 7,
            tunnel_id: Uuid::nil(),
            epoch: 1,
            port_id: None,
            visitor: visitor.parse().unwrap(),
            local: local.parse().unwrap(),
            kind: VisitKind::Tcp,
            name: name.map(String::from),
            alpn: None,
            waiting: 0,
        }
    }

    #[test]
    fn version_1_is_a_line() {
        let line = |visit| String::from_utf8(of_visit(ProxyProtocol::V1, &visit).unwrap()).unwrap();
        assert_eq!(
            line(visit("192.0.2.1:5000", "198.51.100.2:443", None)),
            "PROXY TCP4 192.0.2.1 198.51.100.2 5000 443\r\n"
        );
        assert_eq!(line(visit("[2001:db8::1]:1", "[::1]:80", None)), "PROXY TCP6 2001:db8::1 ::1 1 80\r\n");
        assert_eq!(
            line(visit("192.0.2.1:5000", "[2001:db8::2]:443", None)),
            "PROXY TCP6 ::ffff:192.0.2.1 2001:db8::2 5000 443\r\n"
        );
    }

    #[test]
    fn version_2_tells_name_and_visit() {
        let bytes =
            of_visit(ProxyProtocol::V2, &visit("192.0.2.1:5000", "198.51.100.2:443", Some("a.example"))).unwrap();
        let config = ParseConfig { include_tlvs: true, ..ParseConfig::default() };
        let (header, length) = ProxyHeader::parse(&bytes, config).unwrap();
        let addresses = header.proxied_address().unwrap();
        assert_eq!((addresses.protocol, length), (Protocol::Stream, bytes.len()));
        assert_eq!(addresses.source.to_string(), "192.0.2.1:5000");
        assert_eq!(addresses.destination.to_string(), "198.51.100.2:443");
        assert_eq!((header.authority(), header.unique_id()), (Some("a.example"), Some(&b"7"[..])));
    }

    #[test]
    fn simple_header_has_38_bytes() {
        let header = spp("192.0.2.1:258".parse().unwrap(), "[2001:db8::2]:772".parse().unwrap());
        let expected = 0x56ec_0000_0000_0000_0000_0000_ffff_c000_u128.to_be_bytes();
        assert_eq!(header[..16], expected);
        assert_eq!(header[16..18], [2, 1]);
        assert_eq!(header[18..34], 0x2001_0db8_0000_0000_0000_0000_0000_0002_u128.to_be_bytes());
        assert_eq!(header[34..], [1, 2, 3, 4]);
        let mut each = FlowHeader::Each(header);
        each.note_sent(true);
        assert_eq!((each.bytes().len(), each.length_in(&header), each.length_in(&header[1..])), (38, 38, 0));
    }
}
