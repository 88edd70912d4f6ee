//! Request counts of API keys, stored so that they survive a restart and are shared by hosts.

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use super::arg::args;
use super::error::DbResult;
use super::read::Read;
use super::row::Row;
use super::sql::sql;
use super::{Store, Write};
use culvert_domain::error::Result;

/// The number of requests in a time window, which starts with its first request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub start: DateTime<Utc>,
    pub count: u32,
}

/// The one-minute and one-day windows of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    pub minute: Window,
    pub day: Window,
}

pub const MINUTE: TimeDelta = TimeDelta::minutes(1);
pub const DAY: TimeDelta = TimeDelta::days(1);

impl Store {
    pub async fn rate_windows(&self, key_id: Uuid) -> Result<Option<Windows>> {
        let sql =
            sql!("SELECT minute_start, minute_count, day_start, day_count FROM rate_windows WHERE api_key_id = $1");
        let row = (&self.db).optional(sql, args![key_id]).await?;
        Ok(row.as_ref().map(windows).transpose()?)
    }
}

impl Write {
    /// Adds the requests that this host has counted to the stored counts, and returns the sums. A stored
    /// window that has ended is replaced; one that is still running keeps its start.
    pub async fn add_requests(&mut self, key_id: Uuid, counted: Windows) -> Result<Windows> {
        let sql = sql!(
            "INSERT INTO rate_windows (api_key_id, minute_start, minute_count, day_start, day_count) \
             VALUES ($1, $2, $3, $4, $5) \
             ON CONFLICT (api_key_id) DO UPDATE SET \
                 minute_count = CASE WHEN rate_windows.minute_start > $6 AND rate_windows.minute_start <= $8 THEN rate_windows.minute_count ELSE 0 END \
                     + excluded.minute_count, \
                 minute_start = CASE WHEN rate_windows.minute_start > $6 AND rate_windows.minute_start <= $8 THEN rate_windows.minute_start \
                     ELSE excluded.minute_start END, \
                 day_count = CASE WHEN rate_windows.day_start > $7 AND rate_windows.day_start <= $8 THEN rate_windows.day_count ELSE 0 END \
                     + excluded.day_count, \
                 day_start = CASE WHEN rate_windows.day_start > $7 AND rate_windows.day_start <= $8 THEN rate_windows.day_start \
                     ELSE excluded.day_start END \
             RETURNING minute_start, minute_count, day_start, day_count"
        );
        let now = self.now;
        let Windows { minute, day } = counted;
        let args = args![key_id, minute.start, minute.count, day.start, day.count, now - MINUTE, now - DAY, now];
        Ok(windows(&self.one(sql, args).await?)?)
    }
}

fn windows(row: &Row) -> DbResult<Windows> {
    Ok(Windows {
        minute: Window { start: row.time("minute_start")?, count: row.number("minute_count")? },
        day: Window { start: row.time("day_start")?, count: row.number("day_count")? },
    })
}
