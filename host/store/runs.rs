//! Runs: the node's side of open sessions, as far as the store needs them. The traffic of a run is written
//! in the transaction that ends its session, so the figures of an ended session are exact.

use futures_util::future::BoxFuture;
use uuid::Uuid;

use super::Write;
use culvert_domain::error::Result;
use culvert_domain::usage::Traffic;

/// Identifies the run of one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunId {
    pub scope_id: Uuid,
    pub tunnel_id: Uuid,
    pub session_id: Uuid,
}

/// The runs on the nodes of this process.
pub trait Runs: Send + Sync {
    /// Ends a run on whichever node serves it. After the return the run transfers no more traffic.
    fn end(&self, run: RunId) -> BoxFuture<'_, ()>;

    /// Allows a run to be served again, because the transaction that ended its session was rolled back.
    fn reopen(&self, run: RunId);

    /// Takes the traffic of a run since the last call.
    fn take(&self, run: RunId) -> Traffic;

    /// Returns taken traffic that could not be recorded.
    fn give_back(&self, run: RunId, traffic: Traffic);

    /// Confirms that taken traffic was recorded.
    fn noted(&self, traffic: Traffic);
}

impl Write {
    /// Records the traffic of runs since it was last taken.
    pub async fn count_runs(&mut self, runs: &[RunId]) -> Result<()> {
        for run in runs {
            let Some(nodes) = &self.runs else { return Ok(()) };
            let traffic = nodes.take(*run);
            if traffic.total() > 0 {
                self.counted.push((*run, traffic));
                self.add_traffic(run.scope_id, run.tunnel_id, run.session_id, traffic).await?;
            }
        }
        Ok(())
    }

    /// Ends the runs whose sessions this transaction has ended, and records their traffic.
    pub(super) async fn finish_runs(&mut self) -> Result<()> {
        let ended = self.ended.clone();
        if let Some(nodes) = self.runs.clone() {
            for run in &ended {
                nodes.end(*run).await;
            }
        }
        self.count_runs(&ended).await
    }
}
