//! Timeouts and retention: work that becomes due only because time has passed.

use chrono::{Months, TimeDelta};
use futures_util::future::BoxFuture;
use futures_util::{StreamExt, stream};
use uuid::Uuid;

use super::db::{Arg, args};
use super::error::first_error;
use super::operations::timeout_status;
use super::{Store, Write};
use culvert_domain::error::{Chain, Result};
use culvert_domain::event::OfflineReason;
use culvert_domain::operation::{Operation, OperationError, OperationErrorCode, OperationStatus, RemoteAction};
use culvert_domain::session::EndReason;
use culvert_domain::usage::day_number;

const KEEP_OPERATIONS: TimeDelta = TimeDelta::days(30);
const KEEP_SESSIONS: TimeDelta = TimeDelta::days(90);
const KEEP_DELIVERIES: TimeDelta = TimeDelta::days(30);
const KEEP_USAGE: Months = Months::new(13);

/// Maximum number of due items that are processed concurrently. If one waits for a lock, the others go on.
const AT_ONCE: usize = 8;
/// Maximum number of rows that are deleted in one transaction.
const BATCH: u32 = 1000;

/// Builds a statement that deletes at most `$2` rows.
macro_rules! prune {
    ($table:literal, $key:literal, $columns:literal, $which:literal) => {
        concat!(
            "DELETE FROM ",
            $table,
            " WHERE ",
            $key,
            " IN (SELECT ",
            $columns,
            " FROM ",
            $table,
            " WHERE ",
            $which,
            " LIMIT $2)"
        )
    };
}

impl Store {
    /// Processes everything that is due now. A failure with one item does not stop the others.
    pub async fn sweep(&self) -> Result<()> {
        let (silent, expired, unfinished, untold) = tokio::join!(
            self.silent_devices(),
            self.expired_leases(),
            self.unfinished_operations(),
            self.untold_devices(),
        );
        let lost = each(silent, |(device_id, scope_id)| {
            self.write(Some(scope_id), move |write| boxed(write.lose_device(device_id)))
        })
        .await;
        let ended = each(expired, |(session_id, scope_id)| {
            self.write(Some(scope_id), move |write| boxed(write.expire_lease(session_id)))
        })
        .await;
        let now = self.clock.now();
        let timeout_status =
            unfinished.map(|all| all.into_iter().filter(|one| timeout_status(one, now).is_some()).collect());
        let timed_out = each(timeout_status, |operation: Operation| {
            self.write(Some(operation.scope_id), move |write| boxed(write.expire_operation(operation.id)))
        })
        .await;
        let told = each(untold, |(device_id, scope_id)| {
            self.write(Some(scope_id), move |write| boxed(write.tell_where_device_is(device_id)))
        })
        .await;
        [ended, timed_out, told].into_iter().fold(lost, first_error)
    }

    /// Deletes rows whose retention time is over, in batches.
    pub async fn prune(&self) -> Result<()> {
        let now = self.clock.now();
        let mut result = Ok(());
        for (sql, until) in [
            (prune!("idempotency", "(api_key_id, key)", "api_key_id, key", "expires_at <= $1"), now),
            (prune!("device_codes", "hash", "hash", "expires_at <= $1"), now),
            (prune!("operations", "id", "id", "finished_at IS NOT NULL AND finished_at <= $1"), now - KEEP_OPERATIONS),
            (prune!("sessions", "id", "id", "ended_at IS NOT NULL AND ended_at <= $1"), now - KEEP_SESSIONS),
            (prune!("deliveries", "id", "id", "finished_at IS NOT NULL AND finished_at <= $1"), now - KEEP_DELIVERIES),
            (
                prune!(
                    "events",
                    "id",
                    "id",
                    "created_at <= $1 AND NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.event_id = events.id)"
                ),
                now - KEEP_DELIVERIES,
            ),
            (prune!("resting_ports", "(node_id, port, transport)", "node_id, port, transport", "until <= $1"), now),
        ] {
            result = first_error(result, self.prune_all(sql, until.into()).await);
        }
        let first_day = day_number(now.checked_sub_months(KEEP_USAGE).unwrap_or(now));
        let sql = prune!("usage_days", "(tunnel_id, day)", "tunnel_id, day", "day < $1");
        first_error(result, self.prune_all(sql, first_day.into()).await)
    }

