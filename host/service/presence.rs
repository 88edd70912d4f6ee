//! Presence of devices: who is connected, and the events of going online and offline.

use chrono::{DateTime, Utc};
use culvert_domain::error::Result;
use culvert_domain::event::OfflineReason;
use uuid::Uuid;

use super::{events, operations};
use culvert_domain::connection::{Connection, NewConnection};
use culvert_store::Write;

/// Records a new connection of a device. Its former connection is no longer current.
///
/// # Errors
///
/// If the database fails.
pub(crate) async fn connect(write: &mut Write, device_id: Uuid, new: NewConnection) -> Result<Connection> {
    let was_online = write.online_boot_id(device_id).await?.is_some();
    // An agent that tries several hosts may stay with the former one: it hears at once that it has to connect again.
    write.hint_other_hosts(&[device_id]).await?;
    let connection = write.insert_connection(device_id, new).await?;
    if !was_online {
        publish(write, device_id).await?;
    }
    Ok(connection)
}

/// Records that a device is offline, and writes the event.
///
/// # Errors
///
/// If the database fails.
pub(crate) async fn set_offline(write: &mut Write, device_id: Uuid, reason: OfflineReason) -> Result<()> {
    // Afterwards nobody knows any longer which host holds its connection.
    write.hint_other_hosts(&[device_id]).await?;
    if !write.set_device_offline(device_id, reason).await? {
        return Ok(());
    }
    if matches!(reason, OfflineReason::Removed | OfflineReason::NotAllowed) {
        // The device leaves the scope, so the event cannot be postponed.
        write.reset_presence_limit(device_id).await?;
    }
    publish(write, device_id).await
}

/// Writes the event of a device's current presence, unless the device has reached its event limit. Then the event
/// is written when the limit ends.
///
/// # Errors
///
/// If the database fails.
pub(crate) async fn publish(write: &mut Write, device_id: Uuid) -> Result<()> {
    let Some(presence) = write.take_presence_to_publish(device_id).await? else { return Ok(()) };
    let Some(device) = write.device_in_any_scope(device_id).await? else { return Ok(()) };
    match presence.offline_reason {
        None => events::device_online(write, device).await,
        Some(reason) => events::device_offline(write, device, reason).await,
    }
}

/// Marks a device offline that was not seen for too long, and fails the operations that it had claimed, because
/// their outcome will not become known.
///
/// # Errors
///
/// If the database fails.
pub(crate) async fn lose(write: &mut Write, device_id: Uuid) -> Result<()> {
    if !write.is_silent(device_id).await? {
        return Ok(());
    }
    time_out(write, device_id).await
}

/// As [`lose`], for a device whose connection this host holds and that it did not hear of for too long.
///
/// # Errors
///
/// If the database fails.
pub(crate) async fn lose_held(write: &mut Write, connection: Connection, seen_at: DateTime<Utc>) -> Result<()> {
    if !write.is_current(connection).await? {
        return Ok(());
    }
    // The store had the time with a delay.
    write.disconnect_device(connection, seen_at).await?;
    time_out(write, connection.device_id).await
}

async fn time_out(write: &mut Write, device_id: Uuid) -> Result<()> {
    set_offline(write, device_id, OfflineReason::Timeout).await?;
    operations::fail_of_lost_device(write, device_id).await
}
