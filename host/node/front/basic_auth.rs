//! Basic authentication of visitors (RFC 7617), checked before anything reaches the device.
//!
//! A password's hash is slow on purpose. A right one is therefore hashed once and then remembered, and wrong ones are
//! limited for each address.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use culvert_wire::client_network::prefix;
use culvert_wire::clock::{Clock, Moment};
use culvert_wire::node::BasicAuth;
use hmac::{Hmac, KeyInit, Mac};
use hyper::header::{AUTHORIZATION, HeaderMap};
use sha2::Sha256;
use uuid::Uuid;

use super::hasher::{Busy, Digest, Hasher};
use super::pages::Page;
use crate::lock;

/// How long a right password is remembered.
const KNOWN_FOR: Duration = Duration::from_mins(5);
/// Right passwords that are remembered, at most.
const MOST_KNOWN: usize = 10_000;
/// Wrong passwords for one tunnel from one address (IPv6: a /64) in a minute.
const GUESSES: u32 = 10;
const GUESSES_WITHIN: Duration = Duration::from_mins(1);
/// Addresses whose wrong passwords are counted, at most.
const MOST_GUESSERS: usize = 100_000;

pub(crate) struct BasicAuthCheck {
    clock: Clock,
    /// What is remembered is keyed by it, so that no password can be read from memory.
    key: [u8; 32],
    known: Mutex<HashMap<Digest, Moment>>,
    guesses: Mutex<HashMap<(Uuid, IpAddr), Guesses>>,
    hasher: Hasher,
}

struct Guesses {
    count: u32,
    since: Moment,
}

impl BasicAuthCheck {
    /// # Errors
    ///
    /// Where the operating system gives no thread for hashes.
    pub(crate) fn new(clock: Clock) -> io::Result<Self> {
        Ok(Self {
            key: clock.random(),
            clock,
            known: Mutex::default(),
            guesses: Mutex::default(),
            hasher: Hasher::start()?,
        })
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
        let given = credentials(given.as_bytes());
        let digest = given.as_ref().map(|given| self.digest(tunnel_id, expected, given));
        let now = self.clock.moment();
        if !digest.is_some_and(|digest| self.is_known(&digest, now)) {
            let given = given.zip(digest);
            let under_way = given.as_ref().and_then(|given| Some((given, self.hasher.under_way(&given.1)?)));
            match under_way {
                // The same at the same time is one guess.
                Some((((user, _), digest), check)) => self.judge(expected, user, *digest, check.await)?,
                None => self.guess((tunnel_id, prefix(visitor)), expected, given).await?,
            }
        }
        headers.remove(AUTHORIZATION);
        Ok(())
    }

    async fn guess(
        &self,
        guesser: (Uuid, IpAddr),
        expected: &BasicAuth,
        given: Option<(Credentials, Digest)>,
    ) -> Result<(), Page> {
        let now = self.clock.moment();
        if self.guesses(guesser, now) >= GUESSES {
            return Err(Page::TOO_MANY_ATTEMPTS);
        }
        // It counts as wrong until it is right: whoever goes away before has guessed, too.
        self.count_guess(guesser, now);
        let ((user, password), digest) = given.ok_or(Page::AUTHORIZATION_REQUIRED)?;
        let checked = self.hasher.check(digest, password, expected.password_hash.clone()).await;
        let judged = self.judge(expected, &user, digest, checked);
        if judged != Err(Page::AUTHORIZATION_REQUIRED) {
            self.take_back_guess(guesser);
        }
        judged
    }

    /// A wrong user takes as long as a wrong password.
    fn judge(
        &self,
        expected: &BasicAuth,
        user: &[u8],
        digest: Digest,
        checked: Result<bool, Busy>,
    ) -> Result<(), Page> {
        match checked {
            Ok(true) if user == expected.user.as_bytes() => {
                self.remember(digest, self.clock.moment());
                Ok(())
            }
            Ok(_) => Err(Page::AUTHORIZATION_REQUIRED),
            Err(Busy) => Err(Page::NODE_BUSY),
        }
    }

    fn is_known(&self, digest: &Digest, now: Moment) -> bool {
        lock(&self.known).get(digest).is_some_and(|known| now.since(*known) < KNOWN_FOR)
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

    fn remember(&self, digest: Digest, now: Moment) {
        let mut known = lock(&self.known);
        if known.len() >= MOST_KNOWN {
            known.retain(|_, since| now.since(*since) < KNOWN_FOR);
        }
        if known.len() >= MOST_KNOWN {
            known.clear();
        }
        known.insert(digest, now);
    }

    fn guesses(&self, guesser: (Uuid, IpAddr), now: Moment) -> u32 {
        let guesses = lock(&self.guesses);
        guesses.get(&guesser).filter(|made| now.since(made.since) < GUESSES_WITHIN).map_or(0, |made| made.count)
    }

    fn take_back_guess(&self, guesser: (Uuid, IpAddr)) {
        if let Some(made) = lock(&self.guesses).get_mut(&guesser) {
            made.count = made.count.saturating_sub(1);
        }
    }

    fn count_guess(&self, guesser: (Uuid, IpAddr), now: Moment) {
        let mut guesses = lock(&self.guesses);
        if guesses.len() >= MOST_GUESSERS {
            guesses.retain(|_, made| now.since(made.since) < GUESSES_WITHIN);
        }
        if guesses.len() >= MOST_GUESSERS {
            guesses.clear();
        }
        let made = guesses.entry(guesser).or_insert(Guesses { count: 0, since: now });
        if now.since(made.since) >= GUESSES_WITHIN {
            *made = Guesses { count: 0, since: now };
        }
        made.count += 1;
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
        // What was right there is known now, and needs no guess.
        assert_eq!(check.check(tunnel, &expected, here, &mut header("ada:right")).await, Ok(()));
        // However it is written.
        let value = format!("bAsIc   {} ", STANDARD.encode("ada:right"));
        let mut given = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::try_from(value).unwrap())]);
        assert_eq!(check.check(tunnel, &expected, here, &mut given).await, Ok(()));
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
