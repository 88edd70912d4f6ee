//! Tunnels that were moved from a node of another host, which has not said yet that it serves them no longer.

use culvert_domain::error::Result;
use uuid::Uuid;

use super::Store;
use super::arg::args;
use super::error::DbResult;
use super::read::Read;
use super::sql::{by_ids, sql};

/// Moves that are confirmed at once.
const BATCH: u32 = 500;

/// Moves from nodes that serve nothing any longer, without having said so.
macro_rules! moves_from_dead_nodes {
    ($now:literal) => {
        concat!(
            "moving_from IS NOT NULL AND NOT EXISTS (SELECT 1 FROM nodes n JOIN hosts h ON h.id = n.host_id \
                 WHERE n.id = tunnels.moving_from AND ",
            $crate::fleet::has_authority!($now),
            ")"
        )
    };
}
pub(crate) use moves_from_dead_nodes;

impl Store {
    /// The tunnels that were moved from a node.
    pub async fn moved_from(&self, node_id: Uuid) -> Result<Vec<Uuid>> {
        let sql = sql!("SELECT id FROM tunnels WHERE moving_from = $1 LIMIT $2");
        let rows = (&self.db).all(sql, args![node_id, BATCH]).await?;
        Ok(rows.iter().map(|row| row.id("id")).collect::<DbResult<_>>()?)
    }

    /// A node does not serve these tunnels any longer, which were moved from it.
    pub async fn confirm_moves(&self, node_id: Uuid, tunnel_ids: Vec<Uuid>) -> Result<()> {
        let sql = by_ids!("UPDATE tunnels SET moving_from = NULL WHERE moving_from = $2 AND id", "$1", "");
        let confirm = self.write(None, move |write| {
            Box::pin(async move {
                write.execute(sql, args![&tunnel_ids[..], node_id]).await?;
                Ok(())
            })
        });
        confirm.await
    }

    /// Nodes that may not serve any longer need not be waited for.
    pub async fn confirm_moves_from_dead_nodes(&self) -> Result<()> {
        let sql = sql!(concat!("UPDATE tunnels SET moving_from = NULL WHERE ", moves_from_dead_nodes!("$1")));
        let now = self.clock.now();
        let confirm = self.write(None, move |write| {
            Box::pin(async move {
                write.execute(sql, args![now]).await?;
                Ok(())
            })
        });
        confirm.await
    }
}
