//! Device presence: which devices are online, and on which connection.

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use super::db::{DbResult, Read, Row, StringArg, args, readable};
use super::{Store, Write};
use culvert_domain::device::OFFLINE_AFTER;
use culvert_domain::error::Result;
use culvert_domain::event::OfflineReason;

/// Maximum number of presence events of a device within [`TOLD_WITHIN`]. It limits the events of a device
/// that goes online and offline all the time.
const TOLD_TIMES: u32 = 10;
const TOLD_WITHIN: TimeDelta = TimeDelta::minutes(1);

/// One connection of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    pub device_id: Uuid,
    /// Increases with every connection of the device. Messages of a connection with an older epoch are
    /// ignored.
    pub epoch: i64,
}

impl Store {
    /// Devices that are recorded as online but were not seen for too long, with the ids of their scopes.
    pub async fn silent_devices(&self) -> Result<Vec<(Uuid, Uuid)>> {
        let sql = "SELECT p.device_id, d.scope_id FROM device_presence p JOIN devices d ON d.id = p.device_id \
                   WHERE p.online = TRUE AND p.last_seen_at <= $1";
        let rows = (&self.db).all(sql, args![self.clock.now() - OFFLINE_AFTER]).await?;
        Ok(readable(&rows, "device", ids))
    }

    /// Devices whose last presence event differs from their current presence because the event limit was
    /// reached, and whose limit has ended; with the ids of their scopes.
    pub async fn untold_devices(&self) -> Result<Vec<(Uuid, Uuid)>> {
        let sql = "SELECT p.device_id, d.scope_id FROM device_presence p JOIN devices d ON d.id = p.device_id \
                   WHERE p.told <> p.online AND p.told_since <= $1";
        let rows = (&self.db).all(sql, args![self.clock.now() - TOLD_WITHIN]).await?;
        Ok(readable(&rows, "device", ids))
    }

    /// Records when connections were last seen. Connections that are not current, or that have ended, are
    /// ignored.
    pub async fn record_seen(&self, seen: Vec<(Connection, DateTime<Utc>)>) -> Result<()> {
        if seen.is_empty() {
            return Ok(());
        }
        self.write(None, move |write| {
            Box::pin(async move {
                for (Connection { device_id, epoch }, at) in seen {
                    let sql = "UPDATE device_presence SET last_seen_at = $3, online = TRUE \
                               WHERE device_id = $1 AND epoch = $2 AND host_id IS NOT NULL";
                    write.execute(sql, args![device_id, epoch, at]).await?;
                }
                Ok(())
            })
        })
        .await
    }
}

impl Store {
    /// Whether this is the device's newest connection and has not ended.
    pub async fn is_current(&self, connection: Connection) -> Result<bool> {
        Ok((&self.db).optional(IS_CURRENT, args![connection.device_id, connection.epoch]).await?.is_some())
    }
}

const IS_CURRENT: &str =
    "SELECT 1 AS one FROM device_presence WHERE device_id = $1 AND epoch = $2 AND host_id IS NOT NULL";

impl Write {
    /// Records a new connection of a device. Its former connection is no longer current.
    pub async fn connect_device(&mut self, device_id: Uuid, host_id: Uuid, boot_id: Uuid) -> Result<Connection> {
        let now = self.now;
        let was_online = self.online_boot_id(device_id).await?.is_some();
        let sql = "INSERT INTO device_presence (device_id, epoch, host_id, boot_id, online, last_seen_at) \
                   VALUES ($1, 1, $2, $3, TRUE, $4) \
                   ON CONFLICT (device_id) DO UPDATE SET epoch = device_presence.epoch + 1, host_id = excluded.host_id, \
                       boot_id = excluded.boot_id, online = TRUE, last_seen_at = excluded.last_seen_at \
                   RETURNING epoch";
        let epoch = self.one(sql, args![device_id, host_id, boot_id, now]).await?.int("epoch")?;
        if !was_online {
            self.tell_where_device_is(device_id).await?;
        }
        Ok(Connection { device_id, epoch })
    }

    /// Records that a connection has ended. The device stays online for a while, so that it can reconnect.
    pub async fn disconnect_device(&mut self, connection: Connection) -> Result<()> {
        let sql = "UPDATE device_presence SET host_id = NULL WHERE device_id = $1 AND epoch = $2";
        self.execute(sql, args![connection.device_id, connection.epoch]).await?;
        Ok(())
    }

    /// As [`Store::is_current`].
    pub async fn is_current(&mut self, connection: Connection) -> Result<bool> {
        Ok(self.optional(IS_CURRENT, args![connection.device_id, connection.epoch]).await?.is_some())
    }

    /// The boot id of the agent's process, if the device is online.
    pub async fn online_boot_id(&mut self, device_id: Uuid) -> Result<Option<Uuid>> {
        let sql = "SELECT boot_id FROM device_presence WHERE device_id = $1 AND online = TRUE";
        let row = self.optional(sql, args![device_id]).await?;
        Ok(row.map(|row| row.optional_id("boot_id")).transpose()?.flatten())
    }

    /// Whether no host holds a connection of the device.
    pub async fn is_disconnected(&mut self, device_id: Uuid) -> Result<bool> {
        let sql = "SELECT 1 AS one FROM device_presence WHERE device_id = $1 AND host_id IS NOT NULL";
        Ok(self.optional(sql, args![device_id]).await?.is_none())
    }

    /// Records that a device is offline, and writes the event.
    pub async fn set_offline(&mut self, device_id: Uuid, reason: OfflineReason) -> Result<()> {
        let sql = "UPDATE device_presence SET online = FALSE, host_id = NULL, offline_reason = $2 \
                   WHERE device_id = $1 AND online = TRUE";
        if self.execute(sql, args![device_id, StringArg(reason)]).await? == 0 {
            return Ok(());
        }
        if matches!(reason, OfflineReason::Removed | OfflineReason::NotAllowed) {
            // The device leaves the scope, so the event cannot be postponed.
            let sql = "UPDATE device_presence SET told_times = 0 WHERE device_id = $1";
            self.execute(sql, args![device_id]).await?;
        }
        self.tell_where_device_is(device_id).await
    }

    /// Writes the event of a device's current presence, unless the device has reached its event limit. Then
    /// the event is written when the limit ends.
    pub(super) async fn tell_where_device_is(&mut self, device_id: Uuid) -> Result<()> {
        let now = self.now;
        let sql = "UPDATE device_presence SET told = online, \
                       told_times = CASE WHEN told_since <= $2 THEN 1 ELSE told_times + 1 END, \
                       told_since = CASE WHEN told_since <= $2 THEN $3 ELSE told_since END \
                   WHERE device_id = $1 AND told <> online AND (told_since <= $2 OR told_times < $4) \
                   RETURNING online, offline_reason";
        let row = self.optional(sql, args![device_id, now - TOLD_WITHIN, now, TOLD_TIMES]).await?;
        let (Some(row), Some(device)) = (row, self.device_in_any_scope(device_id).await?) else { return Ok(()) };
        let reason = match row.flag("online")? {
            true => None,
            false => Some(row.optional_string_enum("offline_reason")?.unwrap_or(OfflineReason::Timeout)),
        };
        self.tell_of_device(device, reason).await
    }
}

fn ids(row: &Row) -> DbResult<(Uuid, Uuid)> {
    Ok((row.id("device_id")?, row.id("scope_id")?))
}
