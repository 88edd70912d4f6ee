//! The runs behind open sessions, as far as the store needs them: what a run has carried is written in
//! the transaction that ends its session, so that the figures of an ended session are exact.

use futures_util::future::BoxFuture;
use uuid::Uuid;

use super::Write;
use culvert_domain::error::Result;
use culvert_domain::usage::Traffic;

/// One session's run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunId {
    pub scope_id: Uuid,
    pub tunnel_id: Uuid,
    pub session_id: Uuid,
}

/// The nodes of this process.
pub trait Runs: Send + Sync {
    /// Ends a run, wherever it is served. When this returns, it carries nothing more.
    fn end(&self, run: RunId) -> BoxFuture<'_, ()>;

    /// The transaction that was to end a session was rolled back: the run may be served again.
    fn reopen(&self, run: RunId);

    /// What a run has carried since the last time.
    fn take(&self, run: RunId) -> Traffic;

    /// Takes back what could not be noted.
    fn give_back(&self, run: RunId, traffic: Traffic);

    /// It is noted.
    fn noted(&self, traffic: Traffic);
}

impl Write {
    /// Notes what runs have carried so far.
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

    /// Ends the runs whose sessions this transaction has ended, and notes what they carried.
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
