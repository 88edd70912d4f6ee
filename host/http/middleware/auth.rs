//! Who asks: authentication of a request by its API key; see
//! `docs/develop/decisions/0010-keys-and-rate-limits.md`.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use culvert_wire::clock::{Clock, Moment};
use ipnet::IpNet;
use salvo::http::header::AUTHORIZATION;
use salvo::{Depot, FlowCtrl, Handler, Request, Response, async_trait};

use super::trace::RequestId;
use crate::http::Api;
use crate::http::path::Path;
use crate::http::{self, problem};
use culvert_domain::caller::Caller;
use culvert_domain::error::{Code, Error, Result};
use culvert_domain::key::ApiKey;
use culvert_store::Store;
use culvert_store::keys::KeyOwner;
use culvert_wire::client_network::{self, network, prefix};

pub struct Auth(pub Arc<Api>);

#[async_trait]
impl Handler for Auth {
    async fn handle(&self, req: &mut Request, depot: &mut Depot, res: &mut Response, ctrl: &mut FlowCtrl) {
        let api = &self.0;
        let refused = match http::auth_requirement(Path::of(depot)) {
            http::AuthRequirement::Anybody => return,
            http::AuthRequirement::FormerClients => Error::of(Code::ApiVersionGone),
            http::AuthRequirement::Clients => match authenticate(api, req).await {
                Ok(caller) => {
                    depot.insert_typed(caller);
                    return;
                }
                Err(error) => limit_failed_auth(api, req, error),
            },
        };
        problem::render(res, &refused, &api.docs_url, RequestId::of(depot));
        ctrl.skip_rest();
    }
}

async fn authenticate(api: &Api, req: &Request) -> Result<Caller> {
    let mut headers = req.headers().get_all(AUTHORIZATION).iter();
    let invalid = || Error::of(Code::InvalidApiKey);
    let header = headers.next().ok_or_else(|| Error::of(Code::MissingApiKey))?;
    let (scheme, key) = header.to_str().ok().and_then(|text| text.split_once(' ')).ok_or_else(invalid)?;
    if headers.next().is_some() || !scheme.eq_ignore_ascii_case("bearer") {
        return Err(invalid());
    }
    let key = ApiKey::parse(key.trim_start()).ok_or_else(invalid)?;
    // Anybody can make up keys of the right form: after too many failures, only known ones are looked at.
    if !api.authentication.keys.knows(&key) && is_over(api, req).is_some() {
        return Err(invalid());
    }
    let owner = api.authentication.keys.owner(&api.service.store, &key).await?.ok_or_else(invalid)?;
    let caller = owner.admit(&key, api.clock.now()).cloned().ok_or_else(invalid)?;
    api.authentication.keys.note_good(&key);
    Ok(caller)
}

/// How long the address of a request has to wait, if it has failed too often.
fn is_over(api: &Api, req: &Request) -> Option<Duration> {
    api.authentication.failed_auth.is_over(client_address(req, &api.trusted_proxies), api.clock.moment())
}

/// Too many failures from one address are told to wait. A key that was good within a day never comes
/// here.
fn limit_failed_auth(api: &Api, req: &Request, error: Error) -> Error {
    if !matches!(error.code, Code::MissingApiKey | Code::InvalidApiKey) {
        return error;
    }
    let client = client_address(req, &api.trusted_proxies);
    match api.authentication.failed_auth.count(client, api.clock.moment()) {
        None => error,
        Some(wait) => {
            api.metrics.count_refusal("address");
            Error::new(Code::RateLimited, "Too many failed authentications from this address.").after(wait)
        }
    }
}

/// The client's address: the peer's, or what trusted proxies say it is.
pub fn client_address(req: &Request, trusted: &[IpNet]) -> Option<IpAddr> {
    let forwarded = req.headers().get_all("x-forwarded-for").iter().filter_map(|value| value.to_str().ok());
    Some(client_network::client_address(req.remote_addr().ip()?, forwarded, trusted))
}

/// Failed authentications by address; an IPv6 client has a /64 to itself.
pub struct FailedAuthLimiter {
    per_minute: u32,
    windows: Mutex<Windows>,
}

#[derive(Default)]
struct Windows {
    by_address: HashMap<Option<IpAddr>, (Moment, u32)>,
    swept: Moment,
}

const MINUTE: Duration = Duration::from_secs(60);
/// Addresses that are remembered each for itself. Beyond them, whole networks are counted as one.
const MOST_ADDRESSES: usize = 10_000;
/// The networks: an IPv6 provider's customer has a /48 at most.
const NETWORK_V4: u32 = 24;
const NETWORK_V6: u32 = 48;
/// How often those that are over are let go.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

impl FailedAuthLimiter {
    pub fn new(per_minute: u32) -> Self {
        Self { per_minute, windows: Mutex::default() }
    }

