//! A visitor's connection, as its requests see it.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use super::addresses::Entry;
use super::certificates::Held;
use super::cut::CutSlot;
use super::exchanges::Exchanges;
use super::scheme::Scheme;

/// One end of a visitor's connection, and how it is spoken on.
#[derive(Clone, Copy)]
pub(super) struct Peer {
    pub address: SocketAddr,
    /// The node's address that the visitor came to.
    pub local: SocketAddr,
    pub scheme: Scheme,
    /// The port as the visitor sees it.
    pub port: u16,
}

/// A visitor's connection. It is counted for its address as long as anything of it is there, a WebSocket too.
pub(super) struct VisitorConnection {
    pub peer: Peer,
    /// The certificate that the visitor was shown; `None` in the clear.
    pub shown: Option<Arc<Held>>,
    pub version: HttpVersion,
    pub _entry: Entry,
}

/// What an exchange needs of its connection, by the version of HTTP.
pub(super) enum HttpVersion {
    /// One exchange at a time: to cut it, the connection is cut.
    Http1(Arc<CutSlot>),
    /// Many exchanges at a time: each is cut alone.
    Http2(Arc<Exchanges>),
}

impl VisitorConnection {
    /// Whether requests for a name may come on this connection: what was shown must prove it, whatever name the handshake
    /// was for.
    pub(super) fn proves(&self, name: &str) -> bool {
        self.shown.as_ref().is_none_or(|shown| shown.covers(name))
    }
}

/// The connection below HTTP.
pub(super) trait Socket: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    fn socket(&self) -> &TcpStream;
}

impl Socket for TcpStream {
    fn socket(&self) -> &TcpStream {
        self
    }
}

impl Socket for TlsStream<TcpStream> {
    fn socket(&self) -> &TcpStream {
        self.get_ref().0
    }
}
