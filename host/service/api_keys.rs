//! API keys, as the operator makes them.

use chrono::{DateTime, Utc};
use culvert_domain::error::Result;
use culvert_domain::key::ApiKey;
use culvert_domain::permission::Permissions;
use culvert_store::Store;
use uuid::Uuid;

/// A key that was created. Its secret is known now and never again.
pub struct NewKey {
    pub id: Uuid,
    pub key: ApiKey,
    pub created_at: DateTime<Utc>,
}

/// Creates a key of an account, for a scope.
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
) -> Result<NewKey> {
    let key = ApiKey::generate(store.clock());
    store
        .write(None, move |write| {
            Box::pin(async move {
                let id = write.create_key(&key, account_id, scope_id, permissions, expires_at).await?;
                Ok(NewKey { id, key, created_at: write.now })
            })
        })
        .await
}

/// Revokes a key, named by its id or by how it begins. `None` if there is no such key.
///
/// # Errors
///
/// If the database fails.
pub async fn revoke(store: &Store, key: String) -> Result<Option<Uuid>> {
    store.write(None, move |write| Box::pin(async move { write.revoke_key(&key).await })).await
}
