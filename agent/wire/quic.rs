//! QUIC between an agent and a node (RFC 9000): one connection of a device, and a stream for each visit.
//!
//! The agent opens the first stream and attaches on it ([`crate::data2::attach`]); that stream stays open as long as the
//! connection. The node opens one for each visit, which begins as on other data connections: a visit, and whether it is
//! accepted. The bytes follow without frames. The end of a direction is the stream's (FIN); a reset means that the visit
//! was cut short.
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
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest, Sha256};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::tls;

/// The protocol's name in the handshake (ALPN, RFC 7301).
pub const ALPN: &[u8] = b"culvert-quic/1";

/// Separates the key of resets from other uses of the node's key.
const RESET_KEY: &[u8] = b"culvert quic reset v1\0";

/// The code of a connection or a stream that ended regularly, and of one that was cut short.
pub const REGULAR: VarInt = VarInt::from_u32(0);
pub const CUT: VarInt = VarInt::from_u32(1);

/// Streams that a node may have open at a time at one agent. The agent holds some 70 bytes of memory for each from the
/// start.
const VISITS: VarInt = VarInt::from_u32(4096);
/// Streams that an agent may open: the one on which it attaches.
const ATTACHES: VarInt = VarInt::from_u32(1);
/// Bytes that the other side may send ahead: on one stream, and on all of a connection. They are kept in memory, while a
/// reader is slow.
const STREAM_WINDOW: VarInt = VarInt::from_u32(1 << 20);
const CONNECTION_WINDOW: u32 = 16 << 20;
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// Milliseconds without a packet after which a connection is lost.
const IDLE_TIMEOUT: VarInt = VarInt::from_u32(30_000);
/// Bytes of a socket's buffers, in either direction.
const SOCKET_BUFFER: usize = 4 << 20;

fn transport(streams: VarInt) -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(streams)
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(STREAM_WINDOW)
        .receive_window(VarInt::from_u32(CONNECTION_WINDOW))
        .send_window(CONNECTION_WINDOW.into())
        .datagram_receive_buffer_size(None)
        .keep_alive_interval(Some(KEEP_ALIVE))
        .max_idle_timeout(Some(IDLE_TIMEOUT.into()));
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
    config.transport_config(transport(VISITS));
    Ok(config)
}

/// The node's configuration.
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
    config.transport_config(transport(ATTACHES)).max_incoming(most_unproven);
    Ok(config)
}

/// What a node's endpoint is made with. The key of stateless resets (RFC 9000, section 10.3) follows from the node's own:
/// agents of a node that was killed learn of it from the next process.
pub fn endpoint(key: &PrivateKeyDer<'_>) -> EndpointConfig {
    let seed = Sha256::new().chain_update(RESET_KEY).chain_update(key.secret_der()).finalize();
    EndpointConfig::new(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, &seed)))
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
    let socket = UdpSocket::bind(address)?;
    let options = SockRef::from(&socket);
    options.set_recv_buffer_size(SOCKET_BUFFER)?;
    options.set_send_buffer_size(SOCKET_BUFFER)?;
    let least = options.recv_buffer_size()?.min(options.send_buffer_size()?);
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
}

impl QuicStream {
    pub fn new((send, receive): (SendStream, RecvStream)) -> Self {
        Self { send, receive, is_ended: false }
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
