//! Sign-ins of people at the dashboard: by a link or with a password, and what they may do meanwhile. A sign-in is known by
//! a random value in a cookie, of which the store has the hash.

mod failures;
mod identities;
mod passkeys;
mod password;
mod profile;
mod renewal;
mod sealed_state;
mod second_factor;
mod shared_tries;
mod strength;
mod throttle;
mod welcome;

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::{DateTime, TimeDelta, Utc};
use culvert_domain::audit_log::{Actor, AuditAction, NewEntry, Origin};
use culvert_domain::caller::{Caller, Scope};
use culvert_domain::error::{Code, Error, Result};
use culvert_domain::sign_in::{SignIn, SignInClient, SignInMethod, SignUp};
use culvert_domain::text;
use culvert_store::Write;
use culvert_store::sign_ins::NewSignIn;
use culvert_wire::clock::{Clock, Moment};
use hashlink::LruCache;
use serde_json::json;
use uuid::Uuid;
use webauthn_rs::Webauthn;

use crate::Service;
use crate::links::hash;
pub use identities::{ProvedIdentity, StoredIdentity};
pub use passkeys::{Challenge, StoredPasskey};
pub use profile::WantedProfile;
pub use second_factor::NewTotp;
use throttle::Throttle;
pub use welcome::{Entered, NewPerson, Welcome};

/// How old a sign-in may be that is taken from the cache.
const FRESH: Duration = Duration::from_secs(1);
/// Sign-ins that are remembered. Beyond them, the one that was read longest ago is forgotten.
const MAX_REMEMBERED: usize = 10_000;
/// Sign-ins of one account.
const PER_ACCOUNT: u32 = 50;
/// How often it is noted that a sign-in is used.
const NOTED_EVERY: TimeDelta = TimeDelta::minutes(1);
/// Characters of what a browser calls itself that are kept.
const AGENT_CHARACTERS: usize = 200;

/// How long a sign-in lasts.
#[derive(Clone, Copy, Debug)]
pub struct Lifetimes {
    pub absolute: TimeDelta,
    /// Without a request.
    pub idle: TimeDelta,
}

/// How long an operator's sign-in lasts, at most.
const OPERATOR: Lifetimes = Lifetimes { absolute: TimeDelta::hours(24), idle: TimeDelta::hours(2) };

/// The hashes of values that sign-ins have, and what was last read of them.
type Remembered = LruCache<[u8; 32], Option<(Moment, SignIn)>>;

/// Who is signed in, and how often strangers may try to.
pub struct SignIns {
    clock: Clock,
    lifetimes: Lifetimes,
    sign_up: SignUp,
    remembered: Mutex<Remembered>,
    throttle: Throttle,
    /// What passkeys belong to; none where there can be none.
    relying_party: Option<Webauthn>,
}

/// The value for the cookie of a sign-in, which is known now and never again.
pub struct SignInValue {
    pub value: String,
    pub expires_at: DateTime<Utc>,
}

/// What a right password leads to.
pub enum Proved {
    SignedIn(SignInValue),
    /// A ticket for [`SignIns::finish`], with the code of the second factor.
    NeedsCode(String),
}

/// Where somebody signs in from.
#[derive(Clone, Debug, Default)]
pub struct Client {
    pub address: Option<IpAddr>,
    pub agent: String,
}

impl Client {
    fn cleaned(&self) -> SignInClient {
        let address = self.address.map(|address| address.to_string());
        SignInClient { address, agent: text::cleaned(&self.agent, AGENT_CHARACTERS) }
    }
}

impl SignIns {
    /// `origin` is the dashboard's: scheme, host name and port.
    pub fn new(clock: Clock, lifetimes: Lifetimes, sign_up: SignUp, origin: &str) -> Self {
        let remembered = Mutex::new(LruCache::new(MAX_REMEMBERED));
        let relying_party = passkeys::relying_party(origin);
        Self { clock, lifetimes, sign_up, remembered, throttle: Throttle::new(), relying_party }
    }

