//! What time alone brings about: things that were not done, kept or heard of any longer.

use chrono::TimeDelta;
use futures_util::future::BoxFuture;
use uuid::Uuid;

use super::db::args;
use super::operations::overdue;
use super::{Store, Write};
use crate::domain::event::OfflineReason;
use crate::domain::operation::{OperationError, OperationErrorCode, OperationStatus, RemoteAction};
use crate::domain::session::EndReason;
use crate::error::Result;

const KEEP_OPERATIONS: TimeDelta = TimeDelta::days(30);
const KEEP_SESSIONS: TimeDelta = TimeDelta::days(90);
const KEEP_DELIVERIES: TimeDelta = TimeDelta::days(30);

impl Store {
    /// Everything that is due now.
    pub async fn sweep(&self) -> Result<()> {
        for (device_id, scope_id) in self.silent_devices().await? {
            self.write(Some(scope_id), move |write| boxed(write.lose_device(device_id))).await?;
        }
        for (session_id, scope_id) in self.expired_leases().await? {
            self.write(Some(scope_id), move |write| boxed(write.expire_lease(session_id))).await?;
        }
        let now = self.clock.now();
        for operation in self.unfinished_operations().await?.into_iter().filter(|o| overdue(o, now).is_some()) {
            self.write(Some(operation.scope_id), move |write| boxed(write.expire_operation(operation.id))).await?;
        }
        Ok(())
    }

    /// Deletes what has been kept for long enough.
    pub async fn prune(&self) -> Result<()> {
        self.write(None, |write| {
            boxed(async move {
                let now = write.now;
                write.execute("DELETE FROM idempotency WHERE expires_at <= $1", args![now]).await?;
                write.execute("DELETE FROM device_codes WHERE expires_at <= $1", args![now]).await?;
                let sql = "DELETE FROM operations WHERE finished_at IS NOT NULL AND finished_at <= $1";
                write.execute(sql, args![now - KEEP_OPERATIONS]).await?;
                let sql = "DELETE FROM sessions WHERE ended_at IS NOT NULL AND ended_at <= $1";
                write.execute(sql, args![now - KEEP_SESSIONS]).await?;
                let sql = "DELETE FROM deliveries WHERE finished_at IS NOT NULL AND finished_at <= $1";
                write.execute(sql, args![now - KEEP_DELIVERIES]).await?;
                let sql = "DELETE FROM events WHERE created_at <= $1 \
                           AND NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.event_id = events.id)";
                write.execute(sql, args![now - KEEP_DELIVERIES]).await?;
                Ok(())
            })
        })
        .await
    }
}

fn boxed<'w, T>(work: impl Future<Output = Result<T>> + Send + 'w) -> BoxFuture<'w, Result<T>> {
    Box::pin(work)
}

impl Write {
    /// A device was not heard of for too long: it is offline, and nobody will ever know of it what
    /// became of what it had begun.
    async fn lose_device(&mut self, device_id: Uuid) -> Result<()> {
        let silent =
            "SELECT device_id FROM device_presence WHERE device_id = $1 AND online = TRUE AND last_seen_at <= $2";
        let limit = self.now - crate::domain::device::OFFLINE_AFTER;
        if super::db::Read::optional(&mut **self, silent, args![device_id, limit]).await?.is_none() {
            return Ok(());
        }
        self.set_offline(device_id, OfflineReason::Timeout).await?;
        self.fail_operations_of_lost_device(device_id).await
    }

    /// What a device had claimed is over when it goes away. A restart of the agent is the exception:
    /// going away is part of it.
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
        match overdue(&operation, now) {
            Some(OperationStatus::Expired) => {
                self.wake(super::Wake::Device(operation.device_id));
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
