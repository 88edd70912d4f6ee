//! The data plane: public listeners for visitors, data connections of agents, and traffic counting.
//!
//! A node serves what its host assigns to it (`assignments`), over a channel of frames (`channel`,
//! [`culvert_wire::node`]). It knows no database and holds no secret of the host.

#![deny(unsafe_code)]
#![warn(unreachable_pub)]

mod addresses;
mod admission;
mod agent_listener;
mod assignments;
mod authority;
pub mod bounds;
mod carriers;
mod channel;
pub mod countries;
mod counts;
mod front;
mod identity;
mod journal;
mod lease_connections;
mod peek;
mod proxy_header;
mod public_listener;
mod quic_listener;
mod reported_visitors;
mod session;
mod udp;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use culvert_wire::base64_bytes::Base64Bytes;
use culvert_wire::clock::{Clock, Moment};
use culvert_wire::control::NodeAddress;
use culvert_wire::lease_token::VerifyingKey;
use culvert_wire::node::ToHost;
use culvert_wire::quic;
use ipnet::IpNet;
use quinn::EndpointConfig;
use rustls::ServerConfig;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use assignments::Assignments;
use authority::Authority;
use bounds::{Bound, Bounds, Limits};
use carriers::Carriers;
use countries::Countries;
use counts::Counts;
use front::Front;
use front::certificates::Certificates;
pub use front::limits::WebLimits;
use front::routes::Routes;
pub use front::scheme::{PublicPorts, Scheme};
pub use identity::{Identity, IdentityError};
use journal::Journal;
use public_listener::Tunnel;
use reported_visitors::ReportedVisitors;
use session::Work;
use udp::UnprovenAnswers;

/// Where a node listens, and what it allows.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The name under which visitors and agents reach the node.
    pub hostname: String,
    /// The address of the agents' data connections.
    pub listen: SocketAddr,
    /// The address of their connections of QUIC.
    pub udp: Option<SocketAddr>,
    /// The address that public ports are bound to.
    pub bind: IpAddr,
    /// Where visitors of http tunnels come in the clear.
    pub http: Option<WebListen>,
    /// Where they come by HTTPS.
    pub https: Option<WebListen>,
    pub limits: Limits,
    pub web: WebLimits,
    /// Networks whose PROXY headers and forwarding headers are believed.
    pub trusted_proxies: Vec<IpNet>,
}

/// A listener for visitors of http tunnels.
#[derive(Clone, Copy, Debug)]
pub struct WebListen {
    pub address: SocketAddr,
    /// The port as visitors see it, where it is another one.
    pub public_port: Option<u16>,
}

/// Resources that a node gets from its process.
#[derive(Clone)]
pub struct NodeContext {
    pub clock: Clock,
    /// Called for each connection that a limit refuses.
    pub on_refused: Arc<dyn Fn(Bound) + Send + Sync>,
    pub countries: Arc<Countries>,
    pub tasks: TaskTracker,
    pub stop: CancellationToken,
}

/// Why a node cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The listener for agents, or its key, is unusable.
    #[error(transparent)]
    Agents(#[from] io::Error),
    #[error("{0}: {1}")]
    Udp(SocketAddr, io::Error),
    #[error("{address}: {error}")]
    Web { scheme: Scheme, address: SocketAddr, error: io::Error },
}

pub struct Node {
    id: Uuid,
    boot_id: Uuid,
    address: NodeAddress,
    shared: Arc<Shared>,
    /// The listeners, until the first assignments are served.
    listeners: Mutex<Option<Listeners>>,
    /// The channel to the host, while there is one.
    host: Mutex<Option<mpsc::Sender<ToHost>>>,
    front: Arc<Front>,
    authority: Arc<Authority>,
    /// One change at a time.
    assignments: tokio::sync::Mutex<Assignments>,
    journal: Mutex<Journal>,
    visitors: Mutex<ReportedVisitors>,
}

/// Listeners that accept nobody yet.
struct Listeners {
    agents: TcpListener,
    tls: Arc<ServerConfig>,
    quic: Option<(UdpSocket, EndpointConfig, quinn::ServerConfig)>,
    web: Vec<(Scheme, TcpListener)>,
}

/// State that the parts of a node share.
struct Shared {
    node_id: Uuid,
    bind: IpAddr,
    clock: Clock,
    tasks: TaskTracker,
    stop: CancellationToken,
    countries: Arc<Countries>,
    bounds: Arc<Bounds>,
    counts: Arc<Counts>,
    /// The keys that tokens are verified with.
    keys: Mutex<Arc<[VerifyingKey]>>,
    tunnels: Mutex<HashMap<Uuid, Tunnel>>,
    carriers: Arc<Carriers<Work>>,
    unproven_answers: Arc<UnprovenAnswers>,
    routes: Routes,
    certificates: Arc<Certificates>,
    trusted_proxies: Vec<IpNet>,
    /// When a failure to accept visitors was last logged.
    complained: Mutex<Option<Moment>>,
}

