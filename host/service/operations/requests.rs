//! Requesting remote actions of devices; see `docs/develop/decisions/0003-operations.md`. The checks of
//! state are made here, in the order of `docs/develop/decisions/0001-order-of-checks.md`, because here
//! the scope's row lock keeps other transactions from changing the scope.

use uuid::Uuid;

use super::queue;
use crate::commit::Change;
use crate::events;
use crate::gate::{Permit, StartChoice};
use crate::startable::{Bandwidth, StartRefusal, check_startable};
use culvert_api_types::address::AddressResponse;
use culvert_api_types::operation::{OperationResultResponse, StartResultResponse};
use culvert_domain::device::Device;
use culvert_domain::error::{Code, Error, Fault, Result};
use culvert_domain::operation::{Operation, OperationStatus, RemoteAction};
use culvert_domain::tunnel::{Run, Tunnel};
use culvert_store::Write;
use culvert_store::operations::NewOperation;

pub struct Start {
    pub tunnel_id: Uuid,
    pub choice: StartChoice,
}

impl Change for Start {
    type Done = Operation;

    async fn apply(&self, write: &mut Write, permit: &Permit) -> Result<Operation> {
        let scope_id = permit.caller().scope.id;
        let tunnel = write.tunnel(scope_id, self.tunnel_id).await?.ok_or_else(Error::not_found)?;
        let StartChoice { device_id, handoff } = self.choice;
        check_not_suspended(write, permit, &tunnel).await?;
        let device = device(write, scope_id, device_id).await?;
        check_start(&tunnel, &device)?;
        let new = new_operation(permit, RemoteAction::Start, device_id, Some(tunnel.id));
        match &tunnel.run {
            Some(run) if run.device_id == device_id && run.ready => already_running(write, new, &tunnel, run).await,
            Some(run) if run.device_id != device_id && !handoff => {
                let detail = format!("The device {} runs the tunnel; `handoff: true` takes it over.", run.device_id);
                Err(Error::new(Code::TunnelAlreadyRunning, detail))
            }
            Some(run) if run.device_id != device_id => {
                queue(write, NewOperation { handoff_from_device_id: Some(run.device_id), ..new }).await
            }
            _ => queue(write, new).await,
        }
    }
}

/// Whether a device can be asked to start a tunnel.
///
/// # Errors
///
/// Why the state of either does not allow it.
pub fn check_start(tunnel: &Tunnel, device: &Device) -> Result<()> {
    if tunnel.suspended {
        return Err(Error::of(Code::TunnelSuspended));
    }
    if !device.online {
        return Err(Error::of(Code::DeviceOffline));
    }
    let refused = |refusal: StartRefusal| match refusal {
        StartRefusal::BandwidthUsedUp => Error::of(Code::TunnelSuspended),
        StartRefusal::NodeWithoutHttp | StartRefusal::NodeAway => Error::new(Code::NodeUnavailable, refusal.detail()),
        StartRefusal::MovedFromServingNode => Error::new(Code::OperationInProgress, refusal.detail()),
        StartRefusal::AgentTooOld => Error::new(Code::UpgradeRequired, refusal.detail()),
        StartRefusal::OwnerInactive | StartRefusal::DeviceNotAllowed => Error::of(Code::DeviceNotAllowed),
    };
    check_startable(tunnel, device, Bandwidth::Left).map_err(refused)?;
    device.check_capabilities(RemoteAction::Start)
}

/// Whether the device that runs a tunnel can be asked to stop or restart it.
///
/// # Errors
///
/// Why the state of either does not allow it.
pub fn check_on_running(tunnel: &Tunnel, device: &Device, action: RemoteAction) -> Result<()> {
    let restarts = action == RemoteAction::Restart;
    if restarts && tunnel.suspended {
        return Err(Error::of(Code::TunnelSuspended));
    }
    if restarts && device.online && !tunnel.allows(device.id) {
        return Err(Error::of(Code::DeviceNotAllowed));
    }
    device.check_capabilities(action)
}

/// A new operation of the caller: on a tunnel of the device, or on the whole device.
fn new_operation(permit: &Permit, action: RemoteAction, device_id: Uuid, tunnel_id: Option<Uuid>) -> NewOperation {
    NewOperation {
        scope_id: permit.caller().scope.id,
        account_id: permit.caller().account_id,
        action,
        device_id,
        tunnel_id,
        handoff_from_device_id: None,
    }
}

