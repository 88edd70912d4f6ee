//! Operations. Each change of state is a compare-and-set on the previous state.

use uuid::Uuid;

use super::arg::{Arg, StringArg, args};
use super::error::DbResult;
use super::read::Read;
use super::row::{Row, readable, row};
use super::sessions::RunRef;
use super::sql::{Sql, sql};
use super::{Store, Write};
use culvert_domain::error::{Code, Error, Result};
use culvert_domain::operation::{Operation, OperationStatus, RemoteAction};
use culvert_domain::page::{CursorPosition, Page, PageRows};

macro_rules! select_operation {
    ($rest:literal) => {
        sql!(concat!(
            "SELECT id, scope_id, account_id, action, status, device_id, tunnel_id, handoff_from_device_id, session_id, result, error, \
                    created_at, claimed_at, started_at, finished_at, expires_at \
             FROM operations ",
            $rest
        ))
    };
}

/// Selects unfinished operations that conflict with one on the tunnel `$2`, by the device `$1`, handed off from `$3`.
macro_rules! conflicts_of_tunnel {
    () => {
        "SELECT id FROM operations WHERE tunnel_id = $2 AND status IN ('queued', 'claimed', 'running') \
         UNION ALL SELECT id FROM operations \
             WHERE tunnel_id IS NULL AND device_id = $1 AND status IN ('queued', 'claimed', 'running') \
         UNION ALL SELECT id FROM operations \
             WHERE tunnel_id IS NULL AND device_id = $3 AND status IN ('queued', 'claimed', 'running')"
    };
}

/// Selects unfinished operations that conflict with one on the whole device `$1`.
macro_rules! conflicts_of_device {
    () => {
        "SELECT id FROM operations WHERE device_id = $1 AND status IN ('queued', 'claimed', 'running') \
         UNION ALL SELECT id FROM operations \
             WHERE handoff_from_device_id = $1 AND status IN ('queued', 'claimed', 'running') \
         UNION ALL SELECT id FROM operations WHERE tunnel_id = $2 AND status IN ('queued', 'claimed', 'running')"
    };
}

