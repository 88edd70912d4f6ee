//! Data connections from the agent to the node: TLS over TCP, one connection per visitor.
//!
//! The agent connects in advance, names its lease ([`Attach`]) and waits. When a visitor arrives, the
//! node sends a [`Visit`] and then the visitor's bytes. The first byte from the agent says whether it
//! reached the local target ([`ACCEPTED`]); the target's bytes follow. Either side ends its direction
//! with a close_notify alert of TLS (RFC 8446, section 6.1). Any other end of the connection counts as
//! a reset.

use std::io;
use std::net::SocketAddr;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use uuid::Uuid;

use crate::base64_bytes::Base64Bytes;

/// The protocol's name in the TLS handshake (ALPN, RFC 7301).
pub const ALPN: &[u8] = b"culvert-data/1";

/// The node's answer to an [`Attach`] with a valid lease.
pub const ATTACHED: u8 = 0;
/// The node's answer to an [`Attach`] whose lease is not valid, or no longer.
pub const FENCED: u8 = 1;
/// The node's answer to an [`Attach`] with a token of a key that it does not accept. The host may have a new key;
/// the agent gets a new token when it is connected.
pub const UNKNOWN_KEY: u8 = 2;

/// The agent has connected to the local target.
pub const ACCEPTED: u8 = 0;
/// The agent could not connect to the local target.
pub const REFUSED: u8 = 1;

/// Most bytes of one frame.
const FRAME_LIMIT: usize = 4096;

/// The agent's first frame.
#[derive(Debug, Serialize, Deserialize)]
pub struct Attach {
    pub tunnel_id: Uuid,
    pub epoch: i64,
    pub token: Base64Bytes,
}

/// Announces the visitor whose bytes follow on this connection.
#[derive(Debug, Serialize, Deserialize)]
pub struct Visit {
    pub visitor: SocketAddr,
    /// The extra port that the visitor connected to; `None` for the tunnel's main port.
    #[serde(default)]
    pub port_id: Option<Uuid>,
    /// How many more visitors wait for a connection.
    pub waiting: usize,
}

/// Writes one frame: its length in two bytes, big-endian, then JSON.
///
/// # Errors
///
/// If the frame cannot be encoded in at most 65,535 bytes, or the stream cannot be written to.
pub async fn write_frame<T: Serialize>(stream: &mut (impl AsyncWrite + Unpin), frame: &T) -> io::Result<()> {
    let body = serde_json::to_vec(frame)?;
    let length = u16::try_from(body.len()).map_err(io::Error::other)?;
    let mut bytes = Vec::with_capacity(2 + body.len());
    bytes.extend(length.to_be_bytes());
    bytes.extend(body);
    stream.write_all(&bytes).await?;
    stream.flush().await
}

/// Reads exactly one frame, and no bytes after it.
///
/// # Errors
///
/// If the stream cannot be read or ends too early, or the frame is too large or not of this type.
pub async fn read_frame<T: DeserializeOwned>(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<T> {
    let length = usize::from(stream.read_u16().await?);
    if length > FRAME_LIMIT {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame of this size is not of this protocol"));
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    Ok(serde_json::from_slice(&body)?)
}
