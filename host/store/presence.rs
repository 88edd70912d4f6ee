//! Device presence: which devices are online, and on which connection.

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use super::arg::{StringArg, args};
use super::db::Read;
use super::error::DbResult;
use super::row::{Row, readable};
use super::sql::{Sql, sql};
use super::{Store, Write};
use culvert_domain::connection::{Connection, NewConnection};
use culvert_domain::device::OFFLINE_AFTER;
use culvert_domain::error::Result;
use culvert_domain::event::OfflineReason;

/// Maximum number of presence events of a device within [`TOLD_WITHIN`]. It limits the events of a device
/// that goes online and offline all the time.
const TOLD_TIMES: u32 = 10;
const TOLD_WITHIN: TimeDelta = TimeDelta::minutes(1);

/// Whether a device is online.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Presence {
    /// `None` while the device is online.
    pub offline_reason: Option<OfflineReason>,
}

impl Store {
    /// Devices that are recorded as online but were not seen for too long, with the ids of their scopes.
    pub async fn silent_devices(&self) -> Result<Vec<(Uuid, Uuid)>> {
        let sql = sql!(
            "SELECT p.device_id, d.scope_id FROM device_presence p JOIN devices d ON d.id = p.device_id \
             WHERE p.online = TRUE AND p.last_seen_at <= $1"
        );
        let rows = (&self.db).all(sql, args![self.clock.now() - OFFLINE_AFTER]).await?;
        Ok(readable(&rows, "device", ids))
    }

    /// Devices whose last presence event differs from their current presence because the event limit was
    /// reached, and whose limit has ended; with the ids of their scopes.
    pub async fn untold_devices(&self) -> Result<Vec<(Uuid, Uuid)>> {
        let sql = sql!(
            "SELECT p.device_id, d.scope_id FROM device_presence p JOIN devices d ON d.id = p.device_id \
             WHERE p.told <> p.online AND p.told_since <= $1"
        );
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
                    let sql = sql!(
                        "UPDATE device_presence SET last_seen_at = $3, online = TRUE \
                         WHERE device_id = $1 AND epoch = $2 AND host_id IS NOT NULL"
                    );
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

const IS_CURRENT: Sql =
    sql!("SELECT 1 AS one FROM device_presence WHERE device_id = $1 AND epoch = $2 AND host_id IS NOT NULL");

impl Write {
    /// Records that a connection has ended. The device stays online for a while, so that it can reconnect.
    pub async fn disconnect_device(&mut self, connection: Connection) -> Result<()> {
        let sql = sql!("UPDATE device_presence SET host_id = NULL WHERE device_id = $1 AND epoch = $2");
        self.execute(sql, args![connection.device_id, connection.epoch]).await?;
        Ok(())
    }

    /// As [`Store::is_current`].
    pub async fn is_current(&mut self, connection: Connection) -> Result<bool> {
        Ok(self.optional(IS_CURRENT, args![connection.device_id, connection.epoch]).await?.is_some())
    }

    /// The boot id of the agent's process, if the device is online.
    pub async fn online_boot_id(&mut self, device_id: Uuid) -> Result<Option<Uuid>> {
        let sql = sql!("SELECT boot_id FROM device_presence WHERE device_id = $1 AND online = TRUE");
        let row = self.optional(sql, args![device_id]).await?;
        Ok(row.map(|row| row.optional_id("boot_id")).transpose()?.flatten())
    }

    /// Whether no host holds a connection of the device.
    pub async fn is_disconnected(&mut self, device_id: Uuid) -> Result<bool> {
        let sql = sql!("SELECT 1 AS one FROM device_presence WHERE device_id = $1 AND host_id IS NOT NULL");
        Ok(self.optional(sql, args![device_id]).await?.is_none())
    }

    /// Records a new connection of a device, which is online from now on.
    pub async fn insert_connection(&mut self, device_id: Uuid, new: NewConnection) -> Result<Connection> {
        let NewConnection { host_id, boot_id, renews_tokens } = new;
        let now = self.now;
        let sql = sql!(
            "INSERT INTO device_presence (device_id, epoch, host_id, boot_id, online, last_seen_at, renews_tokens) \
             VALUES ($1, 1, $2, $3, TRUE, $4, $5) \
             ON CONFLICT (device_id) DO UPDATE SET epoch = device_presence.epoch + 1, host_id = excluded.host_id, \
                 boot_id = excluded.boot_id, online = TRUE, last_seen_at = excluded.last_seen_at, \
                 renews_tokens = excluded.renews_tokens \
             RETURNING epoch"
        );
        let epoch = self.one(sql, args![device_id, host_id, boot_id, now, renews_tokens]).await?.int("epoch")?;
        Ok(Connection { device_id, epoch })
    }

    /// Records that a device is offline. Returns whether it was online.
    pub async fn set_device_offline(&mut self, device_id: Uuid, reason: OfflineReason) -> Result<bool> {
        let sql = sql!(
            "UPDATE device_presence SET online = FALSE, host_id = NULL, offline_reason = $2 \
             WHERE device_id = $1 AND online = TRUE"
        );
        Ok(self.execute(sql, args![device_id, StringArg(reason)]).await? == 1)
    }

    /// Lets the next presence event of a device be written at once.
    pub async fn reset_presence_limit(&mut self, device_id: Uuid) -> Result<()> {
        self.execute(sql!("UPDATE device_presence SET told_times = 0 WHERE device_id = $1"), args![device_id]).await?;
        Ok(())
    }

    /// Marks the presence of a device as published. `None` if it was published before, or if the device has reached
    /// its event limit.
    pub async fn take_presence_to_publish(&mut self, device_id: Uuid) -> Result<Option<Presence>> {
        let now = self.now;
        let sql = sql!(
            "UPDATE device_presence SET told = online, \
                 told_times = CASE WHEN told_since <= $2 THEN 1 ELSE told_times + 1 END, \
                 told_since = CASE WHEN told_since <= $2 THEN $3 ELSE told_since END \
             WHERE device_id = $1 AND told <> online AND (told_since <= $2 OR told_times < $4) \
             RETURNING online, offline_reason"
        );
        let row = self.optional(sql, args![device_id, now - TOLD_WITHIN, now, TOLD_TIMES]).await?;
        let Some(row) = row else { return Ok(None) };
        let offline_reason = if row.flag("online")? {
            None
        } else {
            Some(row.optional_string_enum("offline_reason")?.unwrap_or(OfflineReason::Timeout))
        };
        Ok(Some(Presence { offline_reason }))
    }

    /// Whether a device is recorded as online and was not seen for too long.
    pub async fn is_silent(&mut self, device_id: Uuid) -> Result<bool> {
        let sql =
            sql!("SELECT device_id FROM device_presence WHERE device_id = $1 AND online = TRUE AND last_seen_at <= $2");
        let limit = self.now - OFFLINE_AFTER;
        Ok(self.optional(sql, args![device_id, limit]).await?.is_some())
    }
}

fn ids(row: &Row) -> DbResult<(Uuid, Uuid)> {
    Ok((row.id("device_id")?, row.id("scope_id")?))
}
