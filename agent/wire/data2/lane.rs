//! Lanes: what carries datagrams between a node and an agent. A lane loses datagrams rather than delay them.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use quinn::{ConnectionError, RecvStream, SendDatagramError};

use super::connection::Connection;
use super::datagram::{Datagram, MOST_OVERHEAD, MOST_PAYLOAD};
use super::frame::{Frame, malformed};
use super::transport::Transport;
use crate::clock::{Clock, Moment};
use crate::quic;

/// How long a datagram may wait to be sent.
const WAITS: Duration = Duration::from_millis(50);
/// Bytes that may wait on any path.
const QUEUE_AT_LEAST: usize = 64 * 1024;
/// Bytes that may wait on a TLS connection.
const TLS_QUEUE: usize = 4 << 20;
/// After so many datagrams, it is estimated again how many bytes a path carries while a datagram may wait.
const ESTIMATED_EVERY: usize = 256;
/// Bytes that one datagram of any path carries: QUIC needs packets of 1,200 (RFC 9000, section 14).
const ALWAYS_FITS: usize = 1100;
/// How long a stream with one datagram may take.
const STREAM_WITHIN: Duration = Duration::from_secs(5);
/// Most malformed datagrams of a connection within a second.
const MOST_MALFORMED: u32 = 100;

/// Why a datagram was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// Too many wait before it.
    Queue,
    /// It is too long for one datagram of the path.
    TooLong,
    /// It is too long for two datagrams, and no more streams may be open.
    Streams,
    /// The connection has ended.
    NoConnection,
    /// It is no datagram of this protocol.
    Malformed,
}

impl Dropped {
    /// Its name in metrics.
    pub fn cause(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::TooLong => "too_long",
            Self::Streams => "streams",
            Self::NoConnection => "no_connection",
            Self::Malformed => "malformed",
        }
    }
}

/// Takes what a lane brings.
pub trait Receiver: Clone + Send + Sync + 'static {
    fn take(&self, datagram: Datagram);

    /// Something was dropped that was received or queued before.
    fn dropped(&self, why: Dropped);
}

#[derive(Clone)]
pub enum Lane {
    Quic(Arc<QuicLane>),
    Tls(Arc<TlsLane>),
}

impl Lane {
    pub fn quic(connection: quinn::Connection) -> Self {
        let queue_limit = AtomicUsize::new(QUEUE_AT_LEAST);
        Self::Quic(Arc::new(QuicLane { connection, queue_limit, sent: AtomicUsize::new(0), part: AtomicU16::new(0) }))
    }

    /// Sends a datagram, or drops it.
    ///
    /// # Errors
    ///
    /// Why it was dropped.
    pub fn send(&self, datagram: Datagram) -> Result<(), Dropped> {
        match self {
            Self::Quic(lane) => lane.send(datagram),
            Self::Tls(lane) => lane.push(datagram.bytes()),
        }
    }
}

/// The lanes between a node and an agent.
#[derive(Default)]
pub struct Lanes {
    pub quic: Option<Lane>,
    pub tls: Vec<Arc<TlsLane>>,
}

impl Lanes {
    /// The lane of a flow: QUIC, or else one of the TLS connections, the same for all of the flow's datagrams.
    pub fn find(&self, flow: u64) -> Option<Lane> {
        if let Some(quic) = &self.quic {
            return Some(quic.clone());
        }
        let at = flow.checked_rem(self.tls.len() as u64)?;
        self.tls.get(at as usize).cloned().map(Lane::Tls)
    }

    pub fn is_empty(&self) -> bool {
        self.quic.is_none() && self.tls.is_empty()
    }

    /// Forgets a TLS connection.
    pub fn remove_tls(&mut self, lane: &Arc<TlsLane>) {
        self.tls.retain(|known| !Arc::ptr_eq(known, lane));
    }
}

pub struct QuicLane {
    connection: quinn::Connection,
    /// Bytes that may wait.
    queue_limit: AtomicUsize,
    sent: AtomicUsize,
    /// The number of the last payload that was sent in parts.
    part: AtomicU16,
}

