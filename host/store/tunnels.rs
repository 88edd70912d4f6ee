//! Tunnels.

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use super::arg::{StringArg, args};
use super::catalog::{self, node_columns};
use super::error::DbResult;
use super::read::Read;
use super::row::{Row, row};
use super::sql::{by_ids, sql};
use super::{Store, Write};
use culvert_domain::error::Result;
use culvert_domain::local_service::LocalService;
use culvert_domain::node::Node;
use culvert_domain::page::{CursorPosition, Page, PageRows};
use culvert_domain::port::{ExtraPort, extra_subdomain};
use culvert_domain::protocol::Protocol;
use culvert_domain::string_enum::StringEnum;
use culvert_domain::tunnel::{ActiveOperation, FormerNode, Run, Tunnel, TunnelSpec};

/// How long a subdomain that was given up is kept for its former scope. Without this, its visitors would reach a tunnel of
/// another scope.
const SUBDOMAIN_REST: TimeDelta = TimeDelta::days(1);

/// Subdomains that are kept for one scope, at most: those that it gave up last.
const RESTING_SUBDOMAINS: i64 = 20;

/// Selects a tunnel with its devices and extra ports, its open session, the presence of the device that holds the session,
/// and the unfinished operation. Session and operation are looked up for each tunnel: without `LATERAL` and `LIMIT`, PostgreSQL may
/// join a page of tunnels with all that are open.
macro_rules! select_tunnel {
    ($rest:literal) => {
        sql!(
            sqlite: select_tunnel!(
                "json_group_array(hex(b.device_id) ORDER BY b.device_id)",
                "json_group_array(json_array(hex(e.id), e.local_port, e.remote_port, e.protocol, e.label) \
                     ORDER BY e.created_at, e.id)",
                "sessions s ON s.tunnel_id = t.id AND s.ended_at IS NULL",
                "operations o ON o.tunnel_id = t.id AND o.status IN ('queued', 'claimed', 'running') ",
                $rest
            ),
            postgres: select_tunnel!(
                "CAST(json_agg(b.device_id ORDER BY b.device_id) AS TEXT)",
                "CAST(json_agg(json_build_array(e.id, e.local_port, e.remote_port, e.protocol, e.label) \
                     ORDER BY e.created_at, e.id) AS TEXT)",
                "LATERAL (SELECT id, device_id, ready_at, target_error FROM sessions \
                     WHERE tunnel_id = t.id AND ended_at IS NULL LIMIT 1) s ON TRUE",
                "LATERAL (SELECT id, action, status, device_id, handoff_from_device_id FROM operations \
                     WHERE tunnel_id = t.id AND status IN ('queued', 'claimed', 'running') LIMIT 1) o ON TRUE ",
                $rest
            )
        )
    };
    ($devices:literal, $extra_ports:literal, $session:literal, $operation:literal, $rest:literal) => {
        concat!(
            "SELECT t.id, t.scope_id, t.created_by, t.name, t.protocol, t.local_host, t.local_port, t.remote_port, \
                    t.subdomain, t.region, t.country, t.preset_id, t.https, t.basic_auth, t.basic_auth_user, \
                    (t.basic_auth_hash IS NOT NULL) AS basic_auth_password_set, t.idle_timeout, t.buffer_size, \
                    t.pro_network, t.host_header, t.local_scheme, t.local_tls_verify, \
                    t.proxy_protocol, t.tls_passthrough, t.restricted, t.desired_device_id, t.start_error, t.moving, \
                    t.moving_from, t.moving_device, t.created_at, t.updated_at, d.domain, c.suspended_until, \
                    (SELECT ", $devices, " FROM tunnel_devices b WHERE b.tunnel_id = t.id) AS device_ids, \
                    (SELECT ", $extra_ports, " FROM extra_ports e WHERE e.tunnel_id = t.id) AS extra_ports, \
                    s.id AS session_id, s.device_id AS session_device_id, (s.ready_at IS NOT NULL) AS session_ready, \
                    s.target_error, (p.host_id IS NOT NULL) AS agent_connected, \
                    (SELECT u.domain FROM custom_domains u WHERE u.tunnel_id = t.id AND u.assigned = TRUE) AS custom_domain, \
                    o.id AS operation_id, o.action AS operation_action, o.status AS operation_status, \
                    o.device_id AS operation_device_id, o.handoff_from_device_id AS operation_handoff_from_device_id, ",
            node_columns!(),
            " FROM tunnels t \
              JOIN scopes c ON c.id = t.scope_id \
              JOIN nodes n ON n.id = t.node_id \
              JOIN platform_domains d ON d.id = t.domain_id \
              LEFT JOIN ", $session, " \
              LEFT JOIN device_presence p ON p.device_id = s.device_id \
              LEFT JOIN ", $operation,
            $rest
        )
    };
}

