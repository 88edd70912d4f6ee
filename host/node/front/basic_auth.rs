//! Basic authentication of visitors (RFC 7617), checked before anything reaches the device.
//!
//! A password's hash is slow on purpose. A right one is therefore hashed once and then remembered, and wrong ones are
//! limited for each address.

use std::collections::HashMap;
use std::hash::Hash;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use culvert_wire::client_network::prefix;
use culvert_wire::clock::{Clock, Moment};
use culvert_wire::node::BasicAuth;
use futures_util::FutureExt;
use futures_util::future::Shared;
use hmac::{Hmac, KeyInit, Mac};
use hyper::header::{AUTHORIZATION, HeaderMap};
use sha2::Sha256;
use tokio::sync::oneshot;
use uuid::Uuid;

use super::hasher::{Check, Hasher};
use super::pages::Page;
use crate::lock;

/// How long a right password is remembered.
const KNOWN_FOR: Duration = Duration::from_mins(5);
/// Right passwords that are remembered, at most, and addresses that they came from.
const MOST_KNOWN: usize = 10_000;
/// Wrong passwords for one tunnel from one address (IPv6: a /64) in a minute.
const GUESSES: u32 = 10;
const GUESSES_WITHIN: Duration = Duration::from_mins(1);
/// Addresses whose wrong passwords are counted, at most.
const MOST_GUESSERS: usize = 100_000;

pub(crate) struct BasicAuthCheck {
    /// What is remembered is keyed by it, so that no password can be read from memory.
    key: [u8; 32],
    hasher: Hasher,
    memory: Arc<Memory>,
}

/// What is known of passwords and of those who guess.
struct Memory {
    clock: Clock,
    right: Mutex<HashMap<Digest, Moment>>,
    /// Who came with them.
    let_in: Mutex<HashMap<(Digest, IpAddr), Moment>>,
    /// Checks that have not ended. Whoever comes with the same waits for the same answer: it is one guess.
    under_way: Mutex<HashMap<Digest, Answer>>,
    guesses: Mutex<HashMap<Guesser, Guesses>>,
}

/// Tells apart users and passwords of tunnels.
type Digest = [u8; 32];

/// Whether a user and a password are right.
type Answer = Shared<oneshot::Receiver<bool>>;

/// A tunnel and an address.
type Guesser = (Uuid, IpAddr);

struct Guesses {
    count: u32,
    since: Moment,
}

impl BasicAuthCheck {
    /// # Errors
    ///
    /// Where the operating system gives no thread for hashes.
    pub(crate) fn new(clock: Clock) -> io::Result<Self> {
        let key = clock.random();
        let memory = Memory {
            clock,
            right: Mutex::default(),
            let_in: Mutex::default(),
            under_way: Mutex::default(),
            guesses: Mutex::default(),
        };
        Ok(Self { key, hasher: Hasher::start()?, memory: Arc::new(memory) })
    }

    /// Checks the header of a request, and takes it off if it is right: it is not the service's.
    ///
    /// # Errors
    ///
    /// The answer for the visitor.
    pub(super) async fn check(
        &self,
        tunnel_id: Uuid,
        expected: &BasicAuth,
        visitor: IpAddr,
        headers: &mut HeaderMap,
    ) -> Result<(), Page> {
        let given = headers.get(AUTHORIZATION).ok_or(Page::AUTHORIZATION_REQUIRED)?;
        let guesser = (tunnel_id, prefix(visitor));
        let Some(given) = credentials(given.as_bytes()) else {
            self.memory.count_guess(guesser)?;
            return Err(Page::AUTHORIZATION_REQUIRED);
        };
        let digest = self.digest(tunnel_id, expected, &given);
        if !self.memory.was_let_in(digest, guesser.1) {
            // What is right is not told to somebody who guesses too often.
            if !self.memory.may_guess(guesser) {
                return Err(Page::TOO_MANY_ATTEMPTS);
            }
            if let Some(answer) = self.guess(guesser, expected, given, digest)? {
                match answer.await {
                    Ok(true) => {}
                    Ok(false) => return Err(Page::AUTHORIZATION_REQUIRED),
                    Err(_) => return Err(Page::NODE_BUSY),
                }
            }
        }
        headers.remove(AUTHORIZATION);
        Ok(())
    }

