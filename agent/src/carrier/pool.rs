//! The connections to one node: how many are kept warm, and how they are dialled.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};
use tokio_rustls::TlsConnector;
use tokio_util::future::FutureExt as _;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::TransportChoice;
use super::census::{Census, Connections, Reached};
use super::flows::Flows;
use super::quic::{Quic, QuicState};
use super::served::{Served, ServedTunnels};
use super::visit::{self, Carrier, VisitContext};
use culvert_wire::clock::Clock;
use culvert_wire::control::NodeAddress;
use culvert_wire::data2::attach::{Attach, Attached, DenialCode, Denied, LaneKind, Wanted};
use culvert_wire::data2::connection::Connection;
use culvert_wire::data2::frame::{Frame, malformed};
use culvert_wire::data2::transport::Transport;
use culvert_wire::data2::{self, LANES};
use culvert_wire::device_token::DeviceToken;
use culvert_wire::{socket, tls};

const DIAL_WITHIN: Duration = Duration::from_secs(10);
pub(super) const RETRY_FIRST: Duration = Duration::from_millis(250);
pub(super) const RETRY_MOST: Duration = Duration::from_secs(10);

/// The connections to one node. Dropping it closes them.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    _stop: DropGuard,
}

pub(super) struct Shared {
    node: NodeAddress,
    /// The TLS configuration that accepts only the node's certificate. It is kept, so that sessions resume.
    tls: Arc<ClientConfig>,
    pub(super) token: watch::Sender<DeviceToken>,
    pub(super) visits: Arc<VisitContext>,
    pub(super) flows: Arc<Flows>,
    pub(super) quic: Quic,
    /// Ends the back-off of the dialling tasks.
    pub(super) node_is_back: Notify,
    stop: CancellationToken,
}

impl Pool {
    /// # Errors
    ///
    /// If TLS 1.3 is not available.
    pub(super) fn start(
        node: NodeAddress,
        token: DeviceToken,
        choice: TransportChoice,
        clock: Clock,
    ) -> Result<Self, rustls::Error> {
        let stop = CancellationToken::new();
        let census = Census::new(clock.clone());
        let visits = Arc::new(VisitContext { clock: clock.clone(), census, served: ServedTunnels::new() });
        let shared = Arc::new(Shared {
            tls: tls::client(node.fingerprint.0.clone(), data2::ALPN)?,
            quic: Quic::new(node.clone(), clock, choice)?,
            node,
            token: watch::Sender::new(token),
            flows: Flows::new(visits.clone()),
            visits,
            node_is_back: Notify::new(),
            stop: stop.clone(),
        });
        if choice != TransportChoice::Quic {
            spawn(&shared, shared.clone().keep_warm());
            (0..LANES).for_each(|_| spawn(&shared, shared.clone().keep_lane()));
        }
        if choice != TransportChoice::Tcp {
            spawn(&shared, shared.clone().keep_quic(choice == TransportChoice::Quic));
        }
        Ok(Self { shared, _stop: stop.drop_guard() })
    }

    pub(super) fn renew_token(&self, token: DeviceToken) {
        self.shared.token.send_if_modified(|known| {
            let is_new = known.node_id == token.node_id && known.token != token.token;
            if is_new {
                *known = token;
            }
            is_new
        });
    }

    pub(super) fn connections(&self) -> Connections {
        self.shared.visits.census.connections()
    }

    pub(super) fn quic(&self) -> QuicState {
        self.shared.quic.state()
    }

    pub(super) fn dial_now(&self) {
        self.shared.node_is_back.notify_waiters();
        self.shared.quic.retry_now();
    }

    pub(super) fn served(&self) -> &ServedTunnels {
        &self.shared.visits.served
    }

    /// Waits until something carries datagrams to the node.
    pub(super) fn carries_datagrams(&self) -> impl Future<Output = ()> + Send + use<> {
        self.shared.flows.carried()
    }

    /// Waits until it is known whether the node takes the device's connections.
    pub(super) fn reached(&self) -> impl Future<Output = Reached> + Send + use<> {
        self.shared.visits.census.reached()
    }
}

/// Runs a task of the pool until the pool ends.
fn spawn(shared: &Arc<Shared>, task: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(task.with_cancellation_token_owned(shared.stop.clone()));
}

