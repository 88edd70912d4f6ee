//! The hosts on this database, for the operator.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use chrono::{DateTime, Utc};
use culvert_domain::error::Result;
use culvert_domain::fleet::HostState;
use uuid::Uuid;

use super::arg::args;
use super::error::DbResult;
use super::fleet::{database_time, of_the_last_day};
use super::read::Read;
use super::row::{Row, readable};
use super::sql::{by_ids, sql};
use super::{Store, Write};

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
    /// The generation of the policies that decides there.
    pub policy_generation: u64,
    pub agent_url: Option<String>,
    pub started_at: DateTime<Utc>,
    pub lease_until: DateTime<Utc>,
    pub ended_at: Option<DateTime<Utc>>,
    /// The values of the settings that are to be the same at all hosts, or digests of long ones.
    pub settings: BTreeMap<String, String>,
}

/// The settings that hosts that run have different values of.
pub fn different_settings(hosts: &[HostRecord]) -> Vec<String> {
    let mut values: BTreeMap<&String, BTreeSet<&String>> = BTreeMap::new();
    for (setting, value) in hosts.iter().filter(|host| host.ended_at.is_none()).flat_map(|host| &host.settings) {
        values.entry(setting).or_default().insert(value);
    }
    values.into_iter().filter(|(_, values)| values.len() > 1).map(|(setting, _)| setting.clone()).collect()
}

/// The host of a node, as the database knows it.
#[derive(Clone, Debug)]
pub struct NodeHost {
    pub host_id: Uuid,
    pub host_name: String,
    pub state: HostState,
    /// When other hosts take for certain that the node serves nothing, if nothing is heard of its host until then.
    pub serves_until: DateTime<Utc>,
}

macro_rules! select_node_hosts {
    ($now:expr) => {
        concat!(
            "SELECT n.id AS node_id, h.id, h.name, h.lease_until, h.draining, h.ended_at, h.lease_until + h.authority AS serves_until, ",
            $now,
            " AS now FROM nodes n JOIN hosts h ON h.id = n.host_id"
        )
    };
}

macro_rules! select_hosts {
    ($now:expr) => {
        concat!(
            "SELECT h.id, h.name, h.version, h.agent_url, h.policy_generation, h.settings, h.started_at, h.lease_until, h.draining, h.ended_at, ",
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

    /// The hosts of all nodes that have one.
    pub async fn node_hosts(&self) -> Result<HashMap<Uuid, NodeHost>> {
        let sql = sql!(sqlite: select_node_hosts!("$1"), postgres: select_node_hosts!(database_time!("$1")));
        let renews = self.is_on_a_server();
        let now = if renews { self.clock.database_time() } else { Some(self.clock.now()) };
        let rows = (&self.db).all(sql, args![now]).await?;
        Ok(readable(&rows, "node", |row| node_host(row, renews)).into_iter().collect())
    }

    /// Has a host drain before it is stopped, or not any longer. False where it has ended.
    pub async fn drain_host(&self, host_id: Uuid, drains: bool) -> Result<bool> {
        let sql = sql!("UPDATE hosts SET draining = $2 WHERE id = $1 AND ended_at IS NULL");
        self.write(None, move |write| {
            Box::pin(async move { Ok(write.execute(sql, args![host_id, drains]).await? == 1) })
        })
        .await
    }

    /// Gives back the place of a host that could not start. Its nodes serve nothing, and what is to run there can go elsewhere,
    /// as from a host that was lost.
    pub async fn release_host(&self, host_id: Uuid) -> Result<()> {
        self.write_liveness(move |write| Box::pin(async move { write.end_host(host_id, 1).await })).await
    }

    /// Has a host keep these nodes and no others.
    pub async fn keep_nodes(&self, host_id: Uuid, node_ids: Vec<Uuid>) -> Result<()> {
        let sql = by_ids!("UPDATE nodes SET host_id = NULL WHERE host_id = $1 AND NOT id", "$2", "");
        let keep = self.write(None, move |write| {
            Box::pin(async move {
                write.execute(sql, args![host_id, &node_ids[..]]).await?;
                Ok(())
            })
        });
        keep.await
    }

    /// Gives up a node whose host is not heard of: whoever says so knows that it serves nothing any longer. False where its
    /// host is alive.
    pub async fn abandon_node(&self, node_id: Uuid) -> Result<bool> {
        self.write(None, move |write| Box::pin(async move { write.abandon_node(node_id).await })).await
    }
}

impl Write {
    async fn abandon_node(&mut self, node_id: Uuid) -> Result<bool> {
        let sql = sql!(
            sqlite: "SELECT host_id FROM nodes WHERE id = $1 AND $2 IS NULL",
            postgres: concat!(
                "SELECT n.host_id FROM nodes n JOIN hosts h ON h.id = n.host_id WHERE n.id = $1 AND h.lease_until <= ",
                database_time!("$2"),
                " FOR UPDATE"
            )
        );
        let now = self.clock.database_time();
        let Some(row) = self.optional(sql, args![node_id, now]).await? else { return Ok(false) };
        let host_id = row.id("host_id")?;
        self.execute(sql!("UPDATE nodes SET host_id = NULL WHERE id = $1"), args![node_id]).await?;
        // A folder whose nodes are all given up can be used elsewhere.
        let sql = sql!(
            "UPDATE hosts SET authority = 0 WHERE id = $1 AND NOT EXISTS (SELECT 1 FROM nodes n WHERE n.host_id = $1)"
        );
        self.execute(sql, args![host_id]).await?;
        Ok(true)
    }
}

fn node_host(row: &Row, renews: bool) -> DbResult<(Uuid, NodeHost)> {
    let node = NodeHost {
        host_id: row.id("id")?,
        host_name: row.text("name")?,
        state: state(row, renews)?,
        serves_until: row.time("serves_until")?,
    };
    Ok((row.id("node_id")?, node))
}

fn state(row: &Row, renews: bool) -> DbResult<HostState> {
    Ok(match row.optional_time("ended_at")? {
        Some(_) => HostState::Ended,
        None if renews && row.time("lease_until")? <= row.time("now")? => HostState::Silent,
        None if row.flag("draining")? => HostState::Draining,
        None => HostState::Alive,
    })
}

fn record(row: &Row, renews: bool) -> DbResult<HostRecord> {
    let (id, now, state) = (row.id("id")?, row.time("now")?, state(row, renews)?);
    let is_leader = row.optional_id("leader_id")? == Some(id) && (!renews || row.time("leader_until")? > now);
    Ok(HostRecord {
        id,
        name: row.text("name")?,
        version: row.text("version")?,
        state,
        leads: is_leader && state.is_alive(),
        nodes: row.number("nodes")?,
        devices: row.number("devices")?,
        policy_generation: row.number("policy_generation")?,
        agent_url: row.optional_text("agent_url")?,
        started_at: row.time("started_at")?,
        lease_until: row.time("lease_until")?,
        ended_at: row.optional_time("ended_at")?,
        settings: settings(row)?,
    })
}

/// What a host says of its settings; nothing, where it is of a version that says it otherwise.
pub(crate) fn settings(row: &Row) -> DbResult<BTreeMap<String, String>> {
    let settings = row.optional_text("settings")?;
    Ok(settings.and_then(|json| serde_json::from_str(&json).ok()).unwrap_or_default())
}
