//! API keys: those that the operator makes, and those that people make for themselves in the dashboard.

use chrono::{DateTime, TimeDelta, Utc};
use culvert_api_types::requests::Input;
use culvert_domain::account;
use culvert_domain::action::Action;
use culvert_domain::audit_log::{Actor, AuditAction, NewEntry};
use culvert_domain::caller::Caller;
use culvert_domain::error::{Code, Error, Fault, Result};
use culvert_domain::facts::ResourceFacts;
use culvert_domain::key::ApiKey;
use culvert_domain::page::{Page, PageRows};
use culvert_domain::permission::Permissions;
use culvert_domain::plan::Entitlement;
use culvert_store::keys::KeyRecord;
use culvert_store::{Store, Write};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::Service;
use crate::commit::Change;
use crate::gate::{Permit, RequestDraft};

/// Keys of an account in a scope that can be used.
const PER_ACCOUNT: u32 = 50;
/// Days that a key may last, where it ends at all.
const DAYS: std::ops::RangeInclusive<i64> = 1..=3650;

/// A key that was created. Its secret is known now and never again.
pub struct NewKey {
    pub id: Uuid,
    pub key: ApiKey,
    pub created_at: DateTime<Utc>,
}

/// Creates a key of an account, for a scope, on behalf of the operator.
///
/// # Errors
///
/// If the database fails.
pub async fn create(
    store: &Store,
    account_id: Uuid,
    scope_id: Uuid,
    permissions: Permissions,
    expires_at: Option<DateTime<Utc>>,
    name: &str,
) -> Result<NewKey> {
    let (key, name) = (ApiKey::generate(store.clock()), name.to_owned());
    store
        .write(Some(scope_id), move |write| {
            Box::pin(async move {
                let id = write.create_key(&key, account_id, scope_id, permissions, expires_at, &name).await?;
                let scopes: Vec<_> = permissions.iter().collect();
                let details =
                    json!({"account_id": account_id, "name": name, "scopes": scopes, "expires_at": expires_at});
                let entry = NewEntry::new(scope_id, Actor::CLI, Action::KeysCreate);
                write.audit(entry.about(id).with(&details));
                Ok(NewKey { id, key, created_at: write.now })
            })
        })
        .await
}

/// Revokes a key, named by its id or by how it begins, on behalf of the operator. `None` if there is no such key.
///
/// # Errors
///
/// If the database fails.
pub async fn revoke(store: &Store, key: String) -> Result<Option<Uuid>> {
    let Some((id, scope_id)) = store.key_named(&key).await? else { return Ok(None) };
    let revoke = store.write(Some(scope_id), move |write| {
        Box::pin(async move {
            write.audit(NewEntry::new(scope_id, Actor::CLI, AuditAction::KeysRevoke).about(id));
            write.revoke_key(id).await
        })
    });
    revoke.await?;
    Ok(Some(id))
}

impl Service {
    /// A page of the keys of the caller's scope: a member's own, and for everybody else those of all.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn keys(&self, caller: &Caller, page: Page) -> Result<PageRows<KeyRecord>> {
        self.store.keys_of_scope(caller.scope.id, caller.own_alone(), page).await
    }
}

impl Service {
    /// Whether the caller can have another key in the scope.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn has_room_for_key(&self, caller: &Caller) -> Result<bool> {
        Ok(self.store.valid_keys_of(caller.account_id, caller.scope.id).await? < PER_ACCOUNT)
    }

    /// Revokes a key of the caller's scope: a member its own, everybody else any. No policy is asked whether a right may be
    /// taken away. Revoking a key again changes nothing.
    ///
    /// # Errors
    ///
    /// `not_found` if there is no such key; if the database fails.
    pub async fn revoke_key(&self, caller: &Caller, key_id: Uuid) -> Result<()> {
        let (scope_id, account_id) = (caller.scope.id, caller.own_alone());
        let entry = NewEntry::new(scope_id, Actor::of(caller, None, None), AuditAction::KeysRevoke).about(key_id);
        let revoke = self.store.write(Some(scope_id), move |write| {
            Box::pin(async move {
                let is_revoked = write.revoke_key_of(scope_id, account_id, key_id).await?;
                if is_revoked {
                    write.audit(entry);
                }
                Ok(is_revoked)
            })
        });
        if revoke.await? { Ok(()) } else { Err(Error::not_found()) }
    }
}

/// A key that somebody wants, as typed.
#[derive(Clone, Debug, Default)]
pub struct WantedKey {
    pub name: String,
    /// API scopes, or the name of a preset.
    pub scopes: String,
    /// For how many days; for ever if it is empty.
    pub days: String,
}

/// A key that may be made.
#[derive(Clone, Debug)]
pub struct KeyDefinition {
    name: String,
    permissions: Permissions,
    lifetime: Option<TimeDelta>,
}

impl RequestDraft for WantedKey {
    type Valid = KeyDefinition;

    fn input(&self) -> Option<Input<'_>> {
        None
    }

    fn validate(self, _: &ResourceFacts, _: &Entitlement) -> Result<KeyDefinition, Vec<Fault>> {
        let mut faults = Vec::new();
        let name = account::name(&self.name).unwrap_or_else(|problem| {
            faults.push(Fault::new("name", problem));
            String::new()
        });
        let permissions = Permissions::parse(&self.scopes).map_err(|problem| Fault::new("scopes", problem.to_string()));
        let days = match self.days.trim() {
            "" => Ok(None),
            days => days.parse().ok().filter(|days| DAYS.contains(days)).map(Some).ok_or_else(|| {
                Fault::new("days", format!("must be a number from {} to {}, or empty", DAYS.start(), DAYS.end()))
            }),
        };
        match (permissions, days) {
            (Ok(permissions), Ok(days)) if faults.is_empty() => {
                Ok(KeyDefinition { name, permissions, lifetime: days.map(TimeDelta::days) })
            }
            (permissions, days) => {
                faults.extend(permissions.err());
                faults.extend(days.err());
                Err(faults)
            }
        }
    }
}

/// Makes a key of the caller, for the caller's scope.
pub struct CreateKey {
    pub definition: KeyDefinition,
    pub key: ApiKey,
}

impl Change for CreateKey {
    type Done = NewKey;

    async fn apply(&self, write: &mut Write, permit: &Permit) -> Result<NewKey> {
        let (caller, KeyDefinition { name, permissions, lifetime }) = (permit.caller(), &self.definition);
        if write.valid_keys_of(caller.account_id, caller.scope.id).await? >= PER_ACCOUNT {
            return Err(Error::of(Code::KeyLimitReached));
        }
        let expires_at = lifetime.map(|lifetime| write.now + lifetime);
        let id =
            write.create_key(&self.key, caller.account_id, caller.scope.id, *permissions, expires_at, name).await?;
        Ok(NewKey { id, key: self.key.clone(), created_at: write.now })
    }

    fn subject(&self, done: &NewKey) -> Option<Uuid> {
        Some(done.id)
    }

    fn details(&self, _: &NewKey) -> Value {
        let KeyDefinition { name, permissions, lifetime } = &self.definition;
        let scopes: Vec<_> = permissions.iter().collect();
        json!({"name": name, "scopes": scopes, "days": lifetime.map(|lifetime| lifetime.num_days())})
    }
}
