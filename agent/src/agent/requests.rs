//! What people at the device ask for, and how tunnels begin and end.

use std::collections::HashMap;
use std::io;

use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use super::{Agent, VERSION};
use crate::local::{Answer, Reply, Request, Status};
use crate::tunnel::Probe;
use crate::wire::{ConsentState, Done, Failure, Grant, Target, ToHost};

/// Who waits for what.
#[derive(Default)]
pub struct Waiting {
    /// The connection's outbox, between its coming up and the host's welcome.
    pub outbox: Option<mpsc::Sender<ToHost>>,
    /// Operations whose tunnel is starting, by lease.
    pub operations: HashMap<Uuid, Uuid>,
    /// People who wait for the host's answer, by request.
    answers: HashMap<Uuid, oneshot::Sender<Reply>>,
    /// People who wait for a tunnel to stand ready, by lease.
    starts: HashMap<Uuid, oneshot::Sender<Reply>>,
    consents: Vec<oneshot::Sender<Reply>>,
    /// Leases that were stopped here and that the host has yet to confirm, by request.
    stops: HashMap<Uuid, Uuid>,
}

impl Waiting {
    pub fn fail_all(&mut self, detail: &str) {
        // What was not confirmed is in the next hello.
        self.stops.clear();
        let waiting = self.answers.drain().map(|(_, reply)| reply).chain(self.consents.drain(..));
        for reply in waiting {
            answer(reply, Err(Failure::new("not_connected", detail)));
        }
    }

    pub fn consent_confirmed(&mut self, state: ConsentState) {
        for reply in self.consents.drain(..) {
            answer(reply, Ok(Answer::RemoteControl { state, confirmed: true }));
        }
    }
}

/// Whoever asked may have gone; then nobody needs the answer.
fn answer(to: oneshot::Sender<Reply>, reply: Reply) {
    let _ = to.send(reply);
}

pub(super) async fn take(agent: &mut Agent, request: Request, reply: oneshot::Sender<Reply>) -> io::Result<()> {
    match request {
        Request::Status => answer(reply, Ok(Answer::Status(agent.status()))),
        Request::RemoteControl { enabled } => agent.decide_consent(enabled, reply).await?,
        Request::Start { tunnel } => {
            let request_id = agent.clock.id();
            agent.ask_host(request_id, ToHost::Start { request_id, tunnel }, reply).await;
        }
        Request::Stop { tunnel } => match agent.leases.find(&tunnel) {
            Some(lease_id) => {
                agent.stopped.add(lease_id)?;
                let tunnel_id = agent.end_lease(lease_id, "stopped_local").await?;
                agent.tell_stopped(lease_id).await;
                answer(reply, tunnel_id.map(|tunnel_id| Answer::Stopped { tunnel_id }).ok_or_else(not_running));
            }
            None => answer(reply, Err(not_running())),
        },
    }
    Ok(())
}

