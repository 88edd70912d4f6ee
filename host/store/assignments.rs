//! Assignments of nodes: what each is to serve, the revisions of changes, and the traffic that was counted.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use chrono::{DateTime, TimeDelta, Utc};
use culvert_domain::error::Result;
use culvert_domain::protocol::{self, Protocol};
use culvert_domain::tunnel::DEFAULT_IDLE_TIMEOUT;
use culvert_wire::node::{AssignedPort, Assignment, CountryRule, FirewallRule, TrafficBatch, Transport};
use culvert_wire::target::DEFAULT_FLOW_IDLE_TIMEOUT;
use uuid::Uuid;

use super::arg::args;
use super::error::DbResult;
use super::read::Read;
use super::row::{Row, readable, row};
use super::sql::{insert_ids, sql};
use super::{Hint, Store, Write};

/// Most assignments that are read at once.
const BATCH: usize = 500;
/// How long a batch of traffic is remembered after its acknowledgement.
const COPIES_FOR: TimeDelta = TimeDelta::hours(1);

/// An assignment, with what the host itself needs of it.
#[derive(Clone, Debug)]
pub struct Assigned {
    pub assignment: Assignment,
    /// The plan of the tunnel's scope.
    pub plan: String,
}

/// The changes of a node's assignments after a revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    pub revision: u64,
    /// The highest revision whose change was deleted. What changed up to it is not listed.
    pub pruned: u64,
    /// Tunnels and platform domains.
    pub item_ids: Vec<Uuid>,
}

/// A statement about the open sessions of the tunnels of the list `$1` on the node `$2`, in the SQL of each engine.
/// `+` keeps SQLite from the index of the node's sessions: those of the tunnels are fewer.
macro_rules! of_tunnels {
    ($select:literal, $rest:literal) => {
        sql!(
            sqlite: concat!(
                $select,
                " WHERE s.ended_at IS NULL AND +s.node_id = $2 \
                  AND s.tunnel_id IN (SELECT unhex(value) FROM json_each($1)) ",
                $rest
            ),
            postgres: concat!(
                $select,
                " WHERE s.ended_at IS NULL AND s.node_id = $2 AND s.tunnel_id = ANY($1) ",
                $rest
            )
        )
    };
}

impl Store {
    /// The node's newest revision, and the tunnels and platform domains that changed after another one. One statement reads both, so
    /// no change up to the revision is missing.
    pub async fn assignment_changes(&self, node_id: Uuid, after: u64) -> Result<Changes> {
        let sql = sql!(
            "SELECT r.revision, r.pruned, c.item_id FROM node_revisions r \
             LEFT JOIN assignment_changes c ON c.node_id = r.node_id AND c.revision > $2 WHERE r.node_id = $1"
        );
        let rows = (&self.db).all(sql, args![node_id, after]).await?;
        let Some(first) = rows.first() else { return Ok(Changes::default()) };
        let item_ids = rows.iter().map(|row| row.optional_id("item_id")).collect::<DbResult<Vec<_>>>()?;
        Ok(Changes {
            revision: first.number("revision")?,
            pruned: first.number("pruned")?,
            item_ids: item_ids.into_iter().flatten().collect(),
        })
    }

    /// Everything that a node is to serve.
    pub async fn assignments(&self, node_id: Uuid) -> Result<Vec<Assigned>> {
        let sql = sql!("SELECT tunnel_id FROM sessions WHERE node_id = $1 AND ended_at IS NULL");
        let rows = (&self.db).all(sql, args![node_id]).await?;
        let tunnel_ids = rows.iter().map(|row| row.id("tunnel_id")).collect::<DbResult<Vec<_>>>()?;
        self.assignments_of(node_id, &tunnel_ids).await
    }

    /// What a node is to serve of these tunnels.
    pub async fn assignments_of(&self, node_id: Uuid, tunnel_ids: &[Uuid]) -> Result<Vec<Assigned>> {
        let mut all = Vec::new();
        for batch in tunnel_ids.chunks(BATCH) {
            all.extend(self.batch_of_assignments(node_id, batch).await?);
        }
        Ok(all)
    }

