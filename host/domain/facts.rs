//! Facts that decisions are made on: read before the decision, and again in the transaction that applies its change.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::caller::{Caller, Role};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::tunnel::Tunnel;
use crate::usage::Counters;
use crate::webhook::Webhook;

/// The resource in a request's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// The scope itself.
    Scope,
    Tunnel(Uuid),
    Device(Uuid),
    Webhook(Uuid),
}

#[derive(Clone, Debug, Default)]
pub struct ResourceFacts {
    pub counters: Counters,
    pub tunnel: Option<Tunnel>,
    pub device: Option<Device>,
    pub webhook: Option<Webhook>,
}

/// The facts that a decision depends on and that other requests can change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecisionInputs {
    pub plan: String,
    pub role: Option<Role>,
    pub tunnels: u32,
    pub extra_ports: u32,
    pub webhook_endpoints: u32,
    /// The open session of the tunnel.
    pub session_id: Option<Uuid>,
    /// The time of the tunnel's last change.
    pub updated_at: Option<DateTime<Utc>>,
    /// The device that is to run the tunnel, and the tunnel's unfinished operation.
    pub desired_device_id: Option<Uuid>,
    pub operation_id: Option<Uuid>,
}

impl DecisionInputs {
    pub fn of(caller: &Caller, facts: &ResourceFacts) -> Self {
        let Counters { tunnels, extra_ports, webhook_endpoints, .. } = facts.counters;
        let run = facts.tunnel.as_ref().and_then(|tunnel| tunnel.run.as_ref());
        let session_id = run.map(|run| run.session_id);
        let updated_at = facts.tunnel.as_ref().map(|tunnel| tunnel.updated_at);
        let desired_device_id = facts.tunnel.as_ref().and_then(|tunnel| tunnel.desired_device_id);
        let operation = facts.tunnel.as_ref().and_then(|tunnel| tunnel.operation.as_ref());
        let operation_id = operation.map(|operation| operation.id);
        let plan = caller.scope.plan.clone();
        let role = caller.role;
        Self {
            plan,
            role,
            tunnels,
            extra_ports,
            webhook_endpoints,
            session_id,
            updated_at,
            desired_device_id,
            operation_id,
        }
    }
}

impl ResourceFacts {
    /// The tunnel of the subject. Not found if there is none.
    ///
    /// # Errors
    ///
    /// [`Error::not_found`], if the subject has no tunnel.
    pub fn tunnel(&self) -> Result<&Tunnel> {
        self.tunnel.as_ref().ok_or_else(Error::not_found)
    }

    /// The device of the subject. Not found if there is none.
    ///
    /// # Errors
    ///
    /// [`Error::not_found`], if the subject has no device.
    pub fn device(&self) -> Result<&Device> {
        self.device.as_ref().ok_or_else(Error::not_found)
    }
}
