//! A body that nobody wanted: read to its end, so that the connection can be used again.
//!
//! A request may be refused before its body was read, or without it being asked for. A server that
//! then hangs up takes the connection from under the client's next request.

use std::sync::Arc;
use std::time::Duration;

use salvo::http::StatusCode;
use salvo::http::header::{CONNECTION, HeaderValue};
use salvo::{Depot, FlowCtrl, Handler, Request, Response, async_trait};

use crate::Api;
use crate::endpoint::BODY_LIMIT;

/// How long the rest of a body is waited for.
const WITHIN: Duration = Duration::from_secs(2);

pub(crate) struct DrainRequestBody(pub Arc<Api>);

#[async_trait]
impl Handler for DrainRequestBody {
    async fn handle(&self, req: &mut Request, depot: &mut Depot, res: &mut Response, ctrl: &mut FlowCtrl) {
        ctrl.call_next(req, depot, res).await;
        let status = res.status_code;
        if status == Some(StatusCode::SWITCHING_PROTOCOLS) {
            return;
        }
        let read = self.0.clock.timeout(WITHIN, req.payload_with_max_size(BODY_LIMIT)).await;
        let whole = matches!(read, Ok(Ok(_))) && status != Some(StatusCode::PAYLOAD_TOO_LARGE);
        if !whole {
            // The client is told that the connection ends.
            res.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
    }
}
