//! What the host mails to people: links, where a server for mail is configured.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use culvert_domain::account::{self, Account};
use culvert_domain::audit_log::{Actor, AuditAction, NewEntry};
use culvert_domain::error::{Chain, Code, Error, Fault, Result};
use culvert_domain::mail::SealedMail;
use culvert_wire::client_network::prefix;
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use uuid::Uuid;

use crate::Service;
use crate::failed_auth::FailedAuthLimiter;
use crate::links::{self, NewLink};
use crate::secrets::Purpose;
use crate::try_limiter::TryLimiter;

/// Mails of one kind to one address, those that one account has sent, and those of this host.
const TO_ONE: (u32, Duration) = (5, Duration::from_hours(1));
const BY_ONE: (u32, Duration) = (20, Duration::from_hours(1));
const OF_HOST: (u32, Duration) = (1000, Duration::from_hours(1));
/// Links for new accounts among them: strangers leave some for everybody else.
const SIGN_UPS: (u32, Duration) = (300, Duration::from_hours(1));
/// Links that are asked for from one address.
const ASKED: (u32, Duration) = (5, Duration::from_hours(1));
/// Addresses that are remembered.
const REMEMBERED: usize = 10_000;
/// Links that are being made for those who have asked. One more is not made.
const AT_ONCE: usize = 4;

/// Why a mail is sent. Each kind has a budget of its own for an address, so that none takes another's.
#[derive(Clone, Copy, Debug)]
pub enum LetterKind {
    Invitation,
    /// An operator has made a link.
    Link,
    /// Somebody has asked for a link.
    AskedLink,
    NewAddress,
    /// Somebody has asked for an account.
    SignUp,
}

/// A mail before it is sealed.
pub struct Letter {
    pub kind: LetterKind,
    /// The account by which it is sent.
    pub by: Option<Uuid>,
    pub to: String,
    pub subject: String,
    pub text: String,
    /// When what it says is over.
    pub expires_at: DateTime<Utc>,
}

/// How long the link for an account is good.
const SIGN_UP_LIFETIME: TimeDelta = TimeDelta::hours(24);

/// Subject and text, as they are sealed.
#[derive(Serialize, Deserialize)]
pub(crate) struct Content {
    pub subject: String,
    pub text: String,
}

/// Whether mail is sent, and how much.
pub struct Mails {
    are_sent: bool,
    /// What was sent, by what it is counted for.
    sent: TryLimiter<[u8; 32]>,
    asked: FailedAuthLimiter,
    at_once: Arc<Semaphore>,
}

impl Mails {
    pub fn new(are_sent: bool) -> Self {
        Self {
            are_sent,
            sent: TryLimiter::remembering(REMEMBERED),
            asked: FailedAuthLimiter::within(ASKED.0, ASKED.1),
            at_once: Arc::new(Semaphore::new(AT_ONCE)),
        }
    }

    /// Whether there is a server for mail.
    pub fn are_sent(&self) -> bool {
        self.are_sent
    }

    /// A mail that a transaction can have sent. None where no mail is sent, or too many are: to the address, by the account, or in
    /// all.
    pub fn seal(&self, service: &Service, letter: Letter) -> Option<SealedMail> {
        let takes = self.are_sent
            && letter.by.is_none_or(|by| self.takes(&format!("by {by}"), BY_ONE, service))
            && self.takes_to(letter.kind, &letter.to, service);
        if takes { self.sealed(service, letter) } else { None }
    }

    fn takes_to(&self, kind: LetterKind, to: &str, service: &Service) -> bool {
        self.takes(&format!("{kind:?} to {}", to.trim().to_lowercase()), TO_ONE, service)
    }

    fn takes(&self, what: &str, limit: (u32, Duration), service: &Service) -> bool {
        self.sent.take(links::hash(what), limit, service.clock().moment()).is_ok()
    }

