//! One running tunnel: idle data connections to the node, each for one visitor.
//!
//! A tunnel runs until its [`Running`] is dropped, which happens when the lease ends. Then every connection
//! ends at once.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc, watch};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::{CancellationToken, DropGuard};
use uuid::Uuid;

use crate::approved_targets::Chosen;
use crate::target::{self, Bounds, LinkLocal};
use crate::targets::Targets;
use culvert_wire::base64_bytes::Base64Bytes;
use culvert_wire::clock::Clock;
use culvert_wire::control::{Failure, Grant, NodeAddress, Target};
use culvert_wire::data::{ACCEPTED, ATTACHED, Attach, FENCED, REFUSED, UNKNOWN_KEY, Visit, read_frame, write_frame};
use culvert_wire::failure_code::FailureCode;
use culvert_wire::pipe;
use culvert_wire::socket;
use culvert_wire::tls;

/// Idle connections that are kept when no visitors are waiting.
const MIN_IDLE: usize = 4;
/// Connections that are idle or being dialled, at most.
const MAX_IDLE: usize = 64;
/// How long a connection beyond [`MIN_IDLE`] stays idle before it is closed.
const SURPLUS_FOR: Duration = Duration::from_mins(1);
const DIAL_WITHIN: Duration = Duration::from_secs(10);
/// How long a new tunnel has to get its first connection.
const READY_WITHIN: Duration = Duration::from_secs(15);
const RETRY_FIRST: Duration = Duration::from_millis(250);
const RETRY_MOST: Duration = Duration::from_secs(10);

/// An event of a running tunnel; it is sent with the id of the lease.
#[derive(Debug)]
pub(crate) enum Report {
    /// The first connection is attached.
    Serving,
    /// The tunnel could not get its first connection.
    Failed(Failure),
    /// The error of the local target, when its state changes; `None` if it answers.
    Target(Option<String>),
    /// The result of looking up a new target: `refused` says why the tunnel may not lead there.
    LookedUp { target: Target, refused: Option<Failure> },
    /// The node serves a newer epoch.
    Fenced,
}

/// Whether the local target must answer for a start to succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Probe {
    Required,
    Skipped,
}

/// What tunnels need of their agent.
#[derive(Clone)]
pub(crate) struct TunnelContext {
    pub clock: Clock,
    pub link_local: LinkLocal,
    pub targets: Targets,
    pub reports: mpsc::Sender<(Uuid, Report)>,
}

/// A running tunnel. Dropping it stops the tunnel.
pub(crate) struct Running {
    pub grant: Grant,
    shared: Arc<Shared>,
    _stop: DropGuard,
}

struct Shared {
    grant: Grant,
    /// The token of the newest grant.
    token: watch::Sender<Base64Bytes>,
    led: Mutex<Led>,
    trouble: Mutex<Trouble>,
    /// The TLS configuration that accepts only the node of the grant.
    tls: Arc<ClientConfig>,
    cx: TunnelContext,
    /// Connections that are idle or being dialled.
    ahead: AtomicUsize,
    /// Wakes the dialling task when a connection was taken or lost.
    taken: Notify,
    /// Visitors that wait for a connection, as reported by the node.
    waiting: AtomicUsize,
    /// Ends the back-off of the dialling tasks.
    node_is_back: Notify,
}

/// The tunnel's target, and who chose it.
#[derive(Clone)]
struct Led {
    target: Target,
    chosen: Chosen,
}

/// What is wrong with the tunnel's target.
#[derive(Default)]
struct Trouble {
    /// Why the target does not answer.
    dial: Option<String>,
    /// Why a new target was refused.
    refused: Option<String>,
}

impl Trouble {
    fn said(&self) -> Option<String> {
        self.refused.as_ref().or(self.dial.as_ref()).cloned()
    }
}

