//! Signing in by what another provider says of somebody, and linking an account with it.

use chrono::TimeDelta;
use culvert_domain::account;
use culvert_domain::audit_log::{Actor, AuditAction, NewEntry, Origin};
use culvert_domain::error::{Code, Error, Result};
use culvert_domain::sign_in::{ELEVATION, SignIn, SignInMethod};
use culvert_store::Write;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use uuid::Uuid;

use super::{
    Client, Proved, SignInValue, SignIns, check_elevated, check_other_credential, create, create_or_ask, wait_for,
};
use crate::Service;

pub use culvert_store::identities::StoredIdentity;

/// People at providers that an account is linked with.
const PER_ACCOUNT: u32 = 10;
/// How long a browser may be at the provider.
const LOGIN_LIFETIME: TimeDelta = TimeDelta::minutes(10);
/// The context of what a browser keeps meanwhile.
const LOGIN: &[u8] = b"oidc";

/// Somebody at a provider.
#[derive(Clone, Debug)]
pub struct ProvedIdentity {
    pub issuer: String,
    pub subject: String,
    pub email: Option<String>,
    /// Whether an account with this address is theirs: the provider has seen that it is, and the operator believes it.
    pub is_email_trusted: bool,
    /// When the person has shown who it is, in seconds since the Unix epoch.
    pub authenticated_at: Option<i64>,
}

impl SignIns {
    /// Counts a sign-in that is begun, before the provider is asked for anything.
    ///
    /// # Errors
    ///
    /// `rate_limited` if there are too many from the client's address.
    pub fn count_login(&self, client: &Client) -> Result<()> {
        self.throttle.logins.count(client.address, self.clock.moment()).map_or(Ok(()), |wait| Err(wait_for(wait)))
    }

    /// Seals what a browser keeps while it is at the provider.
    ///
    /// # Errors
    ///
    /// If it cannot be sealed.
    pub fn seal_login<S: Serialize>(&self, service: &Service, login: &S) -> Result<String> {
        self.seal_state(service, LOGIN, login, LOGIN_LIFETIME)
    }

    /// Opens it again, before the provider is asked for anything.
    ///
    /// # Errors
    ///
    /// `form_expired` if it is too old, or was not sealed here; `rate_limited` if too many came back from the client's address.
    pub fn open_login<S: DeserializeOwned>(&self, service: &Service, token: &str, client: &Client) -> Result<S> {
        let login = self.open_state(service, LOGIN, token)?;
        let wait = self.throttle.callbacks.count(client.address, self.clock.moment());
        wait.map_or(Ok(login), |wait| Err(wait_for(wait)))
    }

    /// Signs somebody in. `None` if no account is linked with who the provider says that it is.
    ///
    /// # Errors
    ///
    /// If the account is locked; if the database fails.
    pub async fn sign_in_by_identity(
        &self,
        service: &Service,
        identity: &ProvedIdentity,
        client: &Client,
    ) -> Result<Option<Proved>> {
        let known = service.store.identity(&identity.issuer, &identity.subject).await?;
        let by_email = match (&known, &identity.email) {
            (None, Some(email)) if identity.is_email_trusted && !email.contains(char::is_control) => {
                service.store.account_by_proved_email(email.trim()).await?
            }
            _ => None,
        };
        let is_new = known.is_none();
        let Some(account_id) = known.map(|known| known.account_id).or(by_email) else {
            return Ok(None);
        };
        let (value, mut new) = self.new_sign_in(account_id, SignInMethod::Oidc, client);
        let now = self.clock.now();
        let has_just_shown = identity
            .authenticated_at
            .is_some_and(|at| now.timestamp().abs_diff(at) < ELEVATION.num_seconds().unsigned_abs());
        new.elevated_until = has_just_shown.then(|| now + ELEVATION);
        let identity = identity.clone();
        let sign_in = service.store.write(Some(account_id), move |write| {
            Box::pin(async move {
                if is_new {
                    insert(write, account_id, &identity).await?;
                }
                if !write.use_identity(account_id, &identity.issuer, &identity.subject).await? {
                    return Ok(None);
                }
                create_or_ask(write, new).await.map(Some)
            })
        });
        let needs_code = sign_in.await?;
        Ok(needs_code.map(|needs_code| self.proved(service, account_id, SignInMethod::Oidc, value, needs_code)))
    }

