//! Everything that is kept: the only place that knows SQL.
//!
//! Reads take the scope they are made for; what belongs to another scope is not there. Whatever is
//! written on behalf of a caller goes through [`Store::commit`], with a permit. Every transaction
//! that writes a scope's rows begins by locking the scope's own row ([`Store::write`]), so two of
//! them never wait for each other crosswise, and runs in a task of its own, so a client that goes
//! away leaves nothing half done.

pub mod access;
pub mod catalog;
pub mod change;
pub mod commit;
pub mod db;
pub mod devices;
pub mod domains;
pub mod error;
pub mod facts;
pub mod idempotency;
pub mod key_check;
pub mod keys;
pub mod migrations;
pub mod operations;
pub mod outbox;
pub mod page;
pub mod ports;
pub mod presence;
pub mod rate;
pub mod runs;
pub mod scopes;
pub mod sessions;
pub mod sweep;
pub mod tunnels;
pub mod usage;
pub mod webhooks;

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, OnceLock};

use chrono::{DateTime, Utc};
use culvert_wire::clock::Clock;
use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, watch};
use tokio_util::task::TaskTracker;
use tracing::Instrument;
use uuid::Uuid;

use crate::secret::Secrets;
use culvert_domain::error::{Chain, Error, Result};
use culvert_domain::usage::Traffic;
use db::{Db, Tx, args};
use runs::{RunId, Runs};

pub struct Store {
    db: Db,
    clock: Clock,
    secrets: Secrets,
    tasks: TaskTracker,
    hints: mpsc::UnboundedSender<Hint>,
    commits: watch::Sender<u64>,
    /// None in a process without nodes.
    runs: OnceLock<Arc<dyn Runs>>,
}

/// Who has something new to look at, once it is committed. Losing one costs a second, not the
/// thing itself: everybody also looks by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// The connection of a device: an operation, a lease, its consent.
    Device(Uuid),
    /// The node that a tunnel is placed on.
    Tunnel(Uuid),
    /// Whoever delivers to webhooks.
    Deliveries,
    /// Whoever looks at what a scope has used up.
    Usage(Uuid),
}

/// A transaction at work.
pub struct Write {
    tx: Tx,
    /// One time for all that the transaction writes.
    pub now: DateTime<Utc>,
    pub clock: Clock,
    hints: Vec<Hint>,
    runs: Option<Arc<dyn Runs>>,
    /// The sessions that were ended.
    ended: Vec<RunId>,
    /// What was taken of runs to be noted.
    counted: Vec<(RunId, Traffic)>,
}

impl Write {
    /// To be woken when this has been committed.
    pub fn notify(&mut self, wake: Hint) {
        if !self.hints.contains(&wake) {
            self.hints.push(wake);
        }
    }

    async fn commit(self) -> Result<Vec<Hint>> {
        let Self { tx, hints, runs, ended, counted, .. } = self;
        let committed = tx.commit().await;
        if let Some(runs) = runs {
            match committed {
                Ok(()) => counted.iter().for_each(|(_, traffic)| runs.noted(*traffic)),
                Err(_) => give_back(&*runs, &ended, counted),
            }
        }
        Ok(committed.map(|()| hints)?)
    }

    async fn undo(self) -> Result<()> {
        let Self { tx, runs, ended, counted, .. } = self;
        if let Some(runs) = runs {
            give_back(&*runs, &ended, counted);
        }
        Ok(tx.rollback().await?)
    }
}

/// What was taken of runs was not noted, and what was ended was not.
fn give_back(runs: &dyn Runs, ended: &[RunId], counted: Vec<(RunId, Traffic)>) {
    counted.into_iter().for_each(|(run, traffic)| runs.give_back(run, traffic));
    ended.iter().for_each(|run| runs.reopen(*run));
}

impl Deref for Write {
    type Target = Tx;

    fn deref(&self) -> &Tx {
        &self.tx
    }
}

impl DerefMut for Write {
    fn deref_mut(&mut self) -> &mut Tx {
        &mut self.tx
    }
}

impl Store {
    /// The store, and the end at which wake-ups come out.
    pub fn new(db: Db, clock: Clock, secrets: Secrets, tasks: TaskTracker) -> (Self, mpsc::UnboundedReceiver<Hint>) {
        let (hints, woken) = mpsc::unbounded_channel();
        let (commits, runs) = (watch::Sender::new(0), OnceLock::new());
        (Self { db, clock, secrets, tasks, hints, commits, runs }, woken)
    }

    /// Has the figures of sessions written with their end. Once, before anything is served.
    pub fn attach(&self, runs: Arc<dyn Runs>) {
        let _ = self.runs.set(runs);
    }

    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    pub fn secrets(&self) -> &Secrets {
        &self.secrets
    }

    /// How many transactions were committed: changes with each, for whoever waits for an effect.
    pub fn commits(&self) -> watch::Receiver<u64> {
        self.commits.subscribe()
    }

    /// Whether the database answers at once.
    pub async fn answers(&self) -> bool {
        self.db.answers().await
    }

    pub async fn close(&self) {
        self.db.close().await;
    }

    /// Runs a transaction to its end, whoever waits for it. With a scope, that scope's rows are
    /// this transaction's alone.
    ///
    /// It is not for what a caller asks for: that takes a permit, and [`Store::commit`].
    pub async fn write<T, F>(&self, scope_id: Option<Uuid>, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: for<'w> FnOnce(&'w mut Write) -> BoxFuture<'w, Result<T>> + Send + 'static,
    {
        let (db, clock, hints, commits, runs) =
            (self.db.clone(), self.clock.clone(), self.hints.clone(), self.commits.clone(), self.runs.get().cloned());
        let transaction = async move {
            let tx = db.begin().await?;
            let (now, nothing) = (clock.now(), Vec::new());
            let mut write = Write { tx, now, clock, hints: nothing, runs, ended: Vec::new(), counted: Vec::new() };
            match in_turn(&mut write, scope_id, work).await {
                Ok(value) => {
                    let due = write.commit().await?;
                    commits.send_modify(|commits| *commits += 1);
                    // Nobody listens while the host stops.
                    for hint in due {
                        let _ = hints.send(hint);
                    }
                    Ok(value)
                }
                Err(error) => {
                    // What went wrong is what was done, not that it could not be undone.
                    if let Err(error) = write.undo().await {
                        tracing::warn!(error = %Chain(&error), "a transaction could not be rolled back; its connection is closed");
                    }
                    Err(error)
                }
            }
        };
        let done = self.tasks.spawn(transaction.in_current_span()).await;
        done.unwrap_or_else(|panic| Err(Error::internal(panic)))
    }
}

/// The work of a transaction, once its scope is its own.
async fn in_turn<T, F>(write: &mut Write, scope_id: Option<Uuid>, work: F) -> Result<T>
where
    F: for<'w> FnOnce(&'w mut Write) -> BoxFuture<'w, Result<T>>,
{
    if let Some(scope_id) = scope_id {
        lock_scope(write, scope_id).await?;
    }
    // The time is that of the turn, not of the wait for it.
    write.now = write.clock.now();
    let value = work(write).await?;
    write.finish_runs().await?;
    Ok(value)
}

/// Against whoever locks it as well, and not against those who only refer to it: a transaction that
/// holds an endpoint's row and changes it twice has its reference to the scope checked.
async fn lock_scope(write: &mut Write, scope_id: Uuid) -> Result<()> {
    Ok(write.lock("SELECT id FROM scopes WHERE id = $1 FOR NO KEY UPDATE", args![scope_id]).await?)
}
