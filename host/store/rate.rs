//! Request counts of API keys, stored so that they survive a restart and are shared by hosts.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use super::arg::args;
use super::error::DbResult;
use super::fleet::database_time;
use super::read::Read;
use super::row::Row;
use super::sql::{by_ids, sql};
use super::{Store, Write};
use culvert_domain::error::{Error, Result};

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

impl Windows {
    /// The same, with nothing counted in a window that does not run at this time. One that begins much later was begun by a
    /// clock that was ahead.
    #[must_use]
    pub fn running(self, now: DateTime<Utc>) -> Self {
        let running = |window: Window, length| {
            let runs = now - window.start < length && window.start - now <= MINUTE;
            if runs { window } else { Window { count: 0, ..window } }
        };
        Self { minute: running(self.minute, MINUTE), day: running(self.day, DAY) }
    }

    /// The same, before so many requests.
    #[must_use]
    pub fn less(self, requests: u32) -> Self {
        let less = |window: Window| Window { count: window.count.saturating_sub(requests), ..window };
        Self { minute: less(self.minute), day: less(self.day) }
    }
}

/// Requests of one key that are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub per_minute: u32,
    pub per_day: u32,
}

/// What came of requests of one key.
#[derive(Clone, Copy, Debug)]
pub struct Counted {
    /// How many of them were counted; the rest were too many.
    pub admitted: u32,
    pub windows: Windows,
    /// The database's time.
    pub at: DateTime<Utc>,
}

/// What a window has, if it runs at the time `t.now`, or something else. One that another host began while this statement
/// waited for the row begins later than that; one that begins more than a minute later is an error of a clock.
macro_rules! running {
    ($window:literal, $length:literal, $what:literal, $otherwise:literal) => {
        concat!(
            "CASE WHEN r.",
            $window,
            "_start > t.now - ",
            $length,
            " AND r.",
            $window,
            "_start <= t.now + 60000000 THEN r.",
            $window,
            "_",
            $what,
            " ELSE ",
            $otherwise,
            " END"
        )
    };
}

/// How many requests the running windows have.
macro_rules! counted {
    (minute) => {
        running!("minute", "60000000", "count", "0")
    };
    (day) => {
        running!("day", "86400000000", "count", "0")
    };
}

/// How many of the requests of a key are counted, up to the limits `$2` and `$3`.
macro_rules! admitted {
    () => {
        concat!("LEAST(a.requests, GREATEST($2 - ", counted!(minute), ", 0), GREATEST($3 - ", counted!(day), ", 0))")
    };
}

/// Counts requests of several keys, as far as they are allowed, by the database's time.
macro_rules! count_requests {
    ($now:expr) => {
        concat!(
            "WITH t AS MATERIALIZED (SELECT ",
            $now,
            " AS now), \
             a AS MATERIALIZED (SELECT CAST(k ->> 0 AS UUID) AS id, CAST(k ->> 1 AS BIGINT) AS requests \
                 FROM json_array_elements(CAST($1 AS JSON)) k ORDER BY 1) \
             UPDATE rate_windows r SET admitted = ",
            admitted!(),
            ", minute_count = ",
            counted!(minute),
            " + ",
            admitted!(),
            ", minute_start = ",
            running!("minute", "60000000", "start", "t.now"),
            ", day_count = ",
            counted!(day),
            " + ",
            admitted!(),
            ", day_start = ",
            running!("day", "86400000000", "start", "t.now"),
            " FROM a, t WHERE r.api_key_id = a.id \
             RETURNING r.api_key_id, r.minute_start, r.minute_count, r.day_start, r.day_count, r.admitted, t.now"
        )
    };
}

/// Counts requests of one key if its windows run and have all of them left.
macro_rules! count_requests_of_one {
    ($now:expr) => {
        concat!(
            "UPDATE rate_windows r SET minute_count = r.minute_count + $2, day_count = r.day_count + $2 \
             FROM (SELECT ",
            $now,
            " AS now OFFSET 0) t \
             WHERE r.api_key_id = $1 AND r.minute_count + $2 <= $3 AND r.day_count + $2 <= $4 \
                 AND t.now - r.minute_start BETWEEN -60000000 AND 59999999 \
                 AND t.now - r.day_start BETWEEN -60000000 AND 86399999999 \
             RETURNING r.minute_start, r.minute_count, r.day_start, r.day_count, $2 AS admitted, t.now"
        )
    };
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

    /// Counts requests of keys, each key once, in the order of their ids, in which all hosts lock them. A key that is missing in
    /// the answer has no windows.
    pub async fn count_requests(&self, asked: &[(Uuid, usize)], limits: Limits) -> Result<BTreeMap<Uuid, Counted>> {
        if let &[(key_id, requests)] = asked
            && let Some(counted) = self.count_requests_of_one(key_id, requests, limits).await?
        {
            return Ok(BTreeMap::from([(key_id, counted)]));
        }
        let sql = sql!(postgres: count_requests!(database_time!("$4")));
        let keys = serde_json::to_string(asked).map_err(Error::internal)?;
        let args = args![&keys, limits.per_minute, limits.per_day, self.clock.database_time()];
        let rows = (&self.db.for_counting()).all(sql, args).await?;
        Ok(rows.iter().map(|row| Ok((row.id("api_key_id")?, counted(row)?))).collect::<DbResult<_>>()?)
    }

    /// The same for one key, by a statement that costs half as much; none if its windows have ended or have too little left.
    async fn count_requests_of_one(&self, key_id: Uuid, requests: usize, limits: Limits) -> Result<Option<Counted>> {
        let sql = sql!(postgres: count_requests_of_one!(database_time!("$5")));
        let requests = i64::try_from(requests).map_err(Error::internal)?;
        let args = args![key_id, requests, limits.per_minute, limits.per_day, self.clock.database_time()];
        let mut rows = (&self.db.for_counting()).all(sql, args).await?;
        Ok(rows.pop().as_ref().map(counted).transpose()?)
    }

    /// Makes the windows of keys that exist and have none. They have ended, so that the first request begins them.
    pub async fn make_windows(&self, key_ids: &[Uuid]) -> Result<()> {
        let sql = by_ids!(
            "INSERT INTO rate_windows (api_key_id, minute_start, minute_count, day_start, day_count) \
             SELECT id, 0, 0, 0, 0 FROM api_keys WHERE id",
            "$1",
            "ORDER BY id ON CONFLICT DO NOTHING RETURNING api_key_id"
        );
        (&self.db.for_counting()).all(sql, args![key_ids]).await?;
        Ok(())
    }
}

fn counted(row: &Row) -> DbResult<Counted> {
    Ok(Counted { admitted: row.number("admitted")?, windows: windows(row)?, at: row.time("now")? })
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
