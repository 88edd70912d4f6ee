//! How often people and strangers may try: links, passwords, and requests of a sign-in.

use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use culvert_wire::clock::Moment;
use hashlink::LruCache;
use uuid::Uuid;

use crate::failed_auth::FailedAuthLimiter;

/// Wrong passwords of one address, and how long they count.
const PASSWORDS: (u32, Duration) = (10, Duration::from_mins(5));
/// Wrong links of one address.
const LINKS: (u32, Duration) = (5, Duration::from_hours(1));
/// Wrong passwords for one account that cost no wait.
const FREE: u32 = 3;
const LONGEST_WAIT: Duration = Duration::from_mins(1);
/// How long wrong passwords for an account are remembered.
const REMEMBERED_FOR: Duration = Duration::from_hours(24);
/// Accounts, and sign-ins, that are remembered.
const MAX_REMEMBERED: usize = 10_000;
const MINUTE: Duration = Duration::from_mins(1);
/// Requests of a sign-in in a minute, and those among them that change something.
const REQUESTS: u32 = 600;
const CHANGES: u32 = 60;

pub(super) struct Throttle {
    pub links: FailedAuthLimiter,
    passwords: FailedAuthLimiter,
    accounts: Mutex<LruCache<[u8; 32], Failures>>,
    requests: Mutex<LruCache<Uuid, Requests>>,
}

/// Wrong passwords for one account.
#[derive(Clone, Copy)]
struct Failures {
    count: u32,
    last: Moment,
}

/// The requests of a sign-in in a minute.
#[derive(Clone, Copy)]
struct Requests {
    since: Moment,
    all: u32,
    changes: u32,
}

impl Failures {
    /// 0, 0, 0, 1, 2, 4 … 60 seconds after the last one.
    fn wait(self, now: Moment) -> Option<Duration> {
        let doublings = self.count.checked_sub(FREE)?;
        let wait = 2_u64.checked_pow(doublings).map_or(LONGEST_WAIT, Duration::from_secs).min(LONGEST_WAIT);
        let left = wait.saturating_sub(now.since(self.last));
        (!left.is_zero()).then_some(left)
    }
}

impl Throttle {
    pub(super) fn new() -> Self {
        Self {
            links: FailedAuthLimiter::within(LINKS.0, LINKS.1),
            passwords: FailedAuthLimiter::within(PASSWORDS.0, PASSWORDS.1),
            accounts: Mutex::new(LruCache::new(MAX_REMEMBERED)),
            requests: Mutex::new(LruCache::new(MAX_REMEMBERED)),
        }
    }

    /// Whether a password may be tried; else how long to wait.
    pub(super) fn before_password(
        &self,
        address: Option<IpAddr>,
        account: [u8; 32],
        now: Moment,
    ) -> Result<(), Duration> {
        let of_account = lock(&self.accounts).peek(&account).and_then(|failures| failures.wait(now));
        match self.passwords.wait(address, now).max(of_account) {
            Some(wait) => Err(wait),
            None => Ok(()),
        }
    }

    pub(super) fn after_password(&self, address: Option<IpAddr>, account: [u8; 32], was_right: bool, now: Moment) {
        let mut accounts = lock(&self.accounts);
        if was_right {
            accounts.remove(&account);
            return;
        }
        self.passwords.count(address, now);
        let former = accounts.get(&account).filter(|failures| now.since(failures.last) < REMEMBERED_FOR);
        let count = former.map_or(0, |failures| failures.count).saturating_add(1);
        accounts.insert(account, Failures { count, last: now });
    }

    pub(super) fn count_request(&self, sign_in: Uuid, is_change: bool, now: Moment) -> Result<(), Duration> {
        let mut requests = lock(&self.requests);
        let fresh = Requests { since: now, all: 0, changes: 0 };
        let known = requests.get(&sign_in).copied().filter(|known| now.since(known.since) < MINUTE);
        let mut counted = known.unwrap_or(fresh);
        if counted.all >= REQUESTS || (is_change && counted.changes >= CHANGES) {
            return Err(MINUTE.saturating_sub(now.since(counted.since)));
        }
        counted.all += 1;
        counted.changes += u32::from(is_change);
        requests.insert(sign_in, counted);
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