    /// The sign-in of a cookie's value, as it was at most a second ago. `None` if it is over, and for every unknown value of
    /// an address that has made up too many. It is only noted as used if `is_used`.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn find(
        &self,
        service: &Service,
        value: &str,
        address: Option<IpAddr>,
        is_used: bool,
    ) -> Result<Option<SignIn>> {
        let (hash, asked) = (hash(value), self.clock.moment());
        let known = self.remembered(|cache| cache.get(&hash).cloned());
        if known.is_none() && self.throttle.unknown.wait(address, asked).is_some() {
            return Ok(None);
        }
        let sign_in = match known {
            Some(Some((read, sign_in))) if asked.since(read) < FRESH => Some(sign_in),
            _ => self.read(service, hash, asked, address).await?,
        };
        if is_used {
            self.note_use(service, sign_in.as_ref()).await?;
        }
        let now = self.clock.now();
        Ok(sign_in.filter(|sign_in| now < self.end_of(sign_in)))
    }

    async fn read(
        &self,
        service: &Service,
        hash: [u8; 32],
        asked: Moment,
        address: Option<IpAddr>,
    ) -> Result<Option<SignIn>> {
        let Some(sign_in) = service.store.sign_in(&hash).await? else {
            self.remembered(|cache| cache.remove(&hash));
            self.throttle.unknown.count(address, asked);
            return Ok(None);
        };
        self.remembered(|cache| cache.insert(hash, Some((asked, sign_in.clone()))));
        Ok(Some(sign_in))
    }

    /// Notes the time at which a sign-in is used, to within so much.
    async fn note_use(&self, service: &Service, sign_in: Option<&SignIn>) -> Result<()> {
        let now = self.clock.now();
        let Some(sign_in) = sign_in.filter(|sign_in| now < self.end_of(sign_in)) else { return Ok(()) };
        if now - sign_in.last_seen_at < NOTED_EVERY {
            return Ok(());
        }
        let id = sign_in.id;
        service.store.write(None, move |write| Box::pin(async move { write.note_sign_in_seen(id).await })).await?;
        self.read_again(sign_in.account_id);
        Ok(())
    }

    /// A sign-in as it is now; `None` if it has ended since it was found. Asking is no use of it.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn present(&self, service: &Service, sign_in: &SignIn) -> Result<Option<SignIn>> {
        Ok(self.all_of(service, sign_in).await?.into_iter().find(|one| one.id == sign_in.id))
    }

    /// When a sign-in ends if it is not used any more. An operator's lasts for a day.
    pub fn end_of(&self, sign_in: &SignIn) -> DateTime<Utc> {
        let end = sign_in.expires_at.min(sign_in.last_seen_at + self.lifetimes.idle);
        if !sign_in.is_operator {
            return end;
        }
        end.min(sign_in.created_at + OPERATOR.absolute).min(sign_in.last_seen_at + OPERATOR.idle)
    }

    /// The sign-ins of the same account, the last used first.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn all_of(&self, service: &Service, sign_in: &SignIn) -> Result<Vec<SignIn>> {
        let mut all = service.store.sign_ins_of(sign_in.account_id).await?;
        let now = self.clock.now();
        all.retain(|one| now < self.end_of(one));
        Ok(all)
    }

    /// Counts a request of a sign-in, of which there may be so many in a minute.
    ///
    /// # Errors
    ///
    /// `rate_limited` if that was one too many.
    pub fn count(&self, sign_in: &SignIn, is_change: bool) -> Result<()> {
        self.throttle.count_request(sign_in.id, is_change, self.clock.moment()).map_err(wait_for)
    }

    /// Counts a signature that a sign-in has checked.
    ///
    /// # Errors
    ///
    /// `rate_limited` if that was one too many in a minute.
    pub fn count_signature_check(&self, sign_in: &SignIn) -> Result<()> {
        self.throttle.take_signature_check(sign_in.id, self.clock.moment()).map_err(wait_for)
    }

    /// What somebody has proved who may need a code as well.
    fn proved(
        &self,
        service: &Service,
        account_id: Uuid,
        method: SignInMethod,
        value: SignInValue,
        needs_code: bool,
    ) -> Proved {
        if needs_code {
            return Proved::NeedsCode(self.ticket(service, account_id, method));
        }
        self.expect(&value);
        Proved::SignedIn(value)
    }

    /// Gives a sign-in another value and elevates it; with a password's hash, sets that as well. Whether it may is looked at
    /// once more, because it may have ended meanwhile.
    async fn give_new_value(
        &self,
        service: &Service,
        sign_in: &SignIn,
        password: Option<String>,
    ) -> Result<SignInValue> {
        let (id, account_id) = (sign_in.id, sign_in.account_id);
        let (renewal, renewed) = self.renewal(sign_in);
        let entry = NewEntry::new(account_id, Actor::signed_in(sign_in), AuditAction::CredentialsSetPassword);
        let change = service.store.write(Some(account_id), move |write| {
            Box::pin(async move {
                let now = write.now;
                let current = present(write, id).await?;
                if password.is_some() && !current.may_set_password(now) {
                    return Err(Error::of(Code::ElevationRequired));
                }
                renewed.elevate(write).await?;
                if let Some(password) = password {
                    write.audit(entry);
                    write.set_password(account_id, &password).await?;
                    renewal::end_others(write, account_id, id).await?;
                }
                Ok(())
            })
        });
        change.await?;
        Ok(self.renewed(renewal))
    }

    /// Ends a sign-in of the account; with none, all but this one, and the links that were not used.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn end(&self, service: &Service, sign_in: &SignIn, other: Option<Uuid>) -> Result<()> {
        let (own, account_id) = (sign_in.id, sign_in.account_id);
        let entry = NewEntry::new(account_id, Actor::signed_in(sign_in), AuditAction::SignInsEnd);
        let end = service.store.write(Some(account_id), move |write| {
            Box::pin(async move {
                write.audit(NewEntry { subject_id: other, ..entry });
                if let Some(id) = other {
                    return write.end_sign_in(account_id, id).await;
                }
                renewal::end_others(write, account_id, own).await
            })
        });
        end.await?;
        self.read_again(account_id);
        Ok(())
    }

    fn new_sign_in(&self, account_id: Uuid, method: SignInMethod, client: &Client) -> (SignInValue, NewSignIn) {
        let (value, expires_at) = (new_value(&self.clock), self.clock.now() + self.lifetimes.absolute);
        let (hash, client) = (hash(&value), client.cleaned());
        let new = NewSignIn { account_id, hash, method, client, expires_at, elevated_until: None };
        (SignInValue { value, expires_at }, new)
    }

    fn remembered<T>(&self, look: impl FnOnce(&mut Remembered) -> T) -> T {
        look(&mut self.remembered.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What this host has just changed of an account is true at once. It looks at all sign-ins that are remembered; such
    /// changes are rare.
    fn read_again(&self, account_id: Uuid) {
        self.remembered(|cache| {
            let of_account = |known: &&mut Option<(Moment, SignIn)>| {
                known.as_ref().is_some_and(|(_, sign_in)| sign_in.account_id == account_id)
            };
            cache.iter_mut().map(|(_, known)| known).filter(of_account).for_each(|known| *known = None);
        });
    }

    /// A value that a sign-in has from now on: it is not taken for a made-up one.
    fn expect(&self, value: &SignInValue) {
        self.remembered(|cache| cache.insert(hash(&value.value), None));
    }
}

impl Service {
    /// The person behind a sign-in, in one of its scopes.
    ///
    /// # Errors
    ///
    /// `not_found` if the account is not in the scope; if the database fails.
    pub async fn caller_of_sign_in(&self, sign_in: &SignIn, scope_id: Uuid) -> Result<Caller> {
        self.store.caller_of_sign_in(sign_in.id, scope_id).await?.ok_or_else(Error::not_found)
    }

    /// The Teams of whoever is signed in.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn teams_of(&self, sign_in: &SignIn) -> Result<Vec<Scope>> {
        self.store.teams_of(sign_in.account_id).await
    }
}