impl QuicLane {
    fn send(&self, datagram: Datagram) -> Result<(), Dropped> {
        let bytes = datagram.bytes();
        if bytes.len() <= ALWAYS_FITS {
            return self.send_bytes(bytes);
        }
        let most = self.connection.max_datagram_size().unwrap_or_default();
        if bytes.len() <= most {
            return self.send_bytes(bytes);
        }
        let datagram = match datagram {
            Datagram::Open(mut open) => {
                let (flow, payload) = (open.flow, open.payload.take().unwrap_or_default());
                self.send_bytes(Datagram::Open(open).bytes())?;
                Datagram::Data { flow, payload }
            }
            other => other,
        };
        match datagram.split(most, self.part.fetch_add(1, Ordering::Relaxed)) {
            Some([first, second]) => {
                self.send_bytes(first.bytes())?;
                self.send_bytes(second.bytes())
            }
            None => self.send_on_stream(bytes),
        }
    }

    fn send_bytes(&self, bytes: Bytes) -> Result<(), Dropped> {
        if self.sent.fetch_add(1, Ordering::Relaxed).is_multiple_of(ESTIMATED_EVERY) {
            self.queue_limit.store(self.estimated_queue(), Ordering::Relaxed);
        }
        let queued = quic::DATAGRAM_BUFFER.saturating_sub(self.connection.datagram_send_buffer_space());
        if queued + bytes.len() > self.queue_limit.load(Ordering::Relaxed) {
            return Err(Dropped::Queue);
        }
        self.connection.send_datagram(bytes).map_err(|error| match error {
            SendDatagramError::TooLarge => Dropped::TooLong,
            _ => Dropped::NoConnection,
        })
    }

    /// The bytes that the path carries while a datagram may wait.
    fn estimated_queue(&self) -> usize {
        let path = self.connection.stats().path;
        let carried = path.cwnd as f64 / path.rtt.as_secs_f64().max(1e-6) * WAITS.as_secs_f64();
        (carried as usize).clamp(QUEUE_AT_LEAST, quic::DATAGRAM_BUFFER / 2)
    }

    /// Sends a datagram that is too long for two on a stream of its own.
    fn send_on_stream(&self, bytes: Bytes) -> Result<(), Dropped> {
        let opening = pin!(self.connection.open_uni());
        match opening.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(mut stream)) => {
                tokio::spawn(async move {
                    // Where it fails, the datagram is lost with its connection.
                    if stream.write_all(&bytes).await.is_ok() {
                        let _ = stream.finish();
                    }
                });
                Ok(())
            }
            Poll::Ready(Err(_)) => Err(Dropped::NoConnection),
            Poll::Pending => Err(Dropped::Streams),
        }
    }
}

/// Takes the datagrams of a connection of QUIC, until it ends. Returns why it has ended.
pub async fn receive<R: Receiver>(connection: &quinn::Connection, clock: &Clock, receiver: R) -> ConnectionError {
    let mut malformed = MalformedCount::default();
    loop {
        let bytes = tokio::select! {
            bytes = connection.read_datagram() => bytes,
            stream = connection.accept_uni() => match stream {
                Ok(stream) => {
                    tokio::spawn(receive_stream(stream, clock.clone(), receiver.clone()));
                    continue;
                }
                Err(error) => Err(error),
            },
        };
        match bytes.map(Datagram::parse) {
            Ok(Ok(datagram)) => receiver.take(datagram),
            Ok(Err(_)) => {
                receiver.dropped(Dropped::Malformed);
                if malformed.is_too_many(clock.moment()) {
                    connection.close(quic::CUT, b"too many malformed datagrams");
                }
            }
            Err(ended) => return ended,
        }
    }
}

/// Takes the one datagram of a stream.
async fn receive_stream<R: Receiver>(mut stream: RecvStream, clock: Clock, receiver: R) {
    let read = clock.timeout(STREAM_WITHIN, stream.read_to_end(MOST_OVERHEAD + MOST_PAYLOAD)).await;
    match read.ok().and_then(Result::ok).map(|bytes| Datagram::parse(bytes.into())) {
        Some(Ok(datagram)) => receiver.take(datagram),
        _ => receiver.dropped(Dropped::Malformed),
    }
}

