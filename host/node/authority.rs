//! How long a node may serve without hearing that its host reaches the database. After that time, other devices may run its
//! tunnels elsewhere.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use culvert_wire::clock::{Clock, Moment};
use culvert_wire::node::ToHost;

use super::Node;

/// Until when the node may serve; without a limit where the host has never named one.
pub(super) struct Authority {
    clock: Clock,
    until: Mutex<Option<Moment>>,
    /// Whether it was over, and the host has not said since what is to be served.
    is_lapsed: AtomicBool,
}

impl Authority {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, until: Mutex::default(), is_lapsed: AtomicBool::new(false) }
    }

    fn extend(&self, until: Moment) {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) = Some(until);
    }

    pub(super) fn is_over(&self) -> bool {
        let until = self.until.lock().unwrap_or_else(PoisonError::into_inner);
        until.is_some_and(|until| until <= self.clock.since_boot())
    }

    pub(super) fn is_lapsed(&self) -> bool {
        self.is_lapsed.load(Ordering::Relaxed)
    }

    pub(super) fn set_lapsed(&self, is_lapsed: bool) {
        self.is_lapsed.store(is_lapsed, Ordering::Relaxed);
    }
}

impl Node {
    /// The host says until when the node may serve.
    pub(super) async fn extend_authority(&self, until: Moment) {
        // If it was over before, what was to be served may run elsewhere by now.
        self.end_without_authority().await;
        self.authority.extend(until);
        self.end_without_authority().await;
        if self.authority.is_lapsed() && !self.authority.is_over() {
            self.send(ToHost::Resync { revision: 0 }).await;
        }
    }

    /// Ends everything if the authority is over.
    pub async fn end_without_authority(&self) {
        let mut state = self.assignments.lock().await;
        if !self.authority.is_over() || !state.forget_all() {
            return;
        }
        self.authority.set_lapsed(true);
        tracing::error!("the host has not reached its database for too long; its tunnels end until it does");
        self.end_all().await;
    }
}
