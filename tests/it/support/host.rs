//! One host for one test: its own folder, database, addresses and time.

use std::fmt::Debug;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use chrono::{DateTime, Utc};
use culvert::app::{App, Host};
use culvert::config::{Config, ConfigError, Listen, NodeConfig};
use culvert_domain::caller::Role;
use culvert_domain::connection::Connection;
use culvert_domain::event::EventKind;
use culvert_domain::key::{ApiKey, EnrolmentCode};
use culvert_domain::permission::Permissions;
use culvert_domain::session::SESSION_LEASE;
use culvert_domain::sign_in::RequireSecondFactor;
use culvert_domain::webhook::{Webhook, WebhookStatus};
use culvert_service::jobs::Ticker;
use culvert_service::jobs::ticker;
use culvert_service::secrets::Purpose;
use culvert_store::keys::DeviceCode;
use culvert_wire::clock::Clock;
use culvert_wire::node::SessionTraffic;
use serde_json::Value;
use tempfile::TempDir;
use uuid::Uuid;

use super::api::Api;
use super::database::rows;
use super::postgres::new_database;
use super::share_artefacts;

/// The database under a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    Sqlite,
    /// A server that `tests/run` has started, with a migrated template.
    Postgres,
}

/// The environment variable that has a test write its log: `TEST_LOG=debug`.
const LOG: &str = "TEST_LOG";

/// How long a test waits for an effect, in real time.
const MAX_WAIT: Duration = Duration::from_mins(1);

/// When every test begins.
pub fn start_of_time() -> DateTime<Utc> {
    "2026-01-15T12:00:00Z".parse().unwrap()
}

pub struct TestHost {
    pub app: Arc<App>,
    pub clock: Clock,
    pub address: SocketAddr,
    pub admin_address: SocketAddr,
    pub folder: TempDir,
    config: Config,
    host: Host,
}

/// An account with a key that may do everything.
#[derive(Clone)]
pub struct Person {
    pub account_id: Uuid,
    pub key: String,
    pub key_id: Uuid,
}

impl TestHost {
    pub async fn start(engine: Engine) -> Self {
        Self::with(engine, |_| {}).await
    }

    pub async fn with(engine: Engine, change: impl FnOnce(&mut Config)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut config = config(folder.path(), engine).await;
        change(&mut config);
        Self::run(folder, config, Clock::manual(start_of_time())).await
    }

    /// A host with a clock of its own.
    pub async fn with_clock(engine: Engine, clock: Clock, change: impl FnOnce(&mut Config)) -> Self {
        Self::try_start(engine, clock, change).await.unwrap()
    }

    /// As [`TestHost::with_clock`]; the error is what an operator reads.
    pub async fn try_start(engine: Engine, clock: Clock, change: impl FnOnce(&mut Config)) -> Result<Self, String> {
        let folder = tempfile::tempdir().unwrap();
        let mut config = config(folder.path(), engine).await;
        change(&mut config);
        Self::try_run(folder, config, clock).await.map_err(|error| error.to_string())
    }

    /// A host that begins at the present time: programs that nobody here wrote, which check certificates, have no other.
    pub async fn at_present(engine: Engine, change: impl FnOnce(&mut Config)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut config = config(folder.path(), engine).await;
        change(&mut config);
        Self::run(folder, config, Clock::manual(Clock::system().now())).await
    }

    async fn run(folder: TempDir, config: Config, clock: Clock) -> Self {
        Self::try_run(folder, config, clock).await.unwrap()
    }

    async fn try_run(folder: TempDir, config: Config, clock: Clock) -> Result<Self, ConfigError> {
        if let Ok(filter) = std::env::var(LOG) {
            let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init();
        }
        // Boxed, for in an unoptimised build it is much of what a test's stack holds.
        let host = Box::pin(Host::start(config.clone(), clock.clone(), Ticker::Manual)).await?;
        Ok(Self {
            app: host.app.clone(),
            clock,
            address: host.address,
            admin_address: host.admin_address,
            folder,
            config,
            host,
        })
    }

    /// Ends the host, as an operator does.
    pub async fn stop(self) {
        self.host.stop().await;
    }

    /// The same data, time and address, another process's worth of memory.
    pub async fn restart(self) -> Self {
        self.restart_with(|_| {}).await
    }

    /// The same, with other settings.
    pub async fn restart_with(self, change: impl FnOnce(&mut Config)) -> Self {
        self.stop_to_restart_with(change).await.await
    }

