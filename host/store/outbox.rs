//! Outbox of webhook events. An event is written in the transaction that causes it. A delivery worker then
//! claims its deliveries and settles each of them with the outcome of the attempt.
//!
//! An event without a subscribed endpoint is not written. Deliveries of an endpoint are changed under the
//! row lock of that endpoint; a worker skips an endpoint that another transaction has locked.

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use super::arg::{StringArg, args};
use super::error::DbResult;
use super::read::Read;
use super::row::{Row, row};
use super::sql::{by_ids, sql};
use super::{Hint, Store, Write};
use culvert_domain::caller::ScopeKind;
use culvert_domain::error::Result;
use culvert_domain::event::EventKind;
use culvert_domain::webhook::{AttemptError, AttemptStatus, Delivery, Outcome, RETRIES};
use culvert_wire::tally::Tally;

/// Maximum number of concurrent delivery attempts to one endpoint, so that one that hangs delays no other.
pub const IN_FLIGHT_PER_ENDPOINT: i64 = 2;
/// The same limit while the last attempt to the endpoint timed out.
const IN_FLIGHT_PER_SLOW_ENDPOINT: i64 = 1;
/// Maximum number of concurrent delivery attempts for one scope: a quarter of a worker's limit, because a
/// scope can have up to 20 endpoints.
pub const IN_FLIGHT_PER_SCOPE: usize = 16;
/// Maximum number of deliveries that wait for one endpoint. Further ones are canceled when they are created.
pub const WAITING_PER_ENDPOINT: u32 = 10_000;
/// How long a worker's claim on a delivery lasts. An unsettled attempt is repeated after this time. An
/// attempt takes 15 seconds at most.
const DELIVERY_LEASE: TimeDelta = TimeDelta::seconds(60);
/// Maximum number of due endpoints that one claiming transaction looks at.
const ENDPOINTS_AT_ONCE: i64 = 64;

/// The endpoints to which an event is sent.
#[derive(Debug)]
pub struct Subscribers {
    pub scope_id: Uuid,
    pub scope: ScopeKind,
    webhook_ids: Vec<Uuid>,
}

/// An event to write.
#[derive(Clone, Copy, Debug)]
pub struct NewEvent<'e> {
    pub id: Uuid,
    pub kind: &'e str,
    pub body: &'e [u8],
}

/// An attempt that is to be made.
pub(super) struct Attempt {
    pub number: u32,
    pub resent: bool,
    pub at: DateTime<Utc>,
}

impl Write {
    /// The enabled endpoints that subscribe to a kind of event. `None` is the usual case: nothing is written.
    pub async fn subscribers(&mut self, scope_id: Uuid, kind: EventKind) -> Result<Option<Subscribers>> {
        let sql = sql!(
            "SELECT w.id, s.kind FROM webhooks w JOIN scopes s ON s.id = w.scope_id \
             WHERE w.scope_id = $1 AND w.status = 'enabled' AND ' ' || w.events || ' ' LIKE '% ' || $2 || ' %' \
             ORDER BY w.id"
        );
        let rows = self.all(sql, args![scope_id, StringArg(kind)]).await?;
        let Some(first) = rows.first() else { return Ok(None) };
        let scope = first.string_enum("kind")?;
        let webhook_ids = rows.iter().map(|row| row.id("id")).collect::<DbResult<_>>()?;
        Ok(Some(Subscribers { scope_id, scope, webhook_ids }))
    }

    /// One endpoint as the only subscriber.
    pub async fn only_subscriber(&mut self, scope_id: Uuid, webhook_id: Uuid) -> Result<Subscribers> {
        let row = self.one(sql!("SELECT kind FROM scopes WHERE id = $1"), args![scope_id]).await?;
        Ok(Subscribers { scope_id, scope: row.string_enum("kind")?, webhook_ids: vec![webhook_id] })
    }

