//! Undoing the effects of a failed operation; see `docs/develop/decisions/0003-operations.md`.

use super::actions::{StartOutcome, start_result};
use crate::store::{Hint, Write};
use culvert_domain::error::Result;
use culvert_domain::operation::{Operation, OperationError, RemoteAction};
use culvert_domain::session::EndReason;

impl Write {
    /// Fails an operation and undoes its effects. The lease of a start ends. The tunnel of a handoff is
    /// offered back to the device that ran it.
    pub async fn abort_operation(&mut self, operation: &mut Operation, error: OperationError) -> Result<()> {
        self.notify(Hint::Device(operation.device_id));
        if matches!(operation.action, RemoteAction::Start | RemoteAction::Restart) {
            self.end_failed_start(operation, &error.detail).await?;
        }
        self.fail_operation(operation, error).await?;
        Ok(())
    }

    async fn end_failed_start(&mut self, operation: &mut Operation, detail: &str) -> Result<()> {
        let Some(tunnel_id) = operation.tunnel_id else { return Ok(()) };
        self.set_start_error(tunnel_id, Some(detail)).await?;
        // Without a session the start has not changed anything: the former session, if any, is still open.
        let Some(session_id) = operation.session_id else { return Ok(()) };
        self.stop_session(session_id, EndReason::Error).await?;
        self.roll_back(operation).await
    }

    /// Gives a tunnel back to the device from which a handoff took it, if that device is still online.
    async fn roll_back(&mut self, operation: &mut Operation) -> Result<()> {
        let (Some(tunnel_id), Some(handoff_from_device_id)) = (operation.tunnel_id, operation.handoff_from_device_id)
        else {
            return Ok(());
        };
        let Some(tunnel) = self.tunnel(operation.scope_id, tunnel_id).await? else { return Ok(()) };
        // The checks of a start apply here too: the device may have lost its permission to run the tunnel.
        let device = self.device(operation.scope_id, handoff_from_device_id).await?;
        let may_run = device.is_some_and(|device| device.owner_active)
            && tunnel.allows(handoff_from_device_id)
            && !tunnel.suspended;
        let Some(boot_id) = self.online_boot_id(handoff_from_device_id).await?.filter(|_| may_run) else {
            return Ok(());
        };
        let target = match self.last_target(tunnel.id, handoff_from_device_id).await? {
            Some(last) => last,
            None => self.current_target(&tunnel).await?,
        };
        let session_id = self.open_session(&tunnel, handoff_from_device_id, boot_id, &target).await?;
        operation.result = Some(start_result(
            &tunnel,
            Some(session_id),
            handoff_from_device_id,
            Some(handoff_from_device_id),
            StartOutcome::RolledBack,
        )?);
        Ok(())
    }
}
