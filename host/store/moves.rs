//! Tunnels that were moved from a node of another host, which has not said yet that it serves them no longer.

use culvert_domain::error::Result;
use uuid::Uuid;

use super::arg::args;
use super::error::DbResult;
use super::read::Read;
use super::sql::{by_ids, sql};
use super::{Store, Write};

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

/// Tunnels that are looked at together.
const LOOKED_AT: u32 = 500;

/// Nodes whose host was lost: it did not stop in order, and they may not serve any longer.
macro_rules! nodes_of_lost_hosts {
    ($now:literal) => {
        concat!(
            "FROM nodes n JOIN hosts h ON h.id = n.host_id WHERE h.authority > 0 AND NOT ",
            $crate::fleet::has_authority!($now)
        )
    };
}
pub(crate) use nodes_of_lost_hosts;

/// The ids of the tunnels on a node.
macro_rules! placed_on {
    ($node:literal) => {
        concat!(
            "(SELECT tunnel_id AS id FROM node_ports WHERE node_id = ",
            $node,
            " UNION SELECT id FROM tunnels WHERE node_id = ",
            $node,
            " AND protocol = 'http') placed"
        )
    };
}

impl Store {
    /// Nodes whose host was lost.
    pub async fn nodes_of_lost_hosts(&self) -> Result<Vec<Uuid>> {
        let sql = sql!(concat!("SELECT n.id ", nodes_of_lost_hosts!("$1")));
        let rows = (&self.db).all(sql, args![self.clock.now()]).await?;
        Ok(rows.iter().map(|row| row.id("id")).collect::<DbResult<_>>()?)
    }

    /// Tunnels on a node after this one, each with its scope, in the order of their ids.
    pub async fn tunnels_on(&self, node_id: Uuid, after: Uuid) -> Result<Vec<(Uuid, Uuid)>> {
        let sql = sql!(concat!(
            "SELECT t.id, t.scope_id FROM ",
            placed_on!("$1"),
            " JOIN tunnels t ON t.id = placed.id WHERE placed.id > $2 ORDER BY placed.id LIMIT $3"
        ));
        let rows = (&self.db).all(sql, args![node_id, after, LOOKED_AT]).await?;
        Ok(rows.iter().map(|row| Ok((row.id("id")?, row.id("scope_id")?))).collect::<DbResult<_>>()?)
    }

    /// The devices that should run a tunnel of a node, which nobody runs.
    pub async fn devices_waiting_for(&self, node_id: Uuid) -> Result<Vec<Uuid>> {
        let sql = sql!(concat!(
            "SELECT DISTINCT t.desired_device_id AS id FROM ",
            placed_on!("$1"),
            " JOIN tunnels t ON t.id = placed.id WHERE t.desired_device_id IS NOT NULL \
                 AND NOT EXISTS (SELECT 1 FROM sessions s WHERE s.tunnel_id = t.id AND s.ended_at IS NULL)"
        ));
        let rows = (&self.db).all(sql, args![node_id]).await?;
        Ok(rows.iter().map(|row| row.id("id")).collect::<DbResult<_>>()?)
    }

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

impl Write {
    /// Whether the host of a node was lost.
    pub async fn is_host_lost(&mut self, node_id: Uuid) -> Result<bool> {
        let sql = sql!(concat!("SELECT 1 AS one ", nodes_of_lost_hosts!("$1"), " AND n.id = $2"));
        let now = self.now;
        Ok(self.optional(sql, args![now, node_id]).await?.is_some())
    }
}
