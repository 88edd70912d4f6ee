//! The processor time of the calling thread, which tells a slow module from a busy machine.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The processor time that the calling thread has used.
pub(crate) fn of_this_thread() -> Duration {
    // The clock is there on every Linux; it does not go back, so it is not negative.
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}