    /// Writes an event with its deliveries.
    pub async fn insert_event(&mut self, subscribers: &Subscribers, event: NewEvent<'_>) -> Result<()> {
        let NewEvent { id, kind, body } = event;
        let now = self.now;
        let sql = sql!("INSERT INTO events (id, scope_id, kind, body, created_at) VALUES ($1, $2, $3, $4, $5)");
        self.execute(sql, args![id, subscribers.scope_id, kind, body, now]).await?;
        for webhook_id in &subscribers.webhook_ids {
            if !self.make_room(*webhook_id).await? {
                self.cancel_at_once(*webhook_id, id).await?;
                continue;
            }
            self.schedule(*webhook_id, id, Attempt { number: 1, resent: false, at: now }).await?;
            self.make_due(*webhook_id).await?;
        }
        self.notify(Hint::Deliveries);
        Ok(())
    }

    /// Has a worker look at an endpoint now, unless as many of its deliveries are under way as may be.
    pub(super) async fn make_due(&mut self, webhook_id: Uuid) -> Result<()> {
        let now = self.now;
        let sql = sql!(
            "UPDATE webhooks SET due_at = $2 WHERE id = $1 AND (due_at IS NULL OR due_at > $2) \
             AND (SELECT COUNT(*) FROM deliveries WHERE webhook_id = $1 AND in_flight = TRUE) \
                 < CASE WHEN timeouts > 0 THEN CAST($4 AS BIGINT) ELSE CAST($3 AS BIGINT) END"
        );
        self.execute(sql, args![webhook_id, now, IN_FLIGHT_PER_ENDPOINT, IN_FLIGHT_PER_SLOW_ENDPOINT]).await?;
        Ok(())
    }

    /// Counts one more waiting delivery of an endpoint. Returns false, and counts nothing, at the limit.
    pub(super) async fn make_room(&mut self, webhook_id: Uuid) -> Result<bool> {
        let sql = sql!("UPDATE webhooks SET waiting = waiting + 1 WHERE id = $1 AND waiting < $2");
        Ok(self.execute(sql, args![webhook_id, WAITING_PER_ENDPOINT]).await? == 1)
    }

    /// Stores a delivery as canceled because too many are waiting, so that the list of attempts shows it.
    async fn cancel_at_once(&mut self, webhook_id: Uuid, event_id: Uuid) -> Result<()> {
        let (id, now) = (self.clock.id(), self.now);
        let sql = sql!(
            "INSERT INTO deliveries (id, webhook_id, event_id, attempt, status, run_at, in_flight, lease, error, \
                 created_at, finished_at) \
             VALUES ($1, $2, $3, 1, 'canceled', $4, FALSE, 0, $5, $4, $4)"
        );
        self.execute(sql, args![id, webhook_id, event_id, now, StringArg(AttemptError::TooManyWaiting)]).await?;
        Ok(())
    }

    pub(super) async fn schedule(&mut self, webhook_id: Uuid, event_id: Uuid, attempt: Attempt) -> Result<()> {
        let (id, now, Attempt { number, resent, at }) = (self.clock.id(), self.now, attempt);
        let sql = sql!(
            "INSERT INTO deliveries (id, webhook_id, event_id, attempt, resent, status, run_at, in_flight, lease, \
                 next_attempt_at, created_at) \
             VALUES ($1, $2, $3, $4, $5, 'pending', $6, FALSE, 0, $6, $7)"
        );
        self.execute(sql, args![id, webhook_id, event_id, number, resent, at, now]).await?;
        Ok(())
    }

