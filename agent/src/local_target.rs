//! The local target of one running tunnel: where it leads, who chose that, and whether it answers.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::net::{TcpStream, UdpSocket};
use uuid::Uuid;

use crate::approved_targets::Chosen;
use crate::report::{Report, Reporter};
use crate::service_stream::ServiceStream;
use crate::target::{self, Bounds, LinkLocal, Unreached};
use crate::targets::Targets;
use culvert_wire::clock::Clock;
use culvert_wire::control::Failure;
use culvert_wire::data2::visit::{Accepted, Visit};
use culvert_wire::failure_code::FailureCode;
use culvert_wire::pipe;
use culvert_wire::target::Target;

pub(crate) struct LocalTarget {
    clock: Clock,
    link_local: LinkLocal,
    targets: Targets,
    reporter: Reporter,
    led: Mutex<Led>,
    trouble: Mutex<Trouble>,
}

/// The tunnel's target, and who chose it.
#[derive(Clone)]
struct Led {
    target: Target,
    chosen: Chosen,
}

/// What is wrong with the tunnel's target.
#[derive(Default)]
struct Trouble {
    /// Why the target does not answer.
    dial: Option<String>,
    /// Why a new target was refused.
    refused: Option<String>,
}

impl Trouble {
    fn said(&self) -> Option<String> {
        self.refused.as_ref().or(self.dial.as_ref()).cloned()
    }
}

impl LocalTarget {
    pub(crate) fn new(
        target: Target,
        chosen: Chosen,
        reporter: Reporter,
        clock: Clock,
        link_local: LinkLocal,
        targets: Targets,
    ) -> Self {
        let led = Mutex::new(Led { target, chosen });
        Self { clock, link_local, targets, reporter, led, trouble: Mutex::default() }
    }

    /// Sets another target for new connections.
    pub(crate) fn retarget(&self, target: Target, chosen: Chosen) {
        *lock(&self.led) = Led { target, chosen };
        lock(&self.trouble).refused = None;
    }

    /// Records why a new target was refused. This lasts until the tunnel gets another target.
    pub(crate) fn refuse(&self, detail: String) {
        lock(&self.trouble).refused = Some(detail);
    }

    /// Looks up whether remote control may set another target, and reports the result.
    pub(crate) async fn look_up(&self, target: Target) {
        let judged = target::look_up(&target, &self.bounds(Chosen::FromAfar), &self.clock).await;
        self.reporter.send(Report::LookedUp { target, refused: judged.err() }).await;
    }

    pub(crate) fn target(&self) -> Target {
        lock(&self.led).target.clone()
    }

    pub(crate) fn chosen(&self) -> Chosen {
        lock(&self.led).chosen
    }

    /// What is wrong with the target.
    pub(crate) fn error(&self) -> Option<String> {
        lock(&self.trouble).said()
    }

    /// Whether the target did not answer the last time.
    pub(crate) fn is_silent(&self) -> bool {
        lock(&self.trouble).dial.is_some()
    }

    pub(crate) fn limits(&self) -> pipe::Limits {
        let Target { idle_timeout, buffer_size, .. } = lock(&self.led).target;
        pipe::Limits { buffer_size: buffer_size as usize, idle_timeout: Duration::from_secs(idle_timeout.into()) }
    }

    /// Connects to the target of an extra port, or (`None`) of the tunnel's own port.
    pub(crate) async fn dial(&self, port_id: Option<Uuid>) -> Result<TcpStream, Failure> {
        let Led { target, chosen } = self.led_to(port_id)?;
        Ok(target::dial(&target, &self.bounds(chosen), &self.clock).await?)
    }

    /// Connects to the service that a visit is for. Returns also what the node is told of it.
    pub(crate) async fn reach(&self, visit: &Visit) -> Result<(ServiceStream, Accepted), Unreached> {
        let Led { target, chosen } = self.led_to(visit.port_id)?;
        let stream = target::dial(&target, &self.bounds(chosen), &self.clock).await?;
        Ok(target::begin(stream, &target, visit, &self.clock).await?)
    }

    /// Opens a socket for the datagrams of a visitor of an extra port, or (`None`) of the tunnel's own port.
    pub(crate) async fn connect_datagrams(&self, port_id: Option<Uuid>) -> Result<UdpSocket, Failure> {
        let Led { target, chosen } = self.led_to(port_id)?;
        target::connect_datagrams(&target, &self.bounds(chosen), &self.clock).await
    }

    fn led_to(&self, port_id: Option<Uuid>) -> Result<Led, Failure> {
        let mut led = lock(&self.led).clone();
        if let Some(port_id) = port_id {
            let extra = led.target.extra.iter().find(|extra| extra.port_id == port_id);
            let unknown =
                || Failure::new(FailureCode::AgentRejected, "Nobody at this device agreed to the extra port.");
            let extra = extra.ok_or_else(unknown)?;
            (led.target.port, led.target.tls) = (extra.port, extra.tls);
        }
        Ok(led)
    }

    /// How long a visitor of a UDP port may be silent.
    pub(crate) fn flow_idle_timeout(&self) -> Duration {
        Duration::from_secs(lock(&self.led).target.flow_idle_timeout.into())
    }

    fn bounds(&self, chosen: Chosen) -> Bounds<'_> {
        Bounds { chosen, link_local: self.link_local, targets: &self.targets }
    }

    /// Connects to the target of the tunnel's own port, and reports whether it answers. A service of datagrams alone is not
    /// asked: it would take the question for a visitor's.
    pub(crate) async fn probe(&self) {
        if self.target().takes_connections {
            let answer = self.dial(None).await;
            self.note(answer.err()).await;
        }
    }

    /// Takes note of whether the target answers, and reports a change.
    pub(crate) async fn note(&self, failure: Option<Failure>) {
        let error = failure.map(|failure| failure.detail);
        let changed = {
            let mut trouble = lock(&self.trouble);
            let before = trouble.said().is_some();
            trouble.dial.clone_from(&error);
            before != trouble.said().is_some()
        };
        if changed {
            self.reporter.send(Report::Target(error)).await;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
