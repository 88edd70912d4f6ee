//! How visitors are passed on to the local service. The interface 1.0.0 does not have these fields; they are facts.

use culvert_policy_sdk::facts::{
    CURRENT_TLS_PASSTHROUGH, INPUT_HOST_HEADER, INPUT_LOCAL_SCHEME, INPUT_LOCAL_TLS_VERIFY, INPUT_PROXY_PROTOCOL,
    INPUT_TLS_PASSTHROUGH,
};

use crate::culvert::policy::types::Attribute;
use crate::exports::culvert::policy::inputs::Protocol;
use crate::findings::Findings;

/// Checks the fields for a tunnel of this protocol, where it is known, with basic auth or without.
pub fn check(protocol: Option<Protocol>, has_basic_auth: bool, attributes: &[Attribute], findings: &mut Findings) {
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
    let allowed = is_http || INPUT_LOCAL_TLS_VERIFY.of(attributes).is_none();
    let message = "must be null: it is for http tunnels only";
    findings.check(allowed, "local_tls_verify", "local-tls-verify", message);
    if let (Some(protocol), Some(wanted)) = (protocol, INPUT_PROXY_PROTOCOL.of(attributes)) {
        let (known, list) = proxy_protocols(protocol);
        let message = format!("must be one of {list}");
        findings.check(known.contains(&wanted.as_str()), "proxy_protocol", "proxy-protocol", &message);
    }
    let passes = INPUT_TLS_PASSTHROUGH.of(attributes).or_else(|| CURRENT_TLS_PASSTHROUGH.of(attributes));
    let passes = passes.unwrap_or_default();
    let message = "must be false: it is for http tunnels only";
    findings.check(is_http || !passes, "tls_passthrough", "tls-passthrough", message);
    let message = "must be false with basic auth: the node does not see the requests";
    findings.check(!(is_http && passes && has_basic_auth), "tls_passthrough", "tls-passthrough", message);
}

/// Those that have a form for a protocol, and how a message lists them.
fn proxy_protocols(protocol: Protocol) -> (&'static [&'static str], &'static str) {
    match protocol {
        Protocol::Tcp => (&["none", "v1", "v2"], "`none`, `v1`, `v2` for tcp tunnels"),
        Protocol::Http => (&["none", "v1", "v2"], "`none`, `v1`, `v2` for http tunnels"),
        Protocol::Udp => (&["none", "v2", "spp"], "`none`, `v2`, `spp` for udp tunnels"),
        Protocol::Both => (&["none", "v2"], "`none`, `v2` for both tunnels"),
    }
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
