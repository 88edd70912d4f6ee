//! The exchanges of one connection of HTTP/2: when it is idle, and whether its visitor only begins and cancels.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use culvert_wire::clock::{Clock, Moment};
use tokio::sync::Notify;

use crate::lock;

/// The time in which cancelled exchanges are counted.
const WINDOW: Duration = Duration::from_secs(10);
/// So many may be cancelled in it; more only if they are at most half of all.
const CANCELLED: u32 = 100;

pub(super) struct Exchanges {
    clock: Clock,
    is_proxy: bool,
    counts: Mutex<Counts>,
    changed: Notify,
}

struct Counts {
    /// Exchanges that are under way, and since when there is none.
    open: u32,
    idle_since: Moment,
    window: Moment,
    begun: u32,
    cancelled: u32,
    /// Whether a stream is left that was cut and that its visitor does not let go.
    is_stuck: bool,
}

/// Why a connection has to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndReason {
    /// Nothing is under way.
    Idle,
    /// The visitor cancels most of what it begins, or does not let go of what was cut.
    Abuse,
}

impl Exchanges {
    /// `is_proxy` for the connection of a trusted proxy, which brings the requests of many visitors.
    pub(super) fn new(clock: Clock, is_proxy: bool) -> Arc<Self> {
        let now = clock.moment();
        let counts = Counts { open: 0, idle_since: now, window: now, begun: 0, cancelled: 0, is_stuck: false };
        Arc::new(Self { clock, is_proxy, counts: Mutex::new(counts), changed: Notify::new() })
    }

    pub(super) fn begin(self: &Arc<Self>) -> OpenExchange {
        let now = self.clock.moment();
        let mut counts = lock(&self.counts);
        if now.since(counts.window) >= WINDOW {
            (counts.window, counts.begun, counts.cancelled) = (now, 0, 0);
        }
        counts.open += 1;
        counts.begun += 1;
        OpenExchange { exchanges: self.clone(), is_complete: false }
    }

    /// A stream that was cut is still there.
    pub(super) fn stuck(&self) {
        lock(&self.counts).is_stuck = true;
        self.changed.notify_one();
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Waits until the connection has to end: for a reason of its visitor's, or because it has been idle for so long.
    pub(super) async fn end(&self, idle: Duration) -> EndReason {
        loop {
            let changed = self.changed.notified();
            let end = {
                let counts = lock(&self.counts);
                let cancels = counts.cancelled > CANCELLED && counts.cancelled > counts.begun / 2;
                if counts.is_stuck || cancels && !self.is_proxy {
                    return EndReason::Abuse;
                }
                (counts.open == 0).then(|| counts.idle_since.plus(idle))
            };
            match end {
                Some(end) if self.clock.moment() >= end => return EndReason::Idle,
                Some(end) => {
                    tokio::select! {
                        () = self.clock.until(end) => {}
                        () = changed => {}
                    }
                }
                None => changed.await,
            }
        }
    }
}

/// An exchange that is under way. Dropping it before its end counts as cancelled.
pub(super) struct OpenExchange {
    exchanges: Arc<Exchanges>,
    is_complete: bool,
}

impl OpenExchange {
    /// The whole answer was passed on.
    pub(super) fn complete(&mut self) {
        self.is_complete = true;
    }
}

impl Drop for OpenExchange {
    fn drop(&mut self) {
        let now = self.exchanges.clock.moment();
        let mut counts = lock(&self.exchanges.counts);
        counts.open -= 1;
        counts.idle_since = now;
        counts.cancelled += u32::from(!self.is_complete);
        if counts.open == 0 || counts.cancelled > CANCELLED {
            drop(counts);
            self.exchanges.changed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn cancelling_most_of_many_exchanges_ends_the_connection() {
        let exchanges = Exchanges::new(Clock::manual(chrono::DateTime::UNIX_EPOCH), false);
        let ends = || exchanges.end(Duration::from_hours(1)).now_or_never();
        let run = |count: usize, is_complete: bool| {
            for _ in 0..count {
                let mut exchange = exchanges.begin();
                if is_complete {
                    exchange.complete();
                }
            }
        };
        run(100, false);
        assert_eq!(ends(), None, "a page that is left");
        run(101, true);
        run(1, false);
        assert_eq!(ends(), None, "as many are completed");
        run(2, false);
        assert_eq!(ends(), Some(EndReason::Abuse));
    }

    #[test]
    fn cancelled_exchanges_are_forgotten_after_a_while() {
        let clock = Clock::manual(chrono::DateTime::UNIX_EPOCH);
        let exchanges = Exchanges::new(clock.clone(), false);
        for _ in 0..5 {
            (0..90).for_each(|_| drop(exchanges.begin()));
            clock.advance(WINDOW);
        }
        assert_eq!(exchanges.end(Duration::from_hours(1)).now_or_never(), None);
        clock.advance(Duration::from_hours(1));
        assert_eq!(exchanges.end(Duration::from_hours(1)).now_or_never(), Some(EndReason::Idle));
    }
}
