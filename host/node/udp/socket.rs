//! The socket of a public UDP port: reads and writes many datagrams at a time, and answers from the address that a visitor
//! has sent to.

use std::cell::RefCell;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};

use culvert_wire::client_network::as_v6;
use culvert_wire::socket;
use quinn::udp::{BATCH_SIZE, RecvMeta, Transmit, UdpSocketState};
use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};
use tokio::io::Interest;
use tokio::net::UdpSocket;

/// Datagrams that are read at once, and the bytes of each: several may come as one (generic receive offload).
const BATCH: usize = if BATCH_SIZE < 8 { BATCH_SIZE } else { 8 };
const LONGEST: usize = 65_535;
/// Bytes of the socket's buffers, in either direction.
const BUFFER: usize = 1 << 20;

thread_local! {
    /// What is read, for all ports whose tasks run on a thread.
    static SPACE: RefCell<Vec<u8>> = RefCell::new(vec![0; BATCH * LONGEST]);
}

pub(super) struct PublicSocket {
    io: UdpSocket,
    state: UdpSocketState,
    is_v6: bool,
}

/// A datagram that came from a visitor.
pub(super) struct Received<'a> {
    pub from: SocketAddr,
    /// The address that it was sent to.
    pub to: Option<IpAddr>,
    pub payload: &'a [u8],
}

impl PublicSocket {
    /// # Errors
    ///
    /// Where the address cannot be bound.
    pub(super) fn bind(address: SocketAddr) -> io::Result<Self> {
        let (socket, _) = socket::bind_udp(address, BUFFER)?;
        let state = UdpSocketState::new((&socket).into())?;
        // Answers of any length are for the visitor to take: the path may fragment them. QUIC's own setting forbids it.
        if address.is_ipv4() {
            sockopt::set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::DONT)?;
        } else {
            sockopt::set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::DONT)?;
        }
        socket.set_nonblocking(true)?;
        Ok(Self { io: UdpSocket::from_std(socket)?, state, is_v6: address.is_ipv6() })
    }

    /// Waits for datagrams, and gives them to `take`.
    ///
    /// # Errors
    ///
    /// Where the operating system cannot read.
    pub(super) async fn receive(&self, mut take: impl FnMut(Received<'_>)) -> io::Result<()> {
        self.io.readable().await?;
        SPACE.with_borrow_mut(|space| {
            let mut metas = [RecvMeta::default(); BATCH];
            let mut slices = space.chunks_mut(LONGEST).map(IoSliceMut::new);
            let mut slices: [IoSliceMut<'_>; BATCH] =
                std::array::from_fn(|_| slices.next().unwrap_or_else(|| IoSliceMut::new(&mut [])));
            let read =
                self.io.try_io(Interest::READABLE, || self.state.recv((&self.io).into(), &mut slices, &mut metas));
            let read = match read {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                read => read?,
            };
            for (meta, slice) in metas.iter().zip(&slices).take(read) {
                let (from, to) = (canonical(meta.addr), meta.dst_ip.map(|ip| ip.to_canonical()));
                let bytes = &slice[..meta.len];
                if bytes.is_empty() {
                    take(Received { from, to, payload: bytes });
                }
                for payload in bytes.chunks(meta.stride.max(1)) {
                    take(Received { from, to, payload });
                }
            }
            Ok(())
        })
    }

    /// Sends a datagram at once.
    ///
    /// # Errors
    ///
    /// Where the operating system does not take it.
    pub(super) fn send(&self, to: SocketAddr, from: Option<IpAddr>, payload: &[u8]) -> io::Result<()> {
        // A socket for both families takes addresses of IPv4 in the notation of IPv6.
        let mapped = |ip| IpAddr::V6(as_v6(ip));
        let (destination, src_ip) =
            if self.is_v6 { (SocketAddr::new(mapped(to.ip()), to.port()), from.map(mapped)) } else { (to, from) };
        let transmit = Transmit { destination, ecn: None, contents: payload, segment_size: None, src_ip };
        self.io.try_io(Interest::WRITABLE, || self.state.try_send((&self.io).into(), &transmit))
    }
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
