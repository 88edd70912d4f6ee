//! Requests from people at the device, and how tunnels start and end.

use std::collections::HashMap;
use std::io;

use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use super::Agent;
use crate::VERSION;
use crate::approved_targets::Chosen;
use crate::ipc::{Answer, Reply, Request, Status};
use crate::tunnel::Probe;
use culvert_wire::allowed_target::{self, AllowedTarget};
use culvert_wire::clock::Moment;
use culvert_wire::control::{ConsentState, Done, Failure, Grant, RevokeReason, Target, ToHost};
use culvert_wire::failure_code::FailureCode;

/// What is waiting for an answer or an event.
#[derive(Default)]
pub(super) struct Waiting {
    /// The sender for a new connection, until the host's welcome arrives.
    pub outbox: Option<mpsc::Sender<ToHost>>,
    /// Operations whose tunnel is starting, by lease.
    pub operations: HashMap<Uuid, Uuid>,
    /// When the agent reported to the host that it is ready to begin an operation.
    pub ready: HashMap<Uuid, Moment>,
    /// Local starts that wait for the host's answer, by request.
    answers: HashMap<Uuid, LocalStart>,
    /// Local starts that wait for their tunnel to run, by lease.
    starts: HashMap<Uuid, oneshot::Sender<Reply>>,
    /// Requests that wait until the host has confirmed a consent.
    consents: Vec<(oneshot::Sender<Reply>, Decided)>,
    /// Leases that were stopped at the device and whose stop the host has not confirmed yet, by request.
    stops: HashMap<Uuid, Uuid>,
}

/// A local start of a tunnel.
struct LocalStart {
    reply: oneshot::Sender<Reply>,
    /// The targets outside of the list that the user accepts.
    accept: Option<String>,
    /// When the request was sent to the host.
    since: Moment,
}

/// What a consent was signed for.
enum Decided {
    RemoteControl,
    Targets(Vec<AllowedTarget>),
}

impl Waiting {
    pub(super) fn fail_all(&mut self, detail: &str) {
        // Stops that were not confirmed are in the next hello.
        self.stops.clear();
        self.ready.clear();
        let wishes = self.answers.drain().map(|(_, wish)| wish.reply);
        for reply in wishes.chain(self.consents.drain(..).map(|(reply, _)| reply)) {
            answer(reply, Err(Failure::new(FailureCode::NotConnected, detail)));
        }
    }

    pub(super) fn consent_confirmed(&mut self, state: ConsentState) {
        for (reply, decided) in self.consents.drain(..) {
            let said = match decided {
                Decided::RemoteControl => Answer::RemoteControl { state, confirmed: true },
                Decided::Targets(targets) => Answer::Targets { targets, confirmed: Some(true) },
            };
            answer(reply, Ok(said));
        }
    }
}

/// Whether a tunnel may be led to a target by remote control or by a resume.
enum Way {
    /// The tunnel leads there already, or did before.
    Agreed(Chosen),
    /// The list of allowed targets includes it.
    Allowed,
    /// Only a lookup of its name can tell.
    Open,
    /// The list of allowed targets does not permit it.
    Forbidden(String),
    /// Remote control is off, and the tunnel did not lead there before.
    Closed,
}

/// The caller may have gone. Then nobody needs the answer.
fn answer(to: oneshot::Sender<Reply>, reply: Reply) {
    let _ = to.send(reply);
}

pub(super) async fn take(agent: &mut Agent, request: Request, reply: oneshot::Sender<Reply>) -> io::Result<()> {
    match request {
        Request::Status => answer(reply, Ok(Answer::Status(agent.status()))),
        Request::RemoteControl { enabled, allow } => agent.decide_consent(enabled, allow, reply).await?,
        Request::Targets { allow, revoke } => agent.change_targets(allow, &revoke, reply).await?,
        Request::Start { tunnel, accept } => agent.wish(tunnel, accept, reply).await,
        Request::Stop { tunnel } => match agent.leases.find(&tunnel) {
            Some(lease_id) => {
                agent.stopped.add(lease_id)?;
                let tunnel_id = agent.end_lease(lease_id, &RevokeReason::StoppedLocal).await?;
                agent.tell_stopped(lease_id).await;
                answer(reply, tunnel_id.map(|tunnel_id| Answer::Stopped { tunnel_id }).ok_or_else(not_running));
            }
            None => answer(reply, Err(not_running())),
        },
    }
    Ok(())
}