/// A tunnel that is to be inserted.
#[derive(Clone, Debug)]
pub struct NewTunnel {
    pub id: Uuid,
    pub scope_id: Uuid,
    pub created_by: Uuid,
    pub spec: TunnelSpec,
    pub node_id: Uuid,
    pub domain_id: Uuid,
    /// The public port that is tried first; for an http tunnel, the node's.
    pub remote_port: u16,
    /// Whether it may run only on the devices that are bound to it.
    pub restricted: bool,
    /// Argon2id hash (RFC 9106).
    pub basic_auth_hash: Option<String>,
}

impl NewTunnel {
    /// The tunnel as it is read once it is there, without extra ports and devices.
    pub fn inserted(self, node: Node, domain: String, remote_port: u16, now: DateTime<Utc>) -> Tunnel {
        let Self { id, scope_id, created_by, spec, restricted, basic_auth_hash, .. } = self;
        Tunnel {
            id,
            scope_id,
            created_by,
            spec,
            remote_port,
            node,
            domain,
            basic_auth_password_set: basic_auth_hash.is_some(),
            extra_ports: Vec::new(),
            device_ids: Vec::new(),
            restricted,
            desired_device_id: None,
            start_error: None,
            suspended: false,
            moving: false,
            moving_from: None,
            custom_domain: None,
            run: None,
            operation: None,
            created_at: now,
            updated_at: now,
        }
    }
}

impl Store {
    pub async fn tunnel(&self, scope_id: Uuid, id: Uuid) -> Result<Option<Tunnel>> {
        find(&mut &self.db, scope_id, id, self.clock.now()).await
    }

    pub async fn tunnels(&self, scope_id: Uuid, page: Page) -> Result<PageRows<Tunnel>> {
        let sql = select_tunnel!(
            "WHERE t.scope_id = $1 AND (t.created_at, t.id) < ($2, $3) ORDER BY t.created_at DESC, t.id DESC LIMIT $4"
        );
        let args = args![scope_id, page.after.micros(), page.after.id, page.limit_plus_one()];
        let rows = (&self.db).all(sql, args).await?;
        let now = self.clock.now();
        let tunnels = rows.iter().map(|row| tunnel(row, now)).collect::<DbResult<Vec<_>>>()?;
        Ok(page.truncate(tunnels, |tunnel| CursorPosition { at: tunnel.created_at, id: tunnel.id }))
    }

    /// Whether a device is to resume a tunnel that has no open session and could run now.
    pub async fn has_pending_resumes(&self, scope_id: Uuid, device_id: Uuid) -> Result<bool> {
        let sql = sql!(
            "SELECT t.id FROM tunnels t JOIN scopes c ON c.id = t.scope_id \
             WHERE t.scope_id = $1 AND t.desired_device_id = $2 \
               AND (c.suspended_until IS NULL OR c.suspended_until <= $3) \
               AND NOT EXISTS (SELECT 1 FROM sessions s WHERE s.tunnel_id = t.id AND s.ended_at IS NULL) \
               AND NOT EXISTS (SELECT 1 FROM operations o WHERE o.tunnel_id = t.id \
                   AND o.status IN ('queued', 'claimed', 'running')) \
             LIMIT 1"
        );
        let row = (&self.db).optional(sql, args![scope_id, device_id, self.clock.now()]).await?;
        Ok(row.is_some())
    }

    /// The tunnels of a scope with this id or name.
    pub async fn tunnels_by_name(&self, scope_id: Uuid, tunnel: &str) -> Result<Vec<Uuid>> {
        let id = Uuid::parse_str(tunnel).unwrap_or_default();
        let sql = sql!(
            "SELECT id FROM tunnels WHERE scope_id = $1 AND id = $2 \
             UNION SELECT id FROM tunnels WHERE scope_id = $1 AND name = $3"
        );
        let rows = (&self.db).all(sql, args![scope_id, id, tunnel]).await?;
        Ok(rows.iter().map(|row| row.id("id")).collect::<DbResult<_>>()?)
    }
}

pub(super) async fn find(db: &mut impl Read, scope_id: Uuid, id: Uuid, now: DateTime<Utc>) -> Result<Option<Tunnel>> {
    let row = db.optional(select_tunnel!("WHERE t.scope_id = $1 AND t.id = $2"), args![scope_id, id]).await?;
    Ok(row.as_ref().map(|row| tunnel(row, now)).transpose()?)
}

