//! Devices: reading, changing and removing them.

use crate::Service;
use culvert_domain::action::Action;
use culvert_domain::audit_log::{Actor, NewEntry};
use culvert_domain::caller::Caller;
use culvert_domain::page::{Page, PageRows};
use culvert_wire::failure_code::FailureCode;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::commit::Change;
use crate::gate::Permit;
use crate::{operations, presence, sessions};
use culvert_api_types::requests::DevicePatch;
use culvert_domain::device::Device;
use culvert_domain::error::{Code, Error, Result};
use culvert_domain::event::OfflineReason;
use culvert_domain::operation::OperationError;
use culvert_domain::session::EndReason;
use culvert_store::{Hint, Store, Write};

impl Service {
    /// A page of the devices of the caller's scope.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn devices(&self, caller: &Caller, page: Page) -> Result<PageRows<Device>> {
        let mut page = self.store.devices(caller.scope.id, page).await?;
        page.rows.iter_mut().for_each(|device| self.add_last_seen(device));
        Ok(page)
    }

    /// A device of the caller's scope.
    ///
    /// # Errors
    ///
    /// `Code::NotFound` if the scope has no such device; if the database fails.
    pub async fn device(&self, caller: &Caller, device_id: Uuid) -> Result<Device> {
        let mut device = self.store.device(caller.scope.id, device_id).await?.ok_or_else(Error::not_found)?;
        self.add_last_seen(&mut device);
        Ok(device)
    }

    /// Adds when this host has last heard of a device.
    fn add_last_seen(&self, device: &mut Device) {
        device.last_seen_at = self.liveness.last_seen_at(device.id).or(device.last_seen_at);
    }
}

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
            turn_remote_control_off(write, device.id).await?;
        }
        write.device(scope_id, device.id).await?.ok_or_else(Error::not_found)
    }
}

/// Turns remote control off, for the device or for a caller. Every earlier consent becomes void.
///
/// # Errors
///
/// If the database fails.
pub async fn turn_remote_control_off(write: &mut Write, id: Uuid) -> Result<()> {
    write.revoke_consent(id).await?;
    let detail = "Remote control was turned off on the device.";
    operations::cancel_queued(write, id, &OperationError::new(FailureCode::RemoteControlDisabled, detail)).await?;
    write.notify(Hint::Device(id));
    Ok(())
}

/// Says whether commands at a device may create tunnels. Only its owner does that.
pub struct SetMayCreate {
    pub device_id: Uuid,
    pub may_create: bool,
}

impl Change for SetMayCreate {
    type Done = ();

    async fn apply(&self, write: &mut Write, permit: &Permit) -> Result<()> {
        let caller = permit.caller();
        let device = write.device(caller.scope.id, self.device_id).await?.ok_or_else(Error::not_found)?;
        // Whatever a policy says: what is created is the owner's.
        if device.owner_id != caller.account_id {
            let code = Code::from_policy("not_device_owner".into());
            return Err(Error::new(code, "Only the owner of a device says what its commands may do."));
        }
        write.set_may_create(device.id, self.may_create).await
    }

    fn details(&self, (): &()) -> Value {
        json!({"may_create": self.may_create})
    }
}

/// Sets whether commands at a device may create tunnels, on behalf of the operator.
///
/// # Errors
///
/// If the database fails.
pub async fn set_may_create(store: &Store, scope_id: Uuid, id: Uuid, may_create: bool) -> Result<()> {
    let set = store.write(Some(scope_id), move |write| {
        Box::pin(async move {
            let entry = NewEntry::new(scope_id, Actor::CLI, Action::DevicesSetMayCreate).about(id);
            write.audit(entry.with(&json!({"may_create": may_create})));
            write.set_may_create(id, may_create).await
        })
    });
    set.await
}

/// Ends all leases of a device that may no longer act for its scope, and cancels its queued operations.
async fn revoke_work(write: &mut Write, id: Uuid, why: &OperationError) -> Result<()> {
    operations::cancel_queued(write, id, why).await?;
    for lease in write.leases_of_device(id).await? {
        sessions::stop(write, lease.session_id, EndReason::DeviceNotAllowed).await?;
    }
    write.clear_desired_device(id).await?;
    write.notify(Hint::Device(id));
    Ok(())
}

/// Moves a device to the personal scope of its owner, who has left the Team.
async fn take_along(write: &mut Write, id: Uuid, owner_id: Uuid) -> Result<()> {
    end_access(write, id, "The device's owner has left the Team.").await?;
    write.move_device(id, owner_id).await
}

/// Ends what a device does whose owner's account was locked. It is not removed.
///
/// # Errors
///
/// If the database fails.
pub(crate) async fn stop_of_locked(write: &mut Write, id: Uuid) -> Result<()> {
    end_access(write, id, "The account of the device's owner is locked.").await
}

async fn end_access(write: &mut Write, id: Uuid, why: &str) -> Result<()> {
    revoke_work(write, id, &OperationError::new(FailureCode::AccessLost, why)).await?;
    operations::fail_of_lost_device(write, id).await?;
    presence::set_offline(write, id, OfflineReason::NotAllowed).await
}

/// Removes a device of the caller's scope.
pub struct RemoveDevice {
    pub device_id: Uuid,
}

impl Change for RemoveDevice {
    type Done = ();

    async fn apply(&self, write: &mut Write, permit: &Permit) -> Result<()> {
        let device = write.device(permit.caller().scope.id, self.device_id).await?.ok_or_else(Error::not_found)?;
        remove_unless_pinned(write, device.id).await
    }
}

/// Removes a device of a scope on behalf of the operator.
///
/// # Errors
///
/// `Code::DevicePinned` if it is the only device that may run some tunnel; if the database fails.
pub async fn remove_of_scope(store: &Store, scope_id: Uuid, id: Uuid) -> Result<()> {
    let remove = store.write(Some(scope_id), move |write| {
        write.audit(NewEntry::new(scope_id, Actor::CLI, Action::DevicesRemove).about(id));
        Box::pin(remove_unless_pinned(write, id))
    });
    remove.await
}

async fn remove_unless_pinned(write: &mut Write, id: Uuid) -> Result<()> {
    let alone = write.tunnels_bound_only_to(id).await?;
    if alone.is_empty() {
        return remove(write, id).await;
    }
    // Without it, their allowlists would be empty, and anybody's device could run them.
    let detail = format!("only this device may run {}; change their devices first", alone.join(", "));
    Err(Error::new(Code::DevicePinned, detail))
}

/// Removes a device, ends its sessions and cancels its operations.
///
/// # Errors
///
/// If the database fails.
pub async fn remove(write: &mut Write, id: Uuid) -> Result<()> {
    let error = OperationError::new(FailureCode::DeviceRemoved, "The device was removed.");
    revoke_work(write, id, &error).await?;
    operations::fail_of_lost_device(write, id).await?;
    presence::set_offline(write, id, OfflineReason::Removed).await?;
    write.delete_device(id).await?;
    write.notify(Hint::Device(id));
    Ok(())
}

/// Removes a member from a Team. Operations that they requested are canceled while still queued. Their devices stop
/// all work for the Team and move to their personal scope.
///
/// # Errors
///
/// If the database fails.
pub async fn remove_member(write: &mut Write, team_id: Uuid, account_id: Uuid) -> Result<()> {
    write.delete_member(team_id, account_id).await?;
    operations::cancel_queued_by(write, team_id, account_id).await?;
    for device_id in write.devices_of_owner(team_id, account_id).await? {
        take_along(write, device_id, account_id).await?;
    }
    Ok(())
}
