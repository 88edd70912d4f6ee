//! What is changed of the headers that a request or an answer is passed on with.

use std::net::IpAddr;

use hyper::header::{
    CONNECTION, EXPECT, FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION,
    TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use hyper::http::request;
use hyper::http::uri::PathAndQuery;
use hyper::{Response, Uri, Version};

use super::Peer;

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
    let name = name.as_str().replace('_', "-");
    name.starts_with("x-forwarded-") || name == "forwarded" || name == "x-real-ip"
}

/// Whether a request wants to speak WebSocket on its connection (RFC 6455, section 4.1).
pub(super) fn wants_websocket(headers: &HeaderMap) -> bool {
    names(headers, &CONNECTION, "upgrade") && names(headers, &UPGRADE, "websocket")
}

/// Whether a header's list has this word, in either case.
fn names(headers: &HeaderMap, header: &HeaderName, word: &str) -> bool {
    let values = headers.get_all(header).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|item| item.trim().eq_ignore_ascii_case(word))
}

/// Prepares a request for the local service.
pub(super) fn to_service(head: &mut request::Parts, peer: Peer, name: &str, is_upgrade: bool) {
    let trailers = names(&head.headers, &TE, "trailers");
    remove_hop_by_hop(&mut head.headers);
    let of_proxies: Vec<HeaderName> = head.headers.keys().filter(|name| is_of_proxies(name)).cloned().collect();
    of_proxies.iter().for_each(|name| drop(head.headers.remove(name)));
    // The node answers with 100 (Continue) by itself, as soon as the body is wanted.
    head.headers.remove(EXPECT);
    if trailers {
        head.headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    if is_upgrade {
        head.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        head.headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    }
    let forwarded_host = head.headers.get(HOST).cloned();
    forwarded(&mut head.headers, peer, name, forwarded_host);
    head.version = Version::HTTP_11;
    head.uri = origin_form(&head.uri);
}

fn forwarded(headers: &mut HeaderMap, peer: Peer, name: &str, host: Option<HeaderValue>) {
    let ip = peer.address.ip().to_canonical();
    // RFC 7239, section 6: an IPv6 address is quoted and in brackets.
    let node = match ip {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("\"[{ip}]\""),
    };
    let set = [
        (HeaderName::from_static("x-forwarded-for"), ip.to_string()),
        (HeaderName::from_static("x-forwarded-proto"), peer.scheme.into()),
        (HeaderName::from_static("x-forwarded-port"), peer.port.to_string()),
        (FORWARDED, format!("for={node};host=\"{name}\";proto={}", peer.scheme)),
    ];
    for (name, value) in set {
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(name, value);
        }
    }
    if let Some(host) = host {
        headers.insert("x-forwarded-host", host);
    }
}

/// The target of a request as it is sent to a server (RFC 9112, section 3.2.1).
fn origin_form(uri: &Uri) -> Uri {
    uri.path_and_query().cloned().unwrap_or(PathAndQuery::from_static("/")).into()
}

/// Prepares an answer of the local service for the visitor.
pub(super) fn to_visitor<B>(response: &mut Response<B>) {
    remove_hop_by_hop(response.headers_mut());
    response.headers_mut().remove(CULVERT_ERROR);
}

/// Prepares the answer to a WebSocket's request.
pub(super) fn to_upgraded_visitor<B>(response: &mut Response<B>) {
    to_visitor(response);
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
