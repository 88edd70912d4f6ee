//! Tries at passwords and codes, counted for all hosts together.

use chrono::{DateTime, Utc};

use super::Write;
use super::arg::args;
use super::error::DbResult;
use super::read::Read;
use super::row::{Row, row};
use super::sql::sql;
use culvert_domain::error::Result;

/// What was tried so often, and when for the last time.
#[derive(Clone, Copy, Debug)]
pub struct CountedTries {
    pub count: u32,
    pub last_at: DateTime<Utc>,
    pub expires_at: DateTime<Utc>,
}

impl Write {
    /// The tries that count still. Where there are any, nobody else counts one before this transaction ends.
    pub async fn sign_in_tries(&mut self, what: &[u8]) -> Result<Option<CountedTries>> {
        let now = self.now;
        let sql = sql!(
            sqlite: "SELECT count, last_at, expires_at FROM sign_in_tries WHERE what = $1 AND expires_at > $2",
            postgres: "SELECT count, last_at, expires_at FROM sign_in_tries WHERE what = $1 AND expires_at > $2 FOR UPDATE"
        );
        let row = self.optional(sql, args![what, now]).await?;
        Ok(row.as_ref().map(counted).transpose()?)
    }

    /// Counts one, from now on until then. One that another host counts at the same time is not lost.
    pub async fn count_sign_in_try(&mut self, what: &[u8], expires_at: DateTime<Utc>) -> Result<()> {
        let now = self.now;
        let sql = sql!(
            "INSERT INTO sign_in_tries (what, count, last_at, expires_at) VALUES ($1, 1, $2, $3) \
             ON CONFLICT (what) DO UPDATE SET last_at = excluded.last_at, expires_at = excluded.expires_at, \
                 count = CASE WHEN sign_in_tries.expires_at > $2 THEN sign_in_tries.count + 1 ELSE 1 END"
        );
        self.execute(sql, args![what, now, expires_at]).await?;
        Ok(())
    }

    /// Gives one back.
    pub async fn give_sign_in_try_back(&mut self, what: &[u8]) -> Result<()> {
        self.execute(sql!("UPDATE sign_in_tries SET count = count - 1 WHERE what = $1 AND count > 0"), args![what])
            .await?;
        Ok(())
    }

    pub async fn forget_sign_in_tries(&mut self, what: &[u8]) -> Result<()> {
        self.execute(sql!("DELETE FROM sign_in_tries WHERE what = $1"), args![what]).await?;
        Ok(())
    }
}

fn counted(row: &Row) -> DbResult<CountedTries> {
    Ok(row!(row => CountedTries { count: number, last_at: time, expires_at: time }))
}
