//! The nodes that run in this process. A tunnel's placement says which node serves it.

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

/// Opens the identities of `count` nodes. The first is in the folder `node` of the data folder, the second in
/// `node-2`, and so on.
///
/// # Errors
///
/// If an identity exists but cannot be read, or a new one cannot be created.
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

    /// The number of tunnels that these nodes serve.
    pub fn tunnels(&self) -> usize {
        self.nodes.iter().map(|node| node.load().0).sum()
    }

    /// The number of visitors that these nodes serve.
    pub fn visitors(&self) -> usize {
        self.nodes.iter().map(|node| node.load().1).sum()
    }

    /// Bytes that the buffers for visitors' data take.
    pub fn buffer_bytes(&self) -> usize {
        self.nodes.iter().map(Node::buffer_bytes).sum()
    }

    fn of(&self, lease: &Lease) -> Option<&Node> {
        self.nodes.iter().find(|node| node.id() == lease.node_id)
    }

    /// Has the lease's node serve it from now on, and returns the address for the agent's data connections.
    /// The error text is for the client who asked for the tunnel.
    pub async fn serve(&self, lease: &Lease) -> Result<NodeAddress, String> {
        let node = self.of(lease).ok_or("The tunnel's node is not there.")?;
        node.serve(lease).await?;
        Ok(node.address())
    }

    /// Has the lease's node stop serving it. When this returns, its ports are closed.
    pub async fn end(&self, lease: &Lease) {
        if let Some(node) = self.of(lease) {
            node.end(lease).await;
        }
    }

    /// Applies a change of a tunnel to the nodes. A caller who waits for it before answering a client can
    /// promise that the change is in effect. Errors are only logged: the next tick reconciles the nodes.
    pub async fn apply(&self, tunnel_id: Uuid) {
        for node in &self.nodes {
            if let Err(error) = node.reconcile_tunnel(tunnel_id).await {
                tracing::warn!(error = %Chain(&error), %tunnel_id, "a node could not be told of a change; it will look itself");
            }
        }
    }

    /// Brings the nodes in line with the store and then accepts agents, so that agents find their leases
    /// served.
    pub async fn accept_agents(&self) -> Result<()> {
        self.reconcile().await?;
        self.nodes.iter().for_each(Node::accept_agents);
        Ok(())
    }

    /// Brings every node in line with the store.
    pub async fn reconcile(&self) -> Result<()> {
        for node in &self.nodes {
            node.reconcile().await?;
        }
        Ok(())
    }

    /// Reads the country database again if it has changed.
    pub async fn refresh_countries(&self) {
        let countries = self.countries.clone();
        let changed = tokio::task::spawn_blocking(move || countries.refresh()).await;
        if changed.is_ok_and(|changed| changed) {
            self.nodes.iter().for_each(Node::reevaluate);
        }
    }

    /// The plan of each scope that has a tunnel on these nodes, as of the last reconciliation.
    pub fn plans(&self) -> HashMap<Uuid, String> {
        self.nodes.iter().flat_map(Node::plans).collect()
    }

    /// The runs with traffic that is not recorded yet. With `over`, only runs that have ended.
    pub fn uncounted(&self, over: bool) -> Vec<RunId> {
        self.nodes.iter().flat_map(|node| node.uncounted(over)).collect()
    }

    /// Ends all tunnels.
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

    /// Only the node that has the run takes the traffic. At most one has it: a session is placed on one node.
    fn give_back(&self, run: RunId, traffic: Traffic) {
        self.nodes.iter().for_each(|node| node.give_back(run, traffic));
    }

    fn noted(&self, traffic: Traffic) {
        self.carried.count(traffic);
    }
}
