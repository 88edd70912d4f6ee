//! Passkeys, and the challenges that were answered with one.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::arg::args;
use super::error::DbResult;
use super::read::Read;
use super::row::{Row, row};
use super::sql::sql;
use super::{Store, Write};
use culvert_domain::error::Result;

/// A passkey of an account.
#[derive(Clone, Debug)]
pub struct StoredPasskey {
    pub id: Uuid,
    pub account_id: Uuid,
    /// The public key, the counter and what else a check takes, as JSON.
    pub passkey: String,
    pub name: String,
    pub created_at: DateTime<Utc>,
    pub last_used_at: Option<DateTime<Utc>>,
}

macro_rules! select_passkey {
    ($rest:literal) => {
        sql!(concat!("SELECT id, account_id, passkey, name, created_at, last_used_at FROM passkeys ", $rest))
    };
}

impl Store {
    /// The passkeys of an account, the oldest first.
    pub async fn passkeys_of(&self, account_id: Uuid) -> Result<Vec<StoredPasskey>> {
        let sql = select_passkey!("WHERE account_id = $1 ORDER BY created_at, id");
        let rows = (&self.db).all(sql, args![account_id]).await?;
        Ok(rows.iter().map(passkey).collect::<DbResult<_>>()?)
    }

    /// A passkey by what the authenticator calls it.
    pub async fn passkey(&self, credential_id: &[u8]) -> Result<Option<StoredPasskey>> {
        let row = (&self.db).optional(select_passkey!("WHERE credential_id = $1"), args![credential_id]).await?;
        Ok(row.as_ref().map(passkey).transpose()?)
    }
}

impl Write {
    /// A passkey by its id, of an account.
    pub async fn passkey(&mut self, account_id: Uuid, id: Uuid) -> Result<Option<StoredPasskey>> {
        let sql = select_passkey!("WHERE id = $2 AND account_id = $1");
        let row = self.optional(sql, args![account_id, id]).await?;
        Ok(row.as_ref().map(passkey).transpose()?)
    }

    pub async fn count_passkeys(&mut self, account_id: Uuid) -> Result<u32> {
        let sql = sql!("SELECT COUNT(*) AS passkeys FROM passkeys WHERE account_id = $1");
        Ok(self.one(sql, args![account_id]).await?.number("passkeys")?)
    }

    /// Adds a passkey. False if there is one that the authenticator calls the same.
    pub async fn insert_passkey(
        &mut self,
        account_id: Uuid,
        credential_id: &[u8],
        passkey: &str,
        name: &str,
    ) -> Result<bool> {
        let (id, now) = (self.clock.id(), self.now);
        let sql = sql!(
            "INSERT INTO passkeys (id, account_id, credential_id, passkey, name, created_at) \
             VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (credential_id) DO NOTHING"
        );
        Ok(self.execute(sql, args![id, account_id, credential_id, passkey, name, now]).await? == 1)
    }

    /// Notes that a passkey was used.
    pub async fn use_passkey(&mut self, id: Uuid, passkey: &str) -> Result<()> {
        let now = self.now;
        let sql = sql!("UPDATE passkeys SET passkey = $2, last_used_at = $3 WHERE id = $1");
        self.execute(sql, args![id, passkey, now]).await?;
        Ok(())
    }

    /// Removes a passkey of an account. False if it has no such passkey.
    pub async fn remove_passkey(&mut self, account_id: Uuid, id: Uuid) -> Result<bool> {
        let sql = sql!("DELETE FROM passkeys WHERE id = $2 AND account_id = $1");
        Ok(self.execute(sql, args![account_id, id]).await? == 1)
    }

    pub async fn remove_passkeys_of(&mut self, account_id: Uuid) -> Result<()> {
        self.execute(sql!("DELETE FROM passkeys WHERE account_id = $1"), args![account_id]).await?;
        Ok(())
    }

    /// Uses a challenge up. False if it was used before.
    pub async fn use_challenge(&mut self, hash: &[u8], expires_at: DateTime<Utc>) -> Result<bool> {
        let sql = sql!("INSERT INTO used_challenges (hash, expires_at) VALUES ($1, $2) ON CONFLICT (hash) DO NOTHING");
        Ok(self.execute(sql, args![hash, expires_at]).await? == 1)
    }
}

fn passkey(row: &Row) -> DbResult<StoredPasskey> {
    Ok(row!(row => StoredPasskey {
        id: id, account_id: id, passkey: text, name: text, created_at: time, last_used_at: optional_time,
    }))
}