macro_rules! insert {
    ($conflicts:expr) => {
        sql!(concat!(
            "INSERT INTO operations (id, scope_id, account_id, action, status, device_id, tunnel_id, \
                 handoff_from_device_id, session_id, result, error, created_at, claimed_at, started_at, finished_at, \
                 expires_at, due_at) \
             SELECT $4, $5, $6, $7, $8, $1, $2, $3, $9, $10, $11, $12, $13, $14, $15, $16, $17 WHERE NOT EXISTS (",
            $conflicts,
            ")"
        ))
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

/// Operations whose time is over.
macro_rules! due_operations {
    ($now:literal) => {
        concat!("FROM operations WHERE due_at <= ", $now)
    };
}
pub(crate) use due_operations;

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

    /// The operations whose time is over, with the ids of their scopes.
    pub async fn due_operations(&self) -> Result<Vec<(Uuid, Uuid)>> {
        let sql = sql!(concat!("SELECT id, scope_id ", due_operations!("$1")));
        let rows = (&self.db).all(sql, args![self.clock.now()]).await?;
        Ok(readable(&rows, "operation", |row| Ok((row.id("id")?, row.id("scope_id")?))))
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

    /// An unfinished operation that conflicts with a new one. An operation on a tunnel conflicts with others on that tunnel;
    /// one on a whole device conflicts with all that involve the device.
    async fn conflicting_operation(&mut self, new: &Operation) -> Result<Option<Uuid>> {
        let other = if new.action.is_of_device() {
            let sql = sql!(concat!(conflicts_of_device!(), " LIMIT 1"));
            self.optional(sql, args![new.device_id, new.tunnel_id]).await?
        } else {
            let sql = sql!(concat!(conflicts_of_tunnel!(), " LIMIT 1"));
            self.optional(sql, args![new.device_id, new.tunnel_id, new.handoff_from_device_id]).await?
        };
        Ok(other.map(|other| other.id("id")).transpose()?)
    }

    /// Inserts an operation in its current state. The scope's row lock keeps other transactions from queueing one
    /// meanwhile.
    ///
    /// # Errors
    ///
    /// [`Code::OperationInProgress`] if an unfinished one conflicts with it; if the database fails.
    pub async fn insert_operation(&mut self, new: &Operation) -> Result<()> {
        let (result, error) = texts(new)?;
        let args = args![
            new.device_id,
            new.tunnel_id,
            new.handoff_from_device_id,
            new.id,
            new.scope_id,
            new.account_id,
            StringArg(new.action),
            StringArg(new.status),
            new.session_id,
            result.as_deref(),
            error.as_deref(),
            new.created_at,
            new.claimed_at,
            new.started_at,
            new.finished_at,
            new.expires_at,
            new.due_at(),
        ];
        let sql =
            if new.action.is_of_device() { insert!(conflicts_of_device!()) } else { insert!(conflicts_of_tunnel!()) };
        match self.execute(sql, args).await? {
            0 => Err(self.conflicting_operation(new).await?.map_or_else(Error::not_found, in_progress)),
            _ => Ok(()),
        }
    }

    /// Writes the state of an operation, if it is still in the state `before` in the database. Returns whether it
    /// was.
    pub async fn compare_and_set_operation(&mut self, before: OperationStatus, operation: &Operation) -> Result<bool> {
        let sql = sql!(
            "UPDATE operations SET status = $3, session_id = $4, result = $5, error = $6, claimed_at = $7, \
                 started_at = $8, finished_at = $9, due_at = $10 \
             WHERE id = $1 AND status = $2"
        );
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
            operation.due_at(),
        ];
        Ok(self.execute(sql, args).await? == 1)
    }

    /// The queued operations of a device.
    pub async fn queued_operations(&mut self, device_id: Uuid) -> Result<Vec<Operation>> {
        let sql = select_operation!("WHERE device_id = $1 AND status = 'queued'");
        self.operations_by(sql, args![device_id]).await
    }

    /// The queued operations that an account has requested in a scope.
    pub async fn queued_operations_by(&mut self, scope_id: Uuid, account_id: Uuid) -> Result<Vec<Operation>> {
        let sql = select_operation!("WHERE scope_id = $1 AND account_id = $2 AND status = 'queued'");
        self.operations_by(sql, args![scope_id, account_id]).await
    }

    /// The unfinished operations of a tunnel.
    pub async fn active_operations_of_tunnel(&mut self, tunnel_id: Uuid) -> Result<Vec<Operation>> {
        let sql = select_operation!("WHERE tunnel_id = $1 AND status IN ('queued', 'claimed', 'running')");
        self.operations_by(sql, args![tunnel_id]).await
    }

    async fn operations_by(&mut self, sql: Sql, args: &[Arg<'_>]) -> Result<Vec<Operation>> {
        let rows = self.all(sql, args).await?;
        Ok(rows.iter().map(operation).collect::<DbResult<_>>()?)
    }

    /// The operation that has begun and that a session belongs to, if there is one.
    pub async fn begun_operation_of(&mut self, run: RunRef) -> Result<Option<Uuid>> {
        let sql = sql!(
            "SELECT id, 0 AS place FROM operations \
                 WHERE tunnel_id = $1 AND status IN ('queued', 'claimed', 'running') AND status <> 'queued' \
             UNION ALL SELECT id, 1 AS place FROM operations WHERE tunnel_id IS NULL AND device_id = $2 \
                 AND status IN ('queued', 'claimed', 'running') AND status <> 'queued' \
             ORDER BY place LIMIT 1"
        );
        let row = self.optional(sql, args![run.tunnel_id, run.device_id]).await?;
        Ok(row.map(|row| row.id("id")).transpose()?)
    }
}

fn in_progress(other: Uuid) -> Error {
    Error::new(Code::OperationInProgress, format!("The operation {other} has not ended yet."))
}

fn texts(operation: &Operation) -> Result<(Option<String>, Option<String>)> {
    let result = operation.result.as_ref().map(ToString::to_string);
    let error = operation.error.as_ref().map(serde_json::to_string).transpose();
    Ok((result, error.map_err(Error::internal)?))
}

fn operation(row: &Row) -> DbResult<Operation> {
    Ok(row!(row => Operation {
        id: id, scope_id: id, account_id: id, action: string_enum, status: string_enum, device_id: id,
        tunnel_id: optional_id, handoff_from_device_id: optional_id, session_id: optional_id, result: json,
        error: json, created_at: time, claimed_at: optional_time, started_at: optional_time,
        finished_at: optional_time, expires_at: time,
    }))
}
