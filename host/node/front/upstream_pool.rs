//! Connections to local services that are kept for the next request of the same port.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use culvert_wire::clock::{Clock, Moment};
use hyper::client::conn::http2;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::body::Body;
use super::lent::Outcome;
use super::limits::WebLimits;
use super::upstream::{Key, Service, Upstream};
use crate::lock;

/// How long it is remembered that a service does not speak HTTP/2.
const WITHOUT_H2_FOR: Duration = Duration::from_mins(10);
/// Requests at a time on one connection of HTTP/2. Services should take as many (RFC 9113, section 6.5.2). Where one takes fewer,
/// the others wait.
const STREAMS: usize = 100;

pub(super) struct UpstreamPool {
    clock: Clock,
    keep_for: Duration,
    /// For connections of HTTP/1.1 and of HTTP/2 that are kept, also in the pools beside this one.
    idle_places: Arc<Semaphore>,
    shared_places: Arc<Semaphore>,
    kept: Mutex<Connections>,
}

#[derive(Default)]
struct Connections {
    idle: HashMap<Key, Vec<Idle>>,
    shared: HashMap<Key, Vec<Shared>>,
    /// Services that do not speak HTTP/2, and since when that is known.
    without_h2: HashMap<Service, Moment>,
}

/// A connection of HTTP/1.1 on which nothing is under way.
struct Idle {
    since: Moment,
    upstream: Upstream,
    _place: OwnedSemaphorePermit,
}

/// A connection of HTTP/2, for many requests at a time.
struct Shared {
    /// When its last request began.
    used: Moment,
    sender: http2::SendRequest<Body>,
    streams: Arc<Semaphore>,
    outcome: Arc<Outcome>,
    _place: OwnedSemaphorePermit,
}

/// A connection of HTTP/2 that can take a request.
pub(super) struct FreeStream {
    pub sender: http2::SendRequest<Body>,
    pub place: Option<StreamPlace>,
}

/// One of the requests of a connection of HTTP/2, until this is dropped.
pub(super) type StreamPlace = OwnedSemaphorePermit;

/// What is known of a service.
pub(super) enum Known {
    Http1,
    Http2(FreeStream),
}

impl UpstreamPool {
    pub(super) fn new(clock: Clock, limits: WebLimits) -> Self {
        let places = limits.upstream_connections.min(Semaphore::MAX_PERMITS);
        let [idle_places, shared_places] = [(); 2].map(|()| Arc::new(Semaphore::new(places)));
        Self { clock, keep_for: limits.upstream_idle, idle_places, shared_places, kept: Mutex::default() }
    }

    /// An empty pool, whose connections count together with those of this one.
    pub(super) fn beside(&self) -> Self {
        Self {
            clock: self.clock.clone(),
            keep_for: self.keep_for,
            idle_places: self.idle_places.clone(),
            shared_places: self.shared_places.clone(),
            kept: Mutex::default(),
        }
    }

    /// Whether the service speaks HTTP/2, with a connection of it that can take a request.
    pub(super) fn known(&self, key: Key) -> Option<Known> {
        let (mut kept, now) = (lock(&self.kept), self.clock.moment());
        if kept.without_h2.get(&key.service).is_some_and(|since| now.since(*since) < WITHOUT_H2_FOR) {
            return Some(Known::Http1);
        }
        kept.shared.get_mut(&key)?.iter_mut().find_map(|shared| shared.free_stream(now)).map(Known::Http2)
    }

    /// Keeps a connection of HTTP/2 for other requests as well, if there is none that can take them.
    pub(super) fn share(&self, key: Key, sender: http2::SendRequest<Body>, outcome: &Arc<Outcome>) -> FreeStream {
        let streams = Arc::new(Semaphore::new(STREAMS));
        // Nobody has the others yet.
        let place = streams.clone().try_acquire_owned().ok();
        let mut kept = lock(&self.kept);
        if outcome.leads_to(key.service.target_version)
            && !kept.shared.get(&key).is_some_and(|shared| shared.iter().any(Shared::is_free))
            && let Ok(place) = self.shared_places.clone().try_acquire_owned()
        {
            let (used, outcome) = (self.clock.moment(), outcome.clone());
            let shared = Shared { used, sender: sender.clone(), streams, outcome, _place: place };
            kept.shared.entry(key).or_default().push(shared);
        }
        FreeStream { sender, place }
    }

