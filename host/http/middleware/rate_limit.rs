//! How often a key may be used: in a minute, and in a day; see
//! `docs/develop/decisions/0010-keys-and-rate-limits.md`.
//!
//! A window begins with the first request in it, so `Retry-After` is exact. The counts live here
//! and are written to the store once a second, where several hosts add theirs up.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use salvo::http::header::HeaderValue;
use salvo::{Depot, FlowCtrl, Handler, Request, Response, async_trait};
use uuid::Uuid;

use super::trace::RequestId;
use crate::http::Api;
use crate::http::problem;
use culvert_domain::caller::Caller;
use culvert_domain::error::{Code, Error, Result};
use culvert_store::rate::{DAY, MINUTE, Window, Windows};
use culvert_store::{Store, Write};

pub struct RateLimit(pub Arc<Api>);

#[async_trait]
impl Handler for RateLimit {
    async fn handle(&self, _: &mut Request, depot: &mut Depot, res: &mut Response, ctrl: &mut FlowCtrl) {
        let api = &self.0;
        let Some(key_id) = depot.get_typed::<Caller>().map(|caller| caller.key_id).ok() else { return };
        match api.rate_limits.count(&api.service.store, key_id, api.clock.now()).await {
            Ok(standing) => {
                standing.tell(res);
                let Some((window, refused)) = standing.refusal() else { return };
                api.metrics.count_refusal(window);
                problem::render(res, &refused, &api.docs_url, RequestId::of(depot));
            }
            Err(error) => problem::render(res, &error, &api.docs_url, RequestId::of(depot)),
        }
        ctrl.skip_rest();
    }
}

/// Where a key stands after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimitStatus {
    /// Of the window with the least left.
    limit: u32,
    remaining: u32,
    refused: Option<(RefusedBy, Duration)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RefusedBy {
    Minute,
    Day,
}

impl RateLimitStatus {
    fn tell(self, res: &mut Response) {
        let headers = res.headers_mut();
        headers.insert("x-ratelimit-limit", HeaderValue::from(self.limit));
        headers.insert("x-ratelimit-remaining", HeaderValue::from(self.remaining));
    }

    /// The window that is full, and what the client is told.
    fn refusal(self) -> Option<(&'static str, Error)> {
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

pub struct RateLimits {
    per_minute: u32,
    per_day: u32,
    keys: Mutex<HashMap<Uuid, Counts>>,
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
        Self { per_minute, per_day, keys: Mutex::default() }
    }

    /// Counts a request, unless it is one too many.
    pub async fn count(&self, store: &Store, key_id: Uuid, now: DateTime<Utc>) -> Result<RateLimitStatus> {
        if let Some(standing) = self.count_known(key_id, now) {
            return Ok(standing);
        }
        let stored = store.rate_windows(key_id).await?;
        self.keys().entry(key_id).or_insert_with(|| Counts::from(stored, now));
        Ok(self.count_known(key_id, now).expect("it was entered just now, and only `save` removes"))
    }

    fn count_known(&self, key_id: Uuid, now: DateTime<Utc>) -> Option<RateLimitStatus> {
        let mut keys = self.keys();
        let counts = keys.get_mut(&key_id)?;
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
    pub async fn save(&self, store: &Store, now: DateTime<Utc>) -> Result<()> {
        let unsaved = self.take_unsaved(now);
        if unsaved.is_empty() {
            return Ok(());
        }
        let kept = unsaved.clone();
        let saved = store.write(None, move |write| Box::pin(save_all(write, unsaved))).await;
        let mut keys = self.keys();
        match saved {
            Ok(sums) => kept.into_iter().zip(sums).for_each(|((key_id, counted, _), sum)| {
                if let Some(counts) = keys.get_mut(&key_id) {
                    counts.adopt(counted, sum);
                }
            }),
            Err(error) => {
                for (key_id, counted, _) in kept {
                    keys.get_mut(&key_id).into_iter().for_each(|counts| counts.take_back(counted));
                }
                return Err(error);
            }
        }
        Ok(())
    }

    fn take_unsaved(&self, now: DateTime<Utc>) -> Vec<Unsaved> {
        let mut keys = self.keys();
        keys.retain(|_, counts| counts.unsaved.day.count > 0 || now - counts.used_at < DAY);
        let mut unsaved = Vec::new();
        for (key_id, counts) in keys.iter_mut().filter(|(_, counts)| counts.unsaved.day.count > 0) {
            let used_at = counts.use_saved_at.is_none_or(|saved| now - saved >= MINUTE).then_some(counts.used_at);
            if used_at.is_some() {
                counts.use_saved_at = Some(now);
            }
            unsaved.push((*key_id, std::mem::replace(&mut counts.unsaved, emptied(counts.windows)), used_at));
        }
        // Hosts that share a database write in one order, so that none waits for the other in a circle.
        unsaved.sort_unstable_by_key(|(key_id, ..)| *key_id);
        unsaved
    }

    fn keys(&self) -> std::sync::MutexGuard<'_, HashMap<Uuid, Counts>> {
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
