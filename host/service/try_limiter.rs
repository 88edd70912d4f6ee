//! How often something may be tried within a time.

use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use culvert_wire::clock::Moment;
use hashlink::LruCache;

/// Counts tries by what they are for: when its window began, and how many since.
pub(crate) struct TryLimiter<K>(Mutex<LruCache<K, (Moment, u32)>>);

impl<K: Hash + Eq> TryLimiter<K> {
    /// Remembers so many at once. Beyond them, the one that was tried longest ago is forgotten.
    pub(crate) fn remembering(most: usize) -> Self {
        Self(Mutex::new(LruCache::new(most)))
    }

    /// Takes a try, of which there may be so many in a time. The error is how long to wait.
    pub(crate) fn take(&self, what: K, (most, within): (u32, Duration), now: Moment) -> Result<(), Duration> {
        let mut tries = self.lock();
        let known = tries.get(&what).copied().filter(|(since, _)| now.since(*since) < within);
        let (since, count) = known.unwrap_or((now, 0));
        if count >= most {
            return Err(within.saturating_sub(now.since(since)));
        }
        tries.insert(what, (since, count + 1));
        Ok(())
    }

    /// Begins anew.
    pub(crate) fn forget(&self, what: &K) {
        self.lock().remove(what);
    }

    fn lock(&self) -> MutexGuard<'_, LruCache<K, (Moment, u32)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
