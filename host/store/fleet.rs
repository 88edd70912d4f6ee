//! The hosts on this database. What their heartbeats change is in `culvert_domain::fleet`; here it is read and written.

use std::time::Duration;

use chrono::{DateTime, Utc};
use culvert_domain::error::Result;
use culvert_domain::fleet::{Beat, Cluster, HostLease, Leader, dead_since};
use uuid::Uuid;

use super::arg::args;
use super::db::{Db, Tx};
use super::error::DbResult;
use super::read::Read;
use super::row::{Row, readable, row};
use super::sql::{by_ids, sql};
use super::{Store, Write};

/// Devices that are released in one transaction.
const BATCH: usize = 500;

/// What a host says of itself when it starts.
#[derive(Clone, Debug)]
pub struct HostRegistration {
    pub id: Uuid,
    pub name: String,
    pub version: String,
    /// Of the lock on its data folder, which it holds.
    pub lock_identity: Vec<u8>,
    /// Of the lock and of the machine, whenever that was started.
    pub machine_identity: Option<Vec<u8>>,
    /// The URL under which agents reach it.
    pub agent_url: Option<String>,
    /// How long its nodes serve after its last heartbeat.
    pub authority: Duration,
    /// The generation of the policies that decides there.
    pub policy_generation: u64,
    /// What tells settings apart that are to be the same at all hosts, as JSON.
    pub settings: String,
    /// The check value of its newest key.
    pub key_check: Vec<u8>,
}

/// A process that may be a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveHost {
    pub name: String,
    /// When it will be taken for dead, if nothing is heard of it.
    pub until: DateTime<Utc>,
}

/// Whether a host has its place.
#[derive(Clone, Debug)]
pub enum Claim {
    /// It has, since this time of the database. All hosts use the key of this check value, which may be new.
    Taken { now: DateTime<Utc>, key_check: Vec<u8>, key_is_new: bool },
    /// This one is in the way.
    Refused(LiveHost),
}

/// What a heartbeat found.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    pub beat: Beat,
    /// The database's time.
    pub now: DateTime<Utc>,
    pub cluster: Cluster,
    /// Whether another host is there.
    pub has_others: bool,
    /// Where agents find hosts.
    pub agent_urls: Vec<String>,
    /// Whether this host is to be stopped, and another one is there to take its work.
    pub drains: bool,
    /// The oldest schema that a program must know to work on the database.
    pub oldest_schema: i64,
    /// Whether hosts have other settings than others.
    pub settings_differ: bool,
    /// The check value of the key that all hosts use.
    pub key_check: Option<Vec<u8>>,
    /// Whether commits wait for a standby of the database.
    pub waits_for_standby: bool,
    /// Until when this host has its lease now.
    pub lease_until: DateTime<Utc>,
    /// Whether the database did not have the lease any longer that this host had.
    pub went_back: bool,
}

/// What all hosts share, locked.
pub(super) struct Shared {
    cluster: Cluster,
    /// Of the process that asks. One that is not the host any longer has none.
    lease: HostLease,
    has_others: bool,
    agent_urls: Vec<String>,
    oldest_schema: i64,
    settings_differ: bool,
    key_check: Option<Vec<u8>>,
    waits_for_standby: bool,
    went_back: bool,
    now: DateTime<Utc>,
}

impl Shared {
    fn of(row: &Row, id: Uuid) -> DbResult<Self> {
        let cluster = Cluster {
            leader: Leader {
                host_id: row.optional_id("leader_id")?,
                term: row.number("leader_term")?,
                until: row.time("leader_until")?,
                ends_from: row.time("leader_ends_from")?,
            },
            alive_at: row.optional_time("alive_at")?,
            grace_until: row.time("grace_until")?,
        };
        let drains = row.optional_flag("draining")?.unwrap_or(false) && row.number::<u64>("successors")? > 0;
        let lease = match row.optional_time("lease_until")? {
            Some(until) => HostLease { id, until, ended: row.optional_time("ended_at")?.is_some(), drains },
            None => HostLease { id, until: DateTime::UNIX_EPOCH, ended: true, drains },
        };
        let agent_urls = row.optional_text("agent_urls")?.unwrap_or_default();
        Ok(Self {
            cluster,
            lease,
            has_others: row.number::<u64>("others")? > 0,
            agent_urls: agent_urls.split_whitespace().map(Into::into).collect(),
            oldest_schema: row.number("schema_min")?,
            settings_differ: row.number::<u64>("kinds_of_settings")? > 1,
            key_check: row.optional_bytes("key_check")?,
            waits_for_standby: row.flag("waits_for_standby")?,
            went_back: false,
            now: row.time("now")?,
        })
    }

