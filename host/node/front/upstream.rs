//! Connections to local services: each is a visit, and is kept for the next request of the same port.

use std::collections::HashMap;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;

use culvert_wire::clock::{Clock, Moment};
use culvert_wire::data2::visit::{H2, RefusalCode, VisitKind};
use futures_util::FutureExt as _;
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::{TrySendError, http1, http2};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio_util::future::FutureExt as _;
use uuid::Uuid;

use super::body::Body;
use super::headers;
use super::lent::{Begun, Lent, Outcome, Spoken, lend, lend_warm};
use super::limits::WebLimits;
use super::pages::Page;
use super::scheme::Scheme;
use super::timer::ClockTimer;
use super::upstream_version::UpstreamVersion;
use crate::lock;
use crate::session::{ACCEPT_WITHIN, END_WITHIN, SessionRelay, Visited};

/// Bytes of an answer that a service may send ahead on HTTP/2. A visitor who takes nothing holds up no other: together
/// they are not limited (RFC 9113, section 6.9.1).
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;
/// Bytes of an answer that are read at once.
const READ_BUFFER: usize = 128 * 1024;
/// How long the agent may take to say that it has reached the service on another connection. It says so after a second if
/// the service has not answered.
const MOVED_WITHIN: Duration = Duration::from_secs(3);
/// How long it is remembered that a service does not speak HTTP/2.
const WITHOUT_H2_FOR: Duration = Duration::from_mins(10);

/// The service behind a port of a run.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Service {
    session_id: Uuid,
    port_id: Option<Uuid>,
    target_version: u64,
}

/// A service, and the visitor if it is told who that is. Connections of others are never used for it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key {
    service: Service,
    visitor: Option<SocketAddr>,
}

pub(crate) struct Upstreams {
    clock: Clock,
    limits: WebLimits,
    idle: Mutex<Idle>,
}

#[derive(Default)]
struct Idle {
    by_key: HashMap<Key, Vec<(Moment, Upstream)>>,
    count: usize,
    /// Connections of HTTP/2, each for many requests at a time, with the moment of its last one.
    shared: HashMap<Key, (Moment, http2::SendRequest<Body>)>,
    /// Services that do not speak HTTP/2, and since when that is known.
    without_h2: HashMap<Service, Moment>,
}

/// A connection of HTTP/1.1 to a service. Whoever waits for its bytes moves them, which saves two changes of tasks with
/// each request.
pub(super) struct Upstream {
    sender: http1::SendRequest<Body>,
    /// `None` if the connection has a task of its own, or has ended.
    driver: Option<Driver>,
    outcome: Arc<Outcome>,
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

    /// Ends a connection on which nothing is under way.
    fn end(self, clock: &Clock) {
        let Self { sender, driver, outcome } = self;
        outcome.is_ending.store(true, Ordering::Relaxed);
        // Without it, hyper ends the connection.
        drop(sender);
        if let Some(driver) = driver {
            let clock = clock.clone();
            tokio::spawn(async move { clock.timeout(END_WITHIN, driver).await });
        }
    }
}

/// Whom a connection is for.
#[derive(Clone, Copy)]
pub(super) struct Destination<'a> {
    pub run: &'a Arc<SessionRelay>,
    pub port_id: Option<Uuid>,
    pub visitor: SocketAddr,
    pub local: SocketAddr,
    pub name: &'a str,
    /// Whether the service is told who the visitor is.
    pub names_visitor: bool,
}

impl Destination<'_> {
    pub(super) fn key(&self) -> Key {
        let (session_id, target_version) = (self.run.session_id(), self.run.target_version());
        let service = Service { session_id, port_id: self.port_id, target_version };
        Key { service, visitor: self.names_visitor.then_some(self.visitor) }
    }

    fn visited(&self, alpn: Option<&str>) -> Visited {
        Visited {
            port_id: self.port_id,
            visitor: self.visitor,
            local: self.local,
            kind: VisitKind::Http,
            name: Some(self.name.to_owned()),
            alpn: alpn.map(String::from),
        }
    }
}

impl Upstreams {
    pub(crate) fn new(clock: Clock, limits: WebLimits) -> Self {
        Self { clock, limits, idle: Mutex::default() }
    }

    /// Others of the same limits.
    pub(super) fn another(&self) -> Self {
        Self::new(self.clock.clone(), self.limits)
    }

    /// Sends a request. Returns the answer, with the connection that it comes on if that is one of HTTP/1.1.
    ///
    /// # Errors
    ///
    /// The answer for the visitor.
    pub(super) async fn send(
        &self,
        destination: Destination<'_>,
        version: UpstreamVersion,
        request: Request<Body>,
    ) -> Result<(Response<Incoming>, Option<Upstream>), Page> {
        let found = match version {
            UpstreamVersion::Http1 => Found::Http1(None),
            UpstreamVersion::Http2 => self.by_prior_knowledge(destination).await?,
            UpstreamVersion::Chosen => self.by_choice(destination).await?,
        };
        let scheme = if version == UpstreamVersion::Chosen { Scheme::Https } else { Scheme::Http };
        match found {
            Found::Http1(fresh) => self
                .send_http1(destination, fresh, request)
                .await
                .map(|(response, upstream)| (response, Some(upstream))),
            Found::Http2(mut shared) => {
                let answer = shared.send_request(headers::as_http2(request, scheme)).await;
                answer.map(|response| (response, None)).map_err(|error| page(&error, None))
            }
        }
    }

