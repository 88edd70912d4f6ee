//! The data plane: public ports, the agents' connections behind them, and what is counted.
//!
//! What a node serves is what the store says: the open sessions placed on it. [`Node::reconcile`]
//! makes it so, whenever somebody says that something changed, and once a second.

mod access;
pub mod countries;
mod door;
pub mod embedded;
mod identity;
mod run;
mod tunnel;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use culvert_agent::clock::Clock;
use culvert_agent::wire::{Blob, NodeAddress};
use rustls::ServerConfig;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::config::NodeConfig;
use crate::domain::access::AccessRules;
use crate::domain::tunnel::Protocol;
use crate::domain::usage::Traffic;
use crate::error::Result;
use crate::secret::Secrets;
use crate::store::Store;
use crate::store::sessions::Lease;
use access::Access;
use countries::Countries;
pub use identity::{Identity, IdentityError};
use run::Run;
use tunnel::{Tunnel, Turned, Wanted};

pub struct Node {
    shared: Arc<Shared>,
    store: Arc<Store>,
    address: NodeAddress,
    /// Runs that are over and may still have traffic to be noted.
    ending: Mutex<Vec<Arc<Run>>>,
    /// One reconciliation at a time: each sees what the one before has done.
    turn: tokio::sync::Mutex<()>,
    id: Uuid,
    /// Where agents come in, until they may.
    door: Mutex<Option<(TcpListener, Arc<ServerConfig>)>>,
}

/// What a node shares with its host.
#[derive(Clone)]
pub struct Surroundings {
    pub countries: Arc<Countries>,
    pub tasks: TaskTracker,
    pub stop: CancellationToken,
}

/// What the parts of a node have in common.
struct Shared {
    bind: IpAddr,
    clock: Clock,
    secrets: Secrets,
    tasks: TaskTracker,
    stop: CancellationToken,
    countries: Arc<Countries>,
    tunnels: Mutex<HashMap<Uuid, Tunnel>>,
}

impl Node {
    /// Binds the door for the agents, which [`Node::open_door`] opens.
    pub async fn open(
        identity: Identity,
        config: &NodeConfig,
        store: Arc<Store>,
        around: Surroundings,
    ) -> std::io::Result<Self> {
        let Surroundings { countries, tasks, stop } = around;
        let listener = TcpListener::bind(config.listen).await?;
        let address = NodeAddress {
            host: config.hostname.clone(),
            port: listener.local_addr()?.port(),
            fingerprint: Blob(identity.fingerprint().into()),
        };
        let shared = Arc::new(Shared {
            bind: config.bind,
            clock: store.clock().clone(),
            secrets: store.secrets().clone(),
            tasks,
            stop,
            countries,
            tunnels: Mutex::default(),
        });
        let id = identity.id;
        let tls = identity.tls().map_err(std::io::Error::other)?;
        let door = Mutex::new(Some((listener, tls)));
        Ok(Self { shared, store, door, address, ending: Mutex::default(), turn: tokio::sync::Mutex::new(()), id })
    }

    /// Lets the agents in. A lease that is not served yet would look to them like one that is over,
    /// so what they hold is to be served before.
    pub fn open_door(&self) {
        if let Some((listener, tls)) = lock(&self.door).take() {
            door::open(self.shared.clone(), listener, tls);
        }
    }

    /// How many tunnels are served, and to how many visitors.
    pub fn load(&self) -> (usize, usize) {
        let tunnels = lock(&self.shared.tunnels);
        (tunnels.len(), tunnels.values().map(|tunnel| tunnel.run().visitors()).sum())
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
        match self.with(lease.tunnel_id, |tunnel| tunnel.turn_to(lease, &self.shared)) {
            Some(Turned::Outdated) => return Ok(()),
            Some(Turned::Serving { former }) => {
                // One lock at a time: who counts the traffic takes both, in the other order.
                lock(&self.ending).extend(former);
                self.update_rules(lease).await?;
            }
            None => self.open_tunnel(lease).await?,
        }
        self.open_ports(lease).await;
        Ok(())
    }

    async fn update_rules(&self, lease: &Lease) -> Result<(), String> {
        let access = self.with(lease.tunnel_id, |tunnel| tunnel.access.clone());
        if let Some(access) = access.filter(|access| access.version() != lease.rules_version) {
            access.replace(lease.rules_version, self.rules(lease).await?);
        }
        Ok(())
    }

    /// Opens a tunnel's own port. Nobody comes in before its rules are known.
    async fn open_tunnel(&self, lease: &Lease) -> Result<(), String> {
        let access = Access::new(self.shared.countries.clone(), lease.rules_version, self.rules(lease).await?);
        let own = Wanted { port: lease.remote_port, id: None };
        let listener = tunnel::open(own, &self.shared).await;
        let listener = listener.map_err(|error| format!("The node cannot open port {}: {error}.", own.port))?;
        let mut tunnel = Tunnel::new(lease, access, &self.shared);
        tunnel.listen(own, listener, self.shared.clone());
        lock(&self.shared.tunnels).insert(lease.tunnel_id, tunnel);
        tracing::info!(tunnel = lease.name, port = own.port, epoch = lease.epoch, "serving");
        Ok(())
    }

    /// Opens and closes ports until they are those of the lease.
    async fn open_ports(&self, lease: &Lease) {
        let wanted = Wanted::of(lease);
        let closing = self.with(lease.tunnel_id, |tunnel| tunnel.surplus(&wanted));
        if let Some(closing) = closing {
            closing.close().await;
        }
        for port in self.with(lease.tunnel_id, |tunnel| tunnel.missing(&wanted)).unwrap_or_default() {
            match tunnel::open(port, &self.shared).await {
                Ok(listener) => {
                    self.with(lease.tunnel_id, |tunnel| tunnel.listen(port, listener, self.shared.clone()));
                }
                Err(error) => tracing::warn!(%error, port = port.port, tunnel = lease.name, "a port cannot be opened"),
            }
        }
    }

    fn with<T>(&self, tunnel_id: Uuid, look: impl FnOnce(&mut Tunnel) -> T) -> Option<T> {
        lock(&self.shared.tunnels).get_mut(&tunnel_id).map(look)
    }

    async fn rules(&self, lease: &Lease) -> Result<AccessRules, String> {
        let rules = self.store.access_rules(lease.tunnel_id).await;
        rules.map_err(|_| "The tunnel's rules could not be read.".into())
    }

    /// The country database has changed: whoever is inside is judged by it.
    pub fn judge_again(&self) {
        lock(&self.shared.tunnels).values().for_each(|tunnel| tunnel.access.judge_again());
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

    /// Serves one tunnel as the store has it now, if it is served here at all.
    pub async fn reconcile_tunnel(&self, tunnel_id: Uuid) -> Result<()> {
        let _turn = self.turn.lock().await;
        let lease = self.store.lease_of_tunnel(tunnel_id).await?;
        match lease.filter(|lease| lease.node_id == self.id) {
            Some(lease) => {
                if let Err(problem) = self.serve_now(&lease).await {
                    tracing::warn!(problem, tunnel = lease.name, "a tunnel cannot be served");
                }
            }
            None => {
                let tunnel = lock(&self.shared.tunnels).remove(&tunnel_id);
                if let Some(tunnel) = tunnel {
                    let run = tunnel.close().await;
                    lock(&self.ending).push(run);
                }
            }
        }
        Ok(())
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
