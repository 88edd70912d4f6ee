//! How often the other side is told that a flow is not known.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::clock::{Clock, Moment};

/// A flow is answered once within this time.
const EVERY: Duration = Duration::from_secs(1);
/// Flows that are remembered. Others are not answered meanwhile.
const MOST: usize = 1024;

/// The flows that were answered lately.
pub struct CloseLimit {
    clock: Clock,
    answered: Mutex<HashMap<u64, Moment>>,
}

impl CloseLimit {
    pub fn new(clock: Clock) -> Self {
        Self { clock, answered: Mutex::default() }
    }

    /// Whether a flow is to be answered now.
    pub fn allows(&self, flow: u64) -> bool {
        let now = self.clock.moment();
        let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        if answered.len() >= MOST {
            answered.retain(|_, since| now.since(*since) < EVERY);
        }
        match answered.get(&flow) {
            Some(since) if now.since(*since) < EVERY => false,
            None if answered.len() >= MOST => false,
            _ => {
                answered.insert(flow, now);
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flow_is_answered_once_a_second_and_few_are_remembered() {
        let clock = Clock::manual(chrono::DateTime::UNIX_EPOCH);
        let limit = CloseLimit::new(clock.clone());
        assert_eq!([1, 1, 2, 1].map(|flow| limit.allows(flow)), [true, false, true, false]);
        clock.advance(EVERY);
        assert_eq!([1, 1].map(|flow| limit.allows(flow)), [true, false]);
        assert_eq!((10..2000).filter(|flow| limit.allows(*flow)).count(), MOST - 1);
        clock.advance(EVERY);
        assert!(limit.allows(1999));
    }
}