impl Shared {
    /// Dials connections as they are wanted.
    async fn keep_warm(self: Arc<Self>) {
        loop {
            for _ in 0..self.visits.census.missing() {
                spawn(&self, self.clone().dial());
            }
            self.visits.census.changed().await;
        }
    }

    /// Keeps a connection of QUIC. Where it is alone, its denials are all that is heard of the node.
    async fn keep_quic(self: Arc<Self>, is_alone: bool) {
        let token = || self.token.borrow().token.clone();
        let on_denied = |denied: Denied, served: Vec<Served>| {
            let shared = self.clone();
            async move {
                if is_alone {
                    shared.on_denied(&denied, &served, &mut shared.token.subscribe()).await;
                }
            }
            .boxed()
        };
        self.quic.keep(&self.visits, &self.flows, token, on_denied).await;
    }

    /// Dials until a connection is attached, with a growing back-off while the node does not answer.
    async fn dial(self: Arc<Self>) {
        let (mut retry, mut tokens) = (RETRY_FIRST, self.token.subscribe());
        loop {
            let token = tokens.borrow_and_update().clone();
            // A tunnel that is added later is not concerned by the answer.
            let served = self.visits.served.all();
            let wait = match Box::pin(self.attach(token, LaneKind::Visits)).await {
                Ok(Ok((carrier, asked, round_trip))) => {
                    self.visits.census.attach(asked, round_trip);
                    let visits = self.visits.clone();
                    let on_wanted = Arc::new(move |wanted: Wanted| visits.census.note_waiting(wanted.waiting));
                    visit::wait(&self.visits, carrier.on_wanted(on_wanted)).await;
                    return self.visits.census.detach();
                }
                Ok(Err(denied)) => {
                    tracing::debug!(code = %denied.code, node = %self.node.host, "the node has denied a connection");
                    self.on_denied(&denied, &served, &mut tokens).await;
                    Duration::from_millis(denied.retry_after_ms).clamp(RETRY_FIRST, RETRY_MOST)
                }
                Err(error) => {
                    tracing::debug!(%error, node = %self.node.host, "the node did not answer");
                    retry
                }
            };
            if self.visits.census.is_surplus_dial() {
                return;
            }
            tokio::select! {
                () = self.visits.clock.sleep(wait + self.visits.clock.jitter(wait)) => retry = (retry * 2).min(RETRY_MOST),
                () = self.node_is_back.notified() => retry = RETRY_FIRST,
            }
        }
    }

    async fn on_denied(&self, denied: &Denied, served: &[Served], tokens: &mut watch::Receiver<DeviceToken>) {
        match &denied.code {
            DenialCode::Fenced => served.iter().for_each(|served| served.fenced.cancel()),
            // The host may have another key. It sends a new token when the agent is connected to it.
            DenialCode::Invalid | DenialCode::Expired => {
                self.visits.census.refuse_token();
                // This cannot fail: the sender lives as long as `self`.
                let _ = tokens.changed().await;
            }
            DenialCode::Full | DenialCode::Later | DenialCode::Other(_) => {}
        }
    }

    /// Makes a connection of its kind.
    pub(super) async fn attach(
        &self,
        token: DeviceToken,
        lane: LaneKind,
    ) -> io::Result<Result<(Carrier, Attached, Duration), Denied>> {
        let attach = async {
            let NodeAddress { host, port, .. } = &self.node;
            let tcp = TcpStream::connect((host.as_str(), *port)).await?;
            socket::prepare(&tcp)?;
            let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
            let stream = TlsConnector::from(self.tls.clone()).connect(name, tcp).await?;
            let mut carrier = Connection::new(Transport::Tls(Box::new(stream.into())));
            let (version, sent) = (crate::VERSION.into(), self.visits.clock.moment());
            carrier.send(&Frame::Attach(Attach { token: token.token, version, lane })).await?;
            match carrier.next().await? {
                Some(Frame::Attached(attached)) => Ok(Ok((carrier, attached, self.visits.clock.moment().since(sent)))),
                Some(Frame::Denied(denied)) => Ok(Err(denied)),
                Some(frame) => Err(malformed(format!("the node answered {frame:?}"))),
                None => Err(io::ErrorKind::UnexpectedEof.into()),
            }
        };
        self.visits.clock.timeout(DIAL_WITHIN, attach).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    }
}
