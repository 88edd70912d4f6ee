//! The idle data connections of one run whose agent speaks version 1 of their protocol.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use culvert_wire::data::ACCEPTED;
use futures_util::FutureExt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio_rustls::server::TlsStream;

use super::lock;

/// An agent's connection. It takes more than a kilobyte, so it is moved as a pointer.
pub(crate) type LeaseStream = Box<TlsStream<TcpStream>>;

/// Idle connections that are kept, at most: twice as many as an agent dials ahead at most.
const MOST_IDLE: usize = 128;

#[derive(Default)]
pub(crate) struct LeaseConnections {
    idle: Mutex<Vec<LeaseStream>>,
    added: Notify,
    /// Whether the agent has ever attached a connection of this version.
    is_used: AtomicBool,
    /// Visitors that wait for a connection.
    waiting: AtomicUsize,
}

impl LeaseConnections {
    pub(crate) fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    /// How many visitors wait for a connection.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Keeps an idle connection until a visitor comes. Stale connections and the oldest surplus ones are
    /// dropped.
    pub(crate) fn add(&self, connection: LeaseStream) {
        self.is_used.store(true, Ordering::Relaxed);
        let mut idle = lock(&self.idle);
        idle.retain_mut(|connection| !is_stale(connection));
        idle.push(connection);
        let surplus = idle.len().saturating_sub(MOST_IDLE);
        idle.drain(..surplus);
        drop(idle);
        self.added.notify_one();
    }

    pub(crate) fn clear(&self) {
        lock(&self.idle).clear();
    }

    /// Takes the newest idle connection, or waits for one. The older ones stay idle, so that the agent can
    /// close them if there are too many.
    pub(crate) async fn wait(&self) -> LeaseStream {
        let _waits = Waits::new(&self.waiting);
        loop {
            let added = self.added.notified();
            if let Some(connection) = self.take() {
                return connection;
            }
            added.await;
        }
    }

    fn take(&self) -> Option<LeaseStream> {
        let mut idle = lock(&self.idle);
        while let Some(mut connection) = idle.pop() {
            if !is_stale(&mut connection) {
                return Some(connection);
            }
        }
        None
    }
}

/// Counts a visitor that waits.
struct Waits<'a>(&'a AtomicUsize);

impl<'a> Waits<'a> {
    fn new(waiting: &'a AtomicUsize) -> Self {
        waiting.fetch_add(1, Ordering::Relaxed);
        Self(waiting)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether the agent has ended an idle connection. The agent sends nothing on it, so any event means the end.
fn is_stale(connection: &mut LeaseStream) -> bool {
    let socket = connection.get_ref().0;
    let mut byte = [0; 1];
    let mut space = ReadBuf::new(&mut byte);
    std::future::poll_fn(|context| socket.poll_peek(context, &mut space)).now_or_never().is_some()
}

/// An agent's connection whose first byte says whether the agent reached the local target.
pub(crate) struct AwaitingAcceptByte {
    pub connection: LeaseStream,
    pub accepted: Arc<AtomicBool>,
}

impl AwaitingAcceptByte {
    pub(crate) fn new(connection: LeaseStream) -> Self {
        Self { connection, accepted: Arc::default() }
    }
}

impl AsyncRead for AwaitingAcceptByte {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, space: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.accepted.load(Ordering::Relaxed) {
            let mut byte = [0; 1];
            let mut first = ReadBuf::new(&mut byte);
            ready!(Pin::new(&mut self.connection).poll_read(context, &mut first))?;
            if first.filled() != [ACCEPTED] {
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionRefused, "the local target refused")));
            }
            self.accepted.store(true, Ordering::Relaxed);
        }
        Pin::new(&mut self.connection).poll_read(context, space)
    }
}

impl AsyncWrite for AwaitingAcceptByte {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.connection).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(context)
    }
}
