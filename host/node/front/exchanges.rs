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
}

impl Exchanges {
    pub(super) fn new(clock: Clock) -> Arc<Self> {
        let now = clock.moment();
        let counts = Counts { open: 0, idle_since: now, window: now, begun: 0, cancelled: 0 };
        Arc::new(Self { clock, counts: Mutex::new(counts), changed: Notify::new() })
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

    /// Waits until the visitor has to open a new connection: this one has been idle for too long, or the visitor cancels
    /// most of what it begins.
    pub(super) async fn goaway(&self, idle: Duration) {
        loop {
            let changed = self.changed.notified();
            let end = {
                let counts = lock(&self.counts);
                if counts.cancelled > CANCELLED && counts.cancelled > counts.begun / 2 {
                    return;
                }
                (counts.open == 0).then(|| counts.idle_since.plus(idle))
            };
            match end {
                Some(end) if self.clock.moment() >= end => return,
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
