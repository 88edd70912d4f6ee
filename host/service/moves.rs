//! Moving a tunnel: its placement on another node.

use uuid::Uuid;

use crate::commit::Change;
use crate::gate::Permit;
use crate::sessions;
use culvert_domain::error::{Code, Error, Fault, Result};
use culvert_domain::node::{Node, NodeStatus};
use culvert_domain::protocol::Protocol;
use culvert_domain::session::EndReason;
use culvert_domain::tunnel::Tunnel;
use culvert_store::Write;
use culvert_store::ports::AfterMove;

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