impl Write {
    pub async fn tunnel(&mut self, scope_id: Uuid, id: Uuid) -> Result<Option<Tunnel>> {
        let now = self.now;
        find(&mut **self, scope_id, id, now).await
    }

    /// Inserts a tunnel, which has to take its public port afterwards. `None` if the subdomain is taken, or another scope gave
    /// it up less than a day ago; else until when the scope is suspended, if it is.
    pub async fn insert_tunnel(&mut self, new: &NewTunnel) -> Result<Option<Option<DateTime<Utc>>>> {
        let sql = sql!(
            "INSERT INTO tunnels (id, scope_id, created_by, name, protocol, local_host, local_port, remote_port, \
                 node_id, domain_id, subdomain, region, country, preset_id, https, basic_auth, basic_auth_user, \
                 basic_auth_hash, buffer_size, pro_network, epoch, created_at, updated_at, idle_timeout, host_header, \
                 local_scheme, local_tls_verify, proxy_protocol, tls_passthrough, restricted) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, \
                 0, $21, $21, $22, $23, $24, $25, $26, $27, $28) ON CONFLICT DO NOTHING \
             RETURNING (SELECT suspended_until FROM scopes WHERE id = scope_id) AS suspended_until"
        );
        let (now, spec) = (self.now, &new.spec);
        let args = args![
            new.id,
            new.scope_id,
            new.created_by,
            &spec.name,
            StringArg(spec.protocol),
            &spec.local_host,
            spec.local_port,
            new.remote_port,
            new.node_id,
            new.domain_id,
            spec.subdomain.as_deref(),
            spec.region.as_deref(),
            spec.country.as_deref(),
            spec.preset_id,
            spec.https,
            spec.basic_auth,
            spec.basic_auth_user.as_deref(),
            new.basic_auth_hash.as_deref(),
            spec.buffer_size,
            spec.pro_network,
            now,
            spec.idle_timeout,
            spec.service.host_header.as_deref(),
            StringArg(spec.service.scheme),
            spec.service.tls_verify,
            StringArg(spec.service.proxy_protocol),
            spec.service.tls_passthrough,
            new.restricted,
        ];
        let Some(row) = self.optional(sql, args).await? else { return Ok(None) };
        // Looked at afterwards: whoever gave the name up has committed by now.
        if let Some(subdomain) = &spec.subdomain
            && self.subdomain_rests(new.domain_id, subdomain, new.scope_id).await?
        {
            self.execute(sql!("DELETE FROM tunnels WHERE id = $1"), args![new.id]).await?;
            return Ok(None);
        }
        if spec.protocol == Protocol::Http {
            self.renamed.insert(new.id);
            self.touch(new.node_id, new.id);
        }
        Ok(Some(row.optional_time("suspended_until")?))
    }

    /// Whether a subdomain is kept for another scope.
    pub(super) async fn subdomain_rests(&mut self, domain_id: Uuid, subdomain: &str, scope_id: Uuid) -> Result<bool> {
        let sql = sql!(
            "SELECT 1 FROM resting_subdomains \
             WHERE domain_id = $1 AND subdomain = $2 AND until > $3 AND scope_id <> $4"
        );
        let now = self.now;
        Ok(!self.all(sql, args![domain_id, subdomain, now, scope_id]).await?.is_empty())
    }

    /// Whether another tunnel has the name that an http extra port of a tunnel would get. Tunnels from before such names
    /// were refused may.
    pub async fn extra_name_is_taken(&mut self, tunnel_id: Uuid, local_port: u16) -> Result<bool> {
        let sql = sql!(
            "SELECT 1 FROM tunnels o JOIN tunnels t ON t.domain_id = o.domain_id AND t.subdomain = $2 || o.subdomain \
             WHERE o.id = $1"
        );
        let prefix = extra_subdomain(local_port, "");
        Ok(!self.all(sql, args![tunnel_id, prefix.as_str()]).await?.is_empty())
    }

    /// Writes all fields of a tunnel that a client can change.
    pub async fn update_tunnel(&mut self, tunnel: &Tunnel) -> Result<()> {
        let sql = sql!(
            "UPDATE tunnels SET name = $2, local_host = $3, local_port = $4, remote_port = $5, https = $6, \
                 basic_auth = $7, basic_auth_user = $8, idle_timeout = $9, buffer_size = $10, pro_network = $11, \
                 updated_at = $12, host_header = $13, local_scheme = $14, local_tls_verify = $15, proxy_protocol = $16, \
                 tls_passthrough = $17 \
             WHERE id = $1"
        );
        let now = self.now;
        let args = args![
            tunnel.id,
            &tunnel.spec.name,
            &tunnel.spec.local_host,
            tunnel.spec.local_port,
            tunnel.remote_port,
            tunnel.spec.https,
            tunnel.spec.basic_auth,
            tunnel.spec.basic_auth_user.as_deref(),
            tunnel.spec.idle_timeout,
            tunnel.spec.buffer_size,
            tunnel.spec.pro_network,
            now,
            tunnel.spec.service.host_header.as_deref(),
            StringArg(tunnel.spec.service.scheme),
            tunnel.spec.service.tls_verify,
            StringArg(tunnel.spec.service.proxy_protocol),
            tunnel.spec.service.tls_passthrough,
        ];
        self.execute(sql, args).await?;
        Ok(())
    }

