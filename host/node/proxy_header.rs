//! What a trusted proxy in front says about a visitor before the first byte (PROXY protocol, versions 1 and 2:
//! <https://www.haproxy.org/download/2.9/doc/proxy-protocol.txt>). Nobody else's header is read.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use culvert_wire::clock::Clock;
use proxy_header::{Error, ParseConfig, ProxyHeader};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use crate::peek::peek;

/// How long a proxy may take to send its header.
const WITHIN: Duration = Duration::from_secs(3);
/// Bytes of a header, at most.
const LONGEST: usize = 1024;

/// Who a visitor is, and the address that they came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Proxied {
    pub visitor: SocketAddr,
    pub local: SocketAddr,
}

/// What a connection begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begin {
    Header(Proxied),
    /// A header that names nobody, as health checks of proxies have it.
    Anonymous,
    /// Something else.
    NoHeader,
    /// Nothing has come in time.
    Silence,
}

/// Reads the header, and not a byte more.
///
/// # Errors
///
/// `TimedOut` if the header is not whole in time; `InvalidData` if it is not well formed.
pub(crate) async fn read(stream: &mut TcpStream, clock: &Clock) -> io::Result<Begin> {
    let reading = async {
        let (begin, length) = peek(stream, LONGEST, look).await?;
        // It was seen, so it is there.
        stream.read_exact(&mut vec![0; length]).await?;
        Ok(begin)
    };
    match clock.timeout(WITHIN, reading).await {
        Ok(read) => read,
        Err(_) if is_silent(stream) => Ok(Begin::Silence),
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

fn is_silent(stream: &TcpStream) -> bool {
    let looked = recv(stream, &mut [0; 1][..], RecvFlags::PEEK | RecvFlags::DONTWAIT);
    looked.is_err_and(|error| error == Errno::WOULDBLOCK)
}

/// What the first bytes are. `WouldBlock` if they are too few to tell.
fn look(bytes: &[u8]) -> io::Result<(Begin, usize)> {
    if !begins_header(bytes) {
        return Ok((Begin::NoHeader, 0));
    }
    let config = ParseConfig { include_tlvs: false, ..ParseConfig::default() };
    match ProxyHeader::parse(bytes, config) {
        Ok((header, length)) => {
            let proxied = header.proxied_address();
            let begin = proxied.map_or(Begin::Anonymous, |addresses| {
                Begin::Header(Proxied { visitor: addresses.source, local: addresses.destination })
            });
            Ok((begin, length))
        }
        Err(Error::BufferTooShort) if bytes.len() < LONGEST && !is_whole(bytes) => {
            Err(io::ErrorKind::WouldBlock.into())
        }
        Err(_) => Err(io::ErrorKind::InvalidData.into()),
    }
}

const V1: &[u8] = b"PROXY ";
const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// Whether a header is there up to its end. What the parser wants beyond it never comes.
fn is_whole(bytes: &[u8]) -> bool {
    if bytes.starts_with(V1) {
        return bytes.windows(2).any(|pair| pair == b"\r\n");
    }
    // Signature, version and family, length.
    bytes.get(14..16).is_some_and(|length| bytes.len() >= 16 + usize::from(u16::from_be_bytes([length[0], length[1]])))
}

/// Whether bytes are the begin of a header, as far as they go. No request and no TLS begins so.
fn begins_header(bytes: &[u8]) -> bool {
    [V1, V2].iter().any(|begin| bytes.starts_with(begin) || begin.starts_with(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIGNATURE: &[u8] = V2;

    fn looked(bytes: &[u8]) -> Result<(Begin, usize), io::ErrorKind> {
        look(bytes).map_err(|error| error.kind())
    }

    #[test]
    fn header_is_taken_exactly() {
        let named = |visitor: &str, local: &str| {
            Begin::Header(Proxied { visitor: visitor.parse().unwrap(), local: local.parse().unwrap() })
        };
        let v1 = b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n";
        assert_eq!(looked(&[v1, &b"GET /"[..]].concat()), Ok((named("192.0.2.1:1", "192.0.2.2:2"), v1.len())));
        let v2 = [SIGNATURE, b"\x21\x11\0\x0c\xc0\0\x02\x01\xc0\0\x02\x02\0\x01\0\x02"].concat();
        assert_eq!(looked(&[&v2[..], b"\x16\x03"].concat()), Ok((named("192.0.2.1:1", "192.0.2.2:2"), v2.len())));
        assert_eq!(looked(b"PROXY UNKNOWN\r\nhello"), Ok((Begin::Anonymous, 15)));
        assert_eq!(looked(&[SIGNATURE, b"\x20\0\0\0"].concat()), Ok((Begin::Anonymous, 16)));
        assert_eq!(looked(b"GET / HTTP/1.1\r\n"), Ok((Begin::NoHeader, 0)));
        assert_eq!(looked(b"\x16\x03\x01"), Ok((Begin::NoHeader, 0)));
        for cut in 1..v1.len() {
            assert_eq!(looked(&v1[..cut]), Err(io::ErrorKind::WouldBlock), "{cut}");
        }
        for cut in 1..v2.len() {
            assert_eq!(looked(&v2[..cut]), Err(io::ErrorKind::WouldBlock), "{cut}");
        }
    }

    #[test]
    fn malformed_header_is_refused() {
        for wrong in [
            b"PROXY TCP4 192.0.2.1\r\n".to_vec(),
            b"PROXY TCP4 192.0.2.1 192.0.2.2 1 65536\r\n".to_vec(),
            b"PROXY TCP4 2001:db8::1 192.0.2.2 1 2\r\n".to_vec(),
            [&b"PROXY "[..], &[b'x'; LONGEST]].concat(),
            [SIGNATURE, b"\x31\x11\0\x0c", &[1; 12]].concat(),
            [SIGNATURE, b"\x21\x11\0\x04", &[1; 4]].concat(),
            [SIGNATURE, b"\x21\x11\xff\xff", &[1; LONGEST]].concat(),
        ] {
            assert_eq!(looked(&wrong), Err(io::ErrorKind::InvalidData), "{}", wrong.escape_ascii());
        }
    }
}
