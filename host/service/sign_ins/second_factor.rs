//! One-time codes of an authenticator app as a second factor (RFC 6238: SHA-1, six digits, steps of 30 seconds, one step
//! before and after), and recovery codes in its place.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::TimeDelta;
use culvert_domain::audit_log::{Actor, AuditAction, NewEntry};
use culvert_domain::error::{Code, Error, Fault, Result};
use culvert_domain::sign_in::{ELEVATION, SignIn, SignInMethod};
use culvert_store::Write;
use totp_rs::{Builder, Totp};
use uuid::Uuid;

use super::renewal::end_others;
use super::throttle::Tries;
use super::{Client, SignInValue, SignIns, check_elevated, create, present, shared_tries, wait_for};
use crate::Service;
use crate::call::Answered;
use crate::idempotency::IdempotencyKey;
use crate::links::hash;
use crate::secrets::{Purpose, Secrets};

/// How long a code may take after the password.
const TICKET_LIFETIME: TimeDelta = TimeDelta::minutes(5);
const RECOVERY_CODES: usize = 10;
/// Bytes of a recovery code: 80 bits.
const RECOVERY_BYTES: usize = 10;

/// A secret for an authenticator app, which is known now and never again.
pub struct NewTotp {
    /// In base32, to be typed.
    pub secret: String,
    /// `otpauth://totp/…`, to be scanned.
    pub url: String,
}

/// Somebody whose password or link was right, and whose code is still to come.
struct Ticket {
    account_id: Uuid,
    method: SignInMethod,
}

impl SignIns {
    /// What stands for a password or a link that was right, until the code comes.
    pub(super) fn ticket(&self, service: &Service, account_id: Uuid, method: SignInMethod) -> String {
        let until = (self.clock.now() + TICKET_LIFETIME).timestamp_micros();
        let statement = format!("{account_id} {until} {method}");
        URL_SAFE_NO_PAD.encode(service.secrets.seal(Purpose::Tickets, &[], statement.as_bytes()))
    }

    fn open_ticket(&self, service: &Service, ticket: &str) -> Option<Ticket> {
        let sealed = URL_SAFE_NO_PAD.decode(ticket).ok()?;
        let statement = String::from_utf8(service.secrets.open_sealed(Purpose::Tickets, &[], &sealed)?).ok()?;
        let mut parts = statement.split(' ');
        let account_id = parts.next()?.parse().ok()?;
        let until: i64 = parts.next()?.parse().ok()?;
        let method = parts.next()?.parse().ok()?;
        (self.clock.now().timestamp_micros() < until).then_some(Ticket { account_id, method })
    }

    /// Signs somebody in whose password or link was right, with the code. `None` if the code is not right.
    ///
    /// # Errors
    ///
    /// `sign_in_required` if the ticket is none or too old; `rate_limited` after too many codes of the account.
    pub async fn finish(
        &self,
        service: &Service,
        ticket: &str,
        code: &str,
        client: &Client,
    ) -> Result<Option<SignInValue>> {
        let too_old = || Error::new(Code::SignInRequired, "The sign-in took too long. Begin again.");
        let Ticket { account_id, method } = self.open_ticket(service, ticket).ok_or_else(too_old)?;
        let tries = Tries::of_account(account_id, client.address);
        if !self.check_code(service, account_id, code, &tries).await? {
            self.note_failure(service, account_id, client.address, "code");
            return Ok(None);
        }
        let (value, mut new) = self.new_sign_in(account_id, method, client);
        // Whoever came by a link has not shown that it knows the password.
        new.elevated_until = (method == SignInMethod::Password).then(|| self.clock.now() + ELEVATION);
        let create =
            service.store.write(Some(account_id), move |write| Box::pin(async move { create(write, &new).await }));
        create.await?;
        self.expect(&value);
        Ok(Some(value))
    }

    /// Whether it is the code of the moment, or a recovery code. Each is good once.
    pub(super) async fn check_code(
        &self,
        service: &Service,
        account_id: Uuid,
        typed: &str,
        tries: &Tries,
    ) -> Result<bool> {
        self.throttle.take_code_try(tries, self.clock.moment()).map_err(wait_for)?;
        if let Some(account) = tries.of_strangers(&self.throttle) {
            shared_tries::take_code(service, account).await?;
        }
        let (typed, secrets) = (normalised(typed), service.secrets.clone());
        let check = service.store.write(Some(account_id), move |write| {
            Box::pin(async move {
                if let Some(step) = step_of(write, &secrets, account_id, &typed, true).await? {
                    return write.accept_totp_step(account_id, step).await;
                }
                write.take_recovery_code(account_id, &hash(&typed)).await
            })
        });
        let is_right = check.await?;
        if is_right {
            self.throttle.code_was_right(tries);
        }
        Ok(is_right)
    }

    /// Makes a secret for the app of whoever is signed in. It is asked for when a code has confirmed it.
    ///
    /// # Errors
    ///
    /// `validation_failed` if a second factor is there; if the database fails.
    pub async fn begin_second_factor(&self, service: &Service, sign_in: &SignIn, issuer: &str) -> Result<NewTotp> {
        let (account_id, secret) = (sign_in.account_id, self.clock.random::<20>());
        let sealed = service.secrets.seal(Purpose::Totp, account_id.as_bytes(), &secret);
        let set =
            service.store.write(None, move |write| Box::pin(async move { write.set_totp(account_id, &sealed).await }));
        if !set.await? {
            return Err(Error::new(Code::ValidationFailed, "The second factor is there already; turn it off first."));
        }
        // A colon would end the label (Key Uri Format of Google Authenticator).
        let label = sign_in.email.replace(':', "");
        let totp =
            Builder::new().with_secret(secret).with_account_name(label).with_issuer(Some(issuer.replace(':', " ")));
        let totp = totp.build().map_err(|error| Error::internal(error.to_string()))?;
        let url = totp.to_url().map_err(|error| Error::internal(error.to_string()))?;
        Ok(NewTotp { secret: totp.secret().to_base32(), url })
    }

