//! What nodes count, for the metrics.

use std::collections::HashMap;
use std::sync::Mutex;

use culvert_wire::node::{Count, Counted};
use uuid::Uuid;

use super::lock;
use crate::metrics::NodeMetrics;

/// Counts of one node that are known, at most.
const MOST: usize = 100;

/// What each node has counted since its process started, as it last said.
#[derive(Default)]
pub(super) struct ReportedCounts(Mutex<HashMap<Uuid, OfProcess>>);

struct OfProcess {
    boot_id: Uuid,
    counts: HashMap<(Counted, String), u64>,
}

impl ReportedCounts {
    /// Adds to the metrics what is new.
    pub(super) fn take(&self, node_id: Uuid, boot_id: Uuid, reported: &[Count], metrics: &NodeMetrics) {
        let mut nodes = lock(&self.0);
        let known = nodes.entry(node_id).or_insert_with(|| OfProcess { boot_id, counts: HashMap::new() });
        if known.boot_id != boot_id {
            *known = OfProcess { boot_id, counts: HashMap::new() };
        }
        for Count { what, label, count } in reported.iter().take(MOST) {
            let before = known.counts.insert((*what, label.clone()), *count).unwrap_or_default();
            let more = count.saturating_sub(before);
            if more > 0 {
                metrics.add_counts(*what, label, more);
            }
        }
    }
}