fn not_running() -> Failure {
    Failure::new(FailureCode::TunnelNotRunning, "No tunnel of this id or name runs on this device.")
}

impl Agent {
    fn status(&self) -> Status {
        let mut tunnels: Vec<_> = self.leases.ids().into_iter().filter_map(|id| self.leases.status(id)).collect();
        tunnels.sort_by(|a, b| a.name.cmp(&b.name));
        Status {
            device_id: self.device.id,
            name: self.device.name.clone(),
            server: self.device.server.clone(),
            version: VERSION.into(),
            connected: self.host.is_some(),
            remote_control: self.consent.state(),
            allowed_targets: self.targets.list(),
            tunnels,
        }
    }

    async fn decide_consent(
        &mut self,
        enabled: bool,
        allow: Vec<AllowedTarget>,
        reply: oneshot::Sender<Reply>,
    ) -> io::Result<()> {
        if enabled {
            match allowed_target::with(self.targets.list(), allowed_target::standard().into_iter().chain(allow)) {
                Ok(list) => self.targets.replace(list)?,
                Err(error) => {
                    answer(reply, Err(error.into()));
                    return Ok(());
                }
            }
        }
        let signed = self.consent.decide(enabled, &self.targets.list(), &self.device, &self.clock)?;
        if self.host.is_some() {
            self.waiting.consents.push((reply, Decided::RemoteControl));
            self.say(ToHost::Consent(signed)).await;
        } else {
            answer(reply, Ok(Answer::RemoteControl { state: self.consent.state(), confirmed: false }));
        }
        self.try_refused_again().await
    }

    /// Changes the list of allowed targets. While remote control is on, the new list is sent to the host.
    async fn change_targets(
        &mut self,
        allow: Vec<AllowedTarget>,
        revoke: &[AllowedTarget],
        reply: oneshot::Sender<Reply>,
    ) -> io::Result<()> {
        let before = self.targets.list();
        let changed =
            allowed_target::with(before.clone(), allow).and_then(|list| allowed_target::without(list, revoke));
        let targets = match changed {
            Ok(targets) => targets,
            Err(error) => {
                answer(reply, Err(error.into()));
                return Ok(());
            }
        };
        if targets == before {
            answer(reply, Ok(Answer::Targets { targets, confirmed: None }));
            return Ok(());
        }
        self.targets.replace(targets.clone())?;
        self.tell_targets(targets, reply).await?;
        self.try_refused_again().await
    }

    async fn tell_targets(&mut self, targets: Vec<AllowedTarget>, reply: oneshot::Sender<Reply>) -> io::Result<()> {
        if !self.consent.enabled() {
            answer(reply, Ok(Answer::Targets { targets, confirmed: None }));
            return Ok(());
        }
        let signed = self.consent.decide(true, &targets, &self.device, &self.clock)?;
        if self.host.is_some() {
            self.waiting.consents.push((reply, Decided::Targets(targets)));
            self.say(ToHost::Consent(signed)).await;
        } else {
            answer(reply, Ok(Answer::Targets { targets, confirmed: Some(false) }));
        }
        Ok(())
    }

    /// Tries refused targets again, because the changed list may allow them.
    async fn try_refused_again(&mut self) -> io::Result<()> {
        for (lease_id, target) in self.leases.refused() {
            self.retarget(lease_id, target).await?;
        }
        Ok(())
    }

