//! What fails again and again is said when it begins and when it is over, and not each time in between.

use std::time::Duration;

use culvert_domain::error::{Chain, Error};
use culvert_wire::clock::{Clock, Moment};

/// Whether something fails, and since when.
#[derive(Default)]
pub(super) struct Outage {
    began: Option<Moment>,
}

impl Outage {
    /// It has failed. `what` is logged at the first time.
    pub(super) fn failed(&mut self, clock: &Clock, error: &Error, what: &str) {
        if self.began.is_none() {
            tracing::warn!(error = %Chain(error), "{what}");
            self.began = Some(clock.moment());
        } else {
            tracing::debug!(error = %Chain(error), "{what}");
        }
    }

    /// It works. `what` is logged at the first time after failures.
    pub(super) fn works(&mut self, clock: &Clock, what: &str) {
        if let Some(began) = self.began.take() {
            let seconds = clock.moment().since(began).max(Duration::from_secs(1)).as_secs();
            tracing::info!(seconds, "{what}");
        }
    }
}
