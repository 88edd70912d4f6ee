//! Changing devices.

use uuid::Uuid;

use crate::gate::Permit;
use crate::store::Write;
use crate::store::commit::Change;
use culvert_domain::device::Device;
use culvert_domain::error::{Error, Result};
use culvert_domain::input::DevicePatch;

pub struct UpdateDevice {
    pub device_id: Uuid,
    pub patch: DevicePatch,
}

impl Change for UpdateDevice {
    type Done = Device;

    async fn apply(&self, write: &mut Write, permit: &Permit) -> Result<Device> {
        let scope_id = permit.caller().scope.id;
        let device = write.device(scope_id, self.device_id).await?.ok_or_else(Error::not_found)?;
        if let Some(name) = &self.patch.name {
            write.rename_device(device.id, name).await?;
        }
        // Remote control is turned off at once, whether the device is online or not. This is done even if
        // it is off already: an agent that is offline may hold a signed consent, which becomes void.
        if self.patch.remote_control_enabled == Some(false) {
            write.turn_remote_control_off(device.id).await?;
        }
        write.device(scope_id, device.id).await?.ok_or_else(Error::not_found)
    }
}
