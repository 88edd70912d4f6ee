//! The connection from the command line to the running agent: a Unix socket in the state folder. Each
//! connection carries one request and its answer, each as a line of JSON. A command in the foreground gets a line for
//! every change, and has ended when it ends its side of the connection.

use std::io;
use std::os::unix::fs::PermissionsExt;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, Lines};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot, watch};
use uuid::Uuid;

use crate::doctor::NodeReport;
use crate::state_dir::StateDir;
use culvert_wire::allowed_target::AllowedTarget;
use culvert_wire::clock::Clock;
use culvert_wire::control::{ConsentState, Failure};
use culvert_wire::failure_code::FailureCode;
use culvert_wire::target::ProxyProtocol;

const SOCKET: &str = "agent.sock";
/// Bytes of a request, at most.
const MOST_REQUEST: u64 = 256 * 1024;

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    Status,
    RemoteControl {
        enabled: bool,
        /// Targets to allow, in addition to this machine and to those in the list.
        #[serde(default)]
        allow: Vec<AllowedTarget>,
    },
    /// Changes the list of allowed targets, or only shows it.
    Targets {
        #[serde(default)]
        allow: Vec<AllowedTarget>,
        #[serde(default)]
        revoke: Vec<AllowedTarget>,
    },
    /// Starts a tunnel, given by id or name.
    Start {
        tunnel: String,
        /// The targets outside of the list that the user has seen and accepted, as a refusal named them.
        #[serde(default)]
        accept: Option<String>,
    },
    Stop {
        tunnel: String,
    },
    /// Tries the ways to the nodes of the running tunnels.
    Doctor,
    /// Makes a tunnel and starts it, until the command ends.
    Foreground(Box<WantedTunnel>),
}

pub type Reply = Result<Answer, Failure>;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    Status(Status),
    /// The decision, and whether the host has confirmed it yet.
    RemoteControl {
        state: ConsentState,
        confirmed: bool,
    },
    /// The present list. If remote control is on, also whether the host has confirmed it yet.
    Targets {
        targets: Vec<AllowedTarget>,
        confirmed: Option<bool>,
    },
    Started(TunnelStatus),
    Stopped {
        tunnel_id: Uuid,
    },
    Doctor(DoctorReport),
    Foreground(Box<ForegroundStatus>),
    /// The command in the foreground has ended: its tunnel is stopped, and deleted unless it is kept.
    Ended,
}

