//! Tunnels that a command at a device makes, and that end with it.

use chrono::TimeDelta;
use culvert_domain::error::{Code, Error, Result};
use culvert_domain::tunnel::Tunnel;
use culvert_store::{Store, Write};
use culvert_wire::control::TEMPORARY_TUNNEL_KEPT;
use uuid::Uuid;

use crate::commit::Change;
use crate::gate::Permit;
use crate::tunnels::{self, CreateTunnel};

/// When a tunnel that could not be looked at is looked at again.
const RETRY_AFTER: TimeDelta = TimeDelta::minutes(1);

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
        let device = write.device(permit.caller().scope.id, self.device_id).await?;
        if !device.is_some_and(|device| device.may_create) {
            return Err(Error::new(Code::DeviceNotAllowed, "Commands at this device may not create tunnels."));
        }
        let tunnel = self.create.apply(write, permit).await?;
        if self.keep == Keep::Temporarily {
            write.insert_temporary_tunnel(tunnel.id, self.device_id, write.now + TEMPORARY_TUNNEL_KEPT).await?;
        }
        Ok(tunnel)
    }

    fn subject(&self, done: &Tunnel) -> Option<Uuid> {
        Some(done.id)
    }
}

/// A command at a device has ended: its tunnel is deleted, unless it runs on another device by now.
pub(crate) struct DeleteFromDevice {
    pub tunnel_id: Uuid,
    pub device_id: Uuid,
}

impl Change for DeleteFromDevice {
    type Done = Uuid;

    async fn apply(&self, write: &mut Write, permit: &Permit) -> Result<Uuid> {
        let tunnel = write.tunnel(permit.caller().scope.id, self.tunnel_id).await?.ok_or_else(Error::not_found)?;
        if tunnel.run.as_ref().is_none_or(|run| run.device_id == self.device_id) {
            tunnels::delete(write, tunnel).await?;
        }
        Ok(self.tunnel_id)
    }
}

/// A device could not start its temporary tunnel: the command is still there, so that the tunnel is kept.
///
/// # Errors
///
/// If the database fails.
pub(crate) async fn note_attempt(store: &Store, scope_id: Uuid, tunnel_id: Uuid, device_id: Uuid) -> Result<()> {
    if !store.is_temporary_tunnel(tunnel_id, device_id).await? {
        return Ok(());
    }
    look_again(store, scope_id, tunnel_id, TEMPORARY_TUNNEL_KEPT).await
}

async fn look_again(store: &Store, scope_id: Uuid, tunnel_id: Uuid, after: TimeDelta) -> Result<()> {
    let again = store.write(Some(scope_id), move |write| {
        Box::pin(async move {
            let at = write.now + after;
            write.check_temporary_tunnel_at(tunnel_id, at).await
        })
    });
    again.await
}

/// Looks at a temporary tunnel that is due. One with which that fails is looked at again after a minute, so that it does
/// not stand in front of others.
///
/// # Errors
///
/// If the database fails.
pub(crate) async fn look_at(store: &Store, scope_id: Uuid, tunnel_id: Uuid) -> Result<()> {
    let expired = store.write(Some(scope_id), move |write| Box::pin(expire(write, scope_id, tunnel_id))).await;
    if expired.is_err() {
        look_again(store, scope_id, tunnel_id, RETRY_AFTER).await?;
    }
    expired
}

/// Deletes a temporary tunnel if it has not run for ten minutes.
///
/// # Errors
///
/// If the database fails.
async fn expire(write: &mut Write, scope_id: Uuid, tunnel_id: Uuid) -> Result<()> {
    let Some(check_at) = write.temporary_tunnel_check(tunnel_id).await? else { return Ok(()) };
    let kept_until = write.last_lease_end(tunnel_id).await?.map_or(check_at, |end| end + TEMPORARY_TUNNEL_KEPT);
    if kept_until > write.now {
        return write.check_temporary_tunnel_at(tunnel_id, kept_until).await;
    }
    let tunnel = write.tunnel(scope_id, tunnel_id).await?.ok_or_else(Error::not_found)?;
    tracing::info!(%tunnel_id, "a temporary tunnel is deleted: its command has ended");
    tunnels::delete(write, tunnel).await
}