#[derive(Default)]
struct MalformedCount {
    since: Option<Moment>,
    count: u32,
}

impl MalformedCount {
    /// Counts one more.
    fn is_too_many(&mut self, now: Moment) -> bool {
        if self.since.is_none_or(|since| now.since(since) >= Duration::from_secs(1)) {
            (self.since, self.count) = (Some(now), 0);
        }
        self.count += 1;
        self.count > MOST_MALFORMED
    }
}

/// The datagrams that wait to be sent on a TLS connection. The oldest go first when there are too many, or when they have
/// waited too long: a connection of TCP would deliver all of them, seconds later.
pub struct TlsLane {
    clock: Clock,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<(Moment, Bytes)>,
    bytes: usize,
    dropped: usize,
    is_closed: bool,
    writer: Option<Waker>,
}

impl Queue {
    fn pop(&mut self) -> Option<(Moment, Bytes)> {
        let (since, bytes) = self.waiting.pop_front()?;
        self.bytes -= bytes.len();
        Some((since, bytes))
    }

    /// The oldest one that has not waited too long.
    fn next(&mut self, now: Moment) -> Option<Bytes> {
        while let Some((since, bytes)) = self.pop() {
            if now.since(since) < WAITS {
                return Some(bytes);
            }
            self.dropped += 1;
        }
        None
    }
}

impl TlsLane {
    pub fn new(clock: Clock) -> Arc<Self> {
        Arc::new(Self { clock, queue: Mutex::default() })
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, bytes: Bytes) -> Result<(), Dropped> {
        let now = self.clock.moment();
        let mut queue = self.queue();
        if queue.is_closed {
            return Err(Dropped::NoConnection);
        }
        while queue.bytes + bytes.len() > TLS_QUEUE && queue.pop().is_some() {
            queue.dropped += 1;
        }
        queue.bytes += bytes.len();
        queue.waiting.push_back((now, bytes));
        if let Some(writer) = queue.writer.take() {
            writer.wake();
        }
        Ok(())
    }

    /// Ends the connection.
    pub fn close(&self) {
        let mut queue = self.queue();
        queue.is_closed = true;
        queue.waiting.clear();
        if let Some(writer) = queue.writer.take() {
            writer.wake();
        }
    }

    /// Sends and takes datagrams on a connection, until it ends.
    ///
    /// # Errors
    ///
    /// Why it has ended.
    pub async fn run<R: Receiver>(&self, connection: &mut Connection<Transport>, receiver: &R) -> io::Result<()> {
        let ended = poll_fn(|context| {
            if let Poll::Ready(Err(error)) = self.poll_send(connection, context, receiver) {
                return Poll::Ready(Err(error));
            }
            self.poll_receive(connection, context, receiver)
        });
        let ended = ended.await;
        self.close();
        ended
    }

    fn poll_send<R: Receiver>(
        &self,
        connection: &mut Connection<Transport>,
        context: &mut Context<'_>,
        receiver: &R,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(connection.poll_flush(context))?;
            let (next, dropped) = {
                let mut queue = self.queue();
                let next = queue.next(self.clock.moment());
                if queue.is_closed {
                    return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
                }
                if next.is_none() {
                    queue.writer = Some(context.waker().clone());
                }
                (next, std::mem::take(&mut queue.dropped))
            };
            (0..dropped).for_each(|_| receiver.dropped(Dropped::Queue));
            match next {
                Some(bytes) => connection.push(&Frame::Datagram(bytes))?,
                None => return Poll::Pending,
            }
        }
    }

    fn poll_receive<R: Receiver>(
        &self,
        connection: &mut Connection<Transport>,
        context: &mut Context<'_>,
        receiver: &R,
    ) -> Poll<io::Result<()>> {
        loop {
            match ready!(connection.poll_next(context))? {
                Some(Frame::Datagram(bytes)) => {
                    // Frames are not lost on the way: a malformed one is the other side's mistake.
                    receiver.take(Datagram::parse(bytes).map_err(|error| malformed(error.to_string()))?);
                }
                Some(frame) => return Poll::Ready(Err(malformed(format!("{frame:?} came instead of a datagram")))),
                None => return Poll::Ready(Ok(())),
            }
        }
    }
}
