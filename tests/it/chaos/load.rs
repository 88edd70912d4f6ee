//! Clients that change tunnels, each at hosts that it picks at random, and visitors of these tunnels.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value as Json, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_util::future::FutureExt;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::asker::{ANSWERED_WITHIN, Asker, Random};
use super::history::{Burst, History, Seen, Span, Stopped, TOO_MANY, Value, Visit};
use super::stage::{Device, FREE_TUNNELS, SERVICE, Stage};

/// How often a client changes something, and a visitor asks.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How often an operation is read: what it says is to be seen soon.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// How long a stopped tunnel's port has to refuse a connection.
const REFUSED_WITHIN: Duration = Duration::from_secs(5);

/// Nobody listens there.
const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1);

/// Somebody with one tunnel and two devices.
pub struct Client {
    asker: Asker,
    history: Arc<History>,
    devices: [Arc<Device>; 2],
    names: [String; 2],
    nodes: Vec<Json>,
    pub tunnel: Uuid,
    /// Where visitors reach the tunnel; none while it is moved.
    public: watch::Sender<Option<SocketAddr>>,
    /// Since when it is known to be stopped.
    stopped: Option<Span>,
    values: u32,
}

impl Client {
    /// The numbers stand for its requests: two clients with the same would be one.
    pub async fn new(stage: &Arc<Stage>, history: &Arc<History>, random: Random, number: usize) -> Self {
        let devices = [0, 1].map(|which| stage.devices[2 * number + which].clone());
        let mut asker = Asker::new(stage, history, random);
        let nodes = asker.read("/nodes").await.body["data"].clone();
        let nodes = nodes.as_array().unwrap_or_else(|| panic!("{nodes}")).iter().map(|node| node["id"].clone());
        let mut client = Self {
            nodes: nodes.collect(),
            asker,
            history: history.clone(),
            devices,
            names: [0, 1].map(|which| format!("device-{}", 2 * number + which)),
            tunnel: Uuid::nil(),
            public: watch::Sender::default(),
            stopped: None,
            values: 0,
        };
        let (host, port) = SERVICE;
        let body = json!({"local_host": host, "local_port": port, "name": format!("chaos {number}")});
        let made = client.asker.write(Method::POST, "/tunnels", &body).await.body["data"].clone();
        client.tunnel = made["id"].as_str().unwrap_or_else(|| panic!("{made}")).parse().unwrap();
        client.find().await;
        client
    }

    /// Takes up where visitors reach the tunnel now.
    async fn find(&mut self) {
        let read = self.asker.read(&format!("/tunnels/{}", self.tunnel)).await;
        let address = &read.body["data"]["public_address"];
        if let (Some(hostname), Some(port)) = (address["hostname"].as_str(), address["port"].as_u64()) {
            let public = self.asker.stage.node_at(hostname, u16::try_from(port).unwrap());
            self.public.send_replace(Some(public));
        } else {
            self.history.note().wrong.push(format!("answer: {}: {} {}", self.tunnel, read.status, read.body));
        }
    }

    /// Changes the tunnel until it is told to end.
    pub async fn run(mut self, end: CancellationToken) -> Self {
        while !end.is_cancelled() {
            match self.asker.random.below(9) {
                0 | 1 => self.write_value().await,
                2 | 3 => self.read_value().await,
                4 => self.stop().await,
                5 => self.move_to_some_node().await,
                _ => {
                    let device = self.asker.random.below(2);
                    self.start(device).await;
                }
            }
            self.history.clock.sleep(LOOK_EVERY).await;
        }
        self
    }

    /// Has the tunnel run; whether it does.
    pub async fn start(&mut self, device: usize) -> bool {
        if let Some(known) = self.stopped.take() {
            let stopped = Stopped { tunnel: self.tunnel, span: self.history.since(known.over) };
            self.history.note().stopped.push(stopped);
        }
        let body = json!({"device_id": self.devices[device].id, "handoff": true});
        self.operate("start", &body).await
    }

    pub fn visitor(&self, random: Random, patience: Duration) -> Visitor {
        let (history, public, names) = (self.history.clone(), self.public.subscribe(), self.names.clone());
        Visitor { history, tunnel: self.tunnel, names, public, random, patience }
    }

    async fn stop(&mut self) {
        let begun = self.history.clock.moment();
        if !self.operate("stop", &json!({})).await {
            return;
        }
        let stopped = self.history.since(begun);
        let public = self.public.borrow().unwrap_or(NOWHERE);
        if let Ok(Ok(_)) = self.history.clock.timeout(REFUSED_WITHIN, TcpStream::connect(public)).await {
            self.history.note().wrong.push(format!("stop: the port of {} is open after it", self.tunnel));
        }
        self.stopped.get_or_insert(stopped);
    }

    /// It may be there already, or be on its way still.
    async fn move_to_some_node(&mut self) {
        let node = &self.nodes[self.asker.random.below(self.nodes.len())];
        self.public.send_replace(None);
        let path = format!("/tunnels/{}/move", self.tunnel);
        let moved = self.asker.write(Method::POST, &path, &json!({"node_id": node})).await;
        match moved.status {
            202 => self.history.note().moved += 1,
            409 => {}
            status => self.history.note().wrong.push(format!("answer: move: {status} {}", moved.body)),
        }
        self.find().await;
    }

