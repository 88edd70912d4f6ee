//! The HTTP service: what every request passes, in order, and where it goes.

#![deny(unsafe_code)]
#![warn(unreachable_pub)]

mod access;
mod account;
mod call;
mod catalog;
mod client_address;
mod devices;
mod domains;
mod endpoint;
mod enrolment;
pub mod listener;
mod middleware;
pub mod openapi;
mod operations;
mod page;
mod path;
mod ports;
pub mod problem;
mod reply;
pub mod routes;
pub mod row;
mod tunnels;
mod webhooks;

use std::sync::Arc;

use culvert_wire::clock::Clock;
use culvert_wire::enrolment::ENROL_PATH;
use ipnet::IpNet;
use salvo::catcher::Catcher;
use salvo::http::StatusCode;
use salvo::prelude::CatchPanic;
use salvo::{Depot, FlowCtrl, Handler, Request, Response, Router, async_trait};

use culvert_service::Service;
use culvert_service::authentication::Authentication;
use culvert_service::metrics::Metrics;
use culvert_service::rate_limits::RateLimits;
use culvert_service::refusals::Refusals;
use enrolment::Enrolment;
use middleware::auth::Auth;
use middleware::drain::DrainRequestBody;
use middleware::headers::Headers;
use middleware::health::Health;
use middleware::rate_limit::RateLimit;
use middleware::trace::{RequestId, Trace, note_refusal};
use middleware::window::Window;

/// What requests are served with.
pub struct Api {
    pub service: Arc<Service>,
    pub authentication: Authentication,
    pub rate_limits: Arc<RateLimits>,
    pub metrics: Arc<Metrics>,
    pub refusals: Arc<Refusals>,
    pub clock: Clock,
    pub public_url: String,
    pub docs_url: String,
    /// Networks whose `X-Forwarded-For` is believed.
    pub trusted_proxies: Vec<IpNet>,
}

/// Everything that is served on `listen`: the API, enrolment, health checks, and what else `more` routes to.
pub fn service(api: &Arc<Api>, more: Vec<Router>) -> salvo::Service {
    let enrol = Router::with_path(ENROL_PATH.trim_start_matches('/')).post(Enrolment(api.clone()));
    let router = Router::new().push(routes::router(api)).push(enrol).append(&mut { more });
    salvo::Service::new(router)
        .hoop(Health(api.clone()))
        .hoop(Trace(api.clone()))
        .hoop(Headers(api.clone()))
        .hoop(DrainRequestBody(api.clone()))
        .hoop(CatchPanic::new())
        .hoop(Window(api.clone()))
        .hoop(Auth(api.clone()))
        .hoop(RateLimit(api.clone()))
        .catcher(Catcher::default().hoop(Problems(api.clone())))
}

/// Whether a page for people is here, or the description of the API.
fn is_page(path: &str) -> bool {
    path == "/" || path == openapi::PATH || path == "/docs" || path.starts_with("/docs/")
}

/// Whom a path is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthRequirement {
    /// Documentation, and the icon that browsers ask for; the agents and the dashboard, which find out in their own way who
    /// asks.
    Anybody,
    /// Version 1 of the API.
    FormerClients,
    /// Whoever has an API key; what does not exist is for them as well.
    Clients,
}

/// Of a normalised path.
pub fn auth_requirement(path: &str) -> AuthRequirement {
    let below = |root: &str| path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    if is_page(path) || path == "/favicon.ico" || below("/agent") || below("/dashboard") || below("/assets") {
        AuthRequirement::Anybody
    } else if below("/v1") {
        AuthRequirement::FormerClients
    } else {
        AuthRequirement::Clients
    }
}

/// What the framework answers by itself, as problems: unknown routes, wrong methods, panics.
struct Problems(Arc<Api>);

#[async_trait]
impl Handler for Problems {
    async fn handle(&self, req: &mut Request, depot: &mut Depot, res: &mut Response, ctrl: &mut FlowCtrl) {
        let status = res.status_code.unwrap_or(StatusCode::NOT_FOUND);
        problem::render(res, problem::of_status(status), &self.0.docs_url, RequestId::of(depot));
        note_refusal(&self.0, req, depot, res);
        ctrl.skip_rest();
    }
}
