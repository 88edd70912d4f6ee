//! Operations. Each change of state is a compare-and-set on the previous state.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::db::{DbResult, Read, Row, StringArg, args, readable};
use super::page::{CursorPosition, Page, PageRows};
use super::{Hint, Store, Write};
use culvert_domain::error::{Code, Error, Result};
use culvert_domain::operation::{
    CLAIM_WITHIN, Operation, OperationError, OperationErrorCode, OperationStatus, RemoteAction,
};

macro_rules! select_operation {
    ($rest:literal) => {
        concat!(
            "SELECT id, scope_id, account_id, action, status, device_id, tunnel_id, yields_id, session_id, result, error, \
                    created_at, claimed_at, started_at, finished_at, expires_at \
             FROM operations ",
            $rest
        )
    };
}

/// The fields of an operation that a request sets.
#[derive(Clone, Copy, Debug)]
pub struct NewOperation {
    pub scope_id: Uuid,
    pub account_id: Uuid,
    pub action: RemoteAction,
    pub device_id: Uuid,
    pub tunnel_id: Option<Uuid>,
    pub handoff_from_device_id: Option<Uuid>,
}

impl Store {
    pub async fn operation(&self, scope_id: Uuid, id: Uuid) -> Result<Option<Operation>> {
        let row =
            (&self.db).optional(select_operation!("WHERE scope_id = $1 AND id = $2"), args![scope_id, id]).await?;
        Ok(row.as_ref().map(operation).transpose()?)
    }

    pub async fn operations(&self, scope_id: Uuid, page: Page) -> Result<PageRows<Operation>> {
        let sql = select_operation!(
            "WHERE scope_id = $1 AND (created_at, id) < ($2, $3) ORDER BY created_at DESC, id DESC LIMIT $4"
        );
        let args = args![scope_id, page.after.micros(), page.after.id, page.limit_plus_one()];
        let rows = (&self.db).all(sql, args).await?;
        let operations = rows.iter().map(operation).collect::<DbResult<Vec<_>>>()?;
        Ok(page.truncate(operations, |operation| CursorPosition { at: operation.created_at, id: operation.id }))
    }

    /// The unfinished operations of a device, in the order in which they were requested.
    pub async fn active_operations(&self, device_id: Uuid) -> Result<Vec<Operation>> {
        let sql = select_operation!(
            "WHERE device_id = $1 AND status IN ('queued', 'claimed', 'running') ORDER BY created_at, id"
        );
        let rows = (&self.db).all(sql, args![device_id]).await?;
        Ok(rows.iter().map(operation).collect::<DbResult<_>>()?)
    }

    /// The devices with a queued operation.
    pub async fn devices_with_queued(&self) -> Result<Vec<Uuid>> {
        let sql = "SELECT DISTINCT device_id FROM operations WHERE status = 'queued'";
        let rows = (&self.db).all(sql, args![]).await?;
        Ok(rows.iter().map(|row| row.id("device_id")).collect::<DbResult<_>>()?)
    }

    /// Every operation that has not ended.
    pub async fn unfinished_operations(&self) -> Result<Vec<Operation>> {
        let rows =
            (&self.db).all(select_operation!("WHERE status IN ('queued', 'claimed', 'running')"), args![]).await?;
        Ok(readable(&rows, "operation", operation))
    }
}

impl Write {
    pub async fn operation(&mut self, id: Uuid) -> Result<Option<Operation>> {
        let row = self.optional(select_operation!("WHERE id = $1"), args![id]).await?;
        Ok(row.as_ref().map(operation).transpose()?)
    }

    /// As [`Store::active_operations`].
    pub async fn active_operations(&mut self, device_id: Uuid) -> Result<Vec<Operation>> {
        let sql = select_operation!(
            "WHERE device_id = $1 AND status IN ('queued', 'claimed', 'running') ORDER BY created_at, id"
        );
        let rows = self.all(sql, args![device_id]).await?;
        Ok(rows.iter().map(operation).collect::<DbResult<_>>()?)
    }