    /// The rules are read after their version, so that a node never takes older rules for newer ones.
    async fn batch_of_assignments(&self, node_id: Uuid, tunnel_ids: &[Uuid]) -> Result<Vec<Assigned>> {
        let sessions = of_tunnels!(
            "SELECT s.id, s.tunnel_id, s.scope_id, s.epoch, s.device_id, s.boot_id, (s.ready_at IS NOT NULL) AS ready, t.name, t.protocol, \
                    t.remote_port, t.idle_timeout, t.buffer_size, s.target_version, t.rules_version, c.plan \
             FROM sessions s JOIN tunnels t ON t.id = s.tunnel_id JOIN scopes c ON c.id = s.scope_id",
            ""
        );
        let ports = of_tunnels!(
            "SELECT s.tunnel_id, e.id, e.remote_port, e.protocol FROM sessions s JOIN session_ports p ON p.session_id = s.id \
             JOIN extra_ports e ON e.id = p.port_id AND e.protocol <> 'http'",
            "ORDER BY e.created_at, e.id"
        );
        let firewall = of_tunnels!(
            "SELECT s.tunnel_id, f.rule_type, COALESCE(f.ip_address, f.ip_cidr) AS network \
             FROM sessions s JOIN firewall_rules f ON f.tunnel_id = s.tunnel_id",
            "ORDER BY f.position"
        );
        let countries = of_tunnels!(
            "SELECT s.tunnel_id, g.country_code, g.action \
             FROM sessions s JOIN geoip_rules g ON g.tunnel_id = s.tunnel_id",
            "ORDER BY g.position"
        );
        let args = args![tunnel_ids, node_id];
        let rows = (&self.db).all(sessions, args).await?;
        let mut found: HashMap<Uuid, Assigned> = readable(&rows, "session", assigned)
            .into_iter()
            .map(|assigned| (assigned.assignment.tunnel_id, assigned))
            .collect();
        if found.is_empty() {
            return Ok(Vec::new());
        }
        add(&mut found, &(&self.db).all(ports, args).await?, |assignment, row| {
            assignment.ports.extend(assigned_ports(row, row.string_enum("protocol")?, Some(row.id("id")?))?);
            Ok(())
        })?;
        add(&mut found, &(&self.db).all(firewall, args).await?, |assignment, row| {
            assignment.firewall.push(FirewallRule { rule: row.text("rule_type")?, network: row.text("network")? });
            Ok(())
        })?;
        add(&mut found, &(&self.db).all(countries, args).await?, |assignment, row| {
            assignment.countries.push(CountryRule { country: row.text("country_code")?, action: row.text("action")? });
            Ok(())
        })?;
        Ok(found.into_values().collect())
    }

    /// Raises the revision of tunnels on a node, so that the node gets them again.
    pub async fn resend_assignments(&self, node_id: Uuid, tunnel_ids: Vec<Uuid>) -> Result<()> {
        self.write(None, move |write| {
            Box::pin(async move {
                tunnel_ids.into_iter().for_each(|tunnel_id| write.touch(node_id, tunnel_id));
                Ok(())
            })
        })
        .await
    }
}

/// Adds rows to the assignments of their tunnels.
fn add(
    found: &mut HashMap<Uuid, Assigned>,
    rows: &[Row],
    add: impl Fn(&mut Assignment, &Row) -> DbResult<()>,
) -> DbResult<()> {
    for row in rows {
        if let Some(assigned) = found.get_mut(&row.id("tunnel_id")?) {
            add(&mut assigned.assignment, row)?;
        }
    }
    Ok(())
}

fn assigned(row: &Row) -> DbResult<Assigned> {
    let protocol: Protocol = row.string_enum("protocol")?;
    // An http tunnel has names instead (`routes`).
    let ports = if protocol == Protocol::Http { Vec::new() } else { assigned_ports(row, protocol, None)? };
    let assignment = row!(row => Assignment {
        tunnel_id: id, epoch: int, device_id: id, boot_id: id, scope_id: id, name: text, ready: flag;
        session_id: row.id("id")?,
        protocol: protocol.to_string(),
        ports,
        idle_timeout_seconds: row.optional_number("idle_timeout")?.unwrap_or(DEFAULT_IDLE_TIMEOUT),
        flow_idle_timeout_seconds: row.optional_number("idle_timeout")?.unwrap_or(DEFAULT_FLOW_IDLE_TIMEOUT),
        buffer_size_bytes: row.number("buffer_size")?,
        target_version: row.number("target_version")?,
        access_version: row.int("rules_version")?,
        firewall: Vec::new(),
        countries: Vec::new(),
    });
    Ok(Assigned { assignment, plan: row.text("plan")? })
}

/// A public port, once for each transport.
fn assigned_ports(row: &Row, protocol: Protocol, port_id: Option<Uuid>) -> DbResult<Vec<AssignedPort>> {
    let port = row.number("remote_port")?;
    let assigned = |transport: &protocol::Transport| AssignedPort {
        port,
        transport: match transport {
            protocol::Transport::Tcp => Transport::Tcp,
            protocol::Transport::Udp => Transport::Udp,
        },
        port_id,
    };
    Ok(protocol.transports().iter().map(assigned).collect())
}

impl Write {
    /// Records that what a node has of a tunnel, or of a platform domain, has changed. Nodes hear of it after the commit.
    pub fn touch(&mut self, node_id: Uuid, item_id: Uuid) {
        self.touched.insert((node_id, item_id));
    }

