//! What the host mails to people: links, where a server for mail is configured.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use culvert_domain::audit_log::{Actor, AuditAction, NewEntry, Origin};
use culvert_domain::error::{Chain, Code, Error, Result};
use culvert_domain::mail::SealedMail;
use culvert_wire::client_network::prefix;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use crate::Service;
use crate::failed_auth::FailedAuthLimiter;
use crate::links::{self, NewLink};
use crate::secrets::Purpose;
use crate::try_limiter::TryLimiter;

/// Mails to one address.
const TO_ONE: (u32, Duration) = (5, Duration::from_hours(1));
/// Links that are asked for from one address.
const ASKED: (u32, Duration) = (5, Duration::from_hours(1));
/// Addresses that are remembered.
const REMEMBERED: usize = 10_000;
/// Links that are being made for those who have asked. One more is not made.
const AT_ONCE: usize = 4;

/// A mail before it is sealed.
pub struct Letter {
    pub to: String,
    pub subject: String,
    pub text: String,
    /// When what it says is over.
    pub expires_at: DateTime<Utc>,
}

/// Subject and text, as they are sealed.
#[derive(Serialize, Deserialize)]
pub(crate) struct Content {
    pub subject: String,
    pub text: String,
}

/// Whether mail is sent, and how much.
pub struct Mails {
    are_sent: bool,
    to: TryLimiter<[u8; 32]>,
    asked: FailedAuthLimiter,
    at_once: Arc<Semaphore>,
}

impl Mails {
    pub fn new(are_sent: bool) -> Self {
        Self {
            are_sent,
            to: TryLimiter::remembering(REMEMBERED),
            asked: FailedAuthLimiter::within(ASKED.0, ASKED.1),
            at_once: Arc::new(Semaphore::new(AT_ONCE)),
        }
    }

    /// Whether there is a server for mail.
    pub fn are_sent(&self) -> bool {
        self.are_sent
    }

    /// A mail that a transaction can have sent. None where no mail is sent, or too much was sent to the address.
    pub fn seal(&self, service: &Service, letter: Letter) -> Option<SealedMail> {
        let Letter { to, subject, text, expires_at } = letter;
        let address = links::hash(&to.trim().to_lowercase());
        if !self.are_sent || self.to.take(address, TO_ONE, service.clock().moment()).is_err() {
            return None;
        }
        let id = service.clock().id();
        let content = serde_json::to_vec(&Content { subject, text }).ok()?;
        let content = service.secrets.seal(Purpose::Mails, id.as_bytes(), &content);
        Some(SealedMail { id, recipient: to.trim().to_owned(), content, expires_at })
    }

    /// Mails a link to whoever has an account with this address. The answer neither says nor shows whether there is one: the
    /// link is made beside it.
    ///
    /// # Errors
    ///
    /// `rate_limited` if too many were asked for from the client's address.
    pub fn mail_link(
        self: &Arc<Self>,
        service: &Arc<Service>,
        email: String,
        client: Option<IpAddr>,
        letter: impl FnOnce(&NewLink) -> Letter + Send + 'static,
    ) -> Result<()> {
        if let Some(wait) = self.asked.count(client.map(prefix), service.clock().moment()) {
            return Err(Error::of(Code::RateLimited).after(wait));
        }
        let Ok(turn) = self.at_once.clone().try_acquire_owned() else { return Ok(()) };
        let (mails, service) = (self.clone(), service.clone());
        tokio::spawn(async move {
            if let Err(error) = mails.make_link(&service, &email, client, letter).await {
                tracing::warn!(error = %Chain(&error), "a link that was asked for could not be made");
            }
            drop(turn);
        });
        Ok(())
    }

    async fn make_link(
        &self,
        service: &Service,
        email: &str,
        client: Option<IpAddr>,
        letter: impl FnOnce(&NewLink) -> Letter,
    ) -> Result<()> {
        let email = email.trim();
        let known = if email.contains(char::is_control) { None } else { service.store.account_by_email(email).await? };
        let Some(account) = known else { return Ok(()) };
        let link = NewLink::of_account(service.clock());
        let Some(mail) = self.seal(service, letter(&link)) else { return Ok(()) };
        let actor = Actor { account_id: None, ..Actor::account(Origin::Dashboard, account.id, client) };
        let make = service.store.write(Some(account.id), move |write| {
            Box::pin(async move {
                links::add(write, account.id, &link).await?;
                write.insert_mail(&mail).await?;
                write.audit(NewEntry::new(account.id, actor, AuditAction::AccountsLink));
                Ok(())
            })
        });
        make.await
    }
}
