//! Webhook endpoints: reading, creating, changing, testing and deleting them.

use std::ops::RangeInclusive;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chrono::TimeDelta;
use culvert_api_types::requests::Input;
use culvert_domain::caller::Caller;
use culvert_domain::error::{Code, Error, Fault, Result};
use culvert_domain::facts::ResourceFacts;
use culvert_domain::page::{Page, PageRows};
use culvert_domain::plan::Entitlement;
use culvert_domain::webhook::{self, Attempt, Webhook, WebhookStatus};
use culvert_store::Write;
use culvert_store::resend::Resend;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::Service;
use crate::commit::Change;
use crate::events;
use crate::gate::{Permit, RequestDraft, WebhookChange, WebhookDefinition};
use crate::secrets::Purpose;

/// Events that are sent once more by one request.
const RESENT_AT_ONCE: u32 = 200;
/// Hours back, as deliveries are kept for 30 days.
const HOURS: RangeInclusive<i64> = 1..=720;

/// The secret of a new endpoint.
#[derive(Clone)]
pub struct NewSecret {
    pub webhook_id: Uuid,
    /// What the client is shown, once.
    pub secret: String,
    /// What is stored: it opens for the endpoint's row alone.
    pub sealed: Vec<u8>,
}

impl Service {
    /// A page of the webhook endpoints of the caller's scope.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn webhooks(&self, caller: &Caller, page: Page) -> Result<PageRows<Webhook>> {
        self.store.webhooks(caller.scope.id, page).await
    }

    /// A webhook endpoint of the caller's scope.
    ///
    /// # Errors
    ///
    /// [`Code::NotFound`] if the scope has no such webhook endpoint; if the database fails.
    pub async fn webhook(&self, caller: &Caller, webhook_id: Uuid) -> Result<Webhook> {
        self.store.webhook(caller.scope.id, webhook_id).await?.ok_or_else(Error::not_found)
    }

    /// A page of the delivery attempts of a webhook endpoint.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn attempts_of(&self, webhook: &Webhook, page: Page) -> Result<PageRows<Attempt>> {
        self.store.attempts(webhook.id, page).await
    }

    pub fn new_webhook_secret(&self) -> NewSecret {
        let webhook_id = self.clock().id();
        let secret = format!("whsec_{}", STANDARD.encode(self.clock().random::<32>()));
        let sealed = self.secrets.seal(Purpose::Webhooks, webhook_id.as_bytes(), secret.as_bytes());
        NewSecret { webhook_id, secret, sealed }
    }
}

pub struct CreateWebhook {
    pub id: Uuid,
    pub definition: WebhookDefinition,
    /// The secret that signs deliveries, sealed for the endpoint's row.
    pub secret: Vec<u8>,
}

impl Change for CreateWebhook {
    type Done = Webhook;

    async fn apply(&self, write: &mut Write, permit: &Permit) -> Result<Webhook> {
        // The permit's count is current: `commit` has compared it under the scope's row lock.
        webhook::check_room(permit.facts().counters.webhook_endpoints)?;
        let WebhookDefinition { url, events, description } = self.definition.clone();
        let webhook = Webhook {
            id: self.id,
            scope_id: permit.caller().scope.id,
            url,
            events,
            description,
            status: WebhookStatus::Enabled,
            last_delivery: None,
            created_at: write.now,
            updated_at: write.now,
        };
        write.insert_webhook(&webhook, &self.secret).await?;
        Ok(webhook)
    }

    fn subject(&self, done: &Webhook) -> Option<Uuid> {
        Some(done.id)
    }
}

pub struct UpdateWebhook {
    pub webhook_id: Uuid,
    pub change: WebhookChange,
}

impl Change for UpdateWebhook {
    type Done = Webhook;

    async fn apply(&self, write: &mut Write, permit: &Permit) -> Result<Webhook> {
        let scope_id = permit.caller().scope.id;
        let mut webhook = write.webhook(scope_id, self.webhook_id).await?.ok_or_else(Error::not_found)?;
        let WebhookChange { url, events, description, status } = self.change.clone();
        url.into_iter().for_each(|url| webhook.url = url);
        events.into_iter().for_each(|events| webhook.events = events);
        description.into_iter().for_each(|description| webhook.description = description);
        status.into_iter().for_each(|status| webhook.status = status);
        write.update_webhook(&webhook).await?;
        if webhook.status == WebhookStatus::Disabled {
            write.cancel_deliveries(webhook.id).await?;
        }
        write.webhook(scope_id, webhook.id).await?.ok_or_else(Error::not_found)
    }
}