    /// Asks the host for a lease, for a local start.
    async fn wish(&mut self, tunnel: String, accept: Option<String>, reply: oneshot::Sender<Reply>) {
        if self.host.is_none() {
            return answer(
                reply,
                Err(Failure::new(FailureCode::NotConnected, "The agent is not connected to its host.")),
            );
        }
        let request_id = self.clock.id();
        self.waiting.answers.insert(request_id, LocalStart { reply, accept, since: self.clock.moment() });
        self.say(ToHost::Start { request_id, tunnel }).await;
    }

    async fn tell_stopped(&mut self, lease_id: Uuid) {
        let request_id = self.clock.id();
        if self.host.is_some() {
            self.waiting.stops.insert(request_id, lease_id);
        }
        self.say(ToHost::Stop { request_id, lease_id }).await;
    }

    /// Reports the state of a lease that was kept through a reconnect: the host may have missed it.
    pub(super) async fn report_lease_state(&mut self, lease_id: Uuid) {
        if !self.leases.is_serving(lease_id) {
            return;
        }
        self.say(ToHost::Serving { lease_id }).await;
        self.say_target_state(lease_id).await;
    }

    /// Reports what is wrong with a tunnel's target at present.
    pub(super) async fn say_target_state(&mut self, lease_id: Uuid) {
        let error = self.leases.target_error(lease_id);
        self.say(ToHost::TargetState { lease_id, error }).await;
    }

    pub(super) async fn on_answer(
        &mut self,
        request_id: Uuid,
        outcome: Result<Option<Grant>, Failure>,
    ) -> io::Result<()> {
        if let Some(lease_id) = self.waiting.stops.remove(&request_id) {
            return self.stopped.confirm(&[lease_id]);
        }
        let Some(LocalStart { reply, accept, since }) = self.waiting.answers.remove(&request_id) else { return Ok(()) };
        let grant = match outcome {
            Ok(Some(grant)) => grant,
            Ok(None) => {
                answer(reply, Err(not_running()));
                return Ok(());
            }
            Err(failure) => {
                answer(reply, Err(failure));
                return Ok(());
            }
        };
        let lease_id = grant.lease_id;
        if self.leases.is_serving(lease_id) {
            let status = self.leases.status(lease_id);
            answer(reply, status.map(Answer::Started).ok_or_else(not_running));
            return Ok(());
        }
        if !self.leases.holds(lease_id)
            && let Some(failure) = self.not_accepted(&grant, accept.as_deref())
        {
            // The host has opened a lease that is not going to be used.
            self.stopped.add(lease_id)?;
            self.tell_stopped(lease_id).await;
            answer(reply, Err(failure));
            return Ok(());
        }
        self.waiting.starts.insert(lease_id, reply);
        if !self.leases.holds(lease_id) && self.host.is_some() {
            // Somebody at the device chose the target, so it need not answer yet.
            self.agreed.agree(grant.tunnel_id, &grant.target, Chosen::Here)?;
            self.leases.begin(grant, Chosen::Here, Probe::Skipped, since)?;
        }
        Ok(())
    }

    /// The refusal of a grant with targets that the user has yet to accept: those that are not on this
    /// machine, not in the list, and not chosen at this device for the tunnel before.
    fn not_accepted(&self, grant: &Grant, accept: Option<&str>) -> Option<Failure> {
        let Grant { tunnel_id, name, target, .. } = grant;
        if self.agreed.chosen(*tunnel_id, target) == Some(Chosen::Here) {
            return None;
        }
        let known: Vec<_> = allowed_target::standard().into_iter().chain(self.targets.list()).collect();
        let outside =
            allowed_target::ports(target).filter(|port| !allowed_target::includes(&known, &target.host, *port));
        let outside: Vec<_> = outside.map(|port| allowed_target::spelled(&target.host, port)).collect();
        let wanted = outside.join(" ");
        if outside.is_empty() || accept == Some(wanted.as_str()) {
            return None;
        }
        let (name, said) = (name.escape_debug(), outside.join(", "));
        let detail = format!("{name} leads to {said}, which is not in this device's list.");
        Some(Failure { accept: Some(wanted), ..Failure::new(FailureCode::TargetNotAccepted, detail) })
    }

