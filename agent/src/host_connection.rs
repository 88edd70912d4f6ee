//! The control channel to the host. It is dialled again whenever it is lost, for as long as the agent runs.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async_with_config};

use culvert_wire::clock::Clock;
use culvert_wire::control::{CONNECT_PATH, FRAME_LIMIT, Hello, PROTOCOL, ToAgent, ToHost};

const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MOST: Duration = Duration::from_mins(1);
/// The most that is added at random to the time that the host asked for: it spreads the returns of many agents itself.
const JITTER_MOST: Duration = Duration::from_secs(3);
const CONNECT_WITHIN: Duration = Duration::from_secs(20);
/// How long the host may be silent. It answers every renewal, so the connection is dead after this time.
const SILENCE: Duration = Duration::from_secs(25);
/// Frames that may wait to be sent: more than the agent sends before it notices a dead connection.
const OUTBOX: usize = 1024;

/// An event of the control channel.
#[derive(Debug)]
pub(crate) enum HostEvent {
    /// The host asks for the device's identity. The answer is a hello with a signature over the nonce.
    Challenged {
        nonce: Vec<u8>,
        hello: oneshot::Sender<Hello>,
    },
    /// The host has accepted the device. From now on, frames for the host go to this sender.
    Up(mpsc::Sender<ToHost>),
    Frame(Box<ToAgent>),
    Down,
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("{0}")]
    Socket(#[from] tungstenite::Error),
    #[error("the server's address is no URL: {0}")]
    Address(String),
    #[error("the host answered nothing for {} seconds", SILENCE.as_secs())]
    Silent,
    #[error("the host closed the connection")]
    Closed,
    #[error("the host refuses this device: {0}")]
    Refused(String),
    #[error("the host said goodbye: {reason}")]
    Goodbye { reason: String, reconnect_after: Duration },
    #[error("the host does not speak this agent's language")]
    Protocol,
    #[error("the agent is ending")]
    Stopped,
}

/// Connects, and reconnects after a loss, until the receiver of the events is dropped.
pub(crate) async fn run(server: String, clock: Clock, events: mpsc::Sender<HostEvent>) {
    let mut retry = RETRY_FIRST;
    loop {
        let mut welcomed = false;
        let ended = connection(&server, &clock, &events, &mut welcomed).await;
        if welcomed {
            retry = RETRY_FIRST;
        }
        if matches!(ended, Ended::Stopped) {
            return;
        }
        // Random wait (full jitter), so that not all agents reconnect to a restarted host at once.
        let wait = match ended {
            Ended::Goodbye { reconnect_after, .. } => {
                reconnect_after + clock.jitter(reconnect_after.clamp(RETRY_FIRST, JITTER_MOST))
            }
            // The host accepts the device only after somebody has changed something, so retry rarely.
            Ended::Refused(_) => RETRY_MOST / 2 + clock.jitter(RETRY_MOST / 2),
            _ => clock.jitter(retry),
        };
        tracing::warn!(reason = %ended, again_in_ms = wait.as_millis() as u64, "not connected to the host");
        retry = (retry * 2).min(RETRY_MOST);
        // Counted from the end of the connection, however late somebody hears of it.
        let again = clock.moment().plus(wait);
        if events.send(HostEvent::Down).await.is_err() {
            return;
        }
        tokio::select! {
            () = clock.until(again) => {}
            () = events.closed() => return,
        }
    }
}

async fn connection(server: &str, clock: &Clock, events: &mpsc::Sender<HostEvent>, welcomed: &mut bool) -> Ended {
    match clock.timeout(CONNECT_WITHIN, shake_hands(server, events)).await {
        Ok(Ok((socket, welcome))) => {
            *welcomed = true;
            serve_connection(socket, welcome, clock, events).await
        }
        Ok(Err(ended)) => ended,
        Err(_) => Ended::Silent,
    }
}

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