    /// Sets or clears the basic-auth password, of which only the hash is stored.
    pub async fn set_basic_auth_hash(&mut self, id: Uuid, hash: Option<&str>) -> Result<()> {
        self.execute(sql!("UPDATE tunnels SET basic_auth_hash = $2 WHERE id = $1"), args![id, hash]).await?;
        Ok(())
    }

    pub async fn delete_tunnel(&mut self, id: Uuid) -> Result<()> {
        self.rest_ports(id).await?;
        self.touch_route(id).await?;
        self.rest_subdomain(id).await?;
        self.execute(sql!("DELETE FROM tunnels WHERE id = $1"), args![id]).await?;
        Ok(())
    }

    /// Reserves the name of a tunnel that is about to get one below another domain.
    pub(super) async fn rest_former_name(&mut self, id: Uuid, domain_id: Uuid) -> Result<()> {
        let sql = sql!("SELECT 1 FROM tunnels WHERE id = $1 AND domain_id <> $2");
        match self.optional(sql, args![id, domain_id]).await? {
            Some(_) => self.rest_subdomain(id).await,
            None => Ok(()),
        }
    }

    /// Reserves the subdomain of a tunnel that is about to give it up, for its scope.
    async fn rest_subdomain(&mut self, id: Uuid) -> Result<()> {
        let sql = sql!(
            "INSERT INTO resting_subdomains (domain_id, subdomain, scope_id, until) \
             SELECT domain_id, subdomain, scope_id, $2 FROM tunnels WHERE id = $1 AND subdomain IS NOT NULL \
             ON CONFLICT (domain_id, subdomain) DO UPDATE SET scope_id = excluded.scope_id, until = excluded.until"
        );
        let until = self.now + SUBDOMAIN_REST;
        self.execute(sql, args![id, until]).await?;
        // Else a scope could keep names from all others that its plan does not give it.
        let sql = sql!(
            "DELETE FROM resting_subdomains WHERE (domain_id, subdomain) IN ( \
                 SELECT domain_id, subdomain FROM resting_subdomains \
                 WHERE scope_id = (SELECT scope_id FROM tunnels WHERE id = $1) \
                 ORDER BY until DESC, subdomain LIMIT $2 OFFSET $3)"
        );
        self.execute(sql, args![id, RESTING_SUBDOMAINS, RESTING_SUBDOMAINS]).await?;
        Ok(())
    }

    /// Replaces the allowlist. Returns the ids that are not devices of the scope; there must be none.
    pub async fn replace_devices(&mut self, scope_id: Uuid, tunnel_id: Uuid, device_ids: &[Uuid]) -> Result<Vec<Uuid>> {
        let sql = sql!("UPDATE tunnels SET restricted = $2 WHERE id = $1");
        self.execute(sql, args![tunnel_id, !device_ids.is_empty()]).await?;
        self.execute(sql!("DELETE FROM tunnel_devices WHERE tunnel_id = $1"), args![tunnel_id]).await?;
        self.bind_devices(scope_id, tunnel_id, device_ids).await
    }

    /// Adds devices to an empty allowlist. Returns the ids that are not devices of the scope; there must be none.
    pub async fn bind_devices(&mut self, scope_id: Uuid, tunnel_id: Uuid, device_ids: &[Uuid]) -> Result<Vec<Uuid>> {
        if device_ids.is_empty() {
            return Ok(Vec::new());
        }
        let sql = by_ids!(
            "INSERT INTO tunnel_devices (tunnel_id, device_id) \
             SELECT $1, d.id FROM devices d WHERE d.scope_id = $3 AND d.id",
            "$2",
            "RETURNING device_id"
        );
        let rows = self.all(sql, args![tunnel_id, device_ids, scope_id]).await?;
        let bound = rows.iter().map(|row| row.id("device_id")).collect::<DbResult<Vec<_>>>()?;
        Ok(device_ids.iter().filter(|id| !bound.contains(id)).copied().collect())
    }

