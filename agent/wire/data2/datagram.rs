//! The datagrams of visitors, as they travel between a node and an agent.
//!
//! A flow is one visitor of one public UDP port. The node numbers the flows of an agent's process upwards. It opens a flow
//! with each of its first datagrams, until the agent says that it knows the flow. Each message is one datagram of QUIC
//! (RFC 9221), a stream of QUIC in one direction, or one frame of a TLS connection:
//!
//! ```text
//! DATA    00 | flow | payload
//! OPEN    01 | flow | flags u8 | tunnel_id 16 | epoch u64 | port_id 16 (0: own)
//!            | family u8 (4, 6) | visitor 4/16 | port u16 | local 4/16 | port u16 | payload
//! OPENED  02 | flow                                         agent to node
//! PART    03 | flow | id u16 | index u8 (0, 1) | payload    half of a payload
//! CLOSE   04 | flow | reason u8
//! ```
//!
//! `flow` is a variable-length integer (RFC 9000, section 16); other integers are big-endian. Bit 0 of `flags` says that
//! no payload is there; an empty one is legal.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use quinn_proto::VarInt;
use quinn_proto::coding::Codec;
use uuid::Uuid;

use crate::client_network::as_v6;

/// Most bytes of a payload: a UDP datagram over IPv4 (RFC 768).
pub const MOST_PAYLOAD: usize = 65_507;
/// Most bytes before a payload.
pub const MOST_OVERHEAD: usize = 96;
/// Bytes before the payload of DATA and PART, at most.
const DATA_OVERHEAD: usize = 1 + 8;
const PART_OVERHEAD: usize = DATA_OVERHEAD + 2 + 1;

const DATA: u8 = 0;
const OPEN: u8 = 1;
const OPENED: u8 = 2;
const PART: u8 = 3;
const CLOSE: u8 = 4;
/// The flag of OPEN that says that no payload is there.
const EMPTY: u8 = 1;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Datagram {
    Data { flow: u64, payload: Bytes },
    Open(Open),
    Opened { flow: u64 },
    Part { flow: u64, id: u16, is_second: bool, payload: Bytes },
    Close { flow: u64, reason: CloseReason },
}

/// Whose datagrams a flow has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    pub flow: u64,
    pub tunnel_id: Uuid,
    pub epoch: i64,
    /// The extra port; `None` for the tunnel's own port.
    pub port_id: Option<Uuid>,
    pub visitor: SocketAddr,
    /// The public address that the visitor sends to.
    pub local: SocketAddr,
    pub payload: Option<Bytes>,
}

/// Why a flow has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    Idle,
    Refused,
    /// The epoch is not served here.
    Fenced,
    UnknownPort,
    /// A bound on flows is reached.
    Bounds,
    TargetRefused,
    /// A reason of a newer program.
    Other,
}

impl CloseReason {
    const KNOWN: [Self; 6] =
        [Self::Idle, Self::Refused, Self::Fenced, Self::UnknownPort, Self::Bounds, Self::TargetRefused];

    fn of(code: u8) -> Self {
        Self::KNOWN.get(usize::from(code)).copied().unwrap_or(Self::Other)
    }
}

/// Bytes that are no datagram of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no datagram of this protocol")]
pub struct Malformed;

impl Datagram {
    /// # Errors
    ///
    /// If the bytes are cut, or a value is not allowed.
    pub fn parse(mut bytes: Bytes) -> Result<Self, Malformed> {
        let kind = bytes.try_get_u8().map_err(|_| Malformed)?;
        let flow = VarInt::decode(&mut bytes).map_err(|_| Malformed)?.into_inner();
        Ok(match kind {
            DATA => Self::Data { flow, payload: bytes },
            OPEN => Self::Open(Open::parse(flow, bytes)?),
            OPENED => Self::Opened { flow },
            PART => {
                let id = bytes.try_get_u16().map_err(|_| Malformed)?;
                let is_second = match bytes.try_get_u8() {
                    Ok(0) => false,
                    Ok(1) => true,
                    _ => return Err(Malformed),
                };
                Self::Part { flow, id, is_second, payload: bytes }
            }
            CLOSE => Self::Close { flow, reason: CloseReason::of(bytes.try_get_u8().map_err(|_| Malformed)?) },
            _ => return Err(Malformed),
        })
    }

    pub fn flow(&self) -> u64 {
        match self {
            Self::Open(open) => open.flow,
            Self::Data { flow, .. } | Self::Opened { flow } | Self::Part { flow, .. } | Self::Close { flow, .. } => {
                *flow
            }
        }
    }

