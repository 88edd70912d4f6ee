//! The data plane: public ports, the agents' connections behind them, and what is counted.
//!
//! What a node serves is what the store says: the open sessions placed on it. [`Node::reconcile`]
//! makes it so, whenever somebody says that something changed, and once a second.

mod door;
mod identity;
mod run;
mod tunnel;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use culvert_agent::clock::Clock;
use culvert_agent::wire::{Blob, NodeAddress};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::config::Config;
use crate::domain::tunnel::Protocol;
use crate::domain::usage::Traffic;
use crate::error::Result;
use crate::secret::Secrets;
use crate::store::Store;
use crate::store::sessions::Lease;
pub use identity::{Identity, IdentityError};
use run::Run;
use tunnel::Tunnel;

pub struct Node {
    shared: Arc<Shared>,
    store: Arc<Store>,
    address: NodeAddress,
    /// Runs that are over and may still have traffic to be noted.
    ending: Mutex<Vec<Arc<Run>>>,
    /// One reconciliation at a time: each sees what the one before has done.
    turn: tokio::sync::Mutex<()>,
    id: Uuid,
}

/// What the parts of a node have in common.
struct Shared {
    bind: IpAddr,
    clock: Clock,
    secrets: Secrets,
    tasks: TaskTracker,
    stop: CancellationToken,
    tunnels: Mutex<HashMap<Uuid, Tunnel>>,
}

impl Node {
    /// Opens the door for the agents.
    pub async fn open(
        identity: Identity,
        config: &Config,
        store: Arc<Store>,
        tasks: TaskTracker,
        stop: CancellationToken,
    ) -> std::io::Result<Self> {
        let listener = TcpListener::bind(config.node.listen).await?;
        let address = NodeAddress {
            host: config.node.hostname.clone(),
            port: listener.local_addr()?.port(),
            fingerprint: Blob(identity.fingerprint().into()),
        };
        let shared = Arc::new(Shared {
            bind: config.node.bind,
            clock: store.clock().clone(),
            secrets: store.secrets().clone(),
            tasks,
            stop,
            tunnels: Mutex::default(),
        });
        let id = identity.id;
        let tls = identity.tls().map_err(std::io::Error::other)?;
        door::open(shared.clone(), listener, tls);
        Ok(Self { shared, store, address, ending: Mutex::default(), turn: tokio::sync::Mutex::new(()), id })
    }

    pub fn id(&self) -> Uuid {
        self.id
    }

    /// Where agents bring their connections, and what they are to find there.
    pub fn address(&self) -> NodeAddress {
        self.address.clone()
    }

    /// Serves a lease, from now on. The error is for the client who asked for the tunnel.
    pub async fn serve(&self, lease: &Lease) -> Result<(), String> {
        let _turn = self.turn.lock().await;
        self.serve_now(lease).await
    }

    async fn serve_now(&self, lease: &Lease) -> Result<(), String> {
        if lease.protocol != Protocol::Tcp {
            return Err(format!("This version's nodes carry tcp, not {}.", lease.protocol));
        }
        // One lock at a time: who counts the traffic takes both, in the other order.
        let turned = lock(&self.shared.tunnels).get(&lease.tunnel_id).map(|tunnel| tunnel.turn_to(lease, &self.shared));
        if let Some(former) = turned {
            lock(&self.ending).extend(former);
            return Ok(());
        }
        let address = SocketAddr::new(self.shared.bind, lease.remote_port);
        let listener = TcpListener::bind(address).await;
        let listener =
            listener.map_err(|error| format!("The node cannot open port {}: {error}.", lease.remote_port))?;
        let tunnel = Tunnel::open(lease, listener, self.shared.clone());
        lock(&self.shared.tunnels).insert(lease.tunnel_id, tunnel);
        tracing::info!(tunnel = lease.name, %address, epoch = lease.epoch, "serving");
        Ok(())
    }

    /// Serves a lease no longer: its port is closed when this returns.
    pub async fn end(&self, lease: &Lease) {
        let _turn = self.turn.lock().await;
        let tunnel = {
            let mut tunnels = lock(&self.shared.tunnels);
            let served = tunnels.get(&lease.tunnel_id).is_some_and(|tunnel| tunnel.run().lease().epoch == lease.epoch);
            if served { tunnels.remove(&lease.tunnel_id) } else { None }
        };
        if let Some(tunnel) = tunnel {
            let run = tunnel.close().await;
            lock(&self.ending).push(run);
        }
    }

    /// Serves what the store says, and nothing else.
    pub async fn reconcile(&self) -> Result<()> {
        let _turn = self.turn.lock().await;
        let leases = self.store.leases_on_node(self.id).await?;
        let over: Vec<_> = {
            let mut tunnels = lock(&self.shared.tunnels);
            let over: Vec<Uuid> =
                tunnels.keys().filter(|id| leases.iter().all(|lease| lease.tunnel_id != **id)).copied().collect();
            over.into_iter().filter_map(|id| tunnels.remove(&id)).collect()
        };
        for tunnel in over {
            let run = tunnel.close().await;
            lock(&self.ending).push(run);
        }
        for lease in leases {
            if let Err(problem) = self.serve_now(&lease).await {
                tracing::warn!(problem, tunnel = lease.name, "a tunnel cannot be served");
            }
        }
        Ok(())
    }

    /// What went through since the last time, by session. What is not noted in the end is to be
    /// given back.
    pub fn take_traffic(&self) -> Vec<Counted> {
        let mut ending = lock(&self.ending);
        let mut runs: Vec<Arc<Run>> = lock(&self.shared.tunnels).values().map(Tunnel::run).collect();
        // What has ended before it is counted is counted whole, and let go if that can be noted.
        let (over, rest): (Vec<_>, Vec<_>) = ending.drain(..).partition(|run| run.is_over());
        runs.extend(over.into_iter().chain(rest.iter().cloned()));
        *ending = rest;
        runs.into_iter().filter_map(Counted::take).collect()
    }

    /// Counts again, the next time, what could not be noted.
    pub fn give_back(&self, counted: Counted) {
        let Counted { run, traffic } = counted;
        run.give_back(traffic);
        let mut ending = lock(&self.ending);
        if run.is_over() && !ending.iter().any(|other| Arc::ptr_eq(other, &run)) {
            ending.push(run);
        }
    }

    /// Ends everything that is served.
    pub async fn close(&self) {
        let tunnels: Vec<_> = lock(&self.shared.tunnels).drain().map(|(_, tunnel)| tunnel).collect();
        for tunnel in tunnels {
            let run = tunnel.close().await;
            lock(&self.ending).push(run);
        }
    }
}

/// Traffic of one session that the store does not know yet.
pub struct Counted {
    run: Arc<Run>,
    pub traffic: Traffic,
}

impl Counted {
    fn take(run: Arc<Run>) -> Option<Self> {
        let traffic = run.take_traffic();
        (traffic.total() > 0).then_some(Self { run, traffic })
    }

    pub fn lease(&self) -> &Lease {
        self.run.lease()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
