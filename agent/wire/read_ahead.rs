//! A stream that reads ahead while many bytes come.
//!
//! A TLS session asks for at most 4 KiB at once (rustls 0.23), so that one record takes several calls of the system.
//! `tokio::io::BufReader` was weighed: it keeps its buffer as long as the connection is open.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::io::poll_read_buf;

use crate::pipe::Budget;

/// How many bytes are read ahead at once, at most.
const AHEAD: usize = 128 * 1024;

/// Reads ahead of whoever asks for bytes, from the first time that a read took all that was asked for. The buffer is
/// given back as soon as nothing more comes.
pub struct ReadAhead<S> {
    stream: S,
    budget: Arc<Budget>,
    /// Without capacity unless bytes are read ahead.
    buffer: Vec<u8>,
    /// Bytes of the buffer that were given out.
    taken: usize,
}

impl<S> ReadAhead<S> {
    pub fn new(stream: S, budget: Arc<Budget>) -> Self {
        Self { stream, budget, buffer: Vec::new(), taken: 0 }
    }

    pub fn get_ref(&self) -> &S {
        &self.stream
    }

    fn begin(&mut self) {
        if self.budget.try_take(AHEAD) {
            self.buffer = Vec::with_capacity(AHEAD);
        }
    }

    fn end(&mut self) {
        if self.buffer.capacity() > 0 {
            self.budget.give_back(AHEAD);
            (self.buffer, self.taken) = (Vec::new(), 0);
        }
    }

    fn give(&mut self, space: &mut ReadBuf<'_>) {
        let left = &self.buffer[self.taken..];
        let given = left.len().min(space.remaining());
        space.put_slice(&left[..given]);
        self.taken += given;
    }
}

impl<S> Drop for ReadAhead<S> {
    fn drop(&mut self) {
        self.end();
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ReadAhead<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, space: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.taken < this.buffer.len() {
            this.give(space);
            return Poll::Ready(Ok(()));
        }
        if this.buffer.capacity() == 0 {
            ready!(Pin::new(&mut this.stream).poll_read(context, space))?;
            if space.remaining() == 0 {
                this.begin();
            }
            return Poll::Ready(Ok(()));
        }
        this.buffer.clear();
        this.taken = 0;
        let read = poll_read_buf(Pin::new(&mut this.stream), context, &mut this.buffer);
        if !matches!(read, Poll::Ready(Ok(1..))) {
            this.end();
        }
        ready!(read)?;
        this.give(space);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ReadAhead<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
