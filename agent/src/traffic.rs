//! What a running tunnel carries, since it started here.

use std::sync::atomic::{AtomicU64, Ordering};

use culvert_wire::pipe::Counters;

#[derive(Debug, Default)]
pub(crate) struct Traffic {
    /// Bytes from visitors, and to visitors.
    pub bytes: Counters,
    visitors: AtomicU64,
    /// Datagrams that were dropped here.
    dropped: AtomicU64,
}

/// An open visit. Dropping it ends it.
pub(crate) struct OpenVisit<'t>(&'t Traffic);

impl Traffic {
    pub(crate) fn enter(&self) -> OpenVisit<'_> {
        self.visitors.fetch_add(1, Ordering::Relaxed);
        OpenVisit(self)
    }

    /// Counts a datagram that was not passed on.
    pub(crate) fn drop_datagram(&self, cause: &str) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
        tracing::trace!(cause, "a datagram was dropped");
    }

    /// Datagrams that were not passed on.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// The open visits.
    pub(crate) fn visitors(&self) -> u64 {
        self.visitors.load(Ordering::Relaxed)
    }
}

impl Drop for OpenVisit<'_> {
    fn drop(&mut self) {
        self.0.visitors.fetch_sub(1, Ordering::Relaxed);
    }
}
