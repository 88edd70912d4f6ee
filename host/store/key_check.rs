//! The value by which a database recognises its host's keys, and the rows that hold sealed values.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::arg::args;
use super::db::{Db, Tx};
use super::error::DbResult;
use super::hosts;
use super::read::Read;
use super::row::Row;
use super::sql::sql;
use super::{Store, Write};
use culvert_domain::error::Result;

/// A stored response, by its Idempotency-Key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedAnswer {
    pub credential_id: Uuid,
    pub key: String,
    pub sealed: Vec<u8>,
}

impl Db {
    /// The check value of the keys that the database has recorded.
    pub async fn key_check(&self) -> DbResult<Option<Vec<u8>>> {
        known(&mut &*self).await
    }
}

impl Store {
    /// As [`Db::key_check`].
    pub async fn key_check(&self) -> Result<Option<Vec<u8>>> {
        Ok(self.db.key_check().await?)
    }
}

async fn known(read: &mut impl Read) -> DbResult<Option<Vec<u8>>> {
    read.optional(sql!("SELECT sealed FROM key_checks"), args![]).await?.map(|row| row.bytes("sealed")).transpose()
}

impl Write {
    /// As [`Db::key_check`].
    pub async fn key_check(&mut self) -> Result<Option<Vec<u8>>> {
        Ok(known(&mut **self).await?)
    }

    /// The hosts that run, by name, with what each says of its settings. None begins or ends meanwhile.
    pub async fn lock_running_hosts(&mut self) -> Result<Vec<(String, BTreeMap<String, String>)>> {
        self.lock_shared(Uuid::nil()).await?;
        let sql = sql!("SELECT name, settings FROM hosts WHERE ended_at IS NULL ORDER BY name, id");
        let rows = self.all(sql, args![]).await?;
        Ok(rows.iter().map(|row| Ok((row.text("name")?, hosts::settings(row)?))).collect::<DbResult<_>>()?)
    }

    /// Records the newest key of a host that begins, unless others may not have it. Returns the one that is recorded then, and
    /// whether it replaces another one.
    pub(super) async fn choose_key(&mut self, host_id: Uuid, newest: &[u8]) -> Result<(Vec<u8>, bool)> {
        // The others that the statement of the lock has counted may be those of before it waited.
        let sql = sql!("SELECT COUNT(*) AS others FROM hosts WHERE id <> $1 AND ended_at IS NULL");
        let others: u64 = self.one(sql, args![host_id]).await?.number("others")?;
        let is_alone = others == 0 || matches!(**self, Tx::Sqlite(_));
        match self.key_check().await? {
            Some(known) if !is_alone || known.first() == newest.first() => Ok((known, false)),
            known => {
                self.set_key_check(newest).await?;
                Ok((newest.to_vec(), known.is_some()))
            }
        }
    }

    /// Records the check value of other keys.
    pub async fn set_key_check(&mut self, sealed: &[u8]) -> Result<()> {
        let sql = sql!(
            "INSERT INTO key_checks (id, sealed) VALUES (1, $1) \
             ON CONFLICT (id) DO UPDATE SET sealed = excluded.sealed"
        );
        self.execute(sql, args![sealed]).await?;
        Ok(())
    }

    /// The sealed secrets of at most `limit` webhook endpoints after this one, by id.
    pub async fn webhook_secrets(&mut self, after: Uuid, limit: u32) -> Result<Vec<(Uuid, Vec<u8>)>> {
        let sql = sql!("SELECT id, secret FROM webhooks WHERE id > $1 ORDER BY id LIMIT $2");
        let rows = self.all(sql, args![after, limit]).await?;
        let secret = |row: &Row| Ok((row.id("id")?, row.bytes("secret")?));
        Ok(rows.iter().map(secret).collect::<DbResult<_>>()?)
    }

    /// Replaces the sealed secret of an endpoint, unless it has changed meanwhile. Returns whether it was replaced.
    pub async fn replace_webhook_secret(&mut self, id: Uuid, former: &[u8], sealed: &[u8]) -> Result<bool> {
        let sql = sql!("UPDATE webhooks SET secret = $2 WHERE id = $1 AND secret = $3");
        Ok(self.execute(sql, args![id, sealed, former]).await? == 1)
    }

    /// At most `limit` stored responses after the one of this key, in the order of their keys.
    pub async fn sealed_answers(&mut self, after: (Uuid, &str), limit: u32) -> Result<Vec<SealedAnswer>> {
        let sql = sql!(
            "SELECT credential_id, key, answer FROM idempotency WHERE (credential_id, key) > ($1, $2) \
             ORDER BY credential_id, key LIMIT $3"
        );
        let rows = self.all(sql, args![after.0, after.1, limit]).await?;
        let answer = |row: &Row| {
            Ok(SealedAnswer {
                credential_id: row.id("credential_id")?,
                key: row.text("key")?,
                sealed: row.bytes("answer")?,
            })
        };
        Ok(rows.iter().map(answer).collect::<DbResult<_>>()?)
    }

    /// Replaces a sealed response, unless it has changed meanwhile. Returns whether it was replaced.
    pub async fn replace_answer(&mut self, former: &SealedAnswer, sealed: &[u8]) -> Result<bool> {
        let sql = sql!("UPDATE idempotency SET answer = $3 WHERE credential_id = $1 AND key = $2 AND answer = $4");
        let args = args![former.credential_id, &former.key, sealed, &former.sealed[..]];
        Ok(self.execute(sql, args).await? == 1)
    }
}