/// How the server and the nodes can be reached.
#[derive(Debug, Serialize, Deserialize)]
pub struct DoctorReport {
    pub server: String,
    pub connected: bool,
    /// Those of the running tunnels.
    pub nodes: Vec<NodeReport>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Status {
    pub device_id: Uuid,
    pub name: Option<String>,
    pub server: String,
    pub version: String,
    pub connected: bool,
    /// How many seconds the running tunnels go on if the server is not heard again.
    #[serde(default)]
    pub lease_seconds: Option<u64>,
    pub remote_control: ConsentState,
    /// The targets that remote control may use.
    #[serde(default)]
    pub allowed_targets: Vec<AllowedTarget>,
    /// The nodes of the running tunnels.
    #[serde(default)]
    pub nodes: Vec<NodeStatus>,
    pub tunnels: Vec<TunnelStatus>,
}

/// The device's connections to a node.
#[derive(Debug, Serialize, Deserialize)]
pub struct NodeStatus {
    /// `host:port`
    pub address: String,
    /// What carries visitors: `TLS`, `TLS + QUIC`, or why there is no QUIC.
    pub transport: String,
    /// Connections that wait for a visitor.
    pub warm: usize,
    /// Connections and streams that serve one.
    pub busy: usize,
    /// How long the node took to answer when the newest connection attached.
    pub round_trip_ms: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunnelStatus {
    pub tunnel_id: Uuid,
    pub name: String,
    pub public_address: String,
    /// The tunnel's target on this device, as `host:port`.
    pub local_target: String,
    /// Whether the target is spoken to over TLS.
    #[serde(default)]
    pub local_tls: bool,
    /// How the target is told who a visitor is.
    #[serde(default)]
    pub proxy_protocol: ProxyProtocol,
    /// What is wrong with the local target; `None` if nothing is.
    pub target_error: Option<String>,
    /// Open connections of visitors. For http, they are the node's connections to the local service.
    #[serde(default)]
    pub visitors: u64,
    /// From visitors, since the tunnel started here.
    #[serde(default)]
    pub bytes_in: u64,
    /// To visitors, since the tunnel started here.
    #[serde(default)]
    pub bytes_out: u64,
    /// Datagrams that the agent has dropped, since the tunnel started here.
    #[serde(default)]
    pub dropped_datagrams: u64,
}

impl TunnelStatus {
    /// Where visitors come, and where they are led.
    pub fn way(&self) -> String {
        let tls = if self.local_tls { ", TLS" } else { "" };
        let proxy = match self.proxy_protocol {
            ProxyProtocol::None | ProxyProtocol::Other => "",
            ProxyProtocol::V1 => ", PROXY v1",
            ProxyProtocol::V2 => ", PROXY v2",
            ProxyProtocol::Spp => ", SPP",
        };
        format!("{} → {}{tls}{proxy}", self.public_address, self.local_target)
    }
}

/// A tunnel that a command in the foreground wants.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WantedTunnel {
    /// The body of `POST /v2/tunnels`.
    pub body: serde_json::Value,
    /// Local ports beside that of the body, as the command named them.
    #[serde(default)]
    pub extra_ports: Vec<u16>,
    /// Whether the tunnel stays when the command has ended.
    pub keep: bool,
    /// The same for every attempt to create it.
    pub creation_id: Option<Uuid>,
    /// The tunnel, where it was created already.
    pub tunnel_id: Option<Uuid>,
    /// When it was last seen running.
    #[serde(default)]
    pub ran_at: Option<DateTime<Utc>>,
}

/// What the tunnel of a command in the foreground does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForegroundStatus {
    pub state: ForegroundState,
    pub tunnel_id: Option<Uuid>,
    /// The request by which the tunnel is created.
    #[serde(default)]
    pub creation_id: Option<Uuid>,
    /// While it runs.
    pub tunnel: Option<TunnelStatus>,
    /// What is wrong.
    pub problem: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ForegroundState {
    Starting,
    Running,
    /// It is tried again with the next heartbeat, or when the server is reached.
    Waiting,
}

/// What a command in the foreground is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update {
    Status(Box<ForegroundStatus>),
    Ended(Result<(), Failure>),
}

impl From<Update> for Reply {
    fn from(update: Update) -> Self {
        match update {
            Update::Status(status) => Ok(Answer::Foreground(status)),
            Update::Ended(outcome) => outcome.map(|()| Answer::Ended),
        }
    }
}

/// A request from the command line.
#[derive(Debug)]
pub enum IpcRequest {
    /// With the sender for its answer.
    Once(Request, oneshot::Sender<Reply>),
    Foreground {
        id: Uuid,
        wanted: Box<WantedTunnel>,
        updates: watch::Sender<Update>,
    },
    /// The command in the foreground has ended.
    Gone(Uuid),
}

/// Accepts requests on the socket until their receiver is dropped.
///
/// # Errors
///
/// If the socket cannot be created.
pub fn listen(state: &StateDir, clock: Clock, requests: mpsc::Sender<IpcRequest>) -> io::Result<()> {
    let path = state.path(SOCKET);
    // The caller has the lock on the folder, so the process that created an existing socket is gone.
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&path)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
    tokio::spawn(async move {
        loop {
            tokio::select! {
                accepted = listener.accept() => if let Ok((stream, _)) = accepted {
                    let (requests, id) = (requests.clone(), clock.id());
                    tokio::spawn(async move { answer(stream, id, requests).await });
                },
                () = requests.closed() => break,
            }
        }
    });
    Ok(())
}

