//! A host that its database has not heard of for too long answers nothing: another host may speak for the fleet meanwhile.

use std::sync::Arc;

use salvo::{Depot, FlowCtrl, Handler, Request, Response, async_trait};

use super::trace::RequestId;
use crate::{Api, is_page, problem};

pub(crate) struct Window(pub Arc<Api>);

#[async_trait]
impl Handler for Window {
    async fn handle(&self, req: &mut Request, depot: &mut Depot, res: &mut Response, ctrl: &mut FlowCtrl) {
        if is_page(req.uri().path()) {
            return;
        }
        if let Err(error) = self.0.service.fleet().check() {
            problem::render(res, error, &self.0.docs_url, RequestId::of(depot));
            ctrl.skip_rest();
        }
    }
}
