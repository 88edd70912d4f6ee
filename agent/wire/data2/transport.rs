//! What a data connection is made of: TLS over TCP, for one visit after another, or a stream of QUIC, for one visit.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;

use crate::quic::QuicStream;
use crate::socket;

pub enum Transport {
    /// In a box: it takes more than a kilobyte.
    Tls(Box<TlsStream<TcpStream>>),
    Quic(QuicStream),
}

impl Transport {
    /// Makes the connection end so that what was sent does not look complete.
    pub fn reset(&mut self) {
        match self {
            Self::Tls(stream) => socket::reset(stream.get_ref().0),
            Self::Quic(stream) => stream.reset(),
        }
    }

    /// Keeps little of what is not sent yet where it can no longer be dropped.
    ///
    /// # Errors
    ///
    /// Where the operating system refuses the option.
    pub fn keep_little_unsent(&self) -> io::Result<()> {
        match self {
            Self::Tls(stream) => socket::keep_little_unsent(stream.get_ref().0),
            Self::Quic(_) => Ok(()),
        }
    }
}

impl AsyncRead for Transport {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, space: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Tls(stream) => Pin::new(stream).poll_read(context, space),
            Self::Quic(stream) => Pin::new(stream).poll_read(context, space),
        }
    }
}

impl AsyncWrite for Transport {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut *self {
            Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Quic(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
            Self::Quic(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Quic(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
