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
pub mod facts;
pub mod idempotency;
pub mod keys;
pub mod operations;
pub mod outbox;
pub mod page;
pub mod ports;
pub mod presence;
pub mod rate;
pub mod scopes;
pub mod sessions;
pub mod sweep;
pub mod tunnels;
pub mod usage;
pub mod webhooks;

use std::ops::{Deref, DerefMut};

use chrono::{DateTime, Utc};
use culvert_agent::clock::Clock;
use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, watch};
use tokio_util::task::TaskTracker;
use tracing::Instrument;
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::secret::Secrets;
use db::{Db, Tx, args};

pub struct Store {
    db: Db,
    clock: Clock,
    secrets: Secrets,
    tasks: TaskTracker,
    wakes: mpsc::UnboundedSender<Wake>,
    commits: watch::Sender<u64>,
}

/// Who has something new to look at, once it is committed. Losing one costs a second, not the
/// thing itself: everybody also looks by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// The connection of a device: an operation, a lease, its consent.
    Device(Uuid),
    /// The node that a tunnel is placed on.
    Tunnel(Uuid),
    /// Whoever delivers to webhooks.
    Courier,
}

/// A transaction at work.
pub struct Write {
    tx: Tx,
    /// One time for all that the transaction writes.
    pub now: DateTime<Utc>,
    pub clock: Clock,
    wakes: Vec<Wake>,
}

impl Write {
    /// To be woken when this has been committed.
    pub fn wake(&mut self, wake: Wake) {
        if !self.wakes.contains(&wake) {
            self.wakes.push(wake);
        }
    }
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
    pub fn new(db: Db, clock: Clock, secrets: Secrets, tasks: TaskTracker) -> (Self, mpsc::UnboundedReceiver<Wake>) {
        let (wakes, woken) = mpsc::unbounded_channel();
        (Self { db, clock, secrets, tasks, wakes, commits: watch::Sender::new(0) }, woken)
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
        let (db, clock, wakes, commits) =
            (self.db.clone(), self.clock.clone(), self.wakes.clone(), self.commits.clone());
        let transaction = async move {
            let tx = db.begin().await?;
            let mut write = Write { tx, now: clock.now(), clock, wakes: Vec::new() };
            let worked = match scope_id {
                Some(scope_id) => lock_scope(&mut write, scope_id).await,
                None => Ok(()),
            };
            // The time is that of the turn, not of the wait for it.
            write.now = write.clock.now();
            let worked = match worked {
                Ok(()) => work(&mut write).await,
                Err(error) => Err(error),
            };
            let Write { tx, wakes: to_wake, .. } = write;
            match worked {
                Ok(value) => {
                    tx.commit().await?;
                    commits.send_modify(|commits| *commits += 1);
                    // Nobody listens while the host stops.
                    for wake in to_wake {
                        let _ = wakes.send(wake);
                    }
                    Ok(value)
                }
                Err(error) => {
                    tx.rollback().await?;
                    Err(error)
                }
            }
        };
        let done = self.tasks.spawn(transaction.in_current_span()).await;
        done.unwrap_or_else(|panic| Err(Error::internal(panic)))
    }
}

/// Against whoever locks it as well, and not against those who only refer to it: a transaction that
/// holds an endpoint's row and changes it twice has its reference to the scope checked.
async fn lock_scope(write: &mut Write, scope_id: Uuid) -> Result<()> {
    Ok(write.lock("SELECT id FROM scopes WHERE id = $1 FOR NO KEY UPDATE", args![scope_id]).await?)
}

/// What a client is told of a database's error: nothing of it, but whether to try again.
impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        let passes = match &error {
            sqlx::Error::PoolTimedOut | sqlx::Error::Io(_) | sqlx::Error::PoolClosed => true,
            // PostgreSQL: lock_timeout, deadlock, serialization, shutdown; SQLite: busy, locked.
            sqlx::Error::Database(error) => error.code().is_some_and(|code| {
                matches!(&*code, "55P03" | "40P01" | "40001" | "57P01" | "57P03" | "5" | "6" | "261" | "517")
            }),
            _ => false,
        };
        if passes { Error::unavailable(error) } else { Error::internal(error) }
    }
}