    /// Makes an account for somebody who has none, and signs them in. `None` where that is not for everybody, the provider's
    /// word for the address is not believed, or an account has the address.
    ///
    /// # Errors
    ///
    /// `rate_limited` after too many from one address; `sign_in_required` if an account was made meanwhile; if the database fails.
    pub async fn begin_by_identity(
        &self,
        service: &Service,
        identity: &ProvedIdentity,
        client: &Client,
    ) -> Result<Option<SignInValue>> {
        let trusted = identity.email.as_deref().filter(|_| self.is_open() && identity.is_email_trusted);
        let Some(email) = trusted.and_then(|email| account::email(email).ok()) else { return Ok(None) };
        if service.store.account_by_email(&email).await?.is_some() {
            return Ok(None);
        }
        let begins = self.throttle.begins.count(client.address, self.clock.moment());
        begins.map_or(Ok(()), |wait| Err(wait_for(wait)))?;
        let name = email.split('@').next().and_then(|name| account::name(name).ok()).unwrap_or_else(|| "New".into());
        let (value, mut new) = self.new_sign_in(Uuid::nil(), SignInMethod::Oidc, client);
        let (plan, address, identity) = (service.default_plan(), client.address, identity.clone());
        let begin = service.store.write(None, move |write| {
            Box::pin(async move {
                // Somebody may have made one meanwhile. An error undoes the scope that was made for it.
                let account = write.create_account(&email, &name, &plan).await?.ok_or_else(made_meanwhile)?;
                if !insert(write, account.id, &identity).await? {
                    return Err(made_meanwhile());
                }
                let actor = Actor::account(Origin::Dashboard, account.id, address);
                let entry = NewEntry::new(account.id, actor, AuditAction::AccountsCreate);
                write.audit(entry.with(&json!({"email": email, "issuer": identity.issuer})));
                new.account_id = account.id;
                create(write, &new).await
            })
        });
        begin.await?;
        self.expect(&value);
        Ok(Some(value))
    }

    /// Whom the account of a sign-in is at providers.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn identities_of(&self, service: &Service, sign_in: &SignIn) -> Result<Vec<StoredIdentity>> {
        service.store.identities_of(sign_in.account_id).await
    }

    /// Links the account of whoever is signed in with somebody at a provider. All other sign-ins of the account end,
    /// and this one gets the value.
    ///
    /// # Errors
    ///
    /// `elevation_required` unless the person has just proved who it is; `validation_failed` if an account is linked already;
    /// `limit_reached` if this one is linked with too many.
    pub async fn link_identity(
        &self,
        service: &Service,
        sign_in: &SignIn,
        identity: &ProvedIdentity,
    ) -> Result<SignInValue> {
        let (renewal, renewed) = self.renewal(sign_in);
        let (account_id, id, identity) = (sign_in.account_id, sign_in.id, identity.clone());
        let is_own = |email: &String| email.trim().to_lowercase() == sign_in.email;
        let proves = identity.is_email_trusted && identity.email.as_ref().is_some_and(is_own);
        let entry = NewEntry::new(account_id, Actor::signed_in(sign_in), AuditAction::CredentialsLinkOidc);
        let link = service.store.write(Some(account_id), move |write| {
            Box::pin(async move {
                check_elevated(write, id).await?;
                if !insert(write, account_id, &identity).await? {
                    return Err(Error::new(Code::ValidationFailed, "An account is linked with them already."));
                }
                if proves {
                    write.set_email_proved(account_id, true).await?;
                }
                renewed.write(write).await?;
                write.audit(entry.with(&json!({"issuer": identity.issuer, "email": identity.email})));
                Ok(())
            })
        });
        link.await?;
        Ok(self.renewed(renewal))
    }

    /// Ends a link of whoever is signed in. All other sign-ins of the account end, and this one gets the value. `None` if it was
    /// ended before.
    ///
    /// # Errors
    ///
    /// `last_credential` if nothing would be left to sign in with; `elevation_required` unless the person has just proved who
    /// it is.
    pub async fn unlink_identity(
        &self,
        service: &Service,
        sign_in: &SignIn,
        issuer: &str,
        subject: &str,
    ) -> Result<Option<SignInValue>> {
        let (renewal, renewed) = self.renewal(sign_in);
        let (account_id, id, has_password) = (sign_in.account_id, sign_in.id, sign_in.has_password);
        let entry = NewEntry::new(account_id, Actor::signed_in(sign_in), AuditAction::CredentialsUnlinkOidc);
        let (issuer, subject) = (issuer.to_owned(), subject.to_owned());
        let unlink = service.store.write(Some(account_id), move |write| {
            Box::pin(async move {
                check_elevated(write, id).await?;
                check_other_credential(write, account_id, has_password).await?;
                if !write.remove_identity(account_id, &issuer, &subject).await? {
                    return Ok(false);
                }
                renewed.write(write).await?;
                write.audit(entry.with(&json!({"issuer": issuer})));
                Ok(true)
            })
        });
        let is_unlinked = unlink.await?;
        Ok(is_unlinked.then(|| self.renewed(renewal)))
    }
}

fn made_meanwhile() -> Error {
    Error::new(Code::SignInRequired, "An account was made meanwhile. Sign in once more.")
}

/// Links an account with somebody at a provider. False if an account is linked with them already.
async fn insert(write: &mut Write, account_id: Uuid, identity: &ProvedIdentity) -> Result<bool> {
    if write.count_identities(account_id).await? >= PER_ACCOUNT {
        let detail = format!("An account is linked with at most {PER_ACCOUNT} people at providers. Unlink one first.");
        return Err(Error::new(Code::LimitReached, detail));
    }
    let ProvedIdentity { issuer, subject, email, .. } = identity;
    write.insert_identity(account_id, issuer, subject, email.as_deref()).await
}
