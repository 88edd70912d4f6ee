//! API keys and enrolment codes.

use chrono::{DateTime, Utc};
use subtle::ConstantTimeEq;
use uuid::Uuid;

use super::arg::args;
use super::error::{DbResult, StoreError};
use super::read::Read;
use super::row::{Row, row};
use super::sql::sql;
use super::{Store, Write, scopes};
use culvert_domain::caller::{Caller, Credential, Role, ScopeKind};
use culvert_domain::error::{Code, Error, Result};
use culvert_domain::key::ApiKey;
use culvert_domain::page::{CursorPosition, Page, PageRows};
use culvert_domain::permission::Permissions;

/// An API key as the operator sees it.
#[derive(Clone, Debug)]
pub struct KeyRecord {
    pub id: Uuid,
    pub public_id: String,
    /// What its owner calls it; it may have no name.
    pub name: String,
    pub email: String,
    pub team: Option<String>,
    pub permissions: Permissions,
    pub created_at: DateTime<Utc>,
    pub expires_at: Option<DateTime<Utc>>,
    pub revoked_at: Option<DateTime<Utc>>,
    pub last_used_at: Option<DateTime<Utc>>,
}

/// What an enrolment code stands for.
#[derive(Clone, Copy, Debug)]
pub struct DeviceCode {
    /// The account that will own the device.
    pub account_id: Uuid,
    pub scope_id: Uuid,
    /// Whether commands at the device may create tunnels.
    pub may_create: bool,
}

/// The owner of an API key, found by its public id. The secret part is checked by [`KeyOwner::admit`].
#[derive(Clone, Debug)]
pub struct KeyOwner {
    pub caller: Caller,
    pub expires_at: Option<DateTime<Utc>>,
    secret_hash: Vec<u8>,
}

impl KeyOwner {
    /// The caller, if the key's secret matches and the key has not expired at this time.
    pub fn admit(&self, key: &ApiKey, now: DateTime<Utc>) -> Option<&Caller> {
        let same: bool = self.secret_hash.ct_eq(&key.secret_hash()).into();
        (same && self.expires_at.is_none_or(|expires_at| now < expires_at)).then_some(&self.caller)
    }
}

macro_rules! select_key_owner {
    ($condition:literal) => {
        sql!(concat!(
            "SELECT k.id AS key_id, k.created_at AS key_created_at, k.secret_hash, k.account_id, k.grants, k.expires_at, \
                    s.id, s.kind, s.name, s.plan, m.role \
             FROM api_keys k \
             JOIN scopes s ON s.id = k.scope_id \
             JOIN accounts a ON a.id = k.account_id AND a.locked_at IS NULL \
             LEFT JOIN team_members m ON m.team_id = k.scope_id AND m.account_id = k.account_id \
             WHERE k.revoked_at IS NULL AND ",
            $condition
        ))
    };
}

macro_rules! select_key_record {
    ($rest:literal) => {
        sql!(concat!(
            "SELECT k.id, k.public_id, k.name, k.grants, k.created_at, k.expires_at, k.revoked_at, k.last_used_at, \
                    a.email, CASE WHEN s.kind = 'team' THEN s.name END AS team \
             FROM api_keys k JOIN accounts a ON a.id = k.account_id JOIN scopes s ON s.id = k.scope_id ",
            $rest
        ))
    };
}

impl Store {
    /// Reads a key with its account, scope, role and plan. `None` for a revoked key, for a key of a Team that its account has
    /// left, and while the account is locked.
    pub async fn key_owner(&self, public_id: &str) -> Result<Option<KeyOwner>> {
        let row = (&self.db).optional(select_key_owner!("k.public_id = $1"), args![public_id]).await?;
        admissible(row)
    }

    /// The current caller of a credential that was valid a moment ago, in the scope that it was used in.
    ///
    /// # Errors
    ///
    /// If it is not valid any longer; if the database fails.
    pub async fn caller_of(&self, credential: Credential, scope_id: Uuid) -> Result<Caller> {
        let caller = match credential {
            // Whoever has left a Team may be signed in all the same.
            Credential::SignIn(id) => {
                return self.caller_of_sign_in(id, scope_id).await?.ok_or_else(Error::not_found);
            }
            Credential::Key { id, .. } => {
                let row = (&self.db).optional(select_key_owner!("k.id = $1"), args![id]).await?;
                admissible(row)?.map(|owner| owner.caller)
            }
            Credential::Device(id) => self.caller_of_device(id).await?,
        };
        caller.ok_or_else(|| not_valid(credential))
    }

    /// Whether an unexpired enrolment code with this hash exists.
    pub async fn scope_of_device_code(&self, hash: &[u8]) -> Result<Option<Uuid>> {
        let sql = sql!("SELECT scope_id FROM device_codes WHERE hash = $1 AND expires_at > $2");
        let row = (&self.db).optional(sql, args![hash, self.clock.now()]).await?;
        Ok(row.map(|row| row.id("scope_id")).transpose()?)
    }

