//! The nodes that run in the host's process. Each is connected by a channel of the same frames as a node on
//! another machine.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use culvert_domain::error::Chain;
use culvert_node::bounds::Limits;
use culvert_node::countries::Countries;
use culvert_node::{Identity, IdentityError, Node, NodeContext, OpenError, WebListen};
use culvert_wire::clock::Clock;
use culvert_wire::node::in_process;
use futures_util::future::join_all;
use serde_json::json;
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::config::{Config, ConfigError, Listen, NodeConfig};
use culvert_service::jobs::Ticker;
use culvert_service::nodes::channel::serve_node;
use culvert_service::{Service, catalog};
use culvert_store::Store;
use culvert_store::catalog::NodeRegistration;

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
        join_all(self.nodes.iter().map(async |node| {
            node.end_without_authority().await;
            node.tick(1).await;
        }))
        .await;
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

/// Opens the nodes of this process, and registers them in the store. Those that were this host's before are so until then: what
/// others ask of them waits.
pub(crate) async fn open(
    config: &Config,
    identities: Vec<Identity>,
    store: &Arc<Store>,
    cx: NodeContext,
) -> Result<Embedded, ConfigError> {
    let countries = cx.countries.clone();
    let mut nodes = Vec::new();
    for (identity, (setting, config)) in identities.into_iter().zip(config.nodes()) {
        let node = Node::open(identity, &settings(config), cx.clone()).await;
        let node = node.map_err(|e| match e {
            OpenError::Agents(e) => ConfigError::new(&format!("{setting}.listen"), format!("{}: {e}", config.listen)),
            OpenError::Udp(address, e) => ConfigError::new(&format!("{setting}.udp_listen"), format!("{address}: {e}")),
            OpenError::Web { scheme, address, error } => {
                ConfigError::new(&format!("{setting}.{}_listen", scheme.as_str()), format!("{address}: {error}"))
            }
        })?;
        let registration = registration(config, &node, countries.are_known());
        let registered = catalog::register_node(store, registration).await;
        if let Some(other_id) = registered.map_err(|e| ConfigError::new("database_url", Chain(&e)))? {
            let problem = format!("must not be that of node {other_id} of another host: each name leads to one node");
            return Err(ConfigError::new(&format!("{setting}.domain"), problem));
        }
        nodes.push(node);
    }
    let node_ids: Vec<_> = nodes.iter().map(Node::id).collect();
    if let Some(host_id) = node_ids.first() {
        let kept = store.keep_nodes(*host_id, node_ids.clone()).await;
        kept.map_err(|e| ConfigError::new("database_url", Chain(&e)))?;
    }
    Ok(Embedded::new(nodes, countries))
}

fn settings(config: &NodeConfig) -> culvert_node::Settings {
    culvert_node::Settings {
        hostname: config.hostname.clone(),
        listen: config.listen,
        udp: config.udp_address(),
        bind: config.bind,
        http: web_listen(config.http_listen, config.http_port),
        https: web_listen(config.https_listen, config.https_port),
        web: config.http.limits(),
        trusted_proxies: config.trusted_proxies.clone(),
        limits: Limits {
            visitors: config.visitors,
            visitors_per_tunnel: config.visitors_per_tunnel,
            visitors_per_address: config.visitors_per_address,
            flows: config.flows,
            flows_per_tunnel: config.flows_per_tunnel,
            flows_per_address: config.flows_per_address,
            new_flows_per_second: config.new_flows_per_second,
            buffer_mib: config.buffer_mib,
            descriptor_reserve: config.descriptor_reserve,
            unproven: config.unproven,
            unproven_per_address: config.unproven_per_address,
        },
    }
}

fn web_listen(listen: Listen, public_port: Option<u16>) -> Option<WebListen> {
    listen.address().map(|address| WebListen { address, public_port })
}

fn registration(config: &NodeConfig, node: &Node, knows_countries: bool) -> NodeRegistration {
    let (id, ports) = (node.id(), node.public_ports());
    NodeRegistration {
        id,
        name: format!("node-{}", &id.simple().to_string()[24..]),
        hostname: config.hostname.clone(),
        ports: config.ports,
        knows_countries,
        domain: config.domain.clone(),
        http_port: ports.http,
        https_port: ports.https,
        agent_address: json!(node.address()).to_string(),
    }
}
