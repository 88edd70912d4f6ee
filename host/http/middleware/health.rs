//! What a load balancer asks on `listen`: `/healthz` and `/readyz`. Everybody may ask; an answer costs no statement and no line
//! of the log.

use std::sync::Arc;

use salvo::http::{Method, StatusCode};
use salvo::writing::Text;
use salvo::{Depot, FlowCtrl, Handler, Request, Response, async_trait};

use crate::Api;

pub(crate) struct Health(pub Arc<Api>);

#[async_trait]
impl Handler for Health {
    async fn handle(&self, req: &mut Request, _: &mut Depot, res: &mut Response, ctrl: &mut FlowCtrl) {
        if !matches!(*req.method(), Method::GET | Method::HEAD) {
            return;
        }
        let (status, text) = match req.uri().path() {
            "/healthz" => (StatusCode::OK, "ok\n"),
            "/readyz" if self.0.service.check_ready().is_ok() => (StatusCode::OK, "ready\n"),
            "/readyz" => (StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
            _ => return,
        };
        res.status_code(status);
        res.render(Text::Plain(text));
        ctrl.skip_rest();
    }
}
