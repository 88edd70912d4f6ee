//! One host: everything that a request, an agent or a visitor meets, and how it starts and stops.

use std::fs::{File, TryLockError};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use argon2::{Argon2, PasswordHasher};
use culvert_wire::clock::Clock;
use culvert_wire::private_dir;
use salvo::conn::TcpListener;
use salvo::fuse::FusePolicy;
use salvo::server::ServerHandle;
use salvo::{Listener, Server};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::config::{Config, ConfigError, NodeConfig};
use crate::deliveries::{self, DeliveryWorker};
use crate::gate::Gate;
use crate::gateway::Gateway;
use crate::http::listener::{self, Admission, Connections};
use crate::http::middleware::auth::{FailedAuthLimiter, KeyCache};
use crate::http::middleware::rate_limit::RateLimits;
use crate::keyed_mutex::KeyedMutex;
use crate::metrics::{Metrics, TrafficCounter};
use crate::node::countries::Countries;
use crate::node::embedded::{self, Nodes};
use crate::node::{Node, NodeContext};
use crate::store::catalog::NodeRegistration;
use crate::store::db::Db;
use crate::store::{Hint, Store, key_check};
use crate::{admin, domain_checks, http, policies, ticker};
use culvert_domain::error::{Chain, Error, Result};
use culvert_domain::session::EndReason;
use culvert_policy::serve::generations::Generations;
use culvert_webhook::client::Client;
use culvert_webhook::dns::Dns;
use culvert_webhook::guard::{AddressPolicy, Guard};

/// How long requests and agents have to end when the host does.
const GRACE: Duration = Duration::from_secs(10);
/// Password hashes that are made at the same time: each takes 19 MiB.
const HASHERS: usize = 2;
/// Connections to the admin listener: an operator, a scraper and a health check take one each.
const ADMIN_CONNECTIONS: usize = 64;

pub struct App {
    pub config: Config,
    pub docs_url: String,
    pub clock: Clock,
    /// New with every start.
    pub host_id: Uuid,
    pub store: Arc<Store>,
    pub gate: Gate,
    pub policies: Generations,
    pub metrics: Metrics,
    pub keys: KeyCache,
    pub limits: RateLimits,
    pub failed_auth: FailedAuthLimiter,
    /// Those who tried enrolment codes that were none.
    pub wrong_codes: FailedAuthLimiter,
    /// Requests with the same Idempotency-Key.
    pub idempotency_locks: KeyedMutex<(Uuid, String)>,
    /// Requests that change the same scope.
    pub scopes: KeyedMutex<Uuid>,
    pub gateway: Gateway,
    /// Who is connected to the API's listener.
    pub connections: Arc<Connections>,
    pub nodes: Arc<Nodes>,
    pub courier: DeliveryWorker,
    /// Looks up names.
    pub guard: Arc<Guard>,
    /// Everything that must come to its end before the host does.
    pub tasks: TaskTracker,
    pub stop: CancellationToken,
    /// What an operator shows on the admin listener.
    pub admin_token: String,
    hashers: Semaphore,
}

impl App {
    /// The hash of a password; hashing is slow on purpose, and done aside.
    pub async fn hash_password(&self, password: Option<String>) -> Result<Option<String>> {
        let Some(password) = password else { return Ok(None) };
        let salt: [u8; 16] = self.clock.random();
        let _one = self.hashers.acquire().await.map_err(Error::internal)?;
        let hashed = tokio::task::spawn_blocking(move || {
            Argon2::default().hash_password_with_salt(password.as_bytes(), &salt).map(|hash| hash.to_string())
        });
        hashed.await.map_err(Error::internal)?.map(Some).map_err(Error::internal)
    }
}

/// A host that runs.
pub struct Host {
    pub app: Arc<App>,
    /// Where the API is, and where the operator's own listener is.
    pub address: SocketAddr,
    pub admin_address: SocketAddr,
    servers: Vec<(ServerHandle, JoinHandle<io::Result<()>>)>,
    /// The relay, the courier, and what looks after custom domains.
    workers: Vec<JoinHandle<()>>,
    _lock: File,
}

/// Whether a host looks by itself at what time brings about, or is told to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ticker {
    Auto,
    /// For tests, which call [`crate::ticker::tick`].
    Manual,
}

