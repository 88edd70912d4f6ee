//! The path of one request: name, rules, basic authentication, service, answer.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use culvert_wire::pipe;
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::http1::SendRequest;
use hyper::header::{ACCEPT, CONTENT_LENGTH, HeaderValue, TRANSFER_ENCODING};
use hyper::upgrade::OnUpgrade;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use uuid::Uuid;

use super::authority::name_of;
use super::body::{Activity, Body, Observer, PassedBody};
use super::cut::Armed;
use super::pages::Page;
use super::routes::Found;
use super::upstream::{Upstreams, Visited};
use super::{Front, Peer, VisitorConnection, headers};
use crate::admission::{AdmissionRefusal, AdmittedVisitor};
use crate::bounds::Bound;
use crate::lock;
use crate::session::{ActiveRun, SessionRelay};

/// Most bytes of a request's target.
const LONGEST_URI: usize = 16 * 1024;

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
    let peer = visitor.peer;
    let accepted = request.headers().get(ACCEPT).cloned();
    let answer = match admit(front, peer, &mut request).await {
        Ok(admitted) => pass(front, visitor, admitted, request).await,
        Err(page) => Err(page),
    };
    answer.unwrap_or_else(|page| {
        tracing::debug!(address = %peer.address, code = page.code, "a request was answered by the node");
        page.response(accepted.as_ref())
    })
}

async fn admit(front: &Front, peer: Peer, request: &mut Request<Incoming>) -> Result<Admitted, Page> {
    if request.method() == Method::CONNECT {
        return Err(Page::METHOD_NOT_SUPPORTED);
    }
    let name = name_of(request).ok_or(Page::BAD_REQUEST)?;
    let length = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    if length > LONGEST_URI {
        return Err(Page::URI_TOO_LONG);
    }
    let found = front.shared.routes.find(&name).ok_or(Page::NO_SUCH_TUNNEL)?;
    if found.route.suspended_until.is_some_and(|until| front.shared.clock.now() < until) {
        return Err(Page::TUNNEL_SUSPENDED);
    }
    if found.route.https {
        // Its owner asked for HTTPS, so nothing is served in the clear.
        return Err(Page::CERTIFICATE_PENDING);
    }
    let tunnel =
        lock(&front.shared.tunnels).get(&found.route.tunnel_id).map(|tunnel| (tunnel.run(), tunnel.access.clone()));
    let (run, access) = tunnel.ok_or(Page::TUNNEL_OFFLINE)?;
    let ip = peer.address.ip();
    let admission = access.enter_exchange(ip, &run.ended()).map_err(|refusal| refused(front, refusal))?;
    if let Some(expected) = &found.route.basic_auth {
        front.basic_auth.check(found.route.tunnel_id, expected, ip, request.headers_mut()).await?;
    }
    Ok(Admitted { name, found, run: ActiveRun::new(run), admission })
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
    admitted: Admitted,
    mut request: Request<Incoming>,
) -> Result<Response<Body>, Page> {
    let peer = visitor.peer;
    let run = admitted.run.relay().clone();
    let is_upgrade = headers::wants_websocket(request.headers());
    let has_body = |headers: &hyper::HeaderMap| {
        headers.contains_key(TRANSFER_ENCODING)
            || headers.get(CONTENT_LENGTH).is_some_and(|length| length.as_bytes() != b"0")
    };
    if is_upgrade && has_body(request.headers()) {
        return Err(Page::BAD_REQUEST);
    }
    let on_visitor = is_upgrade.then(|| hyper::upgrade::on(&mut request));
    let activity = Activity::new(front.shared.clock.clone());
    let (out, idle) = (admitted.admission.out.clone(), run.silence_limit());
    let (port_id, name) = (admitted.found.port_id, admitted.name);
    let ongoing = Arc::new(OngoingRequest { run: admitted.run, admission: admitted.admission });
    let passed = to_service(peer, &name, &ongoing, request, &activity, is_upgrade);
    let visited = Visited { run: &run, port_id, visitor: peer.address, local: peer.local };
    let sent = tokio::select! {
        biased;
        sent = front.upstreams.send(visited, passed) => sent,
        () = out.cancelled() => Err(if run.ended().is_cancelled() { Page::TUNNEL_OFFLINE } else { Page::VISITOR_NOT_ALLOWED }),
        () = activity.clone().silence(idle) => Err(Page::TARGET_SILENT),
    };
    let (response, sender) = sent?;
    match (response.status(), on_visitor) {
        (StatusCode::SWITCHING_PROTOCOLS, Some(on_visitor)) => {
            Ok(upgrade(front, visitor.clone(), ongoing, response, on_visitor))
        }
        (StatusCode::SWITCHING_PROTOCOLS, None) => Err(Page::ANSWER_INVALID),
        _ => {
            let armed = visitor.slot.arm(out, activity.clone(), idle);
            let answer = Answer { armed, ongoing, upstreams: front.upstreams.clone(), port_id, sender: Some(sender) };
            Ok(to_visitor(response, activity, answer))
        }
    }
}