    /// What a heartbeat found that came to this.
    fn found(self, beat: Beat) -> Heartbeat {
        let Self { cluster, lease, has_others, agent_urls, oldest_schema, settings_differ, .. } = self;
        let Self { key_check, waits_for_standby, went_back, now, .. } = self;
        Heartbeat {
            beat,
            now,
            cluster,
            has_others,
            agent_urls,
            drains: lease.drains,
            oldest_schema,
            settings_differ,
            key_check,
            waits_for_standby,
            lease_until: lease.until,
            went_back,
        }
    }
}

/// PostgreSQL's time, where the placeholder has none.
macro_rules! database_time {
    ($time:literal) => {
        concat!(
            "COALESCE(CAST(",
            $time,
            " AS BIGINT), CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT))"
        )
    };
}
pub(crate) use database_time;

/// Hosts that run, or ended less than a day ago.
macro_rules! of_the_last_day {
    ($now:expr) => {
        concat!("(ended_at IS NULL OR ended_at > ", $now, " - 86400000000)")
    };
}
pub(crate) use of_the_last_day;

/// The state that all hosts share, the row of a process, where agents find hosts, and the time: the last placeholder's, or
/// the database's. A host that ended less than a day ago may be back when an agent looks for one.
macro_rules! select_cluster {
    ($now:expr, $waits_for_standby:literal, $rest:literal) => {
        concat!(
            "SELECT ",
            $waits_for_standby,
            " AS waits_for_standby, c.leader_id, c.leader_term, c.leader_until, c.leader_ends_from, c.alive_at, c.grace_until, c.schema_min, \
                 h.lease_until, h.ended_at, h.draining, \
                 (SELECT COUNT(*) FROM hosts o WHERE o.id <> $1 AND o.ended_at IS NULL) AS others, \
                 (SELECT COUNT(DISTINCT settings) FROM hosts WHERE ended_at IS NULL) AS kinds_of_settings, \
                 (SELECT sealed FROM key_checks) AS key_check, \
                 (SELECT COUNT(*) FROM hosts o WHERE o.id <> $1 AND o.ended_at IS NULL AND NOT o.draining \
                  AND o.lease_until > ",
            $now,
            ") AS successors, \
                 (SELECT STRING_AGG(agent_url, ' ' ORDER BY agent_url) FROM (SELECT agent_url FROM hosts \
                  WHERE agent_url IS NOT NULL AND ",
            of_the_last_day!($now),
            " GROUP BY agent_url ORDER BY COUNT(CASE WHEN ended_at IS NULL AND NOT draining THEN 1 END) = 0, agent_url LIMIT 16) named) AS agent_urls, ",
            $now,
            " AS now FROM cluster c LEFT JOIN hosts h ON h.id = $1 AND h.process_id = $2 WHERE c.id = 1",
            $rest
        )
    };
}

macro_rules! save_cluster {
    () => {
        "UPDATE cluster SET leader_id = $1, leader_term = $2, leader_until = $3, leader_ends_from = $4, alive_at = $5, \
             grace_until = $6 WHERE id = 1"
    };
}

/// [`Cluster::nodes_may_serve`] for the nodes of a host `h`.
macro_rules! has_authority {
    ($now:expr) => {
        concat!(
            "(h.lease_until + h.authority > ",
            $now,
            " OR (h.authority > 0 AND (SELECT grace_until FROM cluster WHERE id = 1) \
                 + CASE WHEN h.authority > 60000000 THEN h.authority - 60000000 ELSE 0 END > ",
            $now,
            "))"
        )
    };
}
pub(crate) use has_authority;

/// The other hosts that were not heard of for too long, and those that have ended and seem to hold devices still.
macro_rules! dead_hosts {
    ($since:literal, $own:literal) => {
        concat!(
            "FROM hosts WHERE id <> ",
            $own,
            " AND CASE WHEN ended_at IS NULL THEN lease_until <= ",
            $since,
            " ELSE EXISTS (SELECT 1 FROM device_presence p WHERE p.host_id = hosts.id) END"
        )
    };
}
pub(crate) use dead_hosts;

