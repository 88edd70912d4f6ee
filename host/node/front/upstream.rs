//! Connections to local services: each is a visit, and is kept for the next request of the same port.

use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use culvert_wire::clock::{Clock, Moment};
use culvert_wire::data2::visit::RefusalCode;
use culvert_wire::node::Route;
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::{TrySendError, http1, http2};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use uuid::Uuid;

use super::body::Body;
use super::headers;
use super::limits::WebLimits;
use super::pages::Page;
use super::timer::ClockTimer;
use crate::lock;
use crate::session::{ACCEPT_WITHIN, SessionRelay, VisitCarrier};

/// Bytes of an answer that a service may send ahead on HTTP/2. A visitor who takes nothing holds up no other: together
/// they are not limited (RFC 9113, section 6.9.1).
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;
/// Bytes of an answer that are read at once.
const READ_BUFFER: usize = 128 * 1024;
/// How long it is remembered that a service does not speak HTTP/2.
const WITHOUT_H2_FOR: Duration = Duration::from_mins(10);

/// A port of a run. Connections of other runs are never used for it.
type Key = (Uuid, Option<Uuid>);

pub(crate) struct Upstreams {
    clock: Clock,
    limits: WebLimits,
    idle: Mutex<Idle>,
}

#[derive(Default)]
struct Idle {
    by_port: HashMap<Key, Vec<(Moment, Upstream)>>,
    count: usize,
    /// Connections of HTTP/2, each for many requests at a time, with the moment of its last one.
    shared: HashMap<Key, (Moment, http2::SendRequest<Body>)>,
    /// Ports whose services do not speak HTTP/2, and since when that is known.
    without_h2: HashMap<Key, Moment>,
}

/// The version of HTTP that is spoken to a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UpstreamVersion {
    Http1,
    /// HTTP/2 by prior knowledge (RFC 9113, section 3.3), and HTTP/1.1 where the service does not speak it.
    Http2,
}

impl UpstreamVersion {
    /// A WebSocket begins with HTTP/1.1, whatever else the service speaks.
    pub(super) fn of<B>(request: &Request<B>, route: &Route) -> Self {
        let wants_h2 = headers::is_grpc(request.headers()) || route.h2c && !headers::is_websocket(request);
        if wants_h2 { Self::Http2 } else { Self::Http1 }
    }
}

/// A connection of HTTP/1.1 to a service. Whoever waits for its bytes moves them, which saves two changes of tasks with
/// each request.
pub(super) struct Upstream {
    sender: http1::SendRequest<Body>,
    /// `None` if the connection has a task of its own, or has ended.
    driver: Option<Driver>,
}