    /// The id and the scope of a key, named by its id or by how it begins.
    pub async fn key_named(&self, key: &str) -> Result<Option<(Uuid, Uuid)>> {
        let id = Uuid::parse_str(key).unwrap_or_default();
        let public_id: String = key.strip_prefix("ctk_").unwrap_or(key).chars().take(12).collect();
        let sql = sql!("SELECT id, scope_id FROM api_keys WHERE id = $1 OR public_id = $2");
        let row = (&self.db).optional(sql, args![id, &public_id]).await?;
        Ok(row.map(|row| Ok::<_, StoreError>((row.id("id")?, row.id("scope_id")?))).transpose()?)
    }

    /// The public ids of at most `most` keys that were used since this time, the last used first.
    pub async fn keys_used_since(&self, since: DateTime<Utc>, most: usize) -> Result<Vec<String>> {
        let sql = sql!(
            "SELECT public_id FROM api_keys WHERE last_used_at >= $1 AND revoked_at IS NULL \
             ORDER BY last_used_at DESC LIMIT $2"
        );
        let rows = (&self.db).all(sql, args![since, u32::try_from(most).unwrap_or(u32::MAX)]).await?;
        Ok(rows.iter().map(|row| row.text("public_id")).collect::<DbResult<_>>()?)
    }

    pub async fn keys(&self) -> Result<Vec<KeyRecord>> {
        let rows = (&self.db).all(select_key_record!("ORDER BY k.created_at, k.id"), args![]).await?;
        Ok(rows.iter().map(key_record).collect::<DbResult<_>>()?)
    }

    /// How many keys an account has in a scope that can be used.
    pub async fn valid_keys_of(&self, account_id: Uuid, scope_id: Uuid) -> Result<u32> {
        count_valid(&mut &self.db, account_id, scope_id, self.clock.now()).await
    }

    /// A page of the keys of a scope; with an account, of its own.
    pub async fn keys_of_scope(
        &self,
        scope_id: Uuid,
        account_id: Option<Uuid>,
        page: Page,
    ) -> Result<PageRows<KeyRecord>> {
        let sql = select_key_record!(
            "WHERE k.scope_id = $1 AND k.account_id = COALESCE($2, k.account_id) AND (k.created_at, k.id) < ($3, $4) \
             ORDER BY k.created_at DESC, k.id DESC LIMIT $5"
        );
        let args = args![scope_id, account_id, page.after.micros(), page.after.id, page.limit_plus_one()];
        let rows = (&self.db).all(sql, args).await?;
        let keys = rows.iter().map(key_record).collect::<DbResult<Vec<_>>>()?;
        Ok(page.truncate(keys, |key| CursorPosition { at: key.created_at, id: key.id }))
    }
}

async fn count_valid(db: &mut impl Read, account_id: Uuid, scope_id: Uuid, now: DateTime<Utc>) -> Result<u32> {
    let sql = sql!(
        "SELECT COUNT(*) AS keys FROM api_keys WHERE account_id = $1 AND scope_id = $2 AND revoked_at IS NULL \
         AND (expires_at IS NULL OR expires_at > $3)"
    );
    Ok(db.one(sql, args![account_id, scope_id, now]).await?.number("keys")?)
}

impl Write {
    pub async fn create_key(
        &mut self,
        key: &ApiKey,
        account_id: Uuid,
        scope_id: Uuid,
        permissions: Permissions,
        expires_at: Option<DateTime<Utc>>,
        name: &str,
    ) -> Result<Uuid> {
        let id = self.clock.id();
        let (hash, permissions, now) = (key.secret_hash(), permissions.to_words(), self.now);
        let sql = sql!(
            "INSERT INTO api_keys (id, public_id, secret_hash, account_id, scope_id, grants, created_at, expires_at, name) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)"
        );
        let args = args![id, key.public_id(), &hash[..], account_id, scope_id, &permissions, now, expires_at, name];
        self.execute(sql, args).await?;
        Ok(id)
    }

    /// How many keys an account has in a scope that can be used.
    pub async fn valid_keys_of(&mut self, account_id: Uuid, scope_id: Uuid) -> Result<u32> {
        let now = self.now;
        count_valid(&mut **self, account_id, scope_id, now).await
    }

    /// Revokes a key of a scope; with an account, one of its own. False if there is none.
    pub async fn revoke_key_of(&mut self, scope_id: Uuid, account_id: Option<Uuid>, id: Uuid) -> Result<bool> {
        let now = self.now;
        let sql = sql!(
            "UPDATE api_keys SET revoked_at = COALESCE(revoked_at, $4) \
             WHERE id = $1 AND scope_id = $2 AND account_id = COALESCE($3, account_id)"
        );
        Ok(self.execute(sql, args![id, scope_id, account_id, now]).await? == 1)
    }

