//! Keeps a slow module from costing more than its own requests: a breaker for one that times out again and again, and
//! bounds on its decisions that take long.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use culvert_wire::clock::{Clock, Moment};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Timeouts in a row that open the breaker.
const TIMEOUTS: u32 = 5;
/// How long the breaker is open before one decision is tried again.
const PAUSE: Duration = Duration::from_secs(5);
/// Long decisions of one module that run or wait for their turn.
const ADMITTED: usize = 32;
/// How long a decision may wait for its turn.
const WAIT: Duration = Duration::from_secs(10);

/// Long decisions of one module that run at once: as many as half of the cores, at least one.
fn running() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get() / 2).max(1)
}

/// The state of one module that all its instances share.
pub struct ModuleGuard {
    /// Timeouts since the last decision that ended in time.
    timeouts: AtomicU32,
    /// Whether the last decision took long.
    was_long: AtomicBool,
    /// When the breaker opened, or let a decision through last.
    opened: Mutex<Option<Moment>>,
    admitted: Arc<Semaphore>,
    running: Arc<Semaphore>,
}

/// A place among the long decisions of a module.
pub struct LongDecision {
    _admitted: OwnedSemaphorePermit,
    _running: OwnedSemaphorePermit,
}

impl Default for ModuleGuard {
    fn default() -> Self {
        Self {
            timeouts: AtomicU32::new(0),
            was_long: AtomicBool::new(false),
            opened: Mutex::new(None),
            admitted: Arc::new(Semaphore::new(ADMITTED)),
            running: Arc::new(Semaphore::new(running())),
        }
    }
}

impl ModuleGuard {
    /// Whether the breaker is open: the module is not asked.
    pub fn is_open(&self) -> bool {
        self.timeouts.load(Ordering::Relaxed) >= TIMEOUTS
    }

    /// Whether a decision may be tried. An open breaker lets one through after each pause.
    pub(crate) fn may_try(&self, now: Moment) -> bool {
        if !self.is_open() {
            return true;
        }
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let pausing = opened.is_some_and(|opened| now.since(opened) < PAUSE);
        if !pausing {
            *opened = Some(now);
        }
        !pausing
    }

    /// Counts a decision that ended: in time, or not.
    pub(crate) fn note(&self, timed_out: bool, now: Moment) {
        if timed_out {
            if self.timeouts.fetch_add(1, Ordering::Relaxed) + 1 == TIMEOUTS {
                *self.opened.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
            }
        } else if self.timeouts.load(Ordering::Relaxed) != 0 {
            self.timeouts.store(0, Ordering::Relaxed);
        }
    }

    /// Whether the last decision took long, so that the next one may be expected to.
    pub(crate) fn was_long(&self) -> bool {
        self.was_long.load(Ordering::Relaxed)
    }

    pub(crate) fn note_long(&self, is_long: bool) {
        if self.was_long() != is_long {
            self.was_long.store(is_long, Ordering::Relaxed);
        }
    }

    /// Waits for a place among the module's long decisions. None if too many wait already, or it takes too long.
    pub(crate) async fn begin_long(&self, clock: &Clock) -> Option<LongDecision> {
        let admitted = self.admitted.clone().try_acquire_owned().ok()?;
        let running = clock.timeout(WAIT, self.running.clone().acquire_owned()).await.ok()?.ok()?;
        Some(LongDecision { _admitted: admitted, _running: running })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn long_decisions_wait_for_their_turn_up_to_a_limit() {
        let (guard, clock) = (ModuleGuard::default(), Clock::manual("2026-01-15T12:00:00Z".parse().unwrap()));
        let mut held = Vec::new();
        for _ in 0..running() {
            held.push(guard.begin_long(&clock).await.unwrap());
        }
        let (next, ()) = tokio::join!(guard.begin_long(&clock), async { drop(held.pop()) });
        assert!(next.is_some());
        let late = async {
            clock.until_awaited(clock.moment().plus(WAIT)).await;
            clock.advance(WAIT);
        };
        let (next, ()) = tokio::join!(guard.begin_long(&clock), late);
        assert!(next.is_none());
    }

    #[test]
    fn breaker_opens_after_timeouts_in_a_row_and_closes_after_a_success() {
        let (guard, clock) = (ModuleGuard::default(), Clock::manual("2026-01-15T12:00:00Z".parse().unwrap()));
        for _ in 0..TIMEOUTS - 1 {
            guard.note(true, clock.moment());
        }
        guard.note(false, clock.moment());
        for _ in 0..TIMEOUTS {
            assert!(guard.may_try(clock.moment()));
            guard.note(true, clock.moment());
        }
        assert!(guard.is_open() && !guard.may_try(clock.moment()));
        clock.advance(PAUSE);
        assert!(guard.may_try(clock.moment()), "one decision is tried");
        assert!(!guard.may_try(clock.moment()), "and no other one");
        guard.note(true, clock.moment());
        assert!(!guard.may_try(clock.moment()));
        clock.advance(PAUSE);
        assert!(guard.may_try(clock.moment()));
        guard.note(false, clock.moment());
        assert!(!guard.is_open() && guard.may_try(clock.moment()));
    }
}
