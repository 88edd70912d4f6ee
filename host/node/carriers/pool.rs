//! The pool of one process's connections: warm ones, and visitors that wait for one.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, Weak};

use culvert_wire::data2::MAX_WARM;
use culvert_wire::data2::connection::Connection;
use culvert_wire::data2::frame::Frame;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio_rustls::server::TlsStream;

use crate::counts::Counts;
use crate::lock;

/// An agent's connection. It takes more than a kilobyte, so it is moved as a pointer.
pub(crate) type AgentStream = Box<TlsStream<TcpStream>>;

/// A data connection of an agent.
pub(crate) type Carrier = Connection<AgentStream>;

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
}

impl<J: Job> Pool<J> {
    pub(super) fn new(counts: Arc<Counts>) -> Arc<Self> {
        let state = State { warm: BTreeMap::new(), next: 0, waiting: VecDeque::new() };
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
    /// there are too many.
    ///
    /// # Errors
    ///
    /// The job, and the next connection, if none is warm.
    pub(crate) fn offer(&self, mut job: J) -> Result<(), (J, NextCarrier)> {
        let mut state = lock(&self.state);
        while let Some((_, warm)) = state.warm.pop_last() {
            self.counts.warm.leave();
            match warm.send(job) {
                Ok(()) => return Ok(()),
                Err(returned) => job = returned,
            }
        }
        let (sender, next) = oneshot::channel();
        state.waiting.retain(|waiting| !waiting.is_closed());
        state.waiting.push_back(sender);
        Err((job, next))
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
        self.counts.warm.leave_all(lock(&self.state).warm.len());
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
