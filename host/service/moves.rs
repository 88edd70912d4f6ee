//! Moving a tunnel: its placement on another node, as somebody asks for it, or because the host of its node is lost.

use std::time::Duration;

use uuid::Uuid;

use crate::Service;
use crate::commit::Change;
use crate::gate::Permit;
use crate::sessions;
use culvert_domain::error::{Chain, Code, Error, Fault, Result};
use culvert_domain::node::{self, Node, NodeStatus, Preference};
use culvert_domain::protocol::Protocol;
use culvert_domain::session::EndReason;
use culvert_domain::tunnel::{Tunnel, TunnelSpec};
use culvert_store::Write;
use culvert_store::catalog::PlacementCandidate;
use culvert_store::ports::AfterMove;

/// How long after it was tried what could not be moved from a lost node is tried again.
const REPLACE_EVERY: Duration = Duration::from_secs(30);

pub struct MoveTunnel {
    pub tunnel_id: Uuid,
    pub node_id: Uuid,
}

impl Change for MoveTunnel {
    /// The id of the node on which the tunnel is placed now.
    type Done = Uuid;

    async fn apply(&self, write: &mut Write, permit: &Permit) -> Result<Uuid> {
        let scope_id = permit.caller().scope.id;
        let tunnel = write.tunnel(scope_id, self.tunnel_id).await?.ok_or_else(Error::not_found)?;
        let node = write.node(self.node_id).await?;
        let node =
            node.ok_or_else(|| Error::invalid(vec![Fault::new("node_id", "is no node; `GET /nodes` lists them")]))?;
        tunnel.check_idle()?;
        tunnel.check_settled()?;
        check_takes(&node, &tunnel)?;
        if !write.has_live_host(node.id).await? {
            return Err(Error::of(Code::NodeUnavailable));
        }
        place(write, &tunnel, &node).await?;
        Ok(node.id)
    }
}

/// The node for a tunnel.
///
/// # Errors
///
/// [`Code::NodeUnavailable`] if none can take it; if the database fails.
pub(crate) async fn choose_node(write: &mut Write, spec: &TunnelSpec) -> Result<PlacementCandidate> {
    let wanted = Preference {
        region: spec.region.clone(),
        country: spec.country.clone(),
        premium: spec.pro_network,
        https: (spec.protocol == Protocol::Http).then_some(spec.needs_https()),
    };
    let candidates = write.placement_candidates().await?;
    let chosen = node::place(candidates.iter().map(|candidate| (&candidate.node, candidate.tunnels)), &wanted);
    let chosen = chosen.map(|node| node.id);
    let chosen = candidates.into_iter().find(|candidate| Some(candidate.node.id) == chosen);
    chosen.ok_or_else(|| Error::of(Code::NodeUnavailable))
}

impl Service {
    /// Moves the tunnels of nodes whose host was lost to other nodes, unless it was tried just now.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub(crate) async fn replace_lost_nodes(&self) -> Result<()> {
        let Ok(_one) = self.locks.replacing.try_lock() else { return Ok(()) };
        for node_id in self.store.nodes_of_lost_hosts().await? {
            let (mut after, mut moved) = (Uuid::nil(), 0);
            // Where nothing of a page can be moved, the rest waits as well.
            loop {
                let tunnels = self.store.tunnels_on(node_id, after).await?;
                let Some((last, _)) = tunnels.last() else { break };
                after = *last;
                let of_page = self.move_all(node_id, tunnels).await;
                moved += of_page;
                if of_page == 0 {
                    tracing::warn!(node = %node_id, "the host of a node is lost, and other nodes do not take some of its tunnels");
                    break;
                }
            }
            if moved > 0 {
                tracing::info!(node = %node_id, moved, "the host of a node is lost; its tunnels went to other nodes");
            }
        }
        self.clock().sleep(REPLACE_EVERY).await;
        Ok(())
    }

    /// How many were moved.
    async fn move_all(&self, node_id: Uuid, tunnels: Vec<(Uuid, Uuid)>) -> usize {
        let mut moved = 0;
        for (tunnel_id, scope_id) in tunnels {
            if !self.fleet.replaces_nodes() {
                break;
            }
            match self.move_from_lost_node(node_id, tunnel_id, scope_id).await {
                Ok(is_moved) => moved += usize::from(is_moved),
                Err(error) => tracing::debug!(%tunnel_id, error = %Chain(&error), "stays on a lost node"),
            }
        }
        moved
    }

    /// Whether it was moved.
    async fn move_from_lost_node(&self, node_id: Uuid, tunnel_id: Uuid, scope_id: Uuid) -> Result<bool> {
        let _turn = self.locks.scopes.lock(scope_id).await;
        let moved = self.store.write(Some(scope_id), move |write| {
            Box::pin(async move {
                let tunnel = write.tunnel(scope_id, tunnel_id).await?.ok_or_else(Error::not_found)?;
                if tunnel.node.id != node_id || !write.is_host_lost(node_id).await? {
                    return Ok(false);
                }
                tunnel.check_idle()?;
                tunnel.check_settled()?;
                let chosen = choose_node(write, &tunnel.spec).await?;
                place(write, &tunnel, &chosen.node).await?;
                Ok(true)
            })
        });
        moved.await
    }
}

/// Whether a tunnel can move to a node.
///
/// # Errors
///
/// [`Code::AlreadyOnNode`] or [`Code::NodeUnavailable`].
pub fn check_takes(node: &Node, tunnel: &Tunnel) -> Result<()> {
    if node.id == tunnel.node.id {
        return Err(Error::of(Code::AlreadyOnNode));
    }
    let carries = tunnel.spec.protocol != Protocol::Http || node.takes_http(tunnel.spec.needs_https());
    if node.shown_status() != NodeStatus::Online || (node.pro_only && !tunnel.spec.pro_network) || !carries {
        return Err(Error::of(Code::NodeUnavailable));
    }
    Ok(())
}

/// Places a tunnel on a node. A running tunnel continues on the same device, with the same target.
async fn place(write: &mut Write, tunnel: &Tunnel, node: &Node) -> Result<()> {
    let holder = match &tunnel.run {
        Some(run) => write.lease(run.session_id).await?,
        None => None,
    };
    // A run of another device than the one that the node has served, and may serve still, has to be started again.
    let served = write.last_served(tunnel).await?;
    let holder = holder.filter(|lease| served.is_none_or(|device_id| device_id == lease.device_id));
    if let Some(run) = &tunnel.run {
        sessions::end(write, run.session_id, EndReason::TunnelMoved).await?;
    }
    let after = if holder.is_some() { AfterMove::Resumed } else { AfterMove::Stopped };
    write.place_tunnel(tunnel, node, after, served).await?;
    let Some(lease) = holder else { return Ok(()) };
    let moved = write.tunnel(tunnel.scope_id, tunnel.id).await?.ok_or_else(Error::not_found)?;
    let target =
        write.target_of(lease.session_id).await?.ok_or_else(|| Error::internal("a session without a target"))?;
    sessions::open(write, &moved, lease.device_id, lease.boot_id, &target).await?;
    Ok(())
}
