//! What nodes count, for the metrics.

use std::collections::HashMap;
use std::sync::Mutex;

use culvert_wire::node::{Count, Counted, Timed, Times};
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
    times: HashMap<Timed, Times>,
}

impl OfProcess {
    fn new(boot_id: Uuid) -> Self {
        Self { boot_id, counts: HashMap::new(), times: HashMap::new() }
    }
}

impl ReportedCounts {
    /// Adds to the metrics what is new.
    pub(super) fn take(
        &self,
        node_id: Uuid,
        boot_id: Uuid,
        reported: &[Count],
        times: &[Times],
        metrics: &NodeMetrics,
    ) {
        let mut nodes = lock(&self.0);
        let known = nodes.entry(node_id).or_insert_with(|| OfProcess::new(boot_id));
        if known.boot_id != boot_id {
            *known = OfProcess::new(boot_id);
        }
        for times in times.iter().take(MOST) {
            let before = known.times.insert(times.what, times.clone());
            metrics.add_times(times, before.as_ref());
        }
        for Count { what, label, count } in reported.iter().take(MOST) {
            let key = (*what, label.clone());
            if known.counts.len() >= MOST && !known.counts.contains_key(&key) {
                continue;
            }
            let before = known.counts.insert(key, *count).unwrap_or_default();
            let more = count.saturating_sub(before);
            if more > 0 {
                metrics.add_counts(*what, label, more);
            }
        }
    }
}
