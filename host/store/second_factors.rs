//! One-time codes as a second factor, and recovery codes.

use uuid::Uuid;

use super::arg::args;
use super::error::DbResult;
use super::read::Read;
use super::row::{Row, row};
use super::sql::sql;
use super::{Store, Write};
use culvert_domain::error::Result;

/// The secret of an account's authenticator app.
pub struct StoredTotp {
    /// Sealed for the account.
    pub secret: Vec<u8>,
    /// Whether it is asked for.
    pub is_confirmed: bool,
}

impl Store {
    /// How many recovery codes an account has left.
    pub async fn recovery_codes_left(&self, account_id: Uuid) -> Result<u32> {
        let sql = sql!("SELECT COUNT(*) AS codes FROM recovery_codes WHERE account_id = $1");
        Ok((&self.db).one(sql, args![account_id]).await?.number("codes")?)
    }
}

impl Write {
    /// Sets the secret of an account that has none which is asked for. False if it has one.
    pub async fn set_totp(&mut self, account_id: Uuid, secret: &[u8]) -> Result<bool> {
        let sql = sql!(
            "INSERT INTO totp (account_id, secret, last_step) VALUES ($1, $2, 0) \
             ON CONFLICT (account_id) DO UPDATE SET secret = excluded.secret, last_step = 0 \
             WHERE totp.confirmed_at IS NULL"
        );
        Ok(self.execute(sql, args![account_id, secret]).await? == 1)
    }

    /// The sealed secrets of accounts, in the order of their ids.
    pub async fn totp_secrets(&mut self, after: Uuid, limit: u32) -> Result<Vec<(Uuid, Vec<u8>)>> {
        let sql = sql!("SELECT account_id, secret FROM totp WHERE account_id > $1 ORDER BY account_id LIMIT $2");
        let rows = self.all(sql, args![after, limit]).await?;
        let secret = |row: &Row| Ok((row.id("account_id")?, row.bytes("secret")?));
        Ok(rows.iter().map(secret).collect::<DbResult<_>>()?)
    }

    /// Replaces the sealed secret of an account, unless it has changed meanwhile. Returns whether it was replaced.
    pub async fn replace_totp_secret(&mut self, account_id: Uuid, former: &[u8], sealed: &[u8]) -> Result<bool> {
        let sql = sql!("UPDATE totp SET secret = $2 WHERE account_id = $1 AND secret = $3");
        Ok(self.execute(sql, args![account_id, sealed, former]).await? == 1)
    }

    /// Whether an account has a second factor.
    pub async fn has_second_factor(&mut self, account_id: Uuid) -> Result<bool> {
        let sql = sql!("SELECT 1 AS one FROM totp WHERE account_id = $1 AND confirmed_at IS NOT NULL");
        Ok(self.optional(sql, args![account_id]).await?.is_some())
    }

    pub async fn totp(&mut self, account_id: Uuid) -> Result<Option<StoredTotp>> {
        let sql = sql!("SELECT secret, confirmed_at IS NOT NULL AS is_confirmed FROM totp WHERE account_id = $1");
        let row = self.optional(sql, args![account_id]).await?;
        Ok(row.as_ref().map(totp).transpose()?)
    }

    /// Accepts the code of a step, which can be done once. False if this or a later one was accepted.
    pub async fn accept_totp_step(&mut self, account_id: Uuid, step: u64) -> Result<bool> {
        let sql = sql!("UPDATE totp SET last_step = $2 WHERE account_id = $1 AND last_step < $2");
        Ok(self.execute(sql, args![account_id, step]).await? == 1)
    }

    /// Has the code of an account be asked for from now on.
    pub async fn confirm_totp(&mut self, account_id: Uuid) -> Result<()> {
        let now = self.now;
        self.execute(sql!("UPDATE totp SET confirmed_at = $2 WHERE account_id = $1"), args![account_id, now]).await?;
        Ok(())
    }

    /// Gives an account these recovery codes; the former ones end.
    pub async fn replace_recovery_codes(&mut self, account_id: Uuid, hashes: &[[u8; 32]]) -> Result<()> {
        self.execute(sql!("DELETE FROM recovery_codes WHERE account_id = $1"), args![account_id]).await?;
        for hash in hashes {
            let sql = sql!("INSERT INTO recovery_codes (account_id, hash) VALUES ($1, $2)");
            self.execute(sql, args![account_id, &hash[..]]).await?;
        }
        Ok(())
    }

    /// Uses a recovery code, which can be done once. False if it is none.
    pub async fn take_recovery_code(&mut self, account_id: Uuid, hash: &[u8]) -> Result<bool> {
        let sql = sql!("DELETE FROM recovery_codes WHERE account_id = $1 AND hash = $2");
        Ok(self.execute(sql, args![account_id, hash]).await? == 1)
    }

    pub async fn remove_second_factor(&mut self, account_id: Uuid) -> Result<()> {
        for sql in
            [sql!("DELETE FROM totp WHERE account_id = $1"), sql!("DELETE FROM recovery_codes WHERE account_id = $1")]
        {
            self.execute(sql, args![account_id]).await?;
        }
        Ok(())
    }
}

fn totp(row: &Row) -> DbResult<StoredTotp> {
    Ok(row!(row => StoredTotp { secret: bytes, is_confirmed: flag }))
}