    /// Cancels all waiting deliveries of an endpoint.
    pub async fn cancel_deliveries(&mut self, webhook_id: Uuid) -> Result<()> {
        let now = self.now;
        let sql = sql!(
            "UPDATE deliveries SET status = 'canceled', in_flight = FALSE, next_attempt_at = NULL, finished_at = $2 \
             WHERE webhook_id = $1 AND status = 'pending'"
        );
        self.execute(sql, args![webhook_id, now]).await?;
        // Failed attempts are not retried either.
        let sql = sql!("UPDATE deliveries SET next_attempt_at = NULL WHERE webhook_id = $1 AND next_attempt_at > $2");
        self.execute(sql, args![webhook_id, now]).await?;
        self.execute(sql!("UPDATE webhooks SET due_at = NULL, waiting = 0 WHERE id = $1"), args![webhook_id]).await?;
        Ok(())
    }

    /// Sets the time at which a worker next looks at an endpoint.
    ///
    /// That is when the next pending delivery is due. While the limit of concurrent attempts is reached, it
    /// is when the first of their claims expires. For a backlog it is the current time, not the time since
    /// which the backlog is due, so that endpoints that were due earlier come first.
    async fn set_due(&mut self, webhook_id: Uuid) -> Result<()> {
        let now = self.now;
        let sql = sql!(
            "UPDATE webhooks SET due_at = CASE \
                 WHEN (SELECT COUNT(*) FROM deliveries WHERE webhook_id = $1 AND in_flight = TRUE AND run_at > $2) \
                     >= CASE WHEN timeouts > 0 THEN CAST($4 AS BIGINT) ELSE CAST($3 AS BIGINT) END \
                 THEN (SELECT MIN(run_at) FROM deliveries WHERE webhook_id = $1 AND in_flight = TRUE) \
                 ELSE (SELECT CASE WHEN MIN(run_at) < $2 THEN $2 ELSE MIN(run_at) END \
                       FROM deliveries WHERE webhook_id = $1 AND status = 'pending') END \
             WHERE id = $1"
        );
        self.execute(sql, args![webhook_id, now, IN_FLIGHT_PER_ENDPOINT, IN_FLIGHT_PER_SLOW_ENDPOINT]).await?;
        Ok(())
    }

    /// Records the outcome of an attempt and schedules the retry, if there is one. Does nothing if the
    /// worker's claim has expired and the delivery was claimed again, or if the delivery was canceled.
    async fn settle(&mut self, delivery: &Delivery, outcome: Outcome) -> Result<()> {
        let now = self.now;
        self.lock(sql!("SELECT id FROM webhooks WHERE id = $1", locked: " FOR UPDATE"), args![delivery.webhook_id])
            .await?;
        let status = if outcome.error.is_none() { AttemptStatus::Succeeded } else { AttemptStatus::Failed };
        let has_failed = status == AttemptStatus::Failed;
        let wait = RETRIES.get(delivery.attempt as usize - 1).filter(|_| has_failed && !delivery.resent);
        // With jitter, so that attempts that failed together are not retried together.
        let next = wait.map(|wait| now + self.clock.about(*wait));
        let sql = sql!(
            "UPDATE deliveries SET status = $3, in_flight = FALSE, status_code = $4, error = $5, duration_ms = $6, \
                 next_attempt_at = $7, finished_at = $8, attempted_at = $9 \
             WHERE id = $1 AND lease = $2 AND status = 'pending'"
        );
        let duration = u64::try_from(outcome.duration.as_millis()).unwrap_or(u64::MAX);
        let error = outcome.error.map(culvert_domain::string_enum::StringEnum::as_str);
        let code = outcome.status_code.map(u32::from);
        let attempted_at = now - TimeDelta::from_std(outcome.duration).unwrap_or_default();
        let args =
            args![delivery.id, delivery.lease, StringArg(status), code, error, duration, next, now, attempted_at];
        if self.execute(sql, args).await? == 0 {
            return Ok(());
        }
        self.notify(Hint::Scope(delivery.scope_id));
        // A retry keeps the place of the ended attempt in the count of waiting deliveries.
        let sql = sql!(
            "UPDATE webhooks SET last_status = $2, last_at = $3, \
                 timeouts = CASE WHEN $4 = TRUE THEN timeouts % 1000 + 1 ELSE 0 END, \
                 waiting = CASE WHEN $5 = TRUE OR waiting = 0 THEN waiting ELSE waiting - 1 END \
             WHERE id = $1"
        );
        let timed_out = outcome.error == Some(AttemptError::Timeout);
        self.execute(sql, args![delivery.webhook_id, StringArg(status), now, timed_out, next.is_some()]).await?;
        if let Some(next) = next {
            let attempt = Attempt { number: delivery.attempt + 1, resent: false, at: next };
            self.schedule(delivery.webhook_id, delivery.event_id, attempt).await?;
        }
        if delivery.resent && !has_failed {
            self.cancel_retries(delivery.webhook_id, delivery.event_id).await?;
        }
        self.set_due(delivery.webhook_id).await?;
        self.notify(Hint::Deliveries);
        Ok(())
    }
}

