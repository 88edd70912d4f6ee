//! Events on their way to webhook endpoints: written in the transaction that brings them about,
//! taken up by a courier, settled by how the attempt came out.
//!
//! An event that no endpoint asks for is not written at all. The rows of one endpoint's deliveries
//! change under the endpoint's own row's lock; a courier skips an endpoint that somebody else holds.

use chrono::{DateTime, TimeDelta, Utc};
use serde::Serialize;
use uuid::Uuid;

use super::db::{DbResult, Read, Row, WordArg, args, skip_locked};
use super::{Store, Wake, Write};
use crate::domain::caller::ScopeKind;
use crate::domain::device::Device;
use crate::domain::event::{EventKind, OfflineReason, TEST_EVENT};
use crate::domain::operation::{Operation, OperationStatus};
use crate::domain::session::EndReason;
use crate::domain::webhook::{AttemptStatus, Outcome, RETRIES};
use crate::error::{Error, Result};
use crate::record::event::{
    CommandOut, DevicePresenceOut, EventOut, EventScopeOut, EventTunnelOut, TunnelRunOut, WebhookTestOut,
};
use crate::secret::{Purpose, Secrets};

/// Attempts under way to one endpoint, at most: one that hangs holds up nobody else.
pub const IN_FLIGHT_PER_ENDPOINT: i64 = 2;
/// After so long an attempt that nobody settled is made again. An attempt takes 15 seconds at most.
const LEASE: TimeDelta = TimeDelta::seconds(60);
/// Endpoints that are looked at in one go.
const ENDPOINTS_AT_ONCE: i64 = 64;

/// Who is to hear of an event.
#[derive(Debug)]
pub struct Audience {
    scope_id: Uuid,
    scope: ScopeKind,
    webhook_ids: Vec<Uuid>,
}

/// A run of a tunnel, as an event tells of it.
#[derive(Clone, Copy, Debug)]
pub struct RunRef {
    pub session_id: Uuid,
    pub scope_id: Uuid,
    pub tunnel_id: Uuid,
    pub device_id: Uuid,
    pub node_id: Uuid,
}

/// An attempt that is to be made now.
#[derive(Clone, Debug)]
pub struct Delivery {
    pub id: Uuid,
    pub lease: i64,
    pub attempt: u32,
    pub webhook_id: Uuid,
    pub url: String,
    /// What the signature is keyed with.
    pub secret: String,
    pub event_id: Uuid,
    pub body: Vec<u8>,
}

impl Write {
    /// The endpoints that listen to a kind; none is the rule, and then nothing more is to be done.
    pub async fn audience(&mut self, scope_id: Uuid, kind: EventKind) -> Result<Option<Audience>> {
        let sql = "SELECT w.id, s.kind FROM webhooks w JOIN scopes s ON s.id = w.scope_id \
                   WHERE w.scope_id = $1 AND w.status = 'enabled' AND ' ' || w.events || ' ' LIKE '% ' || $2 || ' %' \
                   ORDER BY w.id";
        let rows = self.all(sql, args![scope_id, WordArg(kind)]).await?;
        let Some(first) = rows.first() else { return Ok(None) };
        let scope = first.word("kind")?;
        let webhook_ids = rows.iter().map(|row| row.id("id")).collect::<DbResult<_>>()?;
        Ok(Some(Audience { scope_id, scope, webhook_ids }))
    }

    /// An operation has come to a state.
    pub async fn tell_of_operation(&mut self, operation: Operation) -> Result<()> {
        let kind = EventKind::of_operation(operation.status);
        match self.audience(operation.scope_id, kind).await? {
            Some(audience) => self.publish(&audience, kind, CommandOut { operation: operation.into() }).await,
            None => Ok(()),
        }
    }

    /// An operation has succeeded as soon as it was asked for: it went through every state at once.
    pub async fn tell_of_success(&mut self, operation: &Operation) -> Result<()> {
        let asked = Operation {
            status: OperationStatus::Queued,
            claimed_at: None,
            started_at: None,
            finished_at: None,
            result: None,
            ..operation.clone()
        };
        self.tell_of_operation(asked.clone()).await?;
        let mut passing = Operation { result: operation.result.clone(), ..asked };
        for passed in passing.advance(OperationStatus::Succeeded, operation.created_at) {
            self.tell_of_operation(passed).await?;
        }
        Ok(())
    }

