//! The host's keys: their check against the database, and resealing of what was sealed with them.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use culvert_domain::error::Result;
use culvert_wire::clock::Clock;
use futures_util::future::BoxFuture;
use uuid::Uuid;

use crate::secrets::{Purpose, SecretError, Secrets};
use culvert_store::db::Db;
use culvert_store::error::StoreError;
use culvert_store::local_roots::LocalRoot;
use culvert_store::policy_generations::StoredGeneration;
use culvert_store::{Store, Write};

/// The setting that names the file.
pub const SETTING: &str = "secret_key_file";

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
/// has recorded, which is the current one. If the database has recorded none, the file's last key is, and a missing file is
/// created.
///
/// # Errors
///
/// If the database cannot be read, or the file does not belong to it.
pub async fn open(db: &Db, path: &Path, clock: &Clock) -> std::result::Result<Secrets, KeyError> {
    match db.key_check().await? {
        Some(check) => Ok(Secrets::of_database(path, clock, &check)?),
        None => Ok(Secrets::open(path, clock)?),
    }
}

/// Warns of a key file that everybody on the machine may read.
pub fn warn_if_exposed(path: &Path) {
    if std::fs::metadata(path).is_ok_and(|file| file.permissions().mode() & 0o004 != 0) {
        let path = path.display();
        tracing::warn!("secret_key_file: everybody on this machine may read {path}; take that away: chmod o-r {path}");
    }
}

/// How many rows were resealed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Resealed {
    pub webhooks: u64,
    pub answers: u64,
    pub certificates: u64,
    pub second_factors: u64,
}

/// Whether hosts use the newest key of the file.
///
/// # Errors
///
/// If the database fails.
pub async fn newest_is_used(store: &Store, secrets: &Secrets) -> Result<bool> {
    Ok(store.key_check().await?.is_some_and(|known| known.first() == Some(&secrets.newest())))
}

/// What came of the wish that all hosts use the newest key of the file.
#[derive(Debug, PartialEq, Eq)]
pub enum Activation {
    /// They do from their next heartbeats on.
    Activated,
    /// They did already.
    InUse,
    /// These hosts do not have it; nothing was changed.
    Missing(Vec<String>),
}

/// Has all hosts use the newest key of the file.
///
/// # Errors
///
/// If the database fails.
pub async fn activate(store: &Store, secrets: &Secrets) -> Result<Activation> {
    let secrets = secrets.clone();
    store.write(None, move |write| Box::pin(async move { activate_in(write, &secrets).await })).await
}

async fn activate_in(write: &mut Write, secrets: &Secrets) -> Result<Activation> {
    // Before what it guards is read.
    let hosts = write.lock_running_hosts().await?;
    let newest = secrets.newest();
    if write.key_check().await?.is_some_and(|known| known.first() == Some(&newest)) {
        return Ok(Activation::InUse);
    }
    let listed = secrets.listed().pop();
    let has_it = |settings: &BTreeMap<String, String>| {
        settings.get(SETTING).is_some_and(|keys| keys.split(' ').map(Some).any(|key| key == listed.as_deref()))
    };
    let missing: Vec<String> =
        hosts.into_iter().filter(|(_, settings)| !has_it(settings)).map(|(name, _)| name).collect();
    if !missing.is_empty() {
        return Ok(Activation::Missing(missing));
    }
    write.set_key_check(&secrets.check()).await?;
    Ok(Activation::Activated)
}

/// Reseals all data with the newest key, so that older keys can be removed.
///
/// # Errors
///
/// If the database fails.
pub async fn reseal(store: &Store, secrets: &Secrets) -> Result<Resealed> {
    secrets.use_newest();
    let answers = (Uuid::nil(), String::new());
    let resealed = Resealed {
        webhooks: reseal_all(store, secrets, Uuid::nil(), |write, secrets, after| {
            Box::pin(async move { reseal_webhooks(write, &secrets, after).await })
        })
        .await?,
        answers: reseal_all(store, secrets, answers, |write, secrets, after| {
            Box::pin(async move { reseal_answers(write, &secrets, after).await })
        })
        .await?,
        certificates: reseal_all(store, secrets, Uuid::nil(), |write, secrets, after| {
            Box::pin(async move { reseal_certificates(write, &secrets, after).await })
        })
        .await?,
        second_factors: reseal_all(store, secrets, Uuid::nil(), |write, secrets, after| {
            Box::pin(async move { reseal_totp(write, &secrets, after).await })
        })
        .await?,
    };
    let roots = store.local_roots().await?;
    let secrets = secrets.clone();
    let rest = store.write(None, move |write| {
        Box::pin(async move {
            reseal_accounts(write, &secrets).await?;
            reseal_local_roots(write, &secrets, roots).await?;
            authenticate_policies(write, &secrets).await
        })
    });
    rest.await?;
    Ok(resealed)
}

