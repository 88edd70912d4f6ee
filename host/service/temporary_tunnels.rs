//! Tunnels that a command at a device makes, and that end with it.

use chrono::TimeDelta;
use culvert_domain::error::{Error, Result};
use culvert_domain::tunnel::Tunnel;
use culvert_store::Write;
use uuid::Uuid;

use crate::commit::Change;
use crate::gate::Permit;
use crate::tunnels::{self, CreateTunnel};

/// How long a temporary tunnel is kept after its last lease: a command that comes back before keeps its address.
const KEPT_FOR: TimeDelta = TimeDelta::minutes(10);

/// How long the tunnel of a command is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Until somebody deletes it.
    ForGood,
    /// As long as its command runs.
    Temporarily,
}

/// A command at a device creates a tunnel.
pub(crate) struct CreateFromDevice {
    pub create: CreateTunnel,
    pub device_id: Uuid,
    pub keep: Keep,
}

impl Change for CreateFromDevice {
    type Done = Tunnel;

    async fn apply(&self, write: &mut Write, permit: &Permit) -> Result<Tunnel> {
        let tunnel = self.create.apply(write, permit).await?;
        if self.keep == Keep::Temporarily {
            write.insert_temporary_tunnel(tunnel.id, self.device_id, write.now + KEPT_FOR).await?;
        }
        Ok(tunnel)
    }
}

/// Deletes a temporary tunnel if it has not run for ten minutes.
///
/// # Errors
///
/// If the database fails.
pub(crate) async fn expire(write: &mut Write, scope_id: Uuid, tunnel_id: Uuid) -> Result<()> {
    let Some(check_at) = write.temporary_tunnel_check(tunnel_id).await? else { return Ok(()) };
    let kept_until = write.last_lease_end(tunnel_id).await?.map_or(check_at, |end| end + KEPT_FOR);
    if kept_until > write.now {
        return write.check_temporary_tunnel_at(tunnel_id, kept_until).await;
    }
    let tunnel = write.tunnel(scope_id, tunnel_id).await?.ok_or_else(Error::not_found)?;
    tracing::info!(%tunnel_id, "a temporary tunnel is deleted: its command has ended");
    tunnels::delete(write, tunnel).await
}
