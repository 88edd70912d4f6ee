//! Sign-ins of people at the dashboard: by a link or with a password, and what they may do meanwhile. A sign-in is known by
//! a random value in a cookie, of which the store has the hash.

mod strength;
mod throttle;

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::{DateTime, TimeDelta, Utc};
use culvert_domain::caller::Caller;
use culvert_domain::error::{Code, Error, Result};
use culvert_domain::sign_in::{ELEVATION, Membership, SignIn, SignInClient, SignInMethod};
use culvert_domain::text;
use culvert_store::sign_ins::NewSignIn;
use culvert_wire::clock::{Clock, Moment};
use hashlink::LruCache;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::{Service, links};
use strength::{PASSWORD_CHARACTERS, check_strength};
use throttle::Throttle;

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

/// Sign-ins by the hashes of their values, as they were at a moment.
type Remembered = LruCache<[u8; 32], (Moment, Option<SignIn>)>;

/// Who is signed in, and how often strangers may try to.
pub struct SignIns {
    clock: Clock,
    lifetimes: Lifetimes,
    remembered: Mutex<Remembered>,
    throttle: Throttle,
}

/// The value for the cookie of a sign-in, which is known now and never again.
pub struct SignInValue {
    pub value: String,
    pub expires_at: DateTime<Utc>,
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
    pub fn new(clock: Clock, lifetimes: Lifetimes) -> Self {
        let remembered = Mutex::new(LruCache::new(MAX_REMEMBERED));
        Self { clock, lifetimes, remembered, throttle: Throttle::new() }
    }

