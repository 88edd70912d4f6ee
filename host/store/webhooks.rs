//! Webhook endpoints, and the lists of their delivery attempts.

use uuid::Uuid;

use super::arg::{StringArg, args};
use super::error::DbResult;
use super::read::Read;
use super::row::{Row, row};
use super::sql::sql;
use super::{Store, Write};
use culvert_domain::error::Result;
use culvert_domain::event::EventKind;
use culvert_domain::page::{CursorPosition, Page, PageRows};
use culvert_domain::string_enum::StringEnum;
use culvert_domain::webhook::{ATTEMPTS_SHOWN, Attempt, LastDelivery, Webhook};

macro_rules! select_webhook {
    ($rest:literal) => {
        sql!(concat!(
            "SELECT id, scope_id, url, events, description, status, last_status, last_at, created_at, updated_at \
             FROM webhooks ",
            $rest
        ))
    };
}

macro_rules! select_attempt {
    ($rest:literal) => {
        sql!(concat!(
            "SELECT d.id, d.event_id, e.kind, d.attempt, d.status, d.status_code, d.error, d.duration_ms, \
                    d.created_at, d.attempted_at, d.next_attempt_at \
             FROM deliveries d JOIN events e ON e.id = d.event_id ",
            $rest
        ))
    };
}

impl Store {
    pub async fn webhook(&self, scope_id: Uuid, id: Uuid) -> Result<Option<Webhook>> {
        find(&mut &self.db, scope_id, id).await
    }

    pub async fn webhooks(&self, scope_id: Uuid, page: Page) -> Result<PageRows<Webhook>> {
        let sql = select_webhook!(
            "WHERE scope_id = $1 AND (created_at, id) < ($2, $3) ORDER BY created_at DESC, id DESC LIMIT $4"
        );
        let args = args![scope_id, page.after.micros(), page.after.id, page.limit_plus_one()];
        let rows = (&self.db).all(sql, args).await?;
        let webhooks = rows.iter().map(webhook).collect::<DbResult<Vec<_>>>()?;
        Ok(page.truncate(webhooks, |webhook| CursorPosition { at: webhook.created_at, id: webhook.id }))
    }

    /// A page of the newest attempts. Older ones beyond a fixed number are not shown.
    pub async fn attempts(&self, webhook_id: Uuid, page: Page) -> Result<PageRows<Attempt>> {
        let sql = select_attempt!(
            "WHERE d.id IN (SELECT id FROM deliveries WHERE webhook_id = $1 \
                 ORDER BY created_at DESC, id DESC LIMIT $2) AND (d.created_at, d.id) < ($3, $4) \
             ORDER BY d.created_at DESC, d.id DESC LIMIT $5"
        );
        let args = args![webhook_id, ATTEMPTS_SHOWN, page.after.micros(), page.after.id, page.limit_plus_one()];
        let rows = (&self.db).all(sql, args).await?;
        let attempts = rows.iter().map(attempt).collect::<DbResult<Vec<_>>>()?;
        Ok(page.truncate(attempts, |attempt| CursorPosition { at: attempt.created_at, id: attempt.id }))
    }

    /// The attempts to send an event to an endpoint, the newest first. There are at most 100.
    pub async fn attempts_of_event(&self, webhook_id: Uuid, event_id: Uuid) -> Result<Vec<Attempt>> {
        let sql = select_attempt!("WHERE d.event_id = $2 AND d.webhook_id = $1 ORDER BY d.created_at DESC, d.id DESC");
        let rows = (&self.db).all(sql, args![webhook_id, event_id]).await?;
        Ok(rows.iter().map(attempt).collect::<DbResult<Vec<_>>>()?)
    }

    /// The body of an event that was sent to an endpoint, or is still to be.
    pub async fn payload(&self, webhook_id: Uuid, event_id: Uuid) -> Result<Option<Vec<u8>>> {
        let sql = sql!(
            "SELECT body FROM events WHERE id = $2 \
                 AND EXISTS (SELECT 1 FROM deliveries WHERE event_id = $2 AND webhook_id = $1)"
        );
        let row = (&self.db).optional(sql, args![webhook_id, event_id]).await?;
        Ok(row.map(|row| row.bytes("body")).transpose()?)
    }

    /// The secret of an endpoint, sealed.
    pub async fn webhook_secret(&self, webhook_id: Uuid) -> Result<Option<Vec<u8>>> {
        let row = (&self.db).optional(sql!("SELECT secret FROM webhooks WHERE id = $1"), args![webhook_id]).await?;
        Ok(row.map(|row| row.bytes("secret")).transpose()?)
    }
}

pub(super) async fn find(db: &mut impl Read, scope_id: Uuid, id: Uuid) -> Result<Option<Webhook>> {
    let row = db.optional(select_webhook!("WHERE scope_id = $1 AND id = $2"), args![scope_id, id]).await?;
    Ok(row.as_ref().map(webhook).transpose()?)
}

impl Write {
    pub async fn webhook(&mut self, scope_id: Uuid, id: Uuid) -> Result<Option<Webhook>> {
        find(&mut **self, scope_id, id).await
    }

    /// Inserts an endpoint. The secret is sealed for its row.
    pub async fn insert_webhook(&mut self, new: &Webhook, secret: &[u8]) -> Result<()> {
        let sql = sql!(
            "INSERT INTO webhooks (id, scope_id, url, events, description, status, secret, created_at, updated_at) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $8)"
        );
        let (events, description) = (words(&new.events), new.description.as_deref());
        let args =
            args![new.id, new.scope_id, &new.url, &events, description, StringArg(new.status), secret, new.created_at];
        self.execute(sql, args).await?;
        Ok(())
    }

    pub async fn update_webhook(&mut self, webhook: &Webhook) -> Result<()> {
        let now = self.now;
        let sql = sql!(
            "UPDATE webhooks SET url = $2, events = $3, description = $4, status = $5, updated_at = $6 WHERE id = $1"
        );
        let (events, description) = (words(&webhook.events), webhook.description.as_deref());
        self.execute(sql, args![webhook.id, &webhook.url, &events, description, StringArg(webhook.status), now])
            .await?;
        Ok(())
    }

    pub async fn delete_webhook(&mut self, id: Uuid) -> Result<()> {
        self.execute(sql!("DELETE FROM webhooks WHERE id = $1"), args![id]).await?;
        Ok(())
    }
}

fn words(events: &[EventKind]) -> String {
    events.iter().map(|event| event.as_str()).collect::<Vec<_>>().join(" ")
}

fn webhook(row: &Row) -> DbResult<Webhook> {
    let last_status = row.optional_string_enum("last_status")?;
    let last_at = row.optional_time("last_at")?;
    Ok(row!(row => Webhook {
        id: id, scope_id: id, url: text, description: optional_text, status: string_enum, created_at: time,
        updated_at: time;
        events: row.text("events")?.split(' ').filter_map(EventKind::parse).collect(),
        last_delivery: last_status.zip(last_at).map(|(status, at)| LastDelivery { status, at }),
    }))
}

fn attempt(row: &Row) -> DbResult<Attempt> {
    Ok(row!(row => Attempt {
        id: id, event_id: id, status: string_enum, status_code: optional_number, error: optional_string_enum,
        duration_ms: optional_number, created_at: time, attempted_at: optional_time,
        next_attempt_at: optional_time;
        event: row.text("kind")?,
        number: row.number("attempt")?,
    }))
}
