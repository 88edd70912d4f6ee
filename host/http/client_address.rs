//! Who sent a request, behind whatever proxies are trusted.

use std::net::IpAddr;

use culvert_wire::client_network;
use ipnet::IpNet;
use salvo::Request;
use salvo::http::HeaderValue;

/// The client's address: the peer's, or what trusted proxies say it is.
pub(crate) fn client_address(req: &Request, trusted: &[IpNet]) -> Option<IpAddr> {
    let forwarded = req.headers().get_all("x-forwarded-for").iter().map(HeaderValue::as_bytes);
    Some(client_network::client_address(req.remote_addr().ip()?, forwarded, trusted))
}
