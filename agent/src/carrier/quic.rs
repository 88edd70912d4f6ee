//! The connection of QUIC to a node, beside those of TLS: a visitor who finds no warm connection gets a stream of it.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use culvert_wire::base64_bytes::Base64Bytes;
use culvert_wire::clock::{Clock, Moment};
use culvert_wire::control::NodeAddress;
use culvert_wire::data2::attach::{Attach, Denied, LaneKind};
use culvert_wire::data2::connection::Connection;
use culvert_wire::data2::frame::{Frame, malformed};
use culvert_wire::data2::lane::{self, Lane};
use culvert_wire::data2::transport::Transport;
use culvert_wire::quic::{self, QuicStream};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use quinn::{ClientConfig, ConnectionError, Endpoint, EndpointConfig, TokioRuntime};
use tokio::net::lookup_host;
use tokio::sync::{Notify, watch};

use super::TransportChoice;
use super::flows::Flows;
use super::served::Served;
use super::visit::{self, VisitContext};

/// How long handshake and attach may take. Where UDP is blocked, nothing answers.
const ATTACH_WITHIN: Duration = Duration::from_secs(3);
/// How long after one address of a node the next one is tried.
const NEXT_ADDRESS_AFTER: Duration = Duration::from_millis(250);
const RETRY_FIRST: Duration = Duration::from_millis(250);
const RETRY_MOST: Duration = Duration::from_secs(10);
/// How long a node is not asked again where QUIC does not work, and TLS does.
const PAUSE: Duration = Duration::from_mins(5);
/// Two connections that end within this time count as QUIC not working.
const UNSTABLE_WITHIN: Duration = Duration::from_mins(1);

/// Whether a node is reached by QUIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QuicState {
    /// The node does not offer it, or it is switched off.
    Off,
    Connecting,
    Connected,
    /// It does not work on the way to the node. It is tried again then.
    Blocked {
        until: Moment,
    },
}

/// One node's connection.
pub(super) struct Quic {
    clock: Clock,
    node: NodeAddress,
    config: ClientConfig,
    state: watch::Sender<QuicState>,
    /// Ends the wait before the next try, also one that begins later.
    retry_now: Notify,
    /// How long a node is not asked again where QUIC does not work.
    pause: Duration,
}

/// Why there is no connection.
enum Failed {
    Denied(Denied),
    Unreached(io::Error),
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self::Unreached(error)
    }
}

impl Quic {
    /// # Errors
    ///
    /// If TLS 1.3 is not available.
    pub(super) fn new(node: NodeAddress, clock: Clock, choice: TransportChoice) -> Result<Self, rustls::Error> {
        // Where nothing else carries visitors, it is tried again sooner.
        let pause = if choice == TransportChoice::Quic { RETRY_MOST } else { PAUSE };
        let config = quic::client(node.fingerprint.0.clone())?;
        Ok(Self { clock, node, config, state: watch::Sender::new(QuicState::Off), retry_now: Notify::new(), pause })
    }

    pub(super) fn state(&self) -> QuicState {
        *self.state.borrow()
    }

    /// Follows the state.
    pub(super) fn states(&self) -> watch::Receiver<QuicState> {
        self.state.subscribe()
    }

    /// Tries again at once: the host is reachable again, so the node should be, too.
    pub(super) fn retry_now(&self) {
        self.retry_now.notify_one();
    }

    fn enter(&self, state: QuicState) {
        self.state.send_replace(state);
    }

    /// Keeps a connection for as long as this is polled. `token` is the device's token now; `on_denied` is told of a denial,
    /// and the tunnels that it concerns.
    pub(super) async fn keep(
        &self,
        visits: &Arc<VisitContext>,
        flows: &Arc<Flows>,
        token: impl Fn() -> Base64Bytes,
        on_denied: impl Fn(Denied, Vec<Served>) -> BoxFuture<'static, ()>,
    ) {
        let Some(port) = self.node.udp_port else { return };
        let (mut retry, mut lost) = (RETRY_FIRST, None::<Moment>);
        loop {
            self.enter(QuicState::Connecting);
            let served = visits.served.all();
            let attached = self.clock.timeout(ATTACH_WITHIN, self.attach(port, token())).await;
            let mut is_blocked = false;
            let wait = match attached {
                Ok(Ok((connection, first))) => {
                    let lane = flows.use_quic(Lane::quic(connection.clone()));
                    visits.census.reach();
                    self.enter(QuicState::Connected);
                    tracing::info!(node = %self.node.host, "the node is reached by QUIC");
                    serve(visits, flows, connection.clone()).await;
                    drop((first, lane));
                    self.enter(QuicState::Connecting);
                    visits.census.lose_reach();
                    retry = RETRY_FIRST;
                    let wait = if is_regular(&connection) { RETRY_FIRST } else { self.wait_after_loss(&mut lost) };
                    is_blocked = wait >= self.pause;
                    wait
                }
                Ok(Err(Failed::Denied(denied))) => {
                    tracing::debug!(code = %denied.code, node = %self.node.host, "the node has denied a connection of QUIC");
                    retry = (retry * 2).min(RETRY_MOST);
                    let wait = retry.max(Duration::from_millis(denied.retry_after_ms).min(RETRY_MOST));
                    on_denied(denied, served).await;
                    wait
                }
                Ok(Err(Failed::Unreached(error))) => {
                    tracing::debug!(%error, node = %self.node.host, "the node is not reached by QUIC");
                    is_blocked = true;
                    self.pause
                }
                Err(_) => {
                    is_blocked = true;
                    self.pause
                }
            };
            let wait = wait.saturating_sub(self.clock.jitter(wait / 10));
            if is_blocked {
                tracing::info!(node = %self.node.host, "QUIC does not work, UDP is probably blocked");
                self.enter(QuicState::Blocked { until: self.clock.moment().plus(wait) });
            }
            tokio::select! {
                () = self.clock.sleep(wait) => {}
                () = self.retry_now.notified() => {}
            }
        }
    }

