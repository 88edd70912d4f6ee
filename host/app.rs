//! One host: everything that a request, an agent or a visitor meets, and how it starts and stops.

use std::fs::{self, File, TryLockError};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use argon2::{Argon2, PasswordHasher};
use culvert_agent::clock::Clock;
use salvo::conn::TcpListener;
use salvo::server::ServerHandle;
use salvo::{Listener, Server};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::config::{Config, ConfigError, NodeConfig};
use crate::dns::Dns;
use crate::error::{Error, Result};
use crate::gate::Gate;
use crate::gateway::Gateway;
use crate::http::hoop::auth::{KeyCache, Strangers};
use crate::http::hoop::rate_limit::RateLimits;
use crate::meters::Meters;
use crate::node::countries::Countries;
use crate::node::embedded::{self, Nodes};
use crate::node::{Node, Surroundings};
use crate::policy::generations::Generations;
use crate::secret::Secrets;
use crate::store::catalog::EnteredNode;
use crate::store::db::Db;
use crate::store::{Store, Wake};
use crate::turn::Turns;
use crate::webhook::client::Client;
use crate::webhook::courier::{self, Courier};
use crate::webhook::network::{Guard, Networks};
use crate::{admin, http, names, relay};

/// How long requests and agents have to end when the host does.
const GRACE: Duration = Duration::from_secs(10);
/// Password hashes that are made at the same time: each takes 19 MiB.
const HASHERS: usize = 2;