/// Stores an operation that succeeds at once, because the device runs the tunnel already.
async fn already_running(write: &mut Write, new: NewOperation, tunnel: &Tunnel, run: &Run) -> Result<Operation> {
    let now = write.now;
    let operation = Operation {
        id: write.clock.id(),
        scope_id: new.scope_id,
        account_id: new.account_id,
        action: new.action,
        status: OperationStatus::Succeeded,
        device_id: new.device_id,
        tunnel_id: new.tunnel_id,
        handoff_from_device_id: None,
        session_id: Some(run.session_id),
        result: Some(start_result(tunnel, Some(run.session_id), new.device_id, None, StartOutcome::Already)?),
        error: None,
        created_at: now,
        claimed_at: Some(now),
        started_at: Some(now),
        finished_at: Some(now),
        expires_at: now,
    };
    write.insert_operation(&operation).await?;
    events::operation_succeeded_at_once(write, &operation).await?;
    Ok(operation)
}

/// The outcome of a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartOutcome {
    Now,
    Already,
    /// The start failed, and the tunnel was given back to the device that ran it before.
    RolledBack,
}

/// The `result` of a start or restart operation; see `docs/develop/decisions/0003-operations.md`.
///
/// # Errors
///
/// If it cannot be converted to JSON.
pub fn start_result(
    tunnel: &Tunnel,
    session_id: Option<Uuid>,
    device_id: Uuid,
    previous_device_id: Option<Uuid>,
    started: StartOutcome,
) -> Result<serde_json::Value> {
    let result = StartResultResponse {
        tunnel_id: tunnel.id,
        session_id,
        device_id,
        previous_device_id,
        public_address: AddressResponse::from(tunnel.public_address()),
        already_running: started == StartOutcome::Already,
        rolled_back: started == StartOutcome::RolledBack,
    };
    OperationResultResponse::Start(result).stored()
}

async fn check_not_suspended(write: &mut Write, permit: &Permit, tunnel: &Tunnel) -> Result<()> {
    let limit = permit.entitlement().bandwidth_limit_bytes;
    let used_up = match limit {
        Some(limit) => write.scope_bandwidth(tunnel.scope_id).await?.month.total() >= limit,
        None => false,
    };
    if tunnel.suspended || used_up { Err(Error::of(Code::TunnelSuspended)) } else { Ok(()) }
}

/// Reads a device again inside the transaction: it may have been removed since the admission.
async fn device(write: &mut Write, scope_id: Uuid, id: Uuid) -> Result<Device> {
    let device = write.device(scope_id, id).await?;
    device.ok_or_else(|| Error::invalid(vec![Fault::new("device_id", "is no device of this scope")]))
}

/// Stops or restarts a tunnel on the device that runs it.
pub struct ActOnRunning {
    pub tunnel_id: Uuid,
    pub action: RemoteAction,
}

impl Change for ActOnRunning {
    type Done = Operation;

    async fn apply(&self, write: &mut Write, permit: &Permit) -> Result<Operation> {
        let scope_id = permit.caller().scope.id;
        let tunnel = write.tunnel(scope_id, self.tunnel_id).await?.ok_or_else(Error::not_found)?;
        if self.action == RemoteAction::Restart {
            check_not_suspended(write, permit, &tunnel).await?;
        }
        let run = tunnel.run.as_ref().ok_or_else(|| Error::of(Code::TunnelNotRunning))?;
        let device = device(write, scope_id, run.device_id).await?;
        check_on_running(&tunnel, &device, self.action)?;
        let new = new_operation(permit, self.action, device.id, Some(tunnel.id));
        queue(write, new).await
    }
}

/// The device actions stop-all and restart-agent.
pub struct ActOnDevice {
    pub device_id: Uuid,
    pub action: RemoteAction,
}

impl Change for ActOnDevice {
    type Done = Operation;

    async fn apply(&self, write: &mut Write, permit: &Permit) -> Result<Operation> {
        let scope_id = permit.caller().scope.id;
        let device = write.device(scope_id, self.device_id).await?.ok_or_else(Error::not_found)?;
        device.check_capabilities(self.action)?;
        let new = new_operation(permit, self.action, device.id, None);
        queue(write, new).await
    }
}
