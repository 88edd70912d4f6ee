//! One host: its parts, and how it starts and stops.

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use culvert_certificates::acme::Authority;
use culvert_certificates::dns_command::DnsCommand;
use culvert_certificates::zone::Zone;
use culvert_domain::error::{Chain, Error, Result};
use culvert_node::NodeContext;
use culvert_node::bounds::Bound;
use culvert_node::countries::Countries;
use culvert_webhook::client::Client;
use culvert_webhook::dns::Dns;
use culvert_webhook::guard::{AddressPolicy, Guard};
use culvert_wire::clock::{Clock, Moment};
use culvert_wire::socket;
use salvo::conn::TcpListener;
use salvo::conn::tcp::TcpAcceptor;
use salvo::fuse::FusePolicy;
use salvo::server::ServerHandle;
use salvo::{Listener, Server};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::admin::{self, Admin};
use crate::claim;
use crate::config::{AcmeDns, Config, ConfigError, NodeReplace};
use crate::database;
use crate::embedded::{self, Embedded};
use crate::policies;
use crate::site;
use culvert_dashboard::Dashboard;
use culvert_dashboard::docs::Docs;
use culvert_gateway::{self as gateway, Arrivals, Control};
use culvert_http::listener::{self, Admission, Connections};
use culvert_http::{self as http, Api};
use culvert_policy::serve::generations::Generations;
use culvert_service::authentication::Authentication;
use culvert_service::database_clock::DatabaseClock;
use culvert_service::fleet::{Fleet, LostNodes};
use culvert_service::jobs::certificates::{self, CertificateWorker, DnsProof};
use culvert_service::jobs::deliveries::{self, DeliveryWorker};
use culvert_service::jobs::mail::{self, MailWorker};
use culvert_service::jobs::notifier::{self, Notifier};
use culvert_service::jobs::wakeups::{self, Wakeups};
use culvert_service::jobs::{
    Jobs, Ticker, domain_checks, drain, heartbeat, listener as listener_job, refusals as refusals_job, ticker,
};
use culvert_service::local_roots::LocalRoots;
use culvert_service::metrics::Metrics;
use culvert_service::rate_limits::RateLimits;
use culvert_service::refusals::Refusals;
use culvert_service::scope_changes::ScopeChanges;
use culvert_service::secrets::Secrets;
use culvert_service::{Service, audit_log, keys, sessions};
use culvert_store::{Hint, Store, rate};

/// How long requests and agents have to end when the host stops.
const GRACE: Duration = Duration::from_secs(10);
/// How long a host that has not started may take to say so.
const RELEASE_WITHIN: Duration = Duration::from_secs(2);
/// Connections to the admin listener, at most. An operator, a scraper and a health check take one each.
const ADMIN_CONNECTIONS: usize = 64;

/// The parts of one host. Requests, agents and background jobs get a context with the parts they need, not
/// this struct.
pub struct App {
    pub config: Config,
    pub clock: Clock,
    pub store: Arc<Store>,
    pub secrets: Secrets,
    pub policies: Arc<Generations>,
    pub service: Arc<Service>,
    /// The connections to the API listener.
    connections: Arc<Connections>,
    pub embedded: Arc<Embedded>,
    pub api: Arc<Api>,
    docs: Arc<Docs>,
    /// None where it is turned off.
    pub dashboard: Option<Arc<Dashboard>>,
    pub control: Arc<Control>,
    pub jobs: Arc<Jobs>,
    pub admin: Arc<Admin>,
}

/// A running host.
pub struct Host {
    pub app: Arc<App>,
    /// The addresses of the API listener and of the admin listener.
    pub address: SocketAddr,
    pub admin_address: SocketAddr,
    servers: Vec<(ServerHandle, JoinHandle<io::Result<()>>)>,
    /// The ticker, the delivery worker, and the checks of custom domains.
    workers: Vec<JoinHandle<()>>,
    _lock: File,
}

impl Host {
    /// Starts a host.
    ///
    /// # Errors
    ///
    /// One line that names the setting and what to do.
    pub async fn start(config: Config, clock: Clock, ticker: Ticker) -> std::result::Result<Self, ConfigError> {
        let started = Self::start_unless(config, clock, ticker, std::future::pending()).await?;
        started.ok_or_else(|| ConfigError::whole("the host was told to stop while it started"))
    }