impl Store {
    /// Takes the row of a host for this process, if no other one may still have it.
    pub async fn claim_host(&self, host: HostRegistration) -> Result<Claim> {
        let id = host.id;
        let claim = self.write(None, move |write| Box::pin(async move { write.claim_host(&host).await })).await?;
        if matches!(claim, Claim::Taken { .. }) {
            // A process has one place.
            let _ = self.host_id.set(id);
        }
        Ok(claim)
    }

    /// Says that this process is alive. Its last heartbeat has given it a lease until `had`.
    pub async fn heartbeat(&self, host_id: Uuid, had: Option<DateTime<Utc>>) -> Result<Heartbeat> {
        if let Some(heartbeat) = self.heartbeat_without_lock(host_id, had).await? {
            return Ok(heartbeat);
        }
        self.write_liveness(move |write| Box::pin(async move { write.heartbeat(host_id, had).await })).await
    }

    /// A heartbeat in two statements in place of a transaction. None where another host came in between, where it would not be
    /// renewed, or on SQLite.
    async fn heartbeat_without_lock(&self, host_id: Uuid, had: Option<DateTime<Utc>>) -> Result<Option<Heartbeat>> {
        let (db, process_id) = (self.db.for_liveness(), self.process_id);
        let Db::Postgres { .. } = db else { return Ok(None) };
        let sql = sql!(sqlite: select_cluster!("$3", "0", ""),
            postgres: select_cluster!(database_time!("$3"), "current_setting('synchronous_standby_names') <> ''", ""));
        let row = (&db).one(sql, args![host_id, process_id, self.clock.database_time()]).await?;
        let mut shared = Shared::of(&row, host_id)?;
        let read = shared.cluster.clone();
        let Shared { cluster, lease, now, .. } = &mut shared;
        if had > Some(lease.until) || cluster.heartbeat(lease, *now) != Beat::Renewed {
            return Ok(None);
        }
        // The cluster's row is locked first, as by everybody.
        let sql = sql!(postgres: concat!(
            "WITH saved AS (",
            save_cluster!(),
            " AND alive_at = $7 AND leader_until = $8 AND grace_until = $9 RETURNING id) \
             UPDATE hosts SET lease_until = $10 WHERE id = $11 AND process_id = $12 AND ended_at IS NULL \
                 AND EXISTS (SELECT 1 FROM saved) RETURNING id"
        ));
        let Cluster { leader, alive_at, grace_until } = cluster;
        let args = args![
            leader.host_id,
            leader.term,
            leader.until,
            leader.ends_from,
            *alive_at,
            *grace_until,
            read.alive_at,
            read.leader.until,
            read.grace_until,
            lease.until,
            host_id,
            process_id
        ];
        let saved = (&db).optional(sql, args).await?;
        Ok(saved.map(|_| shared.found(Beat::Renewed)))
    }

    /// Has this process be the host again that was ended. False where another process is it.
    pub async fn revive_host(&self, host_id: Uuid) -> Result<bool> {
        self.write_liveness(move |write| Box::pin(async move { write.revive_host(host_id).await })).await
    }

    /// Ends the other hosts that were not heard of for too long: the devices that they held have been silent from then on.
    pub async fn end_dead_hosts(&self, own_id: Uuid) -> Result<()> {
        let since = dead_since(self.clock.now());
        let sql = sql!(concat!("SELECT id ", dead_hosts!("$1", "$2")));
        let rows = (&self.db).all(sql, args![since, own_id]).await?;
        for id in readable(&rows, "host", |row| row.id("id")) {
            let ended = self.write(None, move |write| Box::pin(async move { write.end_dead_host(id).await }));
            if ended.await? {
                tracing::warn!(%id, "a host was not heard of for too long; its devices are silent");
                self.write(None, move |write| Box::pin(async move { write.take_hints(id).await })).await?;
            }
            self.release_devices(id).await?;
        }
        Ok(())
    }