/// The request as the service gets it.
fn to_service(
    peer: Peer,
    name: &str,
    ongoing: &Arc<OngoingRequest>,
    request: Request<Incoming>,
    activity: &Arc<Activity>,
    is_upgrade: bool,
) -> Request<Body> {
    let run = ongoing.run.relay();
    let target = request.uri().path_and_query().map_or(1, |target| target.as_str().len());
    // Method, target and version, with two spaces and CRLF.
    let line = request.method().as_str().len() + target + "HTTP/1.1".len() + 4;
    count(&run.counters().forth, line + headers::size(request.headers()));
    let (mut head, body) = request.into_parts();
    headers::to_service(&mut head, peer, name, is_upgrade);
    if !body.is_end_stream() && body.size_hint().exact().is_none() {
        // Without it, hyper sends a GET without its body.
        head.headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
    let body = PassedBody::new(body, activity.clone(), Upload(ongoing.clone()));
    Request::from_parts(head, Body::new(body))
}

/// The answer as the visitor gets it.
fn to_visitor(mut response: Response<Incoming>, activity: Arc<Activity>, answer: Answer) -> Response<Body> {
    headers::to_visitor(&mut response);
    count_head(answer.ongoing.run.relay(), &response);
    response.map(|body| Body::new(PassedBody::new(body, activity, answer)))
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
) -> Response<Body> {
    let on_service = hyper::upgrade::on(&mut response);
    headers::to_upgraded_visitor(&mut response);
    let (shared, run) = (front.shared.clone(), ongoing.run.relay().clone());
    count_head(&run, &response);
    tokio::spawn(async move {
        let _counted = visitor;
        let carried = ongoing.admission.out.run_until_cancelled(async {
            let (visitor, service) = tokio::try_join!(on_visitor, on_service).map_err(io::Error::other)?;
            let account = pipe::Account { counters: run.counters(), budget: &shared.bounds.buffers };
            let (mut visitor, mut service) = (TokioIo::new(visitor), TokioIo::new(service));
            pipe::run(&mut visitor, &mut service, run.limits(), account, &shared.clock).await
        });
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
}

/// Counts the bytes of a request's body.
struct Upload(Arc<OngoingRequest>);

impl Observer for Upload {
    fn count(&self, bytes: usize) {
        count(&self.0.run.relay().counters().forth, bytes);
    }
}

/// Counts the bytes of an answer's body. At its end, the connection to the service is free for the next request.
struct Answer {
    armed: Armed,
    ongoing: Arc<OngoingRequest>,
    upstreams: Arc<Upstreams>,
    port_id: Option<Uuid>,
    sender: Option<SendRequest<Body>>,
}

impl Observer for Answer {
    fn count(&self, bytes: usize) {
        count(&self.ongoing.run.relay().counters().back, bytes);
    }

    fn complete(&mut self) {
        self.armed.complete();
        // A service that has answered before the whole request had come gets no other one on this connection.
        if let Some(sender) = self.sender.take()
            && Arc::strong_count(&self.ongoing) == 1
        {
            self.upstreams.give_back(self.ongoing.run.relay(), self.port_id, sender);
        }
    }
}
