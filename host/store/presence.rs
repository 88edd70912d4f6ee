//! Device presence: which devices are online, and on which connection.

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use super::arg::{StringArg, args};
use super::error::DbResult;
use super::read::Read;
use super::row::{Row, readable};
use super::sql::{by_ids, next_epoch, sql};
use super::{Store, Write};
use culvert_domain::connection::{Connection, NewConnection};
use culvert_domain::device::OFFLINE_AFTER;
use culvert_domain::error::Result;
use culvert_domain::event::OfflineReason;

/// Maximum number of presence events of a device within [`TOLD_WITHIN`]. It limits the events of a device
/// that goes online and offline all the time.
const TOLD_TIMES: u32 = 10;
pub(super) const TOLD_WITHIN: TimeDelta = TimeDelta::minutes(1);

/// Most devices or sessions that are recorded in one transaction.
const BATCH: usize = 500;

/// Whether a device is online.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Presence {
    /// `None` while the device is online.
    pub offline_reason: Option<OfflineReason>,
}

/// How long a host that says nothing is taken to hold its connections. It says so once a minute, and may be without its
/// database meanwhile.
pub(super) const HELD_FOR: TimeDelta = TimeDelta::minutes(4);

/// What one host holds: devices, and sessions whose leases were renewed.
#[derive(Clone, Debug, Default)]
pub struct Alive {
    pub device_ids: Vec<Uuid>,
    pub session_ids: Vec<Uuid>,
}

/// Devices that were to be back by now, after their connection had ended.
macro_rules! silent_devices {
    ($since:literal) => {
        concat!("FROM device_presence p WHERE p.online = TRUE AND p.host_id IS NULL AND p.last_seen_at <= ", $since)
    };
}
pub(crate) use silent_devices;

/// Devices of which the host that holds them should have told by now.
macro_rules! silent_held_devices {
    ($since:literal) => {
        concat!("FROM device_presence p WHERE p.online = TRUE AND p.host_id IS NOT NULL AND p.last_seen_at <= ", $since)
    };
}
pub(crate) use silent_held_devices;

/// Devices whose presence has to be told of.
macro_rules! untold_devices {
    ($since:literal) => {
        concat!("FROM device_presence p WHERE p.told <> p.online AND p.told_since <= ", $since)
    };
}
pub(crate) use untold_devices;

/// Scopes whose suspension has ended.
macro_rules! ended_suspensions {
    ($after:literal, $until:literal) => {
        concat!("FROM scopes c WHERE c.suspended_until > ", $after, " AND c.suspended_until <= ", $until)
    };
}
pub(crate) use ended_suspensions;

/// The columns of a device that is due. Its scope is read for each: for a join, PostgreSQL would read all devices, for it
/// cannot know that few are due.
macro_rules! select_due {
    ($devices:expr) => {
        concat!("SELECT p.device_id, (SELECT scope_id FROM devices WHERE id = p.device_id) AS scope_id ", $devices)
    };
}

impl Store {
    /// Devices that are recorded as online but were not seen for too long, with the ids of their scopes.
    pub async fn silent_devices(&self) -> Result<Vec<(Uuid, Uuid)>> {
        let sql =
            sql!(concat!(select_due!(silent_devices!("$1")), " UNION ALL ", select_due!(silent_held_devices!("$2"))));
        let now = self.clock.now();
        let rows = (&self.db).all(sql, args![now - OFFLINE_AFTER, now - HELD_FOR]).await?;
        Ok(readable(&rows, "device", ids))
    }

    /// Devices whose last presence event differs from their current presence because the event limit was
    /// reached, and whose limit has ended; with the ids of their scopes.
    pub async fn untold_devices(&self) -> Result<Vec<(Uuid, Uuid)>> {
        let sql = sql!(select_due!(untold_devices!("$1")));
        let rows = (&self.db).all(sql, args![self.clock.now() - TOLD_WITHIN]).await?;
        Ok(readable(&rows, "device", ids))
    }

    /// Records that the devices and leases of a host are alive, in batches. Returns those that are the host's still.
    pub async fn record_alive(&self, host_id: Uuid, alive: Alive) -> Result<Alive> {
        let mut recorded = Alive::default();
        for batch in alive.device_ids.chunks(BATCH) {
            let ids = batch.to_vec();
            let devices = self.write_liveness(move |write| Box::pin(write.record_devices(host_id, ids)));
            recorded.device_ids.extend(devices.await?);
        }
        for batch in alive.session_ids.chunks(BATCH) {
            let ids = batch.to_vec();
            let sessions = self.write_liveness(move |write| {
                let until = write.now + HELD_FOR;
                Box::pin(async move { write.set_lease_ends(&ids, until).await })
            });
            recorded.session_ids.extend(sessions.await?);
        }
        Ok(recorded)
    }

