//! What is changed of the headers that a request or an answer is passed on with.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use culvert_wire::clock::Clock;
use hyper::ext::Protocol;
use hyper::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, TE, TRAILER, TRANSFER_ENCODING,
    UPGRADE,
};
use hyper::http::request;
use hyper::http::uri::PathAndQuery;
use hyper::{Method, Request, Response, StatusCode, Uri, Version};

use super::forwarded::Forwarded;
use super::http_version::HttpVersion;
use super::scheme::Scheme;

/// On every answer that the node makes itself, and on no other.
pub(super) const CULVERT_ERROR: HeaderName = HeaderName::from_static("culvert-error");

/// Headers of one connection (RFC 9110, section 7.6.1), beside those that `Connection` names.
const HOP_BY_HOP: [HeaderName; 8] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Whether a header is one that a proxy in front would set. Visitors must not. Some services read `_` as `-`.
fn is_of_proxies(name: &HeaderName) -> bool {
    let begins = |with: &str| {
        let mut name = name.as_str().bytes().map(|byte| if byte == b'_' { b'-' } else { byte });
        with.bytes().all(|byte| name.next() == Some(byte))
    };
    let is = |whole: &str| name.as_str().len() == whole.len() && begins(whole);
    begins("x-forwarded-") || is("forwarded") || is("x-real-ip")
}

/// Whether a request wants to speak WebSocket: on its connection (RFC 6455, section 4.1), or on its stream.
pub(super) fn is_websocket<B>(request: &Request<B>) -> bool {
    let headers = request.headers();
    is_websocket_of_h2(request) || names(headers, &CONNECTION, "upgrade") && names(headers, &UPGRADE, "websocket")
}

/// Whether a request is an extended CONNECT for WebSocket (RFC 8441, section 5).
pub(super) fn is_websocket_of_h2<B>(request: &Request<B>) -> bool {
    let protocol = request.extensions().get::<Protocol>();
    request.method() == Method::CONNECT && protocol.is_some_and(|protocol| protocol.as_str() == "websocket")
}

/// Whether a request of HTTP/1.1 announces a body.
pub(super) fn has_body<B>(request: &Request<B>) -> bool {
    let headers = request.headers();
    headers.contains_key(TRANSFER_ENCODING)
        || headers.get(CONTENT_LENGTH).is_some_and(|length| length.as_bytes() != b"0")
}

/// Whether a request is one of gRPC, which needs HTTP/2 up to the service.
pub(super) fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// Gives a request of HTTP/2 the form that it has in HTTP/1.1.
pub(super) fn as_http1<B>(request: &mut Request<B>, clock: &Clock) {
    if let Some(authority) = authority_of(request.uri()).filter(|_| !request.headers().contains_key(HOST)) {
        request.headers_mut().insert(HOST, authority);
    }
    join_cookies(request.headers_mut());
    if is_websocket_of_h2(request) {
        *request.method_mut() = Method::GET;
        let headers = request.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        if let Ok(key) = HeaderValue::try_from(STANDARD.encode(clock.random::<16>())) {
            headers.insert(SEC_WEBSOCKET_KEY, key);
        }
    }
}

/// Whether a header's list has this word, in either case.
fn names(headers: &HeaderMap, header: &HeaderName, word: &str) -> bool {
    let values = headers.get_all(header).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|item| item.trim().eq_ignore_ascii_case(word))
}

/// Gives a request for a service the form of HTTP/2, with the scheme that it is spoken to by (RFC 9113, section 8.3.1).
pub(super) fn as_http2<B>(mut request: Request<B>, scheme: Scheme) -> Request<B> {
    let host = request.headers_mut().remove(HOST);
    let headers = request.headers_mut();
    headers.remove(TRANSFER_ENCODING);
    headers.remove(CONNECTION);
    let target = request.uri().path_and_query().map_or("/", PathAndQuery::as_str);
    let authority = host.as_ref().and_then(|host| host.to_str().ok()).unwrap_or_default();
    if let Ok(uri) = Uri::try_from(format!("{}://{authority}{target}", scheme.as_str())) {
        *request.uri_mut() = uri;
    }
    *request.version_mut() = Version::HTTP_2;
    request
}