    /// Has the code be asked for from now on, if this is the right one. The response is the recovery codes, which are known now
    /// and never again. All other sign-ins of the account end.
    ///
    /// # Errors
    ///
    /// `validation_failed` for a wrong code; `rate_limited` after too many; if the database fails.
    pub async fn confirm_second_factor(
        &self,
        service: &Service,
        sign_in: &SignIn,
        typed: &str,
        key: &IdempotencyKey,
    ) -> Result<Answered> {
        let (account_id, id, tries) = (sign_in.account_id, sign_in.id, Tries::of_sign_in(sign_in));
        self.throttle.take_code_try(&tries, self.clock.moment()).map_err(wait_for)?;
        let (typed, secrets, codes) = (normalised(typed), service.secrets.clone(), self.new_codes());
        let entry = NewEntry::new(account_id, Actor::signed_in(sign_in), AuditAction::CredentialsEnableTotp);
        let confirm = service.store_once(account_id, key, move |write| {
            Box::pin(async move {
                present(write, id).await?;
                let step = step_of(write, &secrets, account_id, &typed, false).await?;
                let step = step.ok_or_else(|| Error::invalid(vec![Fault::new("code", "is wrong")]))?;
                write.accept_totp_step(account_id, step).await?;
                write.confirm_totp(account_id).await?;
                write.replace_recovery_codes(account_id, &hashes(&codes)).await?;
                end_others(write, account_id, id).await?;
                write.audit(entry);
                Ok(codes)
            })
        });
        let confirmed = confirm.await?;
        self.throttle.code_was_right(&tries);
        self.read_again(account_id);
        Ok(confirmed)
    }

    /// New recovery codes for whoever is signed in, which are the response; the former ones end, and so do all other sign-ins of
    /// the account.
    ///
    /// # Errors
    ///
    /// `not_found` without a second factor; if the database fails.
    pub async fn new_recovery_codes(
        &self,
        service: &Service,
        sign_in: &SignIn,
        key: &IdempotencyKey,
    ) -> Result<Answered> {
        let (account_id, id, codes) = (sign_in.account_id, sign_in.id, self.new_codes());
        let entry = NewEntry::new(account_id, Actor::signed_in(sign_in), AuditAction::CredentialsNewRecoveryCodes);
        let replace = service.store_once(account_id, key, move |write| {
            Box::pin(async move {
                check_elevated(write, id).await?;
                if !write.has_second_factor(account_id).await? {
                    return Err(Error::not_found());
                }
                write.replace_recovery_codes(account_id, &hashes(&codes)).await?;
                end_others(write, account_id, id).await?;
                write.audit(entry);
                Ok(codes)
            })
        });
        let replaced = replace.await?;
        self.read_again(account_id);
        Ok(replaced)
    }

    /// How many recovery codes are left.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn recovery_codes_left(&self, service: &Service, sign_in: &SignIn) -> Result<u32> {
        service.store.recovery_codes_left(sign_in.account_id).await
    }

    /// Turns the second factor of whoever is signed in off. All other sign-ins of the account end, and this one gets the value.
    ///
    /// # Errors
    ///
    /// `elevation_required` unless the person has just proved who it is; if the database fails.
    pub async fn remove_second_factor(&self, service: &Service, sign_in: &SignIn) -> Result<SignInValue> {
        let (account_id, id) = (sign_in.account_id, sign_in.id);
        let (renewal, renewed) = self.renewal(sign_in);
        let entry = NewEntry::new(account_id, Actor::signed_in(sign_in), AuditAction::CredentialsDisableTotp);
        let remove = service.store.write(Some(account_id), move |write| {
            Box::pin(async move {
                check_elevated(write, id).await?;
                write.audit(entry);
                write.remove_second_factor(account_id).await?;
                renewed.write(write).await
            })
        });
        remove.await?;
        Ok(self.renewed(renewal))
    }

    fn new_codes(&self) -> Vec<String> {
        let code = |_| grouped(&hex::encode(self.clock.random::<RECOVERY_BYTES>()));
        (0..RECOVERY_CODES).map(code).collect()
    }
}

/// The step whose code it is, by the account's secret.
async fn step_of(
    write: &mut Write,
    secrets: &Secrets,
    account_id: Uuid,
    typed: &str,
    is_confirmed: bool,
) -> Result<Option<u64>> {
    let known = write.totp(account_id).await?.filter(|totp| totp.is_confirmed == is_confirmed);
    let Some(known) = known else { return Ok(None) };
    let secret = secrets.open_sealed(Purpose::Totp, account_id.as_bytes(), &known.secret);
    let secret =
        secret.ok_or_else(|| Error::internal("a second factor cannot be opened with the keys in secret_key_file"))?;
    let totp: Totp = Builder::new().with_secret(secret).build().map_err(|error| Error::internal(error.to_string()))?;
    Ok(totp.check(typed, u64::try_from(write.now.timestamp()).unwrap_or_default()))
}

fn hashes(codes: &[String]) -> Vec<[u8; 32]> {
    codes.iter().map(|code| hash(&normalised(code))).collect()
}

/// A code without what people put between its characters.
fn normalised(typed: &str) -> String {
    typed.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).take(64).collect()
}

/// Five characters each, to be copied by hand.
fn grouped(code: &str) -> String {
    code.as_bytes().chunks(5).map(|group| String::from_utf8_lossy(group).into_owned()).collect::<Vec<_>>().join("-")
}