    /// The devices that are to run tunnels whose scope's suspension has ended since this time.
    pub async fn devices_of_ended_suspensions(&self, since: DateTime<Utc>) -> Result<Vec<Uuid>> {
        let sql = sql!(concat!(
            "SELECT DISTINCT desired_device_id AS id FROM tunnels WHERE desired_device_id IS NOT NULL \
                 AND scope_id IN (SELECT c.id ",
            ended_suspensions!("$1", "$2"),
            ")"
        ));
        let rows = (&self.db).all(sql, args![since, self.clock.now()]).await?;
        Ok(rows.iter().map(|row| row.id("id")).collect::<DbResult<_>>()?)
    }
}

impl Write {
    /// Records that a connection has ended, and when the device was last heard of. The device stays online for a while, so
    /// that it can reconnect.
    pub async fn disconnect_device(&mut self, connection: Connection, seen_at: DateTime<Utc>) -> Result<()> {
        let sql =
            sql!("UPDATE device_presence SET host_id = NULL, last_seen_at = $3 WHERE device_id = $1 AND epoch = $2");
        self.execute(sql, args![connection.device_id, connection.epoch, seen_at]).await?;
        Ok(())
    }

    async fn record_devices(&mut self, host_id: Uuid, device_ids: Vec<Uuid>) -> Result<Vec<Uuid>> {
        let now = self.now;
        let sql = by_ids!(
            "UPDATE device_presence SET last_seen_at = $3, online = TRUE WHERE host_id = $2 AND device_id",
            "$1",
            "RETURNING device_id"
        );
        let rows = self.all(sql, args![&device_ids[..], host_id, now]).await?;
        Ok(rows.iter().map(|row| row.id("device_id")).collect::<DbResult<_>>()?)
    }

    /// Takes back what a host has held before it was started again: its devices have their whole time to come back.
    pub async fn resume_host(&mut self, host_id: Uuid) -> Result<()> {
        let now = self.now;
        let sql = sql!("UPDATE device_presence SET host_id = NULL, last_seen_at = $2 WHERE host_id = $1");
        self.execute(sql, args![host_id, now]).await?;
        Ok(())
    }

    /// Whether this is the device's newest connection and has not ended.
    pub async fn is_current(&mut self, connection: Connection) -> Result<bool> {
        let sql =
            sql!("SELECT 1 AS one FROM device_presence WHERE device_id = $1 AND epoch = $2 AND host_id IS NOT NULL");
        Ok(self.optional(sql, args![connection.device_id, connection.epoch]).await?.is_some())
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
        let sql = sql!(concat!(
            "INSERT INTO device_presence (device_id, epoch, host_id, boot_id, online, last_seen_at, renews_tokens) \
             VALUES ($1, $6, $2, $3, TRUE, $4, $5) \
             ON CONFLICT (device_id) DO UPDATE SET epoch = ",
            next_epoch!("device_presence.epoch", "$6"),
            ", host_id = excluded.host_id, \
                 boot_id = excluded.boot_id, online = TRUE, last_seen_at = excluded.last_seen_at, \
                 renews_tokens = excluded.renews_tokens \
             RETURNING epoch"
        ));
        let args = args![device_id, host_id, boot_id, now, renews_tokens, now.timestamp_micros()];
        let epoch = self.one(sql, args).await?.int("epoch")?;
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
        let sql = sql!(
            "SELECT device_id FROM device_presence WHERE device_id = $1 AND online = TRUE \
                  AND last_seen_at <= CASE WHEN host_id IS NULL THEN CAST($2 AS BIGINT) ELSE CAST($3 AS BIGINT) END"
        );
        let (left, held) = (self.now - OFFLINE_AFTER, self.now - HELD_FOR);
        Ok(self.optional(sql, args![device_id, left, held]).await?.is_some())
    }
}

fn ids(row: &Row) -> DbResult<(Uuid, Uuid)> {
    Ok((row.id("device_id")?, row.id("scope_id")?))
}
