//! What fails again and again is logged when it begins, when its cause is another one, and when it is over.

use std::collections::BTreeSet;
use std::time::Duration;

use culvert_domain::error::{Chain, Error};
use culvert_wire::clock::{Clock, Moment};

/// Causes that are remembered. Where there are more of one outage, they are at level DEBUG.
const MOST_CAUSES: usize = 8;

/// Whether something fails, and since when.
#[derive(Default)]
pub(super) struct Outage {
    began: Option<Moment>,
    causes: BTreeSet<String>,
}

impl Outage {
    /// It has failed. `what` is logged once for each cause.
    pub(super) fn failed(&mut self, clock: &Clock, error: &Error, what: &str) {
        self.began.get_or_insert_with(|| clock.moment());
        let cause = Chain(error).to_string();
        if self.causes.len() < MOST_CAUSES && self.causes.insert(cause.clone()) {
            tracing::warn!(error = cause, "{what}");
        } else {
            tracing::debug!(error = cause, "{what}");
        }
    }

    /// It works. `what` is logged at the first time after failures.
    pub(super) fn works(&mut self, clock: &Clock, what: &str) {
        self.causes.clear();
        if let Some(began) = self.began.take() {
            let seconds = clock.moment().since(began).max(Duration::from_secs(1)).as_secs();
            tracing::info!(seconds, "{what}");
        }
    }
}