impl Running {
    /// # Errors
    ///
    /// If TLS 1.3 is not available.
    pub(crate) fn start(grant: Grant, chosen: Chosen, probe: Probe, cx: TunnelContext) -> Result<Self, rustls::Error> {
        let tls = tls::client(grant.node.fingerprint.0.clone())?;
        let stop = CancellationToken::new();
        let shared = Arc::new(Shared {
            led: Mutex::new(Led { target: grant.target.clone(), chosen }),
            trouble: Mutex::default(),
            token: watch::Sender::new(grant.token.clone()),
            grant: grant.clone(),
            tls,
            cx,
            ahead: AtomicUsize::new(0),
            taken: Notify::new(),
            waiting: AtomicUsize::new(0),
            node_is_back: Notify::new(),
        });
        let (task, stopped) = (shared.clone(), stop.clone());
        tokio::spawn(async move { stopped.run_until_cancelled(task.run(probe, stopped.clone())).await });
        Ok(Self { grant, shared, _stop: stop.drop_guard() })
    }

    /// Stops the tunnel, and returns its grant.
    pub(crate) fn into_grant(self) -> Grant {
        self.grant
    }

    /// Proves the lease by another token from now on.
    pub(crate) fn renew_token(&self, token: Base64Bytes) {
        self.shared.token.send_replace(token);
    }

    /// Ends the back-off and dials at once: the host is reachable again, so the node should be, too.
    pub(crate) fn dial_now(&self) {
        self.shared.node_is_back.notify_waiters();
    }

    /// Sets another target for new connections.
    pub(crate) fn retarget(&self, target: Target, chosen: Chosen) {
        *lock(&self.shared.led) = Led { target, chosen };
        lock(&self.shared.trouble).refused = None;
    }

    /// Records why a new target was refused. This lasts until the tunnel gets another target.
    pub(crate) fn refuse(&self, detail: String) {
        lock(&self.shared.trouble).refused = Some(detail);
    }

    /// Looks up whether remote control may set another target. The result is sent as [`Report::LookedUp`].
    pub(crate) fn look_up(&self, target: Target) {
        let shared = self.shared.clone();
        tokio::spawn(async move {
            let judged = target::look_up(&target, &shared.bounds(Chosen::FromAfar), &shared.cx.clock).await;
            shared.report(Report::LookedUp { target, refused: judged.err() }).await;
        });
    }

    pub(crate) fn target(&self) -> Target {
        lock(&self.shared.led).target.clone()
    }

    pub(crate) fn chosen(&self) -> Chosen {
        lock(&self.shared.led).chosen
    }

    /// What is wrong with the tunnel's target.
    pub(crate) fn target_error(&self) -> Option<String> {
        lock(&self.shared.trouble).said()
    }

    /// Probes the target again if it did not answer before.
    pub(crate) fn probe_again(&self) {
        let silent = lock(&self.shared.trouble).dial.is_some();
        if silent {
            let shared = self.shared.clone();
            tokio::spawn(async move {
                let answer = shared.dial_target(None).await;
                shared.note_target(answer.err()).await;
            });
        }
    }
}

impl Shared {
    async fn run(self: Arc<Self>, probe: Probe, stop: CancellationToken) {
        if probe == Probe::Required
            && let Err(failure) = self.dial_target(None).await
        {
            return self.report(Report::Failed(failure)).await;
        }
        let first = match self.cx.clock.timeout(READY_WITHIN, self.first_connection()).await {
            Ok(first) => first,
            Err(_) => {
                Err(Failure::new(FailureCode::TunnelStartFailed, "The node could not be reached within 15 seconds."))
            }
        };
        let first = match first {
            Ok(first) => first,
            Err(failure) => return self.report(Report::Failed(failure)).await,
        };
        self.report(Report::Serving).await;
        self.ahead.fetch_add(1, Ordering::Relaxed);
        self.clone().wait_on(first, &stop);
        self.dial_ahead(&stop).await;
    }

