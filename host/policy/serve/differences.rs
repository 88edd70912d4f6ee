//! The newest decisions in which a shadow module answered otherwise than the chain, or failed.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::engine::kind::Kind;

/// How many are kept, in memory.
const KEPT: usize = 200;
/// Most bytes of what a module says that are kept of one.
const SAID: usize = 500;

#[derive(Clone, Debug)]
pub struct Difference {
    pub at: DateTime<Utc>,
    pub request_id: Option<Uuid>,
    pub generation: u64,
    pub kind: Kind,
    /// The shadow module.
    pub module: String,
    /// What the chain decided.
    pub decided: &'static str,
    /// What the shadow would have decided, with its rules; or why it failed.
    pub shadow: String,
}

#[derive(Default)]
pub struct Differences(Mutex<VecDeque<Difference>>);

impl Differences {
    pub(crate) fn add(&self, mut difference: Difference) {
        difference.shadow.truncate(difference.shadow.floor_char_boundary(SAID));
        let mut kept = self.kept();
        if kept.len() == KEPT {
            kept.pop_back();
        }
        kept.push_front(difference);
    }

    /// Newest first.
    pub fn newest(&self) -> Vec<Difference> {
        self.kept().iter().cloned().collect()
    }

    fn kept(&self) -> MutexGuard<'_, VecDeque<Difference>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
