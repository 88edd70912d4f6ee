//! The facts that policies ask for, from what is known of a request.

use std::net::IpAddr;

use chrono::{DateTime, SecondsFormat, Utc};
use serde_json::{Value, json};
use uuid::Uuid;

use super::DeviceRole;
use culvert_api_types::requests::Input;
use culvert_domain::access::Range;
use culvert_domain::action::Action;
use culvert_domain::caller::{Caller, Credential, ScopeKind};
use culvert_domain::device::Device;
use culvert_domain::facts::{ResourceFacts, TunnelRules};
use culvert_domain::permission::PermissionPreset;
use culvert_domain::policy_fact::{PolicyFact, PolicyFacts};
use culvert_domain::string_enum::StringEnum;
use culvert_domain::tunnel::Tunnel;
use culvert_policy::engine::facts::FactValues;

/// What is known of a request beside its caller and its body.
#[derive(Clone, Debug, Default)]
pub struct RequestContext {
    /// None for what no request asks.
    pub request_id: Option<Uuid>,
    /// When the request came.
    pub now: DateTime<Utc>,
    /// The HTTP method.
    pub method: Option<String>,
    /// The client's address.
    pub client: Option<IpAddr>,
}

/// Everything that facts are made from.
pub(super) struct FactSources<'a> {
    pub context: &'a RequestContext,
    pub caller: &'a Caller,
    pub action: Action,
    pub facts: &'a ResourceFacts,
    pub devices: &'a [(Device, DeviceRole)],
    /// The request's body.
    pub input: Option<Input<'a>>,
}

impl FactSources<'_> {
    pub(super) fn values(&self, wanted: PolicyFacts) -> FactValues {
        let mut values = FactValues::default();
        wanted.iter().for_each(|fact| values.insert(fact, &self.value(fact)));
        values
    }

    fn value(&self, fact: PolicyFact) -> Value {
        let Self { context, caller, action, facts, .. } = self;
        let running = || facts.running.unwrap_or_default();
        match fact {
            PolicyFact::Credential => match caller.credential {
                Credential::Key { .. } => "key".into(),
                Credential::Device(_) => "device".into(),
                Credential::SignIn(_) => "session".into(),
            },
            PolicyFact::Now => time(context.now),
            PolicyFact::TeamName => (caller.scope.kind == ScopeKind::Team).then_some(caller.scope.name.as_str()).into(),
            PolicyFact::KeyId | PolicyFact::KeyPreset | PolicyFact::KeyScopes | PolicyFact::KeyCreatedAt => {
                of_key(fact, caller)
            }
            PolicyFact::CallerAccountId => caller.account_id.to_string().into(),
            PolicyFact::CallerRole => caller.role.map(StringEnum::as_str).into(),
            PolicyFact::UsageTunnels => facts.counters.tunnels.into(),
            PolicyFact::UsageRunningTunnels => running().running_tunnels.into(),
            PolicyFact::UsageCallersTunnels => running().callers_tunnels.into(),
            PolicyFact::UsageCallersRunningTunnels => running().callers_running_tunnels.into(),
            PolicyFact::ClientIp => context.client.map(|address| address.to_string()).into(),
            PolicyFact::RequestMethod => context.method.as_deref().into(),
            PolicyFact::RequestAction => action.name().into(),
            PolicyFact::InputHostHeader
            | PolicyFact::InputLocalScheme
            | PolicyFact::InputLocalTlsVerify
            | PolicyFact::InputProxyProtocol
            | PolicyFact::InputTlsPassthrough => self.input(fact),
            PolicyFact::RequestId => context.request_id.map(|id| id.to_string()).into(),
            PolicyFact::DeviceName | PolicyFact::DevicePlatform | PolicyFact::DeviceOwner => {
                self.device(fact, DeviceRole::Target)
            }
            PolicyFact::SourceDeviceName | PolicyFact::SourceDevicePlatform | PolicyFact::SourceDeviceOwner => {
                self.device(fact, DeviceRole::Source)
            }
            _ => facts.tunnel.as_ref().map_or(Value::Null, |tunnel| of_tunnel(fact, tunnel, facts.rules.as_ref())),
        }
    }

    /// A field that the interface 1.0.0 does not have.
    fn input(&self, fact: PolicyFact) -> Value {
        /// The field of either request.
        macro_rules! of {
            ($new:ident => $of_new:expr, $patch:ident => $of_patch:expr) => {
                match self.input {
                    Some(Input::TunnelCreate($new)) => $of_new.into(),
                    Some(Input::TunnelUpdate($patch)) => $of_patch.into(),
                    _ => Value::Null,
                }
            };
        }
        match fact {
            PolicyFact::InputHostHeader => {
                of!(new => new.host_header.as_deref(), patch => patch.host_header.as_ref().and_then(|name| name.as_deref()))
            }
            PolicyFact::InputLocalScheme => {
                of!(new => new.local_scheme.map(StringEnum::as_str), patch => patch.local_scheme.map(StringEnum::as_str))
            }
            PolicyFact::InputLocalTlsVerify => {
                of!(new => new.local_tls_verify, patch => patch.local_tls_verify.flatten())
            }
            PolicyFact::InputProxyProtocol => {
                of!(new => new.proxy_protocol.map(StringEnum::as_str), patch => patch.proxy_protocol.map(StringEnum::as_str))
            }
            _ => of!(new => new.tls_passthrough, patch => patch.tls_passthrough),
        }
    }

    fn device(&self, fact: PolicyFact, role: DeviceRole) -> Value {
        let Some((device, _)) = self.devices.iter().find(|(_, part)| *part == role) else { return Value::Null };
        match fact {
            PolicyFact::DeviceName | PolicyFact::SourceDeviceName => device.name.as_deref().into(),
            PolicyFact::DevicePlatform | PolicyFact::SourceDevicePlatform => device.platform.as_deref().into(),
            _ => device.owner_id.to_string().into(),
        }
    }
}

