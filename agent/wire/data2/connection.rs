//! One data connection: reads and writes frames. Reading may be cancelled at any point without losing bytes.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

use super::attach::Wanted;
use super::frame::{Frame, HEADER, Header, malformed};

pub struct Connection<S> {
    stream: S,
    header: [u8; HEADER],
    /// Bytes of the header that were read.
    header_filled: usize,
    /// The frame whose payload is being read.
    expected: Option<Header>,
    payload: Vec<u8>,
    payload_filled: usize,
    /// Bytes that are to be written, from `written` on.
    queue: Vec<u8>,
    written: usize,
    is_used: bool,
    /// Whether it serves one visit only, whose bytes have no frames.
    is_single: bool,
    /// Who is told that the node wants more connections.
    on_wanted: Option<OnWanted>,
}

/// Is told how many visitors wait.
pub type OnWanted = Arc<dyn Fn(Wanted) + Send + Sync>;

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    pub fn new(stream: S) -> Self {
        Self {
            stream,
            header: [0; HEADER],
            header_filled: 0,
            expected: None,
            payload: Vec::new(),
            payload_filled: 0,
            queue: Vec::new(),
            written: 0,
            is_used: false,
            is_single: false,
            on_wanted: None,
        }
    }

    /// A connection for one visit, whose bytes have no frames.
    pub fn single(stream: S) -> Self {
        Self { is_single: true, ..Self::new(stream) }
    }

    /// The agent's side: has somebody told that the node wants more connections.
    #[must_use]
    pub fn on_wanted(self, on_wanted: OnWanted) -> Self {
        Self { on_wanted: Some(on_wanted), ..self }
    }

    pub(super) fn is_single(&self) -> bool {
        self.is_single
    }

    pub fn get_ref(&self) -> &S {
        &self.stream
    }

    pub fn get_mut(&mut self) -> &mut S {
        &mut self.stream
    }

    /// Whether the connection has served a visit.
    pub fn is_used(&self) -> bool {
        self.is_used
    }

    pub(super) fn begin_visit(&mut self) {
        self.is_used = true;
    }

    /// The next frame; `None` if the other side has closed the connection. The bytes of [`Frame::Data`] must be read
    /// before the next call.
    ///
    /// # Errors
    ///
    /// If the connection fails, ends within a frame, or carries something else than frames.
    pub async fn next(&mut self) -> io::Result<Option<Frame>> {
        poll_fn(|context| self.poll_next(context)).await
    }

    pub(super) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Frame>>> {
        loop {
            let Some(header) = ready!(self.poll_expected(context))? else { return Poll::Ready(Ok(None)) };
            if let Some(frame) = ready!(self.poll_frame(context, header))? {
                return Poll::Ready(Ok(Some(frame)));
            }
        }
    }

    /// Reads what the node wants, and leaves the next frame of a visit for [`Connection::next`]. It never returns: it is for a
    /// task that does something else meanwhile.
    pub async fn note_wanted(&mut self) -> Infallible {
        poll_fn(|context| {
            // The bytes of its one visit follow without frames.
            while !self.is_single
                // That the connection has ended or failed shows by the next frame, too.
                && let Ok(Some(header)) = ready!(self.poll_expected(context))
                && header.is_hint()
                && ready!(self.poll_frame(context, header)).is_ok()
            {}
            Poll::Pending
        })
        .await
    }

    /// The header of the next frame, or of the one that was read in part.
    fn poll_expected(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Header>>> {
        match self.expected {
            Some(header) => Poll::Ready(Ok(Some(header))),
            None => self.poll_header(context),
        }
    }

    /// The frame of a header that was read; `None` for one that is no concern of its reader's.
    fn poll_frame(&mut self, context: &mut Context<'_>, header: Header) -> Poll<io::Result<Option<Frame>>> {
        if !header.is_data() {
            ready!(self.poll_payload(context))?;
        }
        let payload = std::mem::take(&mut self.payload);
        (self.expected, self.payload_filled, self.header_filled) = (None, 0, 0);
        Poll::Ready(Ok(match header.frame(payload)? {
            Some(Frame::Wanted(wanted)) => {
                self.on_wanted.iter().for_each(|on_wanted| on_wanted(wanted));
                None
            }
            frame => frame,
        }))
    }

    fn poll_header(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Header>>> {
        while self.header_filled < HEADER {
            let space = &mut self.header[self.header_filled..];
            match ready!(poll_read_some(&mut self.stream, context, space))? {
                0 if self.header_filled == 0 => return Poll::Ready(Ok(None)),
                0 => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                read => self.header_filled += read,
            }
        }
        let header = Header::parse(self.header)?;
        if !header.is_data() {
            self.payload = vec![0; header.length];
        }
        self.expected = Some(header);
        Poll::Ready(Ok(Some(header)))
    }

    fn poll_payload(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.payload_filled < self.payload.len() {
            let space = &mut self.payload[self.payload_filled..];
            match ready!(poll_read_some(&mut self.stream, context, space))? {
                0 => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                read => self.payload_filled += read,
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Reads the bytes of a data frame, at most `most`, or bytes without frames. Zero bytes are the end.
    pub(super) fn poll_bytes(
        &mut self,
        context: &mut Context<'_>,
        space: &mut ReadBuf<'_>,
        most: usize,
    ) -> Poll<io::Result<usize>> {
        let before = space.filled().len();
        // `Take` needs no space that is filled with zeros first.
        let mut stream = (&mut self.stream).take(most as u64);
        ready!(Pin::new(&mut stream).poll_read(context, space))?;
        Poll::Ready(Ok(space.filled().len() - before))
    }

    /// Queues a frame.
    ///
    /// # Errors
    ///
    /// If the frame is too long.
    pub fn push(&mut self, frame: &Frame) -> io::Result<()> {
        frame.write(&mut self.queue)
    }

    /// Queues a data frame.
    pub(super) fn push_data(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.queue.reserve(HEADER + bytes.len());
        self.push(&Frame::Data { length: bytes.len() })?;
        self.queue.extend_from_slice(bytes);
        Ok(())
    }

    /// Bytes that wait to be written.
    pub(super) fn queued(&self) -> usize {
        self.queue.len() - self.written
    }

    /// Writes what is queued, as far as the stream takes it.
    pub(super) fn poll_queue(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.queue.len() {
            let rest = &self.queue[self.written..];
            match ready!(Pin::new(&mut self.stream).poll_write(context, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.written += written,
            }
        }
        // A quiet connection needs no memory for what it may write later.
        (self.queue, self.written) = (Vec::new(), 0);
        Poll::Ready(Ok(()))
    }

    pub(super) fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_queue(context))?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    pub(super) fn stream(&mut self) -> Pin<&mut S> {
        Pin::new(&mut self.stream)
    }

    /// Whether a frame was read in part, or something is queued.
    pub(super) fn is_within_frame(&self) -> bool {
        self.header_filled > 0 || self.queued() > 0
    }

    /// Sends a frame.
    ///
    /// # Errors
    ///
    /// If the frame is too long, or the connection fails.
    pub async fn send(&mut self, frame: &Frame) -> io::Result<()> {
        self.push(frame)?;
        poll_fn(|context| self.poll_flush(context)).await
    }

    /// Reads and drops all bytes of the other side up to the end of its direction.
    ///
    /// # Errors
    ///
    /// If it does not end its direction by [`Frame::End`].
    pub async fn discard(&mut self) -> io::Result<()> {
        if self.is_single {
            tokio::io::copy(&mut self.stream, &mut tokio::io::sink()).await?;
            return Ok(());
        }
        loop {
            match self.next().await? {
                Some(Frame::Data { length }) => self.discard_data(length).await?,
                Some(Frame::End) => return Ok(()),
                Some(frame) => return Err(malformed(format!("{frame:?} came instead of the end"))),
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
    }

    async fn discard_data(&mut self, mut left: usize) -> io::Result<()> {
        let mut space = [0; 1024];
        while left > 0 {
            let mut buffer = ReadBuf::new(&mut space);
            match poll_fn(|context| self.poll_bytes(context, &mut buffer, left)).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => left -= read,
            }
        }
        Ok(())
    }

    /// Closes the connection.
    ///
    /// # Errors
    ///
    /// If it has failed.
    pub async fn close(mut self) -> io::Result<()> {
        self.stream.shutdown().await
    }
}

fn poll_read_some<S: AsyncRead + Unpin>(
    stream: &mut S,
    context: &mut Context<'_>,
    space: &mut [u8],
) -> Poll<io::Result<usize>> {
    let mut space = ReadBuf::new(space);
    ready!(Pin::new(stream).poll_read(context, &mut space))?;
    Poll::Ready(Ok(space.filled().len()))
}
