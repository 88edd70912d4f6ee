//! Traffic in bytes, by day and by hour: of each tunnel, and of each scope as the sum of its tunnels; and by minute of each tunnel.

use std::ops::Range;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::arg::args;
use super::error::DbResult;
use super::read::Read;
use super::row::Row;
use super::sql::sql;
use super::{Store, Write};
use culvert_domain::error::Result;
use culvert_domain::usage::{Bandwidth, Traffic, day_number, hour_number, minute_number, month_start};
use culvert_wire::node::SessionTraffic;

/// Makes a statement that adds `$3` and `$4` bytes to a row, which is made if it is not there: from the table, the two
/// columns of its key, and what else a new row gets.
macro_rules! add {
    ($table:literal, $key:literal, $others:literal, $values:literal) => {
        sql!(concat!(
            "INSERT INTO ",
            $table,
            " (",
            $key,
            ", bytes_in, bytes_out",
            $others,
            ") VALUES ($1, $2, $3, $4",
            $values,
            ") \
             ON CONFLICT (",
            $key,
            ") DO UPDATE SET bytes_in = ",
            $table,
            ".bytes_in + excluded.bytes_in, \
                 bytes_out = ",
            $table,
            ".bytes_out + excluded.bytes_out"
        ))
    };
}

impl Store {
    /// The number of tunnels in a scope, and the number of those that run now.
    pub async fn tunnel_counts(&self, scope_id: Uuid) -> Result<(u64, u64)> {
        let sql = sql!(
            "SELECT (SELECT COUNT(*) FROM tunnels WHERE scope_id = $1) AS total, \
             (SELECT COUNT(*) FROM sessions WHERE scope_id = $1 AND ended_at IS NULL AND ready_at IS NOT NULL) \
                 AS active"
        );
        let row = (&self.db).one(sql, args![scope_id]).await?;
        Ok((row.number("total")?, row.number("active")?))
    }

    pub async fn scope_bandwidth(&self, scope_id: Uuid) -> Result<Bandwidth> {
        scope_bandwidth(&mut &self.db, scope_id, self.clock.now()).await
    }

    pub async fn tunnel_bandwidth(&self, scope_id: Uuid, tunnel_id: Uuid) -> Result<Bandwidth> {
        let sql = sql!(
            "SELECT CAST(COALESCE(SUM(bytes_in), 0) AS BIGINT) AS month_in, \
                    CAST(COALESCE(SUM(bytes_out), 0) AS BIGINT) AS month_out, \
                    CAST(COALESCE(SUM(CASE WHEN day = $4 THEN bytes_in END), 0) AS BIGINT) AS today_in, \
                    CAST(COALESCE(SUM(CASE WHEN day = $4 THEN bytes_out END), 0) AS BIGINT) AS today_out \
             FROM usage_days WHERE scope_id = $1 AND tunnel_id = $2 AND day >= $3"
        );
        let now = self.clock.now();
        let args = args![scope_id, tunnel_id, day_number(month_start(now)), day_number(now)];
        Ok(bandwidth(&(&self.db).one(sql, args).await?)?)
    }

    /// The traffic of a scope by day, since one. Days without any are left out.
    pub async fn scope_days(&self, scope_id: Uuid, since: i64) -> Result<Vec<(i64, Traffic)>> {
        let sql = sql!(
            "SELECT day AS time, bytes_in, bytes_out FROM usage_of_scopes WHERE scope_id = $1 AND day >= $2 ORDER BY day"
        );
        by_time(&(&self.db).all(sql, args![scope_id, since]).await?)
    }

    /// The same of one of its tunnels.
    pub async fn tunnel_days(&self, scope_id: Uuid, tunnel_id: Uuid, since: i64) -> Result<Vec<(i64, Traffic)>> {
        let sql = sql!(
            "SELECT day AS time, bytes_in, bytes_out FROM usage_days \
             WHERE tunnel_id = $2 AND scope_id = $1 AND day >= $3 ORDER BY day"
        );
        by_time(&(&self.db).all(sql, args![scope_id, tunnel_id, since]).await?)
    }

    /// The traffic of a scope in these hours. Hours without any are left out.
    pub async fn scope_hours(&self, scope_id: Uuid, hours: Range<i64>) -> Result<Vec<(i64, Traffic)>> {
        let sql = sql!(
            "SELECT hour AS time, bytes_in, bytes_out FROM usage_hours_of_scopes \
             WHERE scope_id = $1 AND hour >= $2 AND hour < $3 ORDER BY hour"
        );
        by_time(&(&self.db).all(sql, args![scope_id, hours.start, hours.end]).await?)
    }

