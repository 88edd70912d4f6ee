//! The node's own answers. None of them names a tunnel, its owner, its device or its local target, but by the name that the
//! visitor has asked for.

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, LOCATION, RETRY_AFTER, WWW_AUTHENTICATE};
use hyper::{Response, StatusCode};
use serde_json::json;

use super::body::Body;
use super::headers::CULVERT_ERROR;

/// One of the node's own answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Page {
    status: StatusCode,
    pub code: &'static str,
    text: &'static str,
    /// In seconds.
    retry_after: Option<u32>,
}

const fn page(status: StatusCode, code: &'static str, text: &'static str) -> Page {
    Page { status, code, text, retry_after: None }
}

/// What the node answers by itself.
#[derive(Debug)]
pub(super) enum OwnAnswer {
    Page(Page),
    /// To the same address by HTTPS.
    Redirect(String),
    /// What proves a name to an authority.
    Challenge(String),
    /// A user and a password are asked for, for this name.
    AuthorizationRequired(String),
}

impl From<Page> for OwnAnswer {
    fn from(page: Page) -> Self {
        Self::Page(page)
    }
}

impl OwnAnswer {
    /// For metrics.
    pub(super) fn code(&self) -> &'static str {
        match self {
            Self::Page(page) => page.code,
            Self::Redirect(_) => "to_https",
            Self::Challenge(_) => "acme_challenge",
            Self::AuthorizationRequired(_) => Page::AUTHORIZATION_REQUIRED.code,
        }
    }

    /// The answer to a request that accepts these types.
    pub(super) fn response(self, accepted: Option<&HeaderValue>) -> Response<Body> {
        let location = match self {
            Self::Page(page) => return page.response(accepted),
            Self::Redirect(location) => HeaderValue::try_from(location),
            Self::Challenge(answer) => {
                let mut response = Response::new(full(answer));
                let kind = HeaderValue::from_static("application/octet-stream");
                response.headers_mut().insert(CONTENT_TYPE, kind);
                return response;
            }
            Self::AuthorizationRequired(name) => {
                let mut response = Page::AUTHORIZATION_REQUIRED.response(accepted);
                // RFC 7617, section 2. The name of a tunnel has no character that a header does not take.
                let challenge = HeaderValue::try_from(format!("Basic realm=\"{name}\", charset=\"UTF-8\""));
                response.headers_mut().extend(challenge.ok().map(|challenge| (WWW_AUTHENTICATE, challenge)));
                return response;
            }
        };
        match location {
            Ok(location) => {
                let mut response = Response::new(Body::default());
                *response.status_mut() = StatusCode::PERMANENT_REDIRECT;
                response.headers_mut().insert(LOCATION, location);
                response
            }
            Err(_) => Page::BAD_REQUEST.response(accepted),
        }
    }
}

