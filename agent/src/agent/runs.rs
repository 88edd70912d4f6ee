//! How tunnels start, where they are led, and how they end.

use std::io;

use tokio::sync::oneshot;
use uuid::Uuid;

use super::Agent;
use crate::approved_targets::Chosen;
use crate::ipc::{Answer, Reply};
use crate::tunnel::Probe;
use culvert_wire::allowed_target;
use culvert_wire::clock::Moment;
use culvert_wire::control::{Done, Failure, Grant, RevokeReason, ToHost};
use culvert_wire::failure_code::FailureCode;
use culvert_wire::target::Target;

/// A local start of a tunnel.
pub(super) struct LocalStart {
    reply: StartReply,
    /// The targets outside of the list that the user accepts.
    accept: Option<String>,
    /// When the request was sent to the host.
    since: Moment,
}

impl LocalStart {
    /// The sender for the answer, where `culvert-agent start` waits for it.
    pub(super) fn into_reply(self) -> Option<oneshot::Sender<Reply>> {
        match self.reply {
            StartReply::Start(reply) => Some(reply),
            StartReply::Foreground(_) => None,
        }
    }
}

/// Who waits for a start.
pub(super) enum StartReply {
    /// `culvert-agent start`
    Start(oneshot::Sender<Reply>),
    /// A command in the foreground.
    Foreground(Uuid),
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

pub(super) fn not_running() -> Failure {
    Failure::new(FailureCode::TunnelNotRunning, "No tunnel of this id or name runs on this device.")
}

impl Agent {
    /// Asks the host for a lease, for a local start.
    pub(super) async fn wish(&mut self, tunnel: String, accept: Option<String>, reply: StartReply) {
        if self.host.is_none() {
            let failure = Failure::new(FailureCode::NotConnected, "The agent is not connected to its host.");
            return self.answer_start(reply, Err(failure));
        }
        let request_id = self.clock.id();
        self.waiting.answers.insert(request_id, LocalStart { reply, accept, since: self.clock.moment() });
        self.say(ToHost::Start { request_id, tunnel }).await;
    }

    pub(super) async fn tell_stopped(&mut self, lease_id: Uuid) {
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
        if self.foreground.deleted(request_id, &outcome) {
            return Ok(());
        }
        let Some(LocalStart { reply, accept, since }) = self.waiting.answers.remove(&request_id) else { return Ok(()) };
        let grant = match outcome {
            Ok(Some(grant)) => grant,
            Ok(None) => {
                self.answer_start(reply, Err(not_running()));
                return Ok(());
            }
            Err(failure) => {
                self.answer_start(reply, Err(failure));
                return Ok(());
            }
        };
        let lease_id = grant.lease_id;
        if self.leases.is_serving(lease_id) {
            self.answer_start(reply, Ok(lease_id));
            return Ok(());
        }
        if self.leases.holds(lease_id) {
            self.waiting.starts.entry(lease_id).or_default().push(reply);
            return Ok(());
        }
        match self.choice(&reply, &grant, accept.as_deref()) {
            Ok(chosen) => {
                self.waiting.starts.entry(lease_id).or_default().push(reply);
                if self.host.is_some() {
                    // Somebody at the device chose the target, so it need not answer yet.
                    self.agreed.agree(grant.tunnel_id, &grant.target, chosen)?;
                    self.leases.begin(grant, chosen, Probe::Skipped, since)?;
                }
            }
            Err(failure) => {
                // The host has opened a lease that is not going to be used.
                self.stopped.add(lease_id)?;
                self.tell_stopped(lease_id).await;
                self.answer_start(reply, Err(failure));
            }
        }
        Ok(())
    }

    /// Who has chosen the target of a grant; the refusal, where this device does not agree to it.
    fn choice(&self, reply: &StartReply, grant: &Grant, accept: Option<&str>) -> Result<Chosen, Failure> {
        let is_typed = match reply {
            StartReply::Start(_) => true,
            StartReply::Foreground(id) => self.foreground.is_typed(*id, grant),
        };
        if is_typed {
            return self.not_accepted(grant, accept).map_or(Ok(Chosen::Here), Err);
        }
        // Somebody has led the tunnel elsewhere since the command began: that needs what remote control needs.
        match self.way_to(grant.tunnel_id, &grant.target) {
            Way::Agreed(chosen) => Ok(chosen),
            Way::Allowed => Ok(Chosen::FromAfar),
            Way::Open | Way::Forbidden(_) | Way::Closed => {
                let led = allowed_target::spelled(&grant.target.host, grant.target.port);
                let detail = format!("The tunnel was led to {led}, which nobody at this device has agreed to.");
                Err(Failure::new(FailureCode::TargetNotAccepted, detail))
            }
        }
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
        let accepted: Vec<&str> = accept.unwrap_or_default().split(' ').collect();
        if outside.iter().all(|target| accepted.contains(&target.as_str())) {
            return None;
        }
        let wanted = outside.join(" ");
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
        for reply in self.waiting.starts.remove(&lease_id).unwrap_or_default() {
            self.answer_start(reply, Ok(lease_id));
        }
    }

    /// Tells whoever waits for a start under which lease the tunnel runs.
    fn answer_start(&mut self, to: StartReply, started: Result<Uuid, Failure>) {
        match to {
            StartReply::Start(reply) => {
                let status = started.and_then(|lease_id| self.leases.status(lease_id).ok_or_else(not_running));
                // The caller may have gone. Then nobody needs the answer.
                let _ = reply.send(status.map(Answer::Started));
            }
            StartReply::Foreground(id) => self.foreground.started(id, started, self.clock.now()),
        }
    }

    /// Stops a tunnel, and tells the host that somebody at the device wanted it.
    pub(super) async fn stop_locally(&mut self, lease_id: Uuid) -> io::Result<Option<Uuid>> {
        self.stopped.add(lease_id)?;
        let tunnel_id = self.end_lease(lease_id, &RevokeReason::StoppedLocal).await?;
        self.tell_stopped(lease_id).await;
        Ok(tunnel_id)
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
        self.foreground.lease_ended(lease_id, &RevokeReason::Ended);
        if let Some(operation_id) = self.waiting.operations.remove(&lease_id) {
            self.finish(operation_id, Err(failure.clone())).await?;
        } else if let Some(replies) = self.waiting.starts.remove(&lease_id) {
            self.tell_stopped(lease_id).await;
            replies.into_iter().for_each(|reply| self.answer_start(reply, Err(failure.clone())));
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
        for reply in self.waiting.starts.remove(&lease_id).unwrap_or_default() {
            self.answer_start(reply, Err(ended.clone()));
        }
        if reason.is_stop() {
            self.agreed.forget(grant.tunnel_id)?;
        }
        self.foreground.lease_ended(lease_id, reason);
        Ok(Some(grant.tunnel_id))
    }
}