impl Shared {
    /// Logs a failure to accept a visitor, at most once a second for all ports together.
    fn log_unaccepted(&self, error: &io::Error) {
        let now = self.clock.moment();
        let mut complained = lock(&self.complained);
        if complained.is_none_or(|last| now.since(last) >= Duration::from_secs(1)) {
            *complained = Some(now);
            tracing::warn!(%error, "visitors cannot be accepted");
        }
    }
}

impl Node {
    /// Binds the listeners. They accept no connections before the node serves its first assignments: an
    /// agent whose lease is not served yet gets the same answer as one whose lease has ended, and a name that is not
    /// known yet the same as one that does not exist.
    ///
    /// # Errors
    ///
    /// If an address cannot be bound, or the identity's key is unusable.
    pub async fn open(identity: Identity, settings: &Settings, cx: NodeContext) -> Result<Self, OpenError> {
        let NodeContext { clock, on_refused, countries, tasks, stop } = cx;
        let listener = TcpListener::bind(settings.listen).await?;
        let udp = settings.udp.map(bind_udp).transpose()?;
        let address = NodeAddress {
            host: settings.hostname.clone(),
            port: listener.local_addr()?.port(),
            udp_port: udp.as_ref().map(|(_, port)| *port),
            fingerprint: Base64Bytes(identity.fingerprint().into()),
        };
        let (id, boot_id) = (identity.id, clock.id());
        let tls = identity.tls().map_err(io::Error::other)?;
        let (endpoint, server) = identity.quic(settings.limits.unproven).map_err(io::Error::other)?;
        let quic = udp.map(|(socket, _)| (socket, endpoint, server));
        let counts = Arc::<Counts>::default();
        let authority = Arc::new(Authority::new(clock.clone()));
        let carriers = Carriers::new(counts.clone(), clock.clone(), authority.clone());
        let shared = Arc::new(Shared {
            node_id: id,
            bind: settings.bind,
            clock,
            tasks,
            stop,
            countries,
            bounds: Bounds::new(&settings.limits, on_refused),
            carriers,
            unproven_answers: Arc::new(UnprovenAnswers::new()),
            counts,
            keys: Mutex::new(Arc::new([])),
            tunnels: Mutex::default(),
            routes: Routes::default(),
            certificates: Arc::default(),
            trusted_proxies: settings.trusted_proxies.clone(),
            complained: Mutex::default(),
        });
        let mut ports = PublicPorts::default();
        let mut web = Vec::new();
        for (scheme, listen) in [(Scheme::Http, settings.http), (Scheme::Https, settings.https)] {
            let Some(WebListen { address, public_port }) = listen else { continue };
            let failed = |error| OpenError::Web { scheme, address, error };
            let listener = TcpListener::bind(address).await.map_err(failed)?;
            let bound = listener.local_addr().map_err(failed)?.port();
            ports.set(scheme, public_port.unwrap_or(bound));
            web.push((scheme, listener));
        }
        let front = Front::new(shared.clone(), settings.web, ports)?;
        Ok(Self {
            id,
            boot_id,
            address,
            front,
            authority,
            shared,
            listeners: Mutex::new(Some(Listeners { agents: listener, tls, quic, web })),
            host: Mutex::default(),
            assignments: tokio::sync::Mutex::default(),
            journal: Mutex::new(Journal::new(boot_id)),
            visitors: Mutex::default(),
        })
    }

    pub fn id(&self) -> Uuid {
        self.id
    }

    /// Where agents reach it.
    pub fn address(&self) -> &NodeAddress {
        &self.address
    }

    /// The ports at which visitors of http tunnels come.
    pub fn public_ports(&self) -> PublicPorts {
        self.front.ports
    }

    /// Bytes that the buffers of all pipes take.
    pub fn buffer_bytes(&self) -> usize {
        self.shared.bounds.buffers.taken()
    }

    /// Starts to accept agents and visitors of http tunnels, once.
    fn start_accepting(&self) {
        if let Some(Listeners { agents, tls, quic, web }) = lock(&self.listeners).take() {
            agent_listener::open(self.shared.clone(), agents, tls);
            if let Some((socket, endpoint, server)) = quic
                && let Err(error) = quic_listener::open(self.shared.clone(), socket, endpoint, server)
            {
                tracing::warn!(%error, "agents cannot use QUIC");
            }
            web.into_iter().for_each(|(scheme, listener)| self.front.listen(scheme, listener));
        }
    }
}

fn bind_udp(address: SocketAddr) -> Result<(UdpSocket, u16), OpenError> {
    let bound = quic::bind(address).and_then(|socket| Ok((socket.local_addr()?.port(), socket)));
    let (port, socket) = bound.map_err(|error| OpenError::Udp(address, error))?;
    Ok((socket, port))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
