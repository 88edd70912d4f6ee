//! The control channel to a host. A host is dialled again whenever it is lost, for as long as the agent runs.

mod dial;
mod search;

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use crate::servers::Servers;
use culvert_wire::clock::Clock;
use culvert_wire::control::{Hello, ToAgent, ToHost};
use dial::{Answer, Challenged, Dial};
use search::Search;

const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MOST: Duration = Duration::from_mins(1);
/// The most that is added at random to the time that the host asked for: it spreads the returns of many agents itself.
const JITTER_MOST: Duration = Duration::from_secs(3);
const CONNECT_WITHIN: Duration = Duration::from_secs(20);
/// How long a host may take to welcome the device; half of it while there are others to ask.
const WELCOME_WITHIN: Duration = Duration::from_secs(10);
/// How long others are tried after a host has said when to come back.
const OTHERS_WITHIN: Duration = Duration::from_secs(2);
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
    /// The host has accepted the device. From now on, frames for it go to the sender.
    Up {
        server: String,
        outbox: mpsc::Sender<ToHost>,
    },
    Frame(Box<ToAgent>),
    Down,
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("{0}")]
    Socket(#[from] tungstenite::Error),
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("the server's address is no URL: {0}")]
    Address(String),
    #[error("the host answered nothing for {} seconds", .0.as_secs())]
    Silent(Duration),
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
pub(crate) async fn run(servers: Servers, clock: Clock, events: mpsc::Sender<HostEvent>) {
    let mut retry = RETRY_FIRST;
    loop {
        let ended = match find_host(&servers, &clock, &events).await {
            Ok(connected) => {
                retry = RETRY_FIRST;
                serve_connections(connected, &servers, &clock, &events).await
            }
            Err(ended) => ended,
        };
        if matches!(ended, Ended::Stopped) {
            return;
        }
        let wait = wait_after(&ended, retry, |most| clock.jitter(most));
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

/// How long the agent waits before it connects again. Random times (full jitter) keep agents from coming all at once.
fn wait_after(ended: &Ended, retry: Duration, jitter: impl Fn(Duration) -> Duration) -> Duration {
    match ended {
        Ended::Goodbye { reconnect_after, .. } => {
            let spread = jitter((*reconnect_after).clamp(RETRY_FIRST, JITTER_MOST));
            (*reconnect_after).max(jitter(retry)) + spread
        }
        // The host accepts the device only after somebody has changed something, so retry rarely.
        Ended::Refused(_) => RETRY_MOST / 2 + jitter(RETRY_MOST / 2),
        _ => jitter(retry),
    }
}

/// Serves the connection to a host, and where that host has lost its database, the one to another host that takes its place.
async fn serve_connections(
    mut connected: Connected,
    servers: &Servers,
    clock: &Clock,
    events: &mpsc::Sender<HostEvent>,
) -> Ended {
    loop {
        match serve_connection(connected, servers, clock, events).await {
            Ok(another) => connected = another,
            Err(ended) => return ended,
        }
        tracing::info!(server = connected.server, "this host takes the place of one that does not reach its database");
        if events.send(HostEvent::Down).await.is_err() {
            return Ended::Stopped;
        }
    }
}

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// A host that has accepted the device.
struct Connected {
    server: String,
    socket: Socket,
    welcome: ToAgent,
}

/// The first host that welcomes the device. One that has no time for it, or fails, is passed over.
async fn find_host(servers: &Servers, clock: &Clock, events: &mpsc::Sender<HostEvent>) -> Result<Connected, Ended> {
    let mut dial = Dial::new(servers.all(), clock);
    let mut end = clock.moment().plus(CONNECT_WITHIN);
    let mut last = Ended::Silent(CONNECT_WITHIN);
    loop {
        let answer = tokio::select! {
            answer = dial.next() => answer,
            () = clock.until(end) => None,
        };
        let Some(Answer { server, outcome }) = answer else { return Err(last) };
        let within = if dial.is_over() { WELCOME_WITHIN } else { WELCOME_WITHIN / 2 };
        let outcome = match outcome {
            Ok(host) => clock.timeout(within, shake_hands(host, events)).await.unwrap_or(Err(Ended::Silent(within))),
            Err(ended) => Err(ended),
        };
        match outcome {
            Ok((socket, welcome)) => return Ok(Connected { server, socket, welcome }),
            Err(Ended::Stopped) => return Err(Ended::Stopped),
            Err(ended) => {
                if matches!(ended, Ended::Refused(_)) && servers.is_enrolled(&server) {
                    return Err(ended);
                }
                if !dial.is_over() {
                    tracing::info!(%server, reason = %ended, "passed over");
                }
                if matches!(ended, Ended::Refused(_) | Ended::Goodbye { .. }) {
                    dial.pass_over(&server);
                    end = end.min(clock.moment().plus(OTHERS_WITHIN));
                }
                last = last.or(ended);
            }
        }
    }
}

impl Ended {
    /// Of two attempts, the end that says how long to wait.
    fn or(self, other: Self) -> Self {
        match (&self, &other) {
            (Self::Goodbye { reconnect_after: one, .. }, Self::Goodbye { reconnect_after: another, .. })
                if another > one =>
            {
                other
            }
            (Self::Refused(_) | Self::Goodbye { .. }, _) => self,
            _ => other,
        }
    }
}

async fn shake_hands(host: Challenged, events: &mpsc::Sender<HostEvent>) -> Result<(Socket, ToAgent), Ended> {
    let Challenged { mut socket, nonce } = host;
    let (hello, answer) = oneshot::channel();
    events.send(HostEvent::Challenged { nonce, hello }).await.map_err(|_| Ended::Stopped)?;
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

/// Returns another host that has welcomed the device meanwhile.
async fn serve_connection(
    connected: Connected,
    servers: &Servers,
    clock: &Clock,
    events: &mpsc::Sender<HostEvent>,
) -> Result<Connected, Ended> {
    let Connected { server, mut socket, welcome } = connected;
    let (outbox, mut outgoing) = mpsc::channel(OUTBOX);
    let mut search = Search::new(servers.clone(), clock.clone(), events.clone());
    for event in [HostEvent::Up { server, outbox }, HostEvent::Frame(Box::new(welcome))] {
        events.send(event).await.map_err(|_| Ended::Stopped)?;
    }
    let mut heard = clock.moment();
    loop {
        tokio::select! {
            frame = receive(&mut socket) => {
                heard = clock.moment();
                match frame? {
                    ToAgent::Goodbye { reason, reconnect_after_ms } => {
                        let reconnect_after = Duration::from_millis(reconnect_after_ms);
                        return Err(Ended::Goodbye { reason, reconnect_after });
                    }
                    frame => {
                        search.heard(&frame);
                        events.send(HostEvent::Frame(Box::new(frame))).await.map_err(|_| Ended::Stopped)?;
                    }
                }
            }
            another = search.found() => return Ok(another),
            frame = outgoing.recv() => {
                // The agent drops its sender when it is done with this connection.
                let Some(frame) = frame else {
                    let _ = socket.close(None).await;
                    return Err(if events.is_closed() { Ended::Stopped } else { Ended::Closed });
                };
                send(&mut socket, &frame).await?;
            }
            () = clock.until(heard.plus(SILENCE)) => return Err(Ended::Silent(SILENCE)),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_that_sends_an_agent_away_again_and_again_is_asked_less_and_less() {
        let second = Duration::from_secs(1);
        let goodbye = Ended::Goodbye { reason: "the host is busy".into(), reconnect_after: second };
        let longest = |retry| wait_after(&goodbye, retry, |most| most);
        assert_eq!(longest(RETRY_FIRST), 2 * second);
        assert_eq!(longest(RETRY_MOST), RETRY_MOST + second);
        let shortest = wait_after(&goodbye, RETRY_MOST, |_| Duration::ZERO);
        assert_eq!(shortest, second, "never before the host wants it");
    }
}
