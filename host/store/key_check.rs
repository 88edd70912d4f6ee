//! The host's keys, as the database knows them, and what is sealed with them.

use std::path::Path;

use culvert_wire::clock::Clock;
use uuid::Uuid;

use super::db::{Db, DbResult, Read, args};
use super::error::StoreError;
use super::{Store, Write};
use crate::secret::{Purpose, SecretError, Secrets};
use culvert_domain::error::Result;
use culvert_domain::session::EndReason;

/// Rows that are sealed anew in one transaction.
const BATCH: u32 = 200;

/// Why a host's keys cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error(transparent)]
    File(#[from] SecretError),
    #[error(transparent)]
    Database(#[from] StoreError),
}

/// The keys of a database that is up to date: those that it knows, or, where it knows none, those of
/// the file, which is made if there is none.
pub async fn open(db: &Db, path: &Path, clock: &Clock) -> std::result::Result<Secrets, KeyError> {
    match known(&mut &*db).await? {
        Some(check) => Ok(Secrets::of_database(path, clock, &check)?),
        None => Ok(Secrets::open(path, clock)?),
    }
}

/// The database's check value.
async fn known(read: &mut impl Read) -> DbResult<Option<Vec<u8>>> {
    read.optional("SELECT sealed FROM key_checks", args![]).await?.map(|row| row.bytes("sealed")).transpose()
}

/// What was sealed anew.
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

    /// Has the database know the host's keys. Whether they have changed since: tokens of leases that
    /// were given before hold no longer.
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

    /// Ends what a node serves: what was to run is resumed, under new leases.
    pub async fn end_sessions_of_node(&self, node_id: Uuid, reason: EndReason) -> Result<()> {
        for lease in self.leases_on_node(node_id).await? {
            self.end_sessions(lease.scope_id, vec![lease.session_id], reason).await?;
        }
        Ok(())
    }

    /// Seals everything with the key that is in use, so that the older ones can be taken out.
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
    /// How many were sealed anew, and where the next batch begins.
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

/// What was sealed with an older key, under the one that is in use.
fn anew(secrets: &Secrets, purpose: Purpose, context: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
    if secrets.is_current(sealed) {
        return None;
    }
    let plain = secrets.open_sealed(purpose, context, sealed)?;
    Some(secrets.seal(purpose, context, &plain))
}