    /// What is known of a service: its connection of HTTP/2, or that it speaks HTTP/1.1.
    fn known(&self, key: Key) -> Option<Found> {
        let (mut idle, now) = (lock(&self.idle), self.clock.moment());
        if idle.without_h2.get(&key.service).is_some_and(|since| now.since(*since) < WITHOUT_H2_FOR) {
            return Some(Found::Http1(None));
        }
        let (used, sender) = idle.shared.get_mut(&key).filter(|(_, sender)| !sender.is_closed())?;
        *used = now;
        Some(Found::Http2(sender.clone()))
    }

    fn keep_shared(&self, key: Key, sender: &http2::SendRequest<Body>, outcome: &Outcome) {
        if !outcome.leads_to(key.service.target_version) {
            return;
        }
        let mut idle = lock(&self.idle);
        idle.shared.retain(|_, (_, sender)| !sender.is_closed());
        if idle.shared.len() >= self.limits.upstream_connections {
            return;
        }
        idle.shared.insert(key, (self.clock.moment(), sender.clone()));
    }

    fn note_http1(&self, key: Key, outcome: &Outcome) {
        if !outcome.leads_to(key.service.target_version) {
            return;
        }
        lock(&self.idle).without_h2.insert(key.service, self.clock.moment());
    }

    /// A connection to a service that chooses a protocol.
    async fn by_choice(&self, destination: Destination<'_>) -> Result<Found, Page> {
        if let Some(known) = self.known(destination.key()) {
            return Ok(known);
        }
        let (mut lent, outcome) = lend(destination.run, destination.visited(Some(H2))).await?;
        let chosen = self.clock.timeout(ACCEPT_WITHIN, lent.until_accepted()).await;
        match chosen {
            Ok(Ok(())) if outcome.has_chosen(H2) => {
                let sender = self.handshake_http2(destination, lent).await?;
                self.keep_shared(destination.key(), &sender, &outcome);
                Ok(Found::Http2(sender))
            }
            Ok(Ok(())) => {
                self.note_http1(destination.key(), &outcome);
                Ok(Found::Http1(Some(Box::new((lent, outcome)))))
            }
            Ok(Err(_)) => Err(outcome.refusal().map_or(Page::CONNECTION_LOST, refused)),
            Err(_) => Err(Page::DEVICE_TIMEOUT),
        }
    }

    async fn handshake_http2(
        &self,
        destination: Destination<'_>,
        lent: Lent,
    ) -> Result<http2::SendRequest<Body>, Page> {
        let handshake = http2::Builder::new(TokioExecutor::new())
            .timer(ClockTimer(self.clock.clone()))
            .max_header_list_size(self.limits.header_bytes as u32)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .handshake(TokioIo::new(lent));
        // In a box: most requests do not need the room.
        let (sender, connection) = Box::pin(handshake).await.map_err(|_| Page::CONNECTION_LOST)?;
        tokio::spawn(driver(destination.run, connection));
        Ok(sender)
    }

    /// A connection to a service that may speak HTTP/2.
    async fn by_prior_knowledge(&self, destination: Destination<'_>) -> Result<Found, Page> {
        if let Some(known) = self.known(destination.key()) {
            return Ok(known);
        }
        let (lent, outcome) = lend(destination.run, destination.visited(None)).await?;
        let mut spoken = outcome.spoken.subscribe();
        let sender = self.handshake_http2(destination, lent).await?;
        // The server begins as well, without waiting for a request (RFC 9113, section 3.4).
        let begun = self.clock.timeout(ACCEPT_WITHIN, spoken.wait_for(|spoken| *spoken != Spoken::Nothing)).await;
        if let Some(refusal) = outcome.refusal() {
            return Err(refused(refusal));
        }
        let spoken = match begun {
            Ok(Ok(spoken)) => *spoken,
            Ok(Err(_)) => return Err(Page::CONNECTION_LOST),
            Err(_) if outcome.is_accepted() => return Err(Page::TARGET_SILENT),
            Err(_) => return Err(Page::DEVICE_TIMEOUT),
        };
        match spoken {
            Spoken::Other => {
                self.keep_shared(destination.key(), &sender, &outcome);
                Ok(Found::Http2(sender))
            }
            Spoken::Http1 => {
                self.note_http1(destination.key(), &outcome);
                Ok(Found::Http1(None))
            }
            Spoken::Nothing | Spoken::End => Err(Page::CONNECTION_LOST),
        }
    }

