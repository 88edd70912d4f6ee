//! What has a name, for a search within a scope.

use uuid::Uuid;

use super::Store;
use super::arg::args;
use super::error::DbResult;
use super::read::Read;
use super::row::{Row, row};
use super::sql::{Sql, sql};
use culvert_domain::error::Result;

/// Tunnels and devices of a scope that are looked at, the newest first.
const LOOKED_AT: u32 = 1000;

/// Something with a name.
#[derive(Clone, Debug)]
pub struct NamedItem {
    pub id: Uuid,
    pub name: String,
}

impl Store {
    /// The newest tunnels of a scope.
    pub async fn names_of_tunnels(&self, scope_id: Uuid) -> Result<Vec<NamedItem>> {
        self.named(
            sql!("SELECT id, name FROM tunnels WHERE scope_id = $1 ORDER BY created_at DESC, id DESC LIMIT $2"),
            scope_id,
        )
        .await
    }

    /// The newest devices of a scope, those without a name as nothing.
    pub async fn names_of_devices(&self, scope_id: Uuid) -> Result<Vec<NamedItem>> {
        let sql = sql!(
            "SELECT id, COALESCE(name, '') AS name FROM devices WHERE scope_id = $1 ORDER BY created_at DESC, id DESC LIMIT $2"
        );
        self.named(sql, scope_id).await
    }

    async fn named(&self, sql: Sql, scope_id: Uuid) -> Result<Vec<NamedItem>> {
        let rows = (&self.db).all(sql, args![scope_id, LOOKED_AT]).await?;
        Ok(rows.iter().map(item).collect::<DbResult<_>>()?)
    }
}

fn item(row: &Row) -> DbResult<NamedItem> {
    Ok(row!(row => NamedItem { id: id, name: text }))
}