    /// How long to wait after a connection was lost: longer if the one before was lost a short time ago.
    fn wait_after_loss(&self, lost: &mut Option<Moment>) -> Duration {
        let now = self.clock.moment();
        let is_unstable = lost.replace(now).is_some_and(|lost| now.since(lost) < UNSTABLE_WITHIN);
        if is_unstable { self.pause } else { RETRY_FIRST }
    }

    async fn attach(&self, port: u16, token: Base64Bytes) -> Result<(quinn::Connection, visit::Carrier), Failed> {
        let connection = connect_with(&self.config, &self.node, port, &self.clock).await?;
        let first = QuicStream::new(connection.open_bi().await.map_err(io::Error::from)?);
        let mut first = Connection::new(Transport::Quic(first));
        first.send(&Frame::Attach(Attach { token, version: crate::VERSION.into(), lane: LaneKind::Visits })).await?;
        match first.next().await? {
            Some(Frame::Attached(_)) => Ok((connection, first)),
            Some(Frame::Denied(denied)) => {
                connection.close(quic::REGULAR, b"denied");
                Err(Failed::Denied(denied))
            }
            Some(frame) => Err(malformed(format!("the node answered {frame:?}")).into()),
            None => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
        }
    }
}

/// Makes a connection to a node, and does not attach it.
///
/// # Errors
///
/// If the node is not reached by UDP.
pub(crate) async fn connect(node: &NodeAddress, port: u16, clock: &Clock) -> io::Result<quinn::Connection> {
    let config = quic::client(node.fingerprint.0.clone()).map_err(io::Error::other)?;
    connect_with(&config, node, port, clock).await
}

/// Tries all addresses of the node, one after another at short intervals, as Happy Eyeballs does (RFC 8305).
async fn connect_with(
    config: &ClientConfig,
    node: &NodeAddress,
    port: u16,
    clock: &Clock,
) -> io::Result<quinn::Connection> {
    let addresses = lookup_host((node.host.as_str(), port)).await?;
    let mut tries: FuturesUnordered<_> = addresses
        .zip(0..)
        .map(async |(address, number)| {
            clock.sleep(NEXT_ADDRESS_AFTER * number).await;
            connect_to(config, address, &node.host).await
        })
        .collect();
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    while let Some(tried) = tries.next().await {
        match tried {
            Ok(connection) => return Ok(connection),
            Err(error) => last = error,
        }
    }
    Err(last)
}

async fn connect_to(config: &ClientConfig, address: SocketAddr, name: &str) -> io::Result<quinn::Connection> {
    let local: SocketAddr =
        if address.is_ipv4() { (Ipv4Addr::UNSPECIFIED, 0).into() } else { (Ipv6Addr::UNSPECIFIED, 0).into() };
    let socket = quic::bind(local)?;
    let endpoint = Endpoint::new(EndpointConfig::default(), None, socket, Arc::new(TokioRuntime))?;
    let connecting = endpoint.connect_with(config.clone(), address, name);
    Ok(connecting.map_err(io::Error::other)?.await?)
}

/// Whether the node has closed a connection because it stops, or has a newer one.
fn is_regular(connection: &quinn::Connection) -> bool {
    matches!(connection.close_reason(), Some(ConnectionError::ApplicationClosed(close)) if close.error_code == quic::REGULAR)
}

/// Serves a visit on each stream that the node opens, until the connection ends.
async fn serve(visits: &Arc<VisitContext>, flows: &Arc<Flows>, connection: quinn::Connection) {
    let connection = Closing(connection);
    let datagrams = lane::receive(&connection.0, &visits.clock, flows.receiver());
    tokio::select! {
        error = datagrams => tracing::debug!(%error, "a connection of QUIC has ended"),
        () = serve_visits(visits, &connection.0) => {}
    }
}

async fn serve_visits(visits: &Arc<VisitContext>, connection: &quinn::Connection) {
    loop {
        match connection.accept_bi().await {
            Ok(stream) => {
                let visits = visits.clone();
                let carrier = Connection::single(Transport::Quic(QuicStream::new(stream)));
                tokio::spawn(async move { visit::serve_single(&visits, carrier).await });
            }
            Err(error) => return tracing::debug!(%error, "a connection of QUIC has ended"),
        }
    }
}

/// Closes the connection when it is dropped: no stream outlives the tunnels that are served here.
struct Closing(quinn::Connection);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close(quic::REGULAR, b"the agent serves no tunnel here");
    }
}
