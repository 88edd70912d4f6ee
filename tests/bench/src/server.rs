//! A host in a process of its own, and beside it a bare salvo route on the same kind of pool: the
//! benchmark starts itself once more, so that what the servers use up can be told from its own.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use culvert::app::Host;
use culvert::config::{Config, Listen};
use culvert_domain::key::ApiKey;
use culvert_domain::permission::Permissions;
use culvert_domain::port::PortRange;
use culvert_policy::load::chain::Trust;
use culvert_service::jobs::Ticker;
use culvert_wire::clock::Clock;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::bare::bare;

/// The environment variable by which a benchmark knows that it is to be the server.
const SERVER: &str = "BENCH_SERVER";

const ACCOUNTS: usize = 256;

/// The environment variable that has the servers use a PostgreSQL database, by its URL.
const DATABASE: &str = "BENCH_DATABASE";

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
    /// For each of them, a link into the dashboard, good for 30 minutes.
    pub links: Vec<String>,
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

/// Of the accounts' password `gravel otter lantern 42`, with the parameters of the host.
const PASSWORD_HASH: &str =
    "$argon2id$v=19$m=19456,t=2,p=1$CQkJCQkJCQkJCQkJCQkJCQ$ACbjGVZ7GXt0dfselq4I+HhggIaMlAIR665eXTznnDg";

impl Servers {
    /// Starts them. In the process of the servers itself this never returns.
    pub fn start() -> Self {
        Self::with(Decisions::Forgotten)
    }

    pub fn with(decisions: Decisions) -> Self {
        Self::on(decisions, None)
    }

    /// As [`Servers::with`], on a PostgreSQL database that is empty.
    pub fn on(decisions: Decisions, database: Option<&str>) -> Self {
        if let Ok(how) = std::env::var(SERVER) {
            serve(if how == RECORDED { Decisions::Recorded } else { Decisions::Forgotten });
        }
        let program = std::env::current_exe().unwrap();
        let how = if decisions == Decisions::Recorded { RECORDED } else { "forgotten" };
        let mut command = Command::new(program);
        command.env(SERVER, how).envs(database.map(|url| (DATABASE, url)));
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
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
        // The dashboard answers to its own name and port alone.
        let listen = std::net::TcpListener::bind(any).unwrap().local_addr().unwrap();
        let mut config = Config { data_dir: folder.path().into(), listen, admin_listen: any, ..Config::default() };
        config.public_url = Some(format!("http://localhost:{}", listen.port()));
        config.api.connections_per_address = 4096;
        config.trusted_proxies = vec!["127.0.0.1/32".parse().unwrap()];
        config.node.listen = any;
        // So many tunnels that each has a port.
        config.node.ports = PortRange { first: 1025, last: 65_535 };
        (config.node.http_listen, config.node.https_listen) = (Listen::Off, Listen::Off);
        config.rate_limit.per_minute = u32::MAX;
        config.rate_limit.per_day = u32::MAX;
        let file = folder.path().join("culvert.toml");
        std::fs::write(&file, "").unwrap();
        (config.file, config.trust) = (Some(file), Trust::Path);
        config.decisions.file = (decisions == Decisions::Recorded).then(|| folder.path().join("decisions.jsonl"));
        config.database_url = std::env::var(DATABASE).ok();
        let things = config.database_url.clone();
        let host = Host::start(config, Clock::system(), Ticker::Auto).await.unwrap();
        let (mut keys, mut links) = (Vec::new(), Vec::new());
        for number in 0..ACCOUNTS {
            let (account_id, key) = key(&host, number).await;
            keys.push(key);
            links.push(culvert_service::links::create(&host.app.store, account_id).await.unwrap().secret);
        }
        let things = things.unwrap_or_else(|| format!("sqlite:{}", folder.path().join("bare.db").display()));
        let bare = bare(&things).await;
        let (admin, folder) = (host.admin_address, folder.path().into());
        let addresses = Addresses { host: host.address, admin, bare, folder, keys, links };
        println!("{}", serde_json::to_string(&addresses).unwrap());
        std::future::pending::<()>().await;
    });
    unreachable!("a server runs until it is killed")
}

async fn key(host: &Host, number: usize) -> (Uuid, String) {
    let email = format!("bench-{number}@example.com");
    let key = ApiKey::generate(&host.app.clock);
    let (made, permissions) = (key.clone(), Permissions::parse("full_access").unwrap());
    let write = host.app.store.write(None, move |write| {
        Box::pin(async move {
            let account = write.create_account(&email, "Bench", "self-hosted").await?.unwrap();
            write.set_password(account.id, PASSWORD_HASH).await?;
            write.create_key(&made, account.id, account.id, permissions, None, "").await?;
            Ok(account.id)
        })
    });
    (write.await.unwrap(), key.reveal().into())
}
