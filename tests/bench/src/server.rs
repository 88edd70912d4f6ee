//! A host in a process of its own, and beside it a bare salvo route on the same kind of pool: the
//! benchmark starts itself once more, so that what the servers use up can be told from its own.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use culvert::app::Host;
use culvert::config::{Config, Listen};
use culvert_domain::key::ApiKey;
use culvert_domain::permission::Permissions;
use culvert_policy::load::chain::Trust;
use culvert_service::jobs::Ticker;
use culvert_store::db::Db;
use culvert_wire::clock::Clock;
use salvo::conn::TcpListener;
use salvo::{Depot, FlowCtrl, Handler, Listener, Request, Response, Router, Server, Service, async_trait};
use serde::{Deserialize, Serialize};
use sqlx::SqlitePool;
use uuid::Uuid;

/// The environment variable by which a benchmark knows that it is to be the server.
const SERVER: &str = "BENCH_SERVER";

const ACCOUNTS: usize = 256;

/// Statements of the whole path, as sqlx logs them (target `sqlx::query`): those of a read, and of
/// a create before, and in its transaction.
pub const READS: usize = 4;
const READS_BEFORE: usize = 3;
const READS_WITHIN: usize = 7;
const WRITES: usize = 5;

/// Where the servers are, and what to ask for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Addresses {
    pub host: SocketAddr,
    pub admin: SocketAddr,
    pub bare: SocketAddr,
    /// Where the host keeps its data; its configuration is read again from `culvert.toml` in it.
    pub folder: PathBuf,
    /// Of as many accounts: what one has created is not what the next one is slowed down by.
    pub keys: Vec<String>,
}

/// The process of the servers. Dropped, it ends.
pub struct Servers {
    pub addresses: Addresses,
    child: Child,
}

impl Drop for Servers {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether decisions are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decisions {
    Recorded,
    Forgotten,
}

const RECORDED: &str = "recorded";

impl Servers {
    /// Starts them. In the process of the servers itself this never returns.
    pub fn start() -> Self {
        Self::with(Decisions::Forgotten)
    }

    pub fn with(decisions: Decisions) -> Self {
        if let Ok(how) = std::env::var(SERVER) {
            serve(if how == RECORDED { Decisions::Recorded } else { Decisions::Forgotten });
        }
        let program = std::env::current_exe().unwrap();
        let how = if decisions == Decisions::Recorded { RECORDED } else { "forgotten" };
        let mut child = Command::new(program).env(SERVER, how).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { addresses: serde_json::from_str(&line).unwrap(), child }
    }

    /// Has the host read its configuration again.
    pub async fn reload(&self) {
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let token = std::fs::read_to_string(self.addresses.folder.join("admin.token")).unwrap();
        let request = client.post(format!("http://{}/policies/reload", self.addresses.admin)).bearer_auth(token.trim());
        let answer = request.send().await.unwrap();
        assert!(answer.status().is_success(), "{}", answer.text().await.unwrap());
    }

    /// Resident memory in MiB.
    pub fn resident(&self) -> f64 {
        resident(&self.child)
    }

    /// CPU seconds that they have used.
    pub fn cpu(&self) -> f64 {
        cpu(&self.child)
    }
}

/// CPU seconds that a process has used.
pub fn cpu(process: &Child) -> f64 {
    const TICKS: f64 = 100.0;
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.id())).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / TICKS
}

/// Resident memory of a process in MiB.
pub fn resident(process: &Child) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
}

