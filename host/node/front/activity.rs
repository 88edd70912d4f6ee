//! When something has last moved.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use culvert_wire::clock::{Clock, Moment};

/// When the last byte of an exchange has moved, in either direction.
pub(super) struct Activity {
    clock: Clock,
    start: Moment,
    /// In milliseconds after `start`.
    last: AtomicU64,
    awaits_visitor: AtomicBool,
}

impl Activity {
    pub(super) fn new(clock: Clock) -> Arc<Self> {
        let (start, last) = (clock.moment(), AtomicU64::new(0));
        Arc::new(Self { start, clock, last, awaits_visitor: AtomicBool::new(false) })
    }

    pub(super) fn note(&self) {
        let since = self.clock.moment().since(self.start).as_millis();
        self.last.store(u64::try_from(since).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Notes whether the service would take more of a request, and its visitor has announced it.
    pub(super) fn note_awaited(&self, is_awaited: bool) {
        self.awaits_visitor.store(is_awaited, Ordering::Relaxed);
    }

    /// Whether the visitor has more of the request to send.
    pub(super) fn awaits_visitor(&self) -> bool {
        self.awaits_visitor.load(Ordering::Relaxed)
    }

    /// When the last byte has moved.
    pub(super) fn last(&self) -> Moment {
        self.start.plus(Duration::from_millis(self.last.load(Ordering::Relaxed)))
    }

    /// Whether no byte has moved for this time.
    pub(super) fn is_silent(&self, timeout: Duration) -> bool {
        self.clock.moment() >= self.last().plus(timeout)
    }

    /// Waits until no byte has moved for this time.
    pub(super) async fn silence(self: Arc<Self>, timeout: Duration) {
        while !self.is_silent(timeout) {
            self.clock.until(self.last().plus(timeout)).await;
        }
    }
}