    async fn first_connection(&self) -> Result<TlsStream<TcpStream>, Failure> {
        let mut retry = RETRY_FIRST;
        loop {
            let token = self.token.borrow().clone();
            match self.attach(token).await {
                Ok(Attached::Waiting(connection)) => return Ok(*connection),
                Ok(Attached::Fenced | Attached::UnknownKey) => {
                    return Err(Failure::new(FailureCode::LeaseConflict, "The node does not take this lease."));
                }
                Err(error) => {
                    tracing::debug!(%error, node = %self.grant.node.host, "the node did not answer");
                    self.cx.clock.sleep(retry).await;
                    retry = (retry * 2).min(RETRY_MOST);
                }
            }
        }
    }

    /// Keeps idle connections dialled: [`MIN_IDLE`], and one more for every visitor that waits.
    async fn dial_ahead(self: Arc<Self>, stop: &CancellationToken) {
        loop {
            let wanted = (MIN_IDLE + self.waiting.swap(0, Ordering::Relaxed)).min(MAX_IDLE);
            while self.ahead.load(Ordering::Relaxed) < wanted {
                self.ahead.fetch_add(1, Ordering::Relaxed);
                let (shared, stop) = (self.clone(), stop.clone());
                tokio::spawn(async move { stop.run_until_cancelled(shared.dial_one(stop.clone())).await });
            }
            self.taken.notified().await;
        }
    }

    /// Dials until a connection is attached, with a growing back-off while the node does not answer.
    async fn dial_one(self: Arc<Self>, stop: CancellationToken) {
        let (mut retry, mut tokens) = (RETRY_FIRST, self.token.subscribe());
        loop {
            let token = tokens.borrow_and_update().clone();
            match self.attach(token).await {
                Ok(Attached::Waiting(connection)) => return self.wait_on(*connection, &stop),
                Ok(Attached::Fenced) => return self.report(Report::Fenced).await,
                // The host has another key. It sends a new token when the agent is connected to it.
                Ok(Attached::UnknownKey) => drop(tokens.changed().await),
                Err(error) => {
                    tracing::debug!(%error, node = %self.grant.node.host, "the node did not answer");
                    tokio::select! {
                        () = self.cx.clock.sleep(retry + self.cx.clock.jitter(retry)) => {
                            retry = (retry * 2).min(RETRY_MOST);
                        }
                        () = self.node_is_back.notified() => retry = RETRY_FIRST,
                    }
                }
            }
        }
    }

    async fn attach(&self, token: Base64Bytes) -> io::Result<Attached> {
        let attach = async {
            let NodeAddress { host, port, .. } = &self.grant.node;
            let tcp = TcpStream::connect((host.as_str(), *port)).await?;
            socket::prepare(&tcp)?;
            let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
            let mut tls = TlsConnector::from(self.tls.clone()).connect(name, tcp).await?;
            let Grant { tunnel_id, epoch, .. } = self.grant;
            write_frame(&mut tls, &Attach { tunnel_id, epoch, token }).await?;
            match tls.read_u8().await? {
                ATTACHED => Ok(Attached::Waiting(Box::new(tls))),
                FENCED => Ok(Attached::Fenced),
                UNKNOWN_KEY => Ok(Attached::UnknownKey),
                other => Err(io::Error::new(io::ErrorKind::InvalidData, format!("the node answered {other}"))),
            }
        };
        self.cx.clock.timeout(DIAL_WITHIN, attach).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    }

    /// Waits for a visitor on a connection that is already counted in `ahead`.
    fn wait_on(self: Arc<Self>, mut connection: TlsStream<TcpStream>, stop: &CancellationToken) {
        let stop = stop.clone();
        tokio::spawn(async move {
            stop.run_until_cancelled(async {
                let visit = self.next_visit(&mut connection).await;
                self.ahead.fetch_sub(1, Ordering::Relaxed);
                if let Some(visit) = &visit {
                    self.waiting.fetch_add(visit.waiting, Ordering::Relaxed);
                }
                self.taken.notify_one();
                if let Some(visit) = visit {
                    self.serve(connection, &visit).await;
                }
            })
            .await
        });
    }