    /// Stops the host; what this returns starts it again.
    pub async fn stop_to_restart_with(self, change: impl FnOnce(&mut Config)) -> impl Future<Output = Self> {
        let Self { folder, mut config, clock, host, app, address, .. } = self;
        drop(app);
        config.listen = address;
        change(&mut config);
        Box::pin(host.stop()).await;
        Self::run(folder, config, clock)
    }

    /// The configuration that this host was started with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Where the node's HTTP listener is.
    pub async fn http_address(&self) -> SocketAddr {
        let node = self.app.store.nodes().await.unwrap().remove(0);
        SocketAddr::new(node.hostname.parse().unwrap(), node.http_port.unwrap())
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn api(&self, key: &str) -> Api {
        Api::new(&self.url(), key)
    }

    /// What the operator's programs show at the admin listener.
    pub fn admin_token(&self) -> String {
        std::fs::read_to_string(self.config.data_dir.join("admin.token")).unwrap().trim().into()
    }

    /// One figure of `/metrics`, by its whole name with labels.
    pub async fn metric(&self, name: &str) -> Option<f64> {
        let metrics = self.metrics().await;
        let line = metrics.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')));
        line.map(|line| line.rsplit(' ').next().unwrap().parse().unwrap())
    }

    /// What `/metrics` answers.
    pub async fn metrics(&self) -> String {
        self.report_load().await;
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let request = client.get(format!("http://{}/metrics", self.admin_address)).bearer_auth(self.admin_token());
        request.send().await.unwrap().text().await.unwrap()
    }

    /// Has the nodes report their load, which they do once a second, and waits until the host knows it.
    pub async fn report_load(&self) {
        let (embedded, nodes) = (&self.app.embedded, &self.app.service.nodes());
        let mut reported = embedded.load();
        embedded.tick().await;
        within(20, async {
            while nodes.load() != embedded.load() {
                // A visitor may have come or gone since the report.
                if reported != embedded.load() {
                    reported = embedded.load();
                    embedded.tick().await;
                }
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    /// Lets time pass, and does what is due then.
    pub async fn pass(&self, time: Duration) {
        self.clock.advance(time);
        self.app.embedded.tick().await;
        ticker::tick(&self.app.jobs, 1).await;
        self.app.service.nodes().wait_until_applied(self.app.service.nodes().ids()).await;
        self.app.embedded.traffic_stored().await;
    }

    /// Notes what went through the node.
    pub async fn record_traffic(&self) {
        self.app.embedded.record_traffic().await;
    }

    /// Waits until something is true, looking again after every commit.
    pub async fn until<T>(&self, mut look: impl AsyncFnMut() -> Option<T>) -> T {
        self.until_seen(async || look().await.ok_or("nothing")).await
    }

    /// Waits until the node serves so many visitors of a kind.
    pub async fn until_visitors(&self, kind: &str, count: usize) {
        let name = format!("culvert_node_visitors{{kind=\"{kind}\"}}");
        let visitors = async || self.metric(&name).await;
        self.until_found(async || visitors().await.filter(|visitors| *visitors == count as f64)).await;
    }

    /// Waits until something is true that no commit tells of, looking again and again.
    pub async fn until_found<T>(&self, mut look: impl AsyncFnMut() -> Option<T>) -> T {
        let wait = async {
            loop {
                if let Some(found) = look().await {
                    return found;
                }
                tokio::task::yield_now().await;
            }
        };
        let found = Clock::system().timeout(MAX_WAIT, wait).await;
        found.unwrap_or_else(|_| panic!("it did not come within {MAX_WAIT:?}"))
    }

    /// As [`Self::until`]; what the last look saw instead is in the failure.
    pub async fn until_seen<T, S: Debug>(&self, mut look: impl AsyncFnMut() -> Result<T, S>) -> T {
        let mut commits = self.app.store.commits();
        let mut last = None;
        let wait = async {
            loop {
                commits.borrow_and_update();
                match look().await {
                    Ok(found) => return found,
                    Err(seen) => last = Some(seen),
                }
                commits.changed().await.unwrap();
            }
        };
        let found = Clock::system().timeout(MAX_WAIT, wait).await;
        found.unwrap_or_else(|_| panic!("it did not come within {MAX_WAIT:?}; last seen: {last:?}"))
    }

    /// An operation, once it is in a state.
    pub async fn until_operation(&self, api: &Api, id: Uuid, status: &str) -> Value {
        self.until_seen(async || {
            let operation = api.get(&format!("/operations/{id}")).await.data().clone();
            if operation["status"] == status { Ok(operation) } else { Err(operation) }
        })
        .await
    }

    /// An operation, once it has ended, however it did.
    pub async fn until_ended(&self, api: &Api, id: Uuid) -> Value {
        self.until_seen(async || {
            let operation = api.get(&format!("/operations/{id}")).await.data().clone();
            if operation["finished_at"].is_null() { Err(operation) } else { Ok(operation) }
        })
        .await
    }

    /// A tunnel, once it is in a state.
    pub async fn until_tunnel(&self, api: &Api, id: Uuid, status: &str) -> Value {
        self.until_seen(async || {
            let tunnel = api.get(&format!("/tunnels/{id}")).await.data().clone();
            if tunnel["status"] == status { Ok(tunnel) } else { Err(tunnel) }
        })
        .await
    }

    /// The number of a device's newest connection.
    pub async fn connection_epoch(&self, device_id: Uuid) -> i64 {
        let columns = ["device_id", "epoch"].map(String::from);
        let all = rows(&self.config().database_url(), "device_presence", &columns).await;
        let is_its = |row: &&Value| row["device_id"].as_str().unwrap().parse() == Ok(device_id);
        all.iter().find(is_its).and_then(|row| row["epoch"].as_i64()).unwrap()
    }

    /// Whether a device has connected again after this connection, and is connected still.
    pub async fn has_reconnected(&self, device_id: Uuid, former: i64) -> bool {
        let epoch = self.connection_epoch(device_id).await;
        epoch > former && self.is_current(Connection { device_id, epoch }).await
    }

    /// Waits until a device has connected again.
    pub async fn until_reconnected(&self, device_id: Uuid, former: i64) {
        self.until(async || self.has_reconnected(device_id, former).await.then_some(())).await;
    }

    /// Waits until a device is offline.
    pub async fn until_offline(&self, api: &Api, device_id: Uuid) {
        self.until_seen(async || {
            let device = api.get(&format!("/devices/{device_id}")).await.data().clone();
            if device["online"] == false { Ok(()) } else { Err(device) }
        })
        .await;
    }

    /// Whether a connection is its device's newest one and has not ended.
    pub async fn is_current(&self, connection: Connection) -> bool {
        let read = self.app.store.write(None, move |write| Box::pin(async move { write.is_current(connection).await }));
        read.await.unwrap()
    }

    /// Has a running tunnel use its scope's month of 5 GB but for one byte.
    pub async fn use_up_month(&self, scope_id: Uuid, tunnel_id: Uuid) {
        let session_id = self.app.store.lease_of_tunnel(tunnel_id).await.unwrap().unwrap().session_id;
        let used = SessionTraffic { session_id, tunnel_id, bytes_in: 5_000_000_000 - 1, bytes_out: 0 };
        let added = self
            .app
            .store
            .write(Some(scope_id), move |write| Box::pin(async move { write.add_traffic(scope_id, &[used]).await }));
        added.await.unwrap();
    }

    /// Waits until a tunnel's lease has been renewed at this moment.
    pub async fn until_renewed(&self, tunnel: Uuid) {
        let renewed = async || {
            let lease = self.app.store.lease_of_tunnel(tunnel).await.unwrap().unwrap();
            let end = self.app.service.liveness().lease_end(lease.session_id);
            (end == Some(self.clock.now() + SESSION_LEASE)).then_some(())
        };
        self.until_found(renewed).await;
    }

    pub async fn person(&self, name: &str) -> Person {
        let (email, called) = (format!("{name}@example.test"), name.to_owned());
        let plan = self.config.default_plan.clone();
        let account = self
            .app
            .store
            .write(None, move |write| Box::pin(async move { write.create_account(&email, &called, &plan).await }))
            .await
            .unwrap()
            .unwrap();
        self.key(account.id, account.id, "full_access").await
    }

    /// A new key of an account, for a scope.
    pub async fn key(&self, account_id: Uuid, scope_id: Uuid, permissions: &str) -> Person {
        let key = ApiKey::generate(&self.clock);
        let (made, permissions) = (key.clone(), Permissions::parse(permissions).unwrap());
        let key_id = self
            .app
            .store
            .write(None, move |write| {
                Box::pin(async move { write.create_key(&made, account_id, scope_id, permissions, None, "").await })
            })
            .await
            .unwrap();
        Person { account_id, key: key.reveal().into(), key_id }
    }

    pub async fn revoke(&self, key_id: Uuid) {
        self.app.store.write(None, move |write| Box::pin(write.revoke_key(key_id))).await.unwrap();
    }

    pub async fn set_plan(&self, scope_id: Uuid, plan: &str) {
        let plan = plan.to_owned();
        self.app
            .store
            .write(Some(scope_id), move |write| Box::pin(async move { write.set_plan(scope_id, &plan).await }))
            .await
            .unwrap();
    }

    /// A Team, owned by somebody.
    pub async fn team(&self, name: &str, owner: &Person) -> Uuid {
        let (name, plan, owner) = (name.to_owned(), self.config.default_plan.clone(), owner.account_id);
        let team = self
            .app
            .store
            .write(None, move |write| Box::pin(async move { write.create_team(&name, &plan, owner).await }))
            .await;
        team.unwrap().id
    }

    pub async fn join(&self, team_id: Uuid, person: &Person, role: Role) {
        let account_id = person.account_id;
        self.app
            .store
            .write(Some(team_id), move |write| Box::pin(async move { write.set_role(team_id, account_id, role).await }))
            .await
            .unwrap();
    }

    pub async fn leave(&self, team_id: Uuid, person: &Person) {
        let account_id = person.account_id;
        self.app
            .store
            .write(Some(team_id), move |write| {
                Box::pin(async move { culvert_service::devices::remove_member(write, team_id, account_id).await })
            })
            .await
            .unwrap();
    }

    /// A webhook endpoint of a scope, at an address that nobody is asked for.
    pub async fn webhook(&self, scope_id: Uuid) -> Uuid {
        let (id, now) = (self.clock.id(), self.clock.now());
        let secret = self.app.secrets.seal(Purpose::Webhooks, id.as_bytes(), b"secret");
        let webhook = Webhook {
            id,
            scope_id,
            url: "https://8.8.8.8/".into(),
            events: vec![EventKind::DeviceOnline],
            description: None,
            status: WebhookStatus::Enabled,
            last_delivery: None,
            created_at: now,
            updated_at: now,
        };
        self.app
            .store
            .write(Some(scope_id), move |write| Box::pin(async move { write.insert_webhook(&webhook, &secret).await }))
            .await
            .unwrap();
        id
    }

    /// A code by which a machine enrols.
    pub async fn device_code(&self, account_id: Uuid, scope_id: Uuid) -> String {
        let code = EnrolmentCode::generate(&self.clock);
        let hash = EnrolmentCode::hash(code.reveal());
        self.app
            .store
            .write(None, move |write| {
                Box::pin(async move {
                    let expires_at = write.now + chrono::TimeDelta::minutes(10);
                    let code = DeviceCode { account_id, scope_id, may_create: true };
                    write.create_device_code(&hash, code, expires_at).await
                })
            })
            .await
            .unwrap();
        code.reveal().into()
    }
}

/// What must come in so many seconds of real time, whatever a test's clock says.
pub async fn within<F: Future>(seconds: u64, future: F) -> F::Output {
    let came = Clock::system().timeout(Duration::from_secs(seconds), future).await;
    came.unwrap_or_else(|_| panic!("it did not come within {seconds} seconds"))
}

/// A configuration that shares nothing with any other test but compiled policies.
async fn config(folder: &Path, engine: Engine) -> Config {
    let data_dir = folder.join("data");
    share_artefacts(&data_dir);
    let own = own_address();
    let any_port = SocketAddr::new(own, 0);
    let mut config = Config { data_dir, listen: any_port, admin_listen: any_port, ..Config::default() };
    config.node.hostname = own.to_string();
    config.node.listen = any_port;
    config.node.http_listen = Listen::At(any_port);
    config.node.https_listen = Listen::At(any_port);
    config.node.bind = own;
    config.public_url = Some("https://api.example.test".into());
    config.dashboard.require_second_factor = RequireSecondFactor::Never;
    // Nobody outside is asked: a test that needs names brings its own server.
    config.dns.resolver = Some(SocketAddr::new(own, 1));
    if engine == Engine::Postgres {
        config.database_url = Some(new_database().await);
    }
    config
}

/// A loopback address that no other test uses, so that public ports are never taken. A process has 64 of
/// them: one more is a failure and never an address that is in use.
pub fn own_address() -> IpAddr {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    assert!(count < 64, "a process of tests has 64 addresses");
    let number = (std::process::id() << 6 | count) % 0x00ef_ffff;
    let [_, a, b, c] = number.to_be_bytes();
    IpAddr::V4(Ipv4Addr::new(127, 16 + a % 224, b, c))
}

/// A node beside that of the configuration, at an address and for names of its own.
pub fn second_node(config: &Config, address: IpAddr, domain: &str) -> NodeConfig {
    let mut second = config.node.clone();
    (second.hostname, second.bind) = (address.to_string(), address);
    second.listen.set_ip(address);
    second.domain = Some(domain.into());
    second
}
