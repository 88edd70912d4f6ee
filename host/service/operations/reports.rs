//! State changes of an operation that the agent's reports cause; see
//! `docs/develop/decisions/0003-operations.md`.

use culvert_wire::control::{Done, Failure};
use culvert_wire::failure_code::FailureCode;
use uuid::Uuid;

use super::requests::{StartOutcome, start_result};
use super::{abort, advance, not_claimed};
use crate::sessions;
use crate::startable::{Bandwidth, StartRefusal, check_startable};
use culvert_api_types::operation::{
    OperationResultResponse, RestartAgentResultResponse, StopAllResultResponse, StopResultResponse,
};
use culvert_domain::device::Device;
use culvert_domain::error::{Code, Result, is_code};
use culvert_domain::operation::{Operation, OperationError, OperationStatus, RemoteAction};
use culvert_domain::session::EndReason;
use culvert_domain::text;
use culvert_domain::tunnel::Tunnel;
use culvert_store::Write;

/// The answer to an agent that is ready to begin an operation.
#[derive(Debug)]
pub enum BeginDecision {
    /// Begin. If the action runs a tunnel, it runs under this session.
    Proceed { session_id: Option<Uuid> },
    /// Do not begin: the operation has ended otherwise.
    Abandon,
}

/// The operation, if it belongs to this device.
async fn own(write: &mut Write, device: &Device, operation_id: Uuid) -> Result<Option<Operation>> {
    let operation = write.operation(operation_id).await?;
    Ok(operation.filter(|operation| operation.device_id == device.id))
}

/// The agent has written the command to its journal. Checks consent and capabilities again, and returns
/// whether the operation goes on.
///
/// # Errors
///
/// If the database fails.
pub async fn claim(write: &mut Write, device: &Device, operation_id: Uuid) -> Result<bool> {
    let Some(mut operation) = own(write, device, operation_id).await? else { return Ok(false) };
    if operation.status != OperationStatus::Queued {
        return Ok(!operation.status.is_terminal());
    }
    if operation.expires_at <= write.now {
        operation.error = Some(not_claimed());
        advance(write, &mut operation, OperationStatus::Expired).await?;
        return Ok(false);
    }
    if let Err(error) = consent(device, &operation) {
        super::fail(write, &mut operation, error).await?;
        return Ok(false);
    }
    advance(write, &mut operation, OperationStatus::Claimed).await
}

/// Checks that the device consents to the action and supports it.
fn consent(device: &Device, operation: &Operation) -> Result<(), OperationError> {
    device.check_consent(operation.action).map_err(|refused| {
        let code = match refused.code {
            Code::RemoteControlDisabled => FailureCode::RemoteControlDisabled,
            _ => FailureCode::UnsupportedAction,
        };
        OperationError::new(code, refused.detail)
    })
}

/// The agent is about to begin. The operation is running from here on; a start gets its lease.
///
/// # Errors
///
/// If the database fails.
pub async fn begin(write: &mut Write, device: &Device, boot_id: Uuid, operation_id: Uuid) -> Result<BeginDecision> {
    let Some(mut operation) = own(write, device, operation_id).await? else { return Ok(BeginDecision::Abandon) };
    match operation.status {
        OperationStatus::Queued | OperationStatus::Claimed => {}
        // The agent did not get the first answer: an agent that has begun does not ask again.
        OperationStatus::Running => return Ok(BeginDecision::Proceed { session_id: operation.session_id }),
        _ => return Ok(BeginDecision::Abandon),
    }
    // Consent may have been withdrawn since the claim.
    if let Err(error) = consent(device, &operation) {
        super::fail(write, &mut operation, error).await?;
        return Ok(BeginDecision::Abandon);
    }
    if !matches!(operation.action, RemoteAction::Start | RemoteAction::Restart) {
        let begun = advance(write, &mut operation, OperationStatus::Running).await?;
        return Ok(if begun { BeginDecision::Proceed { session_id: None } } else { BeginDecision::Abandon });
    }
    let Some(tunnel) = tunnel(write, &operation).await? else { return Ok(BeginDecision::Abandon) };
    if let Err(error) = may_run(&tunnel, device, &operation) {
        super::fail(write, &mut operation, error.clone()).await?;
        write.set_start_error(tunnel.id, Some(&error.detail)).await?;
        return Ok(BeginDecision::Abandon);
    }
    if let Some(run) = &tunnel.run {
        let handoff = run.device_id != device.id;
        let reason = if handoff { EndReason::Handoff } else { EndReason::Restarted };
        sessions::end(write, run.session_id, reason).await?;
    }
    let target = tunnel.target();
    let session_id = sessions::open(write, &tunnel, device.id, boot_id, &target).await?;
    operation.session_id = Some(session_id);
    advance(write, &mut operation, OperationStatus::Running).await?;
    Ok(BeginDecision::Proceed { session_id: Some(session_id) })
}

/// Checks again what may have changed since the operation was queued.
fn may_run(tunnel: &Tunnel, device: &Device, operation: &Operation) -> Result<(), OperationError> {
    if let Err(refusal) = check_startable(tunnel, device, Bandwidth::Left) {
        let code = match refusal {
            StartRefusal::AgentTooOld => FailureCode::UnsupportedAction,
            StartRefusal::NodeWithoutHttp | StartRefusal::NodeAway => FailureCode::NodeUnavailable,
            StartRefusal::MovedFromServingNode => FailureCode::OperationInProgress,
            StartRefusal::BandwidthUsedUp => FailureCode::TunnelStartFailed,
            StartRefusal::OwnerInactive | StartRefusal::DeviceNotAllowed => FailureCode::DeviceNotAllowed,
        };
        return Err(OperationError::new(code, refusal.detail()));
    }
    let other = tunnel.run.as_ref().map(|run| run.device_id).filter(|other| *other != device.id);
    if other.is_some() && other != operation.handoff_from_device_id {
        let detail = "Another device has started the tunnel meanwhile.";
        return Err(OperationError::new(FailureCode::LeaseConflict, detail));
    }
    Ok(())
}

