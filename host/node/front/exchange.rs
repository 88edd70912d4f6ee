//! The path of one request: name, rules, basic authentication, service, answer.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Context;

use culvert_wire::node::Counted;
use culvert_wire::pipe;
use hyper::body::{Body as _, Incoming};
use hyper::header::{ACCEPT, HeaderValue, TRANSFER_ENCODING};
use hyper::upgrade::OnUpgrade;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio_util::future::FutureExt;
use tokio_util::sync::CancellationToken;

use super::activity::Activity;
use super::authority::name_of;
use super::body::{Body, Observer, PassedBody};
use super::cut::CutBody;
use super::destination::Destination;
use super::exchanges::OpenExchange;
use super::http_version::HttpVersion;
use super::pages::{OwnAnswer, Page};
use super::peer::Peer;
use super::phase::{ConnectionPhase, Uploading};
use super::routes::Found;
use super::scheme::Scheme;
use super::upstream::{self, Upstream};
use super::upstream_pool::{StreamPlace, UpstreamPool};
use super::upstream_version::UpstreamVersion;
use super::upstreams::{Sent, Upstreams};
use super::visitor::VisitorConnection;
use super::{Front, headers};
use crate::admission::{AdmissionRefusal, AdmittedVisitor};
use crate::bounds::Bound;
use crate::lock;
use crate::session::{ActiveRun, SessionRelay, VisitorKind};

/// A request that was let in.
struct Admitted {
    name: String,
    found: Found,
    run: ActiveRun,
    admission: AdmittedVisitor,
}

/// Answers a request.
pub(super) async fn serve(
    front: &Front,
    visitor: &Arc<VisitorConnection>,
    mut request: Request<Incoming>,
) -> Response<Body> {
    let mut open = match &visitor.version {
        HttpVersion::Http1(phase) => {
            phase.begin_exchange().await;
            None
        }
        HttpVersion::Http2(exchanges) => Some(exchanges.begin()),
    };
    let begun = front.shared.clock.moment();
    let accepted = request.headers().get(ACCEPT).cloned();
    let peer = visitor.peer.behind(request.headers(), &front.shared.trusted_proxies);
    let answer = match admit(front, visitor, peer, &mut request).await {
        Ok(admitted) => pass(front, visitor, peer, admitted, request, &mut open).await.map_err(OwnAnswer::from),
        Err(own) => Err(own),
    };
    let answer = answer.unwrap_or_else(|own| {
        open.iter_mut().for_each(OpenExchange::complete);
        if let Some(phase) = visitor.phase() {
            phase.end_exchange();
        }
        tracing::debug!(address = %peer.address, ?own, "a request was answered by the node");
        front.shared.counts.count(Counted::Pages, own.code());
        own.response(accepted.as_ref())
    });
    let took = front.shared.clock.moment().since(begun);
    front.shared.counts.answered(answer.status().as_u16(), took);
    answer
}

async fn admit(
    front: &Front,
    visitor: &VisitorConnection,
    peer: Peer,
    request: &mut Request<Incoming>,
) -> Result<Admitted, OwnAnswer> {
    if request.method() == Method::CONNECT && !headers::is_websocket_of_h2(request) {
        return Err(Page::METHOD_NOT_SUPPORTED.into());
    }
    let name = name_of(request).ok_or(Page::BAD_REQUEST)?;
    let length = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    if length > front.limits.uri_bytes {
        return Err(Page::URI_TOO_LONG.into());
    }
    if request.headers().len() > front.limits.header_count {
        return Err(Page::HEADER_TOO_LARGE.into());
    }
    let found = front.shared.routes.find(&name);
    // A service that makes TLS itself is not here.
    let is_elsewhere = peer.scheme == Scheme::Https && found.as_ref().is_some_and(|found| found.route.tls_passthrough);
    if !visitor.proves(&name) || is_elsewhere {
        return Err(Page::MISDIRECTED_REQUEST.into());
    }
    if let Some(answer) = challenge_answer(front, &name, request.uri().path()) {
        return Err(OwnAnswer::Challenge(answer));
    }
    let found = found.ok_or(Page::NO_SUCH_TUNNEL)?;
    if (found.route.https || found.route.tls_passthrough) && peer.scheme == Scheme::Http {
        // Its owner asked for HTTPS, so nothing is served in the clear.
        return Err(to_https(front, &name, &found, request));
    }
    if found.route.suspended_until.is_some_and(|until| front.shared.clock.now() < until) {
        return Err(Page::TUNNEL_SUSPENDED.into());
    }
    let tunnel =
        lock(&front.shared.tunnels).get(&found.route.tunnel_id).map(|tunnel| (tunnel.run(), tunnel.access.clone()));
    let (run, access) = tunnel.ok_or(Page::TUNNEL_OFFLINE)?;
    let ip = peer.address.ip();
    let admission = access.enter_exchange(ip, &run.ended()).map_err(|refusal| refused(front, refusal))?;
    if let Some(expected) = &found.route.basic_auth {
        let checked = front.basic_auth.check(found.route.tunnel_id, expected, ip, request.headers_mut()).await;
        front.shared.counts.count(Counted::BasicAuth, if checked.is_ok() { "passed" } else { "refused" });
        checked.map_err(|page| match page {
            Page::AUTHORIZATION_REQUIRED => OwnAnswer::AuthorizationRequired(name.clone()),
            page => page.into(),
        })?;
    }
    Ok(Admitted { name, found, run: ActiveRun::new(run, VisitorKind::Http), admission })
}

