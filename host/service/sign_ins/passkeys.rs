//! Passkeys (Web Authentication, level 3): discoverable credentials that verify the person, so they are both factors in one.
//!
//! A challenge goes to the browser together with its own state, sealed. Only one that was answered is remembered, until it
//! expires: strangers who ask for challenges leave nothing behind.

use chrono::{DateTime, TimeDelta, Utc};
use culvert_domain::account;
use culvert_domain::audit_log::{Actor, AuditAction, NewEntry};
use culvert_domain::error::{Code, Error, Fault, Result};
use culvert_domain::sign_in::{ELEVATION, SignIn, SignInMethod};
use culvert_store::Write;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use uuid::Uuid;
use webauthn_rs::prelude::{
    DiscoverableAuthentication, Passkey, PasskeyRegistration, PublicKeyCredential, RegisterPublicKeyCredential, Url,
    Webauthn, WebauthnBuilder, WebauthnError,
};

use super::sealed_state::Sealed;
use super::{Client, SignInValue, SignIns, check_elevated, check_other_credential, create, wait_for};
use crate::Service;
use crate::links::hash;

pub use culvert_store::passkeys::StoredPasskey;

/// How long a challenge can be answered.
const CHALLENGE_LIFETIME: TimeDelta = TimeDelta::minutes(5);
/// Passkeys of an account.
const PER_ACCOUNT: u32 = 10;
/// The context of a challenge for a sign-in; one for a new passkey has the account's id.
const SIGN_IN: &[u8] = b"sign-in";

/// A challenge for a browser.
pub struct Challenge {
    /// The options of `navigator.credentials.create` or `get`, as JSON.
    pub options: String,
    /// What comes back with the answer.
    pub token: String,
}

/// An answer that is right, and not used up yet.
struct Checked {
    account_id: Uuid,
    /// As it was when it was checked.
    known: StoredPasskey,
    /// As it is from now on.
    passkey: String,
    /// The hash of the challenge's token.
    challenge: [u8; 32],
    until: DateTime<Utc>,
}

impl Checked {
    /// Uses the answer up: another may have come meanwhile, or the passkey have been removed.
    async fn use_up(&self, write: &mut Write) -> Result<()> {
        let present = write.passkey(self.account_id, self.known.id).await?;
        let is_same = present.is_some_and(|present| present.passkey == self.known.passkey);
        if !is_same || !write.use_challenge(&self.challenge, self.until).await? {
            return Err(not_accepted(&"it was used before"));
        }
        write.use_passkey(self.known.id, &self.passkey).await
    }
}

/// The passkeys' relying party. None if the dashboard's host is an address: passkeys belong to names.
pub(super) fn relying_party(origin: &str) -> Option<Webauthn> {
    let origin = Url::parse(origin).ok()?;
    let name = origin.domain()?.to_owned();
    WebauthnBuilder::new(&name, &origin).and_then(|builder| builder.rp_name("Culvert").build()).ok()
}

impl SignIns {
    /// A challenge for whoever wants to sign in. None if there are no passkeys here.
    ///
    /// # Errors
    ///
    /// If it cannot be made.
    pub fn passkey_challenge(&self, service: &Service) -> Result<Option<Challenge>> {
        self.challenge_any(service, SIGN_IN)
    }

    /// A challenge that whichever passkey answers.
    fn challenge_any(&self, service: &Service, context: &[u8]) -> Result<Option<Challenge>> {
        let Some(party) = &self.relying_party else { return Ok(None) };
        let (options, state) = party.start_discoverable_authentication().map_err(internal)?;
        self.challenge(service, context, &json!(options.public_key), state).map(Some)
    }

    /// A challenge for a new passkey of whoever is signed in. None if there are no passkeys here.
    ///
    /// # Errors
    ///
    /// If it cannot be made; if the database fails.
    pub async fn new_passkey_challenge(&self, service: &Service, sign_in: &SignIn) -> Result<Option<Challenge>> {
        let Some(party) = &self.relying_party else { return Ok(None) };
        let known = service.store.passkeys_of(sign_in.account_id).await?;
        let known = known.iter().filter_map(|known| parsed::<Passkey>(&known.passkey).ok());
        let excluded: Vec<_> = known.map(|passkey| passkey.cred_id().clone()).collect();
        let (options, state) = party
            .start_passkey_registration(sign_in.account_id, &sign_in.email, &sign_in.name, Some(excluded))
            .map_err(internal)?;
        let mut options = json!(options.public_key);
        // So that it can be used without typing who one is.
        options["authenticatorSelection"]["residentKey"] = json!("required");
        options["authenticatorSelection"]["requireResidentKey"] = json!(true);
        self.challenge(service, sign_in.account_id.as_bytes(), &options, state).map(Some)
    }