    /// The same of one of its tunnels.
    pub async fn tunnel_hours(
        &self,
        scope_id: Uuid,
        tunnel_id: Uuid,
        hours: Range<i64>,
    ) -> Result<Vec<(i64, Traffic)>> {
        let sql = sql!(
            "SELECT hour AS time, bytes_in, bytes_out FROM usage_hours \
             WHERE tunnel_id = $2 AND scope_id = $1 AND hour >= $3 AND hour < $4 ORDER BY hour"
        );
        by_time(&(&self.db).all(sql, args![scope_id, tunnel_id, hours.start, hours.end]).await?)
    }

    /// The traffic of a tunnel by minute, since one. Minutes without any are left out.
    pub async fn tunnel_minutes(&self, scope_id: Uuid, tunnel_id: Uuid, since: i64) -> Result<Vec<(i64, Traffic)>> {
        let sql = sql!(
            "SELECT minute AS time, bytes_in, bytes_out FROM usage_minutes \
             WHERE tunnel_id = $2 AND scope_id = $1 AND minute >= $3 ORDER BY minute"
        );
        by_time(&(&self.db).all(sql, args![scope_id, tunnel_id, since]).await?)
    }
}

impl Write {
    pub async fn scope_bandwidth(&mut self, scope_id: Uuid) -> Result<Bandwidth> {
        let now = self.now;
        scope_bandwidth(&mut **self, scope_id, now).await
    }

    /// Adds the traffic of sessions of a scope, which may be open or ended.
    pub async fn add_traffic(&mut self, scope_id: Uuid, rows: &[SessionTraffic]) -> Result<()> {
        let (day, hour, minute) = (day_number(self.now), hour_number(self.now), minute_number(self.now));
        let mut sum = Traffic::default();
        for row in rows {
            let traffic = Traffic { bytes_in: row.bytes_in, bytes_out: row.bytes_out };
            sum = sum + traffic;
            let sql = sql!("UPDATE sessions SET bytes_in = bytes_in + $2, bytes_out = bytes_out + $3 WHERE id = $1");
            self.execute(sql, args![row.session_id, traffic.bytes_in, traffic.bytes_out]).await?;
            for (sql, time) in [
                (add!("usage_days", "tunnel_id, day", ", scope_id", ", $5"), day),
                (add!("usage_hours", "tunnel_id, hour", ", scope_id", ", $5"), hour),
                (add!("usage_minutes", "tunnel_id, minute", ", scope_id", ", $5"), minute),
            ] {
                let args = args![row.tunnel_id, time, traffic.bytes_in, traffic.bytes_out, scope_id];
                self.execute(sql, args).await?;
            }
        }
        for (sql, time) in [
            (add!("usage_of_scopes", "scope_id, day", "", ""), day),
            (add!("usage_hours_of_scopes", "scope_id, hour", "", ""), hour),
        ] {
            self.execute(sql, args![scope_id, time, sum.bytes_in, sum.bytes_out]).await?;
        }
        Ok(())
    }

    /// Suspends all tunnels of a scope until this time. Nodes hear of it once.
    pub async fn suspend_scope(&mut self, scope_id: Uuid, until: DateTime<Utc>) -> Result<()> {
        let sql = sql!(
            "UPDATE scopes SET suspended_until = $2 \
             WHERE id = $1 AND (suspended_until IS NULL OR suspended_until <> $2)"
        );
        match self.execute(sql, args![scope_id, until]).await? {
            0 => Ok(()),
            _ => self.touch_scope(scope_id).await,
        }
    }
}

pub(super) async fn scope_bandwidth(db: &mut impl Read, scope_id: Uuid, now: DateTime<Utc>) -> Result<Bandwidth> {
    let sql = sql!(
        "SELECT CAST(COALESCE(SUM(bytes_in), 0) AS BIGINT) AS month_in, \
                CAST(COALESCE(SUM(bytes_out), 0) AS BIGINT) AS month_out, \
                CAST(COALESCE(SUM(CASE WHEN day = $3 THEN bytes_in END), 0) AS BIGINT) AS today_in, \
                CAST(COALESCE(SUM(CASE WHEN day = $3 THEN bytes_out END), 0) AS BIGINT) AS today_out \
         FROM usage_of_scopes WHERE scope_id = $1 AND day >= $2"
    );
    let args = args![scope_id, day_number(month_start(now)), day_number(now)];
    Ok(bandwidth(&db.one(sql, args).await?)?)
}

fn by_time(rows: &[Row]) -> Result<Vec<(i64, Traffic)>> {
    let traffic = |row: &Row| {
        let traffic = Traffic { bytes_in: row.number("bytes_in")?, bytes_out: row.number("bytes_out")? };
        Ok((row.int("time")?, traffic))
    };
    Ok(rows.iter().map(traffic).collect::<DbResult<_>>()?)
}

fn bandwidth(row: &Row) -> DbResult<Bandwidth> {
    Ok(Bandwidth {
        today: Traffic { bytes_in: row.number("today_in")?, bytes_out: row.number("today_out")? },
        month: Traffic { bytes_in: row.number("month_in")?, bytes_out: row.number("month_out")? },
    })
}
