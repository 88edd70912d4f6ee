//! Webhook endpoints, their tests and deliveries.

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::Serialize;
use uuid::Uuid;

use culvert_domain::event::{EventKind, TEST_EVENT};
use culvert_domain::webhook::{Attempt, AttemptError, AttemptStatus, Webhook, WebhookStatus};

/// Webhook endpoint
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Webhook")]
pub struct WebhookResponse {
    id: Uuid,
    url: String,
    events: Vec<EventKind>,
    description: Option<String>,
    status: WebhookStatus,
    /// How the attempt that ended last came out.
    last_delivery: Option<LastDeliveryResponse>,
    created_at: DateTime<Utc>,
    updated_at: DateTime<Utc>,
}

/// An attempt that has ended.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "LastDelivery")]
pub struct LastDeliveryResponse {
    status: AttemptStatus,
    at: DateTime<Utc>,
}

/// Webhook endpoint with its secret, which is shown this once
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "NewWebhook")]
pub struct NewWebhookResponse {
    #[serde(flatten)]
    webhook: WebhookResponse,
    /// Signs deliveries: HMAC-SHA256, keyed with the UTF-8 bytes of it all. The API's own way, not Standard Webhooks'.
    secret: String,
}

impl From<Webhook> for WebhookResponse {
    fn from(webhook: Webhook) -> Self {
        let Webhook { id, url, events, description, status, last_delivery, created_at, updated_at, .. } = webhook;
        let last_delivery = last_delivery.map(|last| LastDeliveryResponse { status: last.status, at: last.at });
        Self { id, url, events, description, status, last_delivery, created_at, updated_at }
    }
}

/// A test event on its way
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "TestEvent")]
pub struct TestEventResponse {
    /// The delivery's `Service-Webhook-Id`.
    event_id: Uuid,
    webhook_id: Uuid,
    /// `webhook.test`
    r#type: &'static str,
}

/// Delivery attempt
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Delivery")]
pub struct DeliveryResponse {
    id: Uuid,
    /// The same for every attempt to send the event.
    event_id: Uuid,
    /// The event's kind, or `webhook.test`.
    event: String,
    /// 1 to 6.
    attempt: u32,
    status: AttemptStatus,
    /// Of the answer, if there was one.
    status_code: Option<u16>,
    error: Option<AttemptError>,
    duration_ms: Option<u64>,
    created_at: DateTime<Utc>,
    /// When the attempt was made; null while it is pending.
    attempted_at: Option<DateTime<Utc>>,
    /// When this attempt is due, or when the next one is.
    next_attempt_at: Option<DateTime<Utc>>,
}

impl From<Attempt> for DeliveryResponse {
    fn from(attempt: Attempt) -> Self {
        let Attempt {
            id,
            event_id,
            event,
            number,
            status,
            status_code,
            error,
            duration_ms,
            created_at,
            attempted_at,
            next_attempt_at,
        } = attempt;
        Self {
            id,
            event_id,
            event,
            attempt: number,
            status,
            status_code,
            error,
            duration_ms,
            created_at,
            attempted_at,
            next_attempt_at,
        }
    }
}

impl NewWebhookResponse {
    pub fn new(webhook: Webhook, secret: String) -> Self {
        Self { webhook: webhook.into(), secret }
    }
}

impl TestEventResponse {
    pub fn new(event_id: Uuid, webhook_id: Uuid) -> Self {
        Self { event_id, webhook_id, r#type: TEST_EVENT }
    }
}
