//! Authentication of a request by its API key; see `docs/develop/decisions/0010-keys-and-rate-limits.md`.

use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use culvert_domain::caller::Caller;
use culvert_domain::error::{Code, Error, Result};
use culvert_domain::key::ApiKey;
use culvert_store::Store;
use culvert_store::keys::KeyOwner;
use culvert_wire::clock::{Clock, Moment};
use hashlink::LruCache;

use crate::Service;
use crate::failed_auth::FailedAuthLimiter;

/// How old a key's owner may be that is taken from the cache.
const FRESH: Duration = Duration::from_secs(1);
/// How long a key that was good is known.
const KNOWN_FOR: Duration = Duration::from_hours(24);
/// Keys whose owners are remembered. Beyond them, the one that was read longest ago is forgotten.
const MAX_OWNERS: usize = 10_000;
/// Keys that are known to be good. Beyond them, the one that was used longest ago is forgotten. Only good keys are
/// among them, so strangers cannot fill the list.
const MAX_GOOD: usize = 100_000;

/// Who may ask: the keys that are known, and the addresses that have failed too often.
pub struct Authentication {
    keys: KeyCache,
    pub failed_auth: FailedAuthLimiter,
    /// Counts wrong enrolment codes by address.
    pub wrong_codes: FailedAuthLimiter,
}

impl Authentication {
    pub fn new(clock: Clock, failures_per_minute: u32) -> Self {
        Self {
            keys: KeyCache::new(clock),
            failed_auth: FailedAuthLimiter::new(failures_per_minute),
            wrong_codes: FailedAuthLimiter::new(failures_per_minute),
        }
    }

    /// Reads which keys were used within a day: they are known after a restart as well.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn recall(&self, service: &Service) -> Result<()> {
        self.keys.recall(&service.store).await
    }

    /// The caller of a key.
    ///
    /// # Errors
    ///
    /// `invalid_api_key` for a key that is none, and for every unknown key of an address that has failed too often:
    /// anybody can make up keys of the right form.
    pub async fn caller(&self, service: &Service, key: &ApiKey, client: Option<IpAddr>) -> Result<Caller> {
        let invalid = || Error::of(Code::InvalidApiKey);
        let clock = service.clock();
        if !self.keys.knows(key) && self.failed_auth.wait(client, clock.moment()).is_some() {
            return Err(invalid());
        }
        let owner = self.keys.owner(&service.store, key).await?.ok_or_else(invalid)?;
        let caller = owner.admit(key, clock.now()).cloned().ok_or_else(invalid)?;
        self.keys.record_good(key);
        Ok(caller)
    }
}

/// Keys and their owners, as they were at most a second ago.
struct KeyCache {
    clock: Clock,
    known: Mutex<Known>,
}

struct Known {
    owners: LruCache<String, (Moment, Option<KeyOwner>)>,
    /// When keys were last found to be good.
    good: LruCache<String, Moment>,
}

impl KeyCache {
    fn new(clock: Clock) -> Self {
        let known = Known { owners: LruCache::new(MAX_OWNERS), good: LruCache::new(MAX_GOOD) };
        Self { clock, known: Mutex::new(known) }
    }

    async fn recall(&self, store: &Store) -> Result<()> {
        let (now, since) = (self.clock.moment(), self.clock.now() - KNOWN_FOR);
        let used = store.keys_used_since(since, MAX_GOOD).await?;
        let mut known = self.known();
        // The last used come first, and are to be forgotten last.
        for public_id in used.into_iter().rev() {
            known.good.insert(public_id, now);
        }
        Ok(())
    }

    /// Whether a key was good within a day.
    fn knows(&self, key: &ApiKey) -> bool {
        let now = self.clock.moment();
        self.known().good.peek(key.public_id()).is_some_and(|last| now.since(*last) < KNOWN_FOR)
    }

    async fn owner(&self, store: &Store, key: &ApiKey) -> Result<Option<KeyOwner>> {
        let asked = self.clock.moment();
        if let Some(owner) = self.remembered(key.public_id(), asked) {
            return Ok(owner);
        }
        let owner = store.key_owner(key.public_id()).await?;
        self.known().owners.insert(key.public_id().into(), (asked, owner.clone()));
        Ok(owner)
    }

    fn record_good(&self, key: &ApiKey) {
        let now = self.clock.moment();
        let mut known = self.known();
        if let Some(last) = known.good.get_mut(key.public_id()) {
            *last = now;
        } else {
            known.good.insert(key.public_id().into(), now);
        }
    }

    fn remembered(&self, public_id: &str, now: Moment) -> Option<Option<KeyOwner>> {
        let known = self.known();
        let (read, owner) = known.owners.peek(public_id)?;
        (now.since(*read) < FRESH).then(|| owner.clone())
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