async fn tunnel(write: &mut Write, operation: &Operation) -> Result<Option<Tunnel>> {
    match operation.tunnel_id {
        Some(tunnel_id) => write.tunnel(operation.scope_id, tunnel_id).await,
        None => Ok(None),
    }
}

/// The agent canceled the command before it began.
///
/// # Errors
///
/// If the database fails.
pub async fn cancel(write: &mut Write, device: &Device, operation_id: Uuid) -> Result<()> {
    if let Some(mut operation) = own(write, device, operation_id).await? {
        let detail = "The agent canceled the command before it began.";
        operation.error = Some(OperationError::new(FailureCode::AgentRejected, detail));
        advance(write, &mut operation, OperationStatus::Canceled).await?;
    }
    Ok(())
}

/// The agent reports an outcome. If the operation has ended already, the report changes nothing.
///
/// # Errors
///
/// If the database fails.
pub async fn finish(
    write: &mut Write,
    device: &Device,
    operation_id: Uuid,
    outcome: Result<Done, Failure>,
) -> Result<()> {
    let Some(mut operation) = own(write, device, operation_id).await? else { return Ok(()) };
    if operation.status.is_terminal() {
        return Ok(());
    }
    match outcome {
        Ok(done) => succeed(write, device, &mut operation, done).await,
        Err(failure) => fail(write, &mut operation, failure).await,
    }
}

async fn fail(write: &mut Write, operation: &mut Operation, failure: Failure) -> Result<()> {
    let code = if is_code(failure.code.as_str()) { failure.code } else { FailureCode::AgentRejected };
    let detail = text::cleaned(&failure.detail, 500);
    abort(write, operation, OperationError { code, detail }).await
}

async fn succeed(write: &mut Write, device: &Device, operation: &mut Operation, done: Done) -> Result<()> {
    let result = match (operation.action, done) {
        (RemoteAction::Start | RemoteAction::Restart, Done::Start | Done::Restart) => {
            return finish_start(write, operation).await;
        }
        (RemoteAction::Stop, _) => {
            let session_id = stop(write, operation).await?;
            OperationResultResponse::Stop(StopResultResponse { tunnel_id: operation.tunnel_id, session_id })
        }
        (RemoteAction::StopAll, _) => {
            let stopped = stop_all(write, device).await?;
            OperationResultResponse::StopAll(StopAllResultResponse { stopped, failed: Vec::new() })
        }
        (RemoteAction::RestartAgent, Done::RestartAgent { previous_version, version, boot_id }) => {
            let leases = write.leases_of_device(device.id).await?;
            let resumed_tunnels = leases.iter().filter(|lease| lease.ready).map(|lease| lease.tunnel_id).collect();
            let [previous_version, version] = [previous_version, version].map(|text| text::cleaned(&text, 100));
            let result = RestartAgentResultResponse { previous_version, version, boot_id, resumed_tunnels };
            OperationResultResponse::RestartAgent(result)
        }
        (_, other) => {
            let failure =
                Failure::new(FailureCode::AgentRejected, format!("The agent reported another action: {other:?}."));
            return fail(write, operation, failure).await;
        }
    };
    operation.result = Some(result.stored()?);
    advance(write, operation, OperationStatus::Succeeded).await?;
    Ok(())
}

/// Ends a start: it succeeds if its session is still open, and fails if the session has ended meanwhile.
async fn finish_start(write: &mut Write, operation: &mut Operation) -> Result<()> {
    let session_id = operation.session_id.unwrap_or_default();
    let (Some(tunnel), Some(lease)) = (tunnel(write, operation).await?, write.lease(session_id).await?) else {
        let failure = Failure::new(FailureCode::LeaseConflict, "The tunnel's lease ended before the start was done.");
        return fail(write, operation, failure).await;
    };
    sessions::set_ready(write, lease.session_id).await?;
    write.set_start_error(tunnel.id, None).await?;
    operation.result = Some(start_result(
        &tunnel,
        Some(session_id),
        operation.device_id,
        operation.handoff_from_device_id,
        StartOutcome::Now,
    )?);
    advance(write, operation, OperationStatus::Succeeded).await?;
    Ok(())
}

async fn stop(write: &mut Write, operation: &Operation) -> Result<Option<Uuid>> {
    let run = tunnel(write, operation).await?.and_then(|tunnel| tunnel.run);
    let run = run.filter(|run| run.device_id == operation.device_id);
    if let Some(run) = &run {
        sessions::stop(write, run.session_id, EndReason::StoppedApi).await?;
    }
    if let Some(tunnel_id) = operation.tunnel_id {
        write.set_desired_device(tunnel_id, None).await?;
    }
    Ok(run.map(|run| run.session_id))
}

async fn stop_all(write: &mut Write, device: &Device) -> Result<Vec<Uuid>> {
    let mut stopped = Vec::new();
    for lease in write.leases_of_device(device.id).await? {
        sessions::stop(write, lease.session_id, EndReason::StopAll).await?;
        stopped.push(lease.tunnel_id);
    }
    Ok(stopped)
}
