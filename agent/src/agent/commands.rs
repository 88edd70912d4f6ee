//! Remote commands: written to the journal, agreed with the host, carried out, reported.

use std::io;

use uuid::Uuid;

use super::Agent;
use crate::VERSION;
use crate::approved_targets::Chosen;
use crate::journal::{Entry, Stage};
use crate::tunnel::Probe;
use culvert_wire::clock::Moment;
use culvert_wire::control::{Action, Command, Done, Failure, Grant, RevokeReason, ToHost};
use culvert_wire::failure_code::FailureCode;

impl Agent {
    /// Takes a command. If it is delivered again, it is answered from the journal.
    pub(super) async fn on_command(&mut self, command: Command) -> io::Result<()> {
        let Command { operation_id, action, tunnel_id, expires_in_ms: _ } = command;
        match self.journal.get(operation_id).map(|entry| entry.stage.clone()) {
            None => {
                self.record(operation_id, action, tunnel_id, Stage::Received)?;
                self.claim(operation_id).await
            }
            Some(Stage::Received) => self.claim(operation_id).await,
            // A restart is reported only when the former tunnels run again.
            Some(Stage::Completed(_)) if action == Action::RestartAgent => self.report_restarted().await,
            Some(Stage::Completed(outcome)) => {
                self.say(ToHost::Finished { operation_id, outcome }).await;
                Ok(())
            }
            Some(Stage::Dropped) => {
                self.say(ToHost::Canceled { operation_id }).await;
                Ok(())
            }
            // It is in progress and is reported when it is done, or the host has its outcome already.
            Some(Stage::Executing | Stage::Settled) => Ok(()),
        }
    }

    async fn claim(&mut self, operation_id: Uuid) -> io::Result<()> {
        self.say(ToHost::Claimed { operation_id }).await;
        // The host has checked the consent that it knows of, but the device's own record decides.
        if !self.consent.enabled() {
            return self.refuse_remote_control(operation_id).await;
        }
        self.waiting.ready.insert(operation_id, self.clock.moment());
        self.say(ToHost::Ready { operation_id }).await;
        Ok(())
    }

    async fn refuse_remote_control(&mut self, operation_id: Uuid) -> io::Result<()> {
        let failure = Failure::new(FailureCode::RemoteControlDisabled, "Remote control is turned off on the device.");
        self.finish(operation_id, Err(failure)).await
    }

    /// The host agrees that the command begins. From here on, the journal has it as executing.
    pub(super) async fn on_proceed(&mut self, operation_id: Uuid, grant: Option<Grant>) -> io::Result<()> {
        let Some(entry) = self.journal.get(operation_id).filter(|entry| entry.stage == Stage::Received).cloned() else {
            return Ok(());
        };
        let since = self.waiting.ready.remove(&operation_id).unwrap_or(self.greeted);
        // Consent may have been withdrawn since the command was claimed.
        if !self.consent.enabled() {
            return self.refuse_remote_control(operation_id).await;
        }
        self.record(operation_id, entry.action, entry.tunnel_id, Stage::Executing)?;
        match (entry.action, grant, entry.tunnel_id) {
            (Action::Start | Action::Restart, Some(grant), _) => {
                self.start_by_command(operation_id, grant, since).await
            }
            (Action::Stop, _, Some(tunnel_id)) => {
                if let Some(lease_id) = self.leases.of_tunnel(tunnel_id) {
                    self.end_lease(lease_id, &RevokeReason::StoppedApi).await?;
                }
                self.finish(operation_id, Ok(Done::Stop)).await
            }
            (Action::StopAll, ..) => {
                let mut stopped = Vec::new();
                for (lease_id, tunnel_id) in self.leases.tunnels() {
                    self.end_lease(lease_id, &RevokeReason::StopAll).await?;
                    stopped.push(tunnel_id);
                }
                self.finish(operation_id, Ok(Done::StopAll { stopped })).await
            }
            (Action::RestartAgent, ..) => {
                tracing::info!("the agent is being replaced by a new process");
                self.replace = true;
                Ok(())
            }
            (Action::Start | Action::Restart | Action::Stop, ..) => {
                let failure = Failure::new(FailureCode::AgentRejected, "The command lacks its lease or its tunnel.");
                self.finish(operation_id, Err(failure)).await
            }
        }
    }

