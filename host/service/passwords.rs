//! Password hashing: Argon2id (RFC 9106), a few hashes at a time.

use argon2::{Argon2, PasswordHasher};
use culvert_domain::error::{Error, Result};
use culvert_wire::clock::Clock;
use tokio::sync::Semaphore;

/// Hashes that are computed at the same time, at most: each takes 19 MiB of memory.
const AT_ONCE: usize = 2;

pub(crate) struct Passwords {
    hashers: Semaphore,
    clock: Clock,
}

impl Passwords {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { hashers: Semaphore::new(AT_ONCE), clock }
    }

    /// Hashes a password. Hashing is slow on purpose, so it runs on a blocking thread.
    ///
    /// # Errors
    ///
    /// If the hash cannot be computed.
    pub(crate) async fn hash(&self, password: Option<String>) -> Result<Option<String>> {
        let Some(password) = password else { return Ok(None) };
        let salt: [u8; 16] = self.clock.random();
        let _one = self.hashers.acquire().await.map_err(Error::internal)?;
        let hashed = tokio::task::spawn_blocking(move || {
            Argon2::default().hash_password_with_salt(password.as_bytes(), &salt).map(|hash| hash.to_string())
        });
        hashed.await.map_err(Error::internal)?.map(Some).map_err(Error::internal)
    }
}
