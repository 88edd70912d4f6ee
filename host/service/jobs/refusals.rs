//! Stores what was refused, as it comes.

use std::sync::Arc;

use super::Jobs;

/// Runs until the host stops.
pub async fn run(jobs: Arc<Jobs>) {
    jobs.refusals.store(&jobs.service, &jobs.stop).await;
}