    /// Resumes a tunnel. If its target is forbidden or has to be looked up first, the tunnel goes on with its
    /// former target.
    pub(super) async fn resume(&mut self, mut grant: Grant, since: Moment) -> io::Result<()> {
        if self.leases.holds(grant.lease_id) {
            self.leases.renew_tokens(grant.device_token.into_iter().collect());
            return self.retarget(grant.lease_id, grant.target).await;
        }
        let last = self.agreed.last(grant.tunnel_id);
        let (chosen, wanted) = match (self.way_to(grant.tunnel_id, &grant.target), last) {
            (Way::Agreed(chosen), _) => (chosen, None),
            (Way::Allowed, _) | (Way::Open, None) => (Chosen::FromAfar, None),
            (Way::Open | Way::Forbidden(_), Some((target, chosen))) => {
                (chosen, Some(std::mem::replace(&mut grant.target, target)))
            }
            (Way::Closed, _) | (Way::Forbidden(_), None) => {
                tracing::warn!(tunnel = %grant.name, "not resumed: nobody at this device agreed to its target");
                self.tell_stopped(grant.lease_id).await;
                return Ok(());
            }
        };
        if self.host.is_none() {
            return Ok(());
        }
        let lease_id = grant.lease_id;
        self.leases.begin(grant, chosen, Probe::Skipped, since)?;
        match wanted {
            Some(wanted) => self.retarget(lease_id, wanted).await,
            None => Ok(()),
        }
    }

    /// Sets another target for a tunnel by remote control, if that is allowed.
    pub(super) async fn retarget(&mut self, lease_id: Uuid, target: Target) -> io::Result<()> {
        let Some(tunnel_id) = self.leases.tunnel(lease_id) else { return Ok(()) };
        match self.way_to(tunnel_id, &target) {
            Way::Agreed(chosen) => self.lead(lease_id, target, chosen).await,
            Way::Allowed => self.lead(lease_id, target, Chosen::FromAfar).await,
            Way::Open => {
                self.leases.look_up(lease_id, target);
                Ok(())
            }
            Way::Forbidden(detail) => {
                self.refuse_target(lease_id, target, &detail).await;
                Ok(())
            }
            Way::Closed => Ok(()),
        }
    }

    /// Whether a tunnel may be led to a target. With remote control, the device's list decides; without it,
    /// only the former target is allowed.
    fn way_to(&self, tunnel_id: Uuid, target: &Target) -> Way {
        if let Some(chosen) = self.agreed.chosen(tunnel_id, target) {
            return Way::Agreed(chosen);
        }
        if !self.consent.enabled() {
            return Way::Closed;
        }
        let (list, host) = (self.targets.list(), &target.host);
        if let Some(port) = allowed_target::ports(target).find(|port| allowed_target::forbids(&list, host, *port)) {
            return Way::Forbidden(allowed_target::not_allowed(host, port));
        }
        let shown = allowed_target::ports(target).all(|port| allowed_target::includes(&list, host, port));
        if shown { Way::Allowed } else { Way::Open }
    }

    /// Takes the result of a lookup: sets the target, or refuses it.
    pub(super) async fn on_looked_up(
        &mut self,
        lease_id: Uuid,
        target: Target,
        refused: Option<Failure>,
    ) -> io::Result<()> {
        // Another target may have been requested since, or remote control turned off.
        if !self.leases.has_looked_up(lease_id, &target) || !self.consent.enabled() {
            return Ok(());
        }
        match refused {
            Some(failure) => {
                self.refuse_target(lease_id, target, &failure.detail).await;
                Ok(())
            }
            None => self.lead(lease_id, target, Chosen::FromAfar).await,
        }
    }

    async fn lead(&mut self, lease_id: Uuid, target: Target, chosen: Chosen) -> io::Result<()> {
        let Some(tunnel_id) = self.leases.tunnel(lease_id) else { return Ok(()) };
        self.agreed.agree(tunnel_id, &target, chosen)?;
        let before = self.leases.target_error(lease_id);
        self.leases.retarget(lease_id, target, chosen);
        if self.leases.target_error(lease_id) != before {
            self.say_target_state(lease_id).await;
        }
        Ok(())
    }

