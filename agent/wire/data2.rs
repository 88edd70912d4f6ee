//! Data connections from the agent to the node, version 2: TLS over TCP, one visit after another.
//!
//! A connection belongs to a device, not to a tunnel. The agent proves with a device token who it is
//! ([`attach`]), and the connection is then warm: it waits for a visit. The node announces one with a
//! [`visit::Visit`], the agent connects to the local target, and the visit's bytes follow in [`frame`]s
//! ([`stream`]). When both sides have ended the visit cleanly, the connection is warm again.
//!
//! A side that has sent [`stream::REST_AFTER`] bytes in one visit sends the rest of that direction
//! without frames, and ends it with a close_notify alert of TLS (RFC 8446, section 6.1). Such a
//! connection is not used again. Anything else that ends a visit is a reset: what was cut short must not
//! look complete.
//!
//! A connection with the lane `datagrams` serves no visits: it carries the datagrams of visitors ([`datagram`]) where there
//! is no QUIC.
//!
//! A stream of QUIC ([`crate::quic`]) serves one visit, and carries its bytes without frames.

pub mod attach;
pub mod close_limit;
pub mod connection;
pub mod datagram;
pub mod frame;
pub mod lane;
pub mod parts;
pub mod stream;
pub mod transport;
pub mod visit;
pub mod waiters;

/// The protocol's name in the TLS handshake (ALPN, RFC 7301).
pub const ALPN: &[u8] = b"culvert-data/2";

/// Warm connections that an agent keeps while no visitors come.
pub const MIN_WARM: usize = 2;
/// The same, while the agent has a connection of QUIC: the node opens a stream there for a second visitor.
pub const MIN_WARM_BESIDE_QUIC: usize = 1;
/// Warm connections of one device, at most.
pub const MAX_WARM: usize = 256;
/// TLS connections of one device that carry datagrams, at most: twice what an agent keeps, for those that it has lost.
pub const MAX_LANES: usize = 2 * LANES;
/// TLS connections for datagrams that an agent keeps where there is no QUIC.
pub const LANES: usize = 2;
