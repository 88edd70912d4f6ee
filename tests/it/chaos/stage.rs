//! The programs: PostgreSQL, three hosts, and agents, with a link between any two of them.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use culvert_wire::clock::Clock;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::sync::Mutex;

use crate::support::api::Api;
use crate::support::host::{Engine, own_address, within};
use crate::support::link::Link;
use crate::support::program::{Place, Program};
use crate::support::receiver::{Authority, Receiver};
use crate::support::server::Server;

/// What the plan of the account with `free_key` includes.
pub const FREE_TUNNELS: usize = 3;

/// How far the wall clocks of hosts are ahead in seconds, one start after the other.
const AHEAD: [i64; 5] = [60, 0, -5, -60, 5];

/// How hosts and agents are started: by the programs of an earlier version and of this one in turns, where there are such.
pub struct Starts {
    earlier: Option<PathBuf>,
    count: AtomicUsize,
}

impl Starts {
    fn new() -> Arc<Self> {
        Arc::new(Self { earlier: Place::earlier_programs(), count: AtomicUsize::default() })
    }

    /// Where the programs of the next start are, and how far the clock is ahead.
    fn next(&self) -> (PathBuf, i64) {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let earlier = self.earlier.clone().filter(|_| number.is_multiple_of(2));
        (earlier.unwrap_or_else(Place::programs), AHEAD[number % AHEAD.len()])
    }

    async fn serve(&self, place: &Place) -> Program {
        let (programs, ahead) = self.next();
        place.serve_by(&programs, ahead).await
    }
}

/// A host, and what leads to it and from it.
pub struct Host {
    pub place: Place,
    starts: Arc<Starts>,
    pub program: Mutex<Option<Program>>,
    pub links: [Link; 4],
    /// Through its link.
    pub api: Api,
}

/// What a link of a host leads to: the API, the host for agents, its node for agents, and the database for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Clients,
    Agents,
    Node,
    Store,
}

impl Way {
    pub const ALL: [Self; 4] = [Self::Clients, Self::Agents, Self::Node, Self::Store];
}

impl Host {
    pub async fn serve(&self) -> Program {
        within(60, self.starts.serve(&self.place)).await
    }

    pub fn link(&self, way: Way) -> &Link {
        &self.links[way as usize]
    }

    pub fn agent_url(&self) -> String {
        format!("http://{}", self.link(Way::Agents).address)
    }

    /// The file of its decision records.
    pub fn records(&self) -> PathBuf {
        self.place.folder.path().join(RECORDS)
    }
}

/// In the folder of a host.
const RECORDS: &str = "decisions.jsonl";

/// Where every device has its service: by this name, each reaches its own.
pub const SERVICE: (&str, u16) = ("service.test", 7000);

/// A device with a service that says its name.
pub struct Device {
    pub id: String,
    place: Place,
    starts: Arc<Starts>,
    pub program: Mutex<Option<Program>>,
}

pub struct Stage {
    pub server: Server,
    starts: Arc<Starts>,
    pub hosts: Vec<Arc<Host>>,
    pub devices: Vec<Arc<Device>>,
    pub receiver: Mutex<Receiver>,
    /// Of an account whose plan includes few tunnels.
    pub free_key: String,
}

impl Stage {
    pub async fn set(hosts: usize, devices: usize) -> Self {
        let server = Server::start().await;
        let authority = Authority::new();
        let receiver = authority.receiver(&Clock::system()).await;
        let mut stage = Self {
            server,
            starts: Starts::new(),
            hosts: Vec::new(),
            devices: Vec::new(),
            receiver: Mutex::new(receiver),
            free_key: String::new(),
        };
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
        let to = |port| Link::to((place.address, port).into());
        let links =
            [to(8080).await, to(8080).await, to(7835).await, Link::to((self.server.address, 5432).into()).await];
        let [clients, agents, node, store] = &links;
        let roots = place.folder.path().join("authority.pem");
        std::fs::write(&roots, authority).unwrap();
        let records = place.folder.path().join(RECORDS);
        let mut place = place
            .set("CULVERT_DATABASE_URL", &Server::url_at(store.address))
            .set("CULVERT_DATABASE__MIGRATE", "auto")
            .set("CULVERT_AGENT_URL", &format!("http://{}", agents.address))
            .set("CULVERT_NODE__HOSTNAME", &node.address.ip().to_string())
            .set("CULVERT_NODE__DOMAIN", &format!("h{number}.tunnel.localhost"))
            .set("CULVERT_RATE_LIMIT__PER_MINUTE", "1000000")
            .set("CULVERT_RATE_LIMIT__PER_DAY", "100000000")
            .set("CULVERT_DECISIONS__FILE", records.to_str().unwrap())
            .set("CULVERT_DRAIN__SECONDS", "1")
            .set("CULVERT_DRAIN__VISITORS_SECONDS", "3")
            .set("CULVERT_WEBHOOKS__EXTRA_ROOT_CERTIFICATES", roots.to_str().unwrap())
            .set("CULVERT_WEBHOOKS__ALLOW_NETWORKS", "[\"127.0.0.0/8\"]");
        if let Some(first) = self.hosts.first() {
            let keys = first.place.folder.path().join("culvert-data/secret.key");
            place = place.set("CULVERT_SECRET_KEY_FILE", keys.to_str().unwrap());
        }
        let starts = self.starts.clone();
        let program = starts.serve(&place).await;
        // The first one may know less of the database than this version.
        place.json("culvert migrate").await;
        let url = format!("http://{}", clients.address);
        let api = if let Some(first) = self.hosts.first() {
            first.api.at(&url)
        } else {
            self.free_key = account(&place, "ben@example.com", "free").await;
            Api::new(&url, &account(&place, "ada@example.com", "self-hosted").await)
        };
        self.hosts.push(Arc::new(Host { place, starts, program: Mutex::new(Some(program)), links, api }));
    }

