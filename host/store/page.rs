//! Pages of a list: newest first, from a place that stays where it is while rows are added.

use chrono::{DateTime, Utc};
use uuid::Uuid;

/// Rows older than a place, so many of them.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    pub limit: u32,
    pub after: CursorPosition,
}

/// Where a page ends: a row's time and id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CursorPosition {
    pub at: DateTime<Utc>,
    pub id: Uuid,
}

impl CursorPosition {
    /// Before the newest row there can be.
    pub const START: CursorPosition = CursorPosition { at: DateTime::<Utc>::MAX_UTC, id: Uuid::max() };

    /// As the store sorts it.
    pub fn micros(self) -> i64 {
        self.at.timestamp_micros()
    }
}

/// The rows of a page, and where the next one begins.
#[derive(Debug)]
pub struct PageRows<T> {
    pub rows: Vec<T>,
    pub next: Option<CursorPosition>,
}

impl Page {
    /// One more than is shown, to know whether there is another page.
    pub fn limit_plus_one(self) -> i64 {
        i64::from(self.limit) + 1
    }

    /// Cuts what was fetched down to the page.
    pub fn truncate<T>(self, mut rows: Vec<T>, place: impl Fn(&T) -> CursorPosition) -> PageRows<T> {
        let more = rows.len() > self.limit as usize;
        rows.truncate(self.limit as usize);
        let next = rows.last().filter(|_| more).map(place);
        PageRows { rows, next }
    }
}
