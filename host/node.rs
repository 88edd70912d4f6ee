//! The data plane: public ports, the agents' connections behind them, and what is counted.
//!
//! What a node serves is what the store says: the open sessions placed on it. [`Node::reconcile`]
//! makes it so, whenever somebody says that something changed, and once a second.

mod admission;
mod agent_listener;
pub mod bounds;
pub mod countries;
pub mod embedded;
mod identity;
mod public_listener;
mod session;

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use culvert_wire::base64_bytes::Base64Bytes;
use culvert_wire::clock::{Clock, Moment};
use culvert_wire::control::NodeAddress;
use rustls::ServerConfig;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::config::NodeConfig;
use crate::secret::Secrets;
use crate::store::Store;
use crate::store::runs::RunId;
use crate::store::sessions::Lease;
use admission::Admission;
use bounds::{Bounds, Refusals};
use countries::Countries;
use culvert_domain::access::AccessRules;
use culvert_domain::error::Result;
use culvert_domain::tunnel::Protocol;
use culvert_domain::usage::Traffic;
pub use identity::{Identity, IdentityError};
use public_listener::{EpochChange, PortSpec, Tunnel};
use session::SessionRelay;

pub struct Node {
    shared: Arc<Shared>,
    store: Arc<Store>,
    address: NodeAddress,
    /// Runs that are over and may still have traffic to be noted.
    ending: Mutex<Vec<Arc<SessionRelay>>>,
    /// One reconciliation at a time: each sees what the one before has done.
    turn: tokio::sync::Mutex<()>,
    id: Uuid,
    /// Where agents come in, until they may.
    door: Mutex<Option<(TcpListener, Arc<ServerConfig>)>>,
    /// The epochs, by tunnel, that have been ended here and that the store may still have open.
    closed: Mutex<HashMap<Uuid, (i64, Moment)>>,
    /// The scopes of what is served, with their plans.
    plans: Mutex<HashMap<Uuid, String>>,
}

/// How long an epoch that was ended is not served again, if the store goes on saying that it is open.
const CLOSED_FOR: Duration = Duration::from_secs(10);

/// What a node shares with its host.
#[derive(Clone)]
pub struct NodeContext {
    pub refusals: Refusals,
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
    bounds: Arc<Bounds>,
    tunnels: Mutex<HashMap<Uuid, Tunnel>>,
    /// When it was last said that a visitor could not be accepted.
    complained: Mutex<Option<Moment>>,
}

impl Shared {
    /// Says so, once a second for all ports.
    fn log_unaccepted(&self, error: &std::io::Error) {
        let now = self.clock.moment();
        let mut complained = lock(&self.complained);
        if complained.is_none_or(|last| now.since(last) >= Duration::from_secs(1)) {
            *complained = Some(now);
            tracing::warn!(%error, "visitors cannot be accepted");
        }
    }
}

impl Node {
    /// Binds the door for the agents, which [`Node::accept_agents`] opens.
    pub async fn open(
        identity: Identity,
        config: &NodeConfig,
        store: Arc<Store>,
        cx: NodeContext,
    ) -> std::io::Result<Self> {
        let NodeContext { refusals, countries, tasks, stop } = cx;
        let listener = TcpListener::bind(config.listen).await?;
        let address = NodeAddress {
            host: config.hostname.clone(),
            port: listener.local_addr()?.port(),
            fingerprint: Base64Bytes(identity.fingerprint().into()),
        };
        let shared = Arc::new(Shared {
            bind: config.bind,
            clock: store.clock().clone(),
            secrets: store.secrets().clone(),
            tasks,
            stop,
            countries,
            bounds: Bounds::new(config, refusals),
            tunnels: Mutex::default(),
            complained: Mutex::default(),
        });
        let id = identity.id;
        let tls = identity.tls().map_err(std::io::Error::other)?;
        let door = Mutex::new(Some((listener, tls)));
        let (ending, closed, turn) = (Mutex::default(), Mutex::default(), tokio::sync::Mutex::new(()));
        Ok(Self { shared, store, door, address, ending, turn, id, closed, plans: Mutex::default() })
    }

