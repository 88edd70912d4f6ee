//! How many statements are sent to the database: by the whole process, and for one request. `BEGIN`, with the lock of a
//! scope, and `COMMIT` do not count.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug, Default)]
pub struct StatementCounts {
    alone: AtomicU64,
    in_transactions: AtomicU64,
}

/// Those of the process.
pub static OF_PROCESS: StatementCounts =
    StatementCounts { alone: AtomicU64::new(0), in_transactions: AtomicU64::new(0) };

tokio::task_local! {
    static OF_REQUEST: Arc<StatementCounts>;
}

/// What a statement is part of.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PartOf {
    Nothing,
    Transaction,
}

impl StatementCounts {
    /// Those outside of transactions, and those in them.
    pub fn totals(&self) -> (u64, u64) {
        (self.alone.load(Ordering::Relaxed), self.in_transactions.load(Ordering::Relaxed))
    }

    fn add(&self, part_of: PartOf) {
        let counter = match part_of {
            PartOf::Nothing => &self.alone,
            PartOf::Transaction => &self.in_transactions,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

pub(crate) fn count(part_of: PartOf) {
    OF_PROCESS.add(part_of);
    let _ = OF_REQUEST.try_with(|counts| counts.add(part_of));
}

/// Runs a request and counts its statements, those of its transactions as well.
pub async fn counted<F: Future>(request: F) -> (F::Output, Arc<StatementCounts>) {
    let counts = Arc::new(StatementCounts::default());
    let output = OF_REQUEST.scope(counts.clone(), request).await;
    (output, counts)
}

/// A future of which nothing counts for the request that runs it: it is for others as well.
pub fn for_no_request<F: Future>(work: F) -> impl Future<Output = F::Output> {
    OF_REQUEST.scope(Arc::default(), work)
}

/// A future that counts for the request that makes it, in whichever task it runs.
pub(crate) fn for_this_request<F: Future>(work: F) -> impl Future<Output = F::Output> {
    let counts = OF_REQUEST.try_with(Arc::clone).ok();
    async move {
        match counts {
            Some(counts) => OF_REQUEST.scope(counts, work).await,
            None => work.await,
        }
    }
}