async fn shake_hands(server: &str, events: &mpsc::Sender<HostEvent>) -> Result<(Socket, ToAgent), Ended> {
    let mut socket = dial(server).await?;
    let ToAgent::Challenge { nonce } = receive(&mut socket).await? else { return Err(Ended::Protocol) };
    let (hello, answer) = oneshot::channel();
    let challenged = HostEvent::Challenged { nonce: nonce.0, hello };
    events.send(challenged).await.map_err(|_| Ended::Stopped)?;
    let hello = answer.await.map_err(|_| Ended::Stopped)?;
    send(&mut socket, &ToHost::Hello(Box::new(hello))).await?;
    match receive(&mut socket).await? {
        welcome @ ToAgent::Welcome(_) => Ok((socket, welcome)),
        ToAgent::Refused { code, detail } => Err(Ended::Refused(format!("{code}: {detail}"))),
        // The host is busy, and says when to reconnect.
        ToAgent::Goodbye { reason, reconnect_after_ms } => {
            Err(Ended::Goodbye { reason, reconnect_after: Duration::from_millis(reconnect_after_ms) })
        }
        _ => Err(Ended::Protocol),
    }
}

async fn dial(server: &str) -> Result<Socket, Ended> {
    let address = match server.split_once("://") {
        Some(("https", rest)) => format!("wss://{rest}{CONNECT_PATH}"),
        Some(("http", rest)) => format!("ws://{rest}{CONNECT_PATH}"),
        _ => return Err(Ended::Address(server.into())),
    };
    let mut request = address.into_client_request()?;
    request.headers_mut().insert("sec-websocket-protocol", HeaderValue::from_static(PROTOCOL));
    let limits = WebSocketConfig::default().max_message_size(Some(FRAME_LIMIT)).max_frame_size(Some(FRAME_LIMIT));
    let (socket, _) = connect_async_with_config(request, Some(limits), true).await?;
    Ok(socket)
}

async fn serve_connection(
    mut socket: Socket,
    welcome: ToAgent,
    clock: &Clock,
    events: &mpsc::Sender<HostEvent>,
) -> Ended {
    let (outbox, mut outgoing) = mpsc::channel(OUTBOX);
    for event in [HostEvent::Up(outbox), HostEvent::Frame(Box::new(welcome))] {
        if events.send(event).await.is_err() {
            return Ended::Stopped;
        }
    }
    let mut heard = clock.moment();
    loop {
        tokio::select! {
            frame = receive(&mut socket) => {
                heard = clock.moment();
                match frame {
                    Ok(ToAgent::Goodbye { reason, reconnect_after_ms }) => {
                        return Ended::Goodbye { reason, reconnect_after: Duration::from_millis(reconnect_after_ms) };
                    }
                    Ok(frame) => if events.send(HostEvent::Frame(Box::new(frame))).await.is_err() {
                        return Ended::Stopped;
                    },
                    Err(ended) => return ended,
                }
            }
            frame = outgoing.recv() => {
                // The agent drops its sender when it is done with this connection.
                let Some(frame) = frame else {
                    let _ = socket.close(None).await;
                    return if events.is_closed() { Ended::Stopped } else { Ended::Closed };
                };
                if let Err(ended) = send(&mut socket, &frame).await {
                    return ended;
                }
            }
            () = clock.until(heard.plus(SILENCE)) => return Ended::Silent,
        }
    }
}

async fn send(socket: &mut Socket, frame: &ToHost) -> Result<(), Ended> {
    let text = serde_json::to_string(frame).map_err(|_| Ended::Protocol)?;
    Ok(socket.send(Message::text(text)).await?)
}

async fn receive(socket: &mut Socket) -> Result<ToAgent, Ended> {
    loop {
        match socket.next().await.ok_or(Ended::Closed)?? {
            Message::Text(text) => return serde_json::from_str(&text).map_err(|_| Ended::Protocol),
            Message::Close(_) => return Err(Ended::Closed),
            _ => {}
        }
    }
}
