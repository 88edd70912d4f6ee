//! QUIC between an agent and a node (RFC 9000): one connection of a device, and a stream for each visit.
//!
//! The agent opens the first stream and attaches on it ([`crate::data2::attach`]); that stream stays open as long as the
//! connection. The node opens one for each visit, which begins as on other data connections: a visit, and whether it is
//! accepted. The bytes follow without frames. The end of a direction is the stream's (FIN); a reset means that the visit
//! was cut short.
//!
//! The datagrams of visitors come as datagrams (RFC 9221), and those too long for two on a stream of one direction each
//! ([`crate::data2::lane`]).
//!
//! Timers of the transport are quinn's own. They do not follow [`crate::clock`].

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use aws_lc_rs::hmac;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{ClientConfig, EndpointConfig, RecvStream, SendStream, ServerConfig, TransportConfig, VarInt};
use quinn_proto::HashedConnectionIdGenerator;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;

use crate::congestion::FloorConfig;
use crate::{socket, tls};

/// The protocol's name in the handshake (ALPN, RFC 7301).
pub const ALPN: &[u8] = b"culvert-quic/1";

/// Separates the key of resets from other uses of the node's key.
const RESET_KEY: &[u8] = b"culvert quic reset v1\0";
/// The same for the key of connection ids, by which an endpoint knows its own.
const ID_KEY: &[u8] = b"culvert quic ids v1\0";

/// The code of a connection or a stream that ended regularly, and of one that was cut short.
pub const REGULAR: VarInt = VarInt::from_u32(0);
pub const CUT: VarInt = VarInt::from_u32(1);

/// Streams that an agent lets a node open.
const STREAMS: u32 = 64;
/// Visits that a node has on one connection at a time. quinn does not tell it of streams that have ended until they are more
/// than an eighth of those that it may open.
pub const VISITS: usize = (STREAMS - STREAMS / 8) as usize;
/// Streams that an agent may open: the one on which it attaches.
const ATTACHES: VarInt = VarInt::from_u32(1);
/// Bytes that the other side may send ahead: on one stream, and on all of a connection. They are kept in memory, while a
/// reader is slow.
const STREAM_WINDOW: u32 = 256 << 10;
pub const CONNECTION_WINDOW: VarInt = VarInt::from_u32(16 << 20);
/// Bytes that an agent may send ahead before it has attached.
const UNPROVEN_WINDOW: VarInt = VarInt::from_u32(16 << 10);
// Streams that nobody reads must not use up what the others need.
const _: () = assert!(STREAMS as u64 * STREAM_WINDOW as u64 <= CONNECTION_WINDOW.into_inner());
const KEEP_ALIVE: Duration = Duration::from_secs(3);
/// Milliseconds without a packet after which a connection is lost. Until then, visitors are given to it.
const IDLE_TIMEOUT: VarInt = VarInt::from_u32(10_000);
/// Streams with one long datagram each that the other side may have open at a time.
const DATAGRAM_STREAMS: VarInt = VarInt::from_u32(64);
/// Bytes of datagrams that may wait in a connection, in each direction.
pub const DATAGRAM_BUFFER: usize = 4 << 20;
/// Bytes of a socket's buffers, in either direction.
const SOCKET_BUFFER: usize = 4 << 20;

fn transport(streams: VarInt, window: VarInt) -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(streams)
        .max_concurrent_uni_streams(DATAGRAM_STREAMS)
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW))
        .receive_window(window)
        .send_window(CONNECTION_WINDOW.into_inner())
        .datagram_receive_buffer_size(Some(DATAGRAM_BUFFER))
        .datagram_send_buffer_size(DATAGRAM_BUFFER)
        .keep_alive_interval(Some(KEEP_ALIVE))
        .max_idle_timeout(Some(IDLE_TIMEOUT.into()))
        .congestion_controller_factory(Arc::new(FloorConfig::default()));
    Arc::new(transport)
}

