//! What a visitor's connection of HTTP/1.1 waits for, and when it has waited too long.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use culvert_wire::clock::{Clock, Moment};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use super::activity::Activity;
use super::limits::WebLimits;
use super::transport::Socket;
use crate::lock;

/// The phase of a connection. Its task polls the end of it, also while a visitor takes nothing.
pub(super) struct ConnectionPhase {
    clock: Clock,
    keep_alive: Duration,
    header_timeout: Duration,
    state: Mutex<State>,
}

struct State {
    phase: Phase,
    /// The body of a request that is under way, which may go on after the answer, and how long it may rest.
    upload: Option<(Arc<Activity>, Duration)>,
    /// A request that waits until the answer to the former one is written.
    waiting: Option<Waker>,
    /// The next look at the phase, at its end or before. A phase that only gets longer needs no new one.
    alarm: Option<(Moment, BoxFuture<'static, ()>)>,
}

enum Phase {
    /// Until the next request begins.
    Idle { until: Moment },
    /// Until the head of a request is complete.
    Head { until: Moment },
    /// Until there is an answer. The exchange has limits of its own.
    Exchange,
    /// Until the answer has been passed on. If the connection ends now, it must not look complete.
    Answer { out: BoxFuture<'static, ()>, activity: Arc<Activity>, idle: Duration },
    /// Until the visitor has taken the rest of a complete answer.
    Flush { since: Moment, idle: Duration },
}

impl ConnectionPhase {
    pub(super) fn new(clock: Clock, limits: WebLimits) -> Arc<Self> {
        let phase = Phase::Idle { until: clock.moment().plus(limits.first_byte_timeout) };
        Arc::new(Self {
            clock,
            keep_alive: limits.keep_alive,
            header_timeout: limits.header_timeout,
            state: Mutex::new(State { phase, upload: None, waiting: None, alarm: None }),
        })
    }

    /// The head of a request is complete. Waits until the former answer is written: answers that nobody takes must not
    /// pile up.
    pub(super) async fn begin_exchange(&self) {
        poll_fn(|context| {
            let mut state = lock(&self.state);
            if let Phase::Flush { .. } = state.phase {
                state.waiting = Some(context.waker().clone());
                return Poll::Pending;
            }
            state.phase = Phase::Exchange;
            Poll::Ready(())
        })
        .await;
    }

    /// The body of the request is under way until this is dropped.
    pub(super) fn begin_upload(self: &Arc<Self>, activity: Arc<Activity>, idle: Duration) -> Uploading {
        lock(&self.state).upload = Some((activity.clone(), idle));
        Uploading { phase: self.clone(), activity }
    }

    /// The service has agreed to a WebSocket. That has to be written in time.
    pub(super) fn begin_upgrade(&self) {
        lock(&self.state).phase = Phase::Head { until: self.clock.moment().plus(self.header_timeout) };
    }

    /// An answer is passed on. It is cut when changed rules deny the visitor, the run ends, or nothing moves any longer.
    pub(super) fn begin_answer(&self, out: CancellationToken, activity: Arc<Activity>, idle: Duration) {
        lock(&self.state).phase = Phase::Answer { out: out.cancelled_owned().boxed(), activity, idle };
    }

    /// The answer is complete, but for what the visitor has yet to take.
    pub(super) fn end_exchange(&self) {
        let mut state = lock(&self.state);
        let idle = match state.phase {
            Phase::Answer { idle, .. } => idle,
            Phase::Exchange => self.keep_alive,
            Phase::Idle { .. } | Phase::Head { .. } | Phase::Flush { .. } => return,
        };
        state.phase = Phase::Flush { since: self.clock.moment(), idle };
    }

    fn idle(&self) -> Phase {
        Phase::Idle { until: self.clock.moment().plus(self.keep_alive) }
    }

    pub(super) fn is_within_answer(&self) -> bool {
        matches!(lock(&self.state).phase, Phase::Answer { .. } | Phase::Flush { .. })
    }

    /// Bytes have come from the visitor.
    fn received(&self) {
        let mut state = lock(&self.state);
        if let Phase::Idle { .. } = state.phase
            && state.upload.is_none()
        {
            state.phase = Phase::Head { until: self.clock.moment().plus(self.header_timeout) };
        }
    }

    /// The visitor has taken bytes at this moment.
    fn sent(&self, at: Moment) {
        if let Phase::Flush { since, .. } = &mut lock(&self.state).phase {
            *since = at;
        }
    }

    /// The visitor has taken everything that was written.
    fn flushed(&self) {
        let mut state = lock(&self.state);
        if let Phase::Flush { since, .. } = state.phase {
            state.phase = Phase::Idle { until: since.plus(self.keep_alive) };
            state.waiting.take().into_iter().for_each(Waker::wake);
        }
    }

    /// Why the connection has to end.
    pub(super) fn poll(&self, context: &mut Context<'_>) -> Poll<io::Error> {
        let State { phase, upload, alarm, .. } = &mut *lock(&self.state);
        if let Phase::Answer { out, .. } = phase
            && out.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(io::ErrorKind::ConnectionAborted.into());
        }
        loop {
            let end = match phase {
                Phase::Idle { until } => match upload {
                    Some((activity, idle)) => activity.last().plus(*idle).max(*until),
                    None => *until,
                },
                Phase::Head { until } => *until,
                Phase::Exchange => return Poll::Pending,
                Phase::Answer { activity, idle, .. } => activity.last().plus(*idle),
                Phase::Flush { since, idle } => since.plus(*idle),
            };
            if self.clock.moment() >= end {
                return Poll::Ready(io::ErrorKind::TimedOut.into());
            }
            match alarm {
                Some((at, waiting)) if *at <= end => match waiting.as_mut().poll(context) {
                    Poll::Ready(()) => *alarm = None,
                    Poll::Pending => return Poll::Pending,
                },
                _ => {
                    let clock = self.clock.clone();
                    *alarm = Some((end, async move { clock.until(end).await }.boxed()));
                }
            }
        }
    }
}

/// The body of a request that is under way.
pub(super) struct Uploading {
    phase: Arc<ConnectionPhase>,
    activity: Arc<Activity>,
}

impl Drop for Uploading {
    fn drop(&mut self) {
        let mut state = lock(&self.phase.state);
        // The next request may have a body of its own by now.
        if state.upload.take_if(|(activity, _)| Arc::ptr_eq(activity, &self.activity)).is_some()
            && let Phase::Idle { .. } = state.phase
        {
            state.phase = self.phase.idle();
        }
    }
}

/// A visitor's connection that tells its phase of bytes.
pub(super) struct PhasedStream<S> {
    stream: S,
    phase: Arc<ConnectionPhase>,
}

impl<S> PhasedStream<S> {
    pub(super) fn new(stream: S, phase: Arc<ConnectionPhase>) -> Self {
        Self { stream, phase }
    }

    /// Notes a write that began at this moment.
    fn note(&self, began: Moment, written: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(1..)) = written {
            self.phase.sent(began);
        }
    }
}

impl<S: Socket> Socket for PhasedStream<S> {
    fn socket(&self) -> &TcpStream {
        self.stream.socket()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for PhasedStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, space: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = space.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, space);
        if space.filled().len() > before {
            self.phase.received();
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for PhasedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let began = self.phase.clock.moment();
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.note(began, &written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let began = self.phase.clock.moment();
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.note(began, &written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        if let Poll::Ready(Ok(())) = flushed {
            self.phase.flushed();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