fn of_key(fact: PolicyFact, caller: &Caller) -> Value {
    let permissions = caller.permissions;
    match (caller.credential, fact) {
        (Credential::Key { id, .. }, PolicyFact::KeyId) => id.to_string().into(),
        (Credential::Key { created_at, .. }, PolicyFact::KeyCreatedAt) => time(created_at),
        (Credential::Key { .. }, PolicyFact::KeyPreset) => {
            PermissionPreset::ALL.iter().find(|preset| preset.permissions() == permissions).map(|p| p.id).into()
        }
        (Credential::Key { .. }, _) => permissions.iter().map(StringEnum::as_str).collect(),
        (Credential::Device(_) | Credential::SignIn(_), PolicyFact::KeyScopes) => json!([]),
        (Credential::Device(_) | Credential::SignIn(_), _) => Value::Null,
    }
}

fn of_tunnel(fact: PolicyFact, tunnel: &Tunnel, rules: Option<&TunnelRules>) -> Value {
    let spec = &tunnel.spec;
    match fact {
        PolicyFact::TunnelName => spec.name.as_str().into(),
        PolicyFact::TunnelProtocol => spec.protocol.as_str().into(),
        PolicyFact::TunnelRegion => spec.region.as_deref().into(),
        PolicyFact::TunnelSubdomain => spec.subdomain.as_deref().into(),
        PolicyFact::TunnelLocalPort => spec.local_port.into(),
        PolicyFact::TunnelCreatedAt => time(tunnel.created_at),
        PolicyFact::CurrentHostHeader => spec.service.host_header.as_deref().into(),
        PolicyFact::CurrentLocalScheme => spec.service.scheme.as_str().into(),
        PolicyFact::CurrentLocalTlsVerify => spec.service.tls_verify.into(),
        PolicyFact::CurrentProxyProtocol => spec.service.proxy_protocol.as_str().into(),
        PolicyFact::CurrentTlsPassthrough => spec.service.tls_passthrough.into(),
        PolicyFact::TunnelRunning => tunnel.runs_or_starts().into(),
        _ => rules.map_or(Value::Null, of_rules),
    }
}

fn of_rules(TunnelRules { firewall, countries }: &TunnelRules) -> Value {
    let range = |range: &Range| match range {
        Range::Address(address) => (Some(address.to_string()), None),
        Range::Network(network) => (None, Some(network.to_string())),
    };
    let firewall = firewall.iter().map(|rule| {
        let (address, network) = range(&rule.range);
        json!({ "rule_type": rule.rule_type, "ip_address": address, "ip_cidr": network })
    });
    let countries =
        countries.iter().map(|rule| json!({ "country_code": rule.country.to_string(), "action": rule.action }));
    json!({ "firewall": firewall.collect::<Value>(), "geoip": countries.collect::<Value>() })
}

fn time(at: DateTime<Utc>) -> Value {
    at.to_rfc3339_opts(SecondsFormat::Micros, true).into()
}