    /// Sets the desired device: the one that resumes the tunnel whenever it can.
    pub async fn set_desired_device(&mut self, tunnel_id: Uuid, device_id: Option<Uuid>) -> Result<()> {
        self.execute(sql!("UPDATE tunnels SET desired_device_id = $2 WHERE id = $1"), args![tunnel_id, device_id])
            .await?;
        Ok(())
    }

    pub async fn set_start_error(&mut self, tunnel_id: Uuid, error: Option<&str>) -> Result<()> {
        self.execute(sql!("UPDATE tunnels SET start_error = $2 WHERE id = $1"), args![tunnel_id, error]).await?;
        Ok(())
    }

    /// The tunnels that a device is to resume: they have no open session and no unfinished operation.
    pub async fn pending_resumes(&mut self, scope_id: Uuid, device_id: Uuid) -> Result<Vec<Tunnel>> {
        let sql = select_tunnel!(
            "WHERE t.scope_id = $1 AND t.desired_device_id = $2 AND s.id IS NULL AND o.id IS NULL ORDER BY t.id"
        );
        let rows = self.all(sql, args![scope_id, device_id]).await?;
        let now = self.now;
        Ok(rows.iter().map(|row| tunnel(row, now)).collect::<DbResult<_>>()?)
    }
}

fn tunnel(row: &Row, now: DateTime<Utc>) -> DbResult<Tunnel> {
    let node: Node = catalog::node(row)?;
    let spec = spec(row)?;
    let remote_port = match spec.protocol {
        Protocol::Http => node.web_port(spec.needs_https()),
        _ => row.number("remote_port")?,
    };
    Ok(row!(row => Tunnel {
        id: id, scope_id: id, created_by: id, domain: text,
        basic_auth_password_set: flag, restricted: flag, desired_device_id: optional_id,
        start_error: optional_text, moving: flag, custom_domain: optional_text, created_at: time,
        updated_at: time;
        spec,
        remote_port,
        node,
        device_ids: row.json("device_ids")?.unwrap_or_default(),
        extra_ports: extra_ports(row)?,
        moving_from: row
            .optional_id("moving_from")?
            .zip(row.optional_id("moving_device")?)
            .map(|(node_id, device_id)| FormerNode { node_id, device_id }),
        suspended: row.optional_time("suspended_until")?.is_some_and(|until| now < until),
        run: run(row)?,
        operation: operation(row)?,
    }))
}

pub(super) fn local_service(row: &Row) -> DbResult<LocalService> {
    Ok(row!(row => LocalService {
        host_header: optional_text, proxy_protocol: string_enum, tls_passthrough: flag;
        scheme: row.string_enum("local_scheme")?,
        tls_verify: row.optional_flag("local_tls_verify")?,
    }))
}

fn spec(row: &Row) -> DbResult<TunnelSpec> {
    Ok(row!(row => TunnelSpec {
        name: text, protocol: string_enum, local_host: text, local_port: number, subdomain: optional_text,
        region: optional_text, country: optional_text, preset_id: optional_id, https: flag, basic_auth: flag,
        basic_auth_user: optional_text, idle_timeout: optional_number, buffer_size: number,
        pro_network: flag;
        service: local_service(row)?,
    }))
}

fn run(row: &Row) -> DbResult<Option<Run>> {
    let Some(session_id) = row.optional_id("session_id")? else { return Ok(None) };
    Ok(Some(row!(row => Run {
        target_error: optional_text, agent_connected: flag;
        session_id,
        device_id: row.id("session_device_id")?,
        ready: row.flag("session_ready")?,
    })))
}

fn operation(row: &Row) -> DbResult<Option<ActiveOperation>> {
    let Some(id) = row.optional_id("operation_id")? else { return Ok(None) };
    Ok(Some(ActiveOperation {
        id,
        action: row.string_enum("operation_action")?,
        status: row.string_enum("operation_status")?,
        device_id: row.id("operation_device_id")?,
        handoff_from_device_id: row.optional_id("operation_handoff_from_device_id")?,
    }))
}

/// The extra ports of a tunnel, from a JSON list of their columns.
fn extra_ports(row: &Row) -> DbResult<Vec<ExtraPort>> {
    let ports: Vec<(Uuid, u16, u16, String, Option<String>)> = row.json("extra_ports")?.unwrap_or_default();
    let port = |(id, local_port, remote_port, protocol, label): (_, _, _, String, _)| {
        let protocol = Protocol::parse(&protocol).ok_or_else(|| row.unreadable("extra_ports"))?;
        Ok(ExtraPort { id, local_port, remote_port, protocol, label })
    };
    ports.into_iter().map(port).collect()
}
