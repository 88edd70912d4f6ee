//! The pool of one process's connections: warm ones, and visitors that wait for one.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, Weak};

use culvert_wire::clock::Clock;
use culvert_wire::data2::attach::DenialCode;
use culvert_wire::data2::close_limit::CloseLimit;
use culvert_wire::data2::connection::Connection;
use culvert_wire::data2::datagram::{CloseReason, Datagram};
use culvert_wire::data2::frame::Frame;
use culvert_wire::data2::lane::{Dropped, Lane, Lanes, Receiver, TlsLane};
use culvert_wire::data2::transport::Transport;
use culvert_wire::data2::waiters::{Waiter, Waiters};
use culvert_wire::data2::{MAX_LANES, MAX_WARM};
use culvert_wire::node::Counted;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, OptionFuture};
use tokio::sync::{oneshot, watch};

use super::flows::FlowNumbers;
use super::quic_streams::QuicStreams;
use crate::counts::Counts;
use crate::lock;

/// A data connection of an agent.
pub(crate) type Carrier = Connection<Transport>;

/// Gets the next free connection; `None` if the pool ends before.
pub(crate) type NextCarrier = BoxFuture<'static, Option<Carrier>>;

/// What a connection is used for.
pub(crate) trait Job: Send + Sized + 'static {
    /// Uses the connection.
    fn run(self, carrier: Carrier) -> impl Future<Output = ()> + Send;

    /// The connection had ended before the job began.
    fn retry(self);
}

pub(crate) struct Pool<J> {
    counts: Arc<Counts>,
    state: Mutex<State<J>>,
    lanes: Mutex<Lanes>,
    flows: FlowNumbers,
    closes: CloseLimit,
    waiters: Arc<Waiters>,
    /// Opens a stream at once where no connection is warm.
    quic: watch::Sender<Option<QuicStreams>>,
}

struct State<J> {
    /// Connections that wait for a visit, in the order in which they began to.
    warm: BTreeMap<u64, oneshot::Sender<J>>,
    next: u64,
    waiting: VecDeque<oneshot::Sender<Carrier>>,
}

impl<J: Job> Pool<J> {
    pub(super) fn new(counts: Arc<Counts>, clock: Clock) -> Arc<Self> {
        let state = State { warm: BTreeMap::new(), next: 0, waiting: VecDeque::new() };
        let (flows, closes) = (FlowNumbers::default(), CloseLimit::new(clock));
        let (state, lanes, waiters) = (Mutex::new(state), Mutex::default(), Arc::default());
        Arc::new(Self { counts, state, lanes, flows, closes, waiters, quic: watch::Sender::default() })
    }

    pub(super) fn is_full(&self) -> bool {
        lock(&self.state).warm.len() >= MAX_WARM
    }

    /// The visitors that wait for a connection.
    pub(crate) fn waiters(&self) -> &Arc<Waiters> {
        &self.waiters
    }

    /// Gives a job to the connection that was used last. The others stay idle, so that the agent can close them if
    /// there are too many. Where none is warm, the job gets a stream of QUIC.
    ///
    /// # Errors
    ///
    /// The job, and the next connection, if there is neither.
    pub(crate) fn offer(&self, job: J) -> Result<(), (J, NextCarrier)> {
        let mut state = lock(&self.state);
        let Err(job) = self.give_to_warm(&mut state, job) else { return Ok(()) };
        if let Some(stream) = self.quic.borrow().as_ref().and_then(QuicStreams::open_now) {
            tokio::spawn(job.run(stream));
            return Ok(());
        }
        let (sender, next) = oneshot::channel();
        state.waiting.retain(|waiting| !waiting.is_closed());
        state.waiting.push_back(sender);
        drop(state);
        Err((job, next_carrier(next, self.quic.subscribe(), self.waiters.enter()).boxed()))
    }

    /// As [`Pool::offer`], to a warm connection alone.
    ///
    /// # Errors
    ///
    /// The job, if none is warm.
    pub(crate) fn offer_warm(&self, job: J) -> Result<(), J> {
        self.give_to_warm(&mut lock(&self.state), job)
    }

    fn give_to_warm(&self, state: &mut State<J>, mut job: J) -> Result<(), J> {
        while let Some((_, warm)) = state.warm.pop_last() {
            self.counts.warm.leave();
            match warm.send(job) {
                Ok(()) => return Ok(()),
                Err(returned) => job = returned,
            }
        }
        Err(job)
    }

    pub(crate) fn flows(&self) -> &FlowNumbers {
        &self.flows
    }

    /// Sends a flow's datagram by QUIC, or else on a TLS connection.
    ///
    /// # Errors
    ///
    /// Why it was dropped.
    pub(crate) fn send(&self, flow: u64, datagram: Datagram) -> Result<(), Dropped> {
        let lane = lock(&self.lanes).find(flow).ok_or(Dropped::NoConnection)?;
        lane.send(datagram)
    }

    /// What takes the datagrams of the agent.
    pub(crate) fn receiver(self: &Arc<Self>) -> FlowReceiver<J> {
        FlowReceiver(Arc::downgrade(self))
    }

    /// Uses a TLS connection for datagrams.
    ///
    /// # Errors
    ///
    /// If there are enough.
    pub(crate) fn add_lane(&self, lane: &Arc<TlsLane>) -> Result<(), DenialCode> {
        let mut lanes = lock(&self.lanes);
        if lanes.tls.len() >= MAX_LANES {
            return Err(DenialCode::Full);
        }
        lanes.tls.push(lane.clone());
        Ok(())
    }

