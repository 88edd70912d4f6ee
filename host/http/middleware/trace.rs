//! A name for every request, a span for its log lines, and one line about how it ended.

use std::sync::Arc;

use salvo::http::StatusCode;
use salvo::http::header::HeaderValue;
use salvo::{Depot, FlowCtrl, Handler, Request, Response, async_trait};
use tracing::Instrument;
use uuid::Uuid;

use crate::Api;
use crate::client_address::client_address;
use crate::path::{Path, normalised};
use crate::problem::Rendered;
use culvert_domain::caller::Caller;
use culvert_domain::policy_fact::{PolicyFact, PolicyFacts};
use culvert_domain::refusal::RefusedRequest;
use culvert_service::gate::{PinnedPolicies, RequestContext};
use culvert_service::metrics::counted;

/// The id of a request, as its answer carries it.
#[derive(Clone)]
pub(crate) struct RequestId(pub String);

impl RequestId {
    pub(crate) fn of(depot: &Depot) -> &str {
        depot.get_typed::<RequestId>().map(|id| id.0.as_str()).unwrap_or_default()
    }
}

/// The route of a request, as the API's description writes it: with path parameters in braces.
#[derive(Clone, Copy)]
pub(crate) struct Route(pub &'static str);

/// As much of a path as is logged: it comes from somebody whom nobody has looked at yet.
const PATH_LOGGED: usize = 200;

/// A path is ASCII (RFC 3986, section 3.3), so it can be cut anywhere.
fn beginning(path: &str) -> &str {
    path.get(..PATH_LOGGED).unwrap_or(path)
}

/// What policies want to know of the request itself.
fn context(api: &Api, req: &Request, id: Uuid, wanted: PolicyFacts) -> RequestContext {
    // Changes are noted in the audit log with their address, and may be decided on again by policies that want more.
    let changes = !req.method().is_safe();
    let (wants_client, wants_method) =
        (changes || wanted.contains(PolicyFact::ClientIp), changes || wanted.contains(PolicyFact::RequestMethod));
    RequestContext {
        request_id: Some(id),
        now: api.clock.now(),
        method: wants_method.then(|| req.method().to_string()),
        client: wants_client.then(|| client_address(req, &api.trusted_proxies)).flatten(),
    }
}

pub(crate) struct Trace(pub Arc<Api>);

/// Notes what was refused to a caller.
pub(crate) fn note_refusal(api: &Api, req: &Request, depot: &Depot, res: &Response) {
    let Some(Rendered(error)) = res.extensions.get::<Rendered>() else { return };
    let (Ok(caller), Ok(policies)) = (depot.get_typed::<Caller>(), depot.get_typed::<PinnedPolicies>()) else { return };
    let (Some(request_id), Some(status)) = (policies.request_id(), res.status_code) else { return };
    let (method, path, status) = (req.method().as_str(), Path::of(depot), status.as_u16());
    let is_routed = depot.get_typed::<Route>().is_ok() || status != StatusCode::NOT_FOUND.as_u16();
    let Caller { scope, account_id, credential, .. } = caller;
    let (scope_id, account_id) = (scope.id, *account_id);
    let refused = RefusedRequest { request_id, scope_id, account_id, credential, method, path, status, is_routed };
    api.refusals.note(&api.service, &refused, error);
}

#[async_trait]
impl Handler for Trace {
    async fn handle(&self, req: &mut Request, depot: &mut Depot, res: &mut Response, ctrl: &mut FlowCtrl) {
        let clock = &self.0.clock;
        let id = clock.id();
        let policies = self.0.service.pin_policies(|wanted| context(&self.0, req, id, wanted));
        let id = id.to_string();
        depot.insert_typed(policies.clone());
        let (method, started) = (req.method().clone(), clock.moment());
        let span = tracing::info_span!("request", %id, %method, path = beginning(req.uri().path()));
        depot.insert_typed(Path(normalised(req.uri().path())));
        depot.insert_typed(RequestId(id.clone()));
        let (_, statements) = counted(ctrl.call_next(req, depot, res).instrument(span.clone())).await;
        if let Ok(id) = HeaderValue::from_str(&id) {
            res.headers_mut().insert("x-request-id", id);
        }
        // Whatever the request asked was answered by this one.
        res.headers_mut().insert("x-policy-generation", HeaderValue::from(policies.generation()));
        let status = res.status_code.unwrap_or(StatusCode::NOT_FOUND).as_u16();
        let took = clock.moment().since(started);
        note_refusal(&self.0, req, depot, res);
        let route = depot.get_typed::<Route>().map_or("none", |route| route.0);
        self.0.metrics.http.count(method.as_str(), route, status, took, &statements);
        tracing::info!(parent: &span, status, micros = took.as_micros() as u64, "answered");
    }
}
