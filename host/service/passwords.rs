//! Password hashing: Argon2id (RFC 9106), a few hashes at a time.

use std::thread::available_parallelism;
use std::time::Duration;

use argon2::{Argon2, Params, PasswordHash, PasswordHasher, PasswordVerifier};
use culvert_domain::error::{Code, Error, Result};
use culvert_wire::clock::Clock;
use tokio::sync::{OnceCell, Semaphore, SemaphorePermit};

/// Cores that hashing leaves to everything else. Each hash takes 19 MiB of memory.
const SPARED_CORES: usize = 1;
const MOST_HASHERS: usize = 2;
/// Checks that wait for a hasher, at most.
const WAITING: usize = 16;
/// When it is worth trying again where too many wait.
const RETRY_AFTER: Duration = Duration::from_secs(2);

pub(crate) struct Passwords {
    hashers: Semaphore,
    waiting: Semaphore,
    /// The hash of a password that nobody has.
    nobodys: OnceCell<String>,
    clock: Clock,
}

impl Passwords {
    pub(crate) fn new(clock: Clock) -> Self {
        let cores = available_parallelism().map_or(1, usize::from);
        let hashers = cores.saturating_sub(SPARED_CORES).clamp(1, MOST_HASHERS);
        let (hashers, waiting) = (Semaphore::new(hashers), Semaphore::new(WAITING));
        Self { hashers, waiting, nobodys: OnceCell::new(), clock }
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

    /// A new hash of a password that was right, if the former was made by other parameters than those of today.
    ///
    /// # Errors
    ///
    /// If the hash cannot be computed.
    pub(crate) async fn rehash(&self, password: &str, former: &str) -> Result<Option<String>> {
        let cost = |params: &Params| (params.m_cost(), params.t_cost(), params.p_cost());
        let parameters = PasswordHash::new(former).ok().and_then(|former| Params::try_from(&former).ok());
        let is_current = parameters.as_ref().map(cost) == Some(cost(Argon2::default().params()));
        if is_current { Ok(None) } else { self.hash(Some(password.to_owned())).await }
    }

    /// Whether a password is the one of a hash. Without a hash it is not, after the same work.
    ///
    /// # Errors
    ///
    /// If too many checks wait; if the hash is none.
    pub(crate) async fn check(&self, password: String, hash: Option<String>) -> Result<bool> {
        let is_known = hash.is_some();
        let hash = match hash {
            Some(hash) => hash,
            None => self.nobodys().await?,
        };
        let check = move || {
            let hash = PasswordHash::new(&hash).map_err(Error::internal)?;
            Ok::<_, Error>(Argon2::default().verify_password(password.as_bytes(), &hash).is_ok())
        };
        let checked = self.work(check).await?.ok_or_else(|| Error::internal("a password could not be checked"))?;
        Ok(checked? && is_known)
    }

    /// Does work that takes long, in the place of a hash. `None` if it panics.
    ///
    /// # Errors
    ///
    /// If too much waits.
    pub(crate) async fn work<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<Option<T>> {
        let _one = self.next_hasher().await?;
        Ok(tokio::task::spawn_blocking(work).await.ok())
    }

    async fn next_hasher(&self) -> Result<SemaphorePermit<'_>> {
        let busy = || Error::new(Code::ServiceUnavailable, "Too many passwords are being checked.").after(RETRY_AFTER);
        let _waiting = self.waiting.try_acquire().map_err(|_| busy())?;
        self.hashers.acquire().await.map_err(Error::internal)
    }

    async fn nobodys(&self) -> Result<String> {
        let make = async || {
            let password = self.clock.random::<32>().map(|byte| char::from(byte % 26 + b'a'));
            let hash = self.hash(Some(password.iter().collect())).await?;
            hash.ok_or_else(|| Error::internal("a password without a hash"))
        };
        self.nobodys.get_or_try_init(make).await.cloned()
    }
}
