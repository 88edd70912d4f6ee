//! How often a key may be used; see `docs/develop/decisions/0010-keys-and-rate-limits.md`.

use std::pin::pin;
use std::sync::Arc;

use futures_util::{FutureExt, future};
use salvo::http::header::HeaderValue;
use salvo::{Depot, FlowCtrl, Handler, Request, Response, async_trait};

use super::trace::RequestId;
use crate::Api;
use crate::problem;
use culvert_domain::caller::Caller;
use culvert_domain::error::Result;
use culvert_service::rate_limits::RateLimitStatus;

pub(crate) struct RateLimit(pub Arc<Api>);

#[async_trait]
impl Handler for RateLimit {
    async fn handle(&self, req: &mut Request, depot: &mut Depot, res: &mut Response, ctrl: &mut FlowCtrl) {
        let api = &self.0;
        let Some(key_id) = depot.get_typed::<Caller>().map(|caller| caller.credential.id()).ok() else { return };
        let mut counting = pin!(api.rate_limits.count(&api.service, key_id));
        let counted = match counting.as_mut().now_or_never() {
            Some(counted) => counted,
            // Where the database has to be asked, what only reads does so meanwhile. Nothing of it is kept if the request is one
            // too many.
            None if req.method().is_safe() => {
                let before = res.headers().clone();
                let (counted, _) = future::join(counting, ctrl.call_next(req, depot, res)).await;
                if !counted.as_ref().is_ok_and(|status| status.refusal().is_none()) {
                    (*res.headers_mut(), res.status_code) = (before, None);
                }
                counted
            }
            None => counting.await,
        };
        if !admit(api, counted, depot, res) {
            ctrl.skip_rest();
        }
    }
}

/// Whether a request that was counted may go on. If not, it is answered.
fn admit(api: &Api, counted: Result<RateLimitStatus>, depot: &Depot, res: &mut Response) -> bool {
    let refused = match counted {
        Ok(status) => {
            insert_headers(res, status);
            let Some((window, refused)) = status.refusal() else { return true };
            api.metrics.count_refusal(window);
            refused
        }
        Err(error) => error,
    };
    problem::render(res, refused, &api.docs_url, RequestId::of(depot));
    false
}

fn insert_headers(res: &mut Response, status: RateLimitStatus) {
    let headers = res.headers_mut();
    headers.insert("x-ratelimit-limit", HeaderValue::from(status.limit));
    headers.insert("x-ratelimit-remaining", HeaderValue::from(status.remaining));
}
