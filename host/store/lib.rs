//! The database layer: the only crate that contains SQL.
//!
//! Every read takes the scope that it is made for and never returns rows of another scope. Writes on
//! behalf of a caller go through the service's `commit`, which needs a permit. Every transaction that writes
//! rows of a scope first locks the scope's own row ([`Store::write`]), so two such transactions cannot
//! deadlock. Each transaction runs in a task of its own, so it also ends when the client disconnects.

#![deny(unsafe_code)]
#![warn(unreachable_pub)]
#![expect(clippy::missing_errors_doc, reason = "each function fails if the database does; most fail in no other way")]

mod access;
pub mod acme;
mod arg;
pub mod assignments;
mod audit_append;
pub mod audit_heads;
pub mod audit_log;
pub mod catalog;
pub mod certificates;
pub mod db;
mod devices;
pub mod domains;
pub mod due;
pub mod error;
pub mod facts;
pub mod fleet;
mod group_commit;
pub mod hints;
pub mod hosts;
pub mod idempotency;
pub mod identities;
mod installation;
pub mod invitations;
mod key_check;
pub mod keys;
pub mod local_roots;
pub mod mails;
pub mod migrations;
mod moves;
pub mod names;
pub mod node_requests;
pub mod operations;
mod operators;
pub mod outbox;
pub mod passkeys;
pub mod policy_generations;
pub mod ports;
pub mod postgres_bus;
mod postgres_pool;
pub mod presence;
mod profiles;
mod prune;
pub mod rate;
mod read;
mod refusals;
pub mod resend;
pub mod routes;
mod row;
pub mod schema;
pub mod scopes;
mod second_factors;
pub mod sessions;
pub mod sign_in_tries;
pub mod sign_ins;
mod sign_ups;
pub mod sql;
pub mod statements;
pub mod temporary_tunnels;
pub mod tunnels;
mod usage;
mod webhooks;

use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;

use chrono::{DateTime, Utc};
use culvert_wire::clock::Clock;
use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::task::TaskTracker;
use tracing::Instrument;
use uuid::Uuid;

use audit_heads::{Appender, AuditHeads};
use certificates::OwnCertificates;
use culvert_domain::error::{Chain, Error, Result};
use culvert_domain::fleet::ForHost;
use db::{Db, Tx};

pub struct Store {
    db: Db,
    clock: Clock,
    tasks: TaskTracker,
    hints: mpsc::UnboundedSender<Hint>,
    commits: watch::Sender<u64>,
    /// Set at the start, if names of tunnels get certificates of their own.
    own_certificates: OnceLock<OwnCertificates>,
    /// The host names of the API and of the dashboard, set at the start.
    own_names: OnceLock<Vec<String>>,
    audit_heads: AuditHeads,
    /// Tells what this process has written from what others have.
    process_id: Uuid,
    /// Set when a host has its place among the hosts. A command has none.
    host_id: OnceLock<Uuid>,
}

/// Post-commit notification: which part of the host has new work, sent after a commit.
///
/// A lost hint costs about a second and no work, because every receiver also looks for work by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hint {
    /// The connection of this device: an operation, a lease or its consent has changed.
    Device(Uuid),
    /// Another host: there is something for it in the database.
    Host(Uuid, ForHost),
    /// This lease: it has ended.
    LeaseEnded(Uuid),
    /// The channel of this node: its assignments have changed.
    Node(Uuid),
    /// The worker that sends webhook deliveries.
    Deliveries,
    /// The worker that sends mail.
    Mails,
    /// The worker that issues certificates.
    Certificates,
    /// Open pages that show this scope: something of it has changed.
    Scope(Uuid),
    /// Open pages of operators: an account, a Team, a node, a certificate or the policies have changed.
    Installation,
}

/// An open transaction that writes.
pub struct Write {
    tx: Tx,
    /// The one timestamp for everything that the transaction writes.
    pub now: DateTime<Utc>,
    pub clock: Clock,
    hints: BTreeSet<Hint>,
    /// What nodes have of tunnels and platform domains that this transaction has changed: node id and the other's id.
    touched: BTreeSet<(Uuid, Uuid)>,
    /// Nodes that tunnels were moved from.
    former_nodes: BTreeSet<Uuid>,
    /// The http tunnels whose names this transaction has changed.
    renamed: BTreeSet<Uuid>,
    own_certificates: Option<OwnCertificates>,
    audit: Appender,
    locked_scope: Option<Uuid>,
    process_id: Uuid,
    host_id: Option<Uuid>,
}