    pub fn bytes(&self) -> Bytes {
        let payload = match self {
            Self::Data { payload, .. } | Self::Part { payload, .. } => Some(payload),
            Self::Open(open) => open.payload.as_ref(),
            Self::Opened { .. } | Self::Close { .. } => None,
        };
        let mut out = BytesMut::with_capacity(MOST_OVERHEAD + payload.map_or(0, Bytes::len));
        match self {
            Self::Data { flow, .. } => begin(&mut out, DATA, *flow),
            Self::Open(open) => open.write(&mut out),
            Self::Opened { flow } => begin(&mut out, OPENED, *flow),
            Self::Part { flow, id, is_second, .. } => {
                begin(&mut out, PART, *flow);
                out.put_u16(*id);
                out.put_u8((*is_second).into());
            }
            Self::Close { flow, reason } => {
                begin(&mut out, CLOSE, *flow);
                let code = CloseReason::KNOWN.iter().position(|known| known == reason);
                out.put_u8(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX));
            }
        }
        out.extend_from_slice(payload.map_or(&[][..], |payload| payload));
        out.freeze()
    }

    /// What carries this where a message has at most so many bytes: itself, or two messages with half of it each, or
    /// nothing. A flow that is opened by a message too long is opened without payload first.
    pub fn split(self, most: usize, id: u16) -> Option<[Self; 2]> {
        let Self::Data { flow, mut payload } = self else { return None };
        let half = most.checked_sub(PART_OVERHEAD)?;
        if payload.len() > half * 2 {
            return None;
        }
        let second = payload.split_off(payload.len().div_ceil(2));
        let part = |is_second, payload| Self::Part { flow, id, is_second, payload };
        Some([part(false, payload), part(true, second)])
    }
}

fn begin(out: &mut BytesMut, kind: u8, flow: u64) {
    out.put_u8(kind);
    // Flows are counted from 1, so a number stays below 2^62.
    VarInt::from_u64(flow).unwrap_or(VarInt::MAX).encode(out);
}

impl Open {
    fn parse(flow: u64, mut bytes: Bytes) -> Result<Self, Malformed> {
        let flags = bytes.try_get_u8().map_err(|_| Malformed)?;
        let tunnel_id = Uuid::from_u128(bytes.try_get_u128().map_err(|_| Malformed)?);
        let epoch = bytes.try_get_i64().map_err(|_| Malformed)?;
        let port_id = Uuid::from_u128(bytes.try_get_u128().map_err(|_| Malformed)?);
        let family = bytes.try_get_u8().map_err(|_| Malformed)?;
        let (visitor, local) = (address(&mut bytes, family)?, address(&mut bytes, family)?);
        let is_empty = flags & EMPTY != 0;
        if is_empty && bytes.has_remaining() {
            return Err(Malformed);
        }
        let port_id = (!port_id.is_nil()).then_some(port_id);
        Ok(Self { flow, tunnel_id, epoch, port_id, visitor, local, payload: (!is_empty).then_some(bytes) })
    }

    fn write(&self, out: &mut BytesMut) {
        begin(out, OPEN, self.flow);
        out.put_u8(if self.payload.is_none() { EMPTY } else { 0 });
        out.put_u128(self.tunnel_id.as_u128());
        out.put_i64(self.epoch);
        out.put_u128(self.port_id.unwrap_or_default().as_u128());
        match (self.visitor.ip(), self.local.ip()) {
            (IpAddr::V4(visitor), IpAddr::V4(local)) => {
                out.put_u8(4);
                put(out, &visitor.octets(), self.visitor.port());
                put(out, &local.octets(), self.local.port());
            }
            (visitor, local) => {
                out.put_u8(6);
                put(out, &as_v6(visitor).octets(), self.visitor.port());
                put(out, &as_v6(local).octets(), self.local.port());
            }
        }
    }
}

fn put(out: &mut BytesMut, ip: &[u8], port: u16) {
    out.extend_from_slice(ip);
    out.put_u16(port);
}

fn address(bytes: &mut Bytes, family: u8) -> Result<SocketAddr, Malformed> {
    let ip = match family {
        4 => IpAddr::from(Ipv4Addr::from(bytes.try_get_u32().map_err(|_| Malformed)?)),
        6 => Ipv6Addr::from(bytes.try_get_u128().map_err(|_| Malformed)?).to_canonical(),
        _ => return Err(Malformed),
    };
    let port = bytes.try_get_u16().map_err(|_| Malformed)?;
    if port == 0 { Err(Malformed) } else { Ok(SocketAddr::new(ip, port)) }
}
