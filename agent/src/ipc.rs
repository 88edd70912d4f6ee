//! The connection from the command line to the running agent: a Unix socket in the state folder. Each
//! connection carries one request and one answer, each as a line of JSON.

use std::io;
use std::os::unix::fs::PermissionsExt;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use crate::state_dir::StateDir;
use culvert_wire::allowed_target::AllowedTarget;
use culvert_wire::control::{ConsentState, Failure};
use culvert_wire::failure_code::FailureCode;

const SOCKET: &str = "agent.sock";

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
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Status {
    pub device_id: Uuid,
    pub name: Option<String>,
    pub server: String,
    pub version: String,
    pub connected: bool,
    pub remote_control: ConsentState,
    /// The targets that remote control may use.
    #[serde(default)]
    pub allowed_targets: Vec<AllowedTarget>,
    pub tunnels: Vec<TunnelStatus>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct TunnelStatus {
    pub tunnel_id: Uuid,
    pub name: String,
    pub public_address: String,
    /// The tunnel's target on this device, as `host:port`.
    pub local_target: String,
    /// What is wrong with the local target; `None` if nothing is.
    pub target_error: Option<String>,
}

/// A request from the command line, and the sender for its answer.
pub type IpcRequest = (Request, oneshot::Sender<Reply>);

/// Accepts requests on the socket until their receiver is dropped.
///
/// # Errors
///
/// If the socket cannot be created.
pub fn listen(state: &StateDir, requests: mpsc::Sender<IpcRequest>) -> io::Result<()> {
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
                    let requests = requests.clone();
                    tokio::spawn(async move { answer(stream, requests).await });
                },
                () = requests.closed() => break,
            }
        }
    });
    Ok(())
}

async fn answer(mut stream: UnixStream, requests: mpsc::Sender<IpcRequest>) -> io::Result<()> {
    let mut line = String::new();
    BufReader::new(&mut stream).read_line(&mut line).await?;
    let request = serde_json::from_str(&line)?;
    let (reply, answer) = oneshot::channel();
    requests.send((request, reply)).await.map_err(io::Error::other)?;
    let reply = answer.await.unwrap_or_else(|_| Err(Failure::new(FailureCode::AgentStopped, "The agent is ending.")));
    let mut text = serde_json::to_vec(&reply)?;
    text.push(b'\n');
    stream.write_all(&text).await
}

/// Sends a request to the running agent; `None` if none runs, or if it ended before it answered.
///
/// # Errors
///
/// If the agent runs but does not answer.
pub async fn ask(state: &StateDir, request: &Request) -> io::Result<Option<Reply>> {
    use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound};
    match exchange(state, request).await {
        Ok(line) if line.is_empty() => Ok(None),
        Ok(line) => Ok(Some(serde_json::from_str(&line)?)),
        Err(error) if matches!(error.kind(), NotFound | ConnectionRefused | ConnectionReset | BrokenPipe) => Ok(None),
        Err(error) => Err(error),
    }
}

async fn exchange(state: &StateDir, request: &Request) -> io::Result<String> {
    let mut stream = UnixStream::connect(state.path(SOCKET)).await?;
    let mut text = serde_json::to_vec(request)?;
    text.push(b'\n');
    stream.write_all(&text).await?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).await?;
    Ok(line)
}
