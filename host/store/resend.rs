//! Webhook events that are sent once more because somebody asks for it.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::arg::args;
use super::error::DbResult;
use super::outbox::Attempt;
use super::read::Read;
use super::sql::sql;
use super::{Hint, Write};
use culvert_domain::error::Result;

/// Attempts to send an event to an endpoint, those that somebody has asked for among them.
const MOST_ATTEMPTS: u32 = 100;

/// What becomes of sending an event once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resend {
    Scheduled,
    /// The endpoint was never sent it, or no longer has it.
    Unknown,
    /// It is being sent.
    UnderWay,
    /// Too much waits for the endpoint, or it was tried too often.
    NoRoom,
}

impl Write {
    /// Has an event be sent to an endpoint once more, outside of the schedule.
    pub async fn resend(&mut self, webhook_id: Uuid, event_id: Uuid) -> Result<Resend> {
        self.lock(sql!("SELECT id FROM webhooks WHERE id = $1", locked: " FOR UPDATE"), args![webhook_id]).await?;
        let sql = sql!(
            "SELECT MAX(attempt) AS attempts, COUNT(CASE WHEN in_flight = TRUE OR (resent = TRUE AND status = 'pending') \
                 THEN 1 END) AS under_way FROM deliveries WHERE event_id = $2 AND webhook_id = $1"
        );
        let known = self.one(sql, args![webhook_id, event_id]).await?;
        let Some(attempts) = known.optional_number::<u32>("attempts")? else { return Ok(Resend::Unknown) };
        if attempts >= MOST_ATTEMPTS {
            return Ok(Resend::NoRoom);
        }
        if known.int("under_way")? > 0 {
            return Ok(Resend::UnderWay);
        }
        if !self.make_room(webhook_id).await? {
            return Ok(Resend::NoRoom);
        }
        let attempt = Attempt { number: attempts + 1, resent: true, at: self.now };
        self.schedule(webhook_id, event_id, attempt).await?;
        self.make_due(webhook_id).await?;
        self.notify(Hint::Deliveries);
        Ok(Resend::Scheduled)
    }

    /// Whether anything that was asked for is still to be sent to an endpoint.
    pub async fn is_resending(&mut self, webhook_id: Uuid) -> Result<bool> {
        let sql = sql!(
            "SELECT 1 AS one FROM deliveries WHERE webhook_id = $1 AND resent = TRUE AND status = 'pending' LIMIT 1"
        );
        Ok(self.optional(sql, args![webhook_id]).await?.is_some())
    }

    /// The events since a time that an endpoint did not take and that wait for no attempt, at most so many: first those that
    /// were not tried for the longest time.
    pub async fn failed_events(&mut self, webhook_id: Uuid, since: DateTime<Utc>, most: u32) -> Result<Vec<Uuid>> {
        let sql = sql!(
            "SELECT event_id FROM deliveries d WHERE webhook_id = $1 AND created_at >= $2 \
                 AND status IN ('failed', 'canceled') AND NOT EXISTS (SELECT 1 FROM deliveries o \
                     WHERE o.event_id = d.event_id AND o.webhook_id = $1 AND o.status IN ('succeeded', 'pending')) \
             GROUP BY event_id ORDER BY MAX(created_at), event_id LIMIT $3"
        );
        let rows = self.all(sql, args![webhook_id, since, most]).await?;
        Ok(rows.iter().map(|row| row.id("event_id")).collect::<DbResult<_>>()?)
    }

    /// Cancels what waits to send an event to an endpoint that has taken it.
    pub(super) async fn cancel_retries(&mut self, webhook_id: Uuid, event_id: Uuid) -> Result<()> {
        let now = self.now;
        let sql = sql!(
            "UPDATE deliveries SET status = 'canceled', next_attempt_at = NULL, finished_at = $3 \
             WHERE event_id = $2 AND webhook_id = $1 AND status = 'pending' AND in_flight = FALSE"
        );
        let canceled = self.execute(sql, args![webhook_id, event_id, now]).await?;
        let sql = sql!(
            "UPDATE deliveries SET next_attempt_at = NULL WHERE event_id = $2 AND webhook_id = $1 AND next_attempt_at > $3"
        );
        self.execute(sql, args![webhook_id, event_id, now]).await?;
        let sql =
            sql!("UPDATE webhooks SET waiting = CASE WHEN waiting > $2 THEN waiting - $2 ELSE 0 END WHERE id = $1");
        self.execute(sql, args![webhook_id, canceled]).await?;
        Ok(())
    }
}