    /// The passkeys of whoever is signed in.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn passkeys_of(&self, service: &Service, sign_in: &SignIn) -> Result<Vec<StoredPasskey>> {
        service.store.passkeys_of(sign_in.account_id).await
    }

    /// Signs somebody in with a passkey.
    ///
    /// # Errors
    ///
    /// `sign_in_required` if the answer is not accepted; `rate_limited` after too many of those from one address.
    pub async fn sign_in_by_passkey(
        &self,
        service: &Service,
        token: &str,
        answer: &str,
        client: &Client,
    ) -> Result<SignInValue> {
        let now = self.clock.moment();
        self.throttle.passkeys.wait(client.address, now).map_or(Ok(()), |wait| Err(wait_for(wait)))?;
        let accept = async {
            let checked = self.check_passkey(service, SIGN_IN, token, answer).await?;
            let account_id = checked.account_id;
            let (value, mut new) = self.new_sign_in(account_id, SignInMethod::Passkey, client);
            new.elevated_until = Some(self.clock.now() + ELEVATION);
            let create = service.store.write(Some(account_id), move |write| {
                Box::pin(async move {
                    checked.use_up(write).await?;
                    create(write, &new).await
                })
            });
            create.await?;
            self.expect(&value);
            Ok(value)
        };
        let accepted: Result<SignInValue> = accept.await;
        if matches!(&accepted, Err(error) if error.code == Code::SignInRequired) {
            self.throttle.passkeys.count(client.address, now);
        }
        accepted
    }

    /// A challenge for whoever is signed in, who is to prove once more who it is. None without a passkey.
    ///
    /// # Errors
    ///
    /// If it cannot be made.
    pub fn confirmation_challenge(&self, service: &Service, sign_in: &SignIn) -> Result<Option<Challenge>> {
        if sign_in.has_passkey { self.challenge_any(service, sign_in.id.as_bytes()) } else { Ok(None) }
    }

    /// Has somebody who is signed in prove with a passkey who it is.
    ///
    /// # Errors
    ///
    /// `sign_in_required` if the answer is not accepted, or is of somebody else's passkey.
    pub async fn elevate_by_passkey(
        &self,
        service: &Service,
        sign_in: &SignIn,
        token: &str,
        answer: &str,
    ) -> Result<SignInValue> {
        let checked = self.check_passkey(service, sign_in.id.as_bytes(), token, answer).await?;
        if checked.account_id != sign_in.account_id {
            return Err(not_accepted(&"it is somebody else's"));
        }
        let account_id = checked.account_id;
        let spend =
            service.store.write(Some(account_id), move |write| Box::pin(async move { checked.use_up(write).await }));
        spend.await?;
        self.give_new_value(service, sign_in, None).await
    }

    /// Checks the origin, the challenge, the signature, that the person was verified, and that the counter has grown.
    async fn check_passkey(&self, service: &Service, context: &[u8], token: &str, answer: &str) -> Result<Checked> {
        let party = self.relying_party.as_ref().ok_or_else(Error::not_found)?;
        let Sealed { until, state } = self.open_sealed_state::<DiscoverableAuthentication>(service, context, token)?;
        let answer: PublicKeyCredential = parsed(answer)?;
        let (account_id, credential_id) =
            party.identify_discoverable_authentication(&answer).map_err(|error| not_accepted(&error))?;
        let known = service.store.passkey(credential_id).await?.filter(|known| known.account_id == account_id);
        let known = known.ok_or_else(|| not_accepted(&"nobody has it"))?;
        let mut passkey: Passkey = parsed(&known.passkey).map_err(|_| Error::internal("a passkey cannot be read"))?;
        let checked = party.finish_discoverable_authentication_v2(&answer, state, &passkey);
        passkey.update_credential(&checked.map_err(|error| not_accepted(&error))?);
        let passkey = serde_json::to_string(&passkey).map_err(Error::internal)?;
        Ok(Checked { account_id, known, passkey, challenge: hash(token), until })
    }

    /// Adds a passkey of whoever is signed in. All other sign-ins of the account end, and links that were not used; this one
    /// gets the value. `None` if it was added before.
    ///
    /// # Errors
    ///
    /// `validation_failed` if the answer is not accepted, or for its name; `limit_reached` if there are too many; if the
    /// database fails.
    pub async fn add_passkey(
        &self,
        service: &Service,
        sign_in: &SignIn,
        name: &str,
        token: &str,
        answer: &str,
    ) -> Result<Option<SignInValue>> {
        let party = self.relying_party.as_ref().ok_or_else(Error::not_found)?;
        let name = account::name(name).map_err(|problem| Error::invalid(vec![Fault::new("name", problem)]))?;
        let (account_id, id) = (sign_in.account_id, sign_in.id);
        let (renewal, renewed) = self.renewal(sign_in);
        let refused = |_| Error::invalid(vec![Fault::new("passkey", "was not accepted; try again")]);
        let sealed =
            self.open_sealed_state::<PasskeyRegistration>(service, account_id.as_bytes(), token).map_err(refused)?;
        let answer: RegisterPublicKeyCredential = parsed(answer).map_err(refused)?;
        let passkey = party.finish_passkey_registration(&answer, &sealed.state);
        let passkey = passkey.map_err(|error| refused(not_accepted(&error)))?;
        let (used, until) = (hash(token), sealed.until);
        let credential_id = passkey.cred_id().clone();
        let passkey = serde_json::to_string(&passkey).map_err(Error::internal)?;
        let entry = NewEntry::new(account_id, Actor::signed_in(sign_in), AuditAction::CredentialsAddPasskey);
        let entry = entry.with(&json!({"name": name}));
        let add = service.store.write(Some(account_id), move |write| {
            Box::pin(async move {
                check_elevated(write, id).await?;
                if write.count_passkeys(account_id).await? >= PER_ACCOUNT {
                    let detail = format!("An account has at most {PER_ACCOUNT} passkeys. Remove one first.");
                    return Err(Error::new(Code::LimitReached, detail));
                }
                // A second click finds it done.
                if !write.use_challenge(&used, until).await? {
                    return Ok(false);
                }
                if !write.insert_passkey(account_id, &credential_id, &passkey, &name).await? {
                    return Err(Error::invalid(vec![Fault::new("passkey", "belongs to an account already")]));
                }
                renewed.write(write).await?;
                write.audit(entry);
                Ok(true)
            })
        });
        let is_added = add.await?;
        Ok(is_added.then(|| self.renewed(renewal)))
    }

    /// Removes a passkey of whoever is signed in. All other sign-ins of the account end, and this one gets the value. `None` if
    /// it was removed before.
    ///
    /// # Errors
    ///
    /// `last_credential` if nothing would be left to sign in with; if the database fails.
    pub async fn remove_passkey(
        &self,
        service: &Service,
        sign_in: &SignIn,
        passkey_id: Uuid,
    ) -> Result<Option<SignInValue>> {
        let (account_id, id, has_password) = (sign_in.account_id, sign_in.id, sign_in.has_password);
        let (renewal, renewed) = self.renewal(sign_in);
        let entry = NewEntry::new(account_id, Actor::signed_in(sign_in), AuditAction::CredentialsRemovePasskey);
        let remove = service.store.write(Some(account_id), move |write| {
            Box::pin(async move {
                check_elevated(write, id).await?;
                let Some(present) = write.passkey(account_id, passkey_id).await? else { return Ok(false) };
                check_other_credential(write, account_id, has_password).await?;
                write.remove_passkey(account_id, passkey_id).await?;
                renewed.write(write).await?;
                write.audit(entry.about(passkey_id).with(&json!({"name": present.name})));
                Ok(true)
            })
        });
        let is_removed = remove.await?;
        Ok(is_removed.then(|| self.renewed(renewal)))
    }

    fn challenge<S: Serialize>(
        &self,
        service: &Service,
        context: &[u8],
        options: &Value,
        state: S,
    ) -> Result<Challenge> {
        let token = self.seal_state(service, context, &state, CHALLENGE_LIFETIME)?;
        Ok(Challenge { options: options.to_string(), token })
    }
}

fn parsed<T: DeserializeOwned>(text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|error| not_accepted(&error))
}

fn not_accepted(why: &dyn std::fmt::Display) -> Error {
    tracing::info!(%why, "a passkey was not accepted");
    Error::new(Code::SignInRequired, "The passkey was not accepted.")
}

fn internal(error: WebauthnError) -> Error {
    Error::internal(error.to_string())
}
