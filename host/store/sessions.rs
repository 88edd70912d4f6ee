//! Sessions. An open session is also called a lease.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::arg::{StringArg, args};
use super::error::{DbResult, StoreError};
use super::presence::HELD_FOR;
use super::read::Read;
use super::row::{Row, readable, row};
use super::sql::{by_ids, next_epoch, sql};
use super::tunnels::local_service;
use super::{Hint, Store, Write};
use culvert_domain::error::Result;
use culvert_domain::lease::{Lease, LeasePort};
use culvert_domain::page::{CursorPosition, Page, PageRows};
use culvert_domain::protocol::Protocol;
use culvert_domain::session::{EndReason, SESSION_LEASE, Session, Target};
use culvert_domain::tunnel::{Tunnel, TunnelSpec, web_url};
use culvert_domain::usage::Traffic;

/// The ids of a session.
#[derive(Clone, Copy, Debug)]
pub struct RunRef {
    pub session_id: Uuid,
    pub scope_id: Uuid,
    pub tunnel_id: Uuid,
    pub device_id: Uuid,
    pub node_id: Uuid,
}

/// The values of a new session.
#[derive(Clone, Copy, Debug)]
pub struct NewSession<'s> {
    pub id: Uuid,
    pub tunnel: &'s Tunnel,
    pub device_id: Uuid,
    pub boot_id: Uuid,
    pub epoch: i64,
    pub target: &'s Target,
    pub lease_until: DateTime<Utc>,
}

macro_rules! select_lease {
    ($rest:literal) => {
        concat!(
            "SELECT s.id, s.tunnel_id, s.scope_id, s.device_id, s.node_id, s.epoch, s.boot_id, s.local_host, s.local_port, \
                    s.local_scheme, s.local_tls_verify, s.target_version, t.host_header, t.proxy_protocol, t.tls_passthrough, \
                    (s.ready_at IS NOT NULL) AS ready, s.lease_until, t.name, t.protocol, t.remote_port, t.https, \
                    t.idle_timeout, t.buffer_size, n.http_port, n.https_port, \
                    COALESCE(t.subdomain || '.' || d.domain, n.hostname) AS hostname \
             FROM sessions s JOIN tunnels t ON t.id = s.tunnel_id JOIN nodes n ON n.id = s.node_id \
             JOIN platform_domains d ON d.id = t.domain_id \
             WHERE s.ended_at IS NULL ",
            $rest
        )
    };
}

/// The extra ports of open sessions.
macro_rules! select_ports {
    ($rest:literal) => {
        sql!(concat!(
            "SELECT p.session_id, p.local_port, e.id, e.remote_port, e.protocol FROM session_ports p \
             JOIN sessions s ON s.id = p.session_id JOIN extra_ports e ON e.id = p.port_id \
             WHERE s.ended_at IS NULL ",
            $rest,
            " ORDER BY e.created_at, e.id"
        ))
    };
}

/// Selects leases by a condition on their sessions, with their extra ports.
macro_rules! leases {
    ($db:expr, $which:literal, $args:expr) => {{
        let rows = $db.all(sql!(concat!(select_lease!($which), " ORDER BY s.started_at, s.id")), $args).await?;
        let mut leases = readable(&rows, "session", lease);
        if !leases.is_empty() {
            add_ports(&mut leases, &$db.all(select_ports!($which), $args).await?)?;
        }
        leases
    }};
}

/// Sessions whose lease is over.
macro_rules! expired_leases {
    ($now:literal) => {
        concat!("FROM sessions WHERE ended_at IS NULL AND lease_until <= ", $now)
    };
}
pub(crate) use expired_leases;

