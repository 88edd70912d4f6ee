//! Retention: deletes rows whose time is over, in batches.

use chrono::{DateTime, Months, TimeDelta, Utc};
use futures_util::future::BoxFuture;

use super::Store;
use super::arg::Arg;
use super::error::{DbResult, first_error};
use super::read::Read;
use super::sql::{Sql, sql};
use culvert_domain::error::Result;
use culvert_domain::usage::{HOURS_KEPT, day_number, hour_number, minute_number};

const KEEP_OPERATIONS: TimeDelta = TimeDelta::days(30);
const KEEP_SESSIONS: TimeDelta = TimeDelta::days(90);
const KEEP_DELIVERIES: TimeDelta = TimeDelta::days(30);
const KEEP_KEYS: TimeDelta = TimeDelta::days(30);
/// How long nodes can be told of a change alone. A node that was away for longer gets the whole state.
const KEEP_CHANGES: TimeDelta = TimeDelta::days(1);
/// Plots show the last hour.
const KEEP_MINUTES: TimeDelta = TimeDelta::minutes(70);
const KEEP_USAGE: Months = Months::new(13);

/// Maximum number of rows that are deleted in one transaction.
const BATCH: u32 = 500;

/// Builds a statement that deletes at most `$2` rows, the oldest first by an indexed column and none before `$3`. It finds
/// them by where they lie, so that its cost is that of these rows, and returns the column, so that the next batch does not
/// pass again what this one has deleted or left.
macro_rules! prune {
    ($table:literal, $column:literal, $which:literal) => {
        sql!(
            sqlite: prune!("rowid IN (SELECT rowid FROM ", $table, $column, $which, ")"),
            postgres: prune!("ctid = ANY(ARRAY(SELECT ctid FROM ", $table, $column, $which, "))")
        )
    };
    ($lying:literal, $table:literal, $column:literal, $which:literal, $end:literal) => {
        concat!(
            "DELETE FROM ", $table, " WHERE ", $lying, $table, " WHERE ", $column, " >= $3 AND ", $column, $which,
            " ORDER BY ", $column, " LIMIT $2", $end, " RETURNING ", $column, " AS place"
        )
    };
}

impl Store {
    /// Deletes rows whose retention time is over, in batches.
    pub async fn prune(&self) -> Result<()> {
        let now = self.clock.now();
        let mut result = Ok(());
        for (sql, until) in [
            (prune!("idempotency", "expires_at", " <= $1"), now),
            (prune!("device_codes", "expires_at", " <= $1"), now),
            (prune!("links", "expires_at", " <= $1"), now),
            (prune!("invitations", "expires_at", " <= $1"), now),
            (prune!("used_challenges", "expires_at", " <= $1"), now),
            (prune!("mails", "expires_at", " <= $1"), now),
            (prune!("node_requests", "expires_at", " <= $1"), now),
            (prune!("email_changes", "expires_at", " <= $1"), now),
            (prune!("sign_ups", "expires_at", " <= $1"), now),
            (prune!("sign_ins", "expires_at", " <= $1"), now),
            (prune!("sign_in_tries", "expires_at", " <= $1"), now),
            (prune!("api_keys", "revoked_at", " <= $1"), now - KEEP_KEYS),
            (prune!("api_keys", "expires_at", " <= $1"), now - KEEP_KEYS),
            (prune!("audit_log", "at", " <= $1"), now - culvert_domain::audit_log::KEPT),
            (prune!("refusals", "at", " <= $1"), now - culvert_domain::refusal::KEPT),
            (prune!("operations", "finished_at", " <= $1"), now - KEEP_OPERATIONS),
            (prune!("sessions", "ended_at", " <= $1"), now - KEEP_SESSIONS),
            (prune!("deliveries", "finished_at", " <= $1"), now - KEEP_DELIVERIES),
            (
                // As a number, so that each event is looked up on its own: `NOT EXISTS` may be planned as a join with all
                // deliveries, of which the planner takes those that were just deleted to be there.
                prune!(
                    "events",
                    "created_at",
                    " <= $1 AND COALESCE((SELECT 1 FROM deliveries d WHERE d.event_id = events.id LIMIT 1), 0) = 0"
                ),
                now - KEEP_DELIVERIES,
            ),
            (prune!("traffic_batches", "applied_at", " <= $1"), now - KEEP_CHANGES),
            (prune!("resting_subdomains", "until", " <= $1"), now),
            (prune!("resting_ports", "until", " <= $1"), now),
        ] {
            result = first_error(result, self.prune_all(sql, until.into()).await);
        }
        result = first_error(result, self.prune_changes(now - KEEP_CHANGES).await);
        let first_day = day_number(now.checked_sub_months(KEEP_USAGE).unwrap_or(now));
        let first_hour = hour_number(now - HOURS_KEPT);
        for (sql, first) in [
            (prune!("usage_days", "day", " < $1"), first_day),
            (prune!("usage_of_scopes", "day", " < $1"), first_day),
            (prune!("usage_hours", "hour", " < $1"), first_hour),
            (prune!("usage_hours_of_scopes", "hour", " < $1"), first_hour),
            (prune!("usage_minutes", "minute", " < $1"), minute_number(now - KEEP_MINUTES)),
        ] {
            result = first_error(result, self.prune_all(sql, first.into()).await);
        }
        result
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
        let mut from = i64::MIN;
        loop {
            let deleted = self.write(None, move |write| {
                boxed(async move {
                    let rows = write.all(sql, &[until, Arg::from(BATCH), from.into()]).await?;
                    Ok(rows.iter().map(|row| row.int("place")).collect::<DbResult<Vec<_>>>()?)
                })
            });
            let places = deleted.await?;
            if places.len() < BATCH as usize {
                return Ok(());
            }
            from = places.into_iter().max().unwrap_or(from);
        }
    }
}

fn boxed<'w, T>(work: impl Future<Output = Result<T>> + Send + 'w) -> BoxFuture<'w, Result<T>> {
    Box::pin(work)
}
