//! The pool of one process's connections: warm ones, and visitors that wait for one.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, Weak};

use culvert_wire::data2::MAX_WARM;
use culvert_wire::data2::connection::Connection;
use culvert_wire::data2::frame::Frame;
use culvert_wire::data2::transport::Transport;
use culvert_wire::quic::{self, QuicStream};
use futures_util::FutureExt;
use tokio::sync::oneshot;

use crate::counts::Counts;
use crate::lock;

/// A data connection of an agent.
pub(crate) type Carrier = Connection<Transport>;

/// Gets the next free connection; an error if the pool ends before.
pub(crate) type NextCarrier = oneshot::Receiver<Carrier>;

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
}

struct State<J> {
    /// Connections that wait for a visit, in the order in which they began to.
    warm: BTreeMap<u64, oneshot::Sender<J>>,
    next: u64,
    waiting: VecDeque<oneshot::Sender<Carrier>>,
    /// Opens a stream at once where no connection is warm.
    quic: Option<quinn::Connection>,
}

impl<J: Job> Pool<J> {
    pub(super) fn new(counts: Arc<Counts>) -> Arc<Self> {
        let state = State { warm: BTreeMap::new(), next: 0, waiting: VecDeque::new(), quic: None };
        Arc::new(Self { counts, state: Mutex::new(state) })
    }

    pub(super) fn is_full(&self) -> bool {
        lock(&self.state).warm.len() >= MAX_WARM
    }

    /// How many wait for a connection.
    pub(crate) fn waiting(&self) -> usize {
        lock(&self.state).waiting.len()
    }

    /// Gives a job to the connection that was used last. The others stay idle, so that the agent can close them if
    /// there are too many. Where none is warm, the job gets a stream of QUIC.
    ///
    /// # Errors
    ///
    /// The job, and the next connection, if there is neither.
    pub(crate) fn offer(&self, mut job: J) -> Result<(), (J, NextCarrier)> {
        let mut state = lock(&self.state);
        while let Some((_, warm)) = state.warm.pop_last() {
            self.counts.warm.leave();
            match warm.send(job) {
                Ok(()) => return Ok(()),
                Err(returned) => job = returned,
            }
        }
        // Where as many streams are open as may be, there is none at once.
        match state.quic.as_ref().and_then(|connection| connection.open_bi().now_or_never()) {
            Some(Ok(stream)) => {
                tokio::spawn(job.run(Connection::single(Transport::Quic(QuicStream::new(stream)))));
                return Ok(());
            }
            Some(Err(error)) => tracing::debug!(%error, "a connection of QUIC has ended"),
            None => {}
        }
        let (sender, next) = oneshot::channel();
        state.waiting.retain(|waiting| !waiting.is_closed());
        state.waiting.push_back(sender);
        Err((job, next))
    }

    /// Uses a connection of QUIC from now on, instead of a former one.
    pub(crate) fn use_quic(&self, connection: quinn::Connection) {
        match lock(&self.state).quic.replace(connection) {
            Some(former) => former.close(quic::REGULAR, b"there is a newer connection"),
            None => self.counts.quic.enter(),
        }
    }

    /// Forgets a connection of QUIC that has ended.
    pub(crate) fn lose_quic(&self, connection: &quinn::Connection) {
        let lost = lock(&self.state).quic.take_if(|known| known.stable_id() == connection.stable_id());
        if lost.is_some() {
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

impl<J> Drop for Pool<J> {
    fn drop(&mut self) {
        let state = lock(&self.state);
        self.counts.warm.leave_all(state.warm.len());
        if let Some(connection) = &state.quic {
            self.counts.quic.leave();
            connection.close(quic::REGULAR, b"the device runs no tunnel here");
        }
    }
}

/// Waits for a job, for the agent's wish to close the connection, or for its end. A pool that has ended ends its warm
/// connections.
async fn keep_warm<J: Job>(pool: Weak<Pool<J>>, number: u64, mut carrier: Carrier, mut given: oneshot::Receiver<J>) {
    let frame = tokio::select! {
        biased;
        frame = carrier.next() => frame,
        job = &mut given => {
            return match job {
                Ok(job) => job.run(carrier).await,
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
        Ok(job) if retires => job.run(carrier).await,
        Ok(job) => job.retry(),
        Err(_) if retires => {
            let _ = carrier.send(&Frame::Retired).await;
            let _ = carrier.close().await;
        }
        Err(_) => tracing::debug!(?frame, "a warm connection has ended"),
    }
}