    /// Has nobody hold the devices of a dead host, nor renew their leases.
    async fn release_devices(&self, host_id: Uuid) -> Result<()> {
        loop {
            let release = self.write(None, move |write| Box::pin(async move { write.release_devices(host_id).await }));
            if release.await? < BATCH {
                return Ok(());
            }
        }
    }

    /// Says that this process has ended, so that nobody waits for it.
    pub async fn end_host(&self, host_id: Uuid) -> Result<()> {
        self.write_liveness(move |write| Box::pin(async move { write.end_host(host_id, 0).await })).await
    }
}

impl Write {
    /// Locks and reads what all hosts share.
    pub(super) async fn lock_shared(&mut self, id: Uuid) -> Result<Shared> {
        let sql = sql!(
            sqlite: select_cluster!("$3", "0", ""),
            postgres: select_cluster!(
                database_time!("$3"),
                "current_setting('synchronous_standby_names') <> ''",
                " FOR UPDATE OF c"
            )
        );
        let (process_id, now) = (self.process_id, self.time_of_database());
        let row = self.one(sql, args![id, process_id, now]).await?;
        Ok(Shared::of(&row, id)?)
    }

    /// None where the database is asked for its time.
    fn time_of_database(&self) -> Option<DateTime<Utc>> {
        match **self {
            Tx::Sqlite(_) => Some(self.now),
            Tx::Postgres(_) => self.clock.database_time(),
        }
    }

    async fn save(&mut self, cluster: &Cluster) -> Result<()> {
        let sql = sql!(save_cluster!());
        let Cluster { leader, alive_at, grace_until } = cluster;
        let args = args![leader.host_id, leader.term, leader.until, leader.ends_from, *alive_at, *grace_until];
        self.execute(sql, args).await?;
        Ok(())
    }

    async fn claim_host(&mut self, host: &HostRegistration) -> Result<Claim> {
        let Shared { mut cluster, now, .. } = self.lock_shared(host.id).await?;
        if let Some(other) = self.process_in_the_way(host, now).await? {
            return Ok(Claim::Refused(other));
        }
        let HostRegistration { id, name, version, lock_identity, machine_identity, agent_url, .. } = host;
        // It does not lead before its first heartbeat. On SQLite it is alone, and sends no heartbeats.
        let drains = matches!(**self, Tx::Postgres(_));
        let mut lease = HostLease { id: *id, until: now, ended: false, drains };
        cluster.heartbeat(&mut lease, now);
        let sql = sql!(
            "INSERT INTO hosts (id, process_id, name, version, lock_identity, started_at, lease_until, agent_url, \
                 machine_identity, authority, policy_generation, settings, draining, ended_at) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, FALSE, NULL) \
             ON CONFLICT (id) DO UPDATE SET process_id = excluded.process_id, name = excluded.name, \
                 version = excluded.version, lock_identity = excluded.lock_identity, started_at = excluded.started_at, \
                 lease_until = excluded.lease_until, machine_identity = excluded.machine_identity, \
                 authority = excluded.authority, agent_url = excluded.agent_url, \
                 policy_generation = excluded.policy_generation, settings = excluded.settings, draining = FALSE, ended_at = NULL"
        );
        let process_id = self.process_id;
        let args = args![
            *id,
            process_id,
            name,
            version,
            &lock_identity[..],
            now,
            lease.until,
            agent_url.as_deref(),
            machine_identity.as_deref(),
            host.authority.as_micros() as u64,
            host.policy_generation,
            &host.settings
        ];
        self.execute(sql, args).await?;
        self.save(&cluster).await?;
        // It has no connections yet.
        self.take_hints(*id).await?;
        self.withdraw_answers(*id).await?;
        let (key_check, key_is_new) = self.choose_key(*id, &host.key_check).await?;
        Ok(Claim::Taken { now, key_check, key_is_new })
    }

    /// Another process that may be this host still.
    async fn process_in_the_way(&mut self, host: &HostRegistration, now: DateTime<Utc>) -> Result<Option<LiveHost>> {
        // The former process on this machine has no lock any longer. Its lease is waited for after a start of the machine,
        // lest it be a copy of the machine. Of any other process nobody knows what its nodes serve.
        let sql = sql!(concat!(
            "SELECT name, CASE WHEN machine_identity = $3 THEN lease_until ELSE lease_until + authority END AS until \
             FROM hosts h WHERE id = $1 AND lock_identity <> $2 \
                 AND CASE WHEN machine_identity = $3 THEN ended_at IS NULL AND lease_until > $4 ELSE ",
            has_authority!("$4"),
            " END"
        ));
        let HostRegistration { id, lock_identity, machine_identity, .. } = host;
        let row = self.optional(sql, args![*id, &lock_identity[..], machine_identity.as_deref(), now]).await?;
        Ok(row.as_ref().map(live_host).transpose()?)
    }