    async fn add_device(&mut self, number: usize) {
        let (first, name) = (&self.hosts[0], format!("device-{number}"));
        let place = Place::new(Engine::Sqlite).await;
        let address = named_echo(name.clone()).await;
        let hosts = format!("127.0.0.1 localhost\n{address} {}\n", SERVICE.0);
        std::fs::write(place.folder.path().join("hosts"), hosts).unwrap();
        let code = first.place.json("culvert device code --account ada@example.com").await;
        let (code, url) = (code["code"].as_str().unwrap(), first.agent_url());
        let enrol = format!("culvert-agent enroll --server {url} --code {code} --name {name}");
        let enrolled = place.json(&enrol).await;
        place.json(&format!("culvert-agent remote-control enable --allow {}:{}", SERVICE.0, SERVICE.1)).await;
        let id = enrolled["device_id"].as_str().unwrap_or_else(|| panic!("{enrolled}")).to_owned();
        let device = Device { id, place, starts: self.starts.clone(), program: Mutex::default() };
        device.start().await;
        for host in &self.hosts {
            let url = host.agent_url();
            within(30, device.place.until_written(".local/state/culvert-agent/hosts.json", &url)).await;
        }
        self.devices.push(Arc::new(device));
    }
}

impl Stage {
    /// Where visitors reach the node of this name, past the link of agents.
    pub fn node_at(&self, hostname: &str, port: u16) -> SocketAddr {
        let of_node = |host: &&Arc<Host>| host.link(Way::Node).address.ip().to_string() == hostname;
        SocketAddr::new(self.hosts.iter().find(of_node).unwrap().place.address, port)
    }

    /// The number of the host that a device is connected to.
    pub async fn host_of(&self, device: &Device) -> usize {
        let sql = format!(
            "SELECT agent_url FROM hosts JOIN device_presence p ON p.host_id = hosts.id WHERE p.device_id = '{}'",
            device.id
        );
        let connected = async {
            loop {
                let url = self.server.sql(&sql).await;
                if let Some(number) = self.hosts.iter().position(|host| host.agent_url() == url) {
                    return number;
                }
                tokio::task::yield_now().await;
            }
        };
        within(60, connected).await
    }

    /// Keeps the logs of all programs and what the database has of hosts and devices. Returns where.
    pub async fn keep(&self) -> PathBuf {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/chaos");
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
        let agent = self.starts.next().0.join("culvert-agent");
        let script = format!("mount --bind hosts /etc/hosts && exec {} run", agent.display());
        std::fs::write(self.place.folder.path().join("agent.sh"), script).unwrap();
        let mut program = self.place.start_logged("unshare -rm sh agent.sh");
        within(60, program.until("connected server=")).await;
        *self.program.lock().await = Some(program);
    }

    pub async fn kill(&self) {
        if let Some(program) = self.program.lock().await.take() {
            program.kill().await;
        }
    }
}

/// Makes an account on a plan; its API key.
async fn account(place: &Place, email: &str, plan: &str) -> String {
    place.json(&format!("culvert account create --email {email} --name Somebody --plan {plan}")).await;
    let made = place.json(&format!("culvert key create --account {email} --scopes full_access")).await;
    made["key"].as_str().unwrap().to_owned()
}

/// A service that answers each line with a name, at an address of its own.
async fn named_echo(name: String) -> IpAddr {
    let listener = TcpListener::bind((own_address(), SERVICE.1)).await.unwrap();
    let address = listener.local_addr().unwrap().ip();
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
    address
}
