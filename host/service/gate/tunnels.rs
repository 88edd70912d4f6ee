//! Admission of requests about tunnels: request bodies and their validated forms.

use std::ops::RangeInclusive;

use uuid::Uuid;

use super::local_service::{LocalServiceChange, check_service};
use super::{DeviceRole, RequestDraft, UsageRequest, check_text, led};
use culvert_api_types::read::Nullable;
use culvert_api_types::requests::{BindDevices, Input, MoveTunnel, NewExtraPort, NewTunnel, StartTunnel, TunnelPatch};
use culvert_domain::caller::Caller;
use culvert_domain::error::{Fault, Result};
use culvert_domain::facts::ResourceFacts;
use culvert_domain::local_service::LocalService;
use culvert_domain::plan::Entitlement;
use culvert_domain::port::{self, EXTRA_PORTS_PER_TUNNEL, SUBDOMAIN_WITH_EXTRA_PORTS, valid};
use culvert_domain::protocol::Protocol;
use culvert_domain::tunnel::{DEFAULT_BUFFER_SIZE, TunnelSpec};
use culvert_store::Store;

/// Limits of the idle timeout in seconds, as the API defines them.
const IDLE_TIMEOUT: RangeInclusive<u32> = 30..=3600;
/// Limits of the buffer size in bytes, as the API defines them.
const BUFFER_SIZE: RangeInclusive<u32> = 1024..=1_048_576;

/// A validated request to create a tunnel.
#[derive(Clone, Debug)]
pub struct TunnelDefinition {
    pub spec: TunnelSpec,
    pub basic_auth_password: Option<String>,
    pub device_ids: Vec<Uuid>,
    pub extra_ports: Vec<port::NewExtraPort>,
}

impl RequestDraft for NewTunnel {
    type Valid = TunnelDefinition;

    /// Values of the request take precedence; the preset supplies those that it leaves out.
    async fn resolve(&mut self, store: &Store, caller: &Caller) -> Result<Vec<Fault>> {
        let mut faults = unknown_devices(store, caller, self.device_ids.as_deref().unwrap_or_default()).await?;
        let Some(preset_id) = self.game_preset_id else { return Ok(faults) };
        match store.preset(preset_id).await? {
            Some(preset) => {
                self.name.get_or_insert(preset.name);
                self.protocol.get_or_insert(preset.protocol);
                self.extra_ports.get_or_insert_with(|| {
                    let extra = |port: culvert_domain::preset::PresetPort| NewExtraPort {
                        local_port: Some(port.local_port.into()),
                        label: port.label,
                        protocol: Some(port.protocol),
                    };
                    preset.extra_ports.into_iter().map(extra).collect()
                });
            }
            None => faults.push(Fault::new("game_preset_id", "is no preset; `GET /presets` lists them")),
        }
        Ok(faults)
    }

