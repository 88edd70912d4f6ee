//! E-mail addresses whose owners want an account, until the link that was sent to them is opened.

use chrono::{DateTime, Utc};

use super::arg::args;
use super::read::Read;
use super::sql::sql;
use super::{Store, Write};
use culvert_domain::error::Result;

impl Store {
    /// The address that a link makes an account for, if it can still be used.
    pub async fn sign_up(&self, hash: &[u8]) -> Result<Option<String>> {
        let sql = sql!("SELECT email FROM sign_ups WHERE hash = $1 AND expires_at > $2");
        let row = (&self.db).optional(sql, args![hash, self.clock.now()]).await?;
        Ok(row.map(|row| row.text("email")).transpose()?)
    }
}

impl Write {
    /// Has a link make an account for an address. A former one for it ends.
    pub async fn replace_sign_up(&mut self, hash: &[u8], email: &str, expires_at: DateTime<Utc>) -> Result<()> {
        let sql = sql!(
            "INSERT INTO sign_ups (hash, email, expires_at) VALUES ($1, $2, $3) \
             ON CONFLICT (email) DO UPDATE SET hash = excluded.hash, expires_at = excluded.expires_at"
        );
        self.execute(sql, args![hash, email, expires_at]).await?;
        Ok(())
    }

    /// Uses a link that makes an account, which can be done once. False if it is none.
    pub async fn take_sign_up(&mut self, hash: &[u8]) -> Result<bool> {
        let now = self.now;
        let sql = sql!("DELETE FROM sign_ups WHERE hash = $1 AND expires_at > $2");
        Ok(self.execute(sql, args![hash, now]).await? == 1)
    }
}