    /// Queues an operation, unless an unfinished one conflicts with it.
    pub async fn queue_operation(&mut self, new: NewOperation) -> Result<Operation> {
        self.check_no_active_operation(new).await?;
        let (id, now) = (self.clock.id(), self.now);
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
        self.insert_operation(&operation).await?;
        self.tell_of_operation(operation.clone()).await?;
        self.notify(Hint::Device(new.device_id));
        Ok(operation)
    }

    /// Fails if an unfinished operation conflicts with a new one. An operation on a tunnel conflicts with
    /// others on that tunnel; one on a whole device conflicts with all that involve the device. The scope's
    /// row lock keeps other transactions from queueing one meanwhile.
    pub async fn check_no_active_operation(&mut self, new: NewOperation) -> Result<()> {
        let sql = if new.action.is_of_device() {
            "SELECT id FROM operations WHERE status IN ('queued', 'claimed', 'running') AND scope_id = $3 \
                 AND (device_id = $1 OR yields_id = $1 OR tunnel_id = $2) LIMIT 1"
        } else {
            "SELECT id FROM operations WHERE status IN ('queued', 'claimed', 'running') AND scope_id = $3 \
                 AND (tunnel_id = $2 OR (tunnel_id IS NULL AND (device_id = $1 OR device_id = $4))) LIMIT 1"
        };
        let other = if new.action.is_of_device() {
            self.optional(sql, args![new.device_id, new.tunnel_id, new.scope_id]).await?
        } else {
            self.optional(sql, args![new.device_id, new.tunnel_id, new.scope_id, new.handoff_from_device_id]).await?
        };
        match other {
            None => Ok(()),
            Some(other) => {
                let id = other.id("id")?;
                Err(Error::new(Code::OperationInProgress, format!("The operation {id} has not ended yet.")))
            }
        }
    }

    /// Inserts an operation in its current state.
    pub async fn insert_operation(&mut self, new: &Operation) -> Result<()> {
        let sql = "INSERT INTO operations (id, scope_id, account_id, action, status, device_id, tunnel_id, yields_id, \
                       session_id, result, error, created_at, claimed_at, started_at, finished_at, expires_at) \
                   VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)";
        let (result, error) = texts(new)?;
        let args = args![
            new.id,
            new.scope_id,
            new.account_id,
            StringArg(new.action),
            StringArg(new.status),
            new.device_id,
            new.tunnel_id,
            new.handoff_from_device_id,
            new.session_id,
            result.as_deref(),
            error.as_deref(),
            new.created_at,
            new.claimed_at,
            new.started_at,
            new.finished_at,
            new.expires_at,
        ];
        self.execute(sql, args).await?;
        Ok(())
    }

    /// Moves an operation to another state and writes the events. Returns false, and changes nothing in the
    /// database, if its state has changed there meanwhile or the change is not allowed.
    pub async fn advance_operation(&mut self, operation: &mut Operation, to: OperationStatus) -> Result<bool> {
        let before = operation.status;
        let now = self.now;
        let passed = operation.advance(to, now);
        if passed.is_empty() {
            return Ok(false);
        }
        let sql = "UPDATE operations SET status = $3, session_id = $4, result = $5, error = $6, claimed_at = $7, \
                       started_at = $8, finished_at = $9 \
                   WHERE id = $1 AND status = $2";
        let (result, error) = texts(operation)?;
        let args = args![
            operation.id,
            StringArg(before),
            StringArg(operation.status),
            operation.session_id,
            result.as_deref(),
            error.as_deref(),
            operation.claimed_at,
            operation.started_at,
            operation.finished_at,
        ];
        if self.execute(sql, args).await? == 0 {
            return Ok(false);
        }
        for operation in passed {
            self.tell_of_operation(operation).await?;
        }
        Ok(true)
    }

    pub async fn fail_operation(&mut self, operation: &mut Operation, error: OperationError) -> Result<bool> {
        operation.error = Some(error);
        self.advance_operation(operation, OperationStatus::Failed).await
    }

    /// Cancels the queued operations of a device; the error gives the reason.
    pub async fn cancel_queued(&mut self, device_id: Uuid, why: &OperationError) -> Result<()> {
        let rows = self.all(select_operation!("WHERE device_id = $1 AND status = 'queued'"), args![device_id]).await?;
        self.cancel(&rows, why).await
    }

