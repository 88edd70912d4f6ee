//! Operations: their changes of state, with the events of each. No other file advances an operation; see
//! `docs/develop/decisions/0003-operations.md`.

pub mod reports;
pub mod requests;
mod rollback;

use crate::Service;
use culvert_domain::caller::Caller;
use culvert_domain::error::{Error, Result};
use culvert_domain::operation::{CLAIM_WITHIN, Operation, OperationError, OperationStatus, RemoteAction};
use culvert_domain::page::{Page, PageRows};
use culvert_wire::failure_code::FailureCode;
use uuid::Uuid;

use super::events;
use culvert_store::operations::NewOperation;
use culvert_store::{Hint, Write};

impl Service {
    /// A page of the operations of the caller's scope.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn operations(&self, caller: &Caller, page: Page) -> Result<PageRows<Operation>> {
        self.store.operations(caller.scope.id, page).await
    }

    /// An operation of the caller's scope.
    ///
    /// # Errors
    ///
    /// `Code::NotFound` if the scope has no such operation; if the database fails.
    pub async fn operation(&self, caller: &Caller, operation_id: Uuid) -> Result<Operation> {
        self.store.operation(caller.scope.id, operation_id).await?.ok_or_else(Error::not_found)
    }
}

/// Queues an operation, unless an unfinished one conflicts with it.
///
/// # Errors
///
/// `Code::OperationInProgress` if one conflicts with it; if the database fails.
pub async fn queue(write: &mut Write, new: NewOperation) -> Result<Operation> {
    let (id, now) = (write.clock.id(), write.now);
    let operation = Operation {
        id,
        scope_id: new.scope_id,
        account_id: new.account_id,
        action: new.action,
        status: OperationStatus::Queued,
        device_id: new.device_id,
        tunnel_id: new.tunnel_id,
        handoff_from_device_id: new.handoff_from_device_id,
        session_id: None,
        result: None,
        error: None,
        created_at: now,
        claimed_at: None,
        started_at: None,
        finished_at: None,
        expires_at: now + CLAIM_WITHIN,
    };
    write.insert_operation(&operation).await?;
    events::operation_advanced(write, operation.clone()).await?;
    write.notify(Hint::Device(new.device_id));
    Ok(operation)
}

/// Moves an operation to another state and writes the events. Returns false, and changes nothing in the
/// database, if its state has changed there meanwhile or the change is not allowed.
///
/// # Errors
///
/// If the database fails.
pub async fn advance(write: &mut Write, operation: &mut Operation, to: OperationStatus) -> Result<bool> {
    let before = operation.status;
    let passed = operation.advance(to, write.now);
    if passed.is_empty() || !write.compare_and_set_operation(before, operation).await? {
        return Ok(false);
    }
    if to.is_terminal() {
        // What was wanted of the devices may be something else now.
        write.notify(Hint::Device(operation.device_id));
        operation.handoff_from_device_id.into_iter().for_each(|device_id| write.notify(Hint::Device(device_id)));
    }
    for operation in passed {
        events::operation_advanced(write, operation).await?;
    }
    Ok(true)
}

/// Fails an operation. Returns false as [`advance`] does.
///
/// # Errors
///
/// If the database fails.
pub async fn fail(write: &mut Write, operation: &mut Operation, error: OperationError) -> Result<bool> {
    operation.error = Some(error);
    advance(write, operation, OperationStatus::Failed).await
}

/// Fails an operation and undoes its effects. The lease of a start ends. The tunnel of a handoff is offered back
/// to the device that ran it.
///
/// # Errors
///
/// If the database fails.
pub async fn abort(write: &mut Write, operation: &mut Operation, error: OperationError) -> Result<()> {
    write.notify(Hint::Device(operation.device_id));
    if matches!(operation.action, RemoteAction::Start | RemoteAction::Restart) {
        rollback::end_failed_start(write, operation, &error.detail).await?;
    }
    fail(write, operation, error).await?;
    Ok(())
}

async fn cancel(write: &mut Write, operations: Vec<Operation>, why: &OperationError) -> Result<()> {
    for mut operation in operations {
        operation.error = Some(why.clone());
        advance(write, &mut operation, OperationStatus::Canceled).await?;
    }
    Ok(())
}

/// Cancels the queued operations of a device; the error gives the reason.
///
/// # Errors
///
/// If the database fails.
pub async fn cancel_queued(write: &mut Write, device_id: Uuid, why: &OperationError) -> Result<()> {
    let queued = write.queued_operations(device_id).await?;
    cancel(write, queued, why).await
}

/// Cancels the queued operations that an account requested in a scope to which it has lost access.
///
/// # Errors
///
/// If the database fails.
pub async fn cancel_queued_by(write: &mut Write, scope_id: Uuid, account_id: Uuid) -> Result<()> {
    let queued = write.queued_operations_by(scope_id, account_id).await?;
    let detail = "Whoever asked for it has left the Team.";
    cancel(write, queued, &OperationError::new(FailureCode::AccessLost, detail)).await
}

/// Ends the unfinished operations of a tunnel that is being deleted.
///
/// # Errors
///
/// If the database fails.
pub async fn end_of_tunnel(write: &mut Write, tunnel_id: Uuid) -> Result<()> {
    for mut operation in write.active_operations_of_tunnel(tunnel_id).await? {
        write.notify(Hint::Device(operation.device_id));
        let error = OperationError::new(FailureCode::TunnelDeleted, "The tunnel was deleted.");
        if operation.status == OperationStatus::Queued {
            operation.error = Some(error);
            advance(write, &mut operation, OperationStatus::Canceled).await?;
        } else {
            fail(write, &mut operation, error).await?;
        }
    }
    Ok(())
}

/// Fails the claimed and running operations of a device that went offline. A running restart of the agent is the
/// exception, because it includes a disconnect.
///
/// # Errors
///
/// If the database fails.
pub async fn fail_of_lost_device(write: &mut Write, device_id: Uuid) -> Result<()> {
    for mut operation in write.active_operations(device_id).await? {
        let (code, detail) = match operation.status {
            OperationStatus::Claimed => (FailureCode::DeviceDisconnected, "The device went away before it began."),
            OperationStatus::Running if operation.action != RemoteAction::RestartAgent => {
                (FailureCode::OutcomeUnknown, "The device went away after it had begun.")
            }
            _ => continue,
        };
        abort(write, &mut operation, OperationError::new(code, detail)).await?;
    }
    Ok(())
}

/// Ends an operation whose time is over.
///
/// # Errors
///
/// If the database fails.
pub async fn expire(write: &mut Write, id: Uuid) -> Result<()> {
    let now = write.now;
    let Some(mut operation) = write.operation(id).await? else { return Ok(()) };
    match operation.timeout_status(now) {
        Some(OperationStatus::Expired) => {
            write.notify(Hint::Device(operation.device_id));
            operation.error = Some(not_claimed());
            advance(write, &mut operation, OperationStatus::Expired).await?;
            Ok(())
        }
        Some(_) => {
            let detail = "The device did not finish in time.";
            abort(write, &mut operation, OperationError::new(FailureCode::ExecutionTimeout, detail)).await
        }
        None => Ok(()),
    }
}

/// The error of an operation that expired unclaimed.
fn not_claimed() -> OperationError {
    OperationError::new(FailureCode::NotClaimed, "The device did not take the command in time.")
}
