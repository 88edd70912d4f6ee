//! The operator's own listener: whether the host is alive, and whether it can answer.

use std::sync::Arc;

use salvo::http::StatusCode;
use salvo::writing::Text;
use salvo::{Depot, FlowCtrl, Handler, Request, Response, Router, Service, async_trait};

use crate::app::App;

pub fn service(app: &Arc<App>) -> Service {
    let router = Router::new()
        .push(Router::with_path("healthz").get(Alive))
        .push(Router::with_path("readyz").get(Ready(app.clone())));
    Service::new(router)
}

struct Alive;

#[async_trait]
impl Handler for Alive {
    async fn handle(&self, _: &mut Request, _: &mut Depot, res: &mut Response, _: &mut FlowCtrl) {
        res.render(Text::Plain("ok\n"));
    }
}

/// Ready is a host that reaches its database.
struct Ready(Arc<App>);

#[async_trait]
impl Handler for Ready {
    async fn handle(&self, _: &mut Request, _: &mut Depot, res: &mut Response, _: &mut FlowCtrl) {
        match self.0.store.nodes().await {
            Ok(_) => res.render(Text::Plain("ready\n")),
            Err(error) => {
                res.status_code(StatusCode::SERVICE_UNAVAILABLE);
                res.render(Text::Plain(format!("not ready: {error}\n")));
            }
        }
    }
}