    async fn heartbeat(&mut self, host_id: Uuid, had: Option<DateTime<Utc>>) -> Result<Heartbeat> {
        let mut shared = self.lock_shared(host_id).await?;
        let Shared { cluster, lease, now, went_back, .. } = &mut shared;
        *went_back = !lease.ended && had > Some(lease.until);
        let beat = cluster.heartbeat(lease, *now);
        if beat == Beat::Renewed {
            if *went_back {
                cluster.went_back(*now);
            }
            self.save_host(lease, *now).await?;
            self.save(cluster).await?;
        }
        Ok(shared.found(beat))
    }

    /// `authority` is how long its nodes may serve still, in microseconds. 0 stands for a host that has stopped in order.
    pub(super) async fn end_host(&mut self, host_id: Uuid, authority: u64) -> Result<()> {
        let Shared { mut cluster, mut lease, now, .. } = self.lock_shared(host_id).await?;
        cluster.stop(&mut lease, now);
        if self.save_host(&lease, now).await? {
            self.execute(sql!("UPDATE hosts SET authority = $2 WHERE id = $1"), args![host_id, authority]).await?;
        }
        self.save(&cluster).await
    }

    async fn revive_host(&mut self, id: Uuid) -> Result<bool> {
        let Shared { mut cluster, now, .. } = self.lock_shared(id).await?;
        let mut lease = HostLease { id, until: now, ended: false, drains: false };
        cluster.heartbeat(&mut lease, now);
        let revived = self.save_host(&lease, now).await?;
        if revived {
            self.save(&cluster).await?;
        }
        Ok(revived)
    }

    /// Whether the host was dead, and is ended now.
    async fn end_dead_host(&mut self, id: Uuid) -> Result<bool> {
        // Under the lock of heartbeats: one that is under way must not write back what it has read.
        let now = self.lock_shared(id).await?.now;
        let sql = sql!("UPDATE hosts SET ended_at = $3 WHERE id = $1 AND ended_at IS NULL AND lease_until <= $2");
        Ok(self.execute(sql, args![id, dead_since(now), now]).await? == 1)
    }

    /// How many devices were released.
    async fn release_devices(&mut self, host_id: Uuid) -> Result<usize> {
        let sql = sql!(
            // PostgreSQL checks a row that has changed meanwhile by the outer condition: a device that another host has just
            // let in stays with it.
            "UPDATE device_presence SET host_id = NULL WHERE host_id = $1 AND device_id IN \
                 (SELECT device_id FROM device_presence WHERE host_id = $1 \
                  AND EXISTS (SELECT 1 FROM hosts h WHERE h.id = $1 AND h.ended_at IS NOT NULL) LIMIT $2) RETURNING device_id"
        );
        let rows = self.all(sql, args![host_id, BATCH as u64]).await?;
        let device_ids = rows.iter().map(|row| row.id("device_id")).collect::<DbResult<Vec<_>>>()?;
        let now = self.now;
        let sql = by_ids!("UPDATE sessions SET lease_until = $2 WHERE ended_at IS NULL AND device_id", "$1", "");
        self.execute(sql, args![&device_ids[..], now]).await?;
        Ok(device_ids.len())
    }

    /// False where another process is the host.
    async fn save_host(&mut self, lease: &HostLease, now: DateTime<Utc>) -> Result<bool> {
        let sql = sql!("UPDATE hosts SET lease_until = $3, ended_at = $4 WHERE id = $1 AND process_id = $2");
        let (process_id, ended_at) = (self.process_id, lease.ended.then_some(now));
        Ok(self.execute(sql, args![lease.id, process_id, lease.until, ended_at]).await? == 1)
    }
}

fn live_host(row: &Row) -> DbResult<LiveHost> {
    Ok(row!(row => LiveHost { name: text, until: time }))
}
