//! The check of the host's keys against the database, and resealing of what was sealed with them.

use std::path::Path;

use culvert_wire::clock::Clock;
use uuid::Uuid;

use super::db::{Db, DbResult, Read, args};
use super::error::StoreError;
use super::{Store, Write};
use crate::secret::{Purpose, SecretError, Secrets};
use culvert_domain::error::Result;
use culvert_domain::session::EndReason;

/// Maximum number of rows that are resealed in one transaction.
const BATCH: u32 = 200;

/// Why the host's keys cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error(transparent)]
    File(#[from] SecretError),
    #[error(transparent)]
    Database(#[from] StoreError),
}

/// Loads the keys for a database with the current schema. The file must have the key that the database
/// has recorded. If the database has recorded none, the file's keys are used, and a missing file is created.
pub async fn open(db: &Db, path: &Path, clock: &Clock) -> std::result::Result<Secrets, KeyError> {
    match known(&mut &*db).await? {
        Some(check) => Ok(Secrets::of_database(path, clock, &check)?),
        None => Ok(Secrets::open(path, clock)?),
    }
}

/// The check value of the keys that the database has recorded.
async fn known(read: &mut impl Read) -> DbResult<Option<Vec<u8>>> {
    read.optional("SELECT sealed FROM key_checks", args![]).await?.map(|row| row.bytes("sealed")).transpose()
}

/// How many rows were resealed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Resealed {
    pub webhooks: u64,
    pub answers: u64,
}

impl Store {
    /// Whether a host has started with the newest key of the file.
    pub async fn newest_key_is_used(&self) -> Result<bool> {
        let known = known(&mut &self.db).await?;
        Ok(known.is_some_and(|known| self.secrets.is_current(&known)))
    }

    /// Records the host's keys in the database. Returns whether they replace other keys. In that case the
    /// tokens of earlier leases are no longer valid.
    pub async fn enter_keys(&self) -> Result<bool> {
        let secrets = self.secrets.clone();
        self.write(None, move |write| {
            Box::pin(async move {
                let known = known(&mut **write).await?;
                if known.as_ref().is_some_and(|known| secrets.is_current(known)) {
                    return Ok(false);
                }
                let sql = "INSERT INTO key_checks (id, sealed) VALUES (1, $1) \
                           ON CONFLICT (id) DO UPDATE SET sealed = excluded.sealed";
                write.execute(sql, args![&secrets.check()[..]]).await?;
                Ok(known.is_some())
            })
        })
        .await
    }

    /// Ends all sessions on a node. Tunnels with a desired device are resumed under new leases.
    pub async fn end_sessions_of_node(&self, node_id: Uuid, reason: EndReason) -> Result<()> {
        for lease in self.leases_on_node(node_id).await? {
            self.end_sessions(lease.scope_id, vec![lease.session_id], reason).await?;
        }
        Ok(())
    }

    /// Reseals all data with the current key, so that older keys can be removed.
    pub async fn reseal(&self) -> Result<Resealed> {
        let mut resealed = Resealed::default();
        let mut after = Uuid::nil();
        loop {
            let secrets = self.secrets.clone();
            let batch =
                self.write(None, move |write| Box::pin(async move { write.reseal_webhooks(&secrets, after).await }));
            let (count, last) = batch.await?;
            resealed.webhooks += count;
            match last {
                Some(last) => after = last,
                None => break,
            }
        }
        let mut after = (Uuid::nil(), String::new());
        loop {
            let secrets = self.secrets.clone();
            let batch =
                self.write(None, move |write| Box::pin(async move { write.reseal_answers(&secrets, after).await }));
            let (count, last) = batch.await?;
            resealed.answers += count;
            match last {
                Some(last) => after = last,
                None => return Ok(resealed),
            }
        }
    }
}

impl Write {
    /// Reseals one batch. Returns the number of resealed rows and the cursor of the next batch.
    async fn reseal_webhooks(&mut self, secrets: &Secrets, after: Uuid) -> Result<(u64, Option<Uuid>)> {
        let sql = "SELECT id, secret FROM webhooks WHERE id > $1 ORDER BY id LIMIT $2";
        let (mut count, mut last) = (0, None);
        for row in self.all(sql, args![after, BATCH]).await? {
            let (id, sealed) = (row.id("id")?, row.bytes("secret")?);
            last = Some(id);
            let Some(anew) = anew(secrets, Purpose::Webhooks, id.as_bytes(), &sealed) else { continue };
            let sql = "UPDATE webhooks SET secret = $2 WHERE id = $1 AND secret = $3";
            count += self.execute(sql, args![id, &anew[..], &sealed[..]]).await?;
        }
        Ok((count, last))
    }

    async fn reseal_answers(
        &mut self,
        secrets: &Secrets,
        (api_key_id, key): (Uuid, String),
    ) -> Result<(u64, Option<(Uuid, String)>)> {
        let sql = "SELECT api_key_id, key, answer FROM idempotency WHERE (api_key_id, key) > ($1, $2) \
                   ORDER BY api_key_id, key LIMIT $3";
        let (mut count, mut last) = (0, None);
        for row in self.all(sql, args![api_key_id, &key, BATCH]).await? {
            let (api_key_id, key, sealed) = (row.id("api_key_id")?, row.text("key")?, row.bytes("answer")?);
            let context = [api_key_id.as_bytes(), key.as_bytes()].concat();
            if let Some(anew) = anew(secrets, Purpose::Answers, &context, &sealed) {
                let sql = "UPDATE idempotency SET answer = $3 WHERE api_key_id = $1 AND key = $2 AND answer = $4";
                count += self.execute(sql, args![api_key_id, &key, &anew[..], &sealed[..]]).await?;
            }
            last = Some((api_key_id, key));
        }
        Ok((count, last))
    }
}

/// Reseals a value with the current key. `None` if it has that key already or cannot be decrypted.
fn anew(secrets: &Secrets, purpose: Purpose, context: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
    if secrets.is_current(sealed) {
        return None;
    }
    let plain = secrets.open_sealed(purpose, context, sealed)?;
    Some(secrets.seal(purpose, context, &plain))
}
