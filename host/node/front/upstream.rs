//! Connections to local services: each is a visit, and is kept for the next request of the same port.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use culvert_wire::clock::{Clock, Moment};
use culvert_wire::data2::visit::RefusalCode;
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use uuid::Uuid;

use super::body::Body;
use super::pages::Page;
use crate::lock;
use crate::session::{ACCEPT_WITHIN, SessionRelay, VisitCarrier};

/// How long a connection to a service is kept without a request.
const IDLE_FOR: Duration = Duration::from_mins(1);
/// Idle connections to services, at most.
const MOST_IDLE: usize = 256;

/// A port of a run. Connections of other runs are never used for it.
type Key = (Uuid, Option<Uuid>);

pub(crate) struct Upstreams {
    clock: Clock,
    idle: Mutex<Idle>,
}

#[derive(Default)]
struct Idle {
    by_port: HashMap<Key, Vec<(Moment, SendRequest<Body>)>>,
    count: usize,
}

/// Whom a visit is for.
#[derive(Clone, Copy)]
pub(super) struct Visited<'a> {
    pub run: &'a Arc<SessionRelay>,
    pub port_id: Option<Uuid>,
    pub visitor: SocketAddr,
    pub local: SocketAddr,
}

impl Visited<'_> {
    fn key(&self) -> Key {
        (self.run.session_id(), self.port_id)
    }
}

impl Upstreams {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, idle: Mutex::default() }
    }

    /// Sends a request. Returns the answer, with the connection for the next request.
    ///
    /// # Errors
    ///
    /// The answer for the visitor.
    pub(super) async fn send(
        &self,
        visited: Visited<'_>,
        mut request: Request<Body>,
    ) -> Result<(Response<Incoming>, SendRequest<Body>), Page> {
        if let Some(mut used) = self.take(visited.key()) {
            // A service may close an idle connection at any time. Then a request that changes nothing (RFC 9110, section
            // 9.2.1) and has no body is sent once more.
            let may_repeat = request.method().is_safe() && request.body().is_end_stream();
            let repeated = may_repeat.then(|| head_of(&request));
            match used.try_send_request(request).await {
                Ok(response) => return Ok((response, used)),
                Err(mut failed) => {
                    let repeated = repeated.filter(|_| failed.error().is_incomplete_message());
                    match failed.take_message().or(repeated) {
                        Some(unsent) => request = unsent,
                        None => return Err(page(failed.error(), None)),
                    }
                }
            }
        }
        let (mut fresh, outcome) = self.connect(visited).await?;
        let answer = fresh.send_request(request);
        tokio::select! {
            biased;
            answer = answer => match answer {
                Ok(response) => Ok((response, fresh)),
                Err(error) => Err(page(&error, outcome.refusal.get())),
            },
            () = self.unaccepted(&outcome) => Err(Page::DEVICE_TIMEOUT),
        }
    }

    /// Ends if the agent has not said in time whether it reached the service.
    async fn unaccepted(&self, outcome: &Outcome) {
        self.clock.sleep(ACCEPT_WITHIN).await;
        if outcome.accepted.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    }

    async fn connect(&self, visited: Visited<'_>) -> Result<(SendRequest<Body>, Arc<Outcome>), Page> {
        let Visited { run, port_id, visitor, local } = visited;
        let stream = run.lend(port_id, visitor, local).await.map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut => Page::DEVICE_TIMEOUT,
            _ => Page::TUNNEL_OFFLINE,
        })?;
        let outcome = Arc::new(Outcome { accepted: stream.accepted(), refusal: OnceLock::new() });
        let lent = Lent { run: run.clone(), stream: Some(stream), outcome: outcome.clone() };
        let handshake = http1::Builder::new().handshake(TokioIo::new(lent)).await;
        let (sender, connection) = handshake.map_err(|_| Page::CONNECTION_LOST)?;
        let ended = run.ended();
        tokio::spawn(async move {
            if let Some(Err(error)) = ended.run_until_cancelled(connection.with_upgrades()).await {
                tracing::debug!(%error, "a connection to a service has ended");
            }
        });
        Ok((sender, outcome))
    }

    fn take(&self, key: Key) -> Option<SendRequest<Body>> {
        let mut idle = lock(&self.idle);
        loop {
            let (_, sender) = idle.by_port.get_mut(&key)?.pop()?;
            idle.count -= 1;
            if sender.is_ready() {
                return Some(sender);
            }
        }
    }

    /// Keeps a connection for the next request, as soon as its last one has ended.
    pub(super) fn give_back(
        self: &Arc<Self>,
        run: &SessionRelay,
        port_id: Option<Uuid>,
        mut sender: SendRequest<Body>,
    ) {
        let key = (run.session_id(), port_id);
        if sender.is_ready() {
            return self.keep(key, sender);
        }
        let upstreams = self.clone();
        tokio::spawn(async move {
            if sender.ready().await.is_ok() {
                upstreams.keep(key, sender);
            }
        });
    }

    fn keep(&self, key: Key, sender: SendRequest<Body>) {
        let mut idle = lock(&self.idle);
        if idle.count < MOST_IDLE {
            idle.by_port.entry(key).or_default().push((self.clock.moment(), sender));
            idle.count += 1;
        }
    }

    /// Closes the connections that were not used for a while, and forgets those that have ended.
    pub(crate) fn sweep(&self) {
        let now = self.clock.moment();
        let mut idle = lock(&self.idle);
        for senders in idle.by_port.values_mut() {
            senders.retain(|(since, sender)| now.since(*since) < IDLE_FOR && !sender.is_closed());
        }
        idle.by_port.retain(|_, senders| !senders.is_empty());
        idle.count = idle.by_port.values().map(Vec::len).sum();
    }
}

/// A request with the same head and without a body.
fn head_of(request: &Request<Body>) -> Request<Body> {
    let mut copy = Request::new(Body::default());
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.version_mut() = request.version();
    *copy.headers_mut() = request.headers().clone();
    copy
}

/// The answer for a visitor whose request has failed.
fn page(error: &hyper::Error, refusal: Option<&RefusalCode>) -> Page {
    match refusal {
        Some(RefusalCode::Fenced) => Page::TUNNEL_OFFLINE,
        Some(RefusalCode::TargetSilent) => Page::TARGET_SILENT,
        Some(_) => Page::TARGET_REFUSED,
        None if error.is_parse() => Page::ANSWER_INVALID,
        None => Page::CONNECTION_LOST,
    }
}

/// What became of a visit.
struct Outcome {
    accepted: Arc<AtomicBool>,
    refusal: OnceLock<RefusalCode>,
}

/// A visit that is lent to hyper. Its end gives the data connection back.
struct Lent {
    run: Arc<SessionRelay>,
    stream: Option<VisitCarrier>,
    outcome: Arc<Outcome>,
}

impl Lent {
    fn stream(&mut self) -> io::Result<Pin<&mut VisitCarrier>> {
        self.stream.as_mut().map(Pin::new).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(stream) = self.stream.take() {
            self.run.clone().take_back(stream);
        }
    }
}

impl AsyncRead for Lent {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, space: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let polled = self.stream()?.poll_read(context, space);
        if let (Poll::Ready(Err(_)), Some(stream)) = (&polled, &self.stream)
            && let Some(refused) = stream.refusal()
        {
            let _ = self.outcome.refusal.set(refused.code.clone());
        }
        polled
    }
}

impl AsyncWrite for Lent {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.stream()?.poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_shutdown(context)
    }
}
