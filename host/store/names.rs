//! Search by name within a scope.

use uuid::Uuid;

use super::Store;
use super::arg::args;
use super::db::Read;
use super::error::DbResult;
use super::row::{Row, row};
use super::sql::sql;
use culvert_domain::error::Result;

/// Tunnels and devices of a scope that are looked at, the newest first, and those that are told.
const LOOKED_AT: u32 = 1000;
const TOLD: u32 = 10;

/// Something with a name.
#[derive(Clone, Debug)]
pub struct NamedItem {
    pub id: Uuid,
    pub name: String,
}

impl Store {
    /// Tunnels with this text in their name, in lower case.
    pub async fn tunnels_named_like(&self, scope_id: Uuid, part: &str) -> Result<Vec<NamedItem>> {
        let sql = sql!(
            sqlite: "SELECT id, name FROM (SELECT id, name FROM tunnels WHERE scope_id = $1 ORDER BY created_at DESC, id DESC \
                         LIMIT $3) WHERE instr(lower(name), $2) > 0 LIMIT $4",
            postgres: "SELECT id, name FROM (SELECT id, name FROM tunnels WHERE scope_id = $1 \
                           ORDER BY created_at DESC, id DESC LIMIT $3) AS t WHERE strpos(lower(name), $2) > 0 LIMIT $4"
        );
        let rows = (&self.db).all(sql, args![scope_id, part, LOOKED_AT, TOLD]).await?;
        Ok(rows.iter().map(item).collect::<DbResult<_>>()?)
    }

    /// Devices with this text in their name, in lower case.
    pub async fn devices_named_like(&self, scope_id: Uuid, part: &str) -> Result<Vec<NamedItem>> {
        let sql = sql!(
            sqlite: "SELECT id, name FROM (SELECT id, name FROM devices WHERE scope_id = $1 ORDER BY created_at DESC, id DESC \
                         LIMIT $3) WHERE instr(lower(name), $2) > 0 LIMIT $4",
            postgres: "SELECT id, name FROM (SELECT id, name FROM devices WHERE scope_id = $1 \
                           ORDER BY created_at DESC, id DESC LIMIT $3) AS d WHERE strpos(lower(name), $2) > 0 LIMIT $4"
        );
        let rows = (&self.db).all(sql, args![scope_id, part, LOOKED_AT, TOLD]).await?;
        Ok(rows.iter().map(item).collect::<DbResult<_>>()?)
    }
}

fn item(row: &Row) -> DbResult<NamedItem> {
    Ok(row!(row => NamedItem { id: id, name: text }))
}
