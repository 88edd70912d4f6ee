//! How often a key may be used: in a minute, and in a day; see
//! `docs/develop/decisions/0010-keys-and-rate-limits.md`.
//!
//! A window begins with the first request in it, so `Retry-After` is exact. On SQLite there is one host, and the counts live in
//! its memory (`in_memory`). On PostgreSQL several hosts may count the same key, and the counts live in the store
//! (`in_store`).

mod in_memory;
mod in_store;
mod key_uses;

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use crate::Service;
use culvert_domain::error::{Code, Error, Result};
use culvert_store::rate::{DAY, Limits, MINUTE, Window, Windows};
use in_memory::InMemory;
use in_store::InStore;
use key_uses::KeyUses;

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
    /// After a request that was counted.
    fn of(limits: Limits, windows: Windows) -> Self {
        let left_minute = limits.per_minute.saturating_sub(windows.minute.count);
        let left_day = limits.per_day.saturating_sub(windows.day.count);
        let (limit, remaining) =
            if left_day < left_minute { (limits.per_day, left_day) } else { (limits.per_minute, left_minute) };
        Self { limit, remaining, refused: None }
    }

    /// After one that was refused, if a window is full.
    fn refused(limits: Limits, windows: Windows, now: DateTime<Utc>) -> Option<Self> {
        let wait = |window: Window, length: TimeDelta| (window.start + length - now).to_std().unwrap_or_default();
        let refused = if windows.day.count >= limits.per_day {
            (RefusedBy::Day, wait(windows.day, DAY))
        } else if windows.minute.count >= limits.per_minute {
            (RefusedBy::Minute, wait(windows.minute, MINUTE))
        } else {
            return None;
        };
        Some(Self { refused: Some(refused), ..Self::of(limits, windows) })
    }

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

pub struct RateLimits {
    in_memory: InMemory,
    in_store: Arc<InStore>,
    uses: KeyUses,
}

impl RateLimits {
    pub fn new(limits: Limits) -> Self {
        let in_store = Arc::new(InStore::new(limits));
        Self { in_memory: InMemory::new(limits), in_store, uses: KeyUses::default() }
    }

    /// Counts a request, unless it is one too many.
    ///
    /// # Errors
    ///
    /// `invalid_api_key` if the key was revoked meanwhile; if the database fails.
    pub async fn count(&self, service: &Service, key_id: Uuid) -> Result<RateLimitStatus> {
        let status = if service.store.is_on_a_server() {
            self.in_store.count(&service.store, key_id).await?
        } else {
            self.in_memory.count(&service.store, key_id).await?
        };
        if status.refused.is_none() {
            self.uses.note(key_id, service.clock().now());
        }
        Ok(status)
    }

    /// Writes what was counted in memory since the last time, and which keys were used.
    ///
    /// # Errors
    ///
    /// If the database fails. Nothing is forgotten, and the next call writes it.
    pub async fn save(&self, service: &Service) -> Result<()> {
        self.in_memory.save(&service.store).await?;
        self.uses.save(&service.store).await
    }
}