    /// Revokes a key, found by its id or public id. Returns the id if there is such a key. Revoking it again
    /// changes nothing.
    pub async fn revoke_key(&mut self, id: Uuid) -> Result<()> {
        let now = self.now;
        let sql = sql!("UPDATE api_keys SET revoked_at = COALESCE(revoked_at, $2) WHERE id = $1");
        self.execute(sql, args![id, now]).await?;
        Ok(())
    }

    pub async fn record_key_use(&mut self, key_id: Uuid, at: DateTime<Utc>) -> Result<()> {
        let sql = sql!("UPDATE api_keys SET last_used_at = $2 WHERE id = $1");
        self.execute(sql, args![key_id, at]).await?;
        Ok(())
    }

    pub async fn create_device_code(&mut self, hash: &[u8], code: DeviceCode, until: DateTime<Utc>) -> Result<()> {
        let sql = sql!(
            "INSERT INTO device_codes (hash, account_id, scope_id, may_create, expires_at) VALUES ($1, $2, $3, $4, $5)"
        );
        let DeviceCode { account_id, scope_id, may_create } = code;
        self.execute(sql, args![hash, account_id, scope_id, may_create, until]).await?;
        Ok(())
    }

    /// Ends the codes that an account has made, whatever scope they are for.
    pub async fn delete_codes_of(&mut self, account_id: Uuid) -> Result<()> {
        let sql = sql!(
            "DELETE FROM device_codes WHERE account_id = $1 \
             AND (scope_id = $1 OR scope_id IN (SELECT team_id FROM team_members WHERE account_id = $1))"
        );
        self.execute(sql, args![account_id]).await?;
        Ok(())
    }

    /// Ends the codes of an account in a scope but for the newest ones.
    pub async fn delete_older_device_codes(&mut self, account_id: Uuid, scope_id: Uuid, but: u32) -> Result<()> {
        let sql = sql!(
            "DELETE FROM device_codes WHERE hash IN (SELECT hash FROM (SELECT hash FROM device_codes \
                 WHERE account_id = $1 AND scope_id = $2 ORDER BY expires_at DESC LIMIT 1000 OFFSET $3) AS older)"
        );
        self.execute(sql, args![account_id, scope_id, but]).await?;
        Ok(())
    }

    /// Redeems an enrolment code, which can be used once. Returns it if it was valid.
    pub async fn take_device_code(&mut self, hash: &[u8]) -> Result<Option<DeviceCode>> {
        let now = self.now;
        let sql = sql!(
            "DELETE FROM device_codes WHERE hash = $1 AND expires_at > $2 RETURNING account_id, scope_id, may_create"
        );
        let row = self.optional(sql, args![hash, now]).await?;
        let code =
            |row: &Row| Ok::<_, StoreError>(row!(row => DeviceCode { account_id: id, scope_id: id, may_create: flag }));
        Ok(row.as_ref().map(code).transpose()?)
    }
}

/// The error for a credential that is not valid any longer.
pub(super) fn not_valid(credential: Credential) -> Error {
    match credential {
        Credential::Key { .. } => Error::of(Code::InvalidApiKey),
        Credential::Device(_) => {
            Error::new(Code::DeviceNotAllowed, "This device has been removed, or its owner has left the Team.")
        }
        Credential::SignIn(_) => Error::of(Code::SignInRequired),
    }
}

/// Drops keys of a Team whose account is no member: they are not valid.
fn admissible(row: Option<Row>) -> Result<Option<KeyOwner>> {
    let owner = row.as_ref().map(key_owner).transpose()?;
    Ok(owner.filter(|owner| owner.caller.scope.kind == ScopeKind::Personal || owner.caller.role.is_some()))
}

fn key_owner(row: &Row) -> DbResult<KeyOwner> {
    let caller = row!(row => Caller {
        account_id: id;
        credential: Credential::Key { id: row.id("key_id")?, created_at: row.time("key_created_at")? },
        scope: scopes::scope(row)?,
        role: row.optional_string_enum::<Role>("role")?,
        permissions: permissions(row)?,
    });
    Ok(KeyOwner { caller, expires_at: row.optional_time("expires_at")?, secret_hash: row.bytes("secret_hash")? })
}

fn key_record(row: &Row) -> DbResult<KeyRecord> {
    Ok(row!(row => KeyRecord {
        id: id, public_id: text, name: text, email: text, team: optional_text, created_at: time,
        expires_at: optional_time, revoked_at: optional_time, last_used_at: optional_time;
        permissions: permissions(row)?,
    }))
}

fn permissions(row: &Row) -> DbResult<Permissions> {
    Permissions::parse(&row.text("grants")?).map_err(|_| row.unreadable("grants"))
}
