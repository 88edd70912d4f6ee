//! The connections that carry visitors, from the agent to the node: TLS over TCP, one a visitor.
//!
//! The agent dials ahead, says under which lease it stands ready ([`Attach`]) and waits. When a
//! visitor comes, the node sends a [`Visit`]; from there on the node's bytes are the visitor's.
//! The agent's first byte back says whether the local target answered ([`ACCEPTED`]), and what
//! follows is the target's. Either side ends its direction with TLS' close_notify; anything else
//! that ends the connection is a reset.

use std::io;
use std::net::SocketAddr;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use uuid::Uuid;

use crate::base64_bytes::Base64Bytes;

/// The protocol's name in TLS (ALPN, RFC 7301).
pub const ALPN: &[u8] = b"culvert-data/1";

/// The node's answer to an [`Attach`] that holds.
pub const ATTACHED: u8 = 0;
/// The node's answer to an [`Attach`] whose lease does not hold, or no longer.
pub const FENCED: u8 = 1;

/// The agent has reached the local target.
pub const ACCEPTED: u8 = 0;
/// The agent has not reached the local target.
pub const REFUSED: u8 = 1;

/// Bytes of one frame, at most.
const FRAME_LIMIT: usize = 4096;

/// The agent's first frame.
#[derive(Debug, Serialize, Deserialize)]
pub struct Attach {
    pub tunnel_id: Uuid,
    pub epoch: i64,
    pub token: Base64Bytes,
}

/// A visitor for this connection.
#[derive(Debug, Serialize, Deserialize)]
pub struct Visit {
    pub visitor: SocketAddr,
    /// The extra port that the visitor came to; none for the tunnel's own.
    #[serde(default)]
    pub port_id: Option<Uuid>,
    /// How many more visitors wait for a connection.
    pub waiting: usize,
}

/// Writes one frame: its length in two bytes, big-endian, then JSON.
pub async fn write_frame<T: Serialize>(stream: &mut (impl AsyncWrite + Unpin), frame: &T) -> io::Result<()> {
    let body = serde_json::to_vec(frame)?;
    let length = u16::try_from(body.len()).map_err(io::Error::other)?;
    let mut bytes = Vec::with_capacity(2 + body.len());
    bytes.extend(length.to_be_bytes());
    bytes.extend(body);
    stream.write_all(&bytes).await?;
    stream.flush().await
}

/// Reads one frame, and not a byte more.
pub async fn read_frame<T: DeserializeOwned>(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<T> {
    let length = usize::from(stream.read_u16().await?);
    if length > FRAME_LIMIT {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame of this size is not of this protocol"));
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    Ok(serde_json::from_slice(&body)?)
}