/// The number of rows that a batch has resealed, and the cursor of the next batch.
type Batch<C> = (u64, Option<C>);

/// Reseals a batch of rows of one kind, from a cursor on.
type Reseal<C> = for<'w> fn(&'w mut Write, Secrets, C) -> BoxFuture<'w, Result<Batch<C>>>;

/// Reseals rows of one kind, a transaction for each batch. Returns how many.
async fn reseal_all<C: Send + 'static>(store: &Store, secrets: &Secrets, first: C, batch: Reseal<C>) -> Result<u64> {
    let (mut resealed, mut after) = (0, Some(first));
    while let Some(from) = after {
        let secrets = secrets.clone();
        let (count, last) = store.write(None, move |write| batch(write, secrets, from)).await?;
        resealed += count;
        after = last;
    }
    Ok(resealed)
}

async fn reseal_webhooks(write: &mut Write, secrets: &Secrets, after: Uuid) -> Result<Batch<Uuid>> {
    let (mut count, mut last) = (0, None);
    for (id, sealed) in write.webhook_secrets(after, BATCH).await? {
        last = Some(id);
        let Some(anew) = anew(secrets, Purpose::Webhooks, id.as_bytes(), &sealed) else { continue };
        count += u64::from(write.replace_webhook_secret(id, &sealed, &anew).await?);
    }
    Ok((count, last))
}

async fn reseal_answers(
    write: &mut Write,
    secrets: &Secrets,
    (credential_id, key): (Uuid, String),
) -> Result<Batch<(Uuid, String)>> {
    let (mut count, mut last) = (0, None);
    for answer in write.sealed_answers((credential_id, &key), BATCH).await? {
        let context = [answer.credential_id.as_bytes(), answer.key.as_bytes()].concat();
        if let Some(anew) = anew(secrets, Purpose::Answers, &context, &answer.sealed) {
            count += u64::from(write.replace_answer(&answer, &anew).await?);
        }
        last = Some((answer.credential_id, answer.key));
    }
    Ok((count, last))
}

async fn reseal_certificates(write: &mut Write, secrets: &Secrets, after: Uuid) -> Result<Batch<Uuid>> {
    let (mut count, mut last) = (0, None);
    for keys in write.certificate_keys(after, BATCH).await? {
        last = Some(keys.id);
        let again = |sealed: &Vec<u8>| anew(secrets, Purpose::Certificates, keys.id.as_bytes(), sealed);
        let (key, new_key) = (keys.key.as_ref().and_then(again), keys.new_key.as_ref().and_then(again));
        if key.is_some() || new_key.is_some() {
            count += u64::from(write.replace_certificate_keys(&keys, key, new_key).await?);
        }
    }
    Ok((count, last))
}

async fn reseal_totp(write: &mut Write, secrets: &Secrets, after: Uuid) -> Result<Batch<Uuid>> {
    let (mut count, mut last) = (0, None);
    for (id, sealed) in write.totp_secrets(after, BATCH).await? {
        last = Some(id);
        let Some(anew) = anew(secrets, Purpose::Totp, id.as_bytes(), &sealed) else { continue };
        count += u64::from(write.replace_totp_secret(id, &sealed, &anew).await?);
    }
    Ok((count, last))
}

async fn reseal_accounts(write: &mut Write, secrets: &Secrets) -> Result<()> {
    for (directory, sealed) in write.acme_accounts().await? {
        if let Some(anew) = anew(secrets, Purpose::Certificates, directory.as_bytes(), &sealed) {
            write.keep_acme_account(&directory, &anew).await?;
        }
    }
    Ok(())
}

async fn reseal_local_roots(write: &mut Write, secrets: &Secrets, roots: Vec<LocalRoot>) -> Result<()> {
    for root in roots {
        if let Some(sealed_key) = anew(secrets, Purpose::LocalRoots, root.domain.as_bytes(), &root.sealed_key) {
            write.keep_local_root(&LocalRoot { sealed_key, ..root.clone() }, Some(&root)).await?;
        }
    }
    Ok(())
}

/// Makes the MACs of generations anew with the current key.
async fn authenticate_policies(write: &mut Write, secrets: &Secrets) -> Result<()> {
    for StoredGeneration { number, content, mac, .. } in write.policy_generations().await? {
        if !secrets.is_current(&mac) && secrets.verify_mac(Purpose::Policies, content.as_bytes(), &mac) {
            write.set_policy_mac(number, &secrets.mac(Purpose::Policies, content.as_bytes())).await?;
        }
    }
    Ok(())
}

/// Reseals a value with the current key. `None` if it has that key already or cannot be decrypted.
fn anew(secrets: &Secrets, purpose: Purpose, context: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
    if secrets.is_current(sealed) {
        return None;
    }
    let plain = secrets.open_sealed(purpose, context, sealed)?;
    Some(secrets.seal(purpose, context, &plain))
}