    async fn refuse_target(&mut self, lease_id: Uuid, target: Target, detail: &str) {
        let Some((former, _)) = self.leases.led(lease_id) else { return };
        let detail = format!("{detail} It goes on to {}.", allowed_target::spelled(&former.host, former.port));
        tracing::warn!(%lease_id, detail, "a tunnel is not led elsewhere");
        self.leases.refuse(lease_id, target, detail);
        self.say_target_state(lease_id).await;
    }

    pub(super) async fn on_serving(&mut self, lease_id: Uuid) -> io::Result<()> {
        self.leases.set_serving(lease_id);
        let Some(status) = self.leases.status(lease_id) else { return Ok(()) };
        tracing::info!(tunnel = %status.name, address = %status.public_address, target = %status.local_target, "serving");
        self.say(ToHost::Serving { lease_id }).await;
        if let Some(operation_id) = self.waiting.operations.remove(&lease_id) {
            self.agree_to_running(lease_id)?;
            self.finish(operation_id, Ok(Done::Start)).await?;
        }
        // A local start is answered when the host has recorded that the tunnel runs, because no visitor is
        // served before. A host that sends no such confirmation is not waited for.
        if !self.host.as_ref().is_some_and(|host| host.confirms_running) {
            self.answer_started(lease_id);
        }
        self.report_restarted().await
    }

    /// Answers the local start that waits for a tunnel to run.
    pub(super) fn answer_started(&mut self, lease_id: Uuid) {
        let Some(reply) = self.waiting.starts.remove(&lease_id) else { return };
        let status = self.leases.status(lease_id);
        answer(reply, status.map(Answer::Started).ok_or_else(not_running));
    }

    /// Records the target of a tunnel started by remote control as agreed to, so that the tunnel may be
    /// resumed after remote control is turned off.
    fn agree_to_running(&mut self, lease_id: Uuid) -> io::Result<()> {
        match (self.leases.tunnel(lease_id), self.leases.led(lease_id)) {
            (Some(tunnel_id), Some((target, chosen))) => self.agreed.agree(tunnel_id, &target, chosen),
            _ => Ok(()),
        }
    }

    pub(super) async fn on_start_failed(&mut self, lease_id: Uuid, failure: Failure) -> io::Result<()> {
        let Some(grant) = self.leases.end(lease_id) else { return Ok(()) };
        tracing::warn!(tunnel = %grant.name, reason = %failure.detail, "the tunnel did not start");
        if let Some(operation_id) = self.waiting.operations.remove(&lease_id) {
            self.finish(operation_id, Err(failure.clone())).await?;
        } else if let Some(reply) = self.waiting.starts.remove(&lease_id) {
            self.tell_stopped(lease_id).await;
            answer(reply, Err(failure));
        } else {
            self.say(ToHost::NotResumed { lease_id, detail: failure.detail }).await;
        }
        self.report_restarted().await
    }

    /// Ends the tunnel that runs under a lease, and returns the tunnel's id.
    pub(super) async fn end_lease(&mut self, lease_id: Uuid, reason: &RevokeReason) -> io::Result<Option<Uuid>> {
        let Some(grant) = self.leases.end(lease_id) else { return Ok(None) };
        tracing::info!(tunnel = %grant.name, reason = reason.as_str(), "stopped");
        let ended = Failure::new(FailureCode::LeaseConflict, format!("The tunnel's lease ended: {reason}."));
        if let Some(operation_id) = self.waiting.operations.remove(&lease_id) {
            self.finish(operation_id, Err(ended.clone())).await?;
        }
        if let Some(reply) = self.waiting.starts.remove(&lease_id) {
            answer(reply, Err(ended));
        }
        if reason.is_stop() {
            self.agreed.forget(grant.tunnel_id)?;
        }
        Ok(Some(grant.tunnel_id))
    }
}