    /// The sign-in of a cookie's value, as it was at most a second ago. `None` if it is over.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn find(&self, service: &Service, value: &str) -> Result<Option<SignIn>> {
        let (hash, asked) = (hash(value), self.clock.moment());
        let remembered = self.remembered(|cache| {
            cache.peek(&hash).and_then(|(read, known)| (asked.since(*read) < FRESH).then(|| known.clone()))
        });
        let known = match remembered {
            Some(known) => known,
            None => self.read(service, hash, asked).await?,
        };
        let now = self.clock.now();
        Ok(known.filter(|known| now < known.expires_at && now < known.last_seen_at + self.lifetimes.idle))
    }

    async fn read(&self, service: &Service, hash: [u8; 32], asked: Moment) -> Result<Option<SignIn>> {
        let known = service.store.sign_in(&hash).await?;
        if let Some(sign_in) = &known {
            let now = self.clock.now();
            let is_idle = now >= sign_in.last_seen_at + self.lifetimes.idle;
            if !is_idle && now - sign_in.last_seen_at >= NOTED_EVERY {
                let id = sign_in.id;
                let note =
                    service.store.write(None, move |write| Box::pin(async move { write.note_sign_in_seen(id).await }));
                note.await?;
            }
        }
        self.remembered(|cache| cache.insert(hash, (asked, known.clone())));
        Ok(known)
    }

    /// Counts a request of a sign-in, of which there may be so many in a minute.
    ///
    /// # Errors
    ///
    /// `rate_limited` if that was one too many.
    pub fn count(&self, sign_in: &SignIn, is_change: bool) -> Result<()> {
        self.throttle.count_request(sign_in.id, is_change, self.clock.moment()).map_err(wait_for)
    }

    /// Signs somebody in who has a link. The link is used up.
    ///
    /// # Errors
    ///
    /// `link_not_valid` if it is used up, too old or none; `rate_limited` after too many of those from one address.
    pub async fn enter(&self, service: &Service, typed: &str, client: &Client) -> Result<SignInValue> {
        let now = self.clock.moment();
        self.throttle.links.wait(client.address, now).map_or(Ok(()), |wait| Err(wait_for(wait)))?;
        let not_valid = || {
            self.throttle.links.count(client.address, now);
            Error::of(Code::LinkNotValid)
        };
        let hash = links::hash_of(typed).ok_or_else(not_valid)?;
        // Checked first without a write transaction, so that wrong links do not delay other writers.
        if !service.store.has_link(&hash).await? {
            return Err(not_valid());
        }
        let (value, mut new) = self.new_sign_in(Uuid::nil(), SignInMethod::Link, client);
        let entered = service.store.write(None, move |write| {
            Box::pin(async move {
                let Some(account_id) = write.take_link(&hash).await? else { return Ok(None) };
                new.account_id = account_id;
                write.create_sign_in(&new, PER_ACCOUNT).await.map(Some)
            })
        });
        entered.await?.map(|_| value).ok_or_else(not_valid)
    }

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
    ) -> Result<Option<SignInValue>> {
        let Some((account_id, _)) = self.check_password(service, email, password, client.address).await? else {
            return Ok(None);
        };
        let (value, mut new) = self.new_sign_in(account_id, SignInMethod::Password, client);
        new.elevated_until = Some(self.clock.now() + ELEVATION);
        let create = service
            .store
            .write(None, move |write| Box::pin(async move { write.create_sign_in(&new, PER_ACCOUNT).await }));
        create.await?;
        Ok(Some(value))
    }

    /// Has somebody who is signed in prove with the password who it is. `None` if it is not right.
    ///
    /// # Errors
    ///
    /// As [`SignIns::sign_in`].
    pub async fn elevate(
        &self,
        service: &Service,
        sign_in: &SignIn,
        password: &str,
        client: &Client,
    ) -> Result<Option<SignInValue>> {
        if self.check_password(service, &sign_in.email, password, client.address).await?.is_none() {
            return Ok(None);
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
        let now = self.clock.now();
        if !sign_in.is_elevated(now) && !sign_in.may_set_first_password(now) {
            return Err(Error::of(Code::ElevationRequired));
        }
        check_strength(&password, sign_in)?;
        let hash = service.passwords.hash(Some(password)).await?;
        self.give_new_value(service, sign_in, hash).await
    }

    /// Gives a sign-in another value and elevates it; with a password's hash, sets that as well.
    async fn give_new_value(
        &self,
        service: &Service,
        sign_in: &SignIn,
        password: Option<String>,
    ) -> Result<SignInValue> {
        let (id, account_id, expires_at) = (sign_in.id, sign_in.account_id, sign_in.expires_at);
        let value = new_value(&self.clock);
        let hash = hash(&value);
        let changed = service.store.write(None, move |write| {
            Box::pin(async move {
                if let Some(password) = password {
                    write.set_password(account_id, &password).await?;
                    write.end_other_sign_ins(account_id, id).await?;
                }
                let until = write.now + ELEVATION;
                write.elevate_sign_in(id, &hash, until).await
            })
        });
        if !changed.await? {
            return Err(Error::of(Code::SignInRequired));
        }
        self.forget();
        Ok(SignInValue { value, expires_at })
    }

    /// Ends a sign-in of the account; with none, all but this one.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn end(&self, service: &Service, sign_in: &SignIn, other: Option<Uuid>) -> Result<()> {
        let (own, account_id) = (sign_in.id, sign_in.account_id);
        let end = service.store.write(None, move |write| {
            Box::pin(async move {
                match other {
                    Some(id) => write.end_sign_in(account_id, id).await,
                    None => write.end_other_sign_ins(account_id, own).await,
                }
            })
        });
        end.await?;
        self.forget();
        Ok(())
    }

    async fn check_password(
        &self,
        service: &Service,
        email: &str,
        password: &str,
        address: Option<IpAddr>,
    ) -> Result<Option<(Uuid, String)>> {
        let now = self.clock.moment();
        let account = hash(&email.to_lowercase());
        self.throttle.before_password(address, account, now).map_err(wait_for)?;
        let known = service.store.password_by_email(email).await?;
        let hash = known.as_ref().map(|(_, hash)| hash.clone());
        let is_right = password.chars().count() <= *PASSWORD_CHARACTERS.end()
            && service.passwords.check(password.to_owned(), hash).await?;
        self.throttle.after_password(address, account, is_right, now);
        Ok(known.filter(|_| is_right))
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

    /// What this host has just changed is true at once.
    fn forget(&self) {
        self.remembered(LruCache::clear);
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
    pub async fn teams_of(&self, sign_in: &SignIn) -> Result<Vec<Membership>> {
        self.store.teams_of(sign_in.account_id).await
    }

    /// The sign-ins of the same account, the last used first.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn sign_ins_of(&self, sign_in: &SignIn) -> Result<Vec<SignIn>> {
        self.store.sign_ins_of(sign_in.account_id).await
    }
}

fn new_value(clock: &Clock) -> String {
    URL_SAFE_NO_PAD.encode(clock.random::<32>())
}

fn hash(text: &str) -> [u8; 32] {
    Sha256::digest(text).into()
}

fn wait_for(wait: Duration) -> Error {
    Error::of(Code::RateLimited).after(wait)
}
