//! Undoing the effects of a failed operation; see `docs/develop/decisions/0003-operations.md`.

use culvert_domain::error::Result;
use culvert_domain::operation::Operation;
use culvert_domain::session::EndReason;

use super::requests::{StartOutcome, start_result};
use crate::sessions;
use crate::startable::{Bandwidth, check_startable};
use culvert_store::Write;

/// Ends the lease of a start or restart that has failed, and gives the tunnel back to the device of a handoff.
pub(super) async fn end_failed_start(write: &mut Write, operation: &mut Operation, detail: &str) -> Result<()> {
    let Some(tunnel_id) = operation.tunnel_id else { return Ok(()) };
    write.set_start_error(tunnel_id, Some(detail)).await?;
    // Without a session the start has not changed anything: the former session, if any, is still open.
    let Some(session_id) = operation.session_id else { return Ok(()) };
    sessions::stop(write, session_id, EndReason::Error).await?;
    roll_back(write, operation).await
}

/// Gives a tunnel back to the device from which a handoff took it, if that device is still online.
async fn roll_back(write: &mut Write, operation: &mut Operation) -> Result<()> {
    let (Some(tunnel_id), Some(handoff_from_device_id)) = (operation.tunnel_id, operation.handoff_from_device_id)
    else {
        return Ok(());
    };
    // The command that the tunnel belonged to has ended with the handoff.
    if write.temporary_tunnel_check(tunnel_id).await?.is_some() {
        return Ok(());
    }
    let Some(tunnel) = write.tunnel(operation.scope_id, tunnel_id).await? else { return Ok(()) };
    // The checks of a start apply here too: the device may have lost its permission to run the tunnel.
    let device = write.device(operation.scope_id, handoff_from_device_id).await?;
    let may_run = device.is_some_and(|device| check_startable(&tunnel, &device, Bandwidth::Left).is_ok());
    let Some(boot_id) = write.online_boot_id(handoff_from_device_id).await?.filter(|_| may_run) else {
        return Ok(());
    };
    let target = match write.last_target(tunnel.id, handoff_from_device_id).await? {
        Some(last) => last,
        None => tunnel.target(),
    };
    let session_id = sessions::open(write, &tunnel, handoff_from_device_id, boot_id, &target).await?;
    operation.result = Some(start_result(
        &tunnel,
        Some(session_id),
        handoff_from_device_id,
        Some(handoff_from_device_id),
        StartOutcome::RolledBack,
    )?);
    Ok(())
}