/// What an authority looks for at a path (RFC 8555, section 8.3). Other tokens are the service's.
fn challenge_answer(front: &Front, name: &str, path: &str) -> Option<String> {
    let token = path.strip_prefix("/.well-known/acme-challenge/")?;
    front.shared.certificates.challenge_answer(name, token)
}

/// The answer to a request in the clear for a name that is served by HTTPS alone.
fn to_https(front: &Front, name: &str, found: &Found, request: &Request<Incoming>) -> OwnAnswer {
    let is_served = found.route.tls_passthrough || front.shared.certificates.find(name).is_some();
    match front.ports.https.filter(|_| is_served) {
        Some(port) => {
            let port = if port == 443 { String::new() } else { format!(":{port}") };
            let target = request.uri().path_and_query().map_or("/", |target| target.as_str());
            OwnAnswer::Redirect(format!("https://{name}{port}{target}"))
        }
        None => Page::CERTIFICATE_PENDING.into(),
    }
}

fn refused(front: &Front, refusal: AdmissionRefusal) -> Page {
    match refusal {
        AdmissionRefusal::Rules => Page::VISITOR_NOT_ALLOWED,
        AdmissionRefusal::Bound(bound) => {
            front.shared.bounds.refused(bound);
            if bound == Bound::Tunnel { Page::TUNNEL_BUSY } else { Page::NODE_BUSY }
        }
    }
}

/// Passes a request on, and its answer back.
async fn pass(
    front: &Front,
    visitor: &Arc<VisitorConnection>,
    peer: Peer,
    admitted: Admitted,
    mut request: Request<Incoming>,
    open: &mut Option<OpenExchange>,
) -> Result<Response<Body>, Page> {
    let run = admitted.run.relay().clone();
    let is_upgrade = headers::is_websocket(&request);
    if is_upgrade && headers::has_body(&request) {
        return Err(Page::BAD_REQUEST);
    }
    let on_visitor = is_upgrade.then(|| hyper::upgrade::on(&mut request));
    let activity = Activity::new(front.shared.clock.clone());
    let (out, idle) = (admitted.admission.out.clone(), run.silence_limit());
    let (Found { route, port_id, tls, .. }, name) = (admitted.found, admitted.name);
    let version = UpstreamVersion::of(&request, &route, tls);
    let (method, has_body) = (request.method().clone(), !request.body().is_end_stream());
    let ongoing =
        Arc::new(OngoingRequest { run: admitted.run, admission: admitted.admission, stream: OnceLock::new() });
    let exchanges = visitor.exchanges().cloned();
    let is_websocket_of_h2 = headers::is_websocket_of_h2(&request);
    let named = (name.as_str(), route.host_header.as_deref());
    let passed = to_service(front, (visitor, peer), named, &ongoing, request, &activity);
    let passed = match &exchanges {
        Some(exchanges) if !passed.body().is_end_stream() => {
            let (exchanges, out, activity) = (exchanges.clone(), out.clone(), activity.clone());
            passed.map(|body| Body::new(CutBody::new(body, exchanges, out, activity, idle)))
        }
        _ => passed.map(Body::new),
    };
    let (local, names_visitor) = (peer.local, route.names_visitors);
    let pool = visitor.pool(&front.upstreams, names_visitor);
    let destination =
        Destination { run: &run, pool, port_id, visitor: peer.address, local, name: &name, names_visitor };
    let key = destination.key();
    let Sent { response, mut upstream, stream } =
        send(&front.upstreams, destination, version, passed, &out, &activity).await?;
    stream.map(|stream| ongoing.stream.set(stream));
    match (response.status(), on_visitor) {
        (StatusCode::SWITCHING_PROTOCOLS, Some(on_visitor)) => {
            open.iter_mut().for_each(OpenExchange::complete);
            upstream.iter_mut().for_each(Upstream::detach);
            visitor.phase().into_iter().for_each(|phase| phase.begin_upgrade());
            Ok(upgrade(front, visitor.clone(), ongoing, response, on_visitor, open.take()))
        }
        (StatusCode::SWITCHING_PROTOCOLS, None) => Err(Page::ANSWER_INVALID),
        // To its visitor this would look like a WebSocket (RFC 8441, section 5).
        (status, _) if is_websocket_of_h2 && status.is_success() => Err(Page::ANSWER_INVALID),
        _ => {
            let phase = visitor.phase().cloned();
            phase.iter().for_each(|phase| phase.begin_answer(out.clone(), activity.clone(), idle));
            let is_reusable = !has_body || is_body_read(&method, response.status());
            if !is_reusable || ongoing.is_uploading() {
                // The request goes on while the visitor takes nothing.
                upstream.iter_mut().for_each(Upstream::detach);
            }
            let upstream = upstream.filter(|_| is_reusable);
            let answer = Answer { phase, open: open.take(), ongoing, pool: pool.clone(), key, upstream };
            let response = to_visitor(response, activity.clone(), answer);
            Ok(match exchanges {
                Some(exchanges) => response.map(|body| Body::new(CutBody::new(body, exchanges, out, activity, idle))),
                None => response.map(Body::new),
            })
        }
    }
}

