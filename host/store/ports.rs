//! Public ports. On each node and transport, a port belongs to one tunnel at a time.

use std::collections::{BTreeSet, HashSet};

use chrono::TimeDelta;
use uuid::Uuid;

use super::Write;
use super::arg::{StringArg, args};
use super::fleet::has_authority;
use super::read::Read;
use super::sql::sql;
use super::tunnels::NewTunnel;
use culvert_domain::error::{Code, Error, Result};
use culvert_domain::node::Node;
use culvert_domain::port::{ExtraPort, NewExtraPort};
use culvert_domain::protocol::Protocol;
use culvert_domain::protocol::Transport;
use culvert_domain::tunnel::Tunnel;

/// How many random ports are tried before the free ones are looked up.
const GUESSES: usize = 8;
/// How long a released port is reserved for its former scope while other ports are free. Without this,
/// clients that still connect to it would reach a tunnel of another scope.
const REST: TimeDelta = TimeDelta::days(1);

/// Whether a port may be taken that is still reserved for another scope: `Only` allows ports without
/// such a reservation, `OrNot` allows all free ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rested {
    Only,
    OrNot,
}

/// Builds a statement that reserves the ports of the tunnel `$1` for its scope until the time `$2`.
macro_rules! rest {
    () => {
        "INSERT INTO resting_ports (node_id, port, transport, scope_id, until) \
         SELECT p.node_id, p.port, p.transport, t.scope_id, $2 FROM node_ports p JOIN tunnels t ON t.id = p.tunnel_id \
         WHERE p.tunnel_id = $1 "
    };
}

macro_rules! rest_again {
    () => {
        " ON CONFLICT (node_id, port, transport) DO UPDATE SET scope_id = excluded.scope_id, until = excluded.until"
    };
}

/// What becomes of a tunnel that was placed on another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterMove {
    /// Its device serves it again there.
    Resumed,
    Stopped,
}

impl Write {
    /// The public port that a new tunnel tries first. For an http tunnel it is the node's.
    pub fn port_to_try(&self, node: &Node, protocol: Protocol, https: bool) -> u16 {
        if protocol.transports().is_empty() { node.web_port(https) } else { self.random_port(node) }
    }

    /// Allocates the public port of a new tunnel: the one that it was inserted with, or another one where that is taken.
    pub async fn allocate_first_port(&mut self, node: &Node, new: &NewTunnel) -> Result<u16> {
        let (tried, transports) = (new.remote_port, new.spec.protocol.transports());
        if transports.is_empty() || self.take_port(node.id, tried, transports, new.id, Rested::Only).await? {
            return Ok(tried);
        }
        let port = self.allocate_port(node, new.spec.protocol, new.spec.needs_https(), new.id).await?;
        let sql = sql!("UPDATE tunnels SET remote_port = $2 WHERE id = $1");
        self.execute(sql, args![new.id, port]).await?;
        Ok(port)
    }

    /// Allocates a public port of a node for a tunnel. An http tunnel shares the node's port, which is read with the node.
    pub async fn allocate_port(
        &mut self,
        node: &Node,
        protocol: Protocol,
        https: bool,
        tunnel_id: Uuid,
    ) -> Result<u16> {
        let transports = protocol.transports();
        if transports.is_empty() {
            return Ok(node.web_port(https));
        }
        for _ in 0..GUESSES {
            let guess = self.random_port(node);
            if self.take_port(node.id, guess, transports, tunnel_id, Rested::Only).await? {
                return Ok(guess);
            }
        }
        let free =
            self.free_port(node, transports, tunnel_id).await?.ok_or_else(|| Error::of(Code::NoPortAvailable))?;
        if self.take_port(node.id, free, transports, tunnel_id, Rested::OrNot).await? {
            Ok(free)
        } else {
            Err(Error::of(Code::NoPortAvailable))
        }
    }

    /// Finds a port that is free on all of these transports, by a search that starts at a random port. A port
    /// that is reserved for another scope is chosen only if there is no other.
    async fn free_port(&mut self, node: &Node, transports: &[Transport], tunnel_id: Uuid) -> Result<Option<u16>> {
        let (mut taken, mut resting, now) = (HashSet::new(), HashSet::new(), self.now);
        for transport in transports {
            let sql = sql!(
                "SELECT port, FALSE AS resting FROM node_ports WHERE node_id = $1 AND transport = $2 \
                 UNION ALL SELECT port, TRUE AS resting FROM resting_ports \
                 WHERE node_id = $1 AND transport = $2 AND until > $3 \
                     AND scope_id <> (SELECT scope_id FROM tunnels WHERE id = $4)"
            );
            for row in self.all(sql, args![node.id, StringArg(*transport), now, tunnel_id]).await? {
                let numbers = if row.flag("resting")? { &mut resting } else { &mut taken };
                numbers.insert(row.number::<u16>("port")?);
            }
        }
        let start = self.random_port(node);
        let around = || (start..=node.ports.last).chain(node.ports.first..start).filter(|port| !taken.contains(port));
        Ok(around().find(|port| !resting.contains(port)).or_else(|| around().next()))
    }

