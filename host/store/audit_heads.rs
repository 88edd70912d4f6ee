//! The newest entry of each chain of the audit log that this process has written to: whoever appends needs not read it again.
//! One that another process has followed is noticed, for its place is taken.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use chrono::{DateTime, Utc};
use moka::sync::Cache;
use uuid::Uuid;

use culvert_domain::audit_log::NewEntry;
use culvert_domain::error::{Error, Result};

/// Chains whose heads are kept; one that is not is read.
const MOST: u64 = 10_000;

/// Authenticates entries, by a key that the database does not have.
pub trait AuditKey: Send + Sync {
    fn mac(&self, entry: &[u8]) -> Vec<u8>;

    fn vouches_for(&self, entry: &[u8], mac: &[u8]) -> bool;
}

/// What the next entry of a chain says of the newest one.
#[derive(Clone)]
pub(crate) struct ChainHead {
    pub(crate) number: u64,
    pub(crate) at: DateTime<Utc>,
    pub(crate) digest: Vec<u8>,
}

/// What it takes to write to the audit log.
pub(crate) struct AuditHeads {
    /// Set at the start. Without it, nothing that is to be in the log is written.
    pub(crate) key: OnceLock<Arc<dyn AuditKey>>,
    committed: Cache<Uuid, ChainHead>,
}

impl Default for AuditHeads {
    fn default() -> Self {
        Self { key: OnceLock::new(), committed: Cache::new(MOST) }
    }
}

impl AuditHeads {
    /// For one transaction.
    pub(crate) fn appender(&self) -> Appender {
        let (key, committed) = (self.key.get().cloned(), self.committed.clone());
        Appender { key, due: Vec::new(), committed, appended: HashMap::new() }
    }
}

/// What a transaction appends to the audit log: on SQLite, all that are committed together.
pub(crate) struct Appender {
    key: Option<Arc<dyn AuditKey>>,
    /// What is not appended yet.
    pub(crate) due: Vec<Due>,
    committed: Cache<Uuid, ChainHead>,
    /// The heads of the chains that this transaction has appended to.
    appended: HashMap<Uuid, ChainHead>,
}

/// An entry that is to be appended, and when its change was made.
pub(crate) struct Due {
    pub(crate) entry: NewEntry,
    pub(crate) at: DateTime<Utc>,
}

impl Appender {
    pub(crate) fn key(&self) -> Result<Arc<dyn AuditKey>> {
        self.key.clone().ok_or_else(|| Error::internal("the audit log has no key"))
    }

    /// The head of a chain, if it is known. Nobody else has it until this transaction is committed: were it rolled back, they
    /// would follow an entry that is not there.
    pub(crate) fn take(&mut self, scope_id: Uuid) -> Option<ChainHead> {
        let committed = self.committed.remove(&scope_id);
        self.appended.remove(&scope_id).or(committed)
    }

    pub(crate) fn put(&mut self, scope_id: Uuid, head: ChainHead) {
        self.appended.insert(scope_id, head);
    }

    /// Has the next transactions go on from here.
    pub(crate) fn committed(self) {
        for (scope_id, head) in self.appended {
            self.committed.insert(scope_id, head);
        }
    }
}
