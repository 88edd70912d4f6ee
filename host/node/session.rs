//! The session relay: carries the bytes of one run between visitors and the agent's idle connections.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use culvert_wire::clock::Clock;
use culvert_wire::data::{ACCEPTED, ATTACHED, Attach, FENCED, UNKNOWN_KEY, Visit, write_frame};
use culvert_wire::lease_token::{self, Lease, TokenError};
use culvert_wire::node::{Assignment, SessionTraffic};
use culvert_wire::pipe::{self, Counters};
use culvert_wire::socket;
use futures_util::FutureExt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::admission::AdmittedVisitor;
use super::bounds::Bounds;
use super::{Shared, lock};

/// How long a visitor waits for an idle connection.
const VISITOR_WAIT: Duration = Duration::from_secs(10);
/// How long the agent may take to say whether it reached its local target.
const ACCEPT_WITHIN: Duration = Duration::from_secs(15);

/// Idle connections that are kept, at most: twice as many as an agent dials ahead at most.
const MOST_WAITING: usize = 128;

type Connection = TlsStream<TcpStream>;

pub(crate) struct SessionRelay {
    assignment: Mutex<Assignment>,
    scope_id: Uuid,
    /// The tunnel's name, for logs.
    name: String,
    /// What an agent proves with its token.
    lease: Lease,
    clock: Clock,
    bounds: Arc<Bounds>,
    limits: Mutex<pipe::Limits>,
    /// Whether the agent has reported that it serves the tunnel. Before that, no visitor is served.
    ready: watch::Sender<bool>,
    waiting: Mutex<Vec<Connection>>,
    parked: Notify,
    /// Visitors that wait for an idle connection.
    visitors: AtomicUsize,
    /// Visitors that are connected, including those that wait.
    active: watch::Sender<usize>,
    counters: Counters,
    /// The bytes of the counters that were taken already.
    taken_in: AtomicU64,
    taken_out: AtomicU64,
    ended: CancellationToken,
}

impl SessionRelay {
    pub(crate) fn new(assignment: Assignment, shared: &Shared) -> Arc<Self> {
        let Assignment { tunnel_id, session_id, epoch, .. } = assignment;
        Arc::new(Self {
            limits: Mutex::new(limits(&assignment)),
            ready: watch::Sender::new(assignment.ready),
            scope_id: assignment.scope_id,
            name: assignment.name.clone(),
            lease: Lease { node_id: shared.node_id, tunnel_id, session_id, epoch },
            assignment: Mutex::new(assignment),
            clock: shared.clock.clone(),
            bounds: shared.bounds.clone(),
            waiting: Mutex::default(),
            parked: Notify::new(),
            visitors: AtomicUsize::new(0),
            active: watch::Sender::new(0),
            counters: Counters::default(),
            taken_in: AtomicU64::new(0),
            taken_out: AtomicU64::new(0),
            ended: shared.stop.child_token(),
        })
    }

    pub(crate) fn assignment(&self) -> Assignment {
        lock(&self.assignment).clone()
    }

    pub(crate) fn scope_id(&self) -> Uuid {
        self.scope_id
    }

    pub(crate) fn session_id(&self) -> Uuid {
        self.lease.session_id
    }

    pub(crate) fn epoch(&self) -> i64 {
        self.lease.epoch
    }

    /// The number of connected visitors, including those that wait.
    pub(crate) fn visitors(&self) -> usize {
        *self.active.borrow()
    }

    /// Takes over changes of the assignment. New limits apply to new connections only.
    pub(crate) fn follow(&self, assignment: &Assignment) {
        *lock(&self.limits) = limits(assignment);
        self.ready.send_if_modified(|ready| {
            let becomes_ready = assignment.ready && !*ready;
            *ready |= assignment.ready;
            becomes_ready
        });
        *lock(&self.assignment) = assignment.clone();
    }

    /// The answer to an attach frame: whether it proves this run's lease.
    pub(crate) fn admit(&self, attach: &Attach, shared: &Shared) -> u8 {
        if attach.epoch != self.lease.epoch || self.ended.is_cancelled() {
            return FENCED;
        }
        let keys = lock(&shared.keys).clone();
        match lease_token::verify(&keys, &self.lease, &attach.token.0) {
            Ok(()) => ATTACHED,
            Err(TokenError::UnknownKey) => UNKNOWN_KEY,
            Err(TokenError::Invalid) => FENCED,
        }
    }

    /// Keeps an idle connection until a visitor comes. Stale connections and the oldest surplus ones are
    /// dropped.
    pub(crate) fn add_idle_connection(&self, connection: Connection) {
        let mut waiting = lock(&self.waiting);
        waiting.retain_mut(|connection| !is_stale(connection));
        waiting.push(connection);
        let ports_to_close = waiting.len().saturating_sub(MOST_WAITING);
        waiting.drain(..ports_to_close);
        drop(waiting);
        self.parked.notify_one();
    }

    /// Ends the run: disconnects all visitors, and drops all idle connections.
    pub(crate) fn end(&self) {
        self.ended.cancel();
        lock(&self.waiting).clear();
    }