pub struct App {
    pub config: Config,
    pub docs_url: String,
    pub clock: Clock,
    /// New with every start.
    pub host_id: Uuid,
    pub store: Arc<Store>,
    pub gate: Gate,
    pub policies: Generations,
    pub meters: Meters,
    pub keys: KeyCache,
    pub limits: RateLimits,
    pub strangers: Strangers,
    /// Requests with the same Idempotency-Key.
    pub twins: Turns<(Uuid, String)>,
    /// Requests that change the same scope.
    pub scopes: Turns<Uuid>,
    pub gateway: Gateway,
    pub nodes: Nodes,
    pub courier: Courier,
    /// Looks up names.
    pub guard: Arc<Guard>,
    /// Everything that must come to its end before the host does.
    pub tasks: TaskTracker,
    pub stop: CancellationToken,
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
pub enum Pace {
    ByItself,
    /// For tests, which call [`crate::relay::tick`].
    ByHand,
}

impl Host {
    /// Starts a host.
    ///
    /// # Errors
    ///
    /// One line that names the setting and what to do.
    pub async fn start(config: Config, clock: Clock, pace: Pace) -> std::result::Result<Self, ConfigError> {
        let lock = lock_data_dir(&config)?;
        let secret_file = config.secret_key_file();
        let secrets = Secrets::open(&secret_file, &clock).map_err(|e| ConfigError::new("secret_key_file", e))?;
        let db = open_database(&config).await?;
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let (store, wakes) = Store::new(db, clock.clone(), secrets, tasks.clone());
        let store = Arc::new(store);
        let mut meters = Meters::new();
        let policies = Generations::open(&config, clock.clone(), &mut meters.registry)?;
        let (guard, courier) = open_courier(&config, &clock)?;
        let nodes = open_nodes(&config, &store, &tasks, &stop).await?;
        let app = Arc::new(App {
            docs_url: config.docs_url(),
            host_id: clock.id(),
            gate: Gate::new(store.clone(), guard.clone()),
            policies,
            meters,
            guard,
            keys: KeyCache::new(clock.clone()),
            limits: RateLimits::new(&config.rate_limit),
            strangers: Strangers::new(config.rate_limit.failed_auth_per_minute),
            twins: Turns::new(),
            scopes: Turns::new(),
            gateway: Gateway::default(),
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
        wakes: mpsc::UnboundedReceiver<Wake>,
        pace: Pace,
        lock: File,
    ) -> std::result::Result<Self, ConfigError> {
        app.nodes.open_doors().await.map_err(|e| ConfigError::new("database_url", e))?;
        let (address, api) = serve("listen", app.config.listen, http::service(&app)).await?;
        let (admin_address, admin) = serve("admin_listen", app.config.admin_listen, admin::service(&app)).await?;
        let workers = vec![
            tokio::spawn(relay::run(app.clone(), wakes, pace)),
            tokio::spawn(courier::run(app.clone())),
            tokio::spawn(names::run(app.clone())),
        ];
        if !admin_address.ip().is_loopback() {
            tracing::warn!(%admin_address, "whoever reaches admin_listen can reload the policies; bind it to loopback, or keep others away");
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
        if let Err(error) = relay::leave(&app).await {
            tracing::warn!(%error, "the host's end was not noted");
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
    fs::create_dir_all(folder).map_err(|e| fail(&e))?;
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
fn open_courier(config: &Config, clock: &Clock) -> std::result::Result<(Arc<Guard>, Courier), ConfigError> {
    let dns = Dns::new(config.dns.resolver).map_err(|e| ConfigError::new("dns.resolver", e))?;
    let webhooks = &config.webhooks;
    let networks = Networks { allow: webhooks.allow_networks.clone(), deny: webhooks.deny_networks.clone() };
    let guard = Arc::new(Guard::new(dns, networks, clock.clone()));
    let client = Client::new(guard.clone(), clock.clone(), webhooks.extra_root_certificates.as_deref());
    let client = client.map_err(|e| ConfigError::new("webhooks.extra_root_certificates", e))?;
    Ok((guard, Courier::new(client)))
}

/// The nodes in this process, known to everybody from now on.
async fn open_nodes(
    config: &Config,
    store: &Arc<Store>,
    tasks: &TaskTracker,
    stop: &CancellationToken,
) -> std::result::Result<Nodes, ConfigError> {
    let countries = Countries::open(config.geoip.database.as_deref());
    let countries = Arc::new(countries.map_err(|e| ConfigError::new("geoip.database", e))?);
    let around = Surroundings { countries: countries.clone(), tasks: tasks.clone(), stop: stop.clone() };
    let configs = config.nodes();
    let identities = embedded::identities(&config.data_dir, configs.len(), store.clock());
    let identities = identities.map_err(|e| ConfigError::new("data_dir", e))?;
    let mut nodes = Vec::new();
    for (identity, (setting, config)) in identities.into_iter().zip(configs) {
        let entered = enter(store, config, identity.id, countries.are_known()).await;
        entered.map_err(|e| ConfigError::new("database_url", e))?;
        let node = Node::open(identity, config, store.clone(), around.clone()).await;
        nodes
            .push(node.map_err(|e| ConfigError::new(&format!("{setting}.listen"), format!("{}: {e}", config.listen)))?);
    }
    Ok(Nodes::new(nodes, countries))
}

/// Makes a node and its domain known, and gives running tunnels time to be found again.
async fn enter(store: &Store, config: &NodeConfig, id: Uuid, knows_countries: bool) -> Result<()> {
    let node = EnteredNode {
        id,
        name: format!("node-{}", &id.simple().to_string()[24..]),
        hostname: config.hostname.clone(),
        ports: config.ports,
        knows_countries,
    };
    store
        .write(None, move |write| {
            Box::pin(async move {
                write.enter_node(&node).await?;
                write.enter_domain(&node.hostname).await?;
                write.extend_leases(node.id).await
            })
        })
        .await
}

async fn serve(
    setting: &str,
    address: SocketAddr,
    service: salvo::Service,
) -> std::result::Result<(SocketAddr, (ServerHandle, JoinHandle<io::Result<()>>)), ConfigError> {
    let fail = |problem: &dyn std::fmt::Display| ConfigError::new(setting, format!("{address}: {problem}"));
    let acceptor = TcpListener::new(address).try_bind().await.map_err(|e| fail(&e))?;
    let bound = acceptor.inner().local_addr().map_err(|e| fail(&e))?;
    let server = Server::new(acceptor);
    let handle = server.handle();
    Ok((bound, (handle, tokio::spawn(server.try_serve(service)))))
}
