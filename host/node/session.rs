//! The session relay: carries the bytes of one run between visitors and the agent's data connections.

mod lending;
mod visitor;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

use culvert_wire::clock::{Clock, Moment};
use culvert_wire::data::{self, ATTACHED, Attach, FENCED, UNKNOWN_KEY, write_frame};
use culvert_wire::data2::stream::{Finished, VisitStream};
use culvert_wire::data2::transport::Transport;
use culvert_wire::data2::visit::Visit;
use culvert_wire::device_token::AgentProcess;
use culvert_wire::lease_token::{self, Lease, TokenError};
use culvert_wire::node::{Assignment, Counted, SessionTraffic};
use culvert_wire::pipe::{self, Counters};
use culvert_wire::socket;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::SetOnce;
use tokio_util::future::FutureExt;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use uuid::Uuid;

use super::addresses::Entry;
use super::admission::AdmittedVisitor;
use super::bounds::Bounds;
use super::carriers::{Carrier, NextCarrier, Pool, Seat};
use super::counts::{Counts, Level};
use super::lease_connections::{AwaitingAcceptByte, LeaseConnections, LeaseStream};
use super::{Shared, lock};
pub(crate) use visitor::{ActiveRun, Visited, Visitor, VisitorKind, Work};

/// A visit over a data connection.
pub(crate) type VisitCarrier = VisitStream<Transport>;

/// How long a visitor waits for a data connection.
const VISITOR_WAIT: Duration = Duration::from_secs(10);
/// How long the agent may take to say whether it reached its local target.
pub(crate) const ACCEPT_WITHIN: Duration = Duration::from_secs(15);
/// How long a connection to a service may take to end.
pub(crate) const END_WITHIN: Duration = Duration::from_secs(15);
/// The same on a stream of QUIC, which is not used again and may be what visitors wait for.
const STREAM_END_WITHIN: Duration = Duration::from_secs(1);

pub(crate) struct SessionRelay {
    assignment: Mutex<Assignment>,
    scope_id: Uuid,
    /// The tunnel's name, for logs.
    name: String,
    /// What an agent proves with its lease token.
    lease: Lease,
    clock: Clock,
    bounds: Arc<Bounds>,
    counts: Arc<Counts>,
    limits: Mutex<pipe::Limits>,
    /// Set when the agent has reported that it serves the tunnel. Before that, no visitor is served.
    ready: SetOnce<()>,
    /// The connections of the agent's process, until the run ends.
    seat: Mutex<Option<Seat<Work>>>,
    /// Connections of an agent that speaks version 1 only.
    lease_connections: LeaseConnections,
    /// Visitors that are connected, including those that wait.
    active: TaskTracker,
    /// The number of the last visit.
    visits: AtomicU64,
    counters: Counters,
    /// The bytes of the counters that were taken already.
    taken_in: AtomicU64,
    taken_out: AtomicU64,
    /// Whether it was logged that the service speaks TLS where HTTP was expected.
    unexpected_tls: Once,
    ended: CancellationToken,
}

/// A connection to the agent, of either version.
enum ToAgent {
    Carrier(Carrier),
    Lease(LeaseStream),
}