    fn input(&self) -> Option<Input<'_>> {
        Some(Input::TunnelCreate(self))
    }

    fn wants(&self) -> UsageRequest {
        UsageRequest {
            premium_network: self.pro_network == Some(true),
            extra_ports: self.extra_ports.as_ref().map_or(0, |ports| u32::try_from(ports.len()).unwrap_or(u32::MAX)),
            subdomain: self.subdomain.clone(),
            domain: None,
        }
    }

    fn validate(self, _: &ResourceFacts, entitlement: &Entitlement) -> Result<TunnelDefinition, Vec<Fault>> {
        let mut faults = Vec::new();
        let protocol = self.protocol.unwrap_or(Protocol::Tcp);
        let basic_auth = self.http_basic_auth_enabled.unwrap_or(false);
        let service = LocalServiceChange::of_new(&self).applied_to(LocalService::default());
        let local_port = required_port(self.local_port, "local_port", &mut faults);
        let subdomain = self.subdomain.map(|subdomain| subdomain.to_ascii_lowercase());
        if subdomain.as_deref().is_some_and(|subdomain| !is_label(subdomain)) {
            faults.push(Fault::new("subdomain", "must be a DNS label"));
        }
        check_text(self.name.as_deref(), "name", &mut faults);
        check_text(self.local_host.as_deref(), "local_host", &mut faults);
        check_text(self.http_basic_auth_username.as_deref(), "http_basic_auth_username", &mut faults);
        let idle_timeout = bounded(self.idle_timeout, IDLE_TIMEOUT, "idle_timeout", &mut faults);
        let buffer_size = bounded(self.buffer_size, BUFFER_SIZE, "buffer_size", &mut faults);
        check_service(&service, protocol, basic_auth, &mut faults);
        let extra_ports = self.extra_ports.unwrap_or_default();
        if extra_ports.len() > EXTRA_PORTS_PER_TUNNEL as usize {
            faults.push(Fault::new("extra_ports", format!("must hold at most {EXTRA_PORTS_PER_TUNNEL} ports")));
        }
        let extra = extra_ports.into_iter().take(EXTRA_PORTS_PER_TUNNEL as usize).enumerate();
        let path = |index| format!("extra_ports[{index}].");
        let named = subdomain.as_deref();
        let extra_ports =
            extra.map(|(index, port)| extra_port(port, (protocol, named), &path(index), &mut faults)).collect();
        let spec = TunnelSpec {
            name: self.name.unwrap_or_else(|| format!("{protocol}-{local_port}")),
            protocol,
            local_host: self.local_host.unwrap_or_else(|| "127.0.0.1".into()),
            local_port,
            subdomain,
            region: self.region,
            country: self.country.map(|country| country.to_ascii_uppercase()),
            preset_id: self.game_preset_id,
            https: self.http_ssl_enabled.unwrap_or(true),
            basic_auth,
            basic_auth_user: self.http_basic_auth_username,
            idle_timeout,
            buffer_size: buffer_size.unwrap_or(DEFAULT_BUFFER_SIZE),
            pro_network: self.pro_network.unwrap_or(entitlement.premium_network),
            service,
        };
        let definition = TunnelDefinition {
            spec,
            basic_auth_password: self.http_basic_auth_password,
            device_ids: distinct(self.device_ids.unwrap_or_default()),
            extra_ports,
        };
        if faults.is_empty() { Ok(definition) } else { Err(faults) }
    }
}

/// Checks an extra port of a tunnel with this protocol and subdomain.
fn extra_port(
    port: NewExtraPort,
    (tunnel, subdomain): (Protocol, Option<&str>),
    path: &str,
    faults: &mut Vec<Fault>,
) -> port::NewExtraPort {
    let NewExtraPort { local_port, label, protocol } = port;
    // An extra port of an http tunnel is plain TCP unless it says otherwise.
    let own = if tunnel == Protocol::Http { Protocol::Tcp } else { tunnel };
    let protocol = protocol.unwrap_or(own);
    if protocol == Protocol::Http && tunnel != Protocol::Http {
        faults.push(Fault::new(format!("{path}protocol"), "http ports are for http tunnels only"));
    }
    if protocol == Protocol::Http && subdomain.is_some_and(|name| name.len() > SUBDOMAIN_WITH_EXTRA_PORTS) {
        let problem = format!("http ports need a subdomain of at most {SUBDOMAIN_WITH_EXTRA_PORTS} characters");
        faults.push(Fault::new(format!("{path}protocol"), problem));
    }
    let local_port = required_port(local_port, &format!("{path}local_port"), faults);
    check_text(label.as_deref(), &format!("{path}label"), faults);
    port::NewExtraPort { local_port, protocol, label }
}

impl RequestDraft for NewExtraPort {
    type Valid = port::NewExtraPort;

    fn input(&self) -> Option<Input<'_>> {
        Some(Input::ExtraPortCreate(self))
    }

    fn wants(&self) -> UsageRequest {
        UsageRequest { extra_ports: 1, ..UsageRequest::default() }
    }

    /// The devices that would forward visitors to the new local port.
    fn devices(&self, facts: &ResourceFacts) -> Vec<(Uuid, DeviceRole)> {
        led(facts)
    }

    fn validate(self, facts: &ResourceFacts, _: &Entitlement) -> Result<port::NewExtraPort, Vec<Fault>> {
        let mut faults = Vec::new();
        let spec = facts.tunnel.as_ref().map(|tunnel| &tunnel.spec);
        let tunnel = spec.map_or((Protocol::Tcp, None), |spec| (spec.protocol, spec.subdomain.as_deref()));
        let port = extra_port(self, tunnel, "", &mut faults);
        if faults.is_empty() { Ok(port) } else { Err(faults) }
    }
}

impl RequestDraft for MoveTunnel {
    /// The id of the new node.
    type Valid = Uuid;

    async fn resolve(&mut self, store: &Store, _: &Caller) -> Result<Vec<Fault>> {
        let Some(node_id) = self.node_id else { return Ok(Vec::new()) };
        let known = store.nodes().await?.iter().any(|node| node.id == node_id);
        Ok(if known { Vec::new() } else { vec![Fault::new("node_id", "is no node; `GET /nodes` lists them")] })
    }