/// Endpoints that have a delivery to be sent.
macro_rules! due_webhooks {
    ($now:literal) => {
        concat!("FROM webhooks WHERE due_at IS NOT NULL AND due_at <= ", $now)
    };
}
pub(crate) use due_webhooks;

impl Store {
    /// When the next delivery is due, except for scopes that have reached their limit of concurrent attempts.
    pub async fn next_delivery(&self, under_way: &UnderWay) -> Result<Option<DateTime<Utc>>> {
        let sql = by_ids!(
            "SELECT due_at FROM webhooks WHERE due_at IS NOT NULL AND NOT scope_id",
            "$1",
            "ORDER BY due_at LIMIT 1"
        );
        let rows = (&self.db).all(sql, args![&under_way.full()[..]]).await?;
        Ok(rows.first().map(|row| row.time("due_at")).transpose()?)
    }

    /// Claims at most `most` due deliveries, in addition to those in flight. A claimed delivery that is never
    /// settled becomes due again. `open` decrypts the secret of an endpoint; `None` if it cannot.
    pub async fn claim_deliveries(
        &self,
        most: usize,
        under_way: UnderWay,
        open: impl Fn(Uuid, &[u8]) -> Option<String> + Send + Sync + 'static,
    ) -> Result<Vec<Delivery>> {
        self.write(None, move |write| Box::pin(async move { write.claim_deliveries(&open, most, under_way).await }))
            .await
    }

    pub async fn settle_delivery(&self, delivery: Delivery, outcome: Outcome) -> Result<()> {
        self.write(None, move |write| Box::pin(async move { write.settle(&delivery, outcome).await })).await
    }
}

impl Write {
    async fn claim_deliveries(
        &mut self,
        open: &(impl Fn(Uuid, &[u8]) -> Option<String> + Send + Sync),
        most: usize,
        mut under_way: UnderWay,
    ) -> Result<Vec<Delivery>> {
        let now = self.now;
        let due = by_ids!(
            "SELECT id, scope_id, url, secret, timeouts FROM webhooks \
             WHERE due_at IS NOT NULL AND due_at <= $2 AND NOT scope_id",
            "$1",
            "ORDER BY due_at LIMIT $3",
            locked: " FOR UPDATE SKIP LOCKED"
        );
        let mut claimed = Vec::new();
        for endpoint in self.all(due, args![&under_way.full()[..], now, ENDPOINTS_AT_ONCE]).await? {
            let endpoint = Endpoint::of(&endpoint, open)?;
            let left = (most - claimed.len()).min(under_way.left(endpoint.scope_id));
            if most == claimed.len() {
                break;
            }
            if endpoint.secret.is_none() {
                self.put_off(endpoint.webhook_id).await?;
            } else if left > 0 {
                let taken_up = self.take_up(&endpoint, left).await?;
                under_way.add(endpoint.scope_id, taken_up.len());
                claimed.extend(taken_up);
                self.set_due(endpoint.webhook_id).await?;
            }
        }
        Ok(claimed)
    }

