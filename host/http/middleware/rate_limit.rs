//! How often a key may be used; see `docs/develop/decisions/0010-keys-and-rate-limits.md`.

use std::sync::Arc;

use salvo::http::header::HeaderValue;
use salvo::{Depot, FlowCtrl, Handler, Request, Response, async_trait};

use super::trace::RequestId;
use crate::Api;
use crate::problem;
use culvert_domain::caller::Caller;
use culvert_service::rate_limits::RateLimitStatus;

pub(crate) struct RateLimit(pub Arc<Api>);

#[async_trait]
impl Handler for RateLimit {
    async fn handle(&self, _: &mut Request, depot: &mut Depot, res: &mut Response, ctrl: &mut FlowCtrl) {
        let api = &self.0;
        let Some(key_id) = depot.get_typed::<Caller>().map(|caller| caller.credential.id()).ok() else { return };
        match api.rate_limits.count(&api.service, key_id).await {
            Ok(status) => {
                insert_headers(res, status);
                let Some((window, refused)) = status.refusal() else { return };
                api.metrics.count_refusal(window);
                problem::render(res, refused, &api.docs_url, RequestId::of(depot));
            }
            Err(error) => problem::render(res, error, &api.docs_url, RequestId::of(depot)),
        }
        ctrl.skip_rest();
    }
}

fn insert_headers(res: &mut Response, status: RateLimitStatus) {
    let headers = res.headers_mut();
    headers.insert("x-ratelimit-limit", HeaderValue::from(status.limit));
    headers.insert("x-ratelimit-remaining", HeaderValue::from(status.remaining));
}
