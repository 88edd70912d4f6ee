//! The bytes of one visit, as a stream over a data connection.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::connection::Connection;
use super::frame::{DATA_LIMIT, Frame, malformed};
use super::visit::{Accepted, Refused, Visit};
use super::waiters::Waiters;

/// After so many bytes of a visit, the rest of the direction is sent without frames.
pub const REST_AFTER: u64 = 1024 * 1024;
/// Data is added to what is queued up to this size. Beyond it, the queue is written first.
const QUEUE: usize = 8 * 1024;

/// One visit. It ends with both of its directions; [`VisitStream::finish`] then gives the connection back.
pub struct VisitStream<S> {
    connection: Connection<S>,
    receiving: Receiving,
    sending: Sending,
    sent: u64,
    /// How the agent has accepted the visit.
    accepted: Arc<OnceLock<Accepted>>,
    /// The visitors who wait for a connection of the agent. It is told of them until it has answered.
    waiters: Option<Arc<Waiters>>,
    /// Whether the queue is to wait for the next flush: see [`VisitStream::accept`].
    is_held: bool,
    /// Whether the other side has not kept to the protocol.
    is_malformed: bool,
}

enum Receiving {
    /// The agent has not answered yet.
    Offered,
    Frames {
        /// Bytes of the current data frame that were not read yet.
        left: usize,
    },
    Rest,
    Ended,
    RestEnded,
    Refused(Refused),
}

impl Receiving {
    /// What follows an acceptance.
    fn bytes(is_single: bool) -> Self {
        if is_single { Self::Rest } else { Self::Frames { left: 0 } }
    }
}

#[derive(PartialEq)]
enum Sending {
    Frames,
    Rest,
    /// [`Frame::End`] is queued or written.
    Ended,
    RestEnded,
}

/// What is left when a visit has ended.
pub enum Finished<S> {
    /// The connection is warm again.
    Warm(Connection<S>),
    /// The connection cannot be used again, but nothing was cut short.
    Used(Connection<S>),
    /// The visit was cut short. The connection must be reset.
    Cut(Connection<S>),
}

impl<S: AsyncRead + AsyncWrite + Unpin> VisitStream<S> {
    /// The node's side: announces a visit, and until the agent has answered, how many more visitors wait.
    ///
    /// # Errors
    ///
    /// If the announcement is too long for a frame.
    pub fn offer(mut connection: Connection<S>, visit: Visit, waiters: Arc<Waiters>) -> io::Result<Self> {
        connection.begin_visit();
        connection.push(&Frame::Visit(visit))?;
        Ok(Self { waiters: Some(waiters), ..Self::new(connection, Receiving::Offered, false) })
    }

    /// The agent's side: accepts a visit. The acceptance usually goes with the first bytes of the target: it waits for
    /// the second flush, which a pipe does at the latest when nothing has moved for a second; for the first one if the
    /// node waits for it.
    ///
    /// # Errors
    ///
    /// If the name of the protocol is too long for a frame.
    pub fn accept(mut connection: Connection<S>, accepted: Accepted, is_awaited: bool) -> io::Result<Self> {
        connection.push(&Frame::Accepted(accepted))?;
        let receiving = Receiving::bytes(connection.is_single());
        Ok(Self::new(connection, receiving, !is_awaited))
    }

    fn new(connection: Connection<S>, receiving: Receiving, is_held: bool) -> Self {
        let sending = if connection.is_single() { Sending::Rest } else { Sending::Frames };
        let accepted = Arc::default();
        Self { connection, receiving, sending, sent: 0, accepted, waiters: None, is_held, is_malformed: false }
    }

    /// Whether this is the only visit of its connection.
    pub fn is_single(&self) -> bool {
        self.connection.is_single()
    }

    /// The node's side: set when the agent accepts the visit.
    pub fn accepted(&self) -> Arc<OnceLock<Accepted>> {
        self.accepted.clone()
    }

    /// The node's side: the visitors who wait for a connection of the same agent.
    pub fn waiters(&self) -> Option<&Arc<Waiters>> {
        self.waiters.as_ref()
    }

    /// Waits until the agent has accepted the visit.
    ///
    /// # Errors
    ///
    /// If it is refused, or the connection fails.
    pub async fn until_accepted(&mut self) -> io::Result<()> {
        poll_fn(|context| {
            while matches!(self.receiving, Receiving::Offered) {
                self.tell_of_waiters(context)?;
                ready!(self.connection.poll_flush(context))?;
                ready!(self.poll_frames(context))?;
            }
            Poll::Ready(self.refused().map_or(Ok(()), Err))
        })
        .await
    }

    fn refused(&self) -> Option<io::Error> {
        self.refusal().map(|refused| io::Error::new(io::ErrorKind::ConnectionRefused, refused.detail.clone()))
    }

    /// Whether the other side has not kept to the protocol.
    pub fn is_malformed(&self) -> bool {
        self.is_malformed
    }

    /// Why the agent has refused the visit.
    pub fn refusal(&self) -> Option<&Refused> {
        match &self.receiving {
            Receiving::Refused(refused) => Some(refused),
            _ => None,
        }
    }