    /// Claims the due deliveries of one endpoint, up to its limit of concurrent attempts.
    async fn take_up(&mut self, endpoint: &Endpoint, most: usize) -> Result<Vec<Delivery>> {
        let (now, webhook_id) = (self.now, endpoint.webhook_id);
        let sql = sql!(
            "SELECT COUNT(*) AS under_way FROM deliveries \
             WHERE webhook_id = $1 AND in_flight = TRUE AND run_at > $2"
        );
        let under_way = self.one(sql, args![webhook_id, now]).await?.int("under_way")?;
        let places = if endpoint.timeouts > 0 { IN_FLIGHT_PER_SLOW_ENDPOINT } else { IN_FLIGHT_PER_ENDPOINT };
        let most = (places - under_way).min(i64::try_from(most).unwrap_or(i64::MAX)).max(0);
        let sql = sql!(
            "UPDATE deliveries SET in_flight = TRUE, lease = lease + 1, run_at = $2 WHERE id IN ( \
                 SELECT id FROM deliveries WHERE webhook_id = $1 AND status = 'pending' AND run_at <= $3 \
                 ORDER BY run_at, id LIMIT $4) \
             RETURNING id, lease, attempt, resent, event_id, (SELECT body FROM events WHERE id = event_id) AS body"
        );
        let rows = self.all(sql, args![webhook_id, now + DELIVERY_LEASE, now, most]).await?;
        let delivery = |row: &Row| {
            Ok(row!(row => Delivery {
                id: id, lease: int, attempt: number, resent: flag, event_id: id, body: bytes;
                webhook_id,
                scope_id: endpoint.scope_id,
                url: endpoint.url.clone(),
                // Only every other attempt gets the shorter timeout, so that a slow endpoint can
                // still answer in time.
                has_less_time: endpoint.timeouts % 2 == 1,
                secret: endpoint.secret.clone().unwrap_or_default(),
            }))
        };
        Ok(rows.iter().map(delivery).collect::<DbResult<_>>()?)
    }

    /// Postpones the deliveries of an endpoint whose secret cannot be decrypted. They cannot be signed until
    /// the operator restores the key with which the secret was sealed.
    async fn put_off(&mut self, webhook_id: Uuid) -> Result<()> {
        tracing::error!(%webhook_id, "a webhook's secret cannot be opened with the keys in secret_key_file");
        let until = self.now + DELIVERY_LEASE;
        self.execute(sql!("UPDATE webhooks SET due_at = $2 WHERE id = $1"), args![webhook_id, until]).await?;
        Ok(())
    }
}

/// An endpoint with due deliveries.
struct Endpoint {
    webhook_id: Uuid,
    scope_id: Uuid,
    url: String,
    /// How many consecutive attempts timed out.
    timeouts: i64,
    /// `None` if the secret cannot be decrypted.
    secret: Option<String>,
}

impl Endpoint {
    fn of(row: &Row, open: impl Fn(Uuid, &[u8]) -> Option<String>) -> DbResult<Self> {
        let webhook_id = row.id("id")?;
        Ok(row!(row => Self {
            scope_id: id, url: text, timeouts: int;
            webhook_id,
            secret: open(webhook_id, &row.bytes("secret")?),
        }))
    }
}

/// How many deliveries are in flight, by scope.
#[derive(Clone, Debug, Default)]
pub struct UnderWay(Tally<Uuid>);

impl UnderWay {
    pub fn add(&mut self, scope_id: Uuid, deliveries: usize) {
        self.0.add(scope_id, deliveries);
    }

    pub fn end_one(&mut self, scope_id: Uuid) {
        self.0.end_one(&scope_id);
    }

    fn left(&self, scope_id: Uuid) -> usize {
        IN_FLIGHT_PER_SCOPE.saturating_sub(self.0.of(&scope_id))
    }

    /// The scopes that have reached their limit.
    fn full(&self) -> Vec<Uuid> {
        self.0.keys().filter(|scope_id| self.left(**scope_id) == 0).copied().collect()
    }
}
