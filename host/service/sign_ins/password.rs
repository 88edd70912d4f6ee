//! Signing in with a password, proving oneself with it, and setting it.

use std::net::IpAddr;

use culvert_domain::error::{Code, Error, Fault, Result};
use culvert_domain::sign_in::{ELEVATION, SignIn, SignInMethod};
use uuid::Uuid;

use super::strength::{PASSWORD_CHARACTERS, check_strength};
use super::throttle::{Account, Tries};
use super::{Client, Proved, SignInValue, SignIns, create_or_ask, shared_tries, wait_for};
use crate::Service;
use crate::links::hash;

impl SignIns {
    /// Signs somebody in with a password. `None` if it is not right: whether there is such an account is not told, and
    /// costs the same time.
    ///
    /// # Errors
    ///
    /// `rate_limited` after too many wrong ones, of the address or for the account.
    pub async fn sign_in(
        &self,
        service: &Service,
        email: &str,
        password: &str,
        client: &Client,
    ) -> Result<Option<Proved>> {
        let tried = hash(&email.to_lowercase());
        let known = self.check_password(service, email, password, client.address, tried).await?;
        let Some((account_id, checked)) = known else { return Ok(None) };
        let rehashed = service.passwords.rehash(password, &checked).await?;
        let (value, mut new) = self.new_sign_in(account_id, SignInMethod::Password, client);
        new.elevated_until = Some(self.clock.now() + ELEVATION);
        // The password may have been replaced while it was checked, and a second factor set up.
        let create = service.store.write(Some(account_id), move |write| {
            Box::pin(async move {
                if !write.has_password_hash(account_id, &checked).await? {
                    return Ok(None);
                }
                if let Some(hash) = rehashed {
                    write.replace_password_hash(account_id, &hash).await?;
                }
                create_or_ask(write, new).await.map(Some)
            })
        });
        let needs_code = create.await?;
        Ok(needs_code.map(|needs_code| self.proved(service, account_id, SignInMethod::Password, value, needs_code)))
    }

    /// Has somebody who is signed in prove with the password who it is, and with a code where one is asked for. `None` if the
    /// password is not right.
    ///
    /// # Errors
    ///
    /// As [`SignIns::sign_in`]; `validation_failed` for a wrong code.
    pub async fn elevate(
        &self,
        service: &Service,
        sign_in: &SignIn,
        password: &str,
        code: &str,
        client: &Client,
    ) -> Result<Option<SignInValue>> {
        if sign_in.takes_passkey_alone() {
            return Err(Error::invalid(vec![Fault::new(
                "current_password",
                "is not enough; confirm with your passkey",
            )]));
        }
        let tried = hash(&sign_in.id.to_string());
        if self.check_password(service, &sign_in.email, password, client.address, tried).await?.is_none() {
            return Ok(None);
        }
        let tries = Tries::of_sign_in(sign_in);
        if sign_in.has_second_factor && !self.check_code(service, sign_in.account_id, code, &tries).await? {
            self.note_failure(service, sign_in.account_id, client.address, "code");
            return Err(Error::invalid(vec![Fault::new("code", "is wrong, or was used before")]));
        }
        self.give_new_value(service, sign_in, None).await.map(Some)
    }

    /// Sets the password of whoever is signed in. All other sign-ins of the account end.
    ///
    /// # Errors
    ///
    /// `elevation_required` if somebody may be there who only found the browser open; `validation_failed` for a password
    /// that is too short, too long or too easy to guess.
    pub async fn set_password(&self, service: &Service, sign_in: &SignIn, password: String) -> Result<SignInValue> {
        if !sign_in.may_set_password(self.clock.now()) {
            return Err(Error::of(Code::ElevationRequired));
        }
        check_strength(&service.passwords, &password, [&sign_in.email, &sign_in.name]).await?;
        let hash = service.passwords.hash(Some(password)).await?;
        self.give_new_value(service, sign_in, hash).await
    }

    /// The account whose password it is. Whether there is such an account costs the same time.
    async fn check_password(
        &self,
        service: &Service,
        email: &str,
        password: &str,
        address: Option<IpAddr>,
        tried: Account,
    ) -> Result<Option<(Uuid, String)>> {
        let former = self.throttle.take_password_try(address, tried, self.clock.moment()).map_err(wait_for)?;
        let is_known = self.throttle.is_known(tried, address);
        if !is_known && let Err(error) = shared_tries::take_password(service, tried).await {
            self.throttle.password_was_not_checked(address, tried, former);
            return Err(error);
        }
        let is_possible = !email.contains(char::is_control) && password.chars().count() <= *PASSWORD_CHARACTERS.end();
        let known = if is_possible { service.store.password_by_email(email).await? } else { None };
        let hash = known.as_ref().map(|(_, hash)| hash.clone());
        let password = if is_possible { password.to_owned() } else { String::new() };
        let checked = service.passwords.check(password, hash).await;
        // One that was not looked at, because too many wait, is no wrong one.
        let is_right = match checked {
            Ok(is_right) => is_right,
            Err(error) => {
                self.throttle.password_was_not_checked(address, tried, former);
                if !is_known {
                    shared_tries::give_back(service, tried).await?;
                }
                return Err(error);
            }
        };
        if !is_right {
            if let Some((account_id, _)) = known {
                self.note_failure(service, account_id, address, "password");
            }
            return Ok(None);
        }
        self.throttle.password_was_right(address, tried);
        shared_tries::forget(service, tried).await?;
        Ok(known)
    }
}