    /// A tunnel stands ready for visitors; or, with a reason, it does so no longer.
    pub async fn tell_of_run(&mut self, run: RunRef, reason: Option<EndReason>) -> Result<()> {
        let kind = if reason.is_some() { EventKind::TunnelStopped } else { EventKind::TunnelStarted };
        let Some(audience) = self.audience(run.scope_id, kind).await? else { return Ok(()) };
        let Some(tunnel) = self.tunnel(run.scope_id, run.tunnel_id).await? else { return Ok(()) };
        let data = TunnelRunOut {
            tunnel: EventTunnelOut::from(&tunnel),
            device_id: run.device_id,
            session_id: run.session_id,
            node_id: run.node_id,
            public_address: tunnel.public_address().into(),
            operation_id: self.operation_behind(run, reason).await?,
            reason,
        };
        self.publish(&audience, kind, data).await
    }

    /// The operation that began or ended a run.
    async fn operation_behind(&mut self, run: RunRef, reason: Option<EndReason>) -> Result<Option<Uuid>> {
        use EndReason::{Error, Handoff, Restarted, StopAll, StoppedApi};
        if reason.is_some_and(|reason| !matches!(reason, StoppedApi | StopAll | Restarted | Handoff | Error)) {
            return Ok(None);
        }
        let sql = "SELECT id FROM operations WHERE status IN ('claimed', 'running') \
                   AND (session_id = $1 OR tunnel_id = $2 OR (tunnel_id IS NULL AND device_id = $3)) \
                   ORDER BY tunnel_id IS NULL, created_at DESC LIMIT 1";
        let row = self.optional(sql, args![run.session_id, run.tunnel_id, run.device_id]).await?;
        Ok(row.map(|row| row.id("id")).transpose()?)
    }

    /// A device is there; or, with a reason, it is gone.
    pub async fn tell_of_device(&mut self, device: Device, reason: Option<OfflineReason>) -> Result<()> {
        let kind = if reason.is_some() { EventKind::DeviceOffline } else { EventKind::DeviceOnline };
        match self.audience(device.scope_id, kind).await? {
            Some(audience) => self.publish(&audience, kind, DevicePresenceOut { device: device.into(), reason }).await,
            None => Ok(()),
        }
    }

    /// An event for one endpoint alone, whatever it listens to.
    pub async fn test_event(&mut self, scope_id: Uuid, webhook_id: Uuid) -> Result<Uuid> {
        let row = self.one("SELECT kind FROM scopes WHERE id = $1", args![scope_id]).await?;
        let audience = Audience { scope_id, scope: row.word("kind")?, webhook_ids: vec![webhook_id] };
        self.write_event(&audience, TEST_EVENT, WebhookTestOut { webhook_id }).await
    }

    async fn publish(&mut self, audience: &Audience, kind: EventKind, data: impl Serialize) -> Result<()> {
        use crate::domain::word::Word;
        self.write_event(audience, kind.word(), data).await.map(drop)
    }

