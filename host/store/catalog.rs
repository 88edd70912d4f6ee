//! Nodes, platform domains and presets.

use uuid::Uuid;

use super::arg::{StringArg, args};
use super::error::DbResult;
use super::fleet::has_authority;
use super::read::Read;
use super::row::{Row, row};
use super::sql::{by_ids, sql};
use super::{Store, Write};
use culvert_domain::error::Result;
use culvert_domain::node::{Node, PlatformDomain};
use culvert_domain::port::{self, PortRange};
use culvert_domain::preset::{Preset, PresetPort};
use culvert_domain::protocol::Protocol;
use culvert_domain::string_enum::StringEnum;

/// The columns of a node `n`, under names that are unique among all tables. Whether its host is heard of is told by when any
/// host was heard of last.
macro_rules! node_columns {
    () => {
        concat!(
        "n.id AS node_id, n.name AS node_name, n.hostname AS node_hostname, n.region AS node_region, \
         n.country AS node_country, n.region_flag AS node_flag, n.status AS node_status, \
         n.pro_only AS node_pro_only, n.knows_countries AS node_knows_countries, n.first_port AS node_first_port, n.last_port AS node_last_port, \
         n.domain_id AS node_domain_id, n.http_port AS node_http_port, \
         n.https_port AS node_https_port, \
         COALESCE((SELECT CASE WHEN h.lease_until > k.alive_at THEN 'online' WHEN ",
            $crate::fleet::has_authority!("k.alive_at"),
            " THEN 'degraded' ELSE 'offline' END FROM hosts h JOIN cluster k ON k.id = 1 WHERE h.id = n.host_id), 'offline') \
             AS node_reach"
        )
    };
}
pub(super) use node_columns;

/// Whether the host of a node `n` is alive, as the host `$1` sees it at the time `$2`.
macro_rules! is_with_live_host {
    () => {
        "(n.host_id = $1 OR EXISTS (SELECT 1 FROM hosts h \
              WHERE h.id = n.host_id AND h.ended_at IS NULL AND h.lease_until > $2))"
    };
}

/// A node on which a new tunnel may be placed.
#[derive(Clone, Debug)]
pub struct PlacementCandidate {
    pub node: Node,
    /// How many tunnels are on it.
    pub tunnels: u64,
    /// The platform domain of its tunnels' names: its own, or the default.
    pub domain_id: Uuid,
    pub domain: String,
    /// Whether its host is to be stopped.
    pub drains: bool,
}

/// What a host registers about one of its nodes.
#[derive(Clone, Debug)]
pub struct NodeRegistration {
    pub id: Uuid,
    pub name: String,
    pub hostname: String,
    pub ports: PortRange,
    pub knows_countries: bool,
    /// The domain of its tunnels' names.
    pub domain: Option<String>,
    /// The ports that visitors of http tunnels see.
    pub http_port: Option<u16>,
    pub https_port: Option<u16>,
    /// Where agents reach it, as a grant says it.
    pub agent_address: String,
}

impl Store {
    pub async fn nodes(&self) -> Result<Vec<Node>> {
        let sql = sql!(concat!("SELECT ", node_columns!(), " FROM nodes n ORDER BY n.created_at, n.id"));
        let rows = (&self.db).all(sql, args![]).await?;
        Ok(rows.iter().map(node).collect::<DbResult<_>>()?)
    }

    /// Without those that have no tunnels and whose host ended more than a day ago.
    pub async fn listed_nodes(&self) -> Result<Vec<Node>> {
        let sql = sql!(concat!(
            "SELECT ",
            node_columns!(),
            " FROM nodes n WHERE NOT EXISTS (SELECT 1 FROM hosts h JOIN cluster k ON k.id = 1 \
                 WHERE h.id = n.host_id AND h.ended_at < k.alive_at - 86400000000) \
                 OR EXISTS (SELECT 1 FROM node_loads l WHERE l.node_id = n.id AND l.tunnels > 0) \
             ORDER BY n.created_at, n.id"
        ));
        let rows = (&self.db).all(sql, args![]).await?;
        Ok(rows.iter().map(node).collect::<DbResult<_>>()?)
    }