/// Prepares a request for the local service.
pub(super) fn to_service(head: &mut request::Parts, forwarded: &Forwarded, host_header: Option<&str>) {
    let is_upgrade = names(&head.headers, &CONNECTION, "upgrade") && names(&head.headers, &UPGRADE, "websocket");
    let trailers = names(&head.headers, &TE, "trailers");
    of_visitor(&mut head.headers);
    // The node answers with 100 (Continue) by itself, as soon as the body is wanted.
    head.headers.remove(EXPECT);
    if trailers {
        head.headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    if is_upgrade {
        head.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        head.headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    }
    forwarded.insert(&mut head.headers);
    if let Some(host) = host_header.and_then(|host| HeaderValue::from_str(host).ok()) {
        head.headers.insert(HOST, host);
    }
    head.version = Version::HTTP_11;
    head.uri = origin_form(&head.uri);
}

/// The authority of a request of HTTP/2.
fn authority_of(uri: &Uri) -> Option<HeaderValue> {
    HeaderValue::from_str(uri.authority()?.as_str()).ok()
}

/// HTTP/2 may bring cookies in several fields, HTTP/1.1 has one (RFC 9113, section 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let cookies: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if cookies.len() < 2 {
        return;
    }
    if let Ok(joined) = HeaderValue::from_bytes(&cookies.join(&b"; "[..])) {
        headers.insert(COOKIE, joined);
    }
}

/// The target of a request as it is sent to a server (RFC 9112, section 3.2.1).
fn origin_form(uri: &Uri) -> Uri {
    uri.path_and_query().cloned().unwrap_or(PathAndQuery::from_static("/")).into()
}

/// Prepares an answer of the local service for the visitor.
pub(super) fn to_visitor<B>(response: &mut Response<B>) {
    of_service(response.headers_mut());
}

/// Leaves what a visitor may say to a service, in headers or trailers.
pub(super) fn of_visitor(fields: &mut HeaderMap) {
    remove_hop_by_hop(fields);
    let of_proxies: Vec<HeaderName> = fields.keys().filter(|name| is_of_proxies(name)).cloned().collect();
    of_proxies.iter().for_each(|name| drop(fields.remove(name)));
}

/// Leaves what a service may say to a visitor, in headers or trailers.
pub(super) fn of_service(fields: &mut HeaderMap) {
    remove_hop_by_hop(fields);
    fields.remove(CULVERT_ERROR);
}

/// Prepares the answer to a WebSocket's request.
pub(super) fn to_upgraded_visitor<B>(response: &mut Response<B>, version: &HttpVersion) {
    to_visitor(response);
    if let HttpVersion::Http2(_) = version {
        // RFC 8441, section 5.
        *response.status_mut() = StatusCode::OK;
        response.headers_mut().remove(SEC_WEBSOCKET_ACCEPT);
        return;
    }
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
    response.headers_mut().insert(UPGRADE, HeaderValue::from_static("websocket"));
}

fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let listed = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let listed = listed.flat_map(|value| value.split(',')).filter_map(|name| name.trim().parse::<HeaderName>().ok());
    // A list must not remove what the message itself depends on.
    let listed: Vec<HeaderName> = listed.filter(|name| *name != HOST && *name != TRAILER).collect();
    listed.iter().chain(&HOP_BY_HOP).for_each(|name| drop(headers.remove(name)));
}

/// The bytes of a head in the form of HTTP/1.1, but for its first line.
pub(super) fn size(headers: &HeaderMap) -> usize {
    // Each line has a colon, a space and CRLF; an empty line ends the head.
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum::<usize>() + 2
}