impl Host {
    /// Starts a host.
    ///
    /// # Errors
    ///
    /// One line that names the setting and what to do.
    pub async fn start(config: Config, clock: Clock, pace: Ticker) -> std::result::Result<Self, ConfigError> {
        let lock = lock_data_dir(&config)?;
        let db = open_database(&config).await?;
        let secrets = key_check::open(&db, &config.secret_key_file(), &clock).await;
        let secrets = secrets.map_err(|e| ConfigError::new("secret_key_file", Chain(&e)))?;
        let admin_token = admin::token(&config.data_dir, &clock);
        let admin_token = admin_token.map_err(|e| ConfigError::new("data_dir", format!("{}: {e}", admin::TOKEN)))?;
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let (store, wakes) = Store::new(db, clock.clone(), secrets, tasks.clone());
        let store = Arc::new(store);
        let mut metrics = Metrics::new();
        let policies = policies::open(&config, clock.clone(), store.secrets(), &mut metrics.registry)?;
        let (guard, courier) = open_courier(&config, &clock)?;
        let countries = Countries::open(config.geoip.database.as_deref());
        let countries = Arc::new(countries.map_err(|e| ConfigError::new("geoip.database", e))?);
        let refusals = metrics.refused.clone();
        let cx = NodeContext { refusals, countries, tasks: tasks.clone(), stop: stop.clone() };
        let nodes = Arc::new(open_nodes(&config, &store, cx, metrics.bytes.clone()).await?);
        store.attach(nodes.clone());
        let api = &config.api;
        let (trusted, refused) = (config.trusted_proxies.clone(), metrics.connections.clone());
        let connections = Connections::new(api.connections_per_address, trusted, refused.clone());
        let app = Arc::new(App {
            docs_url: config.docs_url(),
            host_id: clock.id(),
            gate: Gate::new(store.clone(), guard.clone()),
            policies,
            metrics,
            guard,
            keys: KeyCache::new(clock.clone()),
            limits: RateLimits::new(&config.rate_limit),
            failed_auth: FailedAuthLimiter::new(config.rate_limit.failed_auth_per_minute),
            wrong_codes: FailedAuthLimiter::new(config.rate_limit.failed_auth_per_minute),
            idempotency_locks: KeyedMutex::new(),
            scopes: KeyedMutex::new(),
            gateway: Gateway::new(api.agents, refused.clone()),
            connections,
            admin_token,
            courier,
            nodes,
            tasks,
            stop,
            hashers: Semaphore::new(HASHERS),
            config,
            clock,
            store,
        });
        Self::open(app, wakes, pace, lock).await
    }

    async fn open(
        app: Arc<App>,
        wakes: mpsc::UnboundedReceiver<Hint>,
        pace: Ticker,
        lock: File,
    ) -> std::result::Result<Self, ConfigError> {
        enter_keys(&app).await.map_err(|e| ConfigError::new("database_url", Chain(&e)))?;
        app.keys.recall(&app.store).await.map_err(|e| ConfigError::new("database_url", Chain(&e)))?;
        app.nodes.accept_agents().await.map_err(|e| ConfigError::new("database_url", Chain(&e)))?;
        let admission = Admission(app.connections.clone());
        let api = (http::service(&app), admission, app.config.api.connections);
        let (address, api) = serve("listen", app.config.listen, api).await?;
        let admin = (admin::service(&app), listener::timeouts(), ADMIN_CONNECTIONS);
        let (admin_address, admin) = serve("admin_listen", app.config.admin_listen, admin).await?;
        let workers = vec![
            tokio::spawn(ticker::run(app.clone(), wakes, pace)),
            tokio::spawn(deliveries::run(app.clone())),
            tokio::spawn(domain_checks::run(app.clone())),
        ];
        if !admin_address.ip().is_loopback() {
            tracing::warn!(%admin_address, "admin_listen is no loopback address: the operator's token crosses the network in the clear");
        }
        tracing::info!(%address, %admin_address, nodes = app.nodes.ids().count(), "ready");
        Ok(Self { app, address, admin_address, servers: vec![api, admin], workers, _lock: lock })
    }

    /// Ends what runs: agents are told to come back, requests end, what was counted is kept.
    pub async fn stop(mut self) {
        let app = self.app.clone();
        app.stop.cancel();
        self.servers.iter().for_each(|(handle, _)| handle.stop_graceful(GRACE));
        for (_, server) in self.servers.drain(..) {
            let _ = server.await;
        }
        for worker in self.workers.drain(..) {
            let _ = worker.await;
        }
        app.nodes.close().await;
        if let Err(error) = ticker::end_sessions_of_nodes(&app).await {
            tracing::warn!(error = %Chain(&error), "the host's end was not noted");
        }
        app.tasks.close();
        let _ = app.clock.timeout(GRACE, app.tasks.wait()).await;
        app.policies.close();
        app.store.close().await;
        tracing::info!("stopped");
    }
}