/// Whether a sign-in has not ended meanwhile, and whoever is there has just proved who it is.
async fn check_elevated(write: &mut Write, id: Uuid) -> Result<()> {
    let present = present(write, id).await?;
    if present.is_elevated(write.now) { Ok(()) } else { Err(Error::of(Code::ElevationRequired)) }
}

/// A sign-in that has not ended meanwhile.
async fn present(write: &mut Write, id: Uuid) -> Result<SignIn> {
    write.sign_in(id).await?.ok_or_else(|| Error::of(Code::SignInRequired))
}

/// Creates a sign-in by a password or at another provider, unless a code is still to be asked for. Returns whether it is.
async fn create_or_ask(write: &mut Write, mut new: NewSignIn) -> Result<bool> {
    let needs_code = write.has_second_factor(new.account_id).await?;
    if !needs_code {
        // Where there is a passkey, this is one factor of two.
        if write.count_passkeys(new.account_id).await? > 0 {
            new.elevated_until = None;
        }
        create(write, &new).await?;
    }
    Ok(needs_code)
}

/// Whether an account could still be signed in to without one of its passkeys or links with providers.
async fn check_other_credential(write: &mut Write, account_id: Uuid, has_password: bool) -> Result<()> {
    let count = write.count_passkeys(account_id).await? + write.count_identities(account_id).await?;
    if has_password || count > 1 { Ok(()) } else { Err(Error::of(Code::LastCredential)) }
}

/// Creates a sign-in, and has the audit log tell of it.
async fn create(write: &mut Write, new: &NewSignIn) -> Result<()> {
    // Only who has the right password, passkey or link is told.
    if write.is_locked(new.account_id).await? {
        return Err(Error::new(Code::SignInRequired, "The account is locked. Ask whoever runs this host."));
    }
    let actor = Actor::account(Origin::Dashboard, new.account_id, None);
    let actor = Actor { address: new.client.address.clone().unwrap_or_default(), ..actor };
    let id = write.create_sign_in(new, PER_ACCOUNT).await?;
    let entry = NewEntry::new(new.account_id, actor, AuditAction::SignInsCreate).about(id);
    write.audit(entry.with(&json!({"method": new.method})));
    Ok(())
}

fn new_value(clock: &Clock) -> String {
    URL_SAFE_NO_PAD.encode(clock.random::<32>())
}

fn wait_for(wait: Duration) -> Error {
    Error::of(Code::RateLimited).after(wait)
}
