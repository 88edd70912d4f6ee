//! Clients that change tunnels, each at hosts that it picks at random, and visitors of these tunnels.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};
use reqwest::Method;
use serde_json::{Value as Json, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::history::{History, Repeated, Seen, Span, Stopped, Value, Visit};
use super::stage::{Device, Host, Stage};

/// How long one host has for an answer, and all of them.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
const ANSWERED_WITHIN: Duration = Duration::from_mins(2);
const AGAIN_AFTER: Duration = Duration::from_millis(200);
/// How often an operation is read, and a visitor asks.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Numbers that a seed stands for.
pub struct Random(TestRng);

impl Random {
    pub fn of(seed: u64, stream: u64) -> Self {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        bytes[8..16].copy_from_slice(&stream.to_le_bytes());
        Self(TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
    }

    /// A number below this one.
    pub fn below(&mut self, most: usize) -> usize {
        usize::try_from(self.0.next_u64() % most as u64).unwrap()
    }

    fn key(&mut self) -> String {
        format!("{:016x}{:016x}", self.0.next_u64(), self.0.next_u64())
    }
}

/// An answer that no other host would change.
struct Answer {
    span: Span,
    status: u16,
    body: Json,
}

/// Somebody with one tunnel and two devices.
pub struct Client {
    stage: Arc<Stage>,
    history: Arc<History>,
    random: Random,
    devices: [Arc<Device>; 2],
    pub tunnel: Uuid,
    /// Where visitors reach the tunnel.
    pub public: String,
    /// Since when it is known to be stopped.
    stopped: Option<Span>,
    values: u32,
}

impl Client {
    pub async fn new(stage: &Arc<Stage>, history: &Arc<History>, seed: u64, number: usize) -> Self {
        let devices = [0, 1].map(|which| stage.devices[2 * number + which].clone());
        let mut client = Self {
            stage: stage.clone(),
            history: history.clone(),
            random: Random::of(seed, number as u64),
            devices,
            tunnel: Uuid::nil(),
            public: String::new(),
            stopped: None,
            values: 0,
        };
        let body =
            json!({"local_host": "127.0.0.1", "local_port": client.devices[0].port, "name": format!("chaos {number}")});
        let made = client.write(Method::POST, "/tunnels", &body).await.body["data"].clone();
        client.tunnel = made["id"].as_str().unwrap_or_else(|| panic!("{made}")).parse().unwrap();
        let address = &made["public_address"];
        client.public = format!("{}:{}", address["hostname"].as_str().unwrap(), address["port"]);
        client
    }

    /// Changes the tunnel until it is told to end.
    pub async fn run(mut self, end: CancellationToken) -> Self {
        while !end.is_cancelled() {
            match self.random.below(8) {
                0 | 1 => self.write_value().await,
                2 | 3 => self.read_value().await,
                4 => self.stop().await,
                _ => {
                    let device = self.random.below(2);
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

    async fn stop(&mut self) {
        let begun = self.history.clock.moment();
        if self.operate("stop", &json!({})).await && self.stopped.is_none() {
            self.stopped = Some(self.history.since(begun));
        }
    }

    /// Asks for an operation, and waits until it has ended; whether it has succeeded.
    async fn operate(&mut self, what: &str, body: &Json) -> bool {
        let since = self.history.clock.moment();
        let asked = self.write(Method::POST, &format!("/tunnels/{}/actions/{what}", self.tunnel), body).await;
        let Some(id) = asked.body["data"]["id"].as_str().filter(|_| asked.status == 202) else { return false };
        let operation: Uuid = id.parse().unwrap();
        loop {
            let read = self.ask(&Method::GET, &format!("/operations/{operation}"), None, None).await;
            let status = read.body["data"]["status"].as_str().unwrap_or_default().to_owned();
            let seen = Seen { operation, status: status.clone(), since, at: read.span.over };
            let is_late = self.history.clock.moment().since(since) > 2 * ANSWERED_WITHIN;
            self.history.note().operations.push(seen);
            if is_late || matches!(&*status, "succeeded" | "failed" | "expired" | "canceled") {
                self.history.note().expected.push((format!("command.{status}"), operation));
                return status == "succeeded";
            }
            self.history.clock.sleep(LOOK_EVERY).await;
        }
    }

    /// The rule is about an address that nobody visits from.
    async fn write_value(&mut self) {
        self.values += 1;
        let value = format!("198.51.{}.{}/32", self.values / 256, self.values % 256);
        let body = json!({"rules": [{"rule_type": "blacklist", "ip_cidr": value}]});
        let written = self.write(Method::PUT, &format!("/tunnels/{}/firewall", self.tunnel), &body).await;
        assert_eq!(written.status, 200, "{}", written.body);
        self.history.note().written.push(Value { tunnel: self.tunnel, text: value, span: written.span });
    }

    async fn read_value(&mut self) {
        if self.values == 0 {
            return;
        }
        let read = self.ask(&Method::GET, &format!("/tunnels/{}/firewall", self.tunnel), None, None).await;
        let text = read.body["data"]["rules"][0]["ip_cidr"].as_str().unwrap_or("none").to_owned();
        self.history.note().read.push(Value { tunnel: self.tunnel, text, span: read.span });
    }

    /// A write under a key of its own, which is repeated now and then.
    async fn write(&mut self, method: Method, path: &str, body: &Json) -> Answer {
        let key = self.random.key();
        let first = self.ask(&method, path, Some(body), Some(&key)).await;
        if (200..300).contains(&first.status) && self.random.below(3) == 0 {
            let again = self.ask(&method, path, Some(body), Some(&key)).await.body;
            self.history.note().repeated.push(Repeated { key, first: first.body.clone(), again });
        }
        first
    }

    /// Asks one host after the other until one answers for good.
    async fn ask(&mut self, method: &Method, path: &str, body: Option<&Json>, key: Option<&str>) -> Answer {
        let begun = self.history.clock.moment();
        let mut last = String::new();
        while self.history.clock.moment().since(begun) < ANSWERED_WITHIN {
            let host = self.random.below(self.stage.hosts.len());
            match ask_at(&self.stage.hosts[host], method, path, body, key).await {
                Ok((status, body)) if is_final(status, &body) => {
                    return Answer { span: self.history.since(begun), status, body };
                }
                Ok((503, body)) => last = body.to_string(),
                Ok((status, body)) => {
                    last = format!("{status} {body}");
                    if status >= 500 {
                        self.history.note().wrong.push(format!("answer: {method} {path}: {last}"));
                    }
                }
                Err(error) => last = format!("{error:?}"),
            }
            self.history.clock.sleep(AGAIN_AFTER).await;
        }
        self.history.note().wrong.push(format!("no answer: {method} {path}: {last}"));
        Answer { span: self.history.since(begun), status: 0, body: Json::Null }
    }
}

/// Whether another host would say nothing else.
fn is_final(status: u16, body: &Json) -> bool {
    status < 500 && status != 429 && body["code"] != "idempotency_in_progress"
}

async fn ask_at(
    host: &Host,
    method: &Method,
    path: &str,
    body: Option<&Json>,
    key: Option<&str>,
) -> reqwest::Result<(u16, Json)> {
    let mut request = host.api.request(method.clone(), path).timeout(ANSWER_WITHIN);
    if let Some(body) = body {
        request = request.json(body);
    }
    if let Some(key) = key {
        request = request.header("idempotency-key", key);
    }
    let response = request.send().await?;
    Ok((response.status().as_u16(), response.json().await?))
}

static CONNECTIONS: AtomicU64 = AtomicU64::new(0);

/// Visits a tunnel again and again, on connections of different lengths.
pub async fn visit(history: Arc<History>, tunnel: Uuid, public: String, mut random: Random, end: CancellationToken) {
    let clock = history.clock.clone();
    while !end.is_cancelled() {
        let connection = CONNECTIONS.fetch_add(1, Ordering::Relaxed);
        if let Ok(Ok(stream)) = clock.timeout(ANSWER_WITHIN, TcpStream::connect(&public)).await {
            let mut stream = BufReader::new(stream);
            for _ in 0..=random.below(60) {
                let begun = clock.moment();
                let Ok(Some(device)) = clock.timeout(ANSWER_WITHIN, ask_device(&mut stream)).await else { break };
                history.note().visits.push(Visit { tunnel, connection, device, span: history.since(begun) });
                clock.sleep(LOOK_EVERY).await;
            }
        }
        clock.sleep(LOOK_EVERY).await;
    }
}

async fn ask_device(stream: &mut BufReader<TcpStream>) -> Option<String> {
    stream.write_all(b"who\n").await.ok()?;
    let mut line = String::new();
    stream.read_line(&mut line).await.ok().filter(|count| *count > 0)?;
    Some(line.trim_end().to_owned())
}