    fn input(&self) -> Option<Input<'_>> {
        Some(Input::TunnelMove(self))
    }

    fn validate(self, _: &ResourceFacts, _: &Entitlement) -> Result<Uuid, Vec<Fault>> {
        self.node_id.ok_or_else(|| vec![Fault::new("node_id", "is required")])
    }
}

/// A validated change of a tunnel. Absent fields keep their value.
#[derive(Clone, Debug)]
pub struct TunnelChange {
    pub name: Option<String>,
    pub local_host: Option<String>,
    pub local_port: Option<u16>,
    pub https: Option<bool>,
    pub basic_auth: Option<bool>,
    pub basic_auth_user: Nullable<String>,
    pub basic_auth_password: Nullable<String>,
    pub idle_timeout: Nullable<u32>,
    pub buffer_size: Option<u32>,
    pub pro_network: Option<bool>,
    pub service: LocalServiceChange,
}

impl TunnelChange {
    /// The definition after the change.
    pub fn applied_to(self, spec: TunnelSpec) -> TunnelSpec {
        TunnelSpec {
            name: self.name.unwrap_or(spec.name),
            local_host: self.local_host.unwrap_or(spec.local_host),
            local_port: self.local_port.unwrap_or(spec.local_port),
            https: self.https.unwrap_or(spec.https),
            basic_auth: self.basic_auth.unwrap_or(spec.basic_auth),
            basic_auth_user: self.basic_auth_user.unwrap_or(spec.basic_auth_user),
            idle_timeout: self.idle_timeout.unwrap_or(spec.idle_timeout),
            buffer_size: self.buffer_size.unwrap_or(spec.buffer_size),
            pro_network: self.pro_network.unwrap_or(spec.pro_network),
            service: self.service.applied_to(spec.service),
            ..spec
        }
    }
}

impl RequestDraft for TunnelPatch {
    type Valid = TunnelChange;

    fn input(&self) -> Option<Input<'_>> {
        Some(Input::TunnelUpdate(self))
    }

    fn wants(&self) -> UsageRequest {
        UsageRequest { premium_network: self.pro_network == Some(true), ..UsageRequest::default() }
    }

    /// The devices that a change of the target redirects. None if the request repeats the current target.
    fn devices(&self, facts: &ResourceFacts) -> Vec<(Uuid, DeviceRole)> {
        let Some(tunnel) = &facts.tunnel else { return Vec::new() };
        let leads = self.local_host.as_ref().is_some_and(|host| *host != tunnel.spec.local_host)
            || self.local_port.is_some_and(|port| port != i64::from(tunnel.spec.local_port));
        if leads { led(facts) } else { Vec::new() }
    }

    fn validate(self, facts: &ResourceFacts, _: &Entitlement) -> Result<TunnelChange, Vec<Fault>> {
        let mut faults = Vec::new();
        if self == Self::default() {
            faults.push(Fault::new("body", "at least one field is required"));
        }
        check_text(self.name.as_deref(), "name", &mut faults);
        check_text(self.local_host.as_deref(), "local_host", &mut faults);
        let user = self.http_basic_auth_username.as_ref().and_then(|user| user.as_deref());
        check_text(user, "http_basic_auth_username", &mut faults);
        let idle_timeout = self.idle_timeout.map(|value| bounded(value, IDLE_TIMEOUT, "idle_timeout", &mut faults));
        let buffer_size = self.buffer_size.map(|value| bounded(value, BUFFER_SIZE, "buffer_size", &mut faults));
        let service = LocalServiceChange::of_patch(&self);
        if let Some(tunnel) = &facts.tunnel {
            let basic_auth = self.http_basic_auth_enabled.unwrap_or(tunnel.spec.basic_auth);
            let service = service.clone().applied_to(tunnel.spec.service.clone());
            check_service(&service, tunnel.spec.protocol, basic_auth, &mut faults);
        }
        let change = TunnelChange {
            name: self.name,
            local_host: self.local_host,
            local_port: self.local_port.map(|port| required_port(Some(port), "local_port", &mut faults)),
            https: self.http_ssl_enabled,
            basic_auth: self.http_basic_auth_enabled,
            basic_auth_user: self.http_basic_auth_username,
            basic_auth_password: self.http_basic_auth_password,
            idle_timeout,
            buffer_size: buffer_size.map(|bytes| bytes.unwrap_or(DEFAULT_BUFFER_SIZE)),
            pro_network: self.pro_network,
            service,
        };
        if faults.is_empty() { Ok(change) } else { Err(faults) }
    }
}

