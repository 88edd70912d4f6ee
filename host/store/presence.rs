//! Which devices are there, and by which connection.

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use super::db::{DbResult, Read, Row, StringArg, args, readable};
use super::{Store, Write};
use culvert_domain::device::OFFLINE_AFTER;
use culvert_domain::error::Result;
use culvert_domain::event::OfflineReason;

/// Changes of a device's presence that its endpoints are told of within this time, at most: one that
/// comes and goes all the time is not told of every time.
const TOLD_TIMES: u32 = 10;
const TOLD_WITHIN: TimeDelta = TimeDelta::minutes(1);

/// One connection of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    pub device_id: Uuid,
    /// Higher with every connection. What an older one still says does not count.
    pub epoch: i64,
}

impl Store {
    /// Devices that count as online and were not heard of for too long, with their scopes.
    pub async fn silent_devices(&self) -> Result<Vec<(Uuid, Uuid)>> {
        let sql = "SELECT p.device_id, d.scope_id FROM device_presence p JOIN devices d ON d.id = p.device_id \
                   WHERE p.online = TRUE AND p.last_seen_at <= $1";
        let rows = (&self.db).all(sql, args![self.clock.now() - OFFLINE_AFTER]).await?;
        Ok(readable(&rows, "device", ids))
    }

    /// Devices whose endpoints were last told something else than where they are now, because they had
    /// been told too often; with their scopes.
    pub async fn untold_devices(&self) -> Result<Vec<(Uuid, Uuid)>> {
        let sql = "SELECT p.device_id, d.scope_id FROM device_presence p JOIN devices d ON d.id = p.device_id \
                   WHERE p.told <> p.online AND p.told_since <= $1";
        let rows = (&self.db).all(sql, args![self.clock.now() - TOLD_WITHIN]).await?;
        Ok(readable(&rows, "device", ids))
    }

    /// Notes when connections were last heard of. Older connections, and those that have ended since,
    /// no longer count.
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
    /// Whether this is the device's newest connection, and has not been given up.
    pub async fn is_current(&self, connection: Connection) -> Result<bool> {
        Ok((&self.db).optional(IS_CURRENT, args![connection.device_id, connection.epoch]).await?.is_some())
    }
}

const IS_CURRENT: &str =
    "SELECT 1 AS one FROM device_presence WHERE device_id = $1 AND epoch = $2 AND host_id IS NOT NULL";

impl Write {
    /// A device has connected: its former connection counts no longer.
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

    /// A connection has ended; the device may be back before it counts as offline.
    pub async fn disconnect_device(&mut self, connection: Connection) -> Result<()> {
        let sql = "UPDATE device_presence SET host_id = NULL WHERE device_id = $1 AND epoch = $2";
        self.execute(sql, args![connection.device_id, connection.epoch]).await?;
        Ok(())
    }

    /// As [`Store::is_current`].
    pub async fn is_current(&mut self, connection: Connection) -> Result<bool> {
        Ok(self.optional(IS_CURRENT, args![connection.device_id, connection.epoch]).await?.is_some())
    }

    /// The agent's process at the other end of the device's connection, if it is online.
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

    /// The device counts as offline from now on.
    pub async fn set_offline(&mut self, device_id: Uuid, reason: OfflineReason) -> Result<()> {
        let sql = "UPDATE device_presence SET online = FALSE, host_id = NULL, offline_reason = $2 \
                   WHERE device_id = $1 AND online = TRUE";
        if self.execute(sql, args![device_id, StringArg(reason)]).await? == 0 {
            return Ok(());
        }
        if matches!(reason, OfflineReason::Removed | OfflineReason::NotAllowed) {
            // It goes from the scope, so there is no later.
            let sql = "UPDATE device_presence SET told_times = 0 WHERE device_id = $1";
            self.execute(sql, args![device_id]).await?;
        }
        self.tell_where_device_is(device_id).await
    }

    /// Tells of a device's presence, unless its endpoints have been told of changes so often that they
    /// have to wait: then they are told where it is when the time has passed.
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
