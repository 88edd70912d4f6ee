//! Synchronisation of an agent: compares what was sent to it with the database.

use std::collections::{HashMap, HashSet};

use culvert_domain::lease::Lease;
use culvert_domain::operation::{Operation, RemoteAction};
use culvert_service::leases;
use culvert_wire::control::{Action, Command, ConsentState, Grant, ToAgent};
use culvert_wire::target::Target;
use uuid::Uuid;

use super::{AgentConnection, End};

/// What was sent to the agent on this connection.
#[derive(Default)]
pub(super) struct SentState {
    pub leases: HashMap<Uuid, Target>,
    commands: HashSet<Uuid>,
    pub consent: Option<ConsentState>,
}

impl SentState {
    /// The state after a welcome: the consent has been sent, and no commands yet.
    pub(super) fn of(consent: ConsentState) -> Self {
        Self { consent: Some(consent), ..Self::default() }
    }

    pub(super) fn add(&mut self, grant: &Grant) {
        self.leases.insert(grant.lease_id, grant.target.clone());
    }
}

impl AgentConnection {
    /// Compares the database with what was sent to the agent, and sends the difference.
    pub(super) async fn sync_agent(&mut self) -> Result<(), End> {
        let device = self.device.current().await?;
        let consent = ConsentState { enabled: device.remote_control, revision: device.consent_revision };
        if self.sent.consent != Some(consent) {
            self.sent.consent = Some(consent);
            self.link.send(&ToAgent::Consent(consent)).await?;
        }
        self.sync_commands().await?;
        self.sync_leases().await
    }

    async fn sync_commands(&mut self) -> Result<(), End> {
        let operations = self.device.active_operations().await?;
        let active: HashSet<Uuid> = operations.iter().map(|operation| operation.id).collect();
        let over: Vec<Uuid> = self.sent.commands.difference(&active).copied().collect();
        for operation_id in over {
            self.sent.commands.remove(&operation_id);
            self.link.send(&ToAgent::Cancel { operation_id }).await?;
        }
        for operation in operations {
            if self.sent.commands.insert(operation.id) {
                self.link.send(&ToAgent::Command(self.command(&operation))).await?;
            }
        }
        Ok(())
    }

    fn command(&self, operation: &Operation) -> Command {
        let left = (operation.expires_at - self.control.clock.now()).num_milliseconds();
        Command {
            operation_id: operation.id,
            action: match operation.action {
                RemoteAction::Start => Action::Start,
                RemoteAction::Stop => Action::Stop,
                RemoteAction::Restart => Action::Restart,
                RemoteAction::StopAll => Action::StopAll,
                RemoteAction::RestartAgent => Action::RestartAgent,
            },
            tunnel_id: operation.tunnel_id,
            expires_in_ms: u64::try_from(left).unwrap_or_default(),
        }
    }

    async fn sync_leases(&mut self) -> Result<(), End> {
        let open = self.device.lease_ids().await?;
        let over: Vec<Uuid> = self.sent.leases.keys().filter(|id| !open.contains(id)).copied().collect();
        for lease_id in over {
            self.sent.leases.remove(&lease_id);
            let reason = self.device.end_reason(lease_id).await?;
            self.link.send(&ToAgent::Revoke { lease_id, reason }).await?;
        }
        let leases = self.device.leases_of_this_boot().await?;
        let is_new = |lease: &&Lease| !self.sent.leases.contains_key(&lease.session_id);
        for grant in self.device.grants(leases.iter().filter(is_new)).await {
            self.sent.add(&grant);
            self.link.send(&ToAgent::Resume { grant }).await?;
        }
        for lease in &leases {
            let (lease_id, target) = (lease.session_id, leases::target(lease));
            if self.sent.leases.get(&lease_id).is_some_and(|sent| *sent != target) {
                self.sent.leases.insert(lease_id, target.clone());
                self.link.send(&ToAgent::Retarget { lease_id, target }).await?;
            }
        }
        Ok(())
    }
}
