//! The nodes that run in this process. Which of them serves a tunnel is the tunnel's placement.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use culvert_wire::clock::Clock;
use culvert_wire::control::NodeAddress;
use futures_util::future::BoxFuture;
use uuid::Uuid;

use super::countries::Countries;
use super::{Identity, IdentityError, Node};
use crate::metrics::TrafficCounter;
use crate::store::runs::{RunId, Runs};
use crate::store::sessions::Lease;
use culvert_domain::error::{Chain, Result};
use culvert_domain::usage::Traffic;

pub struct Nodes {
    nodes: Vec<Node>,
    pub countries: Arc<Countries>,
    carried: TrafficCounter,
}

/// The identities of so many nodes: the first is `node` in the data folder, the next `node-2`.
///
/// # Errors
///
/// Where one is there and cannot be read, or none can be made.
pub fn identities(data_dir: &Path, count: usize, clock: &Clock) -> Result<Vec<Identity>, IdentityError> {
    let folder = |number: usize| if number == 1 { "node".to_owned() } else { format!("node-{number}") };
    (1..=count).map(|number| Identity::open(&data_dir.join(folder(number)), clock)).collect()
}

impl Nodes {
    pub fn new(nodes: Vec<Node>, countries: Arc<Countries>, carried: TrafficCounter) -> Self {
        Self { nodes, countries, carried }
    }

    pub fn ids(&self) -> impl Iterator<Item = Uuid> {
        self.nodes.iter().map(Node::id)
    }

    /// Tunnels that are served here.
    pub fn tunnels(&self) -> usize {
        self.nodes.iter().map(|node| node.load().0).sum()
    }

    /// Visitors that are being served here.
    pub fn visitors(&self) -> usize {
        self.nodes.iter().map(|node| node.load().1).sum()
    }

    /// Bytes of the buffers that visitors' bytes are in.
    pub fn buffer_bytes(&self) -> usize {
        self.nodes.iter().map(Node::buffer_bytes).sum()
    }

    fn of(&self, lease: &Lease) -> Option<&Node> {
        self.nodes.iter().find(|node| node.id() == lease.node_id)
    }

    /// Has a lease served by its node, from now on; where agents bring their connections for it. The
    /// error is for the client who asked for the tunnel.
    pub async fn serve(&self, lease: &Lease) -> Result<NodeAddress, String> {
        let node = self.of(lease).ok_or("The tunnel's node is not there.")?;
        node.serve(lease).await?;
        Ok(node.address())
    }

    /// Has a lease served no longer: its ports are closed when this returns.
    pub async fn end(&self, lease: &Lease) {
        if let Some(node) = self.of(lease) {
            node.end(lease).await;
        }
    }

    /// Whoever has the answer to a change of a tunnel can count on it: the nodes know of it before.
    /// What goes wrong here is made up for by the next tick.
    pub async fn apply(&self, tunnel_id: Uuid) {
        for node in &self.nodes {
            if let Err(error) = node.reconcile_tunnel(tunnel_id).await {
                tracing::warn!(error = %Chain(&error), %tunnel_id, "a node could not be told of a change; it will look itself");
            }
        }
    }

    /// Lets the agents in, who find there what they left.
    pub async fn accept_agents(&self) -> Result<()> {
        self.reconcile().await?;
        self.nodes.iter().for_each(Node::accept_agents);
        Ok(())
    }

    /// Every node serves what the store says, and nothing else.
    pub async fn reconcile(&self) -> Result<()> {
        for node in &self.nodes {
            node.reconcile().await?;
        }
        Ok(())
    }

    /// Reads the country database again, if it has changed.
    pub async fn refresh_countries(&self) {
        let countries = self.countries.clone();
        let changed = tokio::task::spawn_blocking(move || countries.refresh()).await;
        if changed.is_ok_and(|changed| changed) {
            self.nodes.iter().for_each(Node::reevaluate);
        }
    }

    /// The scopes that something is served of, with their plans, as of the last reconciliation.
    pub fn plans(&self) -> HashMap<Uuid, String> {
        self.nodes.iter().flat_map(Node::plans).collect()
    }

    /// The runs that have carried something which is not noted yet; with `over`, only those that
    /// have ended.
    pub fn uncounted(&self, over: bool) -> Vec<RunId> {
        self.nodes.iter().flat_map(|node| node.uncounted(over)).collect()
    }

    /// Ends everything that is served.
    pub async fn close(&self) {
        for node in &self.nodes {
            node.close().await;
        }
    }
}

impl Runs for Nodes {
    fn end(&self, run: RunId) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            for node in &self.nodes {
                node.end_run(run).await;
            }
        })
    }

    fn reopen(&self, run: RunId) {
        self.nodes.iter().for_each(|node| node.reopen_run(run));
    }

    fn take(&self, run: RunId) -> Traffic {
        self.nodes.iter().fold(Traffic::default(), |sum, node| sum + node.take_traffic(run))
    }

    /// The node that has the run; at most one has, for a session is placed on one node.
    fn give_back(&self, run: RunId, traffic: Traffic) {
        self.nodes.iter().for_each(|node| node.give_back(run, traffic));
    }

    fn noted(&self, traffic: Traffic) {
        self.carried.count(traffic);
    }
}