async fn answer(mut stream: UnixStream, id: Uuid, requests: mpsc::Sender<IpcRequest>) -> io::Result<()> {
    let mut line = String::new();
    BufReader::new((&mut stream).take(MOST_REQUEST)).read_line(&mut line).await?;
    let request = match serde_json::from_str(&line)? {
        Request::Foreground(wanted) => return attend(stream, id, wanted, requests).await,
        request => request,
    };
    let (reply, answer) = oneshot::channel();
    requests.send(IpcRequest::Once(request, reply)).await.map_err(io::Error::other)?;
    let reply = answer.await.unwrap_or_else(|_| Err(Failure::new(FailureCode::AgentStopped, "The agent is ending.")));
    write_line(&mut stream, &reply).await
}

/// Tells a command in the foreground what its tunnel does, and the agent when the command has ended.
async fn attend(
    mut stream: UnixStream,
    id: Uuid,
    wanted: Box<WantedTunnel>,
    requests: mpsc::Sender<IpcRequest>,
) -> io::Result<()> {
    let starting = ForegroundStatus {
        state: ForegroundState::Starting,
        tunnel_id: wanted.tunnel_id,
        creation_id: wanted.creation_id,
        tunnel: None,
        problem: None,
    };
    let (updates, mut news) = watch::channel(Update::Status(Box::new(starting)));
    requests.send(IpcRequest::Foreground { id, wanted, updates }).await.map_err(io::Error::other)?;
    let (mut reader, mut writer) = stream.split();
    let told = async {
        while news.changed().await.is_ok() {
            let update = news.borrow_and_update().clone();
            write_line(&mut writer, &Reply::from(update)).await?;
        }
        io::Result::Ok(())
    };
    let mut told = std::pin::pin!(told);
    let mut end = [0];
    tokio::select! {
        // The agent has said its last word, or the command takes nothing any longer.
        told = told.as_mut() => {
            let _ = requests.send(IpcRequest::Gone(id)).await;
            return told;
        }
        _ = reader.read(&mut end) => {}
    }
    let _ = requests.send(IpcRequest::Gone(id)).await;
    told.await
}

async fn write_line(stream: &mut (impl AsyncWrite + Unpin), reply: &Reply) -> io::Result<()> {
    let mut text = serde_json::to_vec(reply)?;
    text.push(b'\n');
    stream.write_all(&text).await
}

/// Sends a request to the running agent; `None` if none runs, or if it ended before it answered.
///
/// # Errors
///
/// If the agent runs but does not answer.
pub async fn ask(state: &StateDir, request: &Request) -> io::Result<Option<Reply>> {
    match exchange(state, request).await {
        Ok(line) if line.is_empty() => Ok(None),
        Ok(line) => Ok(Some(serde_json::from_str(&line)?)),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

async fn exchange(state: &StateDir, request: &Request) -> io::Result<String> {
    let stream = open(state, request).await?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).await?;
    Ok(line)
}

async fn open(state: &StateDir, request: &Request) -> io::Result<UnixStream> {
    let mut stream = UnixStream::connect(state.path(SOCKET)).await?;
    let mut text = serde_json::to_vec(request)?;
    text.push(b'\n');
    stream.write_all(&text).await?;
    Ok(stream)
}

/// The connection of a command in the foreground.
pub struct Attendance(Lines<BufReader<UnixStream>>);

impl Attendance {
    /// Asks the running agent for a tunnel; `None` if none runs.
    ///
    /// # Errors
    ///
    /// If the agent runs but cannot be asked.
    pub async fn begin(state: &StateDir, wanted: &WantedTunnel) -> io::Result<Option<Self>> {
        match open(state, &Request::Foreground(Box::new(wanted.clone()))).await {
            Ok(stream) => Ok(Some(Self(BufReader::new(stream).lines()))),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What the agent says next; `None` if it has ended.
    pub async fn next(&mut self) -> Option<Reply> {
        let line = self.0.next_line().await.ok()??;
        serde_json::from_str(&line).ok()
    }

    /// Says that the command ends. The agent then stops the tunnel, and says when that is done.
    pub async fn end(&mut self) {
        // An agent that is gone is noticed by `next`.
        let _ = self.0.get_mut().get_mut().shutdown().await;
    }
}

/// Whether an error says that no agent runs, or that it has ended.
fn is_absent(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound};
    matches!(error.kind(), NotFound | ConnectionRefused | ConnectionReset | BrokenPipe)
}
