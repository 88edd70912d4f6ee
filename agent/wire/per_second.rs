//! How often something may happen in a second, for each address.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::clock::Moment;
use crate::tally::Tally;

pub struct PerSecond {
    most: usize,
    second: Mutex<Option<(Moment, Tally<IpAddr>)>>,
}

impl PerSecond {
    pub fn new(most: usize) -> Self {
        Self { most, second: Mutex::default() }
    }

    /// Counts one more for an address; false if it has had its share of this second.
    pub fn allows(&self, address: IpAddr, now: Moment) -> bool {
        let mut second = self.second.lock().unwrap_or_else(PoisonError::into_inner);
        if second.as_ref().is_none_or(|(begun, _)| now.since(*begun) >= Duration::from_secs(1)) {
            *second = Some((now, Tally::default()));
        }
        let Some((_, counts)) = second.as_mut() else { return true };
        let is_allowed = counts.of(&address) < self.most;
        if is_allowed {
            counts.add(address, 1);
        }
        is_allowed
    }
}