    /// Cancels the queued operations that an account requested in a scope to which it has lost access.
    pub async fn cancel_queued_by(&mut self, scope_id: Uuid, account_id: Uuid) -> Result<()> {
        let sql = select_operation!("WHERE scope_id = $1 AND account_id = $2 AND status = 'queued'");
        let rows = self.all(sql, args![scope_id, account_id]).await?;
        let detail = "Whoever asked for it has left the Team.";
        self.cancel(&rows, &OperationError::new(OperationErrorCode::AccessLost, detail)).await
    }

    async fn cancel(&mut self, rows: &[Row], why: &OperationError) -> Result<()> {
        for mut operation in rows.iter().map(operation).collect::<DbResult<Vec<_>>>()? {
            operation.error = Some(why.clone());
            self.advance_operation(&mut operation, OperationStatus::Canceled).await?;
        }
        Ok(())
    }

    /// Ends the unfinished operations of a tunnel that is being deleted.
    pub async fn end_operations_of_tunnel(&mut self, tunnel_id: Uuid) -> Result<()> {
        let sql = select_operation!("WHERE tunnel_id = $1 AND status IN ('queued', 'claimed', 'running')");
        let rows = self.all(sql, args![tunnel_id]).await?;
        for mut operation in rows.iter().map(operation).collect::<DbResult<Vec<_>>>()? {
            self.notify(Hint::Device(operation.device_id));
            let error = OperationError::new(OperationErrorCode::TunnelDeleted, "The tunnel was deleted.");
            if operation.status == OperationStatus::Queued {
                operation.error = Some(error);
                self.advance_operation(&mut operation, OperationStatus::Canceled).await?;
            } else {
                self.fail_operation(&mut operation, error).await?;
            }
        }
        Ok(())
    }

    /// Ends all leases of a device that may no longer act for its scope, and cancels its queued operations.
    pub async fn revoke_device_work(&mut self, device_id: Uuid, why: &OperationError) -> Result<()> {
        self.cancel_queued(device_id, why).await?;
        for lease in self.leases_of_device(device_id).await? {
            self.stop_session(lease.session_id, culvert_domain::session::EndReason::DeviceNotAllowed).await?;
        }
        self.execute("UPDATE tunnels SET wanted_on = NULL WHERE wanted_on = $1", args![device_id]).await?;
        self.notify(Hint::Device(device_id));
        Ok(())
    }
}

fn texts(operation: &Operation) -> Result<(Option<String>, Option<String>)> {
    let result = operation.result.as_ref().map(ToString::to_string);
    let error = operation.error.as_ref().map(serde_json::to_string).transpose();
    Ok((result, error.map_err(Error::internal)?))
}

fn operation(row: &Row) -> DbResult<Operation> {
    Ok(Operation {
        id: row.id("id")?,
        scope_id: row.id("scope_id")?,
        account_id: row.id("account_id")?,
        action: row.string_enum("action")?,
        status: row.string_enum("status")?,
        device_id: row.id("device_id")?,
        tunnel_id: row.optional_id("tunnel_id")?,
        handoff_from_device_id: row.optional_id("yields_id")?,
        session_id: row.optional_id("session_id")?,
        result: row.json("result")?,
        error: row.json("error")?,
        created_at: row.time("created_at")?,
        claimed_at: row.optional_time("claimed_at")?,
        started_at: row.optional_time("started_at")?,
        finished_at: row.optional_time("finished_at")?,
        expires_at: row.time("expires_at")?,
    })
}

/// The final state of an operation that has timed out. `None` if it has not.
pub fn timeout_status(operation: &Operation, now: DateTime<Utc>) -> Option<OperationStatus> {
    match operation.status {
        OperationStatus::Queued if operation.expires_at <= now => Some(OperationStatus::Expired),
        OperationStatus::Claimed | OperationStatus::Running => {
            let claimed_at = operation.claimed_at.unwrap_or(operation.created_at);
            (claimed_at + operation.action.execution_timeout() <= now).then_some(OperationStatus::Failed)
        }
        _ => None,
    }
}
