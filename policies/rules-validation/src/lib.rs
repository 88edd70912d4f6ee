//! Rules of input in CEL.

mod values;

use culvert::policy::types::Violation;
use culvert_policy_rules::{Rule, ToValue, Value};
use exports::culvert::policy::inputs::{Current, Facts, Input};

culvert_policy_rules::rules_policy!("validation", question: Request<'static>);
culvert_policy_rules::caller!();

/// A request body, and what is known beside it.
struct Request<'a> {
    input: &'a Input,
    facts: &'a Facts,
}

/// A field that some request bodies have; null in others.
macro_rules! input {
    ($request:ident, $field:ident in $($body:ident)|+) => {
        match $request.input {
            $(Input::$body(body) => body.$field.to_value(),)+
            _ => Value::Null,
        }
    };
}

/// A field of the record as it is; null where the request is about none, or one without the field.
macro_rules! current {
    ($request:ident, $field:ident in $($record:ident)|+) => {
        match &$request.facts.current {
            $(Some(Current::$record(record)) => record.$field.to_value(),)+
            _ => Value::Null,
        }
    };
}

culvert_policy_rules::question!(Request<'_>, |request| attributes: request.facts.attributes, {
    "caller.account_id" => request.facts.caller.account_id,
    "caller.scope" => request.facts.caller.scope,
    "caller.scope_id" => request.facts.caller.scope_id,
    "caller.role" => request.facts.caller.role,
    "caller.plan" => request.facts.caller.plan,
    "input.name" => input!(request, name in TunnelCreate | TunnelUpdate | DeviceUpdate),
    "input.protocol" => input!(request, protocol in TunnelCreate | ExtraPortCreate),
    "input.local_host" => input!(request, local_host in TunnelCreate | TunnelUpdate),
    "input.local_port" => input!(request, local_port in TunnelCreate | TunnelUpdate | ExtraPortCreate),
    "input.region" => input!(request, region in TunnelCreate),
    "input.country" => input!(request, country in TunnelCreate),
    "input.game_preset_id" => input!(request, game_preset_id in TunnelCreate),
    "input.subdomain" => input!(request, subdomain in TunnelCreate),
    "input.http_ssl_enabled" => input!(request, http_ssl_enabled in TunnelCreate | TunnelUpdate),
    "input.http_basic_auth_enabled" => input!(request, http_basic_auth_enabled in TunnelCreate | TunnelUpdate),
    "input.http_basic_auth_username" => input!(request, http_basic_auth_username in TunnelCreate | TunnelUpdate),
    "input.http_basic_auth_password" => input!(request, http_basic_auth_password in TunnelCreate | TunnelUpdate),
    "input.idle_timeout" => input!(request, idle_timeout in TunnelUpdate),
    "input.buffer_size" => input!(request, buffer_size in TunnelUpdate),
    "input.pro_network" => input!(request, pro_network in TunnelCreate | TunnelUpdate),
    "input.device_ids" => input!(request, device_ids in TunnelCreate | DeviceBindings),
    "input.extra_ports" => input!(request, extra_ports in TunnelCreate),
    "input.label" => input!(request, label in ExtraPortCreate),
    "input.device_id" => input!(request, device_id in TunnelStart),
    "input.handoff" => input!(request, handoff in TunnelStart),
    "input.domain" => input!(request, domain in DomainAssign | DomainVerify),
    "input.rules" => input!(request, rules in FirewallReplace | GeoipReplace),
    "input.node_id" => input!(request, node_id in TunnelMove),
    "input.remote_control_enabled" => input!(request, remote_control_enabled in DeviceUpdate),
    "input.url" => input!(request, url in WebhookCreate | WebhookUpdate),
    "input.events" => input!(request, events in WebhookCreate | WebhookUpdate),
    "input.description" => input!(request, description in WebhookCreate | WebhookUpdate),
    "input.status" => input!(request, status in WebhookUpdate),
    "current.name" => current!(request, name in Tunnel | Device),
    "current.protocol" => current!(request, protocol in Tunnel),
    "current.local_host" => current!(request, local_host in Tunnel),
    "current.local_port" => current!(request, local_port in Tunnel),
    "current.subdomain" => current!(request, subdomain in Tunnel),
    "current.http_ssl_enabled" => current!(request, http_ssl_enabled in Tunnel),
    "current.http_basic_auth_enabled" => current!(request, http_basic_auth_enabled in Tunnel),
    "current.http_basic_auth_username" => current!(request, http_basic_auth_username in Tunnel),
    "current.http_basic_auth_password_set" => current!(request, http_basic_auth_password_set in Tunnel),
    "current.pro_network" => current!(request, pro_network in Tunnel),
    "current.remote_control_enabled" => current!(request, remote_control_enabled in Device),
    "current.url" => current!(request, url in Webhook),
    "current.events" => current!(request, events in Webhook),
    "current.description" => current!(request, description in Webhook),
    "current.status" => current!(request, status in Webhook),
});

impl Policy {
    fn validate(&self, input: &Input, facts: &Facts) -> Vec<Violation> {
        let request = Request { input, facts };
        // What is malformed arrives as absent, so a rule cannot judge it.
        let judged = self.rules.matching(&request).filter(|rule| !facts.faulted.contains(&rule.field));
        let violation = |Rule { field, message, name, .. }: &Rule| Violation {
            field: field.clone(),
            message: message.clone(),
            rule: name.clone(),
        };
        judged.map(violation).collect()
    }
}