    /// Counts one failure. How long to wait, where that was one too many.
    pub fn count(&self, client: Option<IpAddr>, now: Moment) -> Option<Duration> {
        let mut windows = self.windows();
        windows.sweep(now);
        let key = windows.key(client);
        let (start, count) = windows.by_address.entry(key).or_insert((now, 0));
        if now.since(*start) >= MINUTE {
            (*start, *count) = (now, 0);
        }
        if *count >= self.per_minute {
            return Some(MINUTE.saturating_sub(now.since(*start)));
        }
        *count += 1;
        None
    }

    /// How long an address has to wait, if it has failed too often.
    pub fn is_over(&self, client: Option<IpAddr>, now: Moment) -> Option<Duration> {
        let windows = self.windows();
        let (start, count) = windows.by_address.get(&windows.key(client))?;
        let age = now.since(*start);
        (*count >= self.per_minute && age < MINUTE).then(|| MINUTE - age)
    }

    /// How many addresses and networks are remembered.
    pub fn remembered(&self) -> usize {
        self.windows().by_address.len()
    }

    fn windows(&self) -> MutexGuard<'_, Windows> {
        self.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Windows {
    /// An address, or its network where there are many addresses and this one is new.
    fn key(&self, client: Option<IpAddr>) -> Option<IpAddr> {
        let own = client.map(prefix);
        if self.by_address.len() < MOST_ADDRESSES || self.by_address.contains_key(&own) {
            return own;
        }
        client.map(|client| network(client, NETWORK_V4, NETWORK_V6))
    }

    fn sweep(&mut self, now: Moment) {
        if self.by_address.len() >= MOST_ADDRESSES && now.since(self.swept) >= SWEEP_EVERY {
            self.swept = now;
            self.by_address.retain(|_, (start, _)| now.since(*start) < MINUTE);
        }
    }
}

/// Who may ask: the keys that are known, and the addresses that have failed too often.
pub struct Authentication {
    pub keys: KeyCache,
    pub failed_auth: FailedAuthLimiter,
    /// Those who tried enrolment codes that were none.
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
}

/// Keys and their owners, as they were at most a second ago.
pub struct KeyCache {
    clock: Clock,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    owners: HashMap<String, (Moment, Option<KeyOwner>)>,
    /// When keys were last found to be good.
    good: HashMap<String, Moment>,
}

const FRESH: Duration = Duration::from_secs(1);
/// How long a key that was good is known.
const KNOWN_FOR: Duration = Duration::from_secs(24 * 60 * 60);
/// Keys that are remembered before the old ones are let go.
const MOST_KEYS: usize = 10_000;

impl KeyCache {
    pub fn new(clock: Clock) -> Self {
        Self { clock, known: Mutex::default() }
    }

    /// Takes in which keys were used within a day: they are known after a restart as well.
    ///
    /// # Errors
    ///
    /// Where the database cannot be asked.
    pub async fn recall(&self, store: &Store) -> Result<()> {
        let (now, since) = (self.clock.moment(), self.clock.now() - KNOWN_FOR);
        let used = store.keys_used_since(since, MOST_KEYS).await?;
        self.known().good.extend(used.into_iter().map(|public_id| (public_id, now)));
        Ok(())
    }

    /// Whether a key was good within a day.
    fn knows(&self, key: &ApiKey) -> bool {
        let now = self.clock.moment();
        self.known().good.get(key.public_id()).is_some_and(|last| now.since(*last) < KNOWN_FOR)
    }

    async fn owner(&self, store: &Store, key: &ApiKey) -> Result<Option<KeyOwner>> {
        let asked = self.clock.moment();
        if let Some(owner) = self.remembered(key.public_id(), asked) {
            return Ok(owner);
        }
        let owner = store.key_owner(key.public_id()).await?;
        let mut known = self.known();
        if known.owners.len() >= MOST_KEYS {
            known.owners.retain(|_, (read, _)| asked.since(*read) < FRESH);
        }
        known.owners.insert(key.public_id().into(), (asked, owner.clone()));
        Ok(owner)
    }

    /// A key was found to be good.
    fn note_good(&self, key: &ApiKey) {
        let now = self.clock.moment();
        let mut known = self.known();
        match known.good.get_mut(key.public_id()) {
            Some(last) => *last = now,
            None => {
                if known.good.len() >= MOST_KEYS {
                    known.good.retain(|_, last| now.since(*last) < KNOWN_FOR);
                }
                known.good.insert(key.public_id().into(), now);
            }
        }
    }

    fn remembered(&self, public_id: &str, now: Moment) -> Option<Option<KeyOwner>> {
        let known = self.known();
        let (read, owner) = known.owners.get(public_id)?;
        (now.since(*read) < FRESH).then(|| owner.clone())
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