    /// Ends the run, and waits until no more bytes of its visitors can arrive.
    pub(crate) async fn finish(&self) {
        self.end();
        // This cannot fail: the sender lives as long as `self`.
        let _ = self.active.subscribe().wait_for(|active| *active == 0).await;
    }

    /// Takes the traffic since the last call.
    pub(crate) fn take_traffic(&self) -> SessionTraffic {
        let take = |counter: &AtomicU64, taken: &AtomicU64| {
            let now = counter.load(Ordering::Acquire);
            // Another call may have taken more meanwhile.
            now.saturating_sub(taken.fetch_max(now, Ordering::AcqRel))
        };
        SessionTraffic {
            session_id: self.lease.session_id,
            tunnel_id: self.lease.tunnel_id,
            bytes_in: take(&self.counters.forth, &self.taken_in),
            bytes_out: take(&self.counters.back, &self.taken_out),
        }
    }

    /// Serves one visitor, of an extra port or (`None`) of the tunnel's own port.
    pub(crate) async fn relay_visitor(
        self: Arc<Self>,
        mut visitor: TcpStream,
        address: SocketAddr,
        port_id: Option<Uuid>,
        inside: AdmittedVisitor,
    ) {
        self.active.send_modify(|active| *active += 1);
        let serve = inside.out.run_until_cancelled(self.serve(&mut visitor, address, port_id));
        let served = self.ended.run_until_cancelled(serve).await.flatten();
        if !matches!(served, Some(Ok(()))) {
            // A transfer that was cut short must not look complete, so the connection is reset.
            socket::reset(&visitor);
        }
        drop(visitor);
        self.active.send_modify(|active| *active -= 1);
        match served {
            Some(Err(error)) => tracing::debug!(%error, %address, tunnel = self.name, "a visitor was cut off"),
            None => {
                tracing::debug!(%address, tunnel = self.name, "a visitor was cut off by the run's end or rules");
            }
            Some(Ok(())) => {}
        }
    }

    async fn serve(&self, visitor: &mut TcpStream, address: SocketAddr, port_id: Option<Uuid>) -> io::Result<()> {
        socket::prepare(visitor)?;
        let mut connection = self.connection().await?;
        let visit = Visit { visitor: address, port_id, waiting: self.visitors.load(Ordering::Relaxed) };
        write_frame(&mut connection, &visit).await?;
        let limits = *lock(&self.limits);
        let mut agent = AwaitingAcceptByte { connection, accepted: AtomicBool::new(false).into() };
        let accepted = agent.accepted.clone();
        let account = pipe::Account { counters: &self.counters, budget: &self.bounds.buffers };
        let carried = tokio::select! {
            biased;
            carried = pipe::run(visitor, &mut agent, limits, account, &self.clock) => carried,
            () = self.unanswered(&accepted) => Err(io::ErrorKind::TimedOut.into()),
        };
        if carried.is_err() {
            socket::reset(agent.connection.get_ref().0);
        }
        carried
    }

    /// Takes the newest idle connection, or waits for one. The older ones stay idle, so that the agent can
    /// close them if there are too many.
    async fn connection(&self) -> io::Result<Connection> {
        if *self.ready.borrow()
            && let Some(connection) = self.take_idle_connection()
        {
            return Ok(connection);
        }
        self.visitors.fetch_add(1, Ordering::Relaxed);
        let found = self.clock.timeout(VISITOR_WAIT, async {
            // This cannot fail: the sender lives as long as `self`.
            let _ = self.ready.subscribe().wait_for(|ready| *ready).await;
            loop {
                let parked = self.parked.notified();
                if let Some(connection) = self.take_idle_connection() {
                    return connection;
                }
                parked.await;
            }
        });
        let found = found.await;
        self.visitors.fetch_sub(1, Ordering::Relaxed);
        found.map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "the agent brought no connection"))
    }

    fn take_idle_connection(&self) -> Option<Connection> {
        let mut waiting = lock(&self.waiting);
        while let Some(mut connection) = waiting.pop() {
            if !is_stale(&mut connection) {
                return Some(connection);
            }
        }
        None
    }

    /// Returns if the agent has not said in time whether it reached its target. Otherwise it never returns.
    async fn unanswered(&self, accepted: &AtomicBool) {
        self.clock.sleep(ACCEPT_WITHIN).await;
        if accepted.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    }
}

fn limits(assignment: &Assignment) -> pipe::Limits {
    pipe::Limits {
        buffer_size: assignment.buffer_size_bytes as usize,
        idle_timeout: Duration::from_secs(assignment.idle_timeout_seconds.into()),
    }
}

/// Whether the agent has ended an idle connection. The agent sends nothing on it, so any event means the end.
fn is_stale(connection: &mut Connection) -> bool {
    let socket = connection.get_ref().0;
    let mut byte = [0; 1];
    let mut space = ReadBuf::new(&mut byte);
    std::future::poll_fn(|context| socket.poll_peek(context, &mut space)).now_or_never().is_some()
}

/// An agent's connection whose first byte says whether the agent reached the local target.
struct AwaitingAcceptByte {
    connection: Connection,
    accepted: Arc<AtomicBool>,
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