    /// As [`Host::start`]; None if it is told to stop before it is ready.
    pub(crate) async fn start_unless(
        config: Config,
        clock: Clock,
        ticker: Ticker,
        stopped: impl Future<Output = ()>,
    ) -> std::result::Result<Option<Self>, ConfigError> {
        let mut place = None;
        let started = tokio::select! {
            started = Self::take_place(config, clock.clone(), ticker, &mut place) => started.map(Some),
            () = stopped => Ok(None),
        };
        if !matches!(started, Ok(Some(_)))
            && let Some((store, host_id, stop)) = place
        {
            // Nobody is to wait for its nodes, which end, nor does it say any longer that it is alive.
            stop.cancel();
            let released = clock.timeout(RELEASE_WITHIN, store.release_host(host_id)).await;
            if !matches!(released, Ok(Ok(()))) {
                tracing::warn!("the other hosts were not told that this one has not started: they wait for its nodes");
            }
        }
        started
    }

    /// As [`Host::start`]; says which place it has taken among the hosts on its database.
    async fn take_place(
        config: Config,
        clock: Clock,
        ticker: Ticker,
        place: &mut Option<(Arc<Store>, Uuid, CancellationToken)>,
    ) -> std::result::Result<Self, ConfigError> {
        let lock = claim::lock_data_dir(&config)?;
        let db = database::open(&config, config.migrates()).await?;
        let secrets = keys::open(&db, &config.secret_key_file(), &clock).await;
        let secrets = secrets.map_err(|e| ConfigError::new("secret_key_file", Chain(&e)))?;
        keys::warn_if_exposed(&config.secret_key_file());
        let admin_token = admin::token(&config.data_dir, &clock);
        let admin_token = admin_token.map_err(|e| ConfigError::new("data_dir", format!("{}: {e}", admin::TOKEN)))?;
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let (store, hints) = Store::new(db, clock.clone(), tasks.clone());
        audit_log::sign_with(&store, &secrets);
        let store = Arc::new(store);
        // No other host can be there.
        if !store.is_on_a_server() {
            secrets.use_newest();
        }
        store.set_own_names(vec![config.public_host(), config.dashboard_host()]);
        let identities = embedded::identities(&config.data_dir, config.nodes().len(), &clock);
        let identities = identities.map_err(|e| ConfigError::new("data_dir", e))?;
        let host_id = identities.first().map(|node| node.id);
        let mut metrics = Metrics::new(Bound::ALL.map(Bound::name));
        let policies = policies::open(&config, &store, &secrets, &mut metrics.registry, host_id).await?;
        let (guard, deliveries) = open_deliveries(&config, &clock)?;
        let certificates = open_certificates(&config, &clock).await?;
        let mail = config.mail.worker()?;
        let countries = Countries::open(config.geoip.database.as_deref());
        let countries = Arc::new(countries.map_err(|e| ConfigError::new("geoip.database", e))?);
        let refused = metrics.refused.clone();
        let cx = NodeContext {
            clock: clock.clone(),
            on_refused: Arc::new(move |bound| refused.count(bound.name())),
            countries,
            tasks: tasks.clone(),
            stop: stop.clone(),
        };
        // Only a host that shares its database is to be heard of.
        let is_heard_of = store.is_on_a_server() && (ticker == Ticker::Auto || config.several_hosts);
        let claimed = claim::claim(&config, (&store, &secrets), &identities, &lock, policies.number()).await?;
        *place = host_id.map(|host_id| (store.clone(), host_id, stop.clone()));
        let claimed = claimed.filter(|_| is_heard_of);
        let embedded = Arc::new(embedded::open(&config, identities, &store, cx).await?);
        if config.dashboard.enabled {
            site::check_dashboard(&config, &store).await?;
        }
        let parts = Parts {
            store,
            secrets,
            policies,
            guard,
            deliveries,
            mail,
            certificates,
            metrics,
            embedded,
            claimed,
            admin_token,
            tasks,
            stop,
        };
        let app = Arc::new(compose(config, clock, parts));
        Self::open(app, hints, ticker, lock).await
    }