impl Write {
    /// Adds a hint that is sent after the commit.
    pub fn notify(&mut self, wake: Hint) {
        self.hints.insert(wake);
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
    /// Creates the store and returns it with the receiver of its hints.
    pub fn new(db: Db, clock: Clock, tasks: TaskTracker) -> (Self, mpsc::UnboundedReceiver<Hint>) {
        let (hints, woken) = mpsc::unbounded_channel();
        let commits = watch::Sender::new(0);
        let (own_certificates, own_names) = (OnceLock::new(), OnceLock::new());
        let audit_heads = AuditHeads::default();
        let (process_id, host_id) = (clock.id(), OnceLock::new());
        (
            Self { db, clock, tasks, hints, commits, own_certificates, own_names, audit_heads, process_id, host_id },
            woken,
        )
    }

    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// A counter of committed transactions. It changes with each commit, so a task can wait for an effect.
    pub fn commits(&self) -> watch::Receiver<u64> {
        self.commits.subscribe()
    }

    /// Sends a hint of something that is not in the database.
    pub fn send_hint(&self, hint: Hint) {
        // The receiver is gone while the host stops.
        let _ = self.hints.send(hint);
    }

    /// The host that this process is, once it has its place.
    pub fn host_id(&self) -> Option<Uuid> {
        self.host_id.get().copied()
    }

    /// Whether the database is on a server, which other hosts may use as well.
    pub fn is_on_a_server(&self) -> bool {
        matches!(self.db, Db::Postgres { .. })
    }

    /// Whether the database answers a query within one second.
    pub async fn answers(&self) -> bool {
        self.db.answers().await
    }

    pub async fn close(&self) {
        self.db.close().await;
    }

    /// Runs a transaction to its end, even if the caller stops waiting. With a scope, it first takes the row
    /// lock of that scope, so no other transaction changes the scope's rows meanwhile.
    ///
    /// Do not use it for a caller's request: that needs a permit and goes through the service's `commit`.
    pub async fn write<T, F>(&self, scope_id: Option<Uuid>, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: for<'w> FnOnce(&'w mut Write) -> BoxFuture<'w, Result<T>> + Send + 'static,
    {
        self.write_in(self.db.clone(), scope_id, work).await
    }

    /// As [`Store::write`], without a scope and on connections of its own: what is alive is recorded however busy the others
    /// are.
    async fn write_liveness<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: for<'w> FnOnce(&'w mut Write) -> BoxFuture<'w, Result<T>> + Send + 'static,
    {
        self.write_in(self.db.for_liveness(), None, work).await
    }

    async fn write_in<T, F>(&self, db: Db, scope_id: Option<Uuid>, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: for<'w> FnOnce(&'w mut Write) -> BoxFuture<'w, Result<T>> + Send + 'static,
    {
        let (sender, mut value) = oneshot::channel();
        let work: Work = Box::new(move |write| {
            let work = work(write);
            Box::pin(async move {
                let _ = sender.send(work.await?);
                Ok(())
            })
        });
        self.run(db, scope_id, work).await?;
        value.try_recv().map_err(Error::internal)
    }

    /// Runs a transaction in a task of its own.
    async fn run(&self, db: Db, scope_id: Option<Uuid>, work: Work) -> Result<()> {
        let (clock, sender, commits) = (self.clock.clone(), self.hints.clone(), self.commits.clone());
        let (process_id, host_id) = (self.process_id, self.host_id.get().copied());
        let (own_certificates, audit) = (self.own_certificates.get().cloned(), self.audit_heads.appender());
        let transaction = async move {
            let tx = db.begin(scope_id).await?;
            // Taken after the lock, so that the time spent waiting for it does not make the timestamp too early.
            let now = clock.now();
            let (touched, renamed) = (BTreeSet::new(), BTreeSet::new());
            let hints = scope_id.map(Hint::Scope).into_iter().collect();
            let mut write = Write {
                tx,
                now,
                clock,
                hints,
                touched,
                former_nodes: BTreeSet::new(),
                renamed,
                own_certificates,
                audit,
                locked_scope: scope_id,
                process_id,
                host_id,
            };
            if let Err(error) = in_turn(&mut write, work).await {
                // The caller gets the error of the work; a failed rollback is only logged.
                if let Err(error) = write.tx.rollback().await {
                    tracing::warn!(error = %Chain(&error), "a transaction could not be rolled back; its connection is closed");
                }
                return Err(error);
            }
            let Write { tx, hints: due, audit, .. } = write;
            tx.commit(audit).await?;
            commits.send_modify(|commits| *commits += 1);
            // The receiver is gone while the host stops.
            for hint in due {
                let _ = sender.send(hint);
            }
            Ok(())
        };
        let transaction = statements::for_this_request(transaction);
        let done = self.tasks.spawn(transaction.in_current_span()).await;
        done.unwrap_or_else(|panic| Err(Error::internal(panic)))
    }
}

/// What a transaction does. It has no type of its own, so that all that is around it is compiled once.
type Work = Box<dyn for<'w> FnOnce(&'w mut Write) -> BoxFuture<'w, Result<()>> + Send>;

/// Runs the work of a transaction, and what follows from what it touched.
async fn in_turn(write: &mut Write, work: Work) -> Result<()> {
    work(write).await?;
    write.want_certificates().await?;
    write.raise_revisions().await?;
    write.append_audit_entries().await?;
    // In the order of the ids, so that two transactions do not wait for each other.
    let woken = write.hints.iter().filter_map(|hint| if let Hint::Device(id) = hint { Some(*id) } else { None });
    let woken: Vec<Uuid> = woken.collect();
    if !woken.is_empty() {
        write.hint_other_hosts(&woken).await?;
    }
    Ok(())
}