impl Store {
    /// A page of a tunnel's sessions, newest first.
    pub async fn sessions(&self, scope_id: Uuid, tunnel_id: Uuid, page: Page) -> Result<PageRows<Session>> {
        let sql = sql!(
            "SELECT id, tunnel_id, device_id, node_id, started_at, ended_at, end_reason, bytes_in, bytes_out \
             FROM sessions WHERE scope_id = $1 AND tunnel_id = $2 AND (started_at, id) < ($3, $4) \
             ORDER BY started_at DESC, id DESC LIMIT $5"
        );
        let args = args![scope_id, tunnel_id, page.after.micros(), page.after.id, page.limit_plus_one()];
        let rows = (&self.db).all(sql, args).await?;
        let sessions = rows.iter().map(session).collect::<DbResult<Vec<_>>>()?;
        Ok(page.truncate(sessions, |session| CursorPosition { at: session.started_at, id: session.id }))
    }

    /// The open sessions on a node whose agents prove their leases by tokens of an earlier version, with the ids of
    /// their scopes.
    pub async fn sessions_with_older_tokens(&self, node_id: Uuid, version: u32) -> Result<Vec<(Uuid, Uuid)>> {
        let sql =
            sql!("SELECT id, scope_id FROM sessions WHERE node_id = $1 AND ended_at IS NULL AND token_version < $2");
        let rows = (&self.db).all(sql, args![node_id, version]).await?;
        Ok(readable(&rows, "session", |row| Ok((row.id("id")?, row.id("scope_id")?))))
    }

    /// The leases of the tunnels that a node has to serve.
    pub async fn leases_on_node(&self, node_id: Uuid) -> Result<Vec<Lease>> {
        Ok(leases!((&self.db), "AND s.node_id = $1", args![node_id]))
    }

    pub async fn lease(&self, session_id: Uuid) -> Result<Option<Lease>> {
        Ok(leases!((&self.db), "AND s.id = $1", args![session_id]).pop())
    }

    /// Why a session ended. `None` while it is open.
    pub async fn end_reason(&self, session_id: Uuid) -> Result<Option<EndReason>> {
        let row = (&self.db).optional(sql!("SELECT end_reason FROM sessions WHERE id = $1"), args![session_id]).await?;
        Ok(row.map(|row| row.optional_string_enum("end_reason")).transpose()?.flatten())
    }

    pub async fn lease_of_tunnel(&self, tunnel_id: Uuid) -> Result<Option<Lease>> {
        Ok(leases!((&self.db), "AND s.tunnel_id = $1", args![tunnel_id]).pop())
    }

    /// The leases that a device holds.
    pub async fn leases_of_device(&self, device_id: Uuid) -> Result<Vec<Lease>> {
        Ok(leases!((&self.db), "AND s.device_id = $1", args![device_id]))
    }

    /// The session and scope ids of leases that were not renewed in time.
    pub async fn expired_leases(&self) -> Result<Vec<(Uuid, Uuid)>> {
        let sql = sql!(concat!("SELECT id, scope_id ", expired_leases!("$1")));
        let rows = (&self.db).all(sql, args![self.clock.now()]).await?;
        Ok(readable(&rows, "session", |row| Ok((row.id("id")?, row.id("scope_id")?))))
    }
}

impl Write {
    pub async fn leases_of_device(&mut self, device_id: Uuid) -> Result<Vec<Lease>> {
        Ok(leases!(self, "AND s.device_id = $1", args![device_id]))
    }

    pub async fn lease(&mut self, session_id: Uuid) -> Result<Option<Lease>> {
        Ok(leases!(self, "AND s.id = $1", args![session_id]).pop())
    }

    /// Adds an extra port to the session: its device serves the port from now on.
    pub async fn approve_port(&mut self, session_id: Uuid, port_id: Uuid, local_port: u16) -> Result<()> {
        let sql = sql!(
            "INSERT INTO session_ports (session_id, port_id, local_port) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING"
        );
        self.execute(sql, args![session_id, port_id, local_port]).await?;
        Ok(())
    }

    /// Clears the desired device of the tunnels of these sessions, so that this device does not resume them.
    pub async fn clear_desired_devices(&mut self, session_ids: &[Uuid], device_id: Uuid) -> Result<()> {
        let sql = by_ids!(
            "UPDATE tunnels SET desired_device_id = NULL WHERE desired_device_id = $2 \
                 AND id IN (SELECT tunnel_id FROM sessions WHERE device_id = $2 AND id",
            "$1",
            ") RETURNING id"
        );
        self.all(sql, args![session_ids, device_id]).await?;
        Ok(())
    }

