//! Webhook endpoints, their tests and deliveries.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::Serialize;
use uuid::Uuid;

use super::call::Call;
use super::reply::{Accepted, Created, HandlerResult, List, Single};
use crate::gate::{Body, NoBody};
use crate::secret::Purpose;
use crate::service::webhooks::{CreateWebhook, DeleteWebhook, TestWebhook, UpdateWebhook};
use culvert_domain::error::Error;
use culvert_domain::event::{EventKind, TEST_EVENT};
use culvert_domain::input::{NewWebhook, WebhookPatch};
use culvert_domain::webhook::{Attempt, AttemptError, AttemptStatus, Webhook, WebhookStatus};
use culvert_store::facts::Resource;

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

pub async fn list(call: Call, (): ()) -> HandlerResult<List<WebhookResponse>> {
    let webhooks = call.api.service.store.webhooks(call.caller.scope.id, call.page()?).await?;
    call.listed(webhooks, WebhookResponse::from)
}

pub async fn create(call: Call, body: Body<NewWebhook>) -> HandlerResult<Created<NewWebhookResponse>> {
    let admitted = call.admit(Resource::Scope, body).await?;
    let id = call.api.service.clock().id();
    let secret = format!("whsec_{}", STANDARD.encode(call.api.service.clock().random::<32>()));
    let sealed = call.api.service.secrets.seal(Purpose::Webhooks, id.as_bytes(), secret.as_bytes());
    let change = |definition| CreateWebhook { id, definition, secret: sealed.clone() };
    call.commit(admitted, change, move |webhook| {
        Created(NewWebhookResponse { webhook: webhook.into(), secret: secret.clone() })
    })
    .await
}

pub async fn read(call: Call, (): ()) -> HandlerResult<Single<WebhookResponse>> {
    let webhook = call.api.service.store.webhook(call.caller.scope.id, call.id()?).await?;
    call.reply(Single(webhook.ok_or_else(Error::not_found)?.into()))
}

pub async fn update(call: Call, body: Body<WebhookPatch>) -> HandlerResult<Single<WebhookResponse>> {
    let webhook_id = call.id()?;
    let admitted = call.admit(Resource::Webhook(webhook_id), body).await?;
    call.commit(admitted, |change| UpdateWebhook { webhook_id, change }, |webhook| Single(webhook.into())).await
}

/// A webhook endpoint that is gone
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "DeletedWebhook")]
pub struct DeletedResponse {
    id: Uuid,
    /// Always true.
    #[schemars(extend("const" = true))]
    deleted: bool,
}

pub async fn delete(call: Call, body: Body<NoBody>) -> HandlerResult<Single<DeletedResponse>> {
    let webhook_id = call.id()?;
    let admitted = call.admit(Resource::Webhook(webhook_id), body).await?;
    call.commit(admitted, |()| DeleteWebhook { webhook_id }, |id| Single(DeletedResponse { id, deleted: true })).await
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

pub async fn test(call: Call, body: Body<NoBody>) -> HandlerResult<Accepted<TestEventResponse>> {
    let webhook_id = call.id()?;
    let admitted = call.admit(Resource::Webhook(webhook_id), body).await?;
    let answer = move |event_id| Accepted(TestEventResponse { event_id, webhook_id, r#type: TEST_EVENT });
    call.commit(admitted, |()| TestWebhook { webhook_id }, answer).await
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

pub async fn deliveries(call: Call, (): ()) -> HandlerResult<List<DeliveryResponse>> {
    let webhook = call.api.service.store.webhook(call.caller.scope.id, call.id()?).await?;
    let webhook = webhook.ok_or_else(Error::not_found)?;
    let attempts = call.api.service.store.attempts(webhook.id, call.page()?).await?;
    call.listed(attempts, DeliveryResponse::from)
}