    pub async fn platform_domains(&self) -> Result<Vec<PlatformDomain>> {
        let sql = sql!("SELECT id, domain, is_default, region, pro_only FROM platform_domains ORDER BY created_at, id");
        let rows = (&self.db).all(sql, args![]).await?;
        Ok(rows.iter().map(platform_domain).collect::<DbResult<_>>()?)
    }

    /// Says under which host names the API and the dashboard are reached.
    pub fn set_own_names(&self, names: Vec<String>) {
        // It is said once, at the start.
        let _ = self.own_names.set(names);
    }

    /// Whether a name is that of the API, of the dashboard or of a node.
    pub async fn is_own_name(&self, name: &str) -> Result<bool> {
        if self.own_names.get().is_some_and(|own| own.iter().any(|own| own.eq_ignore_ascii_case(name))) {
            return Ok(true);
        }
        Ok(self.nodes().await?.iter().any(|node| node.hostname.eq_ignore_ascii_case(name)))
    }

    /// Where agents reach a node, as long as it may serve.
    pub async fn serving_address(&self, node_id: Uuid) -> Result<Option<String>> {
        let sql = sql!(concat!(
            "SELECT n.agent_address FROM nodes n JOIN hosts h ON h.id = n.host_id WHERE n.id = $1 AND ",
            has_authority!("$2")
        ));
        let row = (&self.db).optional(sql, args![node_id, self.clock.now()]).await?;
        Ok(row.map(|row| row.optional_text("agent_address")).transpose()?.flatten())
    }

    /// Those of these nodes that belong to another host now, or to none.
    pub async fn lost_nodes(&self, host_id: Uuid, node_ids: &[Uuid]) -> Result<Vec<Uuid>> {
        let sql = by_ids!("SELECT id FROM nodes WHERE COALESCE(host_id <> $2, TRUE) AND id", "$1", "");
        let rows = (&self.db).all(sql, args![node_ids, host_id]).await?;
        Ok(rows.iter().map(|row| row.id("id")).collect::<DbResult<_>>()?)
    }

    pub async fn presets(&self) -> Result<Vec<Preset>> {
        let sql = sql!(
            "SELECT id, slug, name, category, protocol, local_port, extra_ports, icon_url FROM presets ORDER BY id"
        );
        let rows = (&self.db).all(sql, args![]).await?;
        Ok(rows.iter().map(preset).collect::<DbResult<_>>()?)
    }

    pub async fn preset(&self, id: Uuid) -> Result<Option<Preset>> {
        let sql = sql!(
            "SELECT id, slug, name, category, protocol, local_port, extra_ports, icon_url FROM presets WHERE id = $1"
        );
        let row = (&self.db).optional(sql, args![id]).await?;
        Ok(row.as_ref().map(preset).transpose()?)
    }
}

impl Write {
    pub async fn node(&mut self, id: Uuid) -> Result<Option<Node>> {
        let row = self
            .optional(sql!(concat!("SELECT ", node_columns!(), " FROM nodes n WHERE n.id = $1")), args![id])
            .await?;
        Ok(row.as_ref().map(node).transpose()?)
    }

    /// Whether the host of a node is alive: it is this one, or its lease lasts. No other host can speak for it.
    pub async fn has_live_host(&mut self, node_id: Uuid) -> Result<bool> {
        let (host_id, now) = (self.host_id, self.now);
        let sql = sql!(concat!("SELECT 1 AS one FROM nodes n WHERE n.id = $3 AND ", is_with_live_host!()));
        Ok(self.optional(sql, args![host_id, now, node_id]).await?.is_some())
    }

