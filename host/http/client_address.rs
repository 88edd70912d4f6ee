//! Who sent a request, behind whatever proxies are trusted.

use std::net::IpAddr;

use culvert_wire::client_network;
use ipnet::IpNet;
use salvo::Request;

/// The client's address: the peer's, or what trusted proxies say it is.
pub(crate) fn client_address(req: &Request, trusted: &[IpNet]) -> Option<IpAddr> {
    let forwarded = req.headers().get_all("x-forwarded-for").iter().filter_map(|value| value.to_str().ok());
    Some(client_network::client_address(req.remote_addr().ip()?, forwarded, trusted))
}
