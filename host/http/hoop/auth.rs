//! Who asks: the API key of a request (specification, "Authentication").

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use culvert_agent::clock::{Clock, Moment};
use ipnet::IpNet;
use salvo::http::header::AUTHORIZATION;
use salvo::{Depot, FlowCtrl, Handler, Request, Response, async_trait};

use super::trace::RequestId;
use crate::app::App;
use crate::domain::caller::Caller;
use crate::domain::key::ApiKey;
use crate::error::{Code, Error, Result};
use crate::http::{self, problem};
use crate::store::Store;
use crate::store::keys::KeyOwner;

pub struct Auth(pub Arc<App>);

#[async_trait]
impl Handler for Auth {
    async fn handle(&self, req: &mut Request, depot: &mut Depot, res: &mut Response, ctrl: &mut FlowCtrl) {
        let app = &self.0;
        let refused = match http::audience(req.uri().path()) {
            http::Audience::Anybody => return,
            http::Audience::FormerClients => Error::of(Code::ApiVersionGone),
            http::Audience::Clients => match authenticate(app, req).await {
                Ok(caller) => {
                    depot.insert_typed(caller);
                    return;
                }
                Err(error) => limit_strangers(app, req, error),
            },
        };
        problem::render(res, &refused, &app.docs_url, RequestId::of(depot));
        ctrl.skip_rest();
    }
}

async fn authenticate(app: &App, req: &Request) -> Result<Caller> {
    let mut headers = req.headers().get_all(AUTHORIZATION).iter();
    let invalid = || Error::of(Code::InvalidApiKey);
    let header = headers.next().ok_or_else(|| Error::of(Code::MissingApiKey))?;
    let (scheme, key) = header.to_str().ok().and_then(|text| text.split_once(' ')).ok_or_else(invalid)?;
    if headers.next().is_some() || !scheme.eq_ignore_ascii_case("bearer") {
        return Err(invalid());
    }
    let key = ApiKey::parse(key.trim_start()).ok_or_else(invalid)?;
    let owner = app.keys.owner(&app.store, &key).await?.ok_or_else(invalid)?;
    owner.admit(&key, app.clock.now()).cloned().ok_or_else(invalid)
}

/// Too many failures from one address are told to wait. A key that is good never comes here.
fn limit_strangers(app: &App, req: &Request, error: Error) -> Error {
    if !matches!(error.code, Code::MissingApiKey | Code::InvalidApiKey) {
        return error;
    }
    let client = client_address(req, &app.config.trusted_proxies);
    match app.strangers.count(client, app.clock.moment()) {
        None => error,
        Some(wait) => {
            app.meters.count_refusal("address");
            Error::new(Code::RateLimited, "Too many failed authentications from this address.").after(wait)
        }
    }
}

/// The client's address: the peer's, or what trusted proxies say it is.
pub fn client_address(req: &Request, trusted: &[IpNet]) -> Option<IpAddr> {
    let peer = req.remote_addr().ip()?.to_canonical();
    let is_trusted = |address: &IpAddr| trusted.iter().any(|net| net.contains(address));
    if !is_trusted(&peer) {
        return Some(peer);
    }
    // Each proxy adds, at the end, the address it was asked from.
    let forwarded = req.headers().get_all("x-forwarded-for").iter().filter_map(|value| value.to_str().ok());
    let hops: Vec<&str> = forwarded.flat_map(|list| list.split(',')).map(str::trim).collect();
    let mut client = peer;
    for hop in hops.iter().rev() {
        let Ok(address) = hop.parse::<IpAddr>() else { break };
        client = address.to_canonical();
        if !is_trusted(&client) {
            break;
        }
    }
    Some(client)
}

/// Failed authentications by address; an IPv6 client has a /64 to itself.
pub struct Strangers {
    per_minute: u32,
    windows: Mutex<HashMap<Option<IpAddr>, (Moment, u32)>>,
}

const MINUTE: Duration = Duration::from_secs(60);
/// Addresses that are remembered before the old ones are let go.
const MOST_ADDRESSES: usize = 10_000;

impl Strangers {
    pub fn new(per_minute: u32) -> Self {
        Self { per_minute, windows: Mutex::default() }
    }

    /// Counts one failure. How long to wait, where that was one too many.
    pub fn count(&self, client: Option<IpAddr>, now: Moment) -> Option<Duration> {
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        if windows.len() >= MOST_ADDRESSES {
            windows.retain(|_, (start, _)| now.since(*start) < MINUTE);
        }
        let (start, count) = windows.entry(client.map(prefix)).or_insert((now, 0));
        if now.since(*start) >= MINUTE {
            (*start, *count) = (now, 0);
        }
        if *count >= self.per_minute {
            return Some(MINUTE.saturating_sub(now.since(*start)));
        }
        *count += 1;
        None
    }
}

fn prefix(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & !(u128::MAX >> 64))),
    }
}

/// Keys and their owners, as they were at most a second ago.
pub struct KeyCache {
    clock: Clock,
    known: Mutex<HashMap<String, (Moment, Option<KeyOwner>)>>,
}

const FRESH: Duration = Duration::from_secs(1);
/// Keys that are remembered before the old ones are let go.
const MOST_KEYS: usize = 10_000;

impl KeyCache {
    pub fn new(clock: Clock) -> Self {
        Self { clock, known: Mutex::default() }
    }

    async fn owner(&self, store: &Store, key: &ApiKey) -> Result<Option<KeyOwner>> {
        let asked = self.clock.moment();
        if let Some(owner) = self.remembered(key.public_id(), asked) {
            return Ok(owner);
        }
        let owner = store.key_owner(key.public_id()).await?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST_KEYS {
            known.retain(|_, (read, _)| asked.since(*read) < FRESH);
        }
        known.insert(key.public_id().into(), (asked, owner.clone()));
        Ok(owner)
    }

    fn remembered(&self, public_id: &str, now: Moment) -> Option<Option<KeyOwner>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let (read, owner) = known.get(public_id)?;
        (now.since(*read) < FRESH).then(|| owner.clone())
    }
}