    /// Asks for an operation, and waits until it has ended; whether it has succeeded.
    async fn operate(&mut self, what: &str, body: &Json) -> bool {
        let since = self.history.clock.moment();
        let asked = self.asker.write(Method::POST, &format!("/tunnels/{}/actions/{what}", self.tunnel), body).await;
        let Some(id) = asked.body["data"]["id"].as_str().filter(|_| asked.status == 202) else { return false };
        let operation: Uuid = id.parse().unwrap();
        loop {
            let read = self.asker.read(&format!("/operations/{operation}")).await;
            let status = read.body["data"]["status"].as_str().unwrap_or_default().to_owned();
            let seen = Seen { operation, status: status.clone(), since, at: read.span.over };
            let is_late = self.history.clock.moment().since(since) > 2 * ANSWERED_WITHIN;
            self.history.note().operations.push(seen);
            if is_late || matches!(&*status, "succeeded" | "failed" | "expired" | "canceled") {
                self.history.note().expected.push((format!("command.{status}"), operation));
                return status == "succeeded";
            }
            self.history.clock.sleep(LOOK_AGAIN).await;
        }
    }

    /// The rule is about an address that nobody visits from.
    async fn write_value(&mut self) {
        self.values += 1;
        let value = format!("198.51.{}.{}/32", self.values / 256, self.values % 256);
        let body = json!({"rules": [{"rule_type": "blacklist", "ip_cidr": value}]});
        let written = self.asker.write(Method::PUT, &format!("/tunnels/{}/firewall", self.tunnel), &body).await;
        if written.status != 200 {
            self.history.note().wrong.push(format!("answer: PUT firewall: {} {}", written.status, written.body));
            return;
        }
        self.history.note().written.push(Value { tunnel: self.tunnel, text: value, span: written.span });
    }

    async fn read_value(&mut self) {
        if self.values == 0 {
            return;
        }
        let read = self.asker.read(&format!("/tunnels/{}/firewall", self.tunnel)).await;
        let text = read.body["data"]["rules"][0]["ip_cidr"].as_str().unwrap_or("none").to_owned();
        self.history.note().read.push(Value { tunnel: self.tunnel, text, span: read.span });
    }
}

static CONNECTIONS: AtomicU64 = AtomicU64::new(0);

/// Somebody who visits a tunnel.
pub struct Visitor {
    history: Arc<History>,
    tunnel: Uuid,
    /// Those that may answer.
    names: [String; 2],
    public: watch::Receiver<Option<SocketAddr>>,
    random: Random,
    /// How long they wait for an answer.
    patience: Duration,
}

impl Visitor {
    /// Visits again and again, on connections of different lengths.
    pub async fn visit(mut self, end: CancellationToken) {
        let clock = self.history.clock.clone();
        while !end.is_cancelled() {
            let public = self.public.borrow_and_update().unwrap_or(NOWHERE);
            let stream = clock.timeout(self.patience, TcpStream::connect(public));
            if let Some(Ok(Ok(stream))) = stream.with_cancellation_token(&end).await {
                self.talk(BufReader::new(stream)).with_cancellation_token(&end).await;
            }
            clock.sleep(LOOK_EVERY).await;
        }
    }

    async fn talk(&mut self, mut stream: BufReader<TcpStream>) {
        let clock = self.history.clock.clone();
        let connection = CONNECTIONS.fetch_add(1, Ordering::Relaxed);
        for _ in 0..=self.random.below(60) {
            let begun = clock.moment();
            let Ok(Some(device)) = clock.timeout(self.patience, ask_device(&mut stream)).await else {
                self.history.met_a_fault();
                return;
            };
            if !self.names.contains(&device) {
                // The tunnel may have moved meanwhile, and its port may be another one's.
                if !self.public.has_changed().unwrap_or(true) {
                    self.history.note().wrong.push(format!("{device} answers for {}", self.tunnel));
                }
                return;
            }
            let visit = Visit { tunnel: self.tunnel, connection, device, span: self.history.since(begun) };
            self.history.note().visits.push(visit);
            clock.sleep(LOOK_EVERY).await;
        }
    }
}

async fn ask_device(stream: &mut BufReader<TcpStream>) -> Option<String> {
    stream.write_all(b"who\n").await.ok()?;
    let mut line = String::new();
    stream.read_line(&mut line).await.ok().filter(|count| *count > 0)?;
    Some(line.trim_end().to_owned())
}

/// Makes more tunnels at once than the plan of an account includes, and deletes those that were made, again and again.
pub async fn make_too_many(stage: Arc<Stage>, history: Arc<History>, seed: u64, end: CancellationToken) {
    let asker = |stream| Asker::new(&stage, &history, Random::of(seed, stream)).with_key(&stage.free_key);
    let mut askers: Vec<_> = (200..).map(asker).take(FREE_TUNNELS + TOO_MANY).collect();
    while !end.is_cancelled() {
        let body = json!({"local_host": "127.0.0.1", "local_port": 1, "name": "one of many"});
        let made = join_all(askers.iter_mut().map(|asker| asker.write(Method::POST, "/tunnels", &body))).await;
        let ids: Vec<_> = made.iter().filter_map(|answer| answer.body["data"]["id"].as_str()).collect();
        let refused = made.iter().filter(|answer| answer.status == 403).count();
        history.note().bursts.push(Burst { made: ids.len(), refused });
        for id in ids {
            let deleted = askers[0].write(Method::DELETE, &format!("/tunnels/{id}"), &json!({})).await;
            if deleted.status != 200 {
                history.note().wrong.push(format!("answer: DELETE: {} {}", deleted.status, deleted.body));
                return;
            }
        }
        history.clock.sleep(LOOK_EVERY * 10).await;
    }
}
