//! Checks of passwords, in threads that get the processor when nothing else wants it: guesses must not hold up visitors.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::{io, thread};

use argon2::{Argon2, PasswordHash, PasswordVerifier};

use crate::lock;

/// Checks that wait, at most.
const MOST_WAITING: usize = 16;
/// The lowest priority (setpriority(2)).
const NICE: i32 = 19;

pub(super) struct Hasher(SyncSender<Check>);

/// A password, and the hash that it may be the password of (Argon2, PHC string format).
pub(super) struct Check {
    pub password: Vec<u8>,
    pub hash: String,
    /// Is told whether it is.
    pub done: Box<dyn FnOnce(bool) + Send>,
}

/// There are too many checks to take one more.
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
        Ok(Self(sender))
    }

    /// Takes a check.
    ///
    /// # Errors
    ///
    /// Where too many checks wait.
    pub(super) fn check(&self, check: Check) -> Result<(), Busy> {
        self.0.try_send(check).map_err(|_| Busy)
    }
}

fn work(checks: &Mutex<Receiver<Check>>) {
    // On Linux, the priority is the thread's. Without it, checks only disturb others more.
    let _ = rustix::process::nice(NICE);
    loop {
        let next = lock(checks).recv();
        let Ok(Check { password, hash, done }) = next else { return };
        let hash = PasswordHash::new(&hash);
        done(hash.is_ok_and(|hash| Argon2::default().verify_password(&password, &hash).is_ok()));
    }
}