    async fn send_http1(
        &self,
        destination: Destination<'_>,
        begun: Option<Box<Begun>>,
        mut request: Request<Body>,
    ) -> Result<(Response<Incoming>, Upstream), Page> {
        if begun.is_none()
            && let Some(mut used) = self.take(destination.key())
        {
            // A service may close an idle connection at any time. Then a request that changes nothing (RFC 9110, section
            // 9.2.1) and has no body is sent once more.
            let may_repeat = request.method().is_safe() && request.body().is_end_stream();
            // A stream of QUIC costs more with each request than a connection of TLS, and answers where that does not.
            if may_repeat
                && used.outcome.is_single
                && let Some(warm) = lend_warm(destination.run, destination.visited(None)).await
                && let Ok(moved) =
                    Box::pin(self.send_fresh(destination, Some(Box::new(warm)), head_of(&request), MOVED_WITHIN)).await
            {
                used.end(&self.clock);
                return Ok(moved);
            }
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
        Box::pin(self.send_fresh(destination, begun, request, ACCEPT_WITHIN)).await
    }

    /// Sends a request on a new connection, or on one that was begun. The agent has this time to say that it has reached the
    /// service.
    async fn send_fresh(
        &self,
        destination: Destination<'_>,
        begun: Option<Box<Begun>>,
        request: Request<Body>,
        accept_within: Duration,
    ) -> Result<(Response<Incoming>, Upstream), Page> {
        let mut fresh = self.connect(destination, begun).await?;
        let outcome = fresh.outcome.clone();
        tokio::select! {
            biased;
            answer = fresh.send(request) => match answer {
                Ok(response) => Ok((response, fresh)),
                Err(failed) => Err(page(failed.error(), outcome.refusal())),
            },
            () = self.unaccepted(&outcome, accept_within) => Err(Page::DEVICE_TIMEOUT),
        }
    }

    /// Ends if the agent has not said in time whether it reached the service.
    async fn unaccepted(&self, outcome: &Outcome, within: Duration) {
        self.clock.sleep(within).await;
        if outcome.is_accepted() {
            std::future::pending::<()>().await;
        }
    }

    async fn connect(&self, destination: Destination<'_>, begun: Option<Box<Begun>>) -> Result<Upstream, Page> {
        let (lent, outcome) = match begun {
            Some(begun) => *begun,
            None => lend(destination.run, destination.visited(None)).await?,
        };
        let handshake = http1::Builder::new().max_buf_size(READ_BUFFER).handshake(TokioIo::new(lent)).await;
        let (sender, connection) = handshake.map_err(|_| Page::CONNECTION_LOST)?;
        let driver: Driver = Box::pin(driver(destination.run, connection.with_upgrades()));
        Ok(Upstream { sender, driver: Some(driver), outcome })
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
        let (_, upstream) = idle.by_key.get_mut(&key)?.pop()?;
        idle.count -= 1;
        Some(upstream)
    }

    /// Keeps a connection for the next request, as soon as its last one has ended.
    pub(super) fn give_back(self: &Arc<Self>, key: Key, mut upstream: Upstream) {
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
        if upstream.outcome.leads_to(key.service.target_version) && idle.count < self.limits.upstream_connections {
            idle.by_key.entry(key).or_default().push((self.clock.moment(), upstream));
            idle.count += 1;
        } else {
            drop(idle);
            upstream.end(&self.clock);
        }
    }

    /// Ends the idle connections.
    pub(super) fn end_all(&self) {
        let idle = std::mem::take(&mut *lock(&self.idle));
        idle.by_key.into_values().flatten().for_each(|(_, upstream)| upstream.end(&self.clock));
    }

    /// Closes the connections that were not used for a while, and forgets those that have ended.
    pub(crate) fn sweep(&self) {
        let now = self.clock.moment();
        let mut idle = lock(&self.idle);
        for kept in idle.by_key.values_mut() {
            let gone = kept.extract_if(.., |(since, upstream)| {
                now.since(*since) >= self.limits.upstream_idle || !upstream.is_ready()
            });
            gone.for_each(|(_, upstream)| upstream.end(&self.clock));
        }
        idle.by_key.retain(|_, kept| !kept.is_empty());
        idle.shared.retain(|_, (used, sender)| now.since(*used) < self.limits.upstream_idle && !sender.is_closed());
        idle.without_h2.retain(|_, since| now.since(*since) < WITHOUT_H2_FOR);
        idle.count = idle.by_key.values().map(Vec::len).sum();
    }
}

/// Moves the bytes of a connection until it or the run ends.
fn driver(
    run: &SessionRelay,
    connection: impl Future<Output = hyper::Result<()>> + Send + 'static,
) -> impl Future<Output = ()> + Send + 'static {
    connection.with_cancellation_token_owned(run.ended()).map(|ended| {
        if let Some(Err(error)) = ended {
            tracing::debug!(%error, "a connection to a service has ended");
        }
    })
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
        RefusalCode::TargetTls => Page::TLS_FAILED,
        _ => Page::TARGET_REFUSED,
    }
}

/// How a service is spoken to.
enum Found {
    Http2(http2::SendRequest<Body>),
    /// With a connection that was begun to learn it.
    Http1(Option<Box<Begun>>),
}