impl SessionRelay {
    pub(crate) fn new(assignment: Assignment, shared: &Shared) -> Arc<Self> {
        let Assignment { tunnel_id, session_id, epoch, device_id, boot_id, .. } = assignment;
        Arc::new(Self {
            limits: Mutex::new(limits(&assignment)),
            ready: SetOnce::new_with(assignment.ready.then_some(())),
            seat: Mutex::new(Some(shared.carriers.join(AgentProcess { device_id, boot_id }))),
            scope_id: assignment.scope_id,
            name: assignment.name.clone(),
            lease: Lease { node_id: shared.node_id, tunnel_id, session_id, epoch },
            assignment: Mutex::new(assignment),
            clock: shared.clock.clone(),
            bounds: shared.bounds.clone(),
            counts: shared.counts.clone(),
            lease_connections: LeaseConnections::default(),
            active: TaskTracker::new(),
            visits: AtomicU64::new(0),
            counters: Counters::default(),
            taken_in: AtomicU64::new(0),
            taken_out: AtomicU64::new(0),
            unexpected_tls: Once::new(),
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

    pub(crate) fn tunnel_id(&self) -> Uuid {
        self.lease.tunnel_id
    }

    /// The number of the present target.
    pub(crate) fn target_version(&self) -> u64 {
        lock(&self.assignment).target_version
    }

    pub(crate) fn epoch(&self) -> i64 {
        self.lease.epoch
    }

    /// Takes over changes of the assignment. New limits apply to new connections only.
    pub(crate) fn follow(&self, assignment: &Assignment) {
        *lock(&self.limits) = limits(assignment);
        if assignment.ready {
            // It may have been set before.
            let _ = self.ready.set(());
        }
        *lock(&self.assignment) = assignment.clone();
    }

    /// The answer to an attach frame of version 1: whether it proves this run's lease.
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

    pub(crate) fn add_lease_connection(&self, connection: LeaseStream) {
        self.lease_connections.add(connection);
    }

    /// The service has answered HTTP with a record of TLS. It is logged once.
    pub(crate) fn note_unexpected_tls(&self) {
        let (tunnel, id) = (&self.name, self.lease.tunnel_id);
        self.unexpected_tls.call_once(|| {
            tracing::warn!(tunnel, %id, "a local service speaks TLS; its tunnel needs `local_scheme`: \"https\"");
        });
    }

    /// Ends the run: disconnects all visitors, and drops its idle connections.
    pub(crate) fn end(&self) {
        self.ended.cancel();
        self.lease_connections.clear();
        lock(&self.seat).take();
    }

    /// Ends the run, and waits until no more bytes of its visitors can arrive.
    pub(crate) async fn finish(&self) {
        self.end();
        self.active.close();
        self.active.wait().await;
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

    /// Serves one visitor. `entry` is dropped at its end.
    pub(crate) fn relay_visitor(
        self: Arc<Self>,
        stream: TcpStream,
        visited: Visited,
        admission: AdmittedVisitor,
        entry: Option<Entry>,
    ) {
        let (came, address) = (self.clock.moment(), visited.visitor);
        let visitor = Visitor::new(stream, visited, (admission, entry), self.clone(), came);
        if let Err(error) = socket::prepare(&visitor.socket.stream) {
            return tracing::debug!(%error, %address, tunnel = self.name, "a visitor was cut off");
        }
        self.serve(visitor);
    }

    /// Serves a visitor by a warm connection, or as soon as there is a connection.
    fn serve(self: Arc<Self>, visitor: Visitor) {
        if !self.ready.initialized() {
            tokio::spawn(self.wait_until_ready(visitor));
        } else if self.lease_connections.is_used() {
            tokio::spawn(self.wait_and_relay(visitor, None));
        } else if let Some(pool) = self.pool()
            && let Err((Work::Relay(visitor), next)) = pool.offer(Work::Relay(Box::new(visitor)))
        {
            tokio::spawn(self.wait_and_relay(*visitor, Some(next)));
        }
    }

    /// The connections of the agent's process; `None` if the run has ended.
    pub(crate) fn pool(&self) -> Option<Arc<Pool<Work>>> {
        lock(&self.seat).as_ref().map(|seat| seat.pool().clone())
    }

    async fn wait_until_ready(self: Arc<Self>, visitor: Visitor) {
        if self.wait_for(&visitor, self.ready.wait()).await.is_some() {
            self.serve(visitor);
        }
    }

    /// Waits for a connection of either version: which one the agent speaks shows with its first.
    async fn wait_and_relay(self: Arc<Self>, visitor: Visitor, next: Option<NextCarrier>) {
        let carrier = async {
            match next {
                Some(next) => next.await,
                None => std::future::pending().await,
            }
        };
        let brought = async {
            tokio::select! {
                carrier = carrier => carrier.map(ToAgent::Carrier),
                connection = self.lease_connections.wait() => Some(ToAgent::Lease(connection)),
            }
        };
        match self.wait_for(&visitor, brought).await.flatten() {
            Some(ToAgent::Carrier(carrier)) => self.relay(visitor, carrier).await,
            Some(ToAgent::Lease(connection)) => self.relay_by_lease(visitor, connection).await,
            None => {}
        }
    }

    /// Waits on behalf of a visitor; `None` if it takes too long, or the visitor is cut off.
    async fn wait_for<T>(&self, visitor: &Visitor, wanted: impl Future<Output = T>) -> Option<T> {
        let wanted = self.clock.timeout_at(visitor.came.plus(VISITOR_WAIT), wanted);
        let out = &visitor.admission.out;
        match wanted.with_cancellation_token(out).with_cancellation_token(&self.ended).await.flatten() {
            Some(Ok(found)) => Some(found),
            Some(Err(_)) => {
                let error = io::Error::new(io::ErrorKind::TimedOut, "the agent brought no connection");
                self.log_end(visitor, Some(error));
                None
            }
            None => {
                self.log_end(visitor, None);
                None
            }
        }
    }

    async fn relay(self: Arc<Self>, mut visitor: Visitor, carrier: Carrier) {
        let mut stream = match self.begin_visit(carrier, visitor.visited.clone(), visitor.came) {
            Ok(stream) => stream,
            Err(error) => return self.log_end(&visitor, Some(error)),
        };
        let accepted = stream.accepted();
        let served = self.carry(&mut visitor, &mut stream, || accepted.get().is_some()).await;
        if let Some(refused) = stream.refusal() {
            let (code, detail, tunnel) = (&refused.code, &refused.detail, &self.name);
            tracing::debug!(%code, detail, tunnel, "the agent has refused a visit");
        }
        // The visitor goes first: nobody waits for the agent on its behalf.
        self.conclude(visitor, served);
        self.take_back(stream);
    }

    /// Begins a visit on a connection, for somebody who has waited since then.
    fn begin_visit(&self, carrier: Carrier, visited: Visited, since: Moment) -> io::Result<VisitCarrier> {
        if carrier.is_used() {
            self.counts.count(Counted::Reuses, "");
        }
        let waiters = self.pool().map_or_else(Arc::default, |pool| pool.waiters().clone());
        let visit = self.visit(visited, waiters.count());
        let stream = VisitStream::offer(carrier, visit, waiters)?;
        self.busy(&stream).enter();
        self.counts.visit_waits.note(self.clock.moment().since(since));
        Ok(stream)
    }

    fn busy(&self, stream: &VisitCarrier) -> &Level {
        if stream.is_single() { &self.counts.streams } else { &self.counts.busy }
    }

    /// Takes back a visit that has ended.
    pub(crate) fn take_back(self: Arc<Self>, mut stream: VisitCarrier) {
        let outcome = match stream.refusal() {
            _ if stream.is_malformed() => "protocol",
            Some(_) => "refused",
            None if stream.accepted().get().is_some() => "accepted",
            None => "lost",
        };
        let counted = if stream.is_single() { Counted::QuicVisits } else { Counted::Visits };
        self.counts.count(counted, outcome);
        self.busy(&stream).leave();
        if stream.refusal().is_none() {
            return self.keep(stream);
        }
        tokio::spawn(async move {
            // After a refusal, the node's direction is still open.
            let ended = self.clock.timeout(ACCEPT_WITHIN, stream.shutdown());
            let _ = ended.with_cancellation_token(&self.ended).await;
            self.keep(stream);
        });
    }

    /// Keeps the connection of a visit that has ended, if it can be used again.
    fn keep(&self, stream: VisitCarrier) {
        match stream.finish() {
            Finished::Warm(carrier) => {
                if let Some(pool) = self.pool() {
                    pool.park(carrier);
                }
            }
            Finished::Used(carrier) => drop(tokio::spawn(carrier.close())),
            Finished::Cut(mut carrier) => carrier.get_mut().reset(),
        }
    }

    pub(crate) fn limits(&self) -> pipe::Limits {
        *lock(&self.limits)
    }

    /// How long a connection or an exchange may be silent.
    pub(crate) fn silence_limit(&self) -> Duration {
        self.limits().idle_timeout
    }

    /// Cancelled when the run ends.
    pub(crate) fn ended(&self) -> CancellationToken {
        self.ended.clone()
    }

    /// How long a visitor of a UDP port may be silent.
    pub(crate) fn flow_silence_limit(&self) -> Duration {
        Duration::from_secs(lock(&self.assignment).flow_idle_timeout_seconds.into())
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// As [`SessionRelay::relay`], with a connection of version 1.
    async fn relay_by_lease(&self, mut visitor: Visitor, mut connection: LeaseStream) {
        let visit = data::Visit {
            visitor: visitor.visited.visitor,
            port_id: visitor.visited.port_id,
            waiting: self.lease_connections.waiting(),
        };
        if let Err(error) = write_frame(&mut connection, &visit).await {
            return self.log_end(&visitor, Some(error));
        }
        let mut agent = AwaitingAcceptByte::new(connection);
        let accepted = agent.accepted.clone();
        let served = self.carry(&mut visitor, &mut agent, || accepted.load(Ordering::Relaxed)).await;
        if !matches!(served, Some(Ok(()))) {
            socket::reset(agent.connection.get_ref().0);
        }
        self.conclude(visitor, served);
    }

    fn visit(&self, visited: Visited, waiting: usize) -> Visit {
        let Visited { port_id, visitor, local, kind, name, alpn } = visited;
        Visit {
            visit: self.visits.fetch_add(1, Ordering::Relaxed) + 1,
            tunnel_id: self.lease.tunnel_id,
            epoch: self.lease.epoch,
            port_id,
            visitor,
            local,
            kind,
            name,
            alpn,
            waiting,
        }
    }

    /// Copies bytes between a visitor and the agent. `None` if the visitor was cut off.
    async fn carry<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        visitor: &mut Visitor,
        agent: &mut S,
        is_accepted: impl Fn() -> bool,
    ) -> Option<io::Result<()>> {
        let limits = self.limits();
        let account = pipe::Account { counters: &self.counters, budget: &self.bounds.buffers };
        let (out, stream) = (visitor.admission.out.clone(), &mut visitor.socket.stream);
        let carried = async {
            tokio::select! {
                biased;
                carried = pipe::run(stream, agent, limits, account, &self.clock) => carried,
                () = self.unanswered(is_accepted) => Err(io::ErrorKind::TimedOut.into()),
            }
        };
        carried.with_cancellation_token(&out).with_cancellation_token(&self.ended).await.flatten()
    }

    fn conclude(&self, mut visitor: Visitor, served: Option<io::Result<()>>) {
        match served {
            Some(Ok(())) => visitor.socket.is_complete = true,
            Some(Err(error)) => self.log_end(&visitor, Some(error)),
            None => self.log_end(&visitor, None),
        }
    }

    /// Logs why a visitor is cut off: an error, or else the run's end or the rules.
    fn log_end(&self, visitor: &Visitor, error: Option<io::Error>) {
        let (address, tunnel) = (visitor.visited.visitor, &self.name);
        let why = error.map_or_else(|| "the run's end, or the rules".to_owned(), |error| error.to_string());
        tracing::debug!(why, %address, tunnel, "a visitor was cut off");
    }

    /// Returns if the agent has not said in time whether it reached its target. Otherwise it never returns.
    async fn unanswered(&self, is_accepted: impl Fn() -> bool) {
        self.clock.sleep(ACCEPT_WITHIN).await;
        if is_accepted() {
            std::future::pending::<()>().await;
        }
    }

    /// Counts a visitor until [`SessionRelay::leave`] is called. The end of the run waits for its token.
    fn enter(&self, kind: VisitorKind) -> TaskTrackerToken {
        self.level(kind).enter();
        self.active.token()
    }

    fn leave(&self, kind: VisitorKind) {
        self.level(kind).leave();
    }

    fn level(&self, kind: VisitorKind) -> &Level {
        match kind {
            VisitorKind::Tcp => &self.counts.tcp_visitors,
            VisitorKind::Http => &self.counts.http_visitors,
            VisitorKind::Udp => &self.counts.flows,
        }
    }
}

fn limits(assignment: &Assignment) -> pipe::Limits {
    pipe::Limits {
        buffer_size: assignment.buffer_size_bytes as usize,
        idle_timeout: Duration::from_secs(assignment.idle_timeout_seconds.into()),
    }
}