/// Sends a request, and waits for its answer while the visitor is let in and something moves.
async fn send(
    upstreams: &Upstreams,
    destination: Destination<'_>,
    version: UpstreamVersion,
    request: Request<Body>,
    out: &CancellationToken,
    activity: &Arc<Activity>,
) -> Result<Sent, Page> {
    let (run, idle) = (destination.run, destination.run.silence_limit());
    let silent = || if activity.awaits_visitor() { Page::REQUEST_TIMEOUT } else { Page::TARGET_SILENT };
    tokio::select! {
        biased;
        sent = upstreams.send(destination, version, request) => sent.map_err(|page| {
            // The agent gives up a silent exchange as well.
            if page == Page::CONNECTION_LOST && activity.is_silent(idle) { silent() } else { page }
        }),
        () = out.cancelled() => Err(if run.ended().is_cancelled() { Page::TUNNEL_OFFLINE } else { Page::VISITOR_NOT_ALLOWED }),
        () = activity.clone().silence(idle) => Err(silent()),
    }
}

/// Whether a service has probably read the body of a request that it has answered. Some leave one unread that they do not
/// expect, and take it for the next request, which is another visitor's.
fn is_body_read(method: &Method, status: StatusCode) -> bool {
    matches!(*method, Method::POST | Method::PUT | Method::PATCH) && !status.is_client_error()
}

