//! Pages of a list, newest first. The cursor is a position that stays valid while rows are added.

use chrono::{DateTime, Utc};
use uuid::Uuid;

/// A request for at most `limit` rows that are older than a cursor position.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    pub limit: u32,
    pub after: CursorPosition,
}

/// A cursor position: the time and id of the last row of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CursorPosition {
    pub at: DateTime<Utc>,
    pub id: Uuid,
}

impl CursorPosition {
    /// The position before the newest possible row.
    pub const START: CursorPosition = CursorPosition { at: DateTime::<Utc>::MAX_UTC, id: Uuid::max() };

    /// The position of a row that is sorted by a number in place of a time.
    pub fn of_number(number: u64, id: Uuid) -> Self {
        let micros = i64::try_from(number).ok().and_then(DateTime::from_timestamp_micros);
        Self { at: micros.unwrap_or_default(), id }
    }

    /// The time in microseconds since the Unix epoch, as the store sorts it.
    pub fn micros(self) -> i64 {
        self.at.timestamp_micros()
    }
}

/// The rows of a page, and the cursor of the next one, if there is one.
#[derive(Debug)]
pub struct PageRows<T> {
    pub rows: Vec<T>,
    pub next: Option<CursorPosition>,
}

impl Page {
    /// The limit plus one row, which shows whether there is another page.
    pub fn limit_plus_one(self) -> i64 {
        i64::from(self.limit) + 1
    }

    /// Truncates the fetched rows to the page and sets the cursor of the next one.
    pub fn truncate<T>(self, mut rows: Vec<T>, place: impl Fn(&T) -> CursorPosition) -> PageRows<T> {
        let more = rows.len() > self.limit as usize;
        rows.truncate(self.limit as usize);
        let next = rows.last().filter(|_| more).map(place);
        PageRows { rows, next }
    }
}
