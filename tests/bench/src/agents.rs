//! Many agents in a process of their own: each holds its control channel to the host, with real handshakes and
//! heartbeats, obeys commands, and comes back as an agent does.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use culvert_agent::device::{Device, DeviceKey};
use culvert_agent::state_dir::StateDir;
use culvert_wire::clock::Clock;
use culvert_wire::control::{
    Action, CONNECT_PATH, Capability, ConsentState, Done, Hello, PROTOCOL, ToAgent, ToHost, connect_statement,
};
use futures_util::{SinkExt, StreamExt};
use serde::{Deserialize, Serialize};
use tokio::net::{TcpSocket, TcpStream};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::{WebSocketStream, client_async};
use uuid::Uuid;

/// The environment variable by which a benchmark knows that it is to be such a process.
const AGENTS: &str = "BENCH_AGENTS";
/// The addresses that agents come from: a host takes 64 handshakes of one at a time.
const ADDRESSES: usize = 200;
/// The agent's own waits before it connects again.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MOST: Duration = Duration::from_mins(1);
const JITTER_MOST: Duration = Duration::from_secs(3);
const REPORT_EVERY: Duration = Duration::from_millis(100);

/// What such a process is to do. All its devices have one key.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    pub host: SocketAddr,
    /// The state folder of a device with the key.
    pub state: PathBuf,
    pub devices: Vec<Uuid>,
    /// The first ones come evenly over this time.
    pub over: Duration,
}

/// How its agents are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    pub connected: u64,
    /// Handshakes that the host has answered with a refusal.
    pub refused: u64,
}

/// A running process.
pub struct Agents {
    child: Child,
    last: Arc<Mutex<Report>>,
}

impl Drop for Agents {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Saves a key for all devices; the state folder and the public half.
pub fn make_key(folder: &Path) -> (PathBuf, Vec<u8>) {
    let path = folder.join("agents");
    let state = StateDir::open(&path).unwrap();
    let device =
        Device { id: Uuid::nil(), name: None, server: String::new(), key: DeviceKey::generate(&Clock::system()) };
    device.save(&state).unwrap();
    (path, device.key.public().0)
}

impl Agents {
    pub fn spawn(plan: &Plan) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let file = plan.state.join(format!("{}.json", plan.devices[0]));
        std::fs::write(&file, serde_json::to_vec(plan).unwrap()).unwrap();
        let mut child = command.env(AGENTS, file).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let last = Arc::new(Mutex::new(Report::default()));
        let latest = last.clone();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                *latest.lock().unwrap() = serde_json::from_str(&line).unwrap();
            }
        });
        Self { child, last }
    }

    pub fn report(&self) -> Report {
        *self.last.lock().unwrap()
    }
}

/// In a process that [`Agents::spawn`] has made, this never returns.
pub fn play_if_asked() {
    let Ok(file) = std::env::var(AGENTS) else { return };
    let plan: Plan = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    culvert_wire::socket::allow_many();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(play(plan));
}

struct Shared {
    host: SocketAddr,
    key: DeviceKey,
    boot_id: Uuid,
    clock: Clock,
    connected: AtomicU64,
    refused: AtomicU64,
}

async fn play(plan: Plan) {
    let key = Device::load(&StateDir::open(&plan.state).unwrap()).unwrap().unwrap().key;
    let counter = AtomicU64::default;
    let shared = Arc::new(Shared {
        host: plan.host,
        key,
        boot_id: Uuid::new_v4(),
        clock: Clock::system(),
        connected: counter(),
        refused: counter(),
    });
    let apart = plan.over / u32::try_from(plan.devices.len()).unwrap();
    for (number, device_id) in plan.devices.into_iter().enumerate() {
        let (shared, first) = (shared.clone(), apart * u32::try_from(number).unwrap());
        tokio::spawn(async move {
            tokio::time::sleep(first).await;
            shared.live(device_id, number).await;
        });
    }
    loop {
        tokio::time::sleep(REPORT_EVERY).await;
        let of = |counter: &AtomicU64| counter.load(Relaxed);
        let report = Report { connected: of(&shared.connected), refused: of(&shared.refused) };
        println!("{}", serde_json::to_string(&report).unwrap());
        std::io::stdout().flush().unwrap();
    }
}

type Socket = WebSocketStream<TcpStream>;

/// What the host answered to a handshake.
enum Connected {
    Welcome(Box<Socket>, Duration),
    /// It says when to come back.
    Later(Duration),
}