    pub async fn set_target_error(&mut self, session_id: Uuid, device_id: Uuid, error: Option<&str>) -> Result<()> {
        let sql = sql!("UPDATE sessions SET target_error = $3 WHERE id = $1 AND device_id = $2 AND ended_at IS NULL");
        self.execute(sql, args![session_id, device_id, error]).await?;
        Ok(())
    }

    /// Changes the local target of a session.
    pub async fn set_local_target(&mut self, session_id: Uuid, spec: &TunnelSpec) -> Result<()> {
        let sql = sql!(
            "UPDATE sessions SET local_host = $2, local_port = $3, local_scheme = $4, local_tls_verify = $5 \
             WHERE id = $1"
        );
        let TunnelSpec { local_host, local_port, service, .. } = spec;
        let args = args![session_id, local_host, *local_port, StringArg(service.scheme), service.tls_verify];
        self.execute(sql, args).await?;
        Ok(())
    }

    /// Notes that the target of a session is another one.
    pub async fn raise_target_version(&mut self, session_id: Uuid) -> Result<()> {
        let sql = sql!("UPDATE sessions SET target_version = target_version + 1 WHERE id = $1");
        self.execute(sql, args![session_id]).await?;
        Ok(())
    }

    /// Renews those of the leases that this device still holds, and returns their ids. From here on, the host that has the
    /// connection renews them by itself.
    pub async fn renew_leases(&mut self, session_ids: &[Uuid], device_id: Uuid) -> Result<Vec<Uuid>> {
        let until = self.now + HELD_FOR;
        let sql = by_ids!(
            "UPDATE sessions SET lease_until = $3 WHERE device_id = $2 AND ended_at IS NULL AND id",
            "$1",
            "RETURNING id"
        );
        let rows = self.all(sql, args![session_ids, device_id, until]).await?;
        Ok(rows.iter().map(|row| row.id("id")).collect::<DbResult<_>>()?)
    }

    /// How many sessions a device has open.
    pub async fn open_sessions(&mut self, device_id: Uuid) -> Result<usize> {
        let sql = sql!("SELECT COUNT(*) AS open FROM sessions WHERE device_id = $1 AND ended_at IS NULL");
        Ok(self.one(sql, args![device_id]).await?.number("open")?)
    }

    /// Sets when leases end that their host does not renew any longer, or only records once a minute. Returns those that are
    /// open.
    pub async fn set_lease_ends(&mut self, session_ids: &[Uuid], until: DateTime<Utc>) -> Result<Vec<Uuid>> {
        let sql = by_ids!("UPDATE sessions SET lease_until = $2 WHERE ended_at IS NULL AND id", "$1", "RETURNING id");
        let rows = self.all(sql, args![session_ids, until]).await?;
        Ok(rows.iter().map(|row| row.id("id")).collect::<DbResult<_>>()?)
    }

    /// Renews all leases on a node, after a time in which the host was down and agents could not renew. Those whose device
    /// another host holds are that host's to renew.
    pub async fn extend_leases(&mut self, node_id: Uuid) -> Result<()> {
        let until = self.now + SESSION_LEASE;
        let sql = sql!(
            "UPDATE sessions SET lease_until = $2 WHERE node_id = $1 AND ended_at IS NULL AND (lease_until < $2 \
                 OR NOT EXISTS (SELECT 1 FROM device_presence p \
                     WHERE p.device_id = sessions.device_id AND p.host_id IS NOT NULL))"
        );
        self.execute(sql, args![node_id, until]).await?;
        Ok(())
    }

    /// The target that a device last agreed to for a tunnel.
    pub async fn last_target(&mut self, tunnel_id: Uuid, device_id: Uuid) -> Result<Option<Target>> {
        let sql = sql!(
            "SELECT id FROM sessions WHERE tunnel_id = $1 AND device_id = $2 \
             ORDER BY started_at DESC, id DESC LIMIT 1"
        );
        match self.optional(sql, args![tunnel_id, device_id]).await? {
            Some(row) => self.target_of(row.id("id")?).await,
            None => Ok(None),
        }
    }

