//! What a node counts for its host's metrics, since its process started.

use std::collections::BTreeMap;
use std::sync::Mutex;

use culvert_wire::node::{Count, Counted};

use crate::lock;

#[derive(Default)]
pub(crate) struct Counts(Mutex<BTreeMap<(Counted, &'static str), u64>>);

impl Counts {
    pub(crate) fn count(&self, what: Counted, label: &'static str) {
        *lock(&self.0).entry((what, label)).or_default() += 1;
    }

    pub(crate) fn all(&self) -> Vec<Count> {
        let counts = lock(&self.0);
        counts
            .iter()
            .map(|((what, label), count)| Count { what: *what, label: (*label).into(), count: *count })
            .collect()
    }
}