    fn sealed(&self, service: &Service, letter: Letter) -> Option<SealedMail> {
        let Letter { to, subject, text, expires_at, .. } = letter;
        if !self.takes("all", OF_HOST, service) {
            tracing::warn!("more than {} mails in an hour: this one is not sent", OF_HOST.0);
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
        letter: impl FnOnce(&str, &NewLink) -> Letter + Send + 'static,
    ) -> Result<()> {
        // Counted whether there is such an account or not.
        let Some(turn) = self.turn(service, LetterKind::AskedLink, &email, client)? else { return Ok(()) };
        let (mails, service) = (self.clone(), service.clone());
        tokio::spawn(async move {
            let make = async {
                let email = email.trim();
                let is_possible = !email.contains(char::is_control);
                let known = if is_possible { service.store.account_by_email(email).await? } else { None };
                match known {
                    Some(account) => mails.make_link(&service, account, client, letter).await,
                    None => Ok(()),
                }
            };
            make.await.unwrap_or_else(|error| warn_not_made(&error));
            drop(turn);
        });
        Ok(())
    }

    /// Mails a link that makes an account to whoever has this address; where there is an account with it, one to that. The answer
    /// neither says nor shows which of them it is.
    ///
    /// # Errors
    ///
    /// `rate_limited` if too many were asked for from the client's address; `validation_failed` if it is no address.
    pub fn mail_sign_up(
        self: &Arc<Self>,
        service: &Arc<Service>,
        email: &str,
        client: Option<IpAddr>,
        to_known: impl FnOnce(&str, &NewLink) -> Letter + Send + 'static,
        to_new: impl FnOnce(&str, &NewLink) -> Letter + Send + 'static,
    ) -> Result<()> {
        let email = account::email(email).map_err(|problem| Error::invalid(vec![Fault::new("email", problem)]))?;
        let Some(turn) = self.turn(service, LetterKind::SignUp, &email, client)? else { return Ok(()) };
        let (mails, service) = (self.clone(), service.clone());
        tokio::spawn(async move {
            let make = async {
                match service.store.account_by_email(&email).await? {
                    Some(account) => mails.make_link(&service, account, client, to_known).await,
                    None => mails.make_sign_up(&service, email, to_new).await,
                }
            };
            make.await.unwrap_or_else(|error| warn_not_made(&error));
            drop(turn);
        });
        Ok(())
    }

    /// Counts a link that somebody asks for. None if none is made for them now.
    fn turn(
        &self,
        service: &Service,
        kind: LetterKind,
        email: &str,
        client: Option<IpAddr>,
    ) -> Result<Option<OwnedSemaphorePermit>> {
        if let Some(wait) = self.asked.count(client.map(prefix), service.clock().moment()) {
            return Err(Error::of(Code::RateLimited).after(wait));
        }
        let takes = self.takes_to(kind, email, service);
        Ok(if takes { self.at_once.clone().try_acquire_owned().ok() } else { None })
    }

    async fn make_sign_up(
        &self,
        service: &Service,
        email: String,
        letter: impl FnOnce(&str, &NewLink) -> Letter,
    ) -> Result<()> {
        if !self.takes("sign-ups", SIGN_UPS, service) {
            tracing::warn!("more than {} links for new accounts in an hour: this one is not sent", SIGN_UPS.0);
            return Ok(());
        }
        let link = NewLink::within(service.clock(), SIGN_UP_LIFETIME);
        let Some(mail) = self.sealed(service, letter(&email, &link)) else { return Ok(()) };
        let make = service.store.write(None, move |write| {
            Box::pin(async move {
                write.replace_sign_up(&links::hash(&link.secret), &email, link.expires_at).await?;
                write.insert_mail(&mail).await
            })
        });
        make.await
    }

    async fn make_link(
        &self,
        service: &Service,
        account: Account,
        client: Option<IpAddr>,
        letter: impl FnOnce(&str, &NewLink) -> Letter,
    ) -> Result<()> {
        let link = NewLink::of_account(service.clock());
        // To the address that the account has: what was typed may only look like it.
        let Some(mail) = self.sealed(service, letter(&account.email, &link)) else { return Ok(()) };
        let actor = Actor::visitor(client);
        let make = service.store.write(Some(account.id), move |write| {
            Box::pin(async move {
                if write.is_locked(account.id).await? {
                    return Ok(());
                }
                links::add(write, account.id, &link).await?;
                write.insert_mail(&mail).await?;
                write.audit(NewEntry::new(account.id, actor, AuditAction::AccountsLink));
                Ok(())
            })
        });
        make.await
    }
}

fn warn_not_made(error: &Error) {
    tracing::warn!(error = %Chain(error), "a link that was asked for could not be made");
}