    /// As [`Write::touch`], on the node that has the tunnel's open session, if there is one.
    pub async fn touch_assignment(&mut self, tunnel_id: Uuid) -> Result<()> {
        let sql = sql!("SELECT node_id FROM sessions WHERE tunnel_id = $1 AND ended_at IS NULL");
        if let Some(row) = self.optional(sql, args![tunnel_id]).await? {
            self.touch(row.id("node_id")?, tunnel_id);
        }
        Ok(())
    }

    /// As [`Write::touch`], for all open sessions and all http tunnels of a scope.
    pub async fn touch_scope(&mut self, scope_id: Uuid) -> Result<()> {
        let sql = sql!(
            "SELECT node_id, tunnel_id FROM sessions WHERE scope_id = $1 AND ended_at IS NULL \
             UNION SELECT node_id, id AS tunnel_id FROM tunnels WHERE scope_id = $1 AND protocol = 'http'"
        );
        for row in self.all(sql, args![scope_id]).await? {
            self.touch(row.id("node_id")?, row.id("tunnel_id")?);
        }
        Ok(())
    }

    /// The nodes whose assignments this transaction has changed so far.
    pub fn touched_nodes(&self) -> BTreeSet<Uuid> {
        self.touched.iter().map(|(node_id, _)| *node_id).collect()
    }

    /// Raises the revisions of the touched nodes. This comes last in a transaction: from here to the commit, no
    /// other transaction gets a revision of the same nodes. The order by node prevents deadlocks.
    pub(super) async fn raise_revisions(&mut self) -> Result<()> {
        let mut by_node: BTreeMap<Uuid, Vec<Uuid>> = BTreeMap::new();
        for (node_id, item_id) in std::mem::take(&mut self.touched) {
            by_node.entry(node_id).or_default().push(item_id);
        }
        let now = self.now;
        for (node_id, item_ids) in by_node {
            let sql = sql!(
                "INSERT INTO node_revisions (node_id, revision, pruned) VALUES ($1, 1, 0) \
                 ON CONFLICT (node_id) DO UPDATE SET revision = node_revisions.revision + 1 RETURNING revision"
            );
            let revision = self.one(sql, args![node_id]).await?.int("revision")?;
            let sql = insert_ids!(
                "INSERT INTO assignment_changes (item_id, node_id, revision, changed_at)",
                "$1",
                "$2, $3, $4",
                "ON CONFLICT (node_id, item_id) DO UPDATE \
                 SET revision = excluded.revision, changed_at = excluded.changed_at"
            );
            self.execute(sql, args![&item_ids[..], node_id, revision, now]).await?;
            self.notify(Hint::Node(node_id));
        }
        Ok(())
    }

    /// Adds a batch of traffic to the counters, exactly once. Returns whether it was new.
    pub async fn apply_traffic(&mut self, node_id: Uuid, batch: &TrafficBatch) -> Result<bool> {
        let now = self.now;
        let sql = sql!(
            "INSERT INTO traffic_batches (node_id, boot_id, number, applied_at) VALUES ($1, $2, $3, $4) \
             ON CONFLICT DO NOTHING"
        );
        if self.execute(sql, args![node_id, batch.boot_id, batch.number, now]).await? == 0 {
            return Ok(false);
        }
        // A copy of an acknowledged batch may still be in a queue of this host.
        // `+` keeps SQLite from the primary key, by which it would visit all batches of the last hour.
        let sql = sql!(
            "DELETE FROM traffic_batches \
             WHERE node_id = $1 AND boot_id = $2 AND +number < $3 AND applied_at <= $4"
        );
        self.execute(sql, args![node_id, batch.boot_id, batch.oldest, now - COPIES_FOR]).await?;
        self.add_traffic(batch.scope_id, &batch.rows).await?;
        Ok(true)
    }

    /// Deletes at most `limit` changes that are older than this, with the note up to which revision they are gone. Returns
    /// how many.
    pub(super) async fn prune_assignment_changes(&mut self, until: DateTime<Utc>, limit: u32) -> Result<u64> {
        // The nodes are locked before their changes, and in one order, as other transactions do.
        let sql = sql!(
            "SELECT node_id, MAX(revision) AS revision FROM (SELECT node_id, revision FROM assignment_changes \
                 WHERE changed_at <= $1 ORDER BY changed_at LIMIT $2) AS oldest GROUP BY node_id ORDER BY node_id"
        );
        for row in self.all(sql, args![until, limit]).await? {
            let sql = sql!("UPDATE node_revisions SET pruned = $2 WHERE node_id = $1 AND pruned < $2");
            self.execute(sql, args![row.id("node_id")?, row.int("revision")?]).await?;
        }
        let sql = sql!(
            "DELETE FROM assignment_changes WHERE (node_id, item_id) IN (SELECT c.node_id, c.item_id \
                 FROM assignment_changes c JOIN node_revisions r ON r.node_id = c.node_id \
                 WHERE c.changed_at <= $1 AND c.revision <= r.pruned ORDER BY c.changed_at LIMIT $2)"
        );
        Ok(self.execute(sql, args![until, limit]).await?)
    }
}
