//! What webhook endpoints were sent, event by event.

use culvert_domain::audit_log::{AuditAction, NewEntry};
use culvert_domain::caller::Caller;
use culvert_domain::error::{Error, Result};
use culvert_domain::webhook::{Attempt, Webhook};
use uuid::Uuid;

use crate::Service;
use crate::gate::PinnedPolicies;
use crate::secrets::Purpose;
use crate::signature_check::{Finding, Given, Sent, check};

impl Service {
    /// The attempts to send an event to a webhook endpoint, the newest first.
    ///
    /// # Errors
    ///
    /// `not_found` if the endpoint was not sent it in the last 30 days; if the database fails.
    pub async fn attempts_of_event(&self, webhook: &Webhook, event_id: Uuid) -> Result<Vec<Attempt>> {
        let attempts = self.store.attempts_of_event(webhook.id, event_id).await?;
        if attempts.is_empty() { Err(Error::not_found()) } else { Ok(attempts) }
    }

    /// The body that an endpoint was sent. That it was read has an entry in the audit log.
    ///
    /// # Errors
    ///
    /// `not_found` if the endpoint was not sent it in the last 30 days; if the database fails.
    pub async fn read_payload(
        &self,
        policies: &PinnedPolicies,
        caller: &Caller,
        webhook_id: Uuid,
        event_id: Uuid,
    ) -> Result<String> {
        let webhook = self.webhook(caller, webhook_id).await?;
        let payload = self.store.payload(webhook.id, event_id).await?.ok_or_else(Error::not_found)?;
        let entry =
            NewEntry::new(caller.scope.id, policies.actor(caller), AuditAction::WebhooksReadDelivery).about(event_id);
        self.store.audit(entry).await?;
        Ok(String::from_utf8_lossy(&payload).into_owned())
    }

    /// Compares the parts of a delivery that a receiver has with what was sent. Nothing is stored.
    ///
    /// # Errors
    ///
    /// `not_found` if the endpoint was not sent the event in the last 30 days; if the database fails.
    pub async fn check_signature(&self, webhook: &Webhook, event_id: Uuid, given: &Given) -> Result<Vec<Finding>> {
        let body = self.store.payload(webhook.id, event_id).await?.ok_or_else(Error::not_found)?;
        let sealed = self.store.webhook_secret(webhook.id).await?.ok_or_else(Error::not_found)?;
        let opened = self.secrets.open_sealed(Purpose::Webhooks, webhook.id.as_bytes(), &sealed);
        let secret = opened.and_then(|secret| String::from_utf8(secret).ok());
        let secret = secret.ok_or_else(|| Error::internal("the secret of an endpoint cannot be opened"))?;
        Ok(check(given, &Sent { secret, event_id, body }, self.clock().now()))
    }
}