    async fn open(
        app: Arc<App>,
        hints: mpsc::UnboundedReceiver<Hint>,
        mode: Ticker,
        lock: File,
    ) -> std::result::Result<Self, ConfigError> {
        let database = |e: Error| ConfigError::new("database_url", Chain(&e));
        end_unprovable_sessions(&app).await.map_err(database)?;
        app.service.try_policies_by(policies::how_to_try(&app.policies));
        // Those that have come into use since they were loaded. From here on, the other hosts wait for this one.
        app.service.follow_policies().await.map_err(database)?;
        app.api.authentication.recall(&app.service).await.map_err(database)?;
        start_certificates(&app).await?;
        // Before the nodes serve: what fails up to here has served nothing.
        let (listen, admin_listen) = (app.config.listen, app.config.admin_listen);
        let (listen, admin_listen) = (bind("listen", listen).await?, bind("admin_listen", admin_listen).await?);
        let mut workers = Vec::new();
        // While the database is away, the nodes may serve again with the heartbeat that finds it back.
        if app.store.is_on_a_server() && mode == Ticker::Auto {
            workers.push(tokio::spawn(heartbeat::run(app.jobs.clone())));
        }
        tokio::select! {
            () = app.embedded.connect(&app.service, mode) => {}
            cause = app.service.fleet().until_it_ends() => return Err(claim::end_of(cause, &app.config)),
        }
        let admission = Admission(app.connections.clone());
        let mut more = vec![gateway::router(&app.control)];
        more.extend(culvert_dashboard::docs::routers(&app.docs));
        more.extend(app.dashboard.iter().map(culvert_dashboard::router));
        let api = (http::service(&app.api, more), admission, app.config.api.connections);
        let (address, api) = serve(listen, api);
        let admin = (admin::service(&app.admin), listener::timeouts(), ADMIN_CONNECTIONS);
        let (admin_address, admin) = serve(admin_listen, admin);
        workers.extend([
            tokio::spawn(ticker::run(app.jobs.clone(), hints, mode)),
            tokio::spawn(deliveries::run(app.jobs.clone())),
            tokio::spawn(domain_checks::run(app.jobs.clone())),
            tokio::spawn(certificates::run(app.jobs.clone())),
            tokio::spawn(refusals_job::run(app.jobs.clone())),
            tokio::spawn(mail::run(app.jobs.clone())),
        ]);
        if app.store.is_on_a_server() && (mode == Ticker::Auto || app.config.several_hosts) {
            workers.push(tokio::spawn(listener_job::run(app.jobs.clone())));
            workers.push(tokio::spawn(notifier::run(app.jobs.clone())));
            workers.push(tokio::spawn(drain::run(app.jobs.clone())));
            workers.push(tokio::spawn(wakeups::run_once(app.jobs.clone())));
        }
        site::warn_if_shared(&app.config);
        app.config.acme.warn(&app.config.node);
        if !admin_address.ip().is_loopback() {
            tracing::warn!(%admin_address, "admin_listen is no loopback address: the operator's token crosses the network in the clear");
        }
        tracing::info!(%address, %admin_address, nodes = app.embedded.count(), "ready");
        Ok(Self { app, address, admin_address, servers: vec![api, admin], workers, _lock: lock })
    }

    /// Has other hosts take the work of this one before it stops, as long as the settings allow.
    pub async fn drain(&self) {
        if let Err(error) = drain::before_stop(&self.app.jobs, self.app.config.drain.times()).await {
            tracing::warn!(error = %Chain(&error), "the other hosts could not be asked to take over");
        }
    }

    /// Stops the host: agents get a goodbye, requests end, and counts are recorded.
    pub async fn stop(mut self) {
        let app = self.app.clone();
        app.jobs.stop.cancel();
        app.jobs.changes.close();
        self.servers.iter().for_each(|(handle, _)| handle.stop_graceful(GRACE));
        for (_, server) in self.servers.drain(..) {
            let _ = server.await;
        }
        for worker in self.workers.drain(..) {
            let _ = worker.await;
        }
        if app.clock.timeout(GRACE, app.embedded.close()).await.is_err() {
            tracing::warn!("the last traffic of the nodes was not stored");
        }
        if let Err(error) = ticker::end_sessions_of_nodes(&app.jobs).await {
            tracing::warn!(error = %Chain(&error), "the host's end was not noted");
        }
        app.jobs.tasks.close();
        let _ = app.clock.timeout(GRACE, app.jobs.tasks.wait()).await;
        if let Err(error) = app.store.end_host(app.service.fleet().host_id()).await {
            tracing::warn!(error = %Chain(&error), "the other hosts did not hear of the host's end");
        }
        app.embedded.disconnect();
        app.policies.close();
        app.store.close().await;
        tracing::info!("stopped");
    }
}

