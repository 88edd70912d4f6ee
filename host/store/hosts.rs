//! The hosts on this database, for the operator.

use chrono::{DateTime, Utc};
use culvert_domain::error::Result;
use culvert_domain::fleet::HostState;
use uuid::Uuid;

use super::Store;
use super::arg::args;
use super::error::DbResult;
use super::fleet::{database_time, of_the_last_day};
use super::read::Read;
use super::row::{Row, readable};
use super::sql::sql;

/// A host, as the database knows it.
#[derive(Clone, Debug)]
pub struct HostRecord {
    pub id: Uuid,
    pub name: String,
    pub version: String,
    pub state: HostState,
    pub leads: bool,
    /// Its nodes, and the devices that are connected to it.
    pub nodes: u64,
    pub devices: u64,
    pub agent_url: Option<String>,
    pub started_at: DateTime<Utc>,
    pub lease_until: DateTime<Utc>,
    pub ended_at: Option<DateTime<Utc>>,
}

macro_rules! select_hosts {
    ($now:expr) => {
        concat!(
            "SELECT h.id, h.name, h.version, h.agent_url, h.started_at, h.lease_until, h.ended_at, ",
            $now,
            " AS now, c.leader_id, c.leader_until, \
                 (SELECT COUNT(*) FROM nodes n WHERE n.host_id = h.id) AS nodes, \
                 (SELECT COUNT(*) FROM device_presence p WHERE p.host_id = h.id) AS devices \
             FROM hosts h CROSS JOIN cluster c WHERE ",
            of_the_last_day!($now),
            " ORDER BY h.ended_at IS NOT NULL, h.name, h.id LIMIT 1000"
        )
    };
}

impl Store {
    /// The hosts that run, and those that ended less than a day ago.
    pub async fn hosts(&self) -> Result<Vec<HostRecord>> {
        let sql = sql!(sqlite: select_hosts!("$1"), postgres: select_hosts!(database_time!("$1")));
        // On SQLite a host has no lease to renew: nobody else can take its place.
        let renews = self.is_on_a_server();
        let now = if renews { self.clock.database_time() } else { Some(self.clock.now()) };
        let rows = (&self.db).all(sql, args![now]).await?;
        Ok(readable(&rows, "host", |row| record(row, renews)))
    }
}

fn record(row: &Row, renews: bool) -> DbResult<HostRecord> {
    let (id, now, lease_until) = (row.id("id")?, row.time("now")?, row.time("lease_until")?);
    let ended_at = row.optional_time("ended_at")?;
    let state = match ended_at {
        Some(_) => HostState::Ended,
        None if renews && lease_until <= now => HostState::Silent,
        None => HostState::Alive,
    };
    let is_leader = row.optional_id("leader_id")? == Some(id) && (!renews || row.time("leader_until")? > now);
    Ok(HostRecord {
        id,
        name: row.text("name")?,
        version: row.text("version")?,
        state,
        leads: is_leader && state == HostState::Alive,
        nodes: row.number("nodes")?,
        devices: row.number("devices")?,
        agent_url: row.optional_text("agent_url")?,
        started_at: row.time("started_at")?,
        lease_until,
        ended_at,
    })
}
