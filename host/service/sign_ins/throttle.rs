//! How often people and strangers may try: links, passwords, made-up sign-ins, and requests of a sign-in.

use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use culvert_domain::sign_in::SignIn;
use culvert_wire::client_network::prefix;
use culvert_wire::clock::Moment;
use hashlink::LruCache;
use uuid::Uuid;

use crate::failed_auth::FailedAuthLimiter;
use crate::links::hash;
use crate::try_limiter::TryLimiter;

/// Wrong passwords of one address, and how long they count.
const PASSWORDS: (u32, Duration) = (10, Duration::from_mins(5));
/// Codes of an account from one address, or of a sign-in that proves itself once more.
const CODES: (u32, Duration) = (5, Duration::from_mins(5));
/// Codes of an account from all addresses that it has not signed in from.
pub(super) const CODES_OF_STRANGERS: (u32, Duration) = (50, Duration::from_hours(24));
/// Tries to make an account by one link.
pub(super) const BEGINS: (u32, Duration) = (10, Duration::from_mins(5));
/// Tries to make accounts from one address.
const BEGINS_OF_ADDRESS: (u32, Duration) = (20, Duration::from_mins(5));
/// Sign-ins at other providers from one address: those that are begun, and those that come back.
const LOGINS: (u32, Duration) = (30, Duration::from_mins(5));
/// Wrong links of one address.
const LINKS: (u32, Duration) = (5, Duration::from_hours(1));
/// Passkeys of one address that were not accepted.
const PASSKEYS: (u32, Duration) = (10, Duration::from_mins(5));
/// Values of one address that are no sign-in's.
const UNKNOWN: (u32, Duration) = (60, MINUTE);
/// Signatures of deliveries that somebody has checked.
const SIGNATURES: (u32, Duration) = (20, MINUTE);
/// Wrong passwords for one account that cost no wait.
const FREE: u32 = 3;
const LONGEST_WAIT: Duration = Duration::from_mins(1);
/// How long wrong passwords for an account are remembered.
pub(super) const REMEMBERED_FOR: Duration = Duration::from_hours(24);
/// Accounts, their addresses, and sign-ins that are remembered.
const MAX_REMEMBERED: usize = 10_000;
const MINUTE: Duration = Duration::from_mins(1);
/// Passwords that are checked for one account in a minute, right ones among them.
const CHECKS: u32 = 20;
/// Failed sign-ins of an account that are noted: from one address, and from all.
const NOTES: (u32, Duration) = (1, MINUTE);
const NOTES_OF_ACCOUNT: (u32, Duration) = (10, Duration::from_hours(1));
/// Requests of a sign-in in a minute, and those among them that change something.
const REQUESTS: u32 = 600;
const CHANGES: u32 = 60;

/// Whose password is tried: the hash of an e-mail address or of a sign-in.
pub(super) type Account = [u8; 32];

/// Whose codes are counted together.
pub(super) struct Tries {
    near: Account,
    /// The account and the address, where somebody is not signed in yet.
    of_strangers: Option<(Account, Option<IpAddr>)>,
}

impl Tries {
    /// Those of strangers at the account, if they are from an address that nobody has signed in from.
    pub(super) fn of_strangers(&self, throttle: &Throttle) -> Option<Account> {
        self.of_strangers
            .filter(|(account, address)| !throttle.is_known(*account, *address))
            .map(|(account, _)| account)
    }

    /// Those of somebody who is signed in.
    pub(super) fn of_sign_in(sign_in: &SignIn) -> Self {
        Self { near: hash(&format!("code {}", sign_in.id)), of_strangers: None }
    }

    /// Those of somebody who signs in.
    pub(super) fn of_account(account_id: Uuid, address: Option<IpAddr>) -> Self {
        let near = hash(&format!("code {account_id} {:?}", address.map(prefix)));
        Self { near, of_strangers: Some((hash(&format!("code {account_id}")), address)) }
    }
}

pub(super) struct Throttle {
    pub links: FailedAuthLimiter,
    pub unknown: FailedAuthLimiter,
    pub passkeys: FailedAuthLimiter,
    pub begins: FailedAuthLimiter,
    pub logins: FailedAuthLimiter,
    pub callbacks: FailedAuthLimiter,
    passwords: FailedAuthLimiter,
    accounts: Mutex<LruCache<Account, Failures>>,
    /// Addresses from which somebody has signed in: strangers elsewhere do not make them wait.
    known: Mutex<LruCache<(Account, Option<IpAddr>), ()>>,
    checks: Mutex<LruCache<Account, Requests>>,
    /// Tries of any kind, by the hash of what they are for.
    pub tries: TryLimiter<Account>,
    requests: Mutex<LruCache<Uuid, Requests>>,
    /// Failed sign-ins that were noted. Beside the others, so that they push none of them out.
    notes: TryLimiter<Account>,
}

/// Wrong passwords for one account.
#[derive(Clone, Copy)]
struct Failures {
    count: u32,
    last: Moment,
}

/// The wrong passwords for an account before a try.
pub(super) struct FormerFailures(Option<Failures>);

/// What was asked for in a minute.
#[derive(Clone, Copy)]
struct Requests {
    since: Moment,
    all: u32,
    changes: u32,
}

impl Failures {
    fn wait(self, now: Moment) -> Option<Duration> {
        wait_after(self.count, now.since(self.last))
    }
}

