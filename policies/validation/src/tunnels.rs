//! Tunnels and their extra ports.

use crate::auth::BasicAuth;
use crate::culvert::policy::types::Attribute;
use crate::devices;
use crate::exports::culvert::policy::inputs::{
    Current, CurrentTunnel, ExtraPort, NullableText, Protocol, TunnelCreate, TunnelUpdate,
};
use crate::findings::Findings;
use crate::local_service;
use crate::text;

pub fn create(tunnel: &TunnelCreate, attributes: &[Attribute], reserved: &[String], findings: &mut Findings) {
    let protocol = if findings.is_faulted("protocol") { None } else { tunnel.protocol.or(Some(Protocol::Tcp)) };
    findings.require("local_port", tunnel.local_port.as_ref());
    text::port(tunnel.local_port, "local_port", findings);
    text::name(tunnel.name.as_deref(), "name", findings);
    text::local_host(tunnel.local_host.as_deref(), findings);
    text::region(tunnel.region.as_deref(), findings);
    text::country(tunnel.country.as_deref(), "country", findings);
    text::subdomain(tunnel.subdomain.as_deref(), reserved, findings);
    devices::allowlist(tunnel.device_ids.as_deref().unwrap_or_default(), findings);
    let auth = BasicAuth {
        protocol,
        enabled: tunnel.http_basic_auth_enabled.unwrap_or(false),
        username: tunnel.http_basic_auth_username.as_deref(),
        password: tunnel.http_basic_auth_password.as_deref(),
        has_username: tunnel.http_basic_auth_username.is_some(),
        has_password: tunnel.http_basic_auth_password.is_some(),
    };
    auth.check(findings);
    local_service::check(protocol, auth.enabled, attributes, findings);
    for (index, port) in tunnel.extra_ports.iter().flatten().enumerate() {
        extra_port(port, protocol, &format!("extra_ports[{index}]."), findings);
    }
}

pub fn update(change: &TunnelUpdate, current: Option<&Current>, attributes: &[Attribute], findings: &mut Findings) {
    let TunnelUpdate { name, local_host, local_port, idle_timeout, buffer_size, .. } = change;
    findings.require_any(names_a_field(change));
    text::name(name.as_deref(), "name", findings);
    text::local_host(local_host.as_deref(), findings);
    text::port(*local_port, "local_port", findings);
    let idle = idle_timeout.is_none_or(|seconds| (30..=3600).contains(&seconds));
    findings.check(idle, "idle_timeout", "idle-timeout", "must be between 30 and 3600 seconds");
    let buffer = buffer_size.is_none_or(|bytes| (1024..=1_048_576).contains(&bytes));
    findings.check(buffer, "buffer_size", "buffer-size", "must be between 1024 and 1048576 bytes");
    if let Some(Current::Tunnel(current)) = current {
        let auth = changed_auth(change, current);
        auth.check(findings);
        local_service::check(Some(current.protocol), auth.enabled, attributes, findings);
    }
}

fn names_a_field(change: &TunnelUpdate) -> bool {
    change.name.is_some()
        || change.local_host.is_some()
        || change.local_port.is_some()
        || change.http_ssl_enabled.is_some()
        || change.http_basic_auth_enabled.is_some()
        || change.http_basic_auth_username.is_some()
        || change.http_basic_auth_password.is_some()
        || change.idle_timeout.is_some()
        || change.buffer_size.is_some()
        || change.pro_network.is_some()
}

fn changed_auth<'a>(change: &'a TunnelUpdate, current: &CurrentTunnel) -> BasicAuth<'a> {
    let username = change.http_basic_auth_username.as_ref();
    let password = change.http_basic_auth_password.as_ref();
    BasicAuth {
        protocol: Some(current.protocol),
        enabled: change.http_basic_auth_enabled.unwrap_or(current.http_basic_auth_enabled),
        username: username.and_then(given),
        password: password.and_then(given),
        has_username: username.map_or(current.http_basic_auth_username.is_some(), |new| given(new).is_some()),
        has_password: password.map_or(current.http_basic_auth_password_set, |new| given(new).is_some()),
    }
}

fn given(text: &NullableText) -> Option<&str> {
    match text {
        NullableText::Null => None,
        NullableText::Text(text) => Some(text),
    }
}

pub fn extra_port_create(port: &ExtraPort, current: Option<&Current>, findings: &mut Findings) {
    let protocol = match current {
        Some(Current::Tunnel(tunnel)) => Some(tunnel.protocol),
        _ => None,
    };
    extra_port(port, protocol, "", findings);
}

fn extra_port(port: &ExtraPort, tunnel: Option<Protocol>, path: &str, findings: &mut Findings) {
    let local_port = format!("{path}local_port");
    findings.require(&local_port, port.local_port.as_ref());
    text::port(port.local_port, &local_port, findings);
    text::label(port.label.as_deref(), &format!("{path}label"), findings);
    let holds = port.protocol != Some(Protocol::Http) || tunnel.is_none_or(|tunnel| tunnel == Protocol::Http);
    findings.check(holds, &format!("{path}protocol"), "http-only", "http ports are for http tunnels only");
}
