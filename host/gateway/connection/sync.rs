//! Synchronisation of an agent: compares what was sent to it with the database.

use std::collections::{HashMap, HashSet};

use culvert_wire::control::{Action, Command, ConsentState, Failure, Grant, NodeAddress, Target, ToAgent};
use futures_util::future::join_all;
use uuid::Uuid;

use super::{AgentConnection, End};
use crate::gateway::grant;
use culvert_domain::operation::{Operation, RemoteAction};
use culvert_store::sessions::Lease;

/// What was sent to the agent on this connection.
#[derive(Default)]
pub(super) struct SentState {
    pub leases: HashMap<Uuid, Target>,
    commands: HashSet<Uuid>,
    pub consent: Option<ConsentState>,
}

impl SentState {
    /// The state after a welcome: the consent has been sent, and no commands yet.
    pub fn of(consent: ConsentState) -> Self {
        Self { consent: Some(consent), ..Self::default() }
    }
}

impl AgentConnection {
    /// Compares the database with what was sent to the agent, and sends the difference.
    pub(super) async fn sync_agent(&mut self) -> Result<(), End> {
        let device = self.device().await?;
        let consent = ConsentState { enabled: device.remote_control, revision: device.consent_revision };
        if self.sent.consent != Some(consent) {
            self.sent.consent = Some(consent);
            self.link.send(&ToAgent::Consent(consent)).await?;
        }
        self.sync_commands().await?;
        self.sync_leases().await
    }

    async fn sync_commands(&mut self) -> Result<(), End> {
        let operations = self.control.service.store.active_operations(self.connection.device_id).await?;
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
        let leases = self.control.service.store.leases_of_device(self.connection.device_id).await?;
        let held: HashSet<Uuid> = leases.iter().map(|lease| lease.session_id).collect();
        let over: Vec<Uuid> = self.sent.leases.keys().filter(|id| !held.contains(id)).copied().collect();
        for lease_id in over {
            self.sent.leases.remove(&lease_id);
            let reason = self.control.service.store.end_reason(lease_id).await?;
            let reason = reason.map(|reason| reason.to_string()).unwrap_or_else(|| "ended".into());
            self.link.send(&ToAgent::Revoke { lease_id, reason }).await?;
        }
        let leases = self.leases_of_this_boot().await?;
        let is_new = |lease: &&Lease| !self.sent.leases.contains_key(&lease.session_id);
        let nodes = self.control.service.nodes.clone();
        let new: Vec<&Lease> = leases.iter().filter(is_new).collect();
        let served = join_all(new.iter().map(|lease| nodes.serve(lease))).await;
        for (lease, node) in new.iter().zip(served) {
            if let Ok(node) = node {
                let grant = self.grant(lease, node);
                self.link.send(&ToAgent::Resume { grant }).await?;
            }
        }
        for lease in &leases {
            let (lease_id, target) = (lease.session_id, grant::target(lease));
            if self.sent.leases.get(&lease_id).is_some_and(|sent| *sent != target) {
                self.sent.leases.insert(lease_id, target.clone());
                self.link.send(&ToAgent::Retarget { lease_id, target }).await?;
            }
        }
        Ok(())
    }

    /// The leases that this agent process holds or should hold, except those that an operation is about to
    /// give it.
    pub(super) async fn leases_of_this_boot(&mut self) -> Result<Vec<Lease>, End> {
        let device_id = self.connection.device_id;
        let operations = self.control.service.store.active_operations(device_id).await?;
        let given: HashSet<Uuid> = operations.iter().filter_map(|operation| operation.session_id).collect();
        let leases = self.control.service.store.leases_of_device(device_id).await?;
        let begun = |id: &Uuid| !given.contains(id) || self.held.contains(id);
        let own = |lease: &Lease| lease.boot_id == self.boot_id && begun(&lease.session_id);
        Ok(leases.into_iter().filter(own).collect())
    }

    /// Has the node serve a lease, and only then makes the agent's grant for it.
    pub(super) async fn serve_and_grant(&mut self, lease: &Lease) -> Result<Grant, Failure> {
        let node = self.control.service.nodes.serve(lease).await?;
        Ok(self.grant(lease, node))
    }

    /// The agent's grant for a lease that a node serves.
    pub(super) fn grant(&mut self, lease: &Lease, node: NodeAddress) -> Grant {
        self.sent.leases.insert(lease.session_id, grant::target(lease));
        grant::grant(lease, node, self.control.service.nodes.token(lease))
    }
}
