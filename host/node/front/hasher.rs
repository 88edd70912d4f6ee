//! Checks of passwords, in threads that get the processor when nothing else wants it: guesses must not hold up visitors.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::{io, thread};

use argon2::{Argon2, PasswordHash, PasswordVerifier};
use tokio::sync::oneshot;

use crate::lock;

/// Checks that wait, at most.
const MOST_WAITING: usize = 16;
/// The lowest priority (setpriority(2)).
const NICE: i32 = 19;

pub(super) struct Hasher(SyncSender<Check>);

struct Check {
    password: Vec<u8>,
    hash: String,
    is_right: oneshot::Sender<bool>,
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

    /// Whether a password is that of a hash (Argon2, PHC string format).
    ///
    /// # Errors
    ///
    /// Where too many checks wait.
    pub(super) async fn check(&self, password: Vec<u8>, hash: String) -> Result<bool, Busy> {
        let (is_right, answer) = oneshot::channel();
        self.0.try_send(Check { password, hash, is_right }).map_err(|_| Busy)?;
        answer.await.map_err(|_| Busy)
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
