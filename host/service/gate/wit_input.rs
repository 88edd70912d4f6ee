//! Converts the host's values to the records of the policy contract, and back.

use crate::gate::{DeviceRole, UsageRequest};
use culvert_api_types::requests::{
    AssignDomain, BindDevices, DevicePatch, Input, MoveTunnel, NewExtraPort, NewFirewallRule, NewGeoipRule, NewTunnel,
    NewWebhook, ReplaceFirewall, ReplaceGeoip, StartTunnel, TunnelPatch, VerifyDomain, WebhookPatch,
};
use culvert_domain::access::{CountryAction, RuleType};
use culvert_domain::action::Action;
use culvert_domain::caller::{Caller, Role, ScopeKind};
use culvert_domain::device::Device;
use culvert_domain::error::Fault;
use culvert_domain::facts::ResourceFacts;
use culvert_domain::plan::Entitlement;
use culvert_domain::protocol::Protocol;
use culvert_domain::tunnel::{DEFAULT_BUFFER_SIZE, DEFAULT_IDLE_TIMEOUT, Tunnel};
use culvert_domain::usage::Counters;
use culvert_domain::webhook::{Webhook, WebhookStatus};
use culvert_policy::engine::bindings::inputs::{
    self, Current, CurrentDevice, CurrentTunnel, CurrentWebhook, NullableText,
};
use culvert_policy::engine::bindings::{plans, roles, types};

pub fn entitlement(entitlement: plans::Entitlement) -> Entitlement {
    Entitlement {
        api_access: entitlement.api_access,
        tunnel_limit: entitlement.tunnel_limit,
        bandwidth_limit_bytes: entitlement.bandwidth_limit_bytes,
        remote_actions: entitlement.remote_actions,
        premium_network: entitlement.premium_network,
        custom_domains: entitlement.custom_domains,
        webhook_endpoints: entitlement.webhook_endpoints,
        extra_ports_per_tunnel: entitlement.extra_ports_per_tunnel,
    }
}

pub fn plan_ask(caller: &Caller, action: Action, counters: Counters, wants: UsageRequest) -> plans::Ask {
    plans::Ask {
        caller: self::caller(caller),
        action: action.name().into(),
        usage: plans::Usage {
            tunnels: counters.tunnels,
            webhook_endpoints: counters.webhook_endpoints,
            extra_ports: counters.extra_ports,
            bytes_this_month: counters.bytes_this_month,
        },
        wants: plans::Wants {
            premium_network: wants.premium_network,
            extra_ports: wants.extra_ports,
            subdomain: wants.subdomain,
            domain: wants.domain,
        },
        attributes: Vec::new(),
    }
}

pub fn role_ask(
    caller: &Caller,
    action: Action,
    facts: &ResourceFacts,
    devices: &[(Device, DeviceRole)],
) -> roles::Ask {
    roles::Ask {
        caller: self::caller(caller),
        action: action.name().into(),
        tunnel: facts.tunnel.as_ref().map(|tunnel| roles::Tunnel {
            id: tunnel.id.to_string(),
            created_by_caller: tunnel.created_by == caller.account_id,
        }),
        devices: devices.iter().map(|(device, part)| self::device(caller, device, *part)).collect(),
        attributes: Vec::new(),
    }
}

fn device(caller: &Caller, device: &Device, part: DeviceRole) -> roles::Device {
    roles::Device {
        id: device.id.to_string(),
        part: match part {
            DeviceRole::Target => roles::Part::Target,
            DeviceRole::Source => roles::Part::Yields,
        },
        owned_by_caller: device.owner_id == caller.account_id,
        owner_active: device.owner_active,
    }
}

fn caller(caller: &Caller) -> types::Caller {
    types::Caller {
        account_id: caller.account_id.to_string(),
        scope: match caller.scope.kind {
            ScopeKind::Personal => types::Scope::Personal,
            ScopeKind::Team => types::Scope::Team,
        },
        scope_id: caller.scope.id.to_string(),
        role: caller.role.map(|role| match role {
            Role::Owner => types::Role::Owner,
            Role::Admin => types::Role::Admin,
            Role::Member => types::Role::Member,
        }),
        plan: caller.scope.plan.clone(),
    }
}