    async fn start_by_command(&mut self, operation_id: Uuid, grant: Grant, since: Moment) -> io::Result<()> {
        if let Some(former) = self.leases.of_tunnel(grant.tunnel_id) {
            self.leases.end(former);
        }
        self.foreground.follow(grant.tunnel_id, grant.lease_id);
        if self.host.is_none() {
            let failure =
                Failure::new(FailureCode::DeviceDisconnected, "The connection was lost before the tunnel started.");
            return self.finish(operation_id, Err(failure)).await;
        }
        self.waiting.operations.insert(grant.lease_id, operation_id);
        tracing::info!(tunnel = %grant.name, target = %grant.target.host, port = grant.target.port, "starting, by remote control");
        // If somebody at the device has chosen this target before, it still counts as chosen there.
        let chosen = self.agreed.chosen(grant.tunnel_id, &grant.target).unwrap_or(Chosen::FromAfar);
        self.leases.begin(grant, chosen, Probe::Required, since)
    }

    pub(super) async fn on_cancel(&mut self, operation_id: Uuid) -> io::Result<()> {
        let begun = self.journal.get(operation_id).is_some_and(|entry| entry.stage != Stage::Received);
        if begun {
            return Ok(());
        }
        self.drop_command(operation_id)?;
        self.say(ToHost::Canceled { operation_id }).await;
        Ok(())
    }

    /// Drops a command that must not begin.
    pub(super) fn drop_command(&mut self, operation_id: Uuid) -> io::Result<()> {
        self.waiting.ready.remove(&operation_id);
        match self.journal.get(operation_id).cloned() {
            Some(entry) if entry.stage == Stage::Received => {
                self.record(operation_id, entry.action, entry.tunnel_id, Stage::Dropped)
            }
            _ => Ok(()),
        }
    }

    pub(super) fn settle(&mut self, operation_id: Uuid) -> io::Result<()> {
        match self.journal.get(operation_id).cloned() {
            Some(entry) if matches!(entry.stage, Stage::Completed(_)) => {
                self.record(operation_id, entry.action, entry.tunnel_id, Stage::Settled)
            }
            _ => Ok(()),
        }
    }

    pub(super) async fn finish(&mut self, operation_id: Uuid, outcome: Result<Done, Failure>) -> io::Result<()> {
        let Some(entry) = self.journal.get(operation_id).cloned() else { return Ok(()) };
        self.record(operation_id, entry.action, entry.tunnel_id, Stage::Completed(outcome.clone()))?;
        self.say(ToHost::Finished { operation_id, outcome }).await;
        Ok(())
    }

    /// Reports again the completed commands that the host has not settled.
    pub(super) async fn report_finished(&mut self) -> io::Result<()> {
        self.report(|action| action != Action::RestartAgent).await;
        self.report_restarted().await
    }

    /// Reports a restart of the agent, once all former tunnels run again.
    pub(super) async fn report_restarted(&mut self) -> io::Result<()> {
        if self.leases.all_serving() {
            self.report(|action| action == Action::RestartAgent).await;
        }
        Ok(())
    }

    async fn report(&mut self, which: fn(Action) -> bool) {
        let finished =
            self.journal.unsettled().filter(|entry| which(entry.action)).filter_map(|entry| match &entry.stage {
                Stage::Completed(outcome) => Some((entry.operation_id, outcome.clone())),
                _ => None,
            });
        for (operation_id, outcome) in finished.collect::<Vec<_>>() {
            self.say(ToHost::Finished { operation_id, outcome }).await;
        }
    }

    /// Writes a stage of a command to the journal, and waits until it is on disk. This blocks the agent's
    /// task for a moment, but not the visitors' data, which other tasks carry.
    pub(super) fn record(
        &mut self,
        operation_id: Uuid,
        action: Action,
        tunnel_id: Option<Uuid>,
        stage: Stage,
    ) -> io::Result<()> {
        let at = self.clock.now();
        let version = VERSION.into();
        self.journal.record(Entry { operation_id, action, tunnel_id, stage, boot_id: self.boot_id, version, at })
    }
}

/// The outcome that can be proven of a command that a former agent process had begun: its tunnels run no
/// longer, and if it was to be replaced, it was.
pub(super) fn provable_outcome(entry: &Entry, boot_id: Uuid) -> Result<Done, Failure> {
    match entry.action {
        Action::Stop => Ok(Done::Stop),
        Action::StopAll => Ok(Done::StopAll { stopped: Vec::new() }),
        Action::RestartAgent => {
            Ok(Done::RestartAgent { previous_version: entry.version.clone(), version: VERSION.into(), boot_id })
        }
        Action::Start | Action::Restart => Err(Failure::new(
            FailureCode::OutcomeUnknown,
            "The agent's process ended while the action was carried out.",
        )),
    }
}