/// One host a data folder: the lock goes with the process, however that ends.
fn lock_data_dir(config: &Config) -> std::result::Result<File, ConfigError> {
    let folder = &config.data_dir;
    let fail =
        |problem: &dyn std::fmt::Display| ConfigError::new("data_dir", format!("{}: {problem}", folder.display()));
    private_dir::open(folder).map_err(|e| fail(&e))?;
    let file = File::options().write(true).create(true).truncate(false).open(folder.join("host.lock"));
    let file = file.map_err(|e| fail(&e))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(fail(&"another host is running on it; stop it, or use another folder")),
        Err(TryLockError::Error(error)) => Err(fail(&error)),
    }
}

async fn open_database(config: &Config) -> std::result::Result<Db, ConfigError> {
    let fail = |problem: &dyn std::fmt::Display| ConfigError::new("database_url", problem);
    let db = Db::open(&config.database_url()).await.map_err(|e| fail(&e))?;
    db.migrate().await.map_err(|e| fail(&e))?;
    Ok(db)
}

/// What looks up names, and what sends events to them.
fn open_courier(config: &Config, clock: &Clock) -> std::result::Result<(Arc<Guard>, DeliveryWorker), ConfigError> {
    let dns = Dns::new(config.dns.resolver).map_err(|e| ConfigError::new("dns.resolver", e))?;
    let webhooks = &config.webhooks;
    let networks = AddressPolicy { allow: webhooks.allow_networks.clone(), deny: webhooks.deny_networks.clone() };
    let guard = Arc::new(Guard::new(dns, networks, clock.clone()));
    let client = Client::new(guard.clone(), clock.clone(), webhooks.extra_root_certificates.as_deref());
    let client = client.map_err(|e| ConfigError::new("webhooks.extra_root_certificates", e))?;
    Ok((guard, DeliveryWorker::new(client)))
}

/// The nodes in this process, known to everybody from now on.
async fn open_nodes(
    config: &Config,
    store: &Arc<Store>,
    cx: NodeContext,
    carried: TrafficCounter,
) -> std::result::Result<Nodes, ConfigError> {
    let countries = cx.countries.clone();
    let configs = config.nodes();
    let identities = embedded::identities(&config.data_dir, configs.len(), store.clock());
    let identities = identities.map_err(|e| ConfigError::new("data_dir", e))?;
    let mut nodes = Vec::new();
    for (identity, (setting, config)) in identities.into_iter().zip(configs) {
        let entered = enter(store, config, identity.id, countries.are_known()).await;
        entered.map_err(|e| ConfigError::new("database_url", Chain(&e)))?;
        let node = Node::open(identity, config, store.clone(), cx.clone()).await;
        nodes
            .push(node.map_err(|e| ConfigError::new(&format!("{setting}.listen"), format!("{}: {e}", config.listen)))?);
    }
    Ok(Nodes::new(nodes, countries, carried))
}

/// Has the database know the host's keys. Where they are others than before, the tokens of leases hold
/// no longer: what runs is given new ones.
async fn enter_keys(app: &App) -> Result<()> {
    if app.store.enter_keys().await? {
        tracing::info!("secret_key_file has a new key; what runs is leased anew");
        for node_id in app.nodes.ids() {
            app.store.end_sessions_of_node(node_id, EndReason::NodeShutdown).await?;
        }
    }
    Ok(())
}

/// Makes a node and its domain known, and gives running tunnels time to be found again.
async fn enter(store: &Store, config: &NodeConfig, id: Uuid, knows_countries: bool) -> Result<()> {
    let node = NodeRegistration {
        id,
        name: format!("node-{}", &id.simple().to_string()[24..]),
        hostname: config.hostname.clone(),
        ports: config.ports,
        knows_countries,
    };
    store
        .write(None, move |write| {
            Box::pin(async move {
                write.register_node(&node).await?;
                write.register_domain(&node.hostname).await?;
                write.extend_leases(node.id).await
            })
        })
        .await
}

async fn serve(
    setting: &str,
    address: SocketAddr,
    (service, admission, connections): (salvo::Service, impl FusePolicy, usize),
) -> std::result::Result<(SocketAddr, (ServerHandle, JoinHandle<io::Result<()>>)), ConfigError> {
    let fail = |problem: &dyn std::fmt::Display| ConfigError::new(setting, format!("{address}: {problem}"));
    let acceptor = TcpListener::new(address).try_bind().await.map_err(|e| fail(&e))?;
    let bound = acceptor.inner().local_addr().map_err(|e| fail(&e))?;
    let mut server = Server::new(acceptor).fuse_policy(admission).max_connections(connections);
    server.http1_mut().max_buf_size(listener::READ_AHEAD);
    let handle = server.handle();
    Ok((bound, (handle, tokio::spawn(server.try_serve(service)))))
}