    /// Waits for a visitor; `None` if the connection ended, or is one of too many idle ones.
    async fn next_visit(&self, connection: &mut TlsStream<TcpStream>) -> Option<Visit> {
        let visit = read_frame::<Visit>(connection);
        tokio::pin!(visit);
        loop {
            match self.cx.clock.timeout(SURPLUS_FOR, &mut visit).await {
                Ok(visit) => return visit.ok(),
                Err(_) if self.ahead.load(Ordering::Relaxed) > MIN_IDLE => return None,
                Err(_) => {}
            }
        }
    }

    async fn serve(&self, mut connection: TlsStream<TcpStream>, visit: &Visit) {
        let dialled = self.dial_target(visit.port_id).await;
        if visit.port_id.is_none() {
            // The service of an extra port may be unavailable without the tunnel being reported as degraded.
            self.note_target(dialled.as_ref().err().cloned()).await;
        }
        let Ok(target) = dialled else {
            let _ = connection.write_all(&[REFUSED]).await;
            let _ = connection.shutdown().await;
            return;
        };
        let ended = self.carry(&mut connection, target).await;
        if let Err(error) = ended {
            tracing::debug!(%error, visitor = %visit.visitor, tunnel = %self.grant.name, "a connection was cut");
        }
    }

    async fn carry(&self, connection: &mut TlsStream<TcpStream>, target: TcpStream) -> io::Result<()> {
        let mut target = Served { stream: target, complete: false };
        connection.write_all(&[ACCEPTED]).await?;
        let Target { idle_timeout, buffer_size, .. } = lock(&self.led).target.clone();
        let limits =
            pipe::Limits { buffer_size: buffer_size as usize, idle_timeout: Duration::from_secs(idle_timeout.into()) };
        let (counters, budget) = (pipe::Counters::default(), pipe::Budget::unlimited());
        let account = pipe::Account { counters: &counters, budget: &budget };
        let ended = pipe::run(connection, &mut target.stream, limits, account, &self.cx.clock).await;
        target.complete = ended.is_ok();
        if ended.is_err() {
            socket::reset(connection.get_ref().0);
        }
        ended
    }

    /// Connects to the target of an extra port, or (`None`) of the tunnel's own port.
    async fn dial_target(&self, port_id: Option<Uuid>) -> Result<TcpStream, Failure> {
        let Led { mut target, chosen } = lock(&self.led).clone();
        if let Some(port_id) = port_id {
            let extra = target.extra.iter().find(|extra| extra.port_id == port_id);
            let unknown =
                || Failure::new(FailureCode::AgentRejected, "Nobody at this device agreed to the extra port.");
            target.port = extra.ok_or_else(unknown)?.port;
        }
        target::dial(&target, &self.bounds(chosen), &self.cx.clock).await
    }

    fn bounds(&self, chosen: Chosen) -> Bounds<'_> {
        Bounds { chosen, link_local: self.cx.link_local, targets: &self.cx.targets }
    }

    async fn note_target(&self, failure: Option<Failure>) {
        let error = failure.map(|failure| failure.detail);
        let changed = {
            let mut trouble = lock(&self.trouble);
            let before = trouble.said().is_some();
            trouble.dial.clone_from(&error);
            before != trouble.said().is_some()
        };
        if changed {
            self.report(Report::Target(error)).await;
        }
    }

    async fn report(&self, report: Report) {
        // Sending fails only if the agent is ending, and then nobody needs the report.
        let _ = self.cx.reports.send((self.grant.lease_id, report)).await;
    }
}

/// A connection to the local target. If it is dropped before the transfer is complete, also because the
/// tunnel stops, it is reset: a transfer that was cut short must not look complete.
struct Served {
    stream: TcpStream,
    complete: bool,
}

impl Drop for Served {
    fn drop(&mut self) {
        if !self.complete {
            socket::reset(&self.stream);
        }
    }
}

enum Attached {
    Waiting(Box<TlsStream<TcpStream>>),
    Fenced,
    UnknownKey,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