impl Page {
    pub(super) const BAD_REQUEST: Self =
        page(StatusCode::BAD_REQUEST, "bad_request", "The request could not be understood.");
    pub(super) const AUTHORIZATION_REQUIRED: Self =
        page(StatusCode::UNAUTHORIZED, "authorization_required", "Sign in to see this page.");
    pub(super) const VISITOR_NOT_ALLOWED: Self =
        page(StatusCode::FORBIDDEN, "visitor_not_allowed", "This page is not open to your address.");
    pub(super) const NO_SUCH_TUNNEL: Self =
        page(StatusCode::NOT_FOUND, "no_such_tunnel", "There is nothing at this address.");
    pub(super) const MISDIRECTED_REQUEST: Self =
        page(StatusCode::MISDIRECTED_REQUEST, "misdirected_request", "Open this address in a new connection.");
    pub(super) const REQUEST_TIMEOUT: Self =
        page(StatusCode::REQUEST_TIMEOUT, "request_timeout", "The rest of the request did not come in time.");
    pub(super) const URI_TOO_LONG: Self = page(StatusCode::URI_TOO_LONG, "uri_too_long", "The address is too long.");
    pub(super) const HEADER_TOO_LARGE: Self =
        page(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "header_too_large", "The header is too long.");
    pub(super) const TOO_MANY_ATTEMPTS: Self = Self {
        retry_after: Some(60),
        ..page(StatusCode::TOO_MANY_REQUESTS, "too_many_attempts", "Too many attempts; wait a minute.")
    };
    pub(super) const METHOD_NOT_SUPPORTED: Self =
        page(StatusCode::NOT_IMPLEMENTED, "method_not_supported", "This method is not supported.");
    pub(super) const TARGET_REFUSED: Self =
        page(StatusCode::BAD_GATEWAY, "local_target_refused", "The service behind this address is not running.");
    pub(super) const TLS_FAILED: Self =
        page(StatusCode::BAD_GATEWAY, "local_tls_failed", "The service's certificate could not be verified.");
    pub(super) const ANSWER_INVALID: Self = page(
        StatusCode::BAD_GATEWAY,
        "local_answer_invalid",
        "The service answered in a way that cannot be passed on.",
    );
    pub(super) const CONNECTION_LOST: Self =
        page(StatusCode::BAD_GATEWAY, "device_connection_lost", "The connection to the service was lost.");
    pub(super) const TUNNEL_OFFLINE: Self = Self {
        retry_after: Some(10),
        ..page(StatusCode::SERVICE_UNAVAILABLE, "tunnel_offline", "The service behind this address is offline.")
    };
    pub(super) const CERTIFICATE_PENDING: Self = Self {
        retry_after: Some(60),
        ..page(
            StatusCode::SERVICE_UNAVAILABLE,
            "certificate_pending",
            "The certificate for this address is not ready yet.",
        )
    };
    pub(super) const TUNNEL_SUSPENDED: Self =
        page(StatusCode::SERVICE_UNAVAILABLE, "tunnel_suspended", "This address is suspended.");
    pub(super) const TUNNEL_BUSY: Self = Self {
        retry_after: Some(1),
        ..page(StatusCode::SERVICE_UNAVAILABLE, "tunnel_busy", "Too many visitors at the moment.")
    };
    pub(super) const NODE_BUSY: Self = Self { code: "node_busy", ..Self::TUNNEL_BUSY };
    pub(super) const DEVICE_TIMEOUT: Self =
        page(StatusCode::GATEWAY_TIMEOUT, "device_timeout", "The device did not answer in time.");
    pub(super) const TARGET_SILENT: Self =
        page(StatusCode::GATEWAY_TIMEOUT, "local_target_silent", "The service did not answer in time.");

    /// The answer to a request that accepts these types.
    fn response(self, accepted: Option<&HeaderValue>) -> Response<Body> {
        let (content_type, text) = self.body(accepted);
        let mut response = Response::new(full(text));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CULVERT_ERROR, HeaderValue::from_static(self.code));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        response
    }

    fn body(self, accepted: Option<&HeaderValue>) -> (&'static str, String) {
        let (status, text) = (self.status.as_u16(), self.text);
        let title = self.status.canonical_reason().unwrap_or_default();
        let accepted = accepted.and_then(|accepted| accepted.to_str().ok()).unwrap_or_default();
        let accepts = |kind: &str| accepted.contains(kind);
        if accepts("application/json") || accepts("application/problem+json") {
            let body = json!({"status": status, "code": self.code, "title": title, "detail": text});
            ("application/json", body.to_string())
        } else if accepts("text/html") {
            let body = format!(
                "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
                 content=\"width=device-width\">\n<title>{status} {title}</title>\n<h1>{text}</h1>\n<p>{status} {title} \
                 ({code})</p>\n</html>\n",
                code = self.code
            );
            ("text/html; charset=utf-8", body)
        } else {
            ("text/plain; charset=utf-8", format!("{text}\n"))
        }
    }
}

fn full(text: String) -> Body {
    Body::new(Full::new(Bytes::from(text)).map_err(|never| match never {}))
}
