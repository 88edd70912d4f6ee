//! Whom accounts are at other providers.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::arg::args;
use super::error::DbResult;
use super::read::Read;
use super::row::{Row, row};
use super::sql::sql;
use super::{Store, Write};
use culvert_domain::error::Result;

/// Somebody at a provider, and the account that is theirs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredIdentity {
    pub issuer: String,
    pub subject: String,
    pub account_id: Uuid,
    pub email: Option<String>,
    pub last_used_at: Option<DateTime<Utc>>,
}

macro_rules! select_identity {
    ($rest:literal) => {
        sql!(concat!("SELECT issuer, subject, account_id, email, last_used_at FROM identities ", $rest))
    };
}

impl Store {
    /// The account of somebody at a provider.
    pub async fn identity(&self, issuer: &str, subject: &str) -> Result<Option<StoredIdentity>> {
        let sql = select_identity!("WHERE issuer = $1 AND subject = $2");
        let row = (&self.db).optional(sql, args![issuer, subject]).await?;
        Ok(row.as_ref().map(identity).transpose()?)
    }

    /// Whom an account is at providers.
    pub async fn identities_of(&self, account_id: Uuid) -> Result<Vec<StoredIdentity>> {
        let sql = select_identity!("WHERE account_id = $1 ORDER BY issuer, subject");
        let rows = (&self.db).all(sql, args![account_id]).await?;
        Ok(rows.iter().map(identity).collect::<DbResult<_>>()?)
    }
}

impl Write {
    /// Links an account with somebody at a provider. False if an account is linked already, this one or another.
    pub async fn insert_identity(
        &mut self,
        account_id: Uuid,
        issuer: &str,
        subject: &str,
        email: Option<&str>,
    ) -> Result<bool> {
        let now = self.now;
        let sql = sql!(
            "INSERT INTO identities (issuer, subject, account_id, email, created_at) VALUES ($1, $2, $3, $4, $5) \
             ON CONFLICT (issuer, subject) DO NOTHING"
        );
        Ok(self.execute(sql, args![issuer, subject, account_id, email, now]).await? == 1)
    }

    /// Notes that an account was signed in to by a provider. False if it is not linked any longer.
    pub async fn use_identity(&mut self, account_id: Uuid, issuer: &str, subject: &str) -> Result<bool> {
        let now = self.now;
        let sql =
            sql!("UPDATE identities SET last_used_at = $4 WHERE issuer = $2 AND subject = $3 AND account_id = $1");
        Ok(self.execute(sql, args![account_id, issuer, subject, now]).await? == 1)
    }

    /// Ends a link of an account. False if there is none.
    pub async fn remove_identity(&mut self, account_id: Uuid, issuer: &str, subject: &str) -> Result<bool> {
        let sql = sql!("DELETE FROM identities WHERE issuer = $2 AND subject = $3 AND account_id = $1");
        Ok(self.execute(sql, args![account_id, issuer, subject]).await? == 1)
    }

    pub async fn remove_identities_of(&mut self, account_id: Uuid) -> Result<()> {
        self.execute(sql!("DELETE FROM identities WHERE account_id = $1"), args![account_id]).await?;
        Ok(())
    }

    pub async fn count_identities(&mut self, account_id: Uuid) -> Result<u32> {
        let sql = sql!("SELECT COUNT(*) AS identities FROM identities WHERE account_id = $1");
        Ok(self.one(sql, args![account_id]).await?.number("identities")?)
    }
}

fn identity(row: &Row) -> DbResult<StoredIdentity> {
    Ok(row!(row => StoredIdentity {
        issuer: text, subject: text, account_id: id, email: optional_text, last_used_at: optional_time,
    }))
}
