//! Retention: deletes rows whose time is over, in batches.

use chrono::{DateTime, Months, TimeDelta, Utc};
use futures_util::future::BoxFuture;

use super::Store;
use super::arg::Arg;
use super::error::first_error;
use super::sql::{Sql, sql};
use culvert_domain::error::Result;
use culvert_domain::usage::day_number;

const KEEP_OPERATIONS: TimeDelta = TimeDelta::days(30);
const KEEP_SESSIONS: TimeDelta = TimeDelta::days(90);
const KEEP_DELIVERIES: TimeDelta = TimeDelta::days(30);
/// How long nodes can be told of a change alone. A node that was away for longer gets the whole state.
const KEEP_CHANGES: TimeDelta = TimeDelta::days(1);
const KEEP_USAGE: Months = Months::new(13);

/// Maximum number of rows that are deleted in one transaction.
const BATCH: u32 = 1000;

/// Builds a statement that deletes at most `$2` rows.
macro_rules! prune {
    ($table:literal, $key:literal, $columns:literal, $which:literal) => {
        sql!(concat!(
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
        ))
    };
}

impl Store {
    /// Deletes rows whose retention time is over, in batches.
    pub async fn prune(&self) -> Result<()> {
        let now = self.clock.now();
        let mut result = Ok(());
        for (sql, until) in [
            (prune!("idempotency", "(credential_id, key)", "credential_id, key", "expires_at <= $1"), now),
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
            (
                prune!("traffic_batches", "(node_id, boot_id, number)", "node_id, boot_id, number", "applied_at <= $1"),
                now - KEEP_CHANGES,
            ),
            (prune!("device_changes", "device_id", "device_id", "changed_at <= $1"), now - KEEP_CHANGES),
            (prune!("resting_subdomains", "(domain_id, subdomain)", "domain_id, subdomain", "until <= $1"), now),
            (prune!("resting_ports", "(node_id, port, transport)", "node_id, port, transport", "until <= $1"), now),
        ] {
            result = first_error(result, self.prune_all(sql, until.into()).await);
        }
        result = first_error(result, self.prune_changes(now - KEEP_CHANGES).await);
        let first_day = day_number(now.checked_sub_months(KEEP_USAGE).unwrap_or(now));
        let sql = prune!("usage_days", "(tunnel_id, day)", "tunnel_id, day", "day < $1");
        result = first_error(result, self.prune_all(sql, first_day.into()).await);
        let sql = prune!("usage_of_scopes", "(scope_id, day)", "scope_id, day", "day < $1");
        first_error(result, self.prune_all(sql, first_day.into()).await)
    }

    async fn prune_changes(&self, until: DateTime<Utc>) -> Result<()> {
        loop {
            let deleted = self.write(None, move |write| boxed(write.prune_assignment_changes(until, BATCH)));
            if deleted.await? < u64::from(BATCH) {
                return Ok(());
            }
        }
    }

    async fn prune_all(&self, sql: Sql, until: Arg<'static>) -> Result<()> {
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

fn boxed<'w, T>(work: impl Future<Output = Result<T>> + Send + 'w) -> BoxFuture<'w, Result<T>> {
    Box::pin(work)
}