/// The request as the service gets it.
fn to_service(
    front: &Front,
    (visitor, peer): (&VisitorConnection, Peer),
    (name, host_header): (&str, Option<&str>),
    ongoing: &Arc<OngoingRequest>,
    mut request: Request<Incoming>,
    activity: &Arc<Activity>,
) -> Request<PassedBody<Upload>> {
    let run = ongoing.run.relay();
    headers::as_http1(&mut request, &front.shared.clock);
    let target = request.uri().path_and_query().map_or(1, |target| target.as_str().len());
    // Method, target and version, with two spaces and CRLF.
    let line = request.method().as_str().len() + target + "HTTP/1.1".len() + 4;
    count(&run.counters().forth, line + headers::size(request.headers()));
    let (mut head, body) = request.into_parts();
    headers::to_service(&mut head, &visitor.forwarded(peer, name), host_header);
    if !body.is_end_stream() && body.size_hint().exact().is_none() {
        // Without it, hyper sends a GET without its body.
        head.headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
    let phase = visitor.phase().filter(|_| !body.is_end_stream());
    let uploading = phase.map(|phase| phase.begin_upload(activity.clone(), run.silence_limit()));
    let upload = Upload { ongoing: ongoing.clone(), activity: activity.clone(), _uploading: uploading };
    let body = PassedBody::new(body, activity.clone(), upload);
    Request::from_parts(head, body)
}

/// The answer as the visitor gets it.
fn to_visitor(
    mut response: Response<Incoming>,
    activity: Arc<Activity>,
    answer: Answer,
) -> Response<PassedBody<Answer>> {
    headers::to_visitor(&mut response);
    count_head(answer.ongoing.run.relay(), &response);
    response.map(|body| PassedBody::new(body, activity, answer))
}

fn count_head<B>(run: &SessionRelay, response: &Response<B>) {
    let reason = response.status().canonical_reason().unwrap_or_default();
    // Version, status and reason, with two spaces and CRLF.
    let line = "HTTP/1.1".len() + 3 + reason.len() + 4;
    count(&run.counters().back, line + headers::size(response.headers()));
}

/// Carries the bytes of a WebSocket, after the service has agreed to it.
fn upgrade(
    front: &Front,
    visitor: Arc<VisitorConnection>,
    ongoing: Arc<OngoingRequest>,
    mut response: Response<Incoming>,
    on_visitor: OnUpgrade,
    open: Option<OpenExchange>,
) -> Response<Body> {
    let on_service = hyper::upgrade::on(&mut response);
    headers::to_upgraded_visitor(&mut response, &visitor.version);
    let (shared, run) = (front.shared.clone(), ongoing.run.relay().clone());
    count_head(&run, &response);
    tokio::spawn(async move {
        let _counted = (visitor, open);
        let carried = async {
            let (visitor, service) = tokio::try_join!(on_visitor, on_service).map_err(io::Error::other)?;
            let account = pipe::Account { counters: run.counters(), budget: &shared.bounds.buffers };
            let (mut visitor, mut service) = (TokioIo::new(visitor), TokioIo::new(service));
            pipe::run(&mut visitor, &mut service, run.limits(), account, &shared.clock).await
        }
        .with_cancellation_token(&ongoing.admission.out);
        if let Some(Err(error)) = carried.await {
            tracing::debug!(%error, "a WebSocket was cut off");
        }
    });
    response.map(|_| Body::default())
}

fn count(counter: &AtomicU64, bytes: usize) {
    counter.fetch_add(bytes as u64, Ordering::Relaxed);
}

/// A request that is under way, until neither its body nor its answer is.
struct OngoingRequest {
    run: ActiveRun,
    admission: AdmittedVisitor,
    /// On a connection of HTTP/2 to the service.
    stream: OnceLock<StreamPlace>,
}

impl OngoingRequest {
    /// Whether the request's body is under way, asked by its answer.
    fn is_uploading(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) > 1
    }
}

/// Counts the bytes of a request's body.
struct Upload {
    ongoing: Arc<OngoingRequest>,
    activity: Arc<Activity>,
    _uploading: Option<Uploading>,
}

impl Observer for Upload {
    fn count(&self, bytes: usize) {
        count(&self.ongoing.run.relay().counters().forth, bytes);
    }

    fn pass_trailers(&self, trailers: &mut HeaderMap) {
        self.count(headers::size(trailers));
        headers::of_visitor(trailers);
    }

    fn note_awaited(&self, is_awaited: bool) {
        self.activity.note_awaited(is_awaited);
    }
}

/// Counts the bytes of an answer's body. At its end, the connection to the service is free for the next request.
struct Answer {
    /// On a connection of HTTP/1.1.
    phase: Option<Arc<ConnectionPhase>>,
    /// On a connection of HTTP/2.
    open: Option<OpenExchange>,
    ongoing: Arc<OngoingRequest>,
    pool: Arc<UpstreamPool>,
    key: upstream::Key,
    upstream: Option<Upstream>,
}

impl Answer {
    fn end_phase(&mut self) {
        if let Some(phase) = self.phase.take() {
            phase.end_exchange();
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        // hyper does not ask for the end of a body whose last byte it knows.
        self.end_phase();
    }
}

impl Observer for Answer {
    fn count(&self, bytes: usize) {
        count(&self.ongoing.run.relay().counters().back, bytes);
    }

    fn pass_trailers(&self, trailers: &mut HeaderMap) {
        headers::of_service(trailers);
        self.count(headers::size(trailers));
    }

    fn drive(&mut self, context: &mut Context<'_>) {
        self.upstream.iter_mut().for_each(|upstream| upstream.poll(context));
    }

    fn complete(&mut self) {
        self.end_phase();
        self.open.iter_mut().for_each(OpenExchange::complete);
        // A service that has answered before the whole request had come gets no other one on this connection.
        if let Some(upstream) = self.upstream.take()
            && !self.ongoing.is_uploading()
        {
            self.pool.give_back(self.key, upstream);
        }
    }
}