    async fn prune_all(&self, sql: &'static str, until: Arg<'static>) -> Result<()> {
        loop {
            let deleted = self.write(None, move |write| {
                boxed(async move { Ok(write.execute(sql, &[until, Arg::from(BATCH)]).await?) })
            });
            if deleted.await? < u64::from(BATCH) {
                return Ok(());
            }
        }
    }
}

/// Processes due items and logs the failures. An error is returned only if the items could not be read.
async fn each<T, F: Future<Output = Result<()>>>(due: Result<Vec<T>>, act: impl Fn(T) -> F) -> Result<()> {
    let acts = stream::iter(due?).map(act).buffer_unordered(AT_ONCE);
    acts.for_each(async |done| {
        if let Err(error) = done {
            tracing::warn!(error = %Chain(&error), "something that is due could not be done");
        }
    })
    .await;
    Ok(())
}

fn boxed<'w, T>(work: impl Future<Output = Result<T>> + Send + 'w) -> BoxFuture<'w, Result<T>> {
    Box::pin(work)
}

impl Write {
    /// Marks a device offline that was not seen for too long, and fails the operations that it had claimed,
    /// because their outcome will not become known.
    async fn lose_device(&mut self, device_id: Uuid) -> Result<()> {
        let silent =
            "SELECT device_id FROM device_presence WHERE device_id = $1 AND online = TRUE AND last_seen_at <= $2";
        let limit = self.now - culvert_domain::device::OFFLINE_AFTER;
        if super::db::Read::optional(&mut **self, silent, args![device_id, limit]).await?.is_none() {
            return Ok(());
        }
        self.set_offline(device_id, OfflineReason::Timeout).await?;
        self.fail_operations_of_lost_device(device_id).await
    }

    /// Fails the claimed and running operations of a device that went offline. A running restart of the agent
    /// is the exception, because it includes a disconnect.
    pub async fn fail_operations_of_lost_device(&mut self, device_id: Uuid) -> Result<()> {
        for mut operation in self.active_operations(device_id).await? {
            let (code, detail) = match operation.status {
                OperationStatus::Claimed => {
                    (OperationErrorCode::DeviceDisconnected, "The device went away before it began.")
                }
                OperationStatus::Running if operation.action != RemoteAction::RestartAgent => {
                    (OperationErrorCode::OutcomeUnknown, "The device went away after it had begun.")
                }
                _ => continue,
            };
            self.abort_operation(&mut operation, OperationError::new(code, detail)).await?;
        }
        Ok(())
    }

    async fn expire_operation(&mut self, id: Uuid) -> Result<()> {
        let now = self.now;
        let Some(mut operation) = self.operation(id).await? else { return Ok(()) };
        match timeout_status(&operation, now) {
            Some(OperationStatus::Expired) => {
                self.notify(super::Hint::Device(operation.device_id));
                operation.error = Some(not_claimed());
                self.advance_operation(&mut operation, OperationStatus::Expired).await?;
                Ok(())
            }
            Some(_) => {
                let detail = "The device did not finish in time.";
                let error = OperationError::new(OperationErrorCode::ExecutionTimeout, detail);
                self.abort_operation(&mut operation, error).await
            }
            None => Ok(()),
        }
    }

    async fn expire_lease(&mut self, session_id: Uuid) -> Result<()> {
        let Some(lease) = self.lease(session_id).await? else { return Ok(()) };
        if lease.lease_until > self.now {
            return Ok(());
        }
        let gone = self.is_disconnected(lease.device_id).await?;
        let reason = if gone { EndReason::DeviceDisconnected } else { EndReason::LeaseExpired };
        self.end_session(session_id, reason).await?;
        Ok(())
    }
}

/// The error of an operation that expired unclaimed.
pub fn not_claimed() -> OperationError {
    OperationError::new(OperationErrorCode::NotClaimed, "The device did not take the command in time.")
}