impl Shared {
    /// Connects, and again after a loss, with the waits of the agent.
    async fn live(&self, device_id: Uuid, number: usize) {
        let mut leases = Vec::new();
        let mut retry = RETRY_FIRST;
        loop {
            let asked = match self.connect(device_id, number, &leases).await {
                Some(Connected::Welcome(mut socket, heartbeat)) => {
                    retry = RETRY_FIRST;
                    self.connected.fetch_add(1, Relaxed);
                    let asked = self.serve(&mut socket, heartbeat, &mut leases).await;
                    self.connected.fetch_sub(1, Relaxed);
                    asked
                }
                Some(Connected::Later(after)) => Some(after),
                None => None,
            };
            let wait = match asked {
                Some(after) => after + self.clock.jitter(after.clamp(RETRY_FIRST, JITTER_MOST)),
                None => self.clock.jitter(retry),
            };
            retry = (retry * 2).min(RETRY_MOST);
            tokio::time::sleep(wait).await;
        }
    }

    async fn connect(&self, device_id: Uuid, number: usize, leases: &[Uuid]) -> Option<Connected> {
        let socket = TcpSocket::new_v4().unwrap();
        let [.., low] = (number % ADDRESSES).to_be_bytes();
        socket.bind(SocketAddr::from((Ipv4Addr::new(127, 0, 78, low + 1), 0))).ok()?;
        let stream = tokio::time::timeout(Duration::from_secs(20), socket.connect(self.host)).await.ok()?.ok()?;
        let mut request = format!("ws://{}{CONNECT_PATH}", self.host).into_client_request().unwrap();
        request.headers_mut().insert("sec-websocket-protocol", PROTOCOL.parse().unwrap());
        let (mut socket, _) =
            tokio::time::timeout(Duration::from_secs(20), client_async(request, stream)).await.ok()?.ok()?;
        let ToAgent::Challenge { nonce } = next(&mut socket).await? else { return None };
        let hello = Hello {
            device_id,
            signature: self.key.sign(&connect_statement(device_id, &nonce.0)),
            boot_id: self.boot_id,
            version: "1".into(),
            platform: "bench".into(),
            capabilities: Capability::ALL.map(String::from).into(),
            consent: ConsentState { enabled: true, revision: 0 },
            signed_consent: None,
            lease_ids: leases.into(),
            operation_ids: Vec::new(),
            stopped: Vec::new(),
            renews_tokens: true,
        };
        send(&mut socket, &ToHost::Hello(Box::new(hello))).await?;
        match next(&mut socket).await? {
            ToAgent::Welcome(welcome) => {
                Some(Connected::Welcome(Box::new(socket), Duration::from_millis(welcome.heartbeat_ms)))
            }
            ToAgent::Goodbye { reconnect_after_ms, .. } => {
                Some(Connected::Later(Duration::from_millis(reconnect_after_ms)))
            }
            ToAgent::Refused { .. } => {
                self.refused.fetch_add(1, Relaxed);
                None
            }
            _ => None,
        }
    }

    /// Serves a connection until it ends; the time that the host asks to stay away.
    async fn serve(&self, socket: &mut Socket, heartbeat: Duration, leases: &mut Vec<Uuid>) -> Option<Duration> {
        let mut due = self.clock.moment().plus(self.clock.jitter(heartbeat));
        let mut sequence = 0;
        loop {
            tokio::select! {
                frame = next(socket) => match frame? {
                    ToAgent::Command(command) => {
                        send(socket, &ToHost::Claimed { operation_id: command.operation_id }).await?;
                        send(socket, &ToHost::Ready { operation_id: command.operation_id }).await?;
                        assert!(matches!(command.action, Action::Start), "{command:?}");
                    }
                    ToAgent::Proceed { operation_id, grant } => {
                        leases.extend(grant.map(|grant| grant.lease_id));
                        send(socket, &ToHost::Finished { operation_id, outcome: Ok(Done::Start) }).await?;
                    }
                    ToAgent::Revoke { lease_id, .. } => leases.retain(|held| *held != lease_id),
                    ToAgent::Goodbye { reconnect_after_ms, .. } => return Some(Duration::from_millis(reconnect_after_ms)),
                    _ => {}
                },
                () = self.clock.until(due) => {
                    due = due.plus(heartbeat);
                    sequence += 1;
                    send(socket, &ToHost::Renew { sequence, lease_ids: leases.clone() }).await?;
                }
            }
        }
    }
}

async fn next(socket: &mut Socket) -> Option<ToAgent> {
    loop {
        match socket.next().await?.ok()? {
            Message::Text(text) => return serde_json::from_str(&text).ok(),
            Message::Close(_) => return None,
            _ => {}
        }
    }
}

async fn send(socket: &mut Socket, frame: &ToHost) -> Option<()> {
    socket.send(Message::text(serde_json::to_string(frame).unwrap())).await.ok()
}
