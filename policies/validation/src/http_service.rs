//! How the service of an http tunnel is spoken to. The interface 1.0.0 does not have these fields; they are facts.

use culvert_policy_sdk::facts::{INPUT_HOST_HEADER, INPUT_LOCAL_SCHEME};

use crate::culvert::policy::types::Attribute;
use crate::exports::culvert::policy::inputs::Protocol;
use crate::findings::Findings;

/// Checks the fields for a tunnel of this protocol, where it is known.
pub fn check(protocol: Option<Protocol>, attributes: &[Attribute], findings: &mut Findings) {
    let is_http = protocol.is_none_or(|protocol| protocol == Protocol::Http);
    if let Some(host) = INPUT_HOST_HEADER.of(attributes) {
        findings.check(is_http, "host_header", "host-header", "is for http tunnels only");
        let shape =
            "must be a host name or an address, with a port or without, of at most 255 characters: app.internal:8080";
        findings.check(!is_http || is_authority(&host), "host_header", "host-header", shape);
    }
    let scheme = INPUT_LOCAL_SCHEME.of(attributes);
    let allowed = is_http || scheme.is_none_or(|scheme| scheme == "auto");
    let message = "must be `auto`: any other value is for http tunnels only";
    findings.check(allowed, "local_scheme", "local-scheme", message);
}

fn is_authority(text: &str) -> bool {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, port)) if address.parse::<std::net::Ipv6Addr>().is_ok() => ("address", port),
        Some(_) => return false,
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let of_name = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
    let digits =
        |port: &str| port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0);
    let is_port = port.is_empty() || port.strip_prefix(':').is_some_and(digits);
    text.len() <= 255 && !host.is_empty() && host.bytes().all(of_name) && is_port
}
