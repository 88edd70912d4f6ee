//! The connection below HTTP.

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

/// A visitor's connection, in the clear or over TLS.
pub(super) trait Socket: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    fn socket(&self) -> &TcpStream;
}

impl Socket for TcpStream {
    fn socket(&self) -> &TcpStream {
        self
    }
}

impl Socket for Box<TlsStream<TcpStream>> {
    fn socket(&self) -> &TcpStream {
        self.get_ref().0
    }
}
