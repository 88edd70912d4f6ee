//! Tunnels that a command at a device has made, and that are deleted after it.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::arg::args;
use super::read::Read;
use super::row::readable;
use super::sql::sql;
use super::{Store, Write};
use culvert_domain::error::Result;

/// Tunnels that are looked at in one sweep, at most.
const MOST_DUE: u32 = 100;

/// Temporary tunnels that have to be looked at.
macro_rules! due_temporary_tunnels {
    ($now:literal) => {
        concat!("FROM temporary_tunnels y JOIN tunnels t ON t.id = y.tunnel_id WHERE y.check_at <= ", $now)
    };
}
pub(crate) use due_temporary_tunnels;

impl Store {
    /// Whether a command at this device has made the tunnel, as a temporary one.
    pub async fn is_temporary_tunnel(&self, tunnel_id: Uuid, device_id: Uuid) -> Result<bool> {
        let sql = sql!("SELECT 1 AS one FROM temporary_tunnels WHERE tunnel_id = $1 AND device_id = $2");
        Ok((&self.db).optional(sql, args![tunnel_id, device_id]).await?.is_some())
    }

    /// The temporary tunnels that are to be looked at now, with the ids of their scopes.
    pub async fn due_temporary_tunnels(&self) -> Result<Vec<(Uuid, Uuid)>> {
        let sql =
            sql!(concat!("SELECT t.id, t.scope_id ", due_temporary_tunnels!("$1"), " ORDER BY y.check_at LIMIT $2"));
        let rows = (&self.db).all(sql, args![self.clock.now(), MOST_DUE]).await?;
        Ok(readable(&rows, "temporary tunnel", |row| Ok((row.id("id")?, row.id("scope_id")?))))
    }
}

impl Write {
    /// Marks a tunnel as temporary. It is looked at for the first time then.
    pub async fn insert_temporary_tunnel(
        &mut self,
        tunnel_id: Uuid,
        device_id: Uuid,
        check_at: DateTime<Utc>,
    ) -> Result<()> {
        let sql = sql!("INSERT INTO temporary_tunnels (tunnel_id, device_id, check_at) VALUES ($1, $2, $3)");
        self.execute(sql, args![tunnel_id, device_id, check_at]).await?;
        Ok(())
    }

    /// When to look at a temporary tunnel. `None` if it is none any longer.
    pub async fn temporary_tunnel_check(&mut self, tunnel_id: Uuid) -> Result<Option<DateTime<Utc>>> {
        let sql = sql!("SELECT check_at FROM temporary_tunnels WHERE tunnel_id = $1");
        let row = self.optional(sql, args![tunnel_id]).await?;
        Ok(row.map(|row| row.time("check_at")).transpose()?)
    }

    pub async fn check_temporary_tunnel_at(&mut self, tunnel_id: Uuid, check_at: DateTime<Utc>) -> Result<()> {
        let sql = sql!("UPDATE temporary_tunnels SET check_at = $2 WHERE tunnel_id = $1");
        self.execute(sql, args![tunnel_id, check_at]).await?;
        Ok(())
    }

    /// When the last lease of a tunnel ended, or ends if it is not renewed. `None` if the tunnel never ran.
    pub async fn last_lease_end(&mut self, tunnel_id: Uuid) -> Result<Option<DateTime<Utc>>> {
        let sql = sql!(
            "SELECT COALESCE(ended_at, lease_until) AS lease_end FROM sessions WHERE tunnel_id = $1 \
             ORDER BY started_at DESC, id DESC LIMIT 1"
        );
        let row = self.optional(sql, args![tunnel_id]).await?;
        Ok(row.map(|row| row.time("lease_end")).transpose()?)
    }
}
