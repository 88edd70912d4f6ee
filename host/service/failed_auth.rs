//! Failed authentications by address, to slow down whoever guesses keys.

use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use culvert_wire::client_network::{network, prefix};
use culvert_wire::clock::Moment;
use hashlink::LruCache;

const MINUTE: Duration = Duration::from_mins(1);
/// Addresses that are remembered each for itself. Beyond them, networks are counted as one.
const MAX_ADDRESSES: usize = 10_000;
/// Addresses and networks. Beyond them, whole providers are counted as one.
const MAX_NETWORKS: usize = 15_000;
/// Entries of all kinds. Beyond them, the one that began first is forgotten.
const MAX_ENTRIES: usize = 19_000;
/// Prefix lengths of networks in IPv4 and IPv6: an IPv6 provider's customer has a /48 at most.
const NETWORK: (u32, u32) = (24, 48);
/// Prefix lengths of providers.
const PROVIDER: (u32, u32) = (16, 32);

/// Failures of one address within a time, which is a minute if nothing else is said. An IPv6 client has a /64 to itself.
pub struct FailedAuthLimiter {
    most: u32,
    within: Duration,
    windows: Mutex<Windows>,
}

/// For each address or network: when its window began, and the failures in it.
struct Windows(LruCache<Option<IpAddr>, (Moment, u32)>);

impl FailedAuthLimiter {
    pub fn new(per_minute: u32) -> Self {
        Self::within(per_minute, MINUTE)
    }

    pub fn within(most: u32, within: Duration) -> Self {
        Self { most, within, windows: Mutex::new(Windows(LruCache::new(MAX_ENTRIES))) }
    }

    /// Counts one failure. Returns how long to wait if that was one too many.
    pub fn count(&self, client: Option<IpAddr>, now: Moment) -> Option<Duration> {
        let mut windows = self.windows();
        windows.remove_expired(now, self.within);
        let key = windows.key(client);
        if !windows.0.contains_key(&key) {
            windows.0.insert(key, (now, 0));
        }
        let (start, count) = windows.0.peek_mut(&key)?;
        if *count >= self.most {
            return Some(self.within.saturating_sub(now.since(*start)));
        }
        *count += 1;
        None
    }

    /// Takes back what was counted last of an address.
    pub fn forgive(&self, client: Option<IpAddr>) {
        let mut windows = self.windows();
        let key = windows.key(client);
        if let Some((_, count)) = windows.0.peek_mut(&key) {
            *count = count.saturating_sub(1);
        }
    }

    /// How long an address has to wait, if it has failed too often.
    pub fn wait(&self, client: Option<IpAddr>, now: Moment) -> Option<Duration> {
        let windows = self.windows();
        let (start, count) = windows.0.peek(&windows.key(client))?;
        let age = now.since(*start);
        (*count >= self.most && age < self.within).then(|| self.within.saturating_sub(age))
    }

    /// How many addresses and networks are remembered.
    pub fn remembered(&self) -> usize {
        self.windows().0.len()
    }

    fn windows(&self) -> MutexGuard<'_, Windows> {
        self.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Windows {
    /// An address; its network where there are many addresses and this one is new; its provider where there are many
    /// networks as well.
    fn key(&self, client: Option<IpAddr>) -> Option<IpAddr> {
        let own = client.map(prefix);
        if self.0.len() < MAX_ADDRESSES || self.0.contains_key(&own) {
            return own;
        }
        let of = |(v4, v6)| client.map(|client| network(client, v4, v6));
        let network = of(NETWORK);
        if self.0.len() < MAX_NETWORKS || self.0.contains_key(&network) { network } else { of(PROVIDER) }
    }

    /// Removes the windows that are over. The oldest is at the front: `peek` does not move an entry.
    fn remove_expired(&mut self, now: Moment, within: Duration) {
        while self.0.iter().next().is_some_and(|(_, (start, _))| now.since(*start) >= within) {
            self.0.remove_lru();
        }
    }
}