    /// Begins a check, or joins the same one; `None` if it is known that they are right.
    fn guess(
        &self,
        guesser: Guesser,
        expected: &BasicAuth,
        (user, password): Credentials,
        digest: Digest,
    ) -> Result<Option<Answer>, Page> {
        let mut under_way = lock(&self.memory.under_way);
        if self.memory.admit(digest, guesser.1) {
            return Ok(None);
        }
        if let Some(answer) = under_way.get(&digest) {
            return Ok(Some(answer.clone()));
        }
        // It counts as wrong until it is right.
        self.memory.count_guess(guesser)?;
        let (ended, answer) = oneshot::channel();
        let (memory, is_user) = (self.memory.clone(), user == expected.user.as_bytes());
        // A wrong user takes as long as a wrong password.
        let done = Box::new(move |is_password| {
            let is_right = is_password && is_user;
            memory.conclude(digest, guesser, is_right);
            // Whoever has asked may have gone.
            let _ = ended.send(is_right);
        });
        if self.hasher.check(Check { password, hash: expected.password_hash.clone(), done }).is_err() {
            self.memory.take_back_guess(guesser);
            return Err(Page::NODE_BUSY);
        }
        let answer = answer.shared();
        under_way.insert(digest, answer.clone());
        Ok(Some(answer))
    }

    /// The stored hash is part of it: with another password, nothing is known.
    fn digest(&self, tunnel_id: Uuid, expected: &BasicAuth, (user, password): &Credentials) -> Digest {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.key).expect("a key of any length will do");
        let expected = [tunnel_id.as_bytes(), expected.user.as_bytes(), expected.password_hash.as_bytes()];
        for part in expected.into_iter().chain([&user[..], password]) {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part);
        }
        mac.finalize().into_bytes().into()
    }
}

impl Memory {
    /// Whether an address was let in with them.
    fn was_let_in(&self, digest: Digest, address: IpAddr) -> bool {
        lock(&self.let_in).get(&(digest, address)).is_some_and(|since| self.is_known(*since))
    }

    /// Lets an address in, if they are known to be right.
    fn admit(&self, digest: Digest, address: IpAddr) -> bool {
        let since = lock(&self.right).get(&digest).copied().filter(|since| self.is_known(*since));
        if let Some(since) = since {
            self.remember(&self.let_in, (digest, address), since);
        }
        since.is_some()
    }

    fn is_known(&self, since: Moment) -> bool {
        self.clock.moment().since(since) < KNOWN_FOR
    }

    fn conclude(&self, digest: Digest, guesser: Guesser, is_right: bool) {
        if is_right {
            let now = self.clock.moment();
            self.remember(&self.right, digest, now);
            self.remember(&self.let_in, (digest, guesser.1), now);
            self.take_back_guess(guesser);
        }
        lock(&self.under_way).remove(&digest);
    }

    fn remember<K: Hash + Eq>(&self, known: &Mutex<HashMap<K, Moment>>, what: K, since: Moment) {
        let mut known = lock(known);
        make_room(&mut known, MOST_KNOWN, |since| self.is_known(*since));
        known.insert(what, since);
    }

    fn may_guess(&self, guesser: Guesser) -> bool {
        lock(&self.guesses).get(&guesser).is_none_or(|made| made.count < GUESSES || self.is_over(made))
    }

    /// Counts one more.
    ///
    /// # Errors
    ///
    /// If there were too many.
    fn count_guess(&self, guesser: Guesser) -> Result<(), Page> {
        let mut guesses = lock(&self.guesses);
        make_room(&mut guesses, MOST_GUESSERS, |made| !self.is_over(made));
        let none = || Guesses { count: 0, since: self.clock.moment() };
        let made = guesses.entry(guesser).or_insert_with(none);
        if self.is_over(made) {
            *made = none();
        }
        if made.count >= GUESSES {
            return Err(Page::TOO_MANY_ATTEMPTS);
        }
        made.count += 1;
        Ok(())
    }

    fn is_over(&self, made: &Guesses) -> bool {
        self.clock.moment().since(made.since) >= GUESSES_WITHIN
    }