/// Moves the bytes of a connection until it or the run ends.
type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Upstream {
    /// Moves the bytes that can be moved now.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) {
        if let Some(driver) = &mut self.driver
            && driver.as_mut().poll(context).is_ready()
        {
            self.driver = None;
        }
    }

    async fn send(&mut self, request: Request<Body>) -> Result<Response<Incoming>, TrySendError<Request<Body>>> {
        let mut answer = pin!(self.sender.try_send_request(request));
        poll_fn(|context| {
            self.poll(context);
            answer.as_mut().poll(context)
        })
        .await
    }

    /// Whether it can take a request now.
    fn is_ready(&mut self) -> bool {
        self.poll(&mut Context::from_waker(Waker::noop()));
        self.sender.is_ready()
    }

    /// Waits until it can take a request; false if it has ended.
    async fn ready(&mut self) -> bool {
        let ready = poll_fn(|context| {
            self.poll(context);
            self.sender.poll_ready(context)
        });
        ready.await.is_ok()
    }

    /// Gives the connection a task of its own, where nobody will wait for its bytes.
    pub(super) fn detach(&mut self) {
        self.driver.take().map(tokio::spawn);
    }
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
    pub(crate) fn new(clock: Clock, limits: WebLimits) -> Self {
        Self { clock, limits, idle: Mutex::default() }
    }

    /// Sends a request. Returns the answer, with the connection that it comes on if that is one of HTTP/1.1.
    ///
    /// # Errors
    ///
    /// The answer for the visitor.
    pub(super) async fn send(
        &self,
        visited: Visited<'_>,
        version: UpstreamVersion,
        request: Request<Body>,
    ) -> Result<(Response<Incoming>, Option<Upstream>), Page> {
        if version == UpstreamVersion::Http2
            && let Some(mut shared) = self.shared(visited).await?
        {
            let answer = shared.send_request(headers::as_http2(request)).await;
            return answer.map(|response| (response, None)).map_err(|error| page(&error, None));
        }
        self.send_http1(visited, request).await.map(|(response, upstream)| (response, Some(upstream)))
    }

    /// A connection of HTTP/2 to a service; `None` if the service does not speak it.
    async fn shared(&self, visited: Visited<'_>) -> Result<Option<http2::SendRequest<Body>>, Page> {
        let (key, now) = (visited.key(), self.clock.moment());
        {
            let mut idle = lock(&self.idle);
            if idle.without_h2.get(&key).is_some_and(|since| now.since(*since) < WITHOUT_H2_FOR) {
                return Ok(None);
            }
            if let Some((used, sender)) = idle.shared.get_mut(&key).filter(|(_, sender)| !sender.is_closed()) {
                *used = now;
                return Ok(Some(sender.clone()));
            }
        }
        let (lent, outcome) = lend(visited).await?;
        let mut spoken = outcome.spoken.subscribe();
        let handshake = http2::Builder::new(TokioExecutor::new())
            .timer(ClockTimer(self.clock.clone()))
            .max_header_list_size(self.limits.header_bytes as u32)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .handshake(TokioIo::new(lent))
            .await;
        let (sender, connection) = handshake.map_err(|_| Page::CONNECTION_LOST)?;
        tokio::spawn(driver(visited.run, connection));
        // The server begins as well, without waiting for a request (RFC 9113, section 3.4).
        let begun = self.clock.timeout(ACCEPT_WITHIN, spoken.wait_for(|spoken| *spoken != Spoken::Nothing)).await;
        if let Some(refusal) = outcome.refusal.get() {
            return Err(refused(refusal));
        }
        let spoken = match begun {
            Ok(Ok(spoken)) => *spoken,
            Ok(Err(_)) => return Err(Page::CONNECTION_LOST),
            Err(_) if outcome.accepted.load(Ordering::Relaxed) => return Err(Page::TARGET_SILENT),
            Err(_) => return Err(Page::DEVICE_TIMEOUT),
        };
        let mut idle = lock(&self.idle);
        match spoken {
            Spoken::Other => {
                idle.shared.insert(key, (now, sender.clone()));
                Ok(Some(sender))
            }
            Spoken::Http1 => {
                idle.without_h2.insert(key, now);
                Ok(None)
            }
            Spoken::Nothing | Spoken::End => Err(Page::CONNECTION_LOST),
        }
    }

    async fn send_http1(
        &self,
        visited: Visited<'_>,
        mut request: Request<Body>,
    ) -> Result<(Response<Incoming>, Upstream), Page> {
        if let Some(mut used) = self.take(visited.key()) {
            // A service may close an idle connection at any time. Then a request that changes nothing (RFC 9110, section
            // 9.2.1) and has no body is sent once more.
            let may_repeat = request.method().is_safe() && request.body().is_end_stream();
            let repeated = may_repeat.then(|| head_of(&request));
            match used.send(request).await {
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
        tokio::select! {
            biased;
            answer = fresh.send(request) => match answer {
                Ok(response) => Ok((response, fresh)),
                Err(failed) => Err(page(failed.error(), outcome.refusal.get())),
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

    async fn connect(&self, visited: Visited<'_>) -> Result<(Upstream, Arc<Outcome>), Page> {
        let (lent, outcome) = lend(visited).await?;
        let handshake = http1::Builder::new().max_buf_size(READ_BUFFER).handshake(TokioIo::new(lent)).await;
        let (sender, connection) = handshake.map_err(|_| Page::CONNECTION_LOST)?;
        let driver: Driver = Box::pin(driver(visited.run, connection.with_upgrades()));
        Ok((Upstream { sender, driver: Some(driver) }, outcome))
    }

    fn take(&self, key: Key) -> Option<Upstream> {
        loop {
            let mut upstream = self.pop(key)?;
            if upstream.is_ready() {
                return Some(upstream);
            }
        }
    }

    fn pop(&self, key: Key) -> Option<Upstream> {
        let mut idle = lock(&self.idle);
        let (_, upstream) = idle.by_port.get_mut(&key)?.pop()?;
        idle.count -= 1;
        Some(upstream)
    }

    /// Keeps a connection for the next request, as soon as its last one has ended.
    pub(super) fn give_back(self: &Arc<Self>, run: &SessionRelay, port_id: Option<Uuid>, mut upstream: Upstream) {
        let key = (run.session_id(), port_id);
        if upstream.is_ready() {
            return self.keep(key, upstream);
        }
        let upstreams = self.clone();
        tokio::spawn(async move {
            if upstream.ready().await {
                upstreams.keep(key, upstream);
            }
        });
    }

    fn keep(&self, key: Key, upstream: Upstream) {
        let mut idle = lock(&self.idle);
        if idle.count < self.limits.upstream_connections {
            idle.by_port.entry(key).or_default().push((self.clock.moment(), upstream));
            idle.count += 1;
        }
    }

    /// Closes the connections that were not used for a while, and forgets those that have ended.
    pub(crate) fn sweep(&self) {
        let now = self.clock.moment();
        let mut idle = lock(&self.idle);
        for kept in idle.by_port.values_mut() {
            kept.retain_mut(|(since, upstream)| now.since(*since) < self.limits.upstream_idle && upstream.is_ready());
        }
        idle.by_port.retain(|_, kept| !kept.is_empty());
        idle.shared.retain(|_, (used, sender)| now.since(*used) < self.limits.upstream_idle && !sender.is_closed());
        idle.without_h2.retain(|_, since| now.since(*since) < WITHOUT_H2_FOR);
        idle.count = idle.by_port.values().map(Vec::len).sum();
    }
}

async fn lend(visited: Visited<'_>) -> Result<(Lent, Arc<Outcome>), Page> {
    let Visited { run, port_id, visitor, local } = visited;
    let stream = run.lend(port_id, visitor, local).await.map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => Page::DEVICE_TIMEOUT,
        _ => Page::TUNNEL_OFFLINE,
    })?;
    let outcome =
        Outcome { accepted: stream.accepted(), refusal: OnceLock::new(), spoken: watch::Sender::new(Spoken::Nothing) };
    let outcome = Arc::new(outcome);
    Ok((Lent { run: run.clone(), stream: Some(stream), outcome: outcome.clone(), is_begun: false }, outcome))
}

/// Moves the bytes of a connection until it or the run ends.
fn driver(
    run: &SessionRelay,
    connection: impl Future<Output = hyper::Result<()>> + Send + 'static,
) -> impl Future<Output = ()> + Send + 'static {
    let ended = run.ended();
    async move {
        if let Some(Err(error)) = ended.run_until_cancelled(connection).await {
            tracing::debug!(%error, "a connection to a service has ended");
        }
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
        Some(refusal) => refused(refusal),
        None if error.is_parse() => Page::ANSWER_INVALID,
        None => Page::CONNECTION_LOST,
    }
}

fn refused(refusal: &RefusalCode) -> Page {
    match refusal {
        RefusalCode::Fenced => Page::TUNNEL_OFFLINE,
        RefusalCode::TargetSilent => Page::TARGET_SILENT,
        _ => Page::TARGET_REFUSED,
    }
}

/// What became of a visit.
struct Outcome {
    accepted: Arc<AtomicBool>,
    refusal: OnceLock<RefusalCode>,
    spoken: watch::Sender<Spoken>,
}

/// What a service has begun with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spoken {
    Nothing,
    /// The end of the connection.
    End,
    /// `HTTP/1`.
    Http1,
    /// Something else, as a frame of HTTP/2.
    Other,
}

/// A visit that is lent to hyper. Its end gives the data connection back.
struct Lent {
    run: Arc<SessionRelay>,
    stream: Option<VisitCarrier>,
    outcome: Arc<Outcome>,
    /// Whether the service has said something, or has ended.
    is_begun: bool,
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
        let before = space.filled().len();
        let polled = self.stream()?.poll_read(context, space);
        if let (Poll::Ready(Err(_)), Some(stream)) = (&polled, &self.stream)
            && let Some(refused) = stream.refusal()
        {
            let _ = self.outcome.refusal.set(refused.code.clone());
        }
        if !self.is_begun && polled.is_ready() {
            self.is_begun = true;
            let begin = &space.filled()[before..];
            self.outcome.spoken.send_replace(match begin {
                [] => Spoken::End,
                _ if begin.starts_with(b"HTTP") || b"HTTP".starts_with(begin) => Spoken::Http1,
                _ => Spoken::Other,
            });
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
