//! What every request needs, and what every answer carries so that browsers and caches do nothing with
//! it that was not meant.

use std::sync::Arc;

use salvo::http::header::{CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, HOST, HeaderName, HeaderValue};
use salvo::http::{Method, ResBody, StatusCode, Version};
use salvo::{Depot, FlowCtrl, Handler, Request, Response, async_trait};

use super::trace::RequestId;
use crate::Api;
use crate::problem;
use culvert_domain::error::{Code, Error};

const NO_SNIFF: HeaderName = HeaderName::from_static("x-content-type-options");
const REFERRER: HeaderName = HeaderName::from_static("referrer-policy");
pub(crate) struct Headers(pub Arc<Api>);

#[async_trait]
impl Handler for Headers {
    async fn handle(&self, req: &mut Request, depot: &mut Depot, res: &mut Response, ctrl: &mut FlowCtrl) {
        let docs_url = &self.0.docs_url;
        if has_its_host(req) {
            ctrl.call_next(req, depot, res).await;
        } else {
            problem::render(res, Error::of(Code::HostRequired), docs_url, RequestId::of(depot));
            ctrl.skip_rest();
        }
        if req.method() == Method::HEAD {
            finish_head(res, depot, docs_url);
        }
        let is_http1 = req.version() <= Version::HTTP_11 && res.status_code != Some(StatusCode::SWITCHING_PROTOCOLS);
        let headers = res.headers_mut();
        if is_http1 && self.0.service.fleet().drains() {
            // The next request goes to another host.
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        headers.insert(NO_SNIFF, HeaderValue::from_static("nosniff"));
        // Pages have their own.
        headers.entry(REFERRER).or_insert(HeaderValue::from_static("no-referrer"));
        headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    }
}

/// Exactly one, in HTTP/1.1 (RFC 9112, section 3.2).
fn has_its_host(req: &Request) -> bool {
    let hosts = req.headers().get_all(HOST).iter().count();
    hosts == 1 || (hosts == 0 && req.version() != Version::HTTP_11)
}

/// The headers of what GET is answered with; the framework takes the body off (RFC 9110, section 9.3.2).
fn finish_head(res: &mut Response, depot: &Depot, docs_url: &str) {
    let status = res.status_code.unwrap_or_default();
    if res.body.is_none() && (status.is_client_error() || status.is_server_error()) {
        problem::render(res, problem::of_status(status), docs_url, RequestId::of(depot));
    }
    if let ResBody::Once(body) = &res.body {
        let length = HeaderValue::from(body.len());
        res.headers_mut().insert(CONTENT_LENGTH, length);
    }
}