/// What a host is composed of.
struct Parts {
    store: Arc<Store>,
    secrets: Secrets,
    policies: Generations,
    guard: Arc<Guard>,
    deliveries: DeliveryWorker,
    mail: MailWorker,
    certificates: CertificateWorker,
    metrics: Metrics,
    embedded: Arc<Embedded>,
    /// When the process has taken its place among the hosts on its database.
    claimed: Option<Moment>,
    admin_token: String,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// Makes the service and the context of each of its callers.
fn compose(config: Config, clock: Clock, parts: Parts) -> App {
    let Parts { store, secrets, metrics, embedded, tasks, stop, .. } = parts;
    let policies = Arc::new(parts.policies);
    let (guard, nodes) = (parts.guard, (metrics.nodes.clone(), metrics.fleet.clone()));
    let fleet = fleet(&config, &embedded, clock.clone(), parts.claimed);
    let service = Arc::new(Service::new(store.clone(), secrets.clone(), policies.clone(), guard, nodes, fleet));
    let metrics = Arc::new(metrics);
    let (refusals, changes) = (Arc::new(Refusals::default()), Arc::new(ScopeChanges::default()));
    let api = Arc::new(api(&config, &service, &metrics, &refusals));
    let (most, refused) = (config.api.connections_per_address, metrics.connections.clone());
    let connections = Connections::new(most, config.trusted_proxies.clone(), refused);
    let control = Arc::new(control(&config, &service, &metrics, &connections, &stop, &tasks));
    let jobs = Arc::new(Jobs {
        service: service.clone(),
        agents: control.agents.clone(),
        rate_limits: api.rate_limits.clone(),
        changes: changes.clone(),
        wakeups: Wakeups::new(&clock),
        notifier: Notifier::default(),
        database_clock: DatabaseClock::default(),
        deliveries: parts.deliveries,
        mail: parts.mail,
        certificates: parts.certificates,
        refusals: refusals.clone(),
        metrics: metrics.clone(),
        clock: clock.clone(),
        stop,
        tasks,
    });
    let admin = Arc::new(Admin {
        service: service.clone(),
        policies: policies.clone(),
        agents: control.agents.clone(),
        metrics,
        embedded: embedded.clone(),
        host_id: service.fleet().host_id(),
        token: parts.admin_token,
        metrics_open: config.metrics_open,
        is_loopback: config.admin_listen.ip().is_loopback(),
        config_file: config.file.clone(),
        geoip_database: config.geoip.database.clone(),
    });
    let (countries, agents) = (embedded.countries.clone(), control.agents.clone());
    let shown = site::Shown { service: &service, policies: &policies, refusals, changes, countries, agents };
    let (docs, dashboard) = site::pages(&config, shown);
    App {
        config,
        clock,
        store,
        secrets,
        policies,
        service,
        connections,
        embedded,
        api,
        docs,
        dashboard,
        control,
        jobs,
        admin,
    }
}

/// The host has the id of its first node.
fn fleet(config: &Config, embedded: &Embedded, clock: Clock, claimed: Option<Moment>) -> Fleet {
    let host_id = embedded.ids().next().unwrap_or_else(|| clock.id());
    let nodes = LostNodes { after: config.node_authority(), are_replaced: config.node_replace == NodeReplace::Any };
    Fleet::new(host_id, config.agent_url(), nodes, clock, claimed)
}

/// Opens the guard that looks up DNS names, and the delivery worker for webhooks.
fn open_deliveries(config: &Config, clock: &Clock) -> std::result::Result<(Arc<Guard>, DeliveryWorker), ConfigError> {
    let dns = Dns::new(config.dns.resolver).map_err(|e| ConfigError::new("dns.resolver", e))?;
    let webhooks = &config.webhooks;
    let networks = AddressPolicy { allow: webhooks.allow_networks.clone(), deny: webhooks.deny_networks.clone() };
    let guard = Arc::new(Guard::new(dns, networks, clock.clone()));
    let client = Client::new(guard.clone(), clock.clone(), webhooks.extra_root_certificates.as_deref());
    let client = client.map_err(|e| ConfigError::new("webhooks.extra_root_certificates", e))?;
    Ok((guard, DeliveryWorker::new(client)))
}

/// Opens the worker that has certificates issued.
async fn open_certificates(config: &Config, clock: &Clock) -> std::result::Result<CertificateWorker, ConfigError> {
    let local_roots = LocalRoots::new(config.ca_dir(), config.domains());
    let acme = &config.acme;
    let Some(directory) = acme.directory.clone() else {
        return Ok(CertificateWorker::new(local_roots, None, acme.orders_per_hour));
    };
    let authority = Authority::new(directory, acme.contact.clone(), acme.root_certificates.as_deref(), clock.clone())
        .map_err(|e| ConfigError::new("acme.root_certificates", e))?;
    let dns = match (acme.dns, acme.dns_listen, &acme.dns_command) {
        (Some(AcmeDns::Builtin), Some(address), _) => {
            let opened = Zone::open(&config.domains(), address, clock.clone()).await;
            let zone = opened.map_err(|e| ConfigError::new("acme.dns_listen", format!("{address}: {e}")))?;
            Some(DnsProof::Zone(zone))
        }
        (Some(AcmeDns::Command), _, Some(program)) => {
            Some(DnsProof::Command(DnsCommand::new(program.clone(), clock.clone())))
        }
        _ => None,
    };
    Ok(CertificateWorker::new(local_roots, Some((authority, dns)), acme.orders_per_hour))
}

fn api(config: &Config, service: &Arc<Service>, metrics: &Arc<Metrics>, refusals: &Arc<Refusals>) -> Api {
    let limits = &config.rate_limit;
    Api {
        service: service.clone(),
        authentication: Authentication::new(service.clock().clone(), limits.failed_auth_per_minute),
        rate_limits: Arc::new(RateLimits::new(rate::Limits { per_minute: limits.per_minute, per_day: limits.per_day })),
        metrics: metrics.clone(),
        refusals: refusals.clone(),
        clock: service.clock().clone(),
        public_url: config.public_url(),
        docs_url: config.docs_url(),
        trusted_proxies: config.trusted_proxies.clone(),
    }
}

fn control(
    config: &Config,
    service: &Arc<Service>,
    metrics: &Metrics,
    connections: &Arc<Connections>,
    stop: &CancellationToken,
    tasks: &TaskTracker,
) -> Control {
    let (connections, refused) = (connections.clone(), metrics.connections.clone());
    Control {
        service: service.clone(),
        agents: Arc::default(),
        heartbeats: metrics.heartbeats.clone(),
        arrivals: Arrivals::new(config.api.agents, refused.clone(), service.clock().moment()),
        on_proven: Box::new(move |peer| connections.release(peer)),
        refused,
        trusted_proxies: config.trusted_proxies.clone(),
        clock: service.clock().clone(),
        stop: stop.clone(),
        tasks: tasks.clone(),
    }
}

/// Sees to it that names have certificates, those of the local authority at once.
async fn start_certificates(app: &App) -> std::result::Result<(), ConfigError> {
    let nodes = app.embedded.ids().zip(app.config.nodes());
    let with_https = nodes.filter(|(_, (_, node))| node.https_listen.address().is_some());
    let domains = with_https.filter_map(|(node_id, (_, node))| Some((node_id, node.domain.clone()?))).collect();
    let started = certificates::start(&app.jobs, domains).await;
    started.map_err(|e| ConfigError::new("certificates", Chain(&e)))
}

/// Ends sessions whose agents hold lease tokens that nodes refuse: those of an earlier version, and after a change
/// of the host's keys those of agents that do not take a new token. Their tunnels get new leases.
async fn end_unprovable_sessions(app: &App) -> Result<()> {
    let version = if app.secrets.has_older() { 2 } else { 1 };
    for node_id in app.embedded.ids() {
        sessions::end_with_older_tokens(&app.store, node_id, version).await?;
    }
    Ok(())
}

async fn bind(setting: &str, address: SocketAddr) -> std::result::Result<(SocketAddr, TcpAcceptor), ConfigError> {
    let fail = |problem: &dyn std::fmt::Display| ConfigError::new(setting, format!("{address}: {problem}"));
    let acceptor = TcpListener::new(address).try_bind().await.map_err(|e| fail(&e))?;
    let bound = acceptor.inner().local_addr().map_err(|e| fail(&e))?;
    // A second small frame to an agent would wait for the first one to be acknowledged, 40 ms.
    socket::accept_without_delay(acceptor.inner()).map_err(|e| fail(&e))?;
    Ok((bound, acceptor))
}

fn serve(
    (address, acceptor): (SocketAddr, TcpAcceptor),
    (service, admission, connections): (salvo::Service, impl FusePolicy, usize),
) -> (SocketAddr, (ServerHandle, JoinHandle<io::Result<()>>)) {
    let mut server = Server::new(acceptor).fuse_policy(admission).max_connections(connections);
    server.http1_mut().max_buf_size(listener::READ_AHEAD);
    let handle = server.handle();
    (address, (handle, tokio::spawn(server.try_serve(service))))
}
