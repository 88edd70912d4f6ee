//! The default validation policy: which request bodies are valid.

mod auth;
mod country;
mod devices;
mod findings;
mod local_service;
mod rules;
mod text;
mod traffic;
mod tunnels;
mod webhooks;

use culvert_policy_sdk::facts::{
    CURRENT_TLS_PASSTHROUGH, INPUT_HOST_HEADER, INPUT_LOCAL_SCHEME, INPUT_LOCAL_TLS_VERIFY, INPUT_PROXY_PROTOCOL,
    INPUT_TLS_PASSTHROUGH,
};

use culvert::policy::types::{Description, Problem, Rule, Violation};
use exports::culvert::policy::inputs::{Facts, Input};
use findings::Findings;
use serde::Deserialize;

culvert_policy_sdk::policy!(Policy: "validation", wit: "../../wit", facts: [
    CURRENT_TLS_PASSTHROUGH, INPUT_HOST_HEADER, INPUT_LOCAL_SCHEME, INPUT_LOCAL_TLS_VERIFY, INPUT_PROXY_PROTOCOL,
    INPUT_TLS_PASSTHROUGH
]);

struct Policy {
    settings: Settings,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Settings {
    /// Subdomains that nobody is given; `ns*` stands for every name that begins with `ns`.
    reserved_subdomains: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { reserved_subdomains: text::RESERVED_SUBDOMAINS.map(String::from).into() }
    }
}

impl Policy {
    fn describe() -> Description {
        Description {
            name: "validation".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            summary: "Lengths, formats and combinations of the fields of every request".into(),
            rules: rules::RULES.map(|(id, summary)| Rule { id: id.into(), summary: summary.into() }).into(),
            codes: Vec::new(),
            settings_schema: include_str!("../settings.schema.json").into(),
        }
    }

    fn configure(settings: Settings) -> Result<Self, Vec<Problem>> {
        Ok(Self { settings })
    }

    fn validate(&self, input: &Input, facts: &Facts) -> Vec<Violation> {
        let mut findings = Findings::new(&facts.faulted);
        let (current, attributes) = (facts.current.as_ref(), facts.attributes.as_slice());
        match input {
            Input::TunnelCreate(tunnel) => {
                tunnels::create(tunnel, attributes, &self.settings.reserved_subdomains, &mut findings);
            }
            Input::TunnelUpdate(change) => tunnels::update(change, current, attributes, &mut findings),
            Input::DeviceBindings(bindings) => devices::bindings(bindings, &mut findings),
            Input::TunnelStart(_) => {}
            Input::ExtraPortCreate(port) => tunnels::extra_port_create(port, current, &mut findings),
            Input::DomainAssign(name) | Input::DomainVerify(name) => traffic::domain(name, current, &mut findings),
            Input::FirewallReplace(firewall) => traffic::firewall(firewall, &mut findings),
            Input::GeoipReplace(geoip) => traffic::geoip(geoip, &mut findings),
            Input::TunnelMove(target) => findings.require("node_id", target.node_id.as_ref()),
            Input::DeviceUpdate(change) => devices::update(change, &mut findings),
            Input::WebhookCreate(webhook) => webhooks::create(webhook, &mut findings),
            Input::WebhookUpdate(change) => webhooks::update(change, &mut findings),
        }
        findings.into_violations()
    }
}
