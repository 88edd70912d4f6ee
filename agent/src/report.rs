//! What running tunnels report to the agent.

use tokio::sync::mpsc;
use uuid::Uuid;

use culvert_wire::control::Failure;
use culvert_wire::target::Target;

/// An event of a running tunnel; it is sent with the id of the lease.
#[derive(Debug)]
pub(crate) enum Report {
    /// The node takes the device's connections.
    Serving,
    /// The tunnel could not get its first connection.
    Failed(Failure),
    /// The error of the local target, when its state changes; `None` if it answers.
    Target(Option<String>),
    /// The result of looking up a new target: `refused` says why the tunnel may not lead there.
    LookedUp { target: Target, refused: Option<Failure> },
    /// The node serves a newer epoch.
    Fenced,
}

/// Sends the reports of one tunnel.
#[derive(Clone)]
pub(crate) struct Reporter {
    pub lease_id: Uuid,
    pub reports: mpsc::Sender<(Uuid, Report)>,
}

impl Reporter {
    pub(crate) async fn send(&self, report: Report) {
        // Sending fails only if the agent is ending, and then nobody needs the report.
        let _ = self.reports.send((self.lease_id, report)).await;
    }
}