pub fn input_facts(caller: &Caller, facts: &ResourceFacts, faults: &[Fault]) -> inputs::Facts {
    let tunnel = facts.tunnel.as_ref().map(|tunnel| Current::Tunnel(current_tunnel(tunnel)));
    let device = facts.device.as_ref().map(|device| {
        Current::Device(CurrentDevice { name: device.name.clone(), remote_control_enabled: device.remote_control })
    });
    let webhook = facts.webhook.as_ref().map(|webhook| Current::Webhook(current_webhook(webhook)));
    let current = tunnel.or(device).or(webhook);
    inputs::Facts {
        caller: self::caller(caller),
        current,
        faulted: faults.iter().map(|fault| fault.field.clone()).collect(),
        attributes: Vec::new(),
    }
}

fn current_tunnel(tunnel: &Tunnel) -> CurrentTunnel {
    CurrentTunnel {
        name: tunnel.spec.name.clone(),
        protocol: protocol(tunnel.spec.protocol),
        local_host: tunnel.spec.local_host.clone(),
        local_port: tunnel.spec.local_port.into(),
        subdomain: tunnel.spec.subdomain.clone(),
        http_ssl_enabled: tunnel.spec.https,
        http_basic_auth_enabled: tunnel.spec.basic_auth,
        http_basic_auth_username: tunnel.spec.basic_auth_user.clone(),
        http_basic_auth_password_set: tunnel.basic_auth_password_set,
        pro_network: tunnel.spec.pro_network,
    }
}

fn current_webhook(webhook: &Webhook) -> CurrentWebhook {
    CurrentWebhook {
        url: webhook.url.clone(),
        events: webhook.events.iter().map(ToString::to_string).collect(),
        description: webhook.description.clone(),
        status: webhook_status(webhook.status),
    }
}

/// The body of a request.
pub fn input(input: Input<'_>, facts: &ResourceFacts) -> inputs::Input {
    match input {
        Input::TunnelCreate(new) => inputs::Input::TunnelCreate(tunnel_create(new)),
        Input::TunnelUpdate(patch) => inputs::Input::TunnelUpdate(seen_update(patch, facts)),
        Input::DeviceBindings(BindDevices { device_ids }) => {
            inputs::Input::DeviceBindings(inputs::DeviceBindings { device_ids: device_ids.as_deref().map(texts) })
        }
        Input::TunnelStart(StartTunnel { device_id, handoff }) => inputs::Input::TunnelStart(inputs::TunnelStart {
            device_id: device_id.map(|id| id.to_string()),
            handoff: *handoff,
        }),
        Input::DeviceUpdate(DevicePatch { name, remote_control_enabled }) => {
            inputs::Input::DeviceUpdate(inputs::DeviceUpdate {
                name: name.clone(),
                remote_control_enabled: *remote_control_enabled,
            })
        }
        Input::ExtraPortCreate(port) => inputs::Input::ExtraPortCreate(extra_port(port)),
        Input::DomainAssign(AssignDomain { domain }) => {
            inputs::Input::DomainAssign(inputs::DomainName { domain: domain.clone() })
        }
        Input::DomainVerify(VerifyDomain { domain }) => {
            inputs::Input::DomainVerify(inputs::DomainName { domain: domain.clone() })
        }
        Input::FirewallReplace(ReplaceFirewall { rules }) => inputs::Input::FirewallReplace(inputs::Firewall {
            rules: rules.as_ref().map(|rules| rules.iter().map(firewall_rule).collect()),
        }),
        Input::GeoipReplace(ReplaceGeoip { rules }) => inputs::Input::GeoipReplace(inputs::Geoip {
            rules: rules.as_ref().map(|rules| rules.iter().map(geoip_rule).collect()),
        }),
        Input::TunnelMove(MoveTunnel { node_id }) => {
            inputs::Input::TunnelMove(inputs::TunnelMove { node_id: node_id.map(|id| id.to_string()) })
        }
        Input::WebhookCreate(NewWebhook { url, events, description }) => {
            inputs::Input::WebhookCreate(inputs::WebhookCreate {
                url: url.clone(),
                events: events.clone(),
                description: description.clone(),
            })
        }
        Input::WebhookUpdate(WebhookPatch { url, events, description, status }) => {
            inputs::Input::WebhookUpdate(inputs::WebhookUpdate {
                url: url.clone(),
                events: events.clone(),
                description: nullable(description.as_ref()),
                status: status.map(webhook_status),
            })
        }
    }
}

