//! Sends requests to local services, on connections that are kept or new ones.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use culvert_wire::clock::Clock;
use culvert_wire::data2::visit::{H2, RefusalCode};
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};

use super::body::Body;
use super::destination::Destination;
use super::headers;
use super::lent::{Begun, Lent, Outcome, Spoken, lend, lend_warm};
use super::limits::WebLimits;
use super::pages::Page;
use super::scheme::Scheme;
use super::timer::ClockTimer;
use super::upstream::{Driver, Upstream, driver};
use super::upstream_pool::{FreeStream, Known, StreamPlace, UpstreamPool};
use super::upstream_version::UpstreamVersion;
use crate::lock;
use crate::session::ACCEPT_WITHIN;

/// Bytes of an answer that a service may send ahead on HTTP/2. A visitor who takes nothing holds up no other: together
/// they are not limited (RFC 9113, section 6.9.1).
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;
/// Bytes of an answer that are read at once.
const READ_BUFFER: usize = 128 * 1024;
/// How long the agent may take to say that it has reached the service on another connection. It says so after a second if
/// the service has not answered.
const MOVED_WITHIN: Duration = Duration::from_secs(3);

pub(crate) struct Upstreams {
    clock: Clock,
    limits: WebLimits,
    common: Arc<UpstreamPool>,
    /// The pools of visitors' connections whose services are told who the visitor is.
    of_visitors: Mutex<Vec<Weak<UpstreamPool>>>,
}

/// An answer, and what it comes on.
pub(super) struct Sent {
    pub response: Response<Incoming>,
    /// Of HTTP/1.1.
    pub upstream: Option<Upstream>,
    /// On a connection of HTTP/2.
    pub stream: Option<StreamPlace>,
}

impl Sent {
    fn on((response, upstream): (Response<Incoming>, Upstream)) -> Self {
        Self { response, upstream: Some(upstream), stream: None }
    }
}

/// How a service is spoken to.
enum Found {
    Http2(FreeStream),
    /// With a connection that was begun to learn it.
    Http1(Option<Box<Begun>>),
}

impl From<Known> for Found {
    fn from(known: Known) -> Self {
        match known {
            Known::Http1 => Self::Http1(None),
            Known::Http2(stream) => Self::Http2(stream),
        }
    }
}

impl Upstreams {
    pub(crate) fn new(clock: Clock, limits: WebLimits) -> Self {
        let common = Arc::new(UpstreamPool::new(clock.clone(), limits));
        Self { clock, limits, common, of_visitors: Mutex::default() }
    }

    /// The pool for the requests of all visitors.
    pub(super) fn common(&self) -> &Arc<UpstreamPool> {
        &self.common
    }

    /// A new pool, for one visitor's connection.
    pub(super) fn of_visitor(&self) -> Arc<UpstreamPool> {
        let pool = Arc::new(self.common.beside());
        lock(&self.of_visitors).push(Arc::downgrade(&pool));
        pool
    }

    /// Closes the connections that were not used for a while, and idle ones for visitors who wait.
    pub(crate) fn sweep(&self) {
        self.common.sweep();
        lock(&self.of_visitors).retain(|pool| pool.upgrade().inspect(|pool| pool.sweep()).is_some());
    }

    /// Sends a request.
    ///
    /// # Errors
    ///
    /// The answer for the visitor.
    pub(super) async fn send(
        &self,
        destination: Destination<'_>,
        version: UpstreamVersion,
        request: Request<Body>,
    ) -> Result<Sent, Page> {
        let found = match version {
            UpstreamVersion::Http1 => Found::Http1(None),
            UpstreamVersion::Http2 => self.by_prior_knowledge(destination).await?,
            UpstreamVersion::Chosen => self.by_choice(destination).await?,
        };
        let scheme = if version == UpstreamVersion::Chosen { Scheme::Https } else { Scheme::Http };
        match found {
            Found::Http1(fresh) => self.send_http1(destination, fresh, request).await.map(Sent::on),
            Found::Http2(FreeStream { mut sender, place }) => {
                let answer = sender.send_request(headers::as_http2(request, scheme)).await;
                let sent = |response| Sent { response, upstream: None, stream: place };
                answer.map(sent).map_err(|error| page(&error, None))
            }
        }
    }

    /// A connection to a service that chooses a protocol.
    async fn by_choice(&self, destination: Destination<'_>) -> Result<Found, Page> {
        if let Some(known) = destination.pool.known(destination.key()) {
            return Ok(known.into());
        }
        let (mut lent, outcome) = lend(destination.run, destination.visited(Some(H2))).await?;
        let chosen = self.clock.timeout(ACCEPT_WITHIN, lent.until_accepted()).await;
        match chosen {
            Ok(Ok(())) if outcome.has_chosen(H2) => {
                let sender = self.handshake_http2(destination, lent).await?;
                Ok(Found::Http2(destination.pool.share(destination.key(), sender, &outcome)))
            }
            Ok(Ok(())) => {
                destination.pool.note_http1(destination.key(), &outcome);
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
        if let Some(known) = destination.pool.known(destination.key()) {
            return Ok(known.into());
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
            Spoken::Other => Ok(Found::Http2(destination.pool.share(destination.key(), sender, &outcome))),
            Spoken::Http1 => {
                destination.pool.note_http1(destination.key(), &outcome);
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
            && let Some(mut used) = destination.pool.take(destination.key())
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
