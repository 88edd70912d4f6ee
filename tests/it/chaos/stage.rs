//! The programs: PostgreSQL, three hosts, and agents, with a link between any two of them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use culvert_wire::clock::Clock;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::sync::Mutex;

use crate::support::api::Api;
use crate::support::host::{Engine, within};
use crate::support::link::Link;
use crate::support::program::{Place, Program};
use crate::support::receiver::{Authority, Receiver};
use crate::support::server::Server;

/// A host, and what leads to it and from it.
pub struct Host {
    pub place: Place,
    pub program: Mutex<Option<Program>>,
    /// By which agents reach it.
    pub agents: Link,
    /// By which it reaches its database.
    pub store: Link,
    pub api: Api,
}

/// A device with a service that says its name.
pub struct Device {
    pub id: String,
    pub port: u16,
    place: Place,
    pub program: Mutex<Option<Program>>,
}

pub struct Stage {
    pub server: Server,
    pub hosts: Vec<Arc<Host>>,
    pub devices: Vec<Arc<Device>>,
    pub receiver: Mutex<Receiver>,
}

impl Stage {
    pub async fn set(hosts: usize, devices: usize) -> Self {
        let server = Server::start().await;
        let authority = Authority::new();
        let receiver = authority.receiver(&Clock::system()).await;
        let mut stage = Self { server, hosts: Vec::new(), devices: Vec::new(), receiver: Mutex::new(receiver) };
        for number in 0..hosts {
            stage.add_host(number, authority.pem()).await;
        }
        for number in 0..devices {
            stage.add_device(number).await;
        }
        stage
    }

    async fn add_host(&mut self, number: usize, authority: &str) {
        let place = Place::new(Engine::Sqlite).await;
        let store = Link::to((self.server.address, 5432).into()).await;
        let agents = Link::to(format!("{}:8080", place.address).parse().unwrap()).await;
        let roots = place.folder.path().join("authority.pem");
        std::fs::write(&roots, authority).unwrap();
        let mut place = place
            .set("CULVERT_DATABASE_URL", &Server::url_at(store.address))
            .set("CULVERT_DATABASE__MIGRATE", "auto")
            .set("CULVERT_AGENT_URL", &format!("http://{}", agents.address))
            .set("CULVERT_NODE__DOMAIN", &format!("h{number}.tunnel.localhost"))
            .set("CULVERT_RATE_LIMIT__PER_MINUTE", "1000000")
            .set("CULVERT_RATE_LIMIT__PER_DAY", "100000000")
            .set("CULVERT_DRAIN__SECONDS", "1")
            .set("CULVERT_DRAIN__VISITORS_SECONDS", "3")
            .set("CULVERT_WEBHOOKS__EXTRA_ROOT_CERTIFICATES", roots.to_str().unwrap())
            .set("CULVERT_WEBHOOKS__ALLOW_NETWORKS", "[\"127.0.0.0/8\"]");
        if let Some(first) = self.hosts.first() {
            let keys = first.place.folder.path().join("culvert-data/secret.key");
            place = place.set("CULVERT_SECRET_KEY_FILE", keys.to_str().unwrap());
        }
        let program = place.serve().await;
        let key = if let Some(first) = self.hosts.first() {
            first.api.clone()
        } else {
            place.json("culvert account create --email ada@example.com --name Ada").await;
            let key = place.json("culvert key create --account ada@example.com --scopes full_access").await;
            Api::new(&place.url(), key["key"].as_str().unwrap())
        };
        let api = key.at(&place.url());
        self.hosts.push(Arc::new(Host { place, program: Mutex::new(Some(program)), agents, store, api }));
    }

    async fn add_device(&mut self, number: usize) {
        let (first, name) = (&self.hosts[0], format!("device-{number}"));
        let place = Place::new(Engine::Sqlite).await;
        let port = named_echo(name.clone()).await;
        let code = first.place.json("culvert device code --account ada@example.com").await;
        let (code, url) = (code["code"].as_str().unwrap(), format!("http://{}", first.agents.address));
        let enrol = format!("culvert-agent enroll --server {url} --code {code} --name {name}");
        let enrolled = place.json(&enrol).await;
        place.json(&format!("culvert-agent remote-control enable --allow 127.0.0.1:{port}")).await;
        let id = enrolled["device_id"].as_str().unwrap_or_else(|| panic!("{enrolled}")).to_owned();
        let device = Device { id, port, place, program: Mutex::default() };
        device.start().await;
        for host in &self.hosts {
            let url = format!("http://{}", host.agents.address);
            within(30, device.place.until_written(".local/state/culvert-agent/hosts.json", &url)).await;
        }
        self.devices.push(Arc::new(device));
    }
}

impl Stage {
    /// Keeps the logs of all programs and what the database has of hosts and devices. Returns where.
    pub async fn keep(&self, name: &str) -> PathBuf {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/chaos").join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let places = self.hosts.iter().map(|host| &host.place).chain(self.devices.iter().map(|device| &device.place));
        for (number, place) in places.enumerate() {
            std::fs::copy(place.log(), folder.join(format!("{number}.log"))).unwrap();
        }
        for table in ["cluster", "hosts", "device_presence", "operations", "sessions", "deliveries"] {
            let rows = self.server.sql(&format!("SELECT row_to_json(t) FROM {table} t LIMIT 10000")).await;
            std::fs::write(folder.join(format!("{table}.json")), rows).unwrap();
        }
        folder
    }
}

impl Device {
    pub async fn start(&self) {
        let mut program = self.place.start_logged("culvert-agent run");
        within(60, program.until("connected server=")).await;
        *self.program.lock().await = Some(program);
    }

    pub async fn kill(&self) {
        if let Some(program) = self.program.lock().await.take() {
            program.kill().await;
        }
    }
}

/// A service that answers each line with a name.
async fn named_echo(name: String) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let name = name.clone();
            tokio::spawn(async move {
                let mut stream = BufReader::new(stream);
                let mut line = String::new();
                while stream.read_line(&mut line).await.is_ok_and(|count| count > 0) {
                    if stream.write_all(format!("{name}\n").as_bytes()).await.is_err() {
                        return;
                    }
                    line.clear();
                }
            });
        }
    });
    port
}