    /// Lets the agents in. A lease that is not served yet would look to them like one that is over,
    /// so what they hold is to be served before.
    pub fn accept_agents(&self) {
        if let Some((listener, tls)) = lock(&self.door).take() {
            agent_listener::open(self.shared.clone(), listener, tls);
        }
    }

    /// How many tunnels are served, and to how many visitors.
    pub fn load(&self) -> (usize, usize) {
        let tunnels = lock(&self.shared.tunnels);
        (tunnels.len(), tunnels.values().map(|tunnel| tunnel.run().visitors()).sum())
    }

    /// Bytes of all pipes' buffers.
    pub fn buffer_bytes(&self) -> usize {
        self.shared.bounds.buffers.taken()
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
        if self.is_closed(lease) {
            return Ok(());
        }
        match self.with(lease.tunnel_id, |tunnel| tunnel.switch_to(lease, &self.shared)) {
            Some(EpochChange::Outdated) => return Ok(()),
            Some(EpochChange::Serving { former }) => {
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
        let rules = self.rules(lease).await?;
        let (countries, bounds) = (self.shared.countries.clone(), self.shared.bounds.clone());
        let access = Admission::new(countries, bounds, lease.rules_version, rules);
        let own = PortSpec { port: lease.remote_port, id: None };
        let listener = public_listener::open(own, &self.shared).await;
        let listener = listener.map_err(|error| format!("The node cannot open port {}: {error}.", own.port))?;
        let mut tunnel = Tunnel::new(lease, access, &self.shared);
        tunnel.listen(own, listener, self.shared.clone());
        lock(&self.shared.tunnels).insert(lease.tunnel_id, tunnel);
        tracing::info!(tunnel = lease.name, port = own.port, epoch = lease.epoch, "serving");
        Ok(())
    }

    /// Opens and closes ports until they are those of the lease.
    async fn open_ports(&self, lease: &Lease) {
        let wanted = PortSpec::of(lease);
        let closing = self.with(lease.tunnel_id, |tunnel| tunnel.ports_to_close(&wanted));
        if let Some(closing) = closing {
            closing.close().await;
        }
        for port in self.with(lease.tunnel_id, |tunnel| tunnel.ports_to_open(&wanted)).unwrap_or_default() {
            match public_listener::open(port, &self.shared).await {
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

    /// The scopes of what is served, with their plans, as of the last reconciliation.
    pub fn plans(&self) -> HashMap<Uuid, String> {
        lock(&self.plans).clone()
    }

    /// The country database has changed: whoever is inside is judged by it.
    pub fn reevaluate(&self) {
        lock(&self.shared.tunnels).values().for_each(|tunnel| tunnel.access.reevaluate());
    }

    /// Serves a lease no longer: its port is closed when this returns, and stays so while the store
    /// is about to end the session.
    pub async fn end(&self, lease: &Lease) {
        let _turn = self.turn.lock().await;
        let tunnel = {
            let mut tunnels = lock(&self.shared.tunnels);
            let served = tunnels.get(&lease.tunnel_id).is_some_and(|tunnel| tunnel.run().lease().epoch == lease.epoch);
            if served { tunnels.remove(&lease.tunnel_id) } else { None }
        };
        if let Some(tunnel) = tunnel {
            self.close_off(lease);
            self.retire(tunnel).await;
        }
    }

    async fn retire(&self, tunnel: Tunnel) {
        let run = tunnel.close().await;
        lock(&self.ending).push(run);
    }

    fn close_off(&self, lease: &Lease) {
        lock(&self.closed).insert(lease.tunnel_id, (lease.epoch, self.shared.clock.moment()));
    }

    /// Whether a lease has been ended here, and the store is about to say so as well.
    fn is_closed(&self, lease: &Lease) -> bool {
        let mut closed = lock(&self.closed);
        let Some((epoch, at)) = closed.get(&lease.tunnel_id).copied() else { return false };
        let holds = lease.epoch <= epoch && self.shared.clock.moment().since(at) < CLOSED_FOR;
        if !holds {
            closed.remove(&lease.tunnel_id);
        }
        holds
    }

    /// The run of a session that is served here, or was until a moment ago.
    fn run_of(&self, id: RunId) -> Option<Arc<SessionRelay>> {
        let is = |run: &Arc<SessionRelay>| run.lease().session_id == id.session_id;
        let served = lock(&self.shared.tunnels).get(&id.tunnel_id).map(Tunnel::run).filter(is);
        served.or_else(|| lock(&self.ending).iter().find(|run| is(run)).cloned())
    }

    /// Ends a run, and waits until no more bytes of it can come.
    pub async fn end_run(&self, id: RunId) {
        if let Some(run) = self.run_of(id) {
            self.close_off(run.lease());
            run.finish().await;
        }
    }

    /// A session that was ended here is open after all.
    pub fn reopen_run(&self, id: RunId) {
        if self.run_of(id).is_some() {
            lock(&self.closed).remove(&id.tunnel_id);
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
                lock(&self.closed).remove(&tunnel_id);
                if let Some(tunnel) = tunnel {
                    self.retire(tunnel).await;
                }
            }
        }
        Ok(())
    }

    /// Serves what the store says, and nothing else.
    pub async fn reconcile(&self) -> Result<()> {
        let _turn = self.turn.lock().await;
        let leases = self.store.leases_on_node(self.id).await?;
        let open: HashSet<Uuid> = leases.iter().map(|lease| lease.tunnel_id).collect();
        let over: Vec<_> = {
            let mut tunnels = lock(&self.shared.tunnels);
            let over: Vec<Uuid> = tunnels.keys().filter(|id| !open.contains(id)).copied().collect();
            over.into_iter().filter_map(|id| tunnels.remove(&id)).collect()
        };
        for tunnel in over {
            self.retire(tunnel).await;
        }
        *lock(&self.plans) = leases.iter().map(|lease| (lease.scope_id, lease.plan.clone())).collect();
        lock(&self.closed).retain(|tunnel_id, _| open.contains(tunnel_id));
        for lease in leases {
            if let Err(problem) = self.serve_now(&lease).await {
                tracing::warn!(problem, tunnel = lease.name, "a tunnel cannot be served");
            }
        }
        Ok(())
    }

    /// The runs that have carried something which is not noted yet; with `over`, only those that
    /// have ended.
    pub fn uncounted(&self, over: bool) -> Vec<RunId> {
        let mut runs: Vec<Arc<SessionRelay>> = match over {
            true => Vec::new(),
            false => lock(&self.shared.tunnels).values().map(Tunnel::run).collect(),
        };
        let mut ending = lock(&self.ending);
        ending.retain(|run| !run.is_over() || run.has_traffic());
        runs.extend(ending.iter().cloned());
        drop(ending);
        let id = |run: &Arc<SessionRelay>| {
            let Lease { scope_id, tunnel_id, session_id, .. } = *run.lease();
            RunId { scope_id, tunnel_id, session_id }
        };
        runs.iter().filter(|run| run.has_traffic()).map(id).collect()
    }

    /// What a run has carried since the last time.
    pub fn take_traffic(&self, id: RunId) -> Traffic {
        self.run_of(id).map(|run| run.take_traffic()).unwrap_or_default()
    }

    /// Counts again, the next time, what could not be noted.
    pub fn give_back(&self, id: RunId, traffic: Traffic) {
        if let Some(run) = self.run_of(id) {
            run.give_back(traffic);
        }
    }

    /// Ends everything that is served.
    pub async fn close(&self) {
        let tunnels: Vec<_> = lock(&self.shared.tunnels).drain().map(|(_, tunnel)| tunnel).collect();
        for tunnel in tunnels {
            self.retire(tunnel).await;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
