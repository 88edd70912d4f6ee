//! One running tunnel: its local target, and its place at the device's connections to the node.
//!
//! A tunnel runs until its [`Running`] is dropped, which happens when the lease ends. Then every visit ends at once.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::future::FutureExt;
use tokio_util::sync::{CancellationToken, DropGuard};
use uuid::Uuid;

use crate::approved_targets::Chosen;
use crate::carrier::{Carriers, Reached, Seat, Served};
use crate::local_target::LocalTarget;
use crate::report::{Report, Reporter};
use crate::target::LinkLocal;
use crate::targets::Targets;
use crate::traffic::Traffic;
use culvert_wire::clock::Clock;
use culvert_wire::control::{Failure, Grant};
use culvert_wire::failure_code::FailureCode;
use culvert_wire::target::Target;

/// How long a new tunnel has to reach its node.
const READY_WITHIN: Duration = Duration::from_secs(15);

/// Whether the local target must answer for a start to succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Probe {
    Required,
    Skipped,
}

/// What tunnels need of their agent.
#[derive(Clone)]
pub(crate) struct TunnelContext {
    pub clock: Clock,
    pub link_local: LinkLocal,
    pub targets: Targets,
    pub reports: mpsc::Sender<(Uuid, Report)>,
    pub carriers: Carriers,
}

/// A running tunnel. Dropping it stops the tunnel.
pub(crate) struct Running {
    pub grant: Grant,
    target: Arc<LocalTarget>,
    traffic: Arc<Traffic>,
    seat: Option<Seat>,
    _stop: DropGuard,
}

impl Running {
    /// # Errors
    ///
    /// If TLS 1.3 is not available.
    pub(crate) fn start(grant: Grant, chosen: Chosen, probe: Probe, cx: TunnelContext) -> Result<Self, rustls::Error> {
        let TunnelContext { clock, link_local, targets, reports, carriers } = cx;
        let (stop, fenced) = (CancellationToken::new(), CancellationToken::new());
        let reporter = Reporter { lease_id: grant.lease_id, reports };
        let target =
            LocalTarget::new(grant.target.clone(), chosen, reporter.clone(), clock.clone(), link_local, targets);
        let (target, traffic) = (Arc::new(target), Arc::new(Traffic::default()));
        let served = Served {
            tunnel_id: grant.tunnel_id,
            epoch: grant.epoch,
            name: grant.name.as_str().into(),
            target: target.clone(),
            traffic: traffic.clone(),
            stop: stop.clone(),
            fenced: fenced.clone(),
        };
        let seat = grant.device_token.clone().map(|token| carriers.join(&grant.node, token, served)).transpose()?;
        let reached = seat.as_ref().map(|seat| seat.reached(target.target().takes_datagrams));
        let (probed, stopped) = (target.clone(), stop.clone());
        let run = async move {
            let started = match reached {
                Some(reached) => start(probe, &probed, reached, &fenced, &clock).await,
                None => Err(Failure::new(FailureCode::TunnelStartFailed, "The host is older than this agent.")),
            };
            if let Err(failure) = started {
                return reporter.send(Report::Failed(failure)).await;
            }
            reporter.send(Report::Serving).await;
            fenced.cancelled().await;
            reporter.send(Report::Fenced).await;
        };
        tokio::spawn(run.with_cancellation_token_owned(stopped));
        Ok(Self { grant, target, traffic, seat, _stop: stop.drop_guard() })
    }

    /// What it carries.
    pub(crate) fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Stops the tunnel, and returns its grant.
    pub(crate) fn into_grant(self) -> Grant {
        self.grant
    }

    /// Sets another target for new connections.
    pub(crate) fn retarget(&self, target: Target, chosen: Chosen) {
        self.target.retarget(target, chosen);
        self.seat.iter().for_each(Seat::retargeted);
    }

    /// Records why a new target was refused. This lasts until the tunnel gets another target.
    pub(crate) fn refuse(&self, detail: String) {
        self.target.refuse(detail);
    }

    /// Looks up whether remote control may set another target. The result is sent as [`Report::LookedUp`].
    pub(crate) fn look_up(&self, target: Target) {
        let local = self.target.clone();
        tokio::spawn(async move { local.look_up(target).await });
    }

    pub(crate) fn target(&self) -> Target {
        self.target.target()
    }

    pub(crate) fn chosen(&self) -> Chosen {
        self.target.chosen()
    }

    /// What is wrong with the tunnel's target.
    pub(crate) fn target_error(&self) -> Option<String> {
        self.target.error()
    }

    /// Probes the target again if it did not answer before.
    pub(crate) fn probe_again(&self) {
        if self.target.is_silent() {
            let target = self.target.clone();
            tokio::spawn(async move { target.probe().await });
        }
    }
}

/// Waits until the tunnel can serve visitors.
async fn start(
    probe: Probe,
    target: &LocalTarget,
    reached: impl Future<Output = Reached>,
    fenced: &CancellationToken,
    clock: &Clock,
) -> Result<(), Failure> {
    if probe == Probe::Required && target.target().takes_connections {
        target.dial(None).await?;
    }
    let reached = clock.timeout(READY_WITHIN, reached.with_cancellation_token(fenced)).await;
    let (code, detail) = match reached {
        Ok(Some(Reached::Yes)) => return Ok(()),
        Ok(Some(Reached::TokenRefused)) => (FailureCode::LeaseConflict, "The node does not take this device's token."),
        Ok(None) => (FailureCode::LeaseConflict, "The node does not take this lease."),
        Err(_) => (FailureCode::TunnelStartFailed, "The node could not be reached within 15 seconds."),
    };
    Err(Failure::new(code, detail))
}
