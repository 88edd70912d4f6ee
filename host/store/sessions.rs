//! Sessions. An open session is also called a lease.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::db::{DbResult, Read, Row, StringArg, args, by_ids, readable};
use super::outbox::RunRef;
use super::page::{CursorPosition, Page, PageRows};
use super::runs::RunId;
use super::{Hint, Store, Write};
use culvert_domain::error::Result;
use culvert_domain::session::{EndReason, SESSION_LEASE, Session, Target};
use culvert_domain::tunnel::{Protocol, Tunnel};
use culvert_domain::usage::Traffic;

/// An open session, with everything that a node and an agent need to serve it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    pub session_id: Uuid,
    pub tunnel_id: Uuid,
    pub scope_id: Uuid,
    /// The plan of the scope.
    pub plan: String,
    pub device_id: Uuid,
    pub node_id: Uuid,
    pub epoch: i64,
    pub boot_id: Uuid,
    pub name: String,
    pub protocol: Protocol,
    pub remote_port: u16,
    /// The public host name.
    pub hostname: String,
    pub local_host: String,
    pub local_port: u16,
    pub idle_timeout: Option<u32>,
    pub buffer_size: u32,
    pub ready: bool,
    pub lease_until: DateTime<Utc>,
    /// Changes with every replacement of the tunnel's access rules.
    pub rules_version: i64,
    /// The extra ports that the session's device has agreed to serve.
    pub ports: Vec<LeasePort>,
}

/// An extra port of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeasePort {
    pub id: Uuid,
    pub local_port: u16,
    pub remote_port: u16,
}

macro_rules! select_lease {
    ($rest:literal) => {
        concat!(
            "SELECT s.id, s.tunnel_id, s.scope_id, s.device_id, s.node_id, s.epoch, s.boot_id, s.local_host, s.local_port, \
                    (s.ready_at IS NOT NULL) AS ready, s.lease_until, t.name, t.protocol, t.remote_port, t.idle_timeout, \
                    t.buffer_size, t.rules_version, c.plan, COALESCE(t.subdomain || '.' || d.domain, n.hostname) AS hostname \
             FROM sessions s JOIN tunnels t ON t.id = s.tunnel_id JOIN nodes n ON n.id = s.node_id \
             JOIN scopes c ON c.id = s.scope_id JOIN platform_domains d ON d.id = t.domain_id \
             WHERE s.ended_at IS NULL ",
            $rest
        )
    };
}

/// The extra ports of open sessions.
macro_rules! select_ports {
    ($rest:literal) => {
        concat!(
            "SELECT p.session_id, p.local_port, e.id, e.remote_port FROM session_ports p \
             JOIN sessions s ON s.id = p.session_id JOIN extra_ports e ON e.id = p.port_id \
             WHERE s.ended_at IS NULL ",
            $rest,
            " ORDER BY e.created_at, e.id"
        )
    };
}

/// Selects leases by a condition on their sessions, with their extra ports.
macro_rules! leases {
    ($db:expr, $which:literal, $args:expr) => {{
        let rows = $db.all(concat!(select_lease!($which), " ORDER BY s.started_at, s.id"), $args).await?;
        let mut leases = readable(&rows, "session", lease);
        if !leases.is_empty() {
            add_ports(&mut leases, &$db.all(select_ports!($which), $args).await?)?;
        }
        leases
    }};
}

impl Store {
    /// A page of a tunnel's sessions, newest first.
    pub async fn sessions(&self, scope_id: Uuid, tunnel_id: Uuid, page: Page) -> Result<PageRows<Session>> {
        let sql = "SELECT id, tunnel_id, device_id, node_id, started_at, ended_at, end_reason, bytes_in, bytes_out \
                   FROM sessions WHERE scope_id = $1 AND tunnel_id = $2 AND (started_at, id) < ($3, $4) \
                   ORDER BY started_at DESC, id DESC LIMIT $5";
        let args = args![scope_id, tunnel_id, page.after.micros(), page.after.id, page.limit_plus_one()];
        let rows = (&self.db).all(sql, args).await?;
        let sessions = rows.iter().map(session).collect::<DbResult<Vec<_>>>()?;
        Ok(page.truncate(sessions, |session| CursorPosition { at: session.started_at, id: session.id }))
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
        let row = (&self.db).optional("SELECT end_reason FROM sessions WHERE id = $1", args![session_id]).await?;
        Ok(row.map(|row| row.optional_string_enum("end_reason")).transpose()?.flatten())
    }