    /// The target that the device of a session agreed to, whether the session is open or not.
    pub async fn target_of(&mut self, session_id: Uuid) -> Result<Option<Target>> {
        let sql = sql!("SELECT local_host, local_port, local_scheme, local_tls_verify FROM sessions WHERE id = $1");
        let Some(row) = self.optional(sql, args![session_id]).await? else { return Ok(None) };
        let sql = sql!("SELECT port_id, local_port FROM session_ports WHERE session_id = $1 ORDER BY port_id");
        let ports = self.all(sql, args![session_id]).await?;
        let extra = ports.iter().map(|row| Ok((row.id("port_id")?, row.number("local_port")?)));
        Ok(Some(Target {
            host: row.text("local_host")?,
            port: row.number("local_port")?,
            scheme: row.string_enum("local_scheme")?,
            tls_verify: row.optional_flag("local_tls_verify")?,
            extra: extra.collect::<DbResult<_>>()?,
        }))
    }

    /// Raises the epoch of a tunnel, which the device is to run from now on. A temporary one is started by its command
    /// alone.
    pub async fn next_epoch(&mut self, tunnel_id: Uuid, device_id: Uuid) -> Result<i64> {
        let sql = sql!(concat!(
            "UPDATE tunnels SET epoch = ",
            next_epoch!("epoch", "$3"),
            ", start_error = NULL, desired_device_id = \
                 (SELECT d.id FROM devices d WHERE d.id = $2 \
                  AND NOT EXISTS (SELECT 1 FROM temporary_tunnels y WHERE y.tunnel_id = $1)) \
             WHERE id = $1 RETURNING epoch"
        ));
        let now = self.now.timestamp_micros();
        Ok(self.one(sql, args![tunnel_id, device_id, now]).await?.int("epoch")?)
    }

    pub async fn insert_session(&mut self, new: &NewSession<'_>) -> Result<()> {
        let sql = sql!(
            "INSERT INTO sessions (id, tunnel_id, scope_id, device_id, node_id, epoch, boot_id, local_host, \
                 local_port, started_at, lease_until, local_scheme, local_tls_verify, bytes_in, bytes_out, \
                 token_version) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, 0, 0, \
                 CASE WHEN EXISTS (SELECT 1 FROM device_presence WHERE device_id = $4 AND renews_tokens = TRUE) \
                     THEN 2 ELSE 1 END)"
        );
        let NewSession { id, tunnel, device_id, boot_id, epoch, target, lease_until } = *new;
        let Target { host, port, scheme, tls_verify, extra } = target;
        let now = self.now;
        let args = args![
            id,
            tunnel.id,
            tunnel.scope_id,
            device_id,
            tunnel.node.id,
            epoch,
            boot_id,
            host,
            *port,
            now,
            lease_until,
            StringArg(*scheme),
            *tls_verify,
        ];
        self.execute(sql, args).await?;
        for (port_id, local_port) in extra {
            self.approve_port(id, *port_id, *local_port).await?;
        }
        Ok(())
    }

    /// Ends a session. Returns it, and whether its agent was ready; `None` if it was not open.
    pub async fn set_session_ended(&mut self, session_id: Uuid, reason: EndReason) -> Result<Option<(RunRef, bool)>> {
        let now = self.now;
        let sql = sql!(
            "UPDATE sessions SET ended_at = $2, end_reason = $3 WHERE id = $1 AND ended_at IS NULL \
             RETURNING id, scope_id, tunnel_id, device_id, node_id, (ready_at IS NOT NULL) AS ready"
        );
        let row = self.optional(sql, args![session_id, now, StringArg(reason)]).await?;
        self.notify(Hint::LeaseEnded(session_id));
        Ok(row.map(|row| Ok::<_, StoreError>((run(&row)?, row.flag("ready")?))).transpose()?)
    }

