//! The version of HTTP that a request is passed on by.

use culvert_wire::node::Route;
use hyper::Request;

use super::headers;

/// The version of HTTP that is spoken to a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UpstreamVersion {
    Http1,
    /// HTTP/2 by prior knowledge (RFC 9113, section 3.3), and HTTP/1.1 where the service does not speak it.
    Http2,
    /// What a service over TLS chooses (RFC 7301).
    Chosen,
}

impl UpstreamVersion {
    /// A WebSocket begins with HTTP/1.1, whatever else the service speaks.
    pub(super) fn of<B>(request: &Request<B>, route: &Route, tls: bool) -> Self {
        let is_grpc = headers::is_grpc(request.headers());
        if headers::is_websocket(request) {
            Self::Http1
        } else if tls {
            Self::Chosen
        } else if is_grpc || route.h2c {
            Self::Http2
        } else {
            Self::Http1
        }
    }
}