    fn random_port(&self, node: &Node) -> u16 {
        let offset = u32::from_le_bytes(self.clock.random()) % node.ports.count();
        node.ports.first + u16::try_from(offset).unwrap_or_default()
    }

    /// Takes one port number on all of these transports, or on none. Returns whether it was taken.
    async fn take_port(
        &mut self,
        node_id: Uuid,
        port: u16,
        transports: &[Transport],
        tunnel_id: Uuid,
        rested: Rested,
    ) -> Result<bool> {
        let (now, only_rested) = (self.now, rested == Rested::Only);
        let wants = |transport| transports.contains(&transport);
        let sql = sql!(
            "INSERT INTO node_ports (node_id, port, transport, tunnel_id) SELECT $1, $2, w.transport, $3 \
             FROM (SELECT 'tcp' AS transport, CAST($4 AS BOOLEAN) AS wanted UNION ALL SELECT 'udp', CAST($5 AS BOOLEAN)) w \
             WHERE w.wanted = TRUE AND ($6 = FALSE OR NOT EXISTS (SELECT 1 FROM resting_ports r \
                 WHERE r.node_id = $1 AND r.port = $2 AND r.transport = w.transport AND r.until > $7 \
                     AND r.scope_id <> (SELECT scope_id FROM tunnels WHERE id = $3))) \
             ON CONFLICT DO NOTHING RETURNING transport"
        );
        let (tcp, udp) = (wants(Transport::Tcp), wants(Transport::Udp));
        let taken = self.all(sql, args![node_id, port, tunnel_id, tcp, udp, only_rested, now]).await?;
        if taken.len() == transports.len() {
            return Ok(true);
        }
        // Releases only what this call has taken, not what the tunnel held before.
        for row in &taken {
            let sql = sql!("DELETE FROM node_ports WHERE node_id = $1 AND port = $2 AND transport = $3");
            self.execute(sql, args![node_id, port, &row.text("transport")?]).await?;
        }
        Ok(false)
    }

    pub async fn create_extra_port(
        &mut self,
        node: &Node,
        https: bool,
        tunnel_id: Uuid,
        new: &NewExtraPort,
    ) -> Result<ExtraPort> {
        let NewExtraPort { local_port, protocol, label } = new.clone();
        if protocol == Protocol::Http && self.extra_name_is_taken(tunnel_id, local_port).await? {
            return Err(Error::new(Code::SubdomainUnavailable, "Another tunnel has the name of this port."));
        }
        let remote_port = self.allocate_port(node, protocol, https, tunnel_id).await?;
        let (id, now) = (self.clock.id(), self.now);
        let sql = sql!(
            "INSERT INTO extra_ports (id, tunnel_id, local_port, remote_port, protocol, label, created_at) \
             VALUES ($1, $2, $3, $4, $5, $6, $7)"
        );
        let args = args![id, tunnel_id, local_port, remote_port, StringArg(protocol), label.as_deref(), now];
        self.execute(sql, args).await?;
        self.touch_route(tunnel_id).await?;
        Ok(ExtraPort { id, local_port, remote_port, protocol, label })
    }

    /// Removes an extra port. Its number is reserved for a while and can then be allocated again.
    pub async fn delete_extra_port(&mut self, node: &Node, tunnel_id: Uuid, port: &ExtraPort) -> Result<()> {
        self.execute(sql!("DELETE FROM extra_ports WHERE id = $1"), args![port.id]).await?;
        self.touch_route(tunnel_id).await?;
        for transport in port.protocol.transports() {
            let until = self.now + REST;
            let sql = sql!(concat!(rest!(), "AND p.node_id = $3 AND p.port = $4 AND p.transport = $5", rest_again!()));
            let args = args![tunnel_id, until, node.id, port.remote_port, StringArg(*transport)];
            self.execute(sql, args).await?;
            let sql =
                sql!("DELETE FROM node_ports WHERE node_id = $1 AND port = $2 AND transport = $3 AND tunnel_id = $4");
            self.execute(sql, args![node.id, port.remote_port, StringArg(*transport), tunnel_id]).await?;
        }
        Ok(())
    }

    /// Reserves the public ports of a tunnel that is about to release them.
    pub(super) async fn rest_ports(&mut self, tunnel_id: Uuid) -> Result<()> {
        let until = self.now + REST;
        self.execute(sql!(concat!(rest!(), rest_again!())), args![tunnel_id, until]).await?;
        Ok(())
    }