pub struct DeleteWebhook {
    pub webhook_id: Uuid,
}

impl Change for DeleteWebhook {
    type Done = Uuid;

    async fn apply(&self, write: &mut Write, permit: &Permit) -> Result<Uuid> {
        let webhook = write.webhook(permit.caller().scope.id, self.webhook_id).await?;
        let webhook = webhook.ok_or_else(Error::not_found)?;
        write.delete_webhook(webhook.id).await?;
        Ok(webhook.id)
    }
}

pub struct TestWebhook {
    pub webhook_id: Uuid,
}

impl Change for TestWebhook {
    /// The id of the test event.
    type Done = Uuid;

    async fn apply(&self, write: &mut Write, permit: &Permit) -> Result<Uuid> {
        let webhook = enabled(write, permit, self.webhook_id).await?;
        events::webhook_test(write, webhook.scope_id, webhook.id).await
    }
}

/// Sends an event to its endpoint once more.
pub struct ResendDelivery {
    pub webhook_id: Uuid,
    pub event_id: Uuid,
}

impl Change for ResendDelivery {
    type Done = ();

    async fn apply(&self, write: &mut Write, permit: &Permit) -> Result<()> {
        enabled(write, permit, self.webhook_id).await?;
        match write.resend(self.webhook_id, self.event_id).await? {
            Resend::Scheduled => Ok(()),
            Resend::Unknown => Err(Error::not_found()),
            Resend::UnderWay => Err(Error::of(Code::DeliveryInFlight)),
            Resend::NoRoom => {
                Err(Error::new(Code::LimitReached, "Too much waits for the endpoint, or the event was sent too often."))
            }
        }
    }

    fn details(&self, (): &()) -> Value {
        json!({"event_id": self.event_id})
    }
}

/// Sends the events once more that an endpoint did not take since a time, at most 200.
pub struct ResendFailed {
    pub webhook_id: Uuid,
    pub hours: i64,
}

impl Change for ResendFailed {
    /// How many are sent.
    type Done = u32;

    async fn apply(&self, write: &mut Write, permit: &Permit) -> Result<u32> {
        enabled(write, permit, self.webhook_id).await?;
        if write.is_resending(self.webhook_id).await? {
            return Err(Error::new(
                Code::DeliveryInFlight,
                "What was asked for before is being sent. Wait until that is done.",
            ));
        }
        let since = write.now - TimeDelta::hours(self.hours);
        let mut resent = 0;
        for event_id in write.failed_events(self.webhook_id, since, RESENT_AT_ONCE).await? {
            match write.resend(self.webhook_id, event_id).await? {
                Resend::Scheduled => resent += 1,
                Resend::Unknown | Resend::UnderWay => {}
                Resend::NoRoom => break,
            }
        }
        Ok(resent)
    }

    fn details(&self, resent: &u32) -> Value {
        json!({"hours": self.hours, "events": resent})
    }
}

/// For how many hours back an endpoint is to be sent again what it did not take, as typed.
#[derive(Clone, Debug)]
pub struct WantedHours(pub String);

impl RequestDraft for WantedHours {
    type Valid = i64;

    fn input(&self) -> Option<Input<'_>> {
        None
    }

    fn validate(self, _: &ResourceFacts, _: &Entitlement) -> Result<i64, Vec<Fault>> {
        let hours = self.0.trim().parse().ok().filter(|hours| HOURS.contains(hours));
        let allowed = || format!("must be a number from {} to {}", HOURS.start(), HOURS.end());
        hours.ok_or_else(|| vec![Fault::new("hours", allowed())])
    }
}

async fn enabled(write: &mut Write, permit: &Permit, webhook_id: Uuid) -> Result<Webhook> {
    let webhook = write.webhook(permit.caller().scope.id, webhook_id).await?.ok_or_else(Error::not_found)?;
    if webhook.status == WebhookStatus::Disabled { Err(Error::of(Code::WebhookDisabled)) } else { Ok(webhook) }
}
