//! Counts in memory, read at a key's first request and written to the store once a second.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use chrono::{DateTime, TimeDelta, Utc};
use culvert_domain::error::{Error, Result};
use culvert_store::rate::{DAY, Limits, MINUTE, Window, Windows};
use culvert_store::{Store, Write};
use hashlink::LruCache;
use uuid::Uuid;

use super::RateLimitStatus;

/// What was counted for a key.
type Unsaved = (Uuid, Windows);

/// Keys that are remembered once their counts are saved. Beyond them, the one that was used longest ago is read from
/// the store again.
const MAX_KEYS: usize = 100_000;

pub(super) struct InMemory {
    limits: Limits,
    keys: Mutex<Keys>,
}

struct Keys {
    counts: LruCache<Uuid, Counts>,
    /// The keys that were used since the last save.
    unsaved: BTreeSet<Uuid>,
}

impl Keys {
    /// Forgets keys that were not used for a day, and the oldest where there are too many. None is forgotten whose
    /// counts are not saved.
    fn forget_idle(&mut self, now: DateTime<Utc>) {
        while let Some((key_id, counts)) = self.counts.iter().next() {
            let is_over = self.counts.len() > MAX_KEYS || now - counts.used_at >= DAY;
            if !is_over || self.unsaved.contains(key_id) {
                return;
            }
            self.counts.remove_lru();
        }
    }
}

/// One key's windows, and what of them the store does not know yet.
struct Counts {
    windows: Windows,
    unsaved: Windows,
    used_at: DateTime<Utc>,
}

impl InMemory {
    pub(super) fn new(limits: Limits) -> Self {
        let keys = Keys { counts: LruCache::new_unbounded(), unsaved: BTreeSet::new() };
        Self { limits, keys: Mutex::new(keys) }
    }

    /// Counts a request, unless it is one too many.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub(super) async fn count(&self, store: &Store, key_id: Uuid) -> Result<RateLimitStatus> {
        let now = store.clock().now();
        if let Some(status) = self.count_known(key_id, now) {
            return Ok(status);
        }
        let stored = store.rate_windows(key_id).await?;
        let mut keys = self.keys();
        // Another request with the key may have come first.
        if !keys.counts.contains_key(&key_id) {
            keys.counts.insert(key_id, Counts::from(stored, now));
        }
        drop(keys);
        self.count_known(key_id, now).ok_or_else(|| Error::internal("a key's counts were forgotten at once"))
    }

    fn count_known(&self, key_id: Uuid, now: DateTime<Utc>) -> Option<RateLimitStatus> {
        let mut keys = self.keys();
        let Keys { counts, unsaved } = &mut *keys;
        let counts = counts.get_mut(&key_id)?;
        counts.roll(now);
        if let Some(refused) = RateLimitStatus::refused(self.limits, counts.windows, now) {
            return Some(refused);
        }
        counts.add();
        counts.used_at = now;
        unsaved.insert(key_id);
        Some(RateLimitStatus::of(self.limits, counts.windows))
    }

    /// Writes what was counted since the last time, in one transaction, and takes over what another process has counted. Keys
    /// that were not used for a day are forgotten.
    ///
    /// # Errors
    ///
    /// If the database fails. The counts are kept for the next time.
    pub(super) async fn save(&self, store: &Store) -> Result<()> {
        let unsaved = self.take_unsaved(store.clock().now());
        if unsaved.is_empty() {
            return Ok(());
        }
        let kept = unsaved.clone();
        let saved = store.write(None, move |write| Box::pin(save_all(write, unsaved))).await;
        let mut keys = self.keys();
        match saved {
            Ok(sums) => {
                for ((key_id, counted), sum) in kept.into_iter().zip(sums) {
                    keys.counts.peek_mut(&key_id).into_iter().for_each(|counts| counts.adopt(counted, sum));
                }
                Ok(())
            }
            Err(error) => {
                for (key_id, counted) in kept {
                    keys.counts.peek_mut(&key_id).into_iter().for_each(|counts| counts.take_back(counted));
                    keys.unsaved.insert(key_id);
                }
                Err(error)
            }
        }
    }

    fn take_unsaved(&self, now: DateTime<Utc>) -> Vec<Unsaved> {
        let mut keys = self.keys();
        keys.forget_idle(now);
        let ids = std::mem::take(&mut keys.unsaved);
        let mut unsaved = Vec::new();
        for key_id in ids {
            let Some(counts) = keys.counts.peek_mut(&key_id) else { continue };
            unsaved.push((key_id, std::mem::replace(&mut counts.unsaved, emptied(counts.windows))));
        }
        unsaved
    }

    fn keys(&self) -> MutexGuard<'_, Keys> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The sums in the store, in the same order.
async fn save_all(write: &mut Write, unsaved: Vec<Unsaved>) -> Result<Vec<Windows>> {
    let mut sums = Vec::new();
    for (key_id, counted) in unsaved {
        sums.push(write.add_requests(key_id, counted).await?);
    }
    Ok(sums)
}

/// The same windows, without any request.
fn emptied(windows: Windows) -> Windows {
    let empty = |window: Window| Window { count: 0, ..window };
    Windows { minute: empty(windows.minute), day: empty(windows.day) }
}

impl Counts {
    fn from(stored: Option<Windows>, now: DateTime<Utc>) -> Self {
        let new = Window { start: now, count: 0 };
        let windows = stored.unwrap_or(Windows { minute: new, day: new });
        Self { windows, unsaved: emptied(windows), used_at: now }
    }

    /// Begins a new window where the old one is over.
    fn roll(&mut self, now: DateTime<Utc>) {
        let new = Window { start: now, count: 0 };
        // One that begins later than now was begun by a clock that was ahead.
        let is_over = |window: Window, length: TimeDelta| now - window.start >= length || window.start > now;
        if is_over(self.windows.minute, MINUTE) {
            (self.windows.minute, self.unsaved.minute) = (new, new);
        }
        if is_over(self.windows.day, DAY) {
            (self.windows.day, self.unsaved.day) = (new, new);
        }
    }

    fn add(&mut self) {
        for windows in [&mut self.windows, &mut self.unsaved] {
            windows.minute.count += 1;
            windows.day.count += 1;
        }
    }

    /// Counts again, the next time, what could not be saved; unless the window is another one by now.
    fn take_back(&mut self, counted: Windows) {
        let add = |window: &mut Window, counted: Window| {
            if window.start == counted.start {
                window.count += counted.count;
            }
        };
        add(&mut self.unsaved.minute, counted.minute);
        add(&mut self.unsaved.day, counted.day);
    }

    /// Takes over the store's sum, and what was counted here since it was asked; unless the window
    /// is another one by now.
    fn adopt(&mut self, counted: Windows, sum: Windows) {
        let adopt = |window: &mut Window, unsaved: Window, counted: Window, sum: Window| {
            if window.start == counted.start {
                *window = Window { start: sum.start, count: sum.count + unsaved.count };
            }
        };
        adopt(&mut self.windows.minute, self.unsaved.minute, counted.minute, sum.minute);
        adopt(&mut self.windows.day, self.unsaved.day, counted.day, sum.day);
    }
}