impl RequestDraft for BindDevices {
    type Valid = Vec<Uuid>;

    async fn resolve(&mut self, store: &Store, caller: &Caller) -> Result<Vec<Fault>> {
        unknown_devices(store, caller, self.device_ids.as_deref().unwrap_or_default()).await
    }

    fn input(&self) -> Option<Input<'_>> {
        Some(Input::DeviceBindings(self))
    }

    fn validate(self, _: &ResourceFacts, _: &Entitlement) -> Result<Vec<Uuid>, Vec<Fault>> {
        let ids = self.device_ids.ok_or_else(|| vec![Fault::new("device_ids", "is required")])?;
        Ok(distinct(ids))
    }
}

/// The device on which a tunnel is to be started, and whether it may be handed off from another one.
#[derive(Clone, Copy, Debug)]
pub struct StartChoice {
    pub device_id: Uuid,
    pub handoff: bool,
}

impl RequestDraft for StartTunnel {
    type Valid = StartChoice;

    async fn resolve(&mut self, store: &Store, caller: &Caller) -> Result<Vec<Fault>> {
        let Some(device_id) = self.device_id else { return Ok(Vec::new()) };
        let known = store.device(caller.scope.id, device_id).await?.is_some();
        Ok(if known { Vec::new() } else { vec![Fault::new("device_id", "is no device of this scope")] })
    }

    fn input(&self) -> Option<Input<'_>> {
        Some(Input::TunnelStart(self))
    }

    fn devices(&self, facts: &ResourceFacts) -> Vec<(Uuid, DeviceRole)> {
        let running = facts.tunnel.as_ref().and_then(|tunnel| tunnel.run.as_ref()).map(|run| run.device_id);
        let target = self.device_id.or(running);
        let yields = running.filter(|running| self.handoff == Some(true) && Some(*running) != target);
        let target = target.map(|id| (id, DeviceRole::Target));
        target.into_iter().chain(yields.map(|id| (id, DeviceRole::Source))).collect()
    }

    fn validate(self, facts: &ResourceFacts, _: &Entitlement) -> Result<StartChoice, Vec<Fault>> {
        let running = facts.tunnel.as_ref().and_then(|tunnel| tunnel.run.as_ref()).map(|run| run.device_id);
        match self.device_id.or(running) {
            Some(device_id) => Ok(StartChoice { device_id, handoff: self.handoff.unwrap_or(false) }),
            None => Err(vec![Fault::new("device_id", "is required while the tunnel is not running")]),
        }
    }
}

/// Faults the ids of devices that the scope does not have. A device of another scope gets the same fault
/// as an unknown one.
async fn unknown_devices(store: &Store, caller: &Caller, ids: &[Uuid]) -> Result<Vec<Fault>> {
    let mut faults = Vec::new();
    // The limit bounds the lookups: a list of more than 100 devices is refused anyway.
    for (index, id) in ids.iter().enumerate().take(100) {
        if store.device(caller.scope.id, *id).await?.is_none() {
            faults.push(Fault::new(format!("device_ids[{index}]"), "is no device of this scope"));
        }
    }
    Ok(faults)
}

fn distinct(mut ids: Vec<Uuid>) -> Vec<Uuid> {
    ids.sort_unstable();
    ids.dedup();
    ids
}

fn required_port(port: Option<i64>, field: &str, faults: &mut Vec<Fault>) -> u16 {
    match port {
        None => faults.push(Fault::new(field, "is required")),
        Some(port) => match valid(port) {
            Some(port) => return port,
            None => faults.push(Fault::new(field, "must be between 1 and 65535")),
        },
    }
    0
}

fn bounded(value: Option<i64>, range: RangeInclusive<u32>, field: &str, faults: &mut Vec<Fault>) -> Option<u32> {
    let value = value?;
    let fits = u32::try_from(value).ok().filter(|value| range.contains(value));
    if fits.is_none() {
        faults.push(Fault::new(field, format!("must be between {} and {}", range.start(), range.end())));
    }
    fits
}

/// Whether a text is a host name label of 1 to 63 characters (RFC 1123, section 2.1), in lower case. It is
/// checked whatever the policy says.
pub(super) fn is_label(label: &str) -> bool {
    (1..=63).contains(&label.len())
        && label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !label.starts_with('-')
        && !label.ends_with('-')
}