    pub(super) fn note_http1(&self, key: Key, outcome: &Outcome) {
        if outcome.leads_to(key.service.target_version) {
            lock(&self.kept).without_h2.insert(key.service, self.clock.moment());
        }
    }

    /// A connection of HTTP/1.1 that can take a request.
    pub(super) fn take(&self, key: Key) -> Option<Upstream> {
        loop {
            let mut upstream = lock(&self.kept).idle.get_mut(&key)?.pop()?.upstream;
            if upstream.is_ready() {
                return Some(upstream);
            }
        }
    }

    /// Keeps a connection for the next request, as soon as its last one has ended and if no visitor waits for it.
    pub(super) fn give_back(self: &Arc<Self>, key: Key, mut upstream: Upstream) {
        if upstream.is_ready() {
            return self.keep(key, upstream);
        }
        let pool = self.clone();
        tokio::spawn(async move {
            if upstream.ready().await {
                pool.keep(key, upstream);
            }
        });
    }

    fn keep(&self, key: Key, upstream: Upstream) {
        if upstream.outcome.leads_to(key.service.target_version)
            && !upstream.outcome.is_wanted()
            && let Ok(place) = self.idle_places.clone().try_acquire_owned()
        {
            let idle = Idle { since: self.clock.moment(), upstream, _place: place };
            lock(&self.kept).idle.entry(key).or_default().push(idle);
        } else {
            upstream.end(&self.clock);
        }
    }

    /// Ends the connections.
    pub(super) fn end_all(&self) {
        let kept = std::mem::take(&mut *lock(&self.kept));
        kept.idle.into_values().flatten().for_each(|idle| idle.upstream.end(&self.clock));
        kept.shared.into_values().flatten().for_each(Shared::end);
    }

    /// Closes the connections that were not used for a while, and idle ones for visitors who wait. Forgets those that have
    /// ended.
    pub(super) fn sweep(&self) {
        let now = self.clock.moment();
        let is_old = |since: Moment| now.since(since) >= self.keep_for;
        let mut kept = lock(&self.kept);
        for idle in kept.idle.values_mut() {
            let gone = idle.extract_if(.., |Idle { since, upstream, .. }| {
                is_old(*since) || !upstream.is_ready() || upstream.outcome.is_wanted()
            });
            gone.for_each(|idle| idle.upstream.end(&self.clock));
        }
        kept.idle.retain(|_, idle| !idle.is_empty());
        for shared in kept.shared.values_mut() {
            let gone = shared.extract_if(.., |shared| {
                is_old(shared.used) || shared.sender.is_closed() || (shared.is_idle() && shared.outcome.is_wanted())
            });
            gone.for_each(Shared::end);
        }
        kept.shared.retain(|_, shared| !shared.is_empty());
        kept.without_h2.retain(|_, since| now.since(*since) < WITHOUT_H2_FOR);
    }
}

impl Shared {
    /// Ends it with the last of its requests.
    fn end(self) {
        self.outcome.is_ending.store(true, Ordering::Relaxed);
    }

    fn is_idle(&self) -> bool {
        self.streams.available_permits() == STREAMS
    }

    fn is_free(&self) -> bool {
        !self.sender.is_closed() && self.streams.available_permits() > 0
    }

    fn free_stream(&mut self, now: Moment) -> Option<FreeStream> {
        if self.sender.is_closed() {
            return None;
        }
        let place = self.streams.clone().try_acquire_owned().ok()?;
        self.used = now;
        Some(FreeStream { sender: self.sender.clone(), place: Some(place) })
    }
}