    /// Forgets a TLS connection that has ended.
    pub(crate) fn remove_lane(&self, lane: &Arc<TlsLane>) {
        lock(&self.lanes).remove_tls(lane);
    }

    /// Uses a connection of QUIC from now on, instead of a former one.
    pub(crate) fn use_quic(&self, connection: quinn::Connection) {
        let mut lanes = lock(&self.lanes);
        lanes.quic = Some(Lane::quic(connection.clone()));
        match self.quic.send_replace(Some(QuicStreams::new(connection))) {
            Some(former) => former.close(b"there is a newer connection"),
            None => self.counts.quic.enter(),
        }
    }

    /// Forgets a connection of QUIC that has ended.
    pub(crate) fn lose_quic(&self, connection: &quinn::Connection) {
        let lose = |quic: &mut Option<QuicStreams>| quic.take_if(|known| known.are_of(connection)).is_some();
        let mut lanes = lock(&self.lanes);
        if self.quic.send_if_modified(lose) {
            lanes.quic = None;
            self.counts.quic.leave();
        }
    }

    /// Keeps a connection for the next visit, or gives it to whoever waits for one.
    pub(crate) fn park(self: &Arc<Self>, mut carrier: Carrier) {
        let mut state = lock(&self.state);
        while let Some(waiting) = state.waiting.pop_front() {
            match waiting.send(carrier) {
                Ok(()) => return,
                Err(returned) => carrier = returned,
            }
        }
        if state.warm.len() >= MAX_WARM {
            drop(state);
            tokio::spawn(carrier.close());
            return;
        }
        let (sender, given) = oneshot::channel();
        let number = state.next;
        state.next += 1;
        state.warm.insert(number, sender);
        self.counts.warm.enter();
        drop(state);
        tokio::spawn(keep_warm(Arc::downgrade(self), number, carrier, given));
    }
}

/// The next connection, or a stream of QUIC as soon as one more may be open, also by a connection of QUIC that comes later.
async fn next_carrier(
    warm: oneshot::Receiver<Carrier>,
    mut quic: watch::Receiver<Option<QuicStreams>>,
    _waiter: Waiter,
) -> Option<Carrier> {
    let stream = async {
        loop {
            let streams = quic.borrow_and_update().clone();
            let opened = async { OptionFuture::from(streams.as_ref().map(QuicStreams::open)).await.flatten() };
            tokio::select! {
                biased;
                changed = quic.changed() => changed.ok()?,
                Some(stream) = opened => return Some(stream),
            }
        }
    };
    tokio::select! {
        biased;
        carrier = warm => carrier.ok(),
        Some(stream) = stream => Some(stream),
    }
}

/// Takes the datagrams of an agent's process.
pub(crate) struct FlowReceiver<J>(Weak<Pool<J>>);

impl<J> Clone for FlowReceiver<J> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<J: Job> Receiver for FlowReceiver<J> {
    fn take(&self, datagram: Datagram) {
        let Some(pool) = self.0.upgrade() else { return };
        if let Some(flow) = pool.flows.find(datagram.flow()) {
            return flow.take(datagram);
        }
        pool.counts.count(Counted::DroppedDatagrams, "unknown_flow");
        let (flow, is_payload) = (datagram.flow(), matches!(datagram, Datagram::Data { .. } | Datagram::Part { .. }));
        if is_payload && pool.closes.allows(flow) {
            // The agent has not heard that it has ended.
            let _ = pool.send(flow, Datagram::Close { flow, reason: CloseReason::Idle });
        }
    }

    fn dropped(&self, why: Dropped) {
        if let Some(pool) = self.0.upgrade() {
            pool.counts.count(Counted::DroppedDatagrams, why.cause());
        }
    }
}

impl<J> Drop for Pool<J> {
    fn drop(&mut self) {
        lock(&self.lanes).tls.iter().for_each(|lane| lane.close());
        let state = lock(&self.state);
        self.counts.warm.leave_all(state.warm.len());
        if let Some(quic) = &*self.quic.borrow() {
            self.counts.quic.leave();
            quic.close(b"the device runs no tunnel here");
        }
    }
}

/// Waits for a job, for the agent's wish to close the connection, or for its end. A pool that has ended ends its warm
/// connections. What a job needs is allocated when it begins: most connections wait most of the time.
async fn keep_warm<J: Job>(pool: Weak<Pool<J>>, number: u64, mut carrier: Carrier, mut given: oneshot::Receiver<J>) {
    let frame = tokio::select! {
        biased;
        frame = carrier.next() => frame,
        job = &mut given => {
            return match job {
                Ok(job) => Box::pin(job.run(carrier)).await,
                Err(_) => drop(carrier.close().await),
            };
        }
    };
    if let Some(pool) = pool.upgrade()
        && lock(&pool.state).warm.remove(&number).is_some()
    {
        pool.counts.warm.leave();
    }
    given.close();
    let retires = matches!(frame, Ok(Some(Frame::Retire)));
    match given.try_recv() {
        // The wish and a visit have crossed: the visit is served.
        Ok(job) if retires => Box::pin(job.run(carrier)).await,
        Ok(job) => job.retry(),
        Err(_) if retires => {
            let _ = carrier.send(&Frame::Retired).await;
            let _ = carrier.close().await;
        }
        Err(_) => tracing::debug!(?frame, "a warm connection has ended"),
    }
}
