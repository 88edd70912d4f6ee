//! The HTTP service: what every request passes, in order, and where it goes.

pub mod access;
pub mod account;
pub mod body;
pub mod call;
pub mod catalog;
pub mod devices;
pub mod docs;
pub mod domains;
pub mod endpoint;
pub mod listener;
pub mod middleware;
pub mod openapi;
pub mod operations;
pub mod page;
pub mod path;
pub mod ports;
pub mod problem;
pub mod reply;
pub mod routes;
pub mod tunnels;
pub mod webhooks;

use std::sync::Arc;

use salvo::catcher::Catcher;
use salvo::http::StatusCode;
use salvo::prelude::CatchPanic;
use salvo::{Depot, FlowCtrl, Handler, Request, Response, Router, Service, async_trait};

use crate::app::App;
use crate::gateway;
use middleware::auth::Auth;
use middleware::drain::DrainRequestBody;
use middleware::headers::Headers;
use middleware::rate_limit::RateLimit;
use middleware::trace::{RequestId, Trace};

/// Everything that is served on `listen`.
pub fn service(app: &Arc<App>) -> Service {
    let router = Router::new().push(routes::router(app)).push(docs::router(app)).push(gateway::router(app));
    Service::new(router)
        .hoop(Trace(app.clone()))
        .hoop(Headers(app.clone()))
        .hoop(DrainRequestBody(app.clone()))
        .hoop(CatchPanic::new())
        .hoop(Auth(app.clone()))
        .hoop(RateLimit(app.clone()))
        .catcher(Catcher::default().hoop(Problems(app.clone())))
}

/// Whether a page for people is here, or the description of the API.
pub fn is_page(path: &str) -> bool {
    path == "/" || path == openapi::PATH || path == "/docs" || path.starts_with("/docs/")
}

/// Whom a path is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthRequirement {
    /// Documentation, and the agents, which prove who they are in their own way.
    Anybody,
    /// Version 1 of the API.
    FormerClients,
    /// Whoever has an API key; what does not exist is for them as well.
    Clients,
}

/// Of a normalised path.
pub fn auth_requirement(path: &str) -> AuthRequirement {
    let below = |root: &str| path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    if is_page(path) || below("/agent") {
        AuthRequirement::Anybody
    } else if below("/v1") {
        AuthRequirement::FormerClients
    } else {
        AuthRequirement::Clients
    }
}

/// What the framework answers by itself, as problems: unknown routes, wrong methods, panics.
struct Problems(Arc<App>);

#[async_trait]
impl Handler for Problems {
    async fn handle(&self, _: &mut Request, depot: &mut Depot, res: &mut Response, ctrl: &mut FlowCtrl) {
        let status = res.status_code.unwrap_or(StatusCode::NOT_FOUND);
        problem::render(res, &problem::of_status(status), &self.0.docs_url, RequestId::of(depot));
        ctrl.skip_rest();
    }
}