    fn take_back_guess(&self, guesser: Guesser) {
        if let Some(made) = lock(&self.guesses).get_mut(&guesser) {
            made.count = made.count.saturating_sub(1);
        }
    }
}

/// Forgets what is old where a map is full, or else everything.
fn make_room<K: Hash + Eq, V>(map: &mut HashMap<K, V>, most: usize, is_new: impl Fn(&V) -> bool) {
    if map.len() >= most {
        map.retain(|_, value| is_new(value));
    }
    if map.len() >= most {
        map.clear();
    }
}

/// User and password.
type Credentials = (Vec<u8>, Vec<u8>);

fn credentials(header: &[u8]) -> Option<Credentials> {
    let (scheme, encoded) = std::str::from_utf8(header).ok()?.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let pair = STANDARD.decode(encoded.trim()).ok()?;
    let colon = pair.iter().position(|byte| *byte == b':')?;
    Some((pair[..colon].to_vec(), pair[colon + 1..].to_vec()))
}

#[cfg(test)]
mod tests {
    use argon2::{Argon2, PasswordHasher};
    use chrono::DateTime;
    use futures_util::future::join_all;
    use hyper::header::HeaderValue;

    use super::*;

    fn header(text: &str) -> HeaderMap {
        let value = HeaderValue::try_from(format!("Basic {}", STANDARD.encode(text))).unwrap();
        HeaderMap::from_iter([(AUTHORIZATION, value)])
    }

    #[tokio::test]
    async fn wrong_guesses_are_limited_for_a_minute_and_for_their_address() {
        let clock = Clock::manual(DateTime::UNIX_EPOCH);
        let check = BasicAuthCheck::new(clock.clone()).unwrap();
        let hash = Argon2::default().hash_password_with_salt(b"right", &[7; 16]).unwrap().to_string();
        let expected = BasicAuth { user: "ada".into(), password_hash: hash };
        let (tunnel, here, there) = (Uuid::from_u128(1), [10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        for guess in ["ada:wrong", "eve:right", "ada", ":", "ada:", "x:y", "1:1", "2:2", "3:3", "4:4"] {
            let refused = check.check(tunnel, &expected, here, &mut header(guess)).await;
            assert_eq!(refused, Err(Page::AUTHORIZATION_REQUIRED), "{guess}");
        }
        assert_eq!(check.check(tunnel, &expected, here, &mut header("ada:right")).await, Err(Page::TOO_MANY_ATTEMPTS));
        let mut given = header("ada:right");
        assert_eq!(check.check(tunnel, &expected, there, &mut given).await, Ok(()));
        assert!(given.is_empty(), "it is not the service's");
        // What was right there is no answer to a guess here.
        assert_eq!(check.check(tunnel, &expected, here, &mut header("ada:right")).await, Err(Page::TOO_MANY_ATTEMPTS));
        // Who was let in before stays so, whoever guesses at the same address.
        for guess in 0..10 {
            let refused = check.check(tunnel, &expected, there, &mut header(&format!("ada:{guess}"))).await;
            assert_eq!(refused, Err(Page::AUTHORIZATION_REQUIRED), "{guess}");
        }
        // However it is written.
        let value = format!("bAsIc   {} ", STANDARD.encode("ada:right"));
        let mut given = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::try_from(value).unwrap())]);
        assert_eq!(check.check(tunnel, &expected, there, &mut given).await, Ok(()));
        // All at once are one check.
        let (anew, from) = (Uuid::from_u128(2), [10, 0, 0, 3].into());
        for (given, answer) in [("ada:wrong", Err(Page::AUTHORIZATION_REQUIRED)), ("ada:right", Ok(()))] {
            let checks = (0..50).map(|_| async { check.check(anew, &expected, from, &mut header(given)).await });
            assert_eq!(join_all(checks).await, vec![answer; 50], "{given}");
        }
        clock.advance(GUESSES_WITHIN);
        let refused = check.check(tunnel, &expected, here, &mut header("ada:wrong")).await;
        assert_eq!(refused, Err(Page::AUTHORIZATION_REQUIRED));
    }
}