    /// Registers a node of this host, or updates what the host reports about it. Values set by the operator stay.
    pub async fn register_node(&mut self, new: &NodeRegistration) -> Result<()> {
        let (host_id, now) = (self.host_id, self.now);
        let sql = sql!(
            "INSERT INTO nodes (id, name, hostname, region, country, status, pro_only, knows_countries, first_port, \
                 last_port, created_at, http_port, https_port, host_id, agent_address) \
             VALUES ($1, $2, $3, 'local', 'ZZ', 'online', FALSE, $4, $5, $6, $7, $8, $9, $10, $11) \
             ON CONFLICT (id) DO UPDATE SET host_id = excluded.host_id, agent_address = excluded.agent_address, \
                 hostname = excluded.hostname, http_port = excluded.http_port, \
                 https_port = excluded.https_port, \
                 knows_countries = excluded.knows_countries, \
                 first_port = excluded.first_port, last_port = excluded.last_port"
        );
        let NodeRegistration {
            id,
            name,
            hostname,
            ports,
            knows_countries,
            http_port,
            https_port,
            agent_address,
            domain: _,
        } = new;
        let args = args![
            *id,
            name,
            hostname,
            *knows_countries,
            ports.first,
            ports.last,
            now,
            http_port.map(u32::from),
            https_port.map(u32::from),
            host_id,
            agent_address,
        ];
        self.execute(sql, args).await?;
        let sql =
            sql!("INSERT INTO node_revisions (node_id, revision, pruned) VALUES ($1, 1, 0) ON CONFLICT DO NOTHING");
        self.execute(sql, args![*id]).await?;
        Ok(())
    }

    /// The node of another host that has a domain, as long as it may serve.
    pub async fn node_with_domain(&mut self, domain: &str) -> Result<Option<Uuid>> {
        let (host_id, now) = (self.host_id, self.now);
        let sql = sql!(concat!(
            "SELECT n.id FROM nodes n JOIN platform_domains d ON d.id = n.domain_id JOIN hosts h ON h.id = n.host_id \
             WHERE d.domain = $1 AND h.id <> $2 AND ",
            has_authority!("$3"),
            " LIMIT 1"
        ));
        let row = self.optional(sql, args![domain, host_id, now]).await?;
        Ok(row.map(|row| row.id("id")).transpose()?)
    }

    /// Sets the domain of a node's tunnels. A domain that stood for an earlier version's node, named like its host, gets
    /// the new name: its tunnels keep their subdomains.
    pub async fn set_node_domain(&mut self, node_id: Uuid, former: Option<&str>, domain: Option<&str>) -> Result<()> {
        if let (Some(former), Some(domain)) = (former, domain) {
            let sql = sql!(
                "UPDATE platform_domains SET domain = $2 WHERE domain = $1 \
                     AND NOT EXISTS (SELECT 1 FROM platform_domains WHERE domain = $2) \
                     AND NOT EXISTS (SELECT 1 FROM nodes n WHERE n.domain_id = platform_domains.id)"
            );
            self.execute(sql, args![former, domain]).await?;
        }
        if let Some(domain) = domain {
            self.register_domain(domain).await?;
        }
        // Another node that had the domain is no longer in the configuration, or gets another one next.
        let sql = sql!(
            "UPDATE nodes SET domain_id = NULL WHERE id <> $1 \
             AND domain_id = (SELECT id FROM platform_domains WHERE domain = $2)"
        );
        self.execute(sql, args![node_id, domain]).await?;
        let sql =
            sql!("UPDATE nodes SET domain_id = (SELECT id FROM platform_domains WHERE domain = $2) WHERE id = $1");
        self.execute(sql, args![node_id, domain]).await?;
        Ok(())
    }

    /// Registers a platform domain. The first one becomes the default.
    pub async fn register_domain(&mut self, domain: &str) -> Result<()> {
        let (id, now) = (self.clock.id(), self.now);
        // Of two hosts that start at once, one has the first domain.
        self.lock(sql!(postgres: "SELECT id FROM cluster WHERE id = 1 FOR UPDATE"), args![]).await?;
        let sql = sql!(
            "INSERT INTO platform_domains (id, domain, is_default, pro_only, created_at) \
             VALUES ($1, $2, NOT EXISTS (SELECT 1 FROM platform_domains), FALSE, $3) ON CONFLICT DO NOTHING"
        );
        self.execute(sql, args![id, domain, now]).await?;
        Ok(())
    }