fn not_running() -> Failure {
    Failure::new("tunnel_not_running", "No tunnel of this id or name runs on this device.")
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
            tunnels,
        }
    }

    async fn decide_consent(&mut self, enabled: bool, reply: oneshot::Sender<Reply>) -> io::Result<()> {
        let signed = self.consent.decide(enabled, &self.device, &self.clock)?;
        if self.host.is_some() {
            self.waiting.consents.push(reply);
            self.say(ToHost::Consent(signed)).await;
        } else {
            answer(reply, Ok(Answer::RemoteControl { state: self.consent.state(), confirmed: false }));
        }
        Ok(())
    }

    async fn ask_host(&mut self, request_id: Uuid, frame: ToHost, reply: oneshot::Sender<Reply>) {
        if self.host.is_none() {
            return answer(reply, Err(Failure::new("not_connected", "The agent is not connected to its host.")));
        }
        self.waiting.answers.insert(request_id, reply);
        self.say(frame).await;
    }

    async fn tell_stopped(&mut self, lease_id: Uuid) {
        let request_id = self.clock.id();
        if self.host.is_some() {
            self.waiting.stops.insert(request_id, lease_id);
        }
        self.say(ToHost::Stop { request_id, lease_id }).await;
    }

    /// Says of a lease that was kept through a reconnect what the host may have missed.
    pub(super) async fn say_how_it_is(&mut self, lease_id: Uuid) {
        if !self.leases.is_serving(lease_id) {
            return;
        }
        let error = self.leases.status(lease_id).and_then(|status| status.target_error);
        self.say(ToHost::Serving { lease_id }).await;
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
        let Some(reply) = self.waiting.answers.remove(&request_id) else { return Ok(()) };
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
        self.waiting.starts.insert(lease_id, reply);
        if !self.leases.holds(lease_id) && self.host.is_some() {
            // Somebody here chose the target, whether it answers yet or not.
            self.agreed.agree(grant.tunnel_id, &grant.target)?;
            self.leases.begin(grant, Probe::Skipped)?;
        }
        Ok(())
    }

    /// Runs again what ran before, where it leads where it led before.
    pub(super) async fn resume(&mut self, grant: Grant) -> io::Result<()> {
        if self.leases.holds(grant.lease_id) {
            return self.retarget(grant.lease_id, grant.target);
        }
        if !self.may_lead_to(grant.tunnel_id, &grant.target) {
            tracing::warn!(tunnel = %grant.name, "not resumed: nobody at this device agreed to its target");
            self.tell_stopped(grant.lease_id).await;
            return Ok(());
        }
        if self.host.is_none() {
            return Ok(());
        }
        self.leases.begin(grant, Probe::Skipped)
    }

    pub(super) fn retarget(&mut self, lease_id: Uuid, target: Target) -> io::Result<()> {
        let tunnel = self.leases.tunnels().into_iter().find(|(id, _)| *id == lease_id);
        if let Some((_, tunnel_id)) = tunnel
            && self.may_lead_to(tunnel_id, &target)
        {
            self.agreed.agree(tunnel_id, &target)?;
            self.leases.retarget(lease_id, target);
        }
        Ok(())
    }

    /// With remote control, anywhere that the device leads to at all; without, only where it has
    /// led before.
    fn may_lead_to(&self, tunnel_id: Uuid, target: &Target) -> bool {
        self.consent.enabled() || self.agreed.includes(tunnel_id, target)
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
        if let Some(reply) = self.waiting.starts.remove(&lease_id) {
            answer(reply, Ok(Answer::Started(status)));
        }
        self.report_restarted().await
    }

    /// What runs by remote control was consented to, and may be resumed when that is turned off.
    fn agree_to_running(&mut self, lease_id: Uuid) -> io::Result<()> {
        match self.leases.grant(lease_id) {
            Some(Grant { tunnel_id, target, .. }) => self.agreed.agree(tunnel_id, &target),
            None => Ok(()),
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

    /// Ends what runs under a lease, and says which tunnel that was.
    pub(super) async fn end_lease(&mut self, lease_id: Uuid, reason: &str) -> io::Result<Option<Uuid>> {
        let Some(grant) = self.leases.end(lease_id) else { return Ok(None) };
        tracing::info!(tunnel = %grant.name, reason, "stopped");
        let ended = Failure::new("lease_conflict", format!("The tunnel's lease ended: {reason}."));
        if let Some(operation_id) = self.waiting.operations.remove(&lease_id) {
            self.finish(operation_id, Err(ended.clone())).await?;
        }
        if let Some(reply) = self.waiting.starts.remove(&lease_id) {
            answer(reply, Err(ended));
        }
        if matches!(reason, "stopped_local" | "stopped_api" | "stop_all" | "tunnel_deleted") {
            self.agreed.forget(grant.tunnel_id)?;
        }
        Ok(Some(grant.tunnel_id))
    }
}
