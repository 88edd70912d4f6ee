//! The name and the e-mail address of somebody's own account.

use chrono::TimeDelta;
use culvert_domain::account;
use culvert_domain::audit_log::{Actor, AuditAction, NewEntry};
use culvert_domain::error::{Code, Error, Fault, Result};
use culvert_domain::mail::SealedMail;
use culvert_domain::sign_in::SignIn;
use serde_json::json;

use super::{Client, SignIns};
use crate::Service;
use crate::links::{self, NewLink};
use crate::mails::{Letter, Mails};

/// How long the link to a new address is good.
const LINK_LIFETIME: TimeDelta = TimeDelta::hours(24);

/// What somebody wants to be called and reached by, as typed.
pub struct WantedProfile {
    pub name: String,
    pub email: String,
}

/// What becomes of a new address.
enum NewEmail {
    /// It is the one that the account has.
    Same,
    AtOnce(String),
    /// A link to it is mailed; where somebody else has it, nothing is.
    ByLink(String, Option<(NewLink, SealedMail)>),
}

impl SignIns {
    /// Changes name and e-mail address of whoever is signed in. Where mail is sent, the address is changed by a link to it, which
    /// shows that it is theirs. Returns whether that is so. Where a provider's word for an address finds an account, it is changed in no
    /// other way.
    ///
    /// # Errors
    ///
    /// `validation_failed` with what is wrong; `rate_limited` if too much was mailed to the address; if the database fails.
    pub async fn change_profile(
        &self,
        service: &Service,
        mails: &Mails,
        sign_in: &SignIn,
        wanted: &WantedProfile,
        letter: impl FnOnce(&str, &NewLink) -> Letter,
    ) -> Result<bool> {
        let name = account::name(&wanted.name).map_err(|problem| Fault::new("display_name", problem));
        let email = account::email(&wanted.email).map_err(|problem| Fault::new("email", problem));
        let (name, email) = match (name, email) {
            (Ok(name), Ok(email)) => (name, email),
            (name, email) => return Err(Error::invalid([name.err(), email.err()].into_iter().flatten().collect())),
        };
        let email = self.new_email(service, mails, sign_in, email, letter).await?;
        let is_by_link = matches!(email, NewEmail::ByLink(..));
        let (account_id, actor) = (sign_in.account_id, Actor::signed_in(sign_in));
        let change = service.store.write(Some(account_id), move |write| {
            Box::pin(async move {
                write.rename_scope(account_id, &name).await?;
                let details = match &email {
                    NewEmail::Same => json!({"name": name}),
                    NewEmail::AtOnce(email) => json!({"name": name, "email": email}),
                    NewEmail::ByLink(email, _) => json!({"name": name, "email": email, "by": "link"}),
                };
                match email {
                    NewEmail::AtOnce(email) if !write.set_email(account_id, &email, false).await? => {
                        return Err(has_account());
                    }
                    NewEmail::ByLink(email, Some((link, mail))) => {
                        let hash = links::hash(&link.secret);
                        write.replace_email_change(&hash, account_id, &email, link.expires_at).await?;
                        write.insert_mail(&mail).await?;
                    }
                    _ => {}
                }
                write.audit(NewEntry::new(account_id, actor, AuditAction::AccountUpdate).with(&details));
                Ok(())
            })
        });
        change.await?;
        self.read_again(account_id);
        Ok(is_by_link)
    }

    async fn new_email(
        &self,
        service: &Service,
        mails: &Mails,
        sign_in: &SignIn,
        email: String,
        letter: impl FnOnce(&str, &NewLink) -> Letter,
    ) -> Result<NewEmail> {
        if email == sign_in.email {
            return Ok(NewEmail::Same);
        }
        if !mails.are_sent() {
            return Ok(NewEmail::AtOnce(email));
        }
        // That somebody else has it is not told.
        if service.store.account_by_email(&email).await?.is_some() {
            return Ok(NewEmail::ByLink(email, None));
        }
        let link = NewLink::within(&self.clock, LINK_LIFETIME);
        let mail = mails.seal(service, letter(&email, &link)).ok_or_else(|| Error::of(Code::RateLimited))?;
        Ok(NewEmail::ByLink(email, Some((link, mail))))
    }

    /// Gives an account the address that a link is for. None if the link is for something else.
    pub(super) async fn take_email(
        &self,
        service: &Service,
        hash: [u8; 32],
        client: &Client,
    ) -> Result<Option<String>> {
        let Some(account_id) = service.store.account_of_email_change(&hash).await? else { return Ok(None) };
        let actor = Actor::visitor(client.address);
        let take = service.store.write(Some(account_id), move |write| {
            Box::pin(async move {
                let Some(email) = write.take_email_change(&hash).await? else { return Ok(None) };
                if !write.set_email(account_id, &email, true).await? {
                    return Err(has_account());
                }
                let entry = NewEntry::new(account_id, actor, AuditAction::AccountUpdate);
                write.audit(entry.with(&json!({"email": email})));
                Ok(Some(email))
            })
        });
        let taken = take.await?;
        self.read_again(account_id);
        Ok(taken)
    }
}

fn has_account() -> Error {
    Error::invalid(vec![Fault::new("email", "has an account")])
}