    /// Places a tunnel on another node. It keeps those public port numbers that are free there, and its subdomain, below that
    /// node's domain. The node before has `served` it for this device last, and may do so still.
    ///
    /// # Errors
    ///
    /// `Code::SubdomainUnavailable` if another tunnel has the name there.
    pub async fn place_tunnel(
        &mut self,
        tunnel: &Tunnel,
        node: &Node,
        after: AfterMove,
        served: Option<Uuid>,
    ) -> Result<()> {
        self.touch_route(tunnel.id).await?;
        self.rename_for(tunnel, node).await?;
        self.rest_ports(tunnel.id).await?;
        self.execute(sql!("DELETE FROM node_ports WHERE tunnel_id = $1"), args![tunnel.id]).await?;
        let port = self
            .keep_port(node, tunnel.spec.protocol, tunnel.remote_port, tunnel.spec.needs_https(), tunnel.id)
            .await?;
        for extra in &tunnel.extra_ports {
            let port =
                self.keep_port(node, extra.protocol, extra.remote_port, tunnel.spec.needs_https(), tunnel.id).await?;
            self.execute(sql!("UPDATE extra_ports SET remote_port = $2 WHERE id = $1"), args![extra.id, port]).await?;
        }
        let now = self.now;
        let sql = sql!(concat!(
            "UPDATE tunnels SET node_id = $2, remote_port = $3, moving = $4, updated_at = $5, moving_device = $6, \
                 moving_from = (SELECT n.id FROM nodes n JOIN hosts h ON h.id = n.host_id \
                     WHERE n.id = $7 AND ",
            has_authority!("$5"),
            ") WHERE id = $1 RETURNING moving_from"
        ));
        let (resumes, former_id) = (after == AfterMove::Resumed, served.map(|_| tunnel.node.id));
        let row = self.one(sql, args![tunnel.id, node.id, port, resumes, now, served, former_id]).await?;
        if let Some(former_id) = row.optional_id("moving_from")? {
            // Its host is to confirm that it serves the tunnel no longer.
            self.touch(former_id, tunnel.id);
            self.former_nodes.insert(former_id);
        }
        self.touch_route(tunnel.id).await
    }

    /// The device that a tunnel's node has served it for last.
    pub async fn last_served(&mut self, tunnel: &Tunnel) -> Result<Option<Uuid>> {
        let sql = sql!(
            "SELECT device_id FROM sessions WHERE tunnel_id = $1 AND node_id = $2 AND ready_at IS NOT NULL \
             ORDER BY started_at DESC, id DESC LIMIT 1"
        );
        let row = self.optional(sql, args![tunnel.id, tunnel.node.id]).await?;
        Ok(row.map(|row| row.id("device_id")).transpose()?)
    }

    /// The nodes that this transaction has moved tunnels from, and that have to confirm it.
    pub fn former_nodes(&self) -> BTreeSet<Uuid> {
        self.former_nodes.clone()
    }

    /// Puts an http tunnel's name below the domain of a node.
    async fn rename_for(&mut self, tunnel: &Tunnel, node: &Node) -> Result<()> {
        let Some(domain_id) = node.domain_id.filter(|_| tunnel.spec.protocol == Protocol::Http) else { return Ok(()) };
        self.rest_former_name(tunnel.id, domain_id).await?;
        let subdomain = tunnel.spec.subdomain.as_deref().unwrap_or_default();
        if self.subdomain_rests(domain_id, subdomain, tunnel.scope_id).await? {
            return Err(Error::of(Code::SubdomainUnavailable));
        }
        let sql = sql!(
            "UPDATE tunnels SET domain_id = $2 WHERE id = $1 AND (subdomain IS NULL OR NOT EXISTS ( \
                 SELECT 1 FROM tunnels o WHERE o.domain_id = $2 AND o.subdomain = tunnels.subdomain AND o.id <> $1))"
        );
        match self.execute(sql, args![tunnel.id, domain_id]).await? {
            0 => Err(Error::of(Code::SubdomainUnavailable)),
            _ => Ok(()),
        }
    }

    async fn keep_port(
        &mut self,
        node: &Node,
        protocol: Protocol,
        port: u16,
        https: bool,
        tunnel_id: Uuid,
    ) -> Result<u16> {
        let transports = protocol.transports();
        let kept = !transports.is_empty()
            && node.ports.contains(port)
            && self.take_port(node.id, port, transports, tunnel_id, Rested::Only).await?;
        if kept { Ok(port) } else { self.allocate_port(node, protocol, https, tunnel_id).await }
    }
}
