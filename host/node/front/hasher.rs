//! Checks of passwords, in threads that get the processor when nothing else wants it: guesses must not hold up visitors.
//!
//! Who asks for what is being checked already gets the same answer.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::{io, thread};

use argon2::{Argon2, PasswordHash, PasswordVerifier};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use tokio::sync::oneshot;

use crate::lock;

/// Checks that wait, at most.
const MOST_WAITING: usize = 16;
/// The lowest priority (setpriority(2)).
const NICE: i32 = 19;

/// At so many entries, those of checks that nobody waits for any more are dropped. Fewer checks are under way.
const MOST_UNDER_WAY: usize = 4 * MOST_WAITING;

pub(super) struct Hasher {
    checks: SyncSender<Check>,
    under_way: Mutex<HashMap<Digest, WeakShared<Answer>>>,
}

/// What tells apart what is checked.
pub(super) type Digest = [u8; 32];

/// Whether the password is right.
type Answer = BoxFuture<'static, Result<bool, Busy>>;

struct Check {
    password: Vec<u8>,
    hash: String,
    is_right: oneshot::Sender<bool>,
}

/// There are too many checks to take one more.
#[derive(Clone)]
pub(super) struct Busy;

impl Hasher {
    /// # Errors
    ///
    /// Where the operating system gives no thread.
    pub(super) fn start() -> io::Result<Self> {
        // Each check takes 19 MiB and a processor.
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let (sender, checks) = sync_channel(MOST_WAITING);
        let checks = Arc::new(Mutex::new(checks));
        for _ in 0..if cores > 2 { 2 } else { 1 } {
            let checks = checks.clone();
            thread::Builder::new().name("passwords".into()).spawn(move || work(&checks))?;
        }
        Ok(Self { checks: sender, under_way: Mutex::default() })
    }

    /// Whether a password is that of a hash (Argon2, PHC string format).
    ///
    /// # Errors
    ///
    /// Where too many checks wait.
    pub(super) async fn check(&self, digest: Digest, password: Vec<u8>, hash: String) -> Result<bool, Busy> {
        let (is_right, answer) = oneshot::channel();
        self.checks.try_send(Check { password, hash, is_right }).map_err(|_| Busy)?;
        let answer = async { answer.await.map_err(|_| Busy) }.boxed().shared();
        {
            let mut under_way = lock(&self.under_way);
            if under_way.len() >= MOST_UNDER_WAY {
                under_way.retain(|_, check| check.upgrade().is_some());
            }
            under_way.extend(answer.downgrade().map(|check| (digest, check)));
        }
        let is_right = answer.await;
        lock(&self.under_way).remove(&digest);
        is_right
    }

    /// The answer of a check that is under way.
    pub(super) fn under_way(&self, digest: &Digest) -> Option<Shared<Answer>> {
        lock(&self.under_way).get(digest)?.upgrade()
    }
}

fn work(checks: &Mutex<Receiver<Check>>) {
    // On Linux, the priority is the thread's. Without it, checks only disturb others more.
    let _ = rustix::process::nice(NICE);
    loop {
        let next = lock(checks).recv();
        let Ok(Check { password, hash, is_right }) = next else { return };
        let hash = PasswordHash::new(&hash);
        let verified = hash.is_ok_and(|hash| Argon2::default().verify_password(&password, &hash).is_ok());
        // Whoever has asked may have gone.
        let _ = is_right.send(verified);
    }
}
