//! The data plane: public listeners for visitors, data connections of agents, and traffic counting.
//!
//! A node serves the open sessions that the store has placed on it. [`Node::reconcile`] brings the node in
//! line with the store once a second; [`Node::reconcile_tunnel`] does so for one tunnel when that tunnel has
//! changed.

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
use culvert_domain::error::{Chain, Result};
use culvert_domain::tunnel::Protocol;
use culvert_domain::usage::Traffic;
pub use identity::{Identity, IdentityError};
use public_listener::{EpochChange, PortSpec, Tunnel};
use session::SessionRelay;

pub struct Node {
    shared: Arc<Shared>,
    store: Arc<Store>,
    address: NodeAddress,
    /// Session relays of ended runs that may still have traffic to record.
    ending: Mutex<Vec<Arc<SessionRelay>>>,
    /// Serializes reconciliations, so that each one sees the result of the one before.
    turn: tokio::sync::Mutex<()>,
    id: Uuid,
    /// The agent listener with its TLS configuration, until [`Node::accept_agents`] starts it.
    door: Mutex<Option<(TcpListener, Arc<ServerConfig>)>>,
    /// Epochs that this node has ended and that the store may still show as open, with the time of the end,
    /// by tunnel.
    closed: Mutex<HashMap<Uuid, (i64, Moment)>>,
    /// The plan of each scope that has a tunnel on this node, as of the last reconciliation.
    plans: Mutex<HashMap<Uuid, String>>,
}

/// How long an ended epoch is not served again although the store still shows it as open.
const CLOSED_FOR: Duration = Duration::from_secs(10);

/// Resources that a node gets from its host.
#[derive(Clone)]
pub struct NodeContext {
    pub refusals: Refusals,
    pub countries: Arc<Countries>,
    pub tasks: TaskTracker,
    pub stop: CancellationToken,
}

/// State that the parts of a node share.
struct Shared {
    bind: IpAddr,
    clock: Clock,
    secrets: Secrets,
    tasks: TaskTracker,
    stop: CancellationToken,
    countries: Arc<Countries>,
    bounds: Arc<Bounds>,
    tunnels: Mutex<HashMap<Uuid, Tunnel>>,
    /// When a failure to accept visitors was last logged.
    complained: Mutex<Option<Moment>>,
}

impl Shared {
    /// Logs a failure to accept a visitor, at most once a second for all ports together.
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
    /// Binds the agent listener. It accepts no connections before [`Node::accept_agents`] is called.
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

    /// Starts to accept agents. The node must serve its leases before this is called: an agent whose lease is
    /// not served yet gets the same answer as one whose lease has ended.
    pub fn accept_agents(&self) {
        if let Some((listener, tls)) = lock(&self.door).take() {
            agent_listener::open(self.shared.clone(), listener, tls);
        }
    }

    /// The number of served tunnels, and of their visitors.
    pub fn load(&self) -> (usize, usize) {
        let tunnels = lock(&self.shared.tunnels);
        (tunnels.len(), tunnels.values().map(|tunnel| tunnel.run().visitors()).sum())
    }

    /// Bytes that the buffers of all pipes take.
    pub fn buffer_bytes(&self) -> usize {
        self.shared.bounds.buffers.taken()
    }

    pub fn id(&self) -> Uuid {
        self.id
    }

    /// The address of the agent listener, and the fingerprint of its certificate.
    pub fn address(&self) -> NodeAddress {
        self.address.clone()
    }

    /// Serves a lease from now on. The error text is for the client who asked for the tunnel.
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
                // Hold only one lock at a time: counting the traffic takes both in the other order.
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

    /// Opens the tunnel's own port. The rules are read first, so that no visitor is admitted without them.
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

    /// Opens missing ports and closes surplus ones, so that the open ports match the lease.
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
        rules.map_err(|error| {
            tracing::warn!(error = %Chain(&error), tunnel = lease.name, "the rules of a tunnel could not be read");
            "The tunnel's rules could not be read.".into()
        })
    }

    /// The plan of each scope that has a tunnel on this node, as of the last reconciliation.
    pub fn plans(&self) -> HashMap<Uuid, String> {
        lock(&self.plans).clone()
    }

    /// Applies the rules again to all admitted visitors, after the country database has changed.
    pub fn reevaluate(&self) {
        lock(&self.shared.tunnels).values().for_each(|tunnel| tunnel.access.reevaluate());
    }

    /// Stops serving a lease. When this returns, its ports are closed. They stay closed for at
    /// most `CLOSED_FOR`, the time in which the store ends the session.
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

    /// Whether this node has ended a lease that the store may still show as open.
    fn is_closed(&self, lease: &Lease) -> bool {
        let mut closed = lock(&self.closed);
        let Some((epoch, at)) = closed.get(&lease.tunnel_id).copied() else { return false };
        let holds = lease.epoch <= epoch && self.shared.clock.moment().since(at) < CLOSED_FOR;
        if !holds {
            closed.remove(&lease.tunnel_id);
        }
        holds
    }

    /// The session relay of a session that is served here, or was until recently.
    fn run_of(&self, id: RunId) -> Option<Arc<SessionRelay>> {
        let is = |run: &Arc<SessionRelay>| run.lease().session_id == id.session_id;
        let served = lock(&self.shared.tunnels).get(&id.tunnel_id).map(Tunnel::run).filter(is);
        served.or_else(|| lock(&self.ending).iter().find(|run| is(run)).cloned())
    }

    /// Ends a run, and waits until no more bytes of its visitors can arrive.
    pub async fn end_run(&self, id: RunId) {
        if let Some(run) = self.run_of(id) {
            self.close_off(run.lease());
            run.finish().await;
        }
    }

    /// Allows a session that was ended here to be served again, because the store still has it open.
    pub fn reopen_run(&self, id: RunId) {
        if self.run_of(id).is_some() {
            lock(&self.closed).remove(&id.tunnel_id);
        }
    }

    /// Brings one tunnel in line with the store: serves its lease, or ends it if it is not placed on this
    /// node.
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

    /// Brings the node in line with the store: serves the leases placed on it, and ends all other tunnels.
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

    /// The runs with traffic that is not recorded yet. With `over`, only runs that have ended.
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

    /// Takes the traffic of a run since the last call.
    pub fn take_traffic(&self, id: RunId) -> Traffic {
        self.run_of(id).map(|run| run.take_traffic()).unwrap_or_default()
    }

    /// Returns traffic that could not be recorded, so that the next [`Node::take_traffic`] counts it again.
    pub fn give_back(&self, id: RunId, traffic: Traffic) {
        if let Some(run) = self.run_of(id) {
            run.give_back(traffic);
        }
    }

    /// Ends all tunnels.
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
