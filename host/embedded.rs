//! The nodes that run in the host's process. Each is connected by a channel of the same frames as a node on
//! another machine.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use culvert_node::countries::Countries;
use culvert_node::{Identity, IdentityError, Node};
use culvert_wire::clock::Clock;
use culvert_wire::node::in_process;
use futures_util::future::join_all;
use tokio::task::JoinHandle;
use uuid::Uuid;

use culvert_service::Service;
use culvert_service::jobs::Ticker;
use culvert_service::nodes::channel::serve_node;

pub struct Embedded {
    nodes: Vec<Arc<Node>>,
    pub countries: Arc<Countries>,
    channels: Mutex<Vec<JoinHandle<()>>>,
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

impl Embedded {
    pub fn new(nodes: Vec<Node>, countries: Arc<Countries>) -> Self {
        Self { nodes: nodes.into_iter().map(Arc::new).collect(), countries, channels: Mutex::default() }
    }

    pub fn ids(&self) -> impl Iterator<Item = Uuid> {
        self.nodes.iter().map(|node| node.id())
    }

    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    /// Connects the nodes to their host, and waits until they serve what they are to serve.
    pub async fn connect(&self, service: &Arc<Service>, ticker: Ticker) {
        for node in &self.nodes {
            let (host_end, node_end) = in_process();
            let mut channels = vec![tokio::spawn(serve_node(service.clone(), host_end))];
            let served = node.clone();
            channels.push(tokio::spawn(async move { served.serve(node_end).await }));
            if ticker == Ticker::Auto {
                let timed = node.clone();
                channels.push(tokio::spawn(async move { timed.keep_time().await }));
            }
            self.channels.lock().unwrap_or_else(PoisonError::into_inner).extend(channels);
        }
        service.nodes().wait_until_ready(self.nodes.len()).await;
    }

    /// The number of served tunnels, and of their visitors.
    pub fn load(&self) -> (u64, u64) {
        let loads = self.nodes.iter().map(|node| node.load());
        loads.fold((0, 0), |(tunnels, visitors), (more, others)| (tunnels + more, visitors + others))
    }

    /// Bytes that the buffers for visitors' data take.
    pub fn buffer_bytes(&self) -> usize {
        self.nodes.iter().map(|node| node.buffer_bytes()).sum()
    }

    /// Does what is due every second, with a manual ticker.
    pub async fn tick(&self) {
        join_all(self.nodes.iter().map(|node| node.tick(1))).await;
    }

    /// Waits until the host has stored all traffic that was reported.
    pub async fn traffic_stored(&self) {
        join_all(self.nodes.iter().map(|node| node.traffic_stored())).await;
    }

    /// Reports all visitors and all traffic now, and waits until the host has stored it.
    pub async fn record_traffic(&self) {
        join_all(self.nodes.iter().map(async |node| {
            // A scope whose last batch is not stored yet has nothing reported.
            node.traffic_stored().await;
            node.report_visitors().await;
            node.report_traffic().await;
            node.traffic_stored().await;
        }))
        .await;
    }

    /// Ends all tunnels, and waits until the host has stored their traffic.
    pub async fn close(&self) {
        join_all(self.nodes.iter().map(async |node| {
            node.close().await;
            node.flush().await;
        }))
        .await;
    }

    /// Closes the channels to the host.
    pub fn disconnect(&self) {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner).drain(..).for_each(|channel| channel.abort());
    }
}
