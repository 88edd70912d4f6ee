//! How often a key may be used: in a minute, and in a day; see
//! `docs/develop/decisions/0010-keys-and-rate-limits.md`.
//!
//! A window begins with the first request in it, so `Retry-After` is exact. The counts live here
//! and are written to the store once a second, where several hosts add theirs up.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use hashlink::LruCache;
use uuid::Uuid;

use crate::Service;
use culvert_domain::error::{Code, Error, Result};
use culvert_store::Write;
use culvert_store::rate::{DAY, MINUTE, Window, Windows};

/// Where a key stands after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimitStatus {
    /// Requests that the window with the least left allows.
    pub limit: u32,
    /// Requests that are left in it.
    pub remaining: u32,
    refused: Option<(RefusedBy, Duration)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RefusedBy {
    Minute,
    Day,
}

impl RateLimitStatus {
    /// The window that is full, and what the client is told.
    pub fn refusal(self) -> Option<(&'static str, Error)> {
        let (by, wait) = self.refused?;
        let (window, code) = match by {
            RefusedBy::Minute => ("minute", Code::RateLimited),
            RefusedBy::Day => ("day", Code::DailyQuotaExceeded),
        };
        Some((window, Error::of(code).after(wait)))
    }
}

/// What was counted for a key, and when it was last used, where that is to be noted.
type Unsaved = (Uuid, Windows, Option<DateTime<Utc>>);

/// Keys that are remembered once their counts are saved. Beyond them, the one that was used longest ago is read from
/// the store again.
const MAX_KEYS: usize = 100_000;

pub struct RateLimits {
    per_minute: u32,
    per_day: u32,
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
    use_saved_at: Option<DateTime<Utc>>,
}

impl RateLimits {
    pub fn new(per_minute: u32, per_day: u32) -> Self {
        let keys = Keys { counts: LruCache::new_unbounded(), unsaved: BTreeSet::new() };
        Self { per_minute, per_day, keys: Mutex::new(keys) }
    }

    /// Counts a request, unless it is one too many.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn count(&self, service: &Service, key_id: Uuid) -> Result<RateLimitStatus> {
        let now = service.clock().now();
        if let Some(status) = self.count_known(key_id, now) {
            return Ok(status);
        }
        let stored = service.store.rate_windows(key_id).await?;
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
        let Windows { minute, day } = counts.windows;
        let wait = |window: Window, length: TimeDelta| (window.start + length - now).to_std().unwrap_or_default();
        let refused = if day.count >= self.per_day {
            Some((RefusedBy::Day, wait(day, DAY)))
        } else if minute.count >= self.per_minute {
            Some((RefusedBy::Minute, wait(minute, MINUTE)))
        } else {
            counts.add();
            counts.used_at = now;
            unsaved.insert(key_id);
            None
        };
        let left_minute = self.per_minute.saturating_sub(counts.windows.minute.count);
        let left_day = self.per_day.saturating_sub(counts.windows.day.count);
        let (limit, remaining) =
            if left_day < left_minute { (self.per_day, left_day) } else { (self.per_minute, left_minute) };
        Some(RateLimitStatus { limit, remaining, refused })
    }

    /// Writes what was counted since the last time, in one transaction, and takes over what other
    /// hosts have counted. Keys that were not used for a day are forgotten.
    ///
    /// # Errors
    ///
    /// If the database fails. The counts are kept for the next time.
    pub async fn save(&self, service: &Service) -> Result<()> {
        let unsaved = self.take_unsaved(service.clock().now());
        if unsaved.is_empty() {
            return Ok(());
        }
        let kept = unsaved.clone();
        let saved = service.store.write(None, move |write| Box::pin(save_all(write, unsaved))).await;
        let mut keys = self.keys();
        match saved {
            Ok(sums) => {
                for ((key_id, counted, _), sum) in kept.into_iter().zip(sums) {
                    keys.counts.peek_mut(&key_id).into_iter().for_each(|counts| counts.adopt(counted, sum));
                }
                Ok(())
            }
            Err(error) => {
                for (key_id, counted, _) in kept {
                    keys.counts.peek_mut(&key_id).into_iter().for_each(|counts| counts.take_back(counted));
                    keys.unsaved.insert(key_id);
                }
                Err(error)
            }
        }
    }

    /// In the order of their ids: hosts that share a database write in one order, so that none waits for the other
    /// in a circle.
    fn take_unsaved(&self, now: DateTime<Utc>) -> Vec<Unsaved> {
        let mut keys = self.keys();
        keys.forget_idle(now);
        let ids = std::mem::take(&mut keys.unsaved);
        let mut unsaved = Vec::new();
        for key_id in ids {
            let Some(counts) = keys.counts.peek_mut(&key_id) else { continue };
            let used_at = counts.use_saved_at.is_none_or(|saved| now - saved >= MINUTE).then_some(counts.used_at);
            if used_at.is_some() {
                counts.use_saved_at = Some(now);
            }
            unsaved.push((key_id, std::mem::replace(&mut counts.unsaved, emptied(counts.windows)), used_at));
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
    for (key_id, counted, used_at) in unsaved {
        sums.push(write.add_requests(key_id, counted).await?);
        if let Some(used_at) = used_at {
            write.record_key_use(key_id, used_at).await?;
        }
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
        Self { windows, unsaved: emptied(windows), used_at: now, use_saved_at: None }
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
        self.use_saved_at = None;
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
