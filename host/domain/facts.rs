//! Facts that decisions are made on: read before the decision, and again in the transaction that applies its change.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::access::{CountryRule, FirewallRule};
use crate::caller::{Caller, Role};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::policy_fact::{PolicyFact, PolicyFacts};
use crate::tunnel::Tunnel;
use crate::usage::{Counters, RunningUsage};
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

impl Resource {
    /// Its id; none for the scope.
    pub fn id(self) -> Option<Uuid> {
        match self {
            Self::Scope => None,
            Self::Tunnel(id) | Self::Device(id) | Self::Webhook(id) => Some(id),
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct ResourceFacts {
    pub counters: Counters,
    pub tunnel: Option<Tunnel>,
    pub device: Option<Device>,
    pub webhook: Option<Webhook>,
    /// Read only if a policy asks for it.
    pub running: Option<RunningUsage>,
    /// Read only if a policy asks for it.
    pub rules: Option<TunnelRules>,
}

/// Which visitors a tunnel lets in.
#[derive(Clone, Debug)]
pub struct TunnelRules {
    pub firewall: Vec<FirewallRule>,
    pub countries: Vec<CountryRule>,
}

/// What policies ask for beside what every decision depends on.
#[derive(Clone, Debug, Default)]
pub struct WantedInputs {
    pub facts: PolicyFacts,
    /// The devices that the request concerns, where policies ask for facts of them.
    pub devices: Vec<Uuid>,
}

/// What a policy can know of a device that changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInputs {
    pub id: Uuid,
    pub name: Option<String>,
    pub platform: Option<String>,
    pub owner_id: Uuid,
}

/// The facts that a decision depends on and that other requests can change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecisionInputs {
    /// The generation of the policies.
    pub generation: u64,
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
    /// What only some policies ask for: the scope's name, counts of running tunnels, and the devices. Empty if none
    /// does.
    pub scope_name: Option<String>,
    pub running: Option<RunningUsage>,
    pub devices: Vec<DeviceInputs>,
}

impl WantedInputs {
    pub fn new(facts: PolicyFacts, devices: impl Iterator<Item = Uuid>) -> Self {
        let of_devices = facts.intersects(PolicyFact::OF_DEVICES);
        Self { facts, devices: if of_devices { devices.collect() } else { Vec::new() } }
    }

    pub fn scope_name(&self) -> bool {
        self.facts.contains(PolicyFact::TeamName)
    }

    pub fn running_usage(&self) -> bool {
        self.facts.intersects(PolicyFact::RUNNING_USAGE)
    }
}

impl DeviceInputs {
    pub fn of(device: &Device) -> Self {
        let Device { id, name, platform, owner_id, .. } = device;
        Self { id: *id, name: name.clone(), platform: platform.clone(), owner_id: *owner_id }
    }
}

impl DecisionInputs {
    /// The inputs of a decision about a caller's request, with the devices that it was made on.
    pub fn of<'a>(
        generation: u64,
        caller: &Caller,
        facts: &ResourceFacts,
        wanted: &WantedInputs,
        devices: impl Iterator<Item = &'a Device>,
    ) -> Self {
        let Counters { tunnels, extra_ports, webhook_endpoints, .. } = facts.counters;
        let run = facts.tunnel.as_ref().and_then(|tunnel| tunnel.run.as_ref());
        let session_id = run.map(|run| run.session_id);
        let updated_at = facts.tunnel.as_ref().map(|tunnel| tunnel.updated_at);
        let desired_device_id = facts.tunnel.as_ref().and_then(|tunnel| tunnel.desired_device_id);
        let operation = facts.tunnel.as_ref().and_then(|tunnel| tunnel.operation.as_ref());
        let operation_id = operation.map(|operation| operation.id);
        let plan = caller.scope.plan.clone();
        let role = caller.role;
        let devices = devices.filter(|device| wanted.devices.contains(&device.id)).map(DeviceInputs::of).collect();
        Self {
            generation,
            plan,
            role,
            tunnels,
            extra_ports,
            webhook_endpoints,
            session_id,
            updated_at,
            desired_device_id,
            operation_id,
            scope_name: wanted.scope_name().then(|| caller.scope.name.clone()),
            running: facts.running,
            devices,
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