    async fn write_event(&mut self, audience: &Audience, kind: &str, data: impl Serialize) -> Result<Uuid> {
        let (id, now) = (self.clock.id(), self.now);
        let team_id = (audience.scope == ScopeKind::Team).then_some(audience.scope_id);
        let scope = EventScopeOut { r#type: audience.scope, team_id };
        let event = EventOut { id, r#type: kind.into(), created_at: now, api_version: "v2", scope, data };
        let body = serde_json::to_vec(&event).map_err(Error::internal)?;
        let sql = "INSERT INTO events (id, scope_id, kind, body, created_at) VALUES ($1, $2, $3, $4, $5)";
        self.execute(sql, args![id, audience.scope_id, kind, &body[..], now]).await?;
        for webhook_id in &audience.webhook_ids {
            self.schedule(*webhook_id, id, 1, now).await?;
            let sql = "UPDATE webhooks SET due_at = $2 WHERE id = $1 AND (due_at IS NULL OR due_at > $2) \
                       AND (SELECT COUNT(*) FROM deliveries WHERE webhook_id = $1 AND in_flight = TRUE) < $3";
            self.execute(sql, args![*webhook_id, now, IN_FLIGHT_PER_ENDPOINT]).await?;
        }
        self.wake(Wake::Courier);
        Ok(id)
    }

    async fn schedule(&mut self, webhook_id: Uuid, event_id: Uuid, attempt: u32, at: DateTime<Utc>) -> Result<()> {
        let (id, now) = (self.clock.id(), self.now);
        let sql = "INSERT INTO deliveries (id, webhook_id, event_id, attempt, status, run_at, in_flight, lease, \
                       next_attempt_at, created_at) \
                   VALUES ($1, $2, $3, $4, 'pending', $5, FALSE, 0, $5, $6)";
        self.execute(sql, args![id, webhook_id, event_id, attempt, at, now]).await?;
        Ok(())
    }

    /// Nothing that waits for an endpoint is sent any more.
    pub async fn cancel_deliveries(&mut self, webhook_id: Uuid) -> Result<()> {
        let now = self.now;
        let sql = "UPDATE deliveries SET status = 'canceled', in_flight = FALSE, next_attempt_at = NULL, finished_at = $2 \
                   WHERE webhook_id = $1 AND status = 'pending'";
        self.execute(sql, args![webhook_id, now]).await?;
        // What has failed is not tried again.
        let sql = "UPDATE deliveries SET next_attempt_at = NULL WHERE webhook_id = $1 AND next_attempt_at > $2";
        self.execute(sql, args![webhook_id, now]).await?;
        self.execute("UPDATE webhooks SET due_at = NULL WHERE id = $1", args![webhook_id]).await?;
        Ok(())
    }

    /// When a courier is to look at an endpoint next: as soon as something is due, or, while as much
    /// as may be is under way, when it must have ended.
    async fn set_due(&mut self, webhook_id: Uuid) -> Result<()> {
        let now = self.now;
        let sql = "UPDATE webhooks SET due_at = CASE \
                       WHEN (SELECT COUNT(*) FROM deliveries WHERE webhook_id = $1 AND in_flight = TRUE AND run_at > $2) >= $3 \
                       THEN (SELECT MIN(run_at) FROM deliveries WHERE webhook_id = $1 AND in_flight = TRUE) \
                       ELSE (SELECT MIN(run_at) FROM deliveries WHERE webhook_id = $1 AND status = 'pending') END \
                   WHERE id = $1";
        self.execute(sql, args![webhook_id, now, IN_FLIGHT_PER_ENDPOINT]).await?;
        Ok(())
    }

    /// Notes how an attempt came out, and when the next one is due. Somebody who was given up for
    /// lost settles nothing.
    async fn settle(&mut self, delivery: &Delivery, outcome: Outcome) -> Result<()> {
        let now = self.now;
        self.lock("SELECT id FROM webhooks WHERE id = $1 FOR UPDATE", args![delivery.webhook_id]).await?;
        let status = if outcome.error.is_none() { AttemptStatus::Succeeded } else { AttemptStatus::Failed };
        let wait = RETRIES.get(delivery.attempt as usize - 1).filter(|_| status == AttemptStatus::Failed);
        // Not on the second, so that what failed together does not come back together.
        let next = wait.map(|wait| now + self.clock.about(*wait));
        let sql = "UPDATE deliveries SET status = $3, in_flight = FALSE, status_code = $4, error = $5, duration_ms = $6, \
                       next_attempt_at = $7, finished_at = $8 \
                   WHERE id = $1 AND lease = $2 AND status = 'pending'";
        let duration = u64::try_from(outcome.duration.as_millis()).unwrap_or(u64::MAX);
        let error = outcome.error.map(crate::domain::word::Word::word);
        let code = outcome.status_code.map(u32::from);
        let args = args![delivery.id, delivery.lease, WordArg(status), code, error, duration, next, now];
        if self.execute(sql, args).await? == 0 {
            return Ok(());
        }
        let sql = "UPDATE webhooks SET last_status = $2, last_at = $3 WHERE id = $1";
        self.execute(sql, args![delivery.webhook_id, WordArg(status), now]).await?;
        if let Some(next) = next {
            self.schedule(delivery.webhook_id, delivery.event_id, delivery.attempt + 1, next).await?;
        }
        self.set_due(delivery.webhook_id).await?;
        self.wake(Wake::Courier);
        Ok(())
    }
}

impl Store {
    /// When the next delivery is due.
    pub async fn next_delivery(&self) -> Result<Option<DateTime<Utc>>> {
        let sql = "SELECT due_at FROM webhooks WHERE due_at IS NOT NULL ORDER BY due_at LIMIT 1";
        let row = (&self.db).optional(sql, args![]).await?;
        Ok(row.map(|row| row.time("due_at")).transpose()?)
    }

    /// Takes up deliveries that are due, so many at most. Whatever is taken up and never settled
    /// comes due again.
    pub async fn claim_deliveries(&self, most: usize) -> Result<Vec<Delivery>> {
        let secrets = self.secrets.clone();
        self.write(None, move |write| Box::pin(async move { write.claim_deliveries(&secrets, most).await })).await
    }

    pub async fn settle_delivery(&self, delivery: Delivery, outcome: Outcome) -> Result<()> {
        self.write(None, move |write| Box::pin(async move { write.settle(&delivery, outcome).await })).await
    }
}

impl Write {
    async fn claim_deliveries(&mut self, secrets: &Secrets, most: usize) -> Result<Vec<Delivery>> {
        let now = self.now;
        let due = skip_locked!(
            "SELECT id, url, secret FROM webhooks WHERE due_at IS NOT NULL AND due_at <= $1 ORDER BY due_at LIMIT $2"
        );
        let mut claimed = Vec::new();
        for endpoint in self.all_skip_locked(due, args![now, ENDPOINTS_AT_ONCE]).await? {
            let left = most - claimed.len();
            if left == 0 {
                break;
            }
            let webhook_id = endpoint.id("id")?;
            match opened(secrets, webhook_id, &endpoint.bytes("secret")?) {
                Some(secret) => {
                    let url = endpoint.text("url")?;
                    claimed.extend(self.take_up(webhook_id, left, &url, &secret).await?);
                    self.set_due(webhook_id).await?;
                }
                None => self.put_off(webhook_id).await?,
            }
        }
        Ok(claimed)
    }

    /// Takes up what is due for one endpoint, as much as may be under way at once.
    async fn take_up(&mut self, webhook_id: Uuid, most: usize, url: &str, secret: &str) -> Result<Vec<Delivery>> {
        let now = self.now;
        let sql = "SELECT COUNT(*) AS under_way FROM deliveries \
                   WHERE webhook_id = $1 AND in_flight = TRUE AND run_at > $2";
        let under_way = self.one(sql, args![webhook_id, now]).await?.int("under_way")?;
        let most = (IN_FLIGHT_PER_ENDPOINT - under_way).min(i64::try_from(most).unwrap_or(i64::MAX)).max(0);
        let sql = "UPDATE deliveries SET in_flight = TRUE, lease = lease + 1, run_at = $2 WHERE id IN ( \
                       SELECT id FROM deliveries WHERE webhook_id = $1 AND status = 'pending' AND run_at <= $3 \
                       ORDER BY run_at, id LIMIT $4) \
                   RETURNING id, lease, attempt, event_id, (SELECT body FROM events WHERE id = event_id) AS body";
        let rows = self.all(sql, args![webhook_id, now + LEASE, now, most]).await?;
        let delivery = |row: &Row| {
            Ok(Delivery {
                id: row.id("id")?,
                lease: row.int("lease")?,
                attempt: row.number("attempt")?,
                webhook_id,
                url: url.into(),
                secret: secret.into(),
                event_id: row.id("event_id")?,
                body: row.bytes("body")?,
            })
        };
        Ok(rows.iter().map(delivery).collect::<DbResult<_>>()?)
    }

    /// Nothing can be signed for an endpoint until the operator has brought back the key that its
    /// secret was sealed with.
    async fn put_off(&mut self, webhook_id: Uuid) -> Result<()> {
        tracing::error!(%webhook_id, "a webhook's secret cannot be opened with the keys in secret_key_file");
        let until = self.now + LEASE;
        self.execute("UPDATE webhooks SET due_at = $2 WHERE id = $1", args![webhook_id, until]).await?;
        Ok(())
    }
}

/// What an endpoint's signatures are keyed with, as it was sealed for its row.
fn opened(secrets: &Secrets, webhook_id: Uuid, sealed: &[u8]) -> Option<String> {
    String::from_utf8(secrets.open_sealed(Purpose::Webhooks, webhook_id.as_bytes(), sealed)?).ok()
}
