//! The operator's own listener: whether the host is alive, whether it can answer, and what it stands on.

use std::sync::Arc;

use salvo::http::StatusCode;
use salvo::writing::{Json, Text};
use salvo::{Depot, FlowCtrl, Handler, Request, Response, Router, Service, async_trait};
use serde_json::json;

use crate::app::App;

pub fn service(app: &Arc<App>) -> Service {
    let router = Router::new()
        .push(Router::with_path("healthz").get(Alive))
        .push(Router::with_path("readyz").get(Ready(app.clone())))
        .push(Router::with_path("status").get(Status(app.clone())));
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

/// What the host stands on: `{version, host_id, node_ids, geoip: {database, built_at, age_seconds}|null}`.
struct Status(Arc<App>);

#[async_trait]
impl Handler for Status {
    async fn handle(&self, _: &mut Request, _: &mut Depot, res: &mut Response, _: &mut FlowCtrl) {
        let app = &self.0;
        let geoip = app.nodes.countries.built_at().map(|built_at| {
            let age = (app.clock.now() - built_at).num_seconds().max(0);
            json!({"database": app.config.geoip.database, "built_at": built_at, "age_seconds": age})
        });
        res.render(Json(json!({
            "version": env!("CARGO_PKG_VERSION"),
            "host_id": app.host_id,
            "node_ids": app.nodes.ids().collect::<Vec<_>>(),
            "geoip": geoip,
        })));
    }
}