    pub async fn lease_of_tunnel(&self, tunnel_id: Uuid) -> Result<Option<Lease>> {
        Ok(leases!((&self.db), "AND s.tunnel_id = $1", args![tunnel_id]).pop())
    }

    /// The leases that a device holds.
    pub async fn leases_of_device(&self, device_id: Uuid) -> Result<Vec<Lease>> {
        Ok(leases!((&self.db), "AND s.device_id = $1", args![device_id]))
    }

    /// Ends sessions of one scope.
    pub async fn end_sessions(&self, scope_id: Uuid, session_ids: Vec<Uuid>, reason: EndReason) -> Result<()> {
        self.write(Some(scope_id), move |write| {
            Box::pin(async move {
                for session_id in session_ids {
                    write.end_session(session_id, reason).await?;
                }
                Ok(())
            })
        })
        .await
    }

    /// The session and scope ids of leases that were not renewed in time.
    pub async fn expired_leases(&self) -> Result<Vec<(Uuid, Uuid)>> {
        let sql = "SELECT id, scope_id FROM sessions WHERE ended_at IS NULL AND lease_until <= $1";
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

    /// Opens a session: gives the lease of a tunnel to a device's agent, with a new epoch. The caller ends
    /// the tunnel's former session before. From the commit on, the node serves the new session.
    pub async fn open_session(
        &mut self,
        tunnel: &Tunnel,
        device_id: Uuid,
        boot_id: Uuid,
        target: &Target,
    ) -> Result<Uuid> {
        let sql =
            "UPDATE tunnels SET epoch = epoch + 1, wanted_on = $2, start_error = NULL WHERE id = $1 RETURNING epoch";
        let epoch = self.one(sql, args![tunnel.id, device_id]).await?.int("epoch")?;
        let (id, now) = (self.clock.id(), self.now);
        let sql = "INSERT INTO sessions (id, tunnel_id, scope_id, device_id, node_id, epoch, boot_id, local_host, \
                       local_port, started_at, lease_until, bytes_in, bytes_out) \
                   VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, 0, 0)";
        let Target { host, port, extra } = target;
        let node_id = tunnel.node.id;
        let args = args![
            id,
            tunnel.id,
            tunnel.scope_id,
            device_id,
            node_id,
            epoch,
            boot_id,
            host,
            *port,
            now,
            now + SESSION_LEASE
        ];
        self.execute(sql, args).await?;
        for (port_id, local_port) in extra {
            self.approve_port(id, *port_id, *local_port).await?;
        }
        self.notify(Hint::Tunnel(tunnel.id));
        self.notify(Hint::Device(device_id));
        Ok(id)
    }

    /// Adds an extra port to the session: its device serves the port from now on.
    pub async fn approve_port(&mut self, session_id: Uuid, port_id: Uuid, local_port: u16) -> Result<()> {
        let sql =
            "INSERT INTO session_ports (session_id, port_id, local_port) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING";
        self.execute(sql, args![session_id, port_id, local_port]).await?;
        Ok(())
    }

    /// Ends a session. Returns whether it was open.
    pub async fn end_session(&mut self, session_id: Uuid, reason: EndReason) -> Result<bool> {
        let now = self.now;
        let sql = "UPDATE sessions SET ended_at = $2, end_reason = $3 WHERE id = $1 AND ended_at IS NULL \
                   RETURNING id, scope_id, tunnel_id, device_id, node_id, (ready_at IS NOT NULL) AS ready";
        let Some(row) = self.optional(sql, args![session_id, now, StringArg(reason)]).await? else { return Ok(false) };
        let run = run(&row)?;
        self.ended.push(RunId { scope_id: run.scope_id, tunnel_id: run.tunnel_id, session_id });
        self.notify(Hint::Tunnel(run.tunnel_id));
        self.notify(Hint::Device(run.device_id));
        self.notify(Hint::Usage(run.scope_id));
        self.has_moved(run.tunnel_id).await?;
        if row.flag("ready")? {
            self.tell_of_run(run, Some(reason)).await?;
        }
        Ok(true)
    }

    /// Ends a session that its owner wanted to end, and clears the desired device so that none resumes it.
    pub async fn stop_session(&mut self, session_id: Uuid, reason: EndReason) -> Result<bool> {
        let sql = "UPDATE tunnels SET wanted_on = NULL \
                   WHERE id = (SELECT tunnel_id FROM sessions WHERE id = $1 AND ended_at IS NULL)";
        self.execute(sql, args![session_id]).await?;
        self.end_session(session_id, reason).await
    }

    /// Clears the desired device of the tunnels of these sessions, so that this device does not resume them.
    pub async fn clear_desired_devices(&mut self, session_ids: &[Uuid], device_id: Uuid) -> Result<()> {
        let sql = by_ids!(
            "UPDATE tunnels SET wanted_on = NULL WHERE wanted_on = $2 \
                 AND id IN (SELECT tunnel_id FROM sessions WHERE device_id = $2 AND id",
            "$1",
            ") RETURNING id"
        );
        self.all_by_ids(sql, args![session_ids, device_id]).await?;
        Ok(())
    }

    /// Ends all open sessions of a scope. Desired devices stay, so the tunnels are resumed when possible.
    pub async fn end_sessions_of_scope(&mut self, scope_id: Uuid, reason: EndReason) -> Result<()> {
        let rows =
            self.all("SELECT id FROM sessions WHERE scope_id = $1 AND ended_at IS NULL", args![scope_id]).await?;
        for row in rows {
            self.end_session(row.id("id")?, reason).await?;
        }
        Ok(())
    }

    /// Records that the agent of this session is ready to serve visitors.
    pub async fn set_ready(&mut self, session_id: Uuid) -> Result<()> {
        let now = self.now;
        let sql = "UPDATE sessions SET ready_at = $2 WHERE id = $1 AND ended_at IS NULL AND ready_at IS NULL \
                   RETURNING id, scope_id, tunnel_id, device_id, node_id";
        match self.optional(sql, args![session_id, now]).await? {
            Some(row) => {
                let run = run(&row)?;
                // From here on the node accepts visitors.
                self.notify(Hint::Tunnel(run.tunnel_id));
                self.has_moved(run.tunnel_id).await?;
                self.tell_of_run(run, None).await
            }
            None => Ok(()),
        }
    }

    /// Clears the mark that a tunnel is moving to another node: its session is ready there, or has ended.
    async fn has_moved(&mut self, tunnel_id: Uuid) -> Result<()> {
        self.execute("UPDATE tunnels SET moving = FALSE WHERE id = $1 AND moving = TRUE", args![tunnel_id]).await?;
        Ok(())
    }

    pub async fn set_target_error(&mut self, session_id: Uuid, device_id: Uuid, error: Option<&str>) -> Result<()> {
        let sql = "UPDATE sessions SET target_error = $3 WHERE id = $1 AND device_id = $2 AND ended_at IS NULL";
        self.execute(sql, args![session_id, device_id, error]).await?;
        Ok(())
    }

    /// Changes the local target of a session.
    pub async fn set_local_target(&mut self, session_id: Uuid, host: &str, port: u16) -> Result<()> {
        let sql = "UPDATE sessions SET local_host = $2, local_port = $3 WHERE id = $1";
        self.execute(sql, args![session_id, host, port]).await?;
        Ok(())
    }

    /// Renews those of the leases that this device still holds, and returns their ids.
    pub async fn renew_leases(&mut self, session_ids: &[Uuid], device_id: Uuid) -> Result<Vec<Uuid>> {
        let until = self.now + SESSION_LEASE;
        let sql = by_ids!(
            "UPDATE sessions SET lease_until = $3 WHERE device_id = $2 AND ended_at IS NULL AND id",
            "$1",
            "RETURNING id"
        );
        let rows = self.all_by_ids(sql, args![session_ids, device_id, until]).await?;
        Ok(rows.iter().map(|row| row.id("id")).collect::<DbResult<_>>()?)
    }

    /// How many sessions a device has open.
    pub async fn open_sessions(&mut self, device_id: Uuid) -> Result<usize> {
        let sql = "SELECT COUNT(*) AS open FROM sessions WHERE device_id = $1 AND ended_at IS NULL";
        Ok(self.one(sql, args![device_id]).await?.number("open")?)
    }

    /// Renews all leases on a node, after a time in which the host was down and agents could not renew. An
    /// agent that is still connected renews its leases before they expire again.
    pub async fn extend_leases(&mut self, node_id: Uuid) -> Result<()> {
        let until = self.now + SESSION_LEASE;
        let sql = "UPDATE sessions SET lease_until = $2 WHERE node_id = $1 AND ended_at IS NULL AND lease_until < $2";
        self.execute(sql, args![node_id, until]).await?;
        Ok(())
    }

    /// The target that the tunnel's current settings define.
    pub async fn current_target(&mut self, tunnel: &Tunnel) -> Result<Target> {
        let ports = self.extra_ports(tunnel.id).await?;
        let extra = ports.iter().filter(|port| port.carries_tcp()).map(|port| (port.id, port.local_port)).collect();
        Ok(Target { host: tunnel.local_host.clone(), port: tunnel.local_port, extra })
    }

    /// The target that a device last agreed to for a tunnel.
    pub async fn last_target(&mut self, tunnel_id: Uuid, device_id: Uuid) -> Result<Option<Target>> {
        let sql = "SELECT id FROM sessions WHERE tunnel_id = $1 AND device_id = $2 \
                   ORDER BY started_at DESC, id DESC LIMIT 1";
        match self.optional(sql, args![tunnel_id, device_id]).await? {
            Some(row) => self.target_of(row.id("id")?).await,
            None => Ok(None),
        }
    }

    /// The target that the device of a session agreed to, whether the session is open or not.
    pub async fn target_of(&mut self, session_id: Uuid) -> Result<Option<Target>> {
        let sql = "SELECT local_host, local_port FROM sessions WHERE id = $1";
        let Some(row) = self.optional(sql, args![session_id]).await? else { return Ok(None) };
        let sql = "SELECT port_id, local_port FROM session_ports WHERE session_id = $1 ORDER BY port_id";
        let ports = self.all(sql, args![session_id]).await?;
        let extra = ports.iter().map(|row| Ok((row.id("port_id")?, row.number("local_port")?)));
        Ok(Some(Target {
            host: row.text("local_host")?,
            port: row.number("local_port")?,
            extra: extra.collect::<DbResult<_>>()?,
        }))
    }
}

fn add_ports(leases: &mut [Lease], rows: &[Row]) -> DbResult<()> {
    for row in rows {
        let session_id = row.id("session_id")?;
        let port = LeasePort {
            id: row.id("id")?,
            local_port: row.number("local_port")?,
            remote_port: row.number("remote_port")?,
        };
        leases
            .iter_mut()
            .filter(|lease| lease.session_id == session_id)
            .for_each(|lease| lease.ports.push(port.clone()));
    }
    Ok(())
}

fn run(row: &Row) -> DbResult<RunRef> {
    Ok(RunRef {
        session_id: row.id("id")?,
        scope_id: row.id("scope_id")?,
        tunnel_id: row.id("tunnel_id")?,
        device_id: row.id("device_id")?,
        node_id: row.id("node_id")?,
    })
}

fn session(row: &Row) -> DbResult<Session> {
    Ok(Session {
        id: row.id("id")?,
        tunnel_id: row.id("tunnel_id")?,
        device_id: row.id("device_id")?,
        node_id: row.id("node_id")?,
        started_at: row.time("started_at")?,
        ended_at: row.optional_time("ended_at")?,
        traffic: Traffic { bytes_in: row.number("bytes_in")?, bytes_out: row.number("bytes_out")? },
        end_reason: row.optional_string_enum("end_reason")?,
    })
}

fn lease(row: &Row) -> DbResult<Lease> {
    Ok(Lease {
        session_id: row.id("id")?,
        tunnel_id: row.id("tunnel_id")?,
        scope_id: row.id("scope_id")?,
        plan: row.text("plan")?,
        device_id: row.id("device_id")?,
        node_id: row.id("node_id")?,
        epoch: row.int("epoch")?,
        boot_id: row.id("boot_id")?,
        name: row.text("name")?,
        protocol: row.string_enum("protocol")?,
        remote_port: row.number("remote_port")?,
        hostname: row.text("hostname")?,
        local_host: row.text("local_host")?,
        local_port: row.number("local_port")?,
        idle_timeout: row.optional_number("idle_timeout")?,
        buffer_size: row.number("buffer_size")?,
        ready: row.flag("ready")?,
        lease_until: row.time("lease_until")?,
        rules_version: row.int("rules_version")?,
        ports: Vec::new(),
    })
}