    /// Whether this side has ended its direction of an accepted visit, and the other side has not.
    pub fn is_half_ended(&self) -> bool {
        matches!(self.sending, Sending::Ended | Sending::RestEnded)
            && matches!(self.receiving, Receiving::Frames { left: 0 } | Receiving::Rest)
    }

    /// The connection, when the visit has ended.
    pub fn finish(self) -> Finished<S> {
        let Self { connection, receiving, sending, .. } = self;
        let is_whole = !connection.is_within_frame();
        match (receiving, sending) {
            (Receiving::Ended | Receiving::Refused(_), Sending::Ended) if is_whole => Finished::Warm(connection),
            (Receiving::Ended | Receiving::RestEnded | Receiving::Refused(_), Sending::Ended | Sending::RestEnded)
                if is_whole =>
            {
                Finished::Used(connection)
            }
            _ => Finished::Cut(connection),
        }
    }

    /// Tells the agent that more visitors wait, if there are more.
    fn tell_of_waiters(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let waiters = self.waiters.as_ref().filter(|_| self.sending == Sending::Frames);
        if let Some(wanted) = waiters.and_then(|waiters| waiters.untold(context)) {
            self.connection.push(&Frame::Wanted(wanted))?;
            // What the stream does not take now is written by the next call.
            if let Poll::Ready(flushed) = self.connection.poll_flush(context) {
                flushed?;
            }
        }
        Ok(())
    }

    /// Reads frames up to the next bytes or the end of the direction.
    fn poll_frames(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = self.poll_frame(context);
        if let Poll::Ready(Err(error)) = &polled {
            self.is_malformed |= error.kind() == io::ErrorKind::InvalidData;
        }
        polled
    }

    fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let frame = ready!(self.connection.poll_next(context))?;
        let is_offered = matches!(self.receiving, Receiving::Offered);
        self.receiving = match frame {
            Some(Frame::Accepted(accepted)) if is_offered => {
                // It comes once: nothing is offered any more.
                let _ = self.accepted.set(accepted);
                Receiving::bytes(self.connection.is_single())
            }
            Some(Frame::Refused(refused)) if is_offered => Receiving::Refused(refused),
            // The agent wanted to close the connection when the visit was under way.
            Some(Frame::Retire) if is_offered => return Poll::Ready(Ok(())),
            Some(Frame::Data { length }) if !is_offered => Receiving::Frames { left: length },
            Some(Frame::End) if !is_offered => Receiving::Ended,
            Some(Frame::Rest) if !is_offered => Receiving::Rest,
            Some(frame) => return Poll::Ready(Err(malformed(format!("{frame:?} came within a visit")))),
            None => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
        };
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for VisitStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, space: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            match &mut this.receiving {
                Receiving::Offered => {
                    this.tell_of_waiters(context)?;
                    ready!(this.poll_frames(context))?;
                }
                Receiving::Frames { left: 0 } => ready!(this.poll_frames(context))?,
                Receiving::Frames { left } => {
                    let read = ready!(this.connection.poll_bytes(context, space, *left))?;
                    if read == 0 && space.remaining() > 0 {
                        return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
                    }
                    *left -= read;
                    return Poll::Ready(Ok(()));
                }
                Receiving::Rest => {
                    if ready!(this.connection.poll_bytes(context, space, usize::MAX))? == 0 && space.remaining() > 0 {
                        this.receiving = Receiving::RestEnded;
                    }
                    return Poll::Ready(Ok(()));
                }
                Receiving::Ended | Receiving::RestEnded => return Poll::Ready(Ok(())),
                Receiving::Refused(_) => return Poll::Ready(this.refused().map_or(Ok(()), Err)),
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for VisitStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        match this.sending {
            Sending::Frames => {}
            Sending::Rest => {
                ready!(this.connection.poll_queue(context))?;
                return this.connection.stream().poll_write(context, bytes);
            }
            Sending::Ended | Sending::RestEnded => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        if this.connection.queued() > QUEUE {
            ready!(this.connection.poll_queue(context))?;
        }
        let taken = &bytes[..bytes.len().min(DATA_LIMIT)];
        this.connection.push_data(taken)?;
        this.sent += taken.len() as u64;
        if this.sent >= REST_AFTER {
            this.connection.push(&Frame::Rest)?;
            this.sending = Sending::Rest;
        }
        // What the stream does not take now is written by the next call.
        if let Poll::Ready(written) = this.connection.poll_queue(context) {
            written?;
        }
        Poll::Ready(Ok(taken.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if std::mem::take(&mut self.is_held) && self.sent == 0 {
            return Poll::Ready(Ok(()));
        }
        self.connection.poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        match this.sending {
            Sending::Frames => {
                this.connection.push(&Frame::End)?;
                this.sending = Sending::Ended;
            }
            Sending::Rest => {
                ready!(this.connection.poll_queue(context))?;
                ready!(this.connection.stream().poll_shutdown(context))?;
                this.sending = Sending::RestEnded;
            }
            Sending::Ended | Sending::RestEnded => {}
        }
        if this.sending == Sending::RestEnded {
            return Poll::Ready(Ok(()));
        }
        this.connection.poll_flush(context)
    }
}
