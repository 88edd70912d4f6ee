//! The frames of a data connection: a type (1 byte), a length (3 bytes, big-endian), and the payload.

use std::io;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::attach::{Attach, Attached, Denied, Wanted};
use super::datagram::{MOST_OVERHEAD, MOST_PAYLOAD};
use super::visit::{Accepted, Refused, Visit};

/// Bytes before each payload.
pub const HEADER: usize = 4;
/// Most bytes of a visit in one frame.
pub const DATA_LIMIT: usize = 65_536;
/// Most bytes of any other frame's payload.
pub const CONTROL_LIMIT: usize = 4096;

/// From this type on, frames of types that are not known are skipped.
const RESERVED: u8 = 0x80;

const DATA: u8 = 0x01;
const END: u8 = 0x02;
const REST: u8 = 0x03;
const ATTACH: u8 = 0x10;
const ATTACHED: u8 = 0x11;
const DENIED: u8 = 0x12;
const RETIRE: u8 = 0x14;
const RETIRED: u8 = 0x15;
const VISIT: u8 = 0x20;
const ACCEPTED: u8 = 0x21;
const REFUSED: u8 = 0x22;
const DATAGRAM: u8 = 0x40;
const WANTED: u8 = 0x80;

/// A frame. Of [`Frame::Data`], only the length is here: its bytes are read and written apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Bytes of the visit follow.
    Data {
        length: usize,
    },
    /// This direction of the visit has ended.
    End,
    /// All further bytes of this direction come without frames.
    Rest,
    Attach(Attach),
    Attached(Attached),
    Denied(Denied),
    /// The agent wants to close this warm connection.
    Retire,
    /// The node has taken note: no visit will come.
    Retired,
    Visit(Visit),
    Accepted(Accepted),
    Refused(Refused),
    /// A visitor's datagram ([`super::datagram`]).
    Datagram(Bytes),
    /// Visitors wait for a connection. Agents that do not know it skip it.
    Wanted(Wanted),
}

/// What a header announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    kind: u8,
    pub length: usize,
}

impl Header {
    /// # Errors
    ///
    /// If the type is not known and must not be skipped, or the payload is too long for it.
    pub fn parse([kind, length @ ..]: [u8; HEADER]) -> io::Result<Self> {
        let [high, middle, low] = length.map(usize::from);
        let length = high << 16 | middle << 8 | low;
        let longest = match kind {
            DATA => DATA_LIMIT,
            DATAGRAM => MOST_OVERHEAD + MOST_PAYLOAD,
            END | REST | RETIRE | RETIRED => 0,
            ATTACH | ATTACHED | DENIED | VISIT | ACCEPTED | REFUSED | RESERVED.. => CONTROL_LIMIT,
            _ => return Err(malformed(format!("no frame has the type {kind:#04x}"))),
        };
        let shortest = usize::from(kind == DATA);
        if length < shortest || length > longest {
            return Err(malformed(format!("a frame of type {kind:#04x} has {length} bytes")));
        }
        Ok(Self { kind, length })
    }

    /// Whether it may come at any time, and be skipped.
    pub(super) fn is_hint(self) -> bool {
        self.kind >= RESERVED
    }

    pub fn is_data(self) -> bool {
        self.kind == DATA
    }

    /// The frame with this payload; `None` for one to skip.
    ///
    /// # Errors
    ///
    /// If the payload is not of this type.
    pub fn frame(self, payload: Vec<u8>) -> io::Result<Option<Frame>> {
        if self.kind == DATAGRAM {
            return Ok(Some(Frame::Datagram(payload.into())));
        }
        let payload = payload.as_slice();
        Ok(Some(match self.kind {
            DATA => Frame::Data { length: self.length },
            END => Frame::End,
            REST => Frame::Rest,
            ATTACH => Frame::Attach(json(payload)?),
            ATTACHED => Frame::Attached(json(payload)?),
            DENIED => Frame::Denied(json(payload)?),
            RETIRE => Frame::Retire,
            RETIRED => Frame::Retired,
            VISIT => Frame::Visit(json(payload)?),
            ACCEPTED => Frame::Accepted(json(payload)?),
            REFUSED => Frame::Refused(json(payload)?),
            // It is only a hint.
            WANTED => return Ok(json(payload).ok().map(Frame::Wanted)),
            _ => return Ok(None),
        }))
    }
}

impl Frame {
    /// Appends the frame; of [`Frame::Data`] the header.
    ///
    /// # Errors
    ///
    /// If the frame is too long.
    pub fn write(&self, out: &mut Vec<u8>) -> io::Result<()> {
        match self {
            Self::Data { length } => header(out, DATA, *length),
            Self::End => header(out, END, 0),
            Self::Rest => header(out, REST, 0),
            Self::Retire => header(out, RETIRE, 0),
            Self::Retired => header(out, RETIRED, 0),
            Self::Attach(attach) => control(out, ATTACH, attach)?,
            Self::Attached(attached) => control(out, ATTACHED, attached)?,
            Self::Denied(denied) => control(out, DENIED, denied)?,
            Self::Visit(visit) => control(out, VISIT, visit)?,
            Self::Accepted(accepted) => control(out, ACCEPTED, accepted)?,
            Self::Refused(refused) => control(out, REFUSED, refused)?,
            Self::Wanted(wanted) => control(out, WANTED, wanted)?,
            Self::Datagram(bytes) => {
                header(out, DATAGRAM, bytes.len());
                out.extend_from_slice(bytes);
            }
        }
        Ok(())
    }
}

fn header(out: &mut Vec<u8>, kind: u8, length: usize) {
    let [.., high, middle, low] = length.to_be_bytes();
    out.extend([kind, high, middle, low]);
}

fn control(out: &mut Vec<u8>, kind: u8, payload: &impl Serialize) -> io::Result<()> {
    let payload = serde_json::to_vec(payload)?;
    if payload.len() > CONTROL_LIMIT {
        return Err(malformed(format!("a frame of type {kind:#04x} would have {} bytes", payload.len())));
    }
    header(out, kind, payload.len());
    out.extend(payload);
    Ok(())
}

fn json<T: DeserializeOwned>(payload: &[u8]) -> io::Result<T> {
    serde_json::from_slice(payload).map_err(|error| malformed(error.to_string()))
}

/// The other side does not keep to the protocol.
pub fn malformed(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.into())
}