    /// Records that the agent of a session is ready. Returns the session; `None` if it was ready, or has ended.
    pub async fn set_session_ready(&mut self, session_id: Uuid) -> Result<Option<RunRef>> {
        let now = self.now;
        let sql = sql!(
            "UPDATE sessions SET ready_at = $2 WHERE id = $1 AND ended_at IS NULL AND ready_at IS NULL \
             RETURNING id, scope_id, tunnel_id, device_id, node_id"
        );
        let row = self.optional(sql, args![session_id, now]).await?;
        Ok(row.as_ref().map(run).transpose()?)
    }

    pub async fn open_sessions_of_scope(&mut self, scope_id: Uuid) -> Result<Vec<Uuid>> {
        let sql = sql!("SELECT id FROM sessions WHERE scope_id = $1 AND ended_at IS NULL");
        let rows = self.all(sql, args![scope_id]).await?;
        Ok(rows.iter().map(|row| row.id("id")).collect::<DbResult<_>>()?)
    }

    /// Clears the desired device of the tunnel that has this open session.
    pub async fn clear_desired_device_of(&mut self, session_id: Uuid) -> Result<()> {
        let sql = sql!(
            "UPDATE tunnels SET desired_device_id = NULL \
             WHERE id = (SELECT tunnel_id FROM sessions WHERE id = $1 AND ended_at IS NULL)"
        );
        self.execute(sql, args![session_id]).await?;
        Ok(())
    }

    /// Clears the mark that a tunnel is moving to another node: its session is ready there, or has ended.
    pub async fn clear_moving(&mut self, tunnel_id: Uuid) -> Result<()> {
        self.execute(sql!("UPDATE tunnels SET moving = FALSE WHERE id = $1 AND moving = TRUE"), args![tunnel_id])
            .await?;
        Ok(())
    }
}

fn add_ports(leases: &mut [Lease], rows: &[Row]) -> DbResult<()> {
    let mut ports: HashMap<Uuid, Vec<LeasePort>> = HashMap::new();
    for row in rows {
        ports.entry(row.id("session_id")?).or_default().push(row!(row => LeasePort {
            id: id, local_port: number, remote_port: number, protocol: string_enum,
        }));
    }
    for lease in leases {
        lease.ports = ports.remove(&lease.session_id).unwrap_or_default();
    }
    Ok(())
}

fn run(row: &Row) -> DbResult<RunRef> {
    Ok(row!(row => RunRef {
        scope_id: id, tunnel_id: id, device_id: id, node_id: id;
        session_id: row.id("id")?,
    }))
}

fn session(row: &Row) -> DbResult<Session> {
    Ok(row!(row => Session {
        id: id, tunnel_id: id, device_id: id, node_id: id, started_at: time, ended_at: optional_time,
        end_reason: optional_string_enum;
        traffic: Traffic { bytes_in: row.number("bytes_in")?, bytes_out: row.number("bytes_out")? },
    }))
}

fn lease(row: &Row) -> DbResult<Lease> {
    Ok(row!(row => Lease {
        tunnel_id: id, scope_id: id, device_id: id, node_id: id, epoch: int, boot_id: id, name: text,
        local_host: text, local_port: number, protocol: string_enum,
        idle_timeout: optional_number, buffer_size: number, target_version: number, ready: flag, lease_until: time;
        session_id: row.id("id")?,
        service: local_service(row)?,
        public_address: public_address(row)?,
        ports: Vec::new(),
    }))
}

fn public_address(row: &Row) -> DbResult<String> {
    let hostname = row.text("hostname")?;
    if row.string_enum::<Protocol>("protocol")? != Protocol::Http {
        return Ok(format!("{hostname}:{}", row.number::<u16>("remote_port")?));
    }
    let https = row.flag("https")? || row.flag("tls_passthrough")?;
    let port = row.optional_number(if https { "https_port" } else { "http_port" })?;
    Ok(web_url(https, &hostname, port.unwrap_or(if https { 443 } else { 80 })))
}
