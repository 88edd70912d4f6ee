//! Password hashes: Argon2id (RFC 9106), a few at a time.

use argon2::{Argon2, PasswordHasher};
use culvert_domain::error::{Error, Result};
use culvert_wire::clock::Clock;
use tokio::sync::Semaphore;

/// Hashes that are made at the same time: each takes 19 MiB.
const AT_ONCE: usize = 2;

pub struct Passwords {
    hashers: Semaphore,
    clock: Clock,
}

impl Passwords {
    pub fn new(clock: Clock) -> Self {
        Self { hashers: Semaphore::new(AT_ONCE), clock }
    }

    /// The hash of a password. Hashing is slow on purpose, so it has a thread of its own.
    ///
    /// # Errors
    ///
    /// Where the hash cannot be made.
    pub async fn hash(&self, password: Option<String>) -> Result<Option<String>> {
        let Some(password) = password else { return Ok(None) };
        let salt: [u8; 16] = self.clock.random();
        let _one = self.hashers.acquire().await.map_err(Error::internal)?;
        let hashed = tokio::task::spawn_blocking(move || {
            Argon2::default().hash_password_with_salt(password.as_bytes(), &salt).map(|hash| hash.to_string())
        });
        hashed.await.map_err(Error::internal)?.map(Some).map_err(Error::internal)
    }
}