/// The agent's configuration: accepts only the certificate with this fingerprint.
///
/// # Errors
///
/// Where TLS 1.3 is not available.
pub fn client(fingerprint: Vec<u8>) -> Result<ClientConfig, rustls::Error> {
    let crypto = QuicClientConfig::try_from(tls::client(fingerprint, ALPN)?).map_err(unsuited)?;
    let mut config = ClientConfig::new(Arc::new(crypto));
    config.transport_config(transport(VarInt::from_u32(STREAMS), CONNECTION_WINDOW));
    Ok(config)
}

/// The node's configuration. A connection that has attached gets [`CONNECTION_WINDOW`].
///
/// # Errors
///
/// Where the certificate and the key do not match.
pub fn server(
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
    most_unproven: usize,
) -> Result<ServerConfig, rustls::Error> {
    let crypto = QuicServerConfig::try_from(tls::server(certificate, key, &[ALPN])?).map_err(unsuited)?;
    let mut config = ServerConfig::with_crypto(Arc::new(crypto));
    config.transport_config(transport(ATTACHES, UNPROVEN_WINDOW)).max_incoming(most_unproven);
    Ok(config)
}

/// What a node's endpoint is made with. The key of stateless resets (RFC 9000, section 10.3) follows from the node's own:
/// agents of a node that was killed learn of it from the next process.
pub fn endpoint(key: &PrivateKeyDer<'_>) -> EndpointConfig {
    let derived = |label: &[u8]| Sha256::new().chain_update(label).chain_update(key.secret_der()).finalize();
    let mut config = EndpointConfig::new(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, &derived(RESET_KEY))));
    // An endpoint resets only what bears an id of its own making.
    let ids = derived(ID_KEY).first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
    config.cid_generator(move || Box::new(HashedConnectionIdGenerator::from_key(ids)));
    config
}

fn unsuited(error: impl std::fmt::Display) -> rustls::Error {
    rustls::Error::General(error.to_string())
}

/// Binds a socket with large buffers.
///
/// # Errors
///
/// Where the address cannot be bound.
pub fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    let (socket, least) = socket::bind_udp(address, SOCKET_BUFFER)?;
    if least < SOCKET_BUFFER {
        let wanted = SOCKET_BUFFER;
        tracing::info!(
            least,
            wanted,
            "net.core.rmem_max and wmem_max allow smaller buffers of UDP sockets than wanted"
        );
    }
    Ok(socket)
}

/// A stream with both of its directions. Dropping it resets it, unless it was ended.
pub struct QuicStream {
    send: SendStream,
    receive: RecvStream,
    is_ended: bool,
    /// At the node: its place among the [`VISITS`].
    _place: Option<OwnedSemaphorePermit>,
}

impl QuicStream {
    pub fn new((send, receive): (SendStream, RecvStream)) -> Self {
        Self { send, receive, is_ended: false, _place: None }
    }

    /// A stream that has a place until it is dropped.
    pub fn in_place((send, receive): (SendStream, RecvStream), place: OwnedSemaphorePermit) -> Self {
        Self { send, receive, is_ended: false, _place: Some(place) }
    }

    /// Ends both directions, so that what was sent does not look complete.
    pub fn reset(&mut self) {
        // They fail where the direction has ended already.
        let _ = self.send.reset(CUT);
        let _ = self.receive.stop(CUT);
        self.is_ended = true;
    }
}

impl Drop for QuicStream {
    fn drop(&mut self) {
        if !self.is_ended {
            self.reset();
        }
    }
}

impl AsyncRead for QuicStream {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, space: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        AsyncRead::poll_read(Pin::new(&mut self.receive), context, space)
    }
}

impl AsyncWrite for QuicStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        AsyncWrite::poll_write(Pin::new(&mut self.send), context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.send).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.is_ended = true;
        Pin::new(&mut self.send).poll_shutdown(context)
    }
}
