//! What stands between this host and ACME authorities: accounts, orders of the last hour, and what proves names.

use chrono::TimeDelta;
use culvert_domain::certificate::ChallengeKind;
use culvert_domain::error::Result;
use uuid::Uuid;

use super::arg::args;
use super::error::DbResult;
use super::read::Read;
use super::row::{Row, row};
use super::sql::sql;
use super::{Store, Write};

/// What proves a name to an authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredChallenge {
    pub name: String,
    pub kind: ChallengeKind,
    pub token: String,
    /// The key authorization (RFC 8555, section 8.1).
    pub value: String,
}

impl Store {
    /// What proves the names of a certificate.
    pub async fn challenges(&self, id: Uuid) -> Result<Vec<StoredChallenge>> {
        let sql = sql!("SELECT name, kind, token, value FROM acme_challenges WHERE certificate_id = $1");
        let rows = (&self.db).all(sql, args![id]).await?;
        Ok(rows.iter().map(challenge).collect::<DbResult<_>>()?)
    }

    /// What proves names in the DNS at the moment.
    pub async fn dns_challenges(&self) -> Result<Vec<StoredChallenge>> {
        let sql = sql!("SELECT name, kind, token, value FROM acme_challenges WHERE kind = 'dns-01'");
        let rows = (&self.db).all(sql, args![]).await?;
        Ok(rows.iter().map(challenge).collect::<DbResult<_>>()?)
    }

    /// How many orders were placed in the last hour.
    pub async fn orders_of_last_hour(&self) -> Result<u32> {
        let sql = sql!("SELECT COUNT(*) AS orders FROM acme_orders WHERE placed_at > $1");
        Ok((&self.db).one(sql, args![self.clock.now() - TimeDelta::hours(1)]).await?.number("orders")?)
    }

    /// The sealed credentials of the host's account at an authority.
    pub async fn acme_account(&self, directory: &str) -> Result<Option<Vec<u8>>> {
        let sql = sql!("SELECT credentials FROM acme_accounts WHERE directory = $1");
        let row = (&self.db).optional(sql, args![directory]).await?;
        Ok(row.map(|row| row.bytes("credentials")).transpose()?)
    }
}

fn challenge(row: &Row) -> DbResult<StoredChallenge> {
    Ok(row!(row => StoredChallenge { name: text, kind: string_enum, token: text, value: text, }))
}

impl Write {
    /// Counts an order that is about to be placed. Returns false if there were as many as allowed in the last hour.
    pub async fn place_order(&mut self, directory: &str, limit: u32) -> Result<bool> {
        let lock = sql!("SELECT directory FROM acme_accounts WHERE directory = $1", locked: " FOR UPDATE");
        self.lock(lock, args![directory]).await?;
        let now = self.now;
        let since = now - TimeDelta::hours(1);
        self.execute(sql!("DELETE FROM acme_orders WHERE placed_at <= $1"), args![since]).await?;
        let placed: u32 =
            self.one(sql!("SELECT COUNT(*) AS orders FROM acme_orders"), args![]).await?.number("orders")?;
        if placed >= limit {
            return Ok(false);
        }
        let id = self.clock.id();
        self.execute(sql!("INSERT INTO acme_orders (id, placed_at) VALUES ($1, $2)"), args![id, now]).await?;
        Ok(true)
    }

    /// The sealed credentials of all accounts at authorities, by directory.
    pub async fn acme_accounts(&mut self) -> Result<Vec<(String, Vec<u8>)>> {
        let rows = self.all(sql!("SELECT directory, credentials FROM acme_accounts"), args![]).await?;
        Ok(rows.iter().map(|row| Ok((row.text("directory")?, row.bytes("credentials")?))).collect::<DbResult<_>>()?)
    }

    /// Keeps the sealed credentials of the host's account at an authority.
    pub async fn keep_acme_account(&mut self, directory: &str, credentials: &[u8]) -> Result<()> {
        let sql = sql!(
            "INSERT INTO acme_accounts (directory, credentials) VALUES ($1, $2) \
             ON CONFLICT (directory) DO UPDATE SET credentials = excluded.credentials"
        );
        self.execute(sql, args![directory, credentials]).await?;
        Ok(())
    }
}
