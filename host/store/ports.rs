//! Public ports: each is given to one tunnel at a time.

use std::collections::HashSet;

use uuid::Uuid;

use super::Write;
use super::db::{DbResult, Read, Row, WordArg, args};
use crate::domain::node::Node;
use crate::domain::port::{ExtraPort, NewExtraPort, Transport};
use crate::domain::tunnel::{Protocol, Tunnel, http_port};
use crate::error::{Code, Error, Result};

/// Ports that are tried by chance before the free ones are looked up.
const GUESSES: usize = 8;

impl Write {
    /// A public port of a node for a tunnel. An http tunnel gets the shared one.
    pub async fn allocate_port(
        &mut self,
        node: &Node,
        protocol: Protocol,
        https: bool,
        tunnel_id: Uuid,
    ) -> Result<u16> {
        let transports = protocol.transports();
        if transports.is_empty() {
            return Ok(http_port(https));
        }
        for _ in 0..GUESSES {
            let guess = self.random_port(node);
            if self.take_port(node.id, guess, transports, tunnel_id).await? {
                return Ok(guess);
            }
        }
        let free = self.free_port(node, transports).await?.ok_or_else(|| Error::of(Code::NoPortAvailable))?;
        if self.take_port(node.id, free, transports, tunnel_id).await? {
            Ok(free)
        } else {
            Err(Error::of(Code::NoPortAvailable))
        }
    }

    /// A port that is free on all of these transports, the next one from a random place.
    async fn free_port(&mut self, node: &Node, transports: &[Transport]) -> Result<Option<u16>> {
        let mut taken = HashSet::new();
        for transport in transports {
            let sql = "SELECT port FROM node_ports WHERE node_id = $1 AND transport = $2";
            for row in self.all(sql, args![node.id, WordArg(*transport)]).await? {
                taken.insert(row.number::<u16>("port")?);
            }
        }
        let start = self.random_port(node);
        let mut around = (start..=node.ports.last).chain(node.ports.first..start);
        Ok(around.find(|port| !taken.contains(port)))
    }

    fn random_port(&self, node: &Node) -> u16 {
        let offset = u32::from_le_bytes(self.clock.random()) % node.ports.count();
        node.ports.first + u16::try_from(offset).unwrap_or_default()
    }

    /// Takes one number on all of these transports, or on none.
    async fn take_port(&mut self, node_id: Uuid, port: u16, transports: &[Transport], tunnel_id: Uuid) -> Result<bool> {
        for (index, transport) in transports.iter().enumerate() {
            let sql = "INSERT INTO node_ports (node_id, port, transport, tunnel_id) VALUES ($1, $2, $3, $4) \
                       ON CONFLICT DO NOTHING";
            if self.execute(sql, args![node_id, port, WordArg(*transport), tunnel_id]).await? == 0 {
                // What was taken just now, and not what the tunnel has had before.
                for taken in &transports[..index] {
                    let sql = "DELETE FROM node_ports WHERE node_id = $1 AND port = $2 AND transport = $3";
                    self.execute(sql, args![node_id, port, WordArg(*taken)]).await?;
                }
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub async fn create_extra_port(
        &mut self,
        node: &Node,
        https: bool,
        tunnel_id: Uuid,
        new: &NewExtraPort,
    ) -> Result<ExtraPort> {
        let NewExtraPort { local_port, protocol, label } = new.clone();
        let remote_port = self.allocate_port(node, protocol, https, tunnel_id).await?;
        let (id, now) = (self.clock.id(), self.now);
        let sql = "INSERT INTO extra_ports (id, tunnel_id, local_port, remote_port, protocol, label, created_at) \
                   VALUES ($1, $2, $3, $4, $5, $6, $7)";
        let args = args![id, tunnel_id, local_port, remote_port, WordArg(protocol), label.as_deref(), now];
        self.execute(sql, args).await?;
        Ok(ExtraPort { id, local_port, remote_port, protocol, label })
    }

    /// Removes an extra port; its number can be given away again.
    pub async fn delete_extra_port(&mut self, node: &Node, tunnel_id: Uuid, port: &ExtraPort) -> Result<()> {
        self.execute("DELETE FROM extra_ports WHERE id = $1", args![port.id]).await?;
        for transport in port.protocol.transports() {
            let sql = "DELETE FROM node_ports WHERE node_id = $1 AND port = $2 AND transport = $3 AND tunnel_id = $4";
            self.execute(sql, args![node.id, port.remote_port, WordArg(*transport), tunnel_id]).await?;
        }
        Ok(())
    }

    /// Places a tunnel on another node. Its public ports stay what they are where they are free
    /// there.
    pub async fn place_tunnel(&mut self, tunnel: &Tunnel, node: &Node, moving: bool) -> Result<()> {
        self.execute("DELETE FROM node_ports WHERE tunnel_id = $1", args![tunnel.id]).await?;
        let port = self.keep_port(node, tunnel.protocol, tunnel.remote_port, tunnel.https, tunnel.id).await?;
        for extra in self.extra_ports(tunnel.id).await? {
            let port = self.keep_port(node, extra.protocol, extra.remote_port, tunnel.https, tunnel.id).await?;
            self.execute("UPDATE extra_ports SET remote_port = $2 WHERE id = $1", args![extra.id, port]).await?;
        }
        let now = self.now;
        let sql = "UPDATE tunnels SET node_id = $2, remote_port = $3, moving = $4, updated_at = $5 WHERE id = $1";
        self.execute(sql, args![tunnel.id, node.id, port, moving, now]).await?;
        Ok(())
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
            && self.take_port(node.id, port, transports, tunnel_id).await?;
        if kept { Ok(port) } else { self.allocate_port(node, protocol, https, tunnel_id).await }
    }

    /// All http ports of a tunnel are the node's shared one.
    pub async fn set_http_port_of_extra_ports(&mut self, tunnel_id: Uuid, port: u16) -> Result<()> {
        let sql = "UPDATE extra_ports SET remote_port = $2 WHERE tunnel_id = $1 AND protocol = 'http'";
        self.execute(sql, args![tunnel_id, port]).await?;
        Ok(())
    }
}

pub(super) async fn extra_ports(db: &mut impl Read, tunnel_id: Uuid) -> Result<Vec<ExtraPort>> {
    let sql = "SELECT id, local_port, remote_port, protocol, label FROM extra_ports WHERE tunnel_id = $1 \
               ORDER BY created_at, id";
    let rows = db.all(sql, args![tunnel_id]).await?;
    Ok(rows.iter().map(extra_port).collect::<DbResult<_>>()?)
}

fn extra_port(row: &Row) -> DbResult<ExtraPort> {
    Ok(ExtraPort {
        id: row.id("id")?,
        local_port: row.number("local_port")?,
        remote_port: row.number("remote_port")?,
        protocol: row.word("protocol")?,
        label: row.optional_text("label")?,
    })
}