fn serve(decisions: Decisions) -> ! {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut config = Config { data_dir: folder.path().into(), listen: any, admin_listen: any, ..Config::default() };
        config.node.listen = any;
        (config.node.http_listen, config.node.https_listen) = (Listen::Off, Listen::Off);
        config.rate_limit.per_minute = u32::MAX;
        config.rate_limit.per_day = u32::MAX;
        let file = folder.path().join("culvert.toml");
        std::fs::write(&file, "").unwrap();
        (config.file, config.trust) = (Some(file), Trust::Path);
        config.decisions.file = (decisions == Decisions::Recorded).then(|| folder.path().join("decisions.jsonl"));
        let host = Host::start(config, Clock::system(), Ticker::Auto).await.unwrap();
        let mut keys = Vec::new();
        for number in 0..ACCOUNTS {
            keys.push(key(&host, number).await);
        }
        let bare = bare(folder.path().join("bare.db").to_str().unwrap()).await;
        let (admin, folder) = (host.admin_address, folder.path().into());
        let addresses = Addresses { host: host.address, admin, bare, folder, keys };
        println!("{}", serde_json::to_string(&addresses).unwrap());
        std::future::pending::<()>().await;
    });
    unreachable!("a server runs until it is killed")
}

async fn key(host: &Host, number: usize) -> String {
    let email = format!("bench-{number}@example.com");
    let key = ApiKey::generate(&host.app.clock);
    let (made, permissions) = (key.clone(), Permissions::parse("full_access").unwrap());
    let write = host.app.store.write(None, move |write| {
        Box::pin(async move {
            let account = write.create_account(&email, "Bench", "self-hosted").await?.unwrap();
            write.create_key(&made, account.id, account.id, permissions, None).await
        })
    });
    write.await.unwrap();
    key.reveal().into()
}

/// Routes that do nothing but the same number of statements.
async fn bare(file: &str) -> SocketAddr {
    let Db::Sqlite { write, read } = Db::open(&format!("sqlite:{file}")).await.unwrap() else { unreachable!() };
    sqlx::query("CREATE TABLE things (id BLOB PRIMARY KEY, name TEXT NOT NULL) STRICT").execute(&write).await.unwrap();
    let pools = Arc::new(Pools { write, read, id: Uuid::from_u128(1) });
    sqlx::query("INSERT INTO things VALUES ($1, 'one')").bind(pools.id).execute(&pools.write).await.unwrap();
    let router = Router::with_path("things").get(Get(pools.clone())).post(Post(pools));
    let acceptor = TcpListener::new(SocketAddr::from(([127, 0, 0, 1], 0))).bind().await;
    let address = acceptor.inner().local_addr().unwrap();
    tokio::spawn(Server::new(acceptor).serve(Service::new(router)));
    address
}

struct Pools {
    write: SqlitePool,
    read: SqlitePool,
    id: Uuid,
}

const SELECT: &str = "SELECT id, name FROM things WHERE id = $1";

struct Get(Arc<Pools>);

#[async_trait]
impl Handler for Get {
    async fn handle(&self, _: &mut Request, _: &mut Depot, res: &mut Response, _: &mut FlowCtrl) {
        let Pools { read, id, .. } = &*self.0;
        for _ in 0..READS {
            sqlx::query(SELECT).bind(*id).fetch_optional(read).await.unwrap();
        }
        res.render(salvo::writing::Json(serde_json::json!({"data": {"id": id, "name": "one"}})));
    }
}

struct Post(Arc<Pools>);

#[async_trait]
impl Handler for Post {
    async fn handle(&self, req: &mut Request, _: &mut Depot, res: &mut Response, _: &mut FlowCtrl) {
        let body: serde_json::Value = req.parse_json().await.unwrap();
        let Pools { write, read, id } = &*self.0;
        for _ in 0..READS_BEFORE {
            sqlx::query(SELECT).bind(*id).fetch_optional(read).await.unwrap();
        }
        let mut transaction = write.begin_with("BEGIN IMMEDIATE").await.unwrap();
        for _ in 0..READS_WITHIN {
            sqlx::query(SELECT).bind(*id).fetch_optional(&mut *transaction).await.unwrap();
        }
        for _ in 0..WRITES {
            let insert = sqlx::query("INSERT INTO things VALUES ($1, 'another')").bind(Uuid::new_v4());
            insert.execute(&mut *transaction).await.unwrap();
        }
        transaction.commit().await.unwrap();
        res.render(salvo::writing::Json(serde_json::json!({"data": body})));
    }
}