/// What is left of 0, 0, 0, 1, 2, 4 … 60 seconds after the last of so many wrong passwords.
pub(super) fn wait_after(count: u32, since_last: Duration) -> Option<Duration> {
    let doublings = count.checked_sub(FREE)?;
    let wait = 2_u64.checked_pow(doublings).map_or(LONGEST_WAIT, Duration::from_secs).min(LONGEST_WAIT);
    let left = wait.saturating_sub(since_last);
    (!left.is_zero()).then_some(left)
}

impl Requests {
    /// The count of the minute that runs now.
    fn running(known: Option<&Self>, now: Moment) -> Self {
        let known = known.copied().filter(|known| now.since(known.since) < MINUTE);
        known.unwrap_or(Self { since: now, all: 0, changes: 0 })
    }

    fn wait(self, now: Moment) -> Duration {
        MINUTE.saturating_sub(now.since(self.since))
    }
}

impl Throttle {
    /// Whether a failed sign-in of an account from an address is to be noted.
    pub(super) fn takes_note(&self, account_id: Uuid, address: Option<IpAddr>, now: Moment) -> bool {
        let from = hash(&format!("{account_id} {:?}", address.map(prefix)));
        let of_account = hash(&account_id.to_string());
        self.notes.take(from, NOTES, now).is_ok() && self.notes.take(of_account, NOTES_OF_ACCOUNT, now).is_ok()
    }

    pub(super) fn new() -> Self {
        let limiter = |(most, within)| FailedAuthLimiter::within(most, within);
        Self {
            links: limiter(LINKS),
            unknown: limiter(UNKNOWN),
            passkeys: limiter(PASSKEYS),
            passwords: limiter(PASSWORDS),
            accounts: Mutex::new(LruCache::new(MAX_REMEMBERED)),
            known: Mutex::new(LruCache::new(MAX_REMEMBERED)),
            checks: Mutex::new(LruCache::new(MAX_REMEMBERED)),
            tries: TryLimiter::remembering(MAX_REMEMBERED),
            begins: limiter(BEGINS_OF_ADDRESS),
            logins: limiter(LOGINS),
            callbacks: limiter(LOGINS),
            requests: Mutex::new(LruCache::new(MAX_REMEMBERED)),
            notes: TryLimiter::remembering(MAX_REMEMBERED),
        }
    }

    /// Whether somebody has signed in from there.
    pub(super) fn is_known(&self, account: Account, address: Option<IpAddr>) -> bool {
        lock(&self.known).contains_key(&(account, address.map(prefix)))
    }

    /// Takes a try at a code. Strangers elsewhere do not make somebody wait at an address from which they have signed in,
    /// nor whoever is signed in.
    pub(super) fn take_code_try(&self, tries: &Tries, now: Moment) -> Result<(), Duration> {
        self.tries.take(tries.near, CODES, now)?;
        let strangers = tries.of_strangers(self);
        strangers.map_or(Ok(()), |account| self.tries.take(account, CODES_OF_STRANGERS, now))
    }

    pub(super) fn code_was_right(&self, tries: &Tries) {
        self.tries.forget(&tries.near);
        if let Some((account, address)) = tries.of_strangers {
            lock(&self.known).insert((account, address.map(prefix)), ());
        }
    }

    /// Takes a try at a password: it counts as a wrong one until it turns out to be right, so that many at once are no more
    /// than one after the other. Returns what was known before; the error is how long to wait.
    pub(super) fn take_password_try(
        &self,
        address: Option<IpAddr>,
        account: Account,
        now: Moment,
    ) -> Result<FormerFailures, Duration> {
        let mut checks = lock(&self.checks);
        let mut check = Requests::running(checks.get(&account), now);
        if check.all >= CHECKS {
            return Err(check.wait(now));
        }
        let mut accounts = lock(&self.accounts);
        let former = accounts.get(&account).copied().filter(|failures| now.since(failures.last) < REMEMBERED_FOR);
        let is_known = self.is_known(account, address);
        let wait = former.filter(|_| !is_known).and_then(|failures| failures.wait(now));
        if let Some(wait) = wait.or_else(|| self.passwords.count(address, now)) {
            return Err(wait);
        }
        let count = former.map_or(0, |failures| failures.count).saturating_add(1);
        accounts.insert(account, Failures { count, last: now });
        check.all += 1;
        checks.insert(account, check);
        Ok(FormerFailures(former))
    }

    /// Gives a try back that was not looked at.
    pub(super) fn password_was_not_checked(&self, address: Option<IpAddr>, account: Account, former: FormerFailures) {
        if let Some(check) = lock(&self.checks).get_mut(&account) {
            check.all = check.all.saturating_sub(1);
        }
        let mut accounts = lock(&self.accounts);
        match former.0 {
            Some(failures) => accounts.insert(account, failures),
            None => accounts.remove(&account),
        };
        self.passwords.forgive(address);
    }

    /// Gives a try back that was right, and remembers from where.
    pub(super) fn password_was_right(&self, address: Option<IpAddr>, account: Account) {
        lock(&self.accounts).remove(&account);
        self.passwords.forgive(address);
        lock(&self.known).insert((account, address.map(prefix)), ());
    }

    /// Takes a check of a signature, of which a sign-in has so many.
    pub(super) fn take_signature_check(&self, sign_in: Uuid, now: Moment) -> Result<(), Duration> {
        self.tries.take(hash(&format!("signature {sign_in}")), SIGNATURES, now)
    }

    pub(super) fn count_request(&self, sign_in: Uuid, is_change: bool, now: Moment) -> Result<(), Duration> {
        let mut requests = lock(&self.requests);
        let mut counted = Requests::running(requests.get(&sign_in), now);
        if counted.all >= REQUESTS || (is_change && counted.changes >= CHANGES) {
            return Err(counted.wait(now));
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