    pub async fn update_node(&mut self, node: &Node) -> Result<()> {
        let sql = sql!(
            "UPDATE nodes SET name = $2, region = $3, country = $4, region_flag = $5, status = $6, pro_only = $7 \
             WHERE id = $1"
        );
        let args = args![
            node.id,
            &node.name,
            &node.region,
            &node.country,
            node.region_flag.as_deref(),
            StringArg(node.status),
            node.pro_only,
        ];
        self.execute(sql, args).await?;
        Ok(())
    }

    /// The nodes whose hosts are alive, for the placement of a new tunnel; of hosts that are not to be stopped, if there are any.
    pub async fn placement_candidates(&mut self) -> Result<Vec<PlacementCandidate>> {
        let sql = sql!(concat!(
            "SELECT ",
            node_columns!(),
            ", d.id AS domain_id, d.domain, (SELECT CAST(COALESCE(SUM(l.tunnels), 0) AS BIGINT) FROM node_loads l \
                WHERE l.node_id = n.id) AS tunnels, \
                EXISTS (SELECT 1 FROM hosts h WHERE h.id = n.host_id AND h.draining) AS drains FROM nodes n JOIN platform_domains d \
                ON d.id = n.domain_id OR (n.domain_id IS NULL AND d.is_default = TRUE) WHERE ",
            is_with_live_host!()
        ));
        let (host_id, now) = (self.host_id, self.now);
        let rows = self.all(sql, args![host_id, now]).await?;
        let candidates = rows.iter().map(placement_candidate).collect::<DbResult<Vec<_>>>()?;
        let stays = |candidate: &PlacementCandidate| !candidate.drains;
        // Hosts that are to be stopped go on where no other is there.
        let some_stay = candidates.iter().any(stays);
        Ok(candidates.into_iter().filter(|candidate| !some_stay || stays(candidate)).collect())
    }
}

fn placement_candidate(row: &Row) -> DbResult<PlacementCandidate> {
    Ok(row!(row => PlacementCandidate { domain_id: id, domain: text, tunnels: number, drains: flag; node: node(row)? }))
}

/// Reads a node from the columns of [`node_columns`].
pub(super) fn node(row: &Row) -> DbResult<Node> {
    Ok(Node {
        id: row.id("node_id")?,
        name: row.text("node_name")?,
        hostname: row.text("node_hostname")?,
        region: row.text("node_region")?,
        country: row.text("node_country")?,
        region_flag: row.optional_text("node_flag")?,
        status: row.string_enum("node_status")?,
        reach: row.string_enum("node_reach")?,
        pro_only: row.flag("node_pro_only")?,
        knows_countries: row.flag("node_knows_countries")?,
        ports: PortRange { first: row.number("node_first_port")?, last: row.number("node_last_port")? },
        domain_id: row.optional_id("node_domain_id")?,
        http_port: row.optional_number("node_http_port")?,
        https_port: row.optional_number("node_https_port")?,
    })
}

fn platform_domain(row: &Row) -> DbResult<PlatformDomain> {
    Ok(row!(row => PlatformDomain {
        id: id, domain: text, is_default: flag, region: optional_text, pro_only: flag,
    }))
}

fn preset(row: &Row) -> DbResult<Preset> {
    let extra = row.json::<Vec<StoredPort>>("extra_ports")?.unwrap_or_default();
    Ok(row!(row => Preset {
        id: id, slug: text, name: text, category: string_enum, protocol: string_enum, local_port: number,
        icon_url: optional_text;
        extra_ports: extra.into_iter().filter_map(StoredPort::into_port).collect(),
    }))
}

/// An extra port of a preset, as the migrations store it.
#[derive(serde::Deserialize)]
struct StoredPort {
    local_port: i64,
    label: Option<String>,
    protocol: String,
}

impl StoredPort {
    fn into_port(self) -> Option<PresetPort> {
        let Self { local_port, label, protocol } = self;
        Some(PresetPort { local_port: port::valid(local_port)?, label, protocol: Protocol::parse(&protocol)? })
    }
}