/// A change of a tunnel. Where it names only fields which the interface 1.0.0 does not have, it is shown with the tunnel's
/// present name: a module may refuse a change without any field.
fn seen_update(patch: &TunnelPatch, facts: &ResourceFacts) -> inputs::TunnelUpdate {
    let later = TunnelPatch {
        host_header: patch.host_header.clone(),
        local_scheme: patch.local_scheme,
        local_tls_verify: patch.local_tls_verify,
        proxy_protocol: patch.proxy_protocol,
        tls_passthrough: patch.tls_passthrough,
        ..TunnelPatch::default()
    };
    let mut update = tunnel_update(patch);
    if *patch == later && *patch != TunnelPatch::default() {
        update.name = facts.tunnel.as_ref().map(|tunnel| tunnel.spec.name.clone());
    }
    update
}

fn tunnel_create(new: &NewTunnel) -> inputs::TunnelCreate {
    inputs::TunnelCreate {
        name: new.name.clone(),
        protocol: new.protocol.map(protocol),
        local_host: new.local_host.clone(),
        local_port: new.local_port,
        region: new.region.clone(),
        country: new.country.clone(),
        game_preset_id: new.game_preset_id.map(|id| id.to_string()),
        subdomain: new.subdomain.clone(),
        http_ssl_enabled: new.http_ssl_enabled,
        http_basic_auth_enabled: new.http_basic_auth_enabled,
        http_basic_auth_username: new.http_basic_auth_username.clone(),
        http_basic_auth_password: new.http_basic_auth_password.clone(),
        pro_network: new.pro_network,
        device_ids: new.device_ids.as_deref().map(texts),
        extra_ports: new.extra_ports.as_ref().map(|ports| ports.iter().map(extra_port).collect()),
    }
}

fn extra_port(port: &NewExtraPort) -> inputs::ExtraPort {
    inputs::ExtraPort { local_port: port.local_port, label: port.label.clone(), protocol: port.protocol.map(protocol) }
}

fn tunnel_update(patch: &TunnelPatch) -> inputs::TunnelUpdate {
    inputs::TunnelUpdate {
        name: patch.name.clone(),
        local_host: patch.local_host.clone(),
        local_port: patch.local_port,
        http_ssl_enabled: patch.http_ssl_enabled,
        http_basic_auth_enabled: patch.http_basic_auth_enabled,
        http_basic_auth_username: nullable(patch.http_basic_auth_username.as_ref()),
        http_basic_auth_password: nullable(patch.http_basic_auth_password.as_ref()),
        // The contract has no null for these fields, where null means the default value.
        idle_timeout: patch.idle_timeout.map(|seconds| seconds.unwrap_or(DEFAULT_IDLE_TIMEOUT.into())),
        buffer_size: patch.buffer_size.map(|bytes| bytes.unwrap_or(DEFAULT_BUFFER_SIZE.into())),
        pro_network: patch.pro_network,
    }
}

fn nullable(text: Option<&Option<String>>) -> Option<NullableText> {
    text.map(|text| text.clone().map_or(NullableText::Null, NullableText::Text))
}

fn protocol(protocol: Protocol) -> inputs::Protocol {
    match protocol {
        Protocol::Tcp => inputs::Protocol::Tcp,
        Protocol::Udp => inputs::Protocol::Udp,
        Protocol::Both => inputs::Protocol::Both,
        Protocol::Http => inputs::Protocol::Http,
    }
}

fn firewall_rule(rule: &NewFirewallRule) -> inputs::FirewallRule {
    inputs::FirewallRule {
        rule_type: rule.rule_type.map(|rule_type| match rule_type {
            RuleType::Whitelist => inputs::RuleType::Whitelist,
            RuleType::Blacklist => inputs::RuleType::Blacklist,
        }),
        ip_address: rule.ip_address.clone(),
        ip_cidr: rule.ip_cidr.clone(),
        description: rule.description.clone(),
    }
}

fn geoip_rule(rule: &NewGeoipRule) -> inputs::GeoipRule {
    inputs::GeoipRule {
        country_code: rule.country_code.clone(),
        action: rule.action.map(|action| match action {
            CountryAction::Allow => inputs::GeoipAction::Allow,
            CountryAction::Block => inputs::GeoipAction::Block,
        }),
    }
}

fn webhook_status(status: WebhookStatus) -> inputs::WebhookStatus {
    match status {
        WebhookStatus::Enabled => inputs::WebhookStatus::Enabled,
        WebhookStatus::Disabled => inputs::WebhookStatus::Disabled,
    }
}

fn texts(ids: &[uuid::Uuid]) -> Vec<String> {
    ids.iter().map(ToString::to_string).collect()
}
