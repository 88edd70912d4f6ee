//! What the platform offers: nodes, presets, domains, and sets of scopes for keys.

use schemars::JsonSchema;
use serde::Serialize;
use uuid::Uuid;

use super::call::Call;
use super::reply::{Answer, Found};
use crate::domain::grant::{Grant, GrantPreset};
use crate::domain::node::{Node, NodeStatus, PlatformDomain};
use crate::domain::preset::{Preset, PresetCategory, PresetPort};
use crate::domain::tunnel::Protocol;

/// Node
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Node")]
pub struct NodeOut {
    id: Uuid,
    name: String,
    /// A slug.
    region: String,
    /// ISO 3166-1 alpha-2.
    country: String,
    region_flag: Option<String>,
    /// Only an `online` node takes new tunnels.
    status: NodeStatus,
    /// Whether it takes tunnels of the premium network only.
    pro_only: bool,
}

impl From<Node> for NodeOut {
    fn from(node: Node) -> Self {
        let Node { id, name, region, country, region_flag, status, pro_only, .. } = node;
        Self { id, name, region, country, region_flag, status, pro_only }
    }
}

pub async fn nodes(call: Call, (): ()) -> Answer<Found<Vec<NodeOut>>> {
    let nodes = call.app.store.nodes().await?;
    call.reply(Found(nodes.into_iter().map(NodeOut::from).collect()))
}

/// Preset
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Preset")]
pub struct PresetOut {
    id: Uuid,
    slug: String,
    name: String,
    category: PresetCategory,
    protocol: Protocol,
    local_port: u16,
    extra_ports: Vec<PresetPortOut>,
    icon_url: Option<String>,
}

/// A port that a preset needs beside the main one.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "PresetPort")]
pub struct PresetPortOut {
    local_port: u16,
    label: Option<String>,
    protocol: Protocol,
}

impl From<Preset> for PresetOut {
    fn from(preset: Preset) -> Self {
        let Preset { id, slug, name, category, protocol, local_port, extra_ports, icon_url } = preset;
        let port = |PresetPort { local_port, label, protocol }| PresetPortOut { local_port, label, protocol };
        let extra_ports = extra_ports.into_iter().map(port).collect();
        Self { id, slug, name, category, protocol, local_port, extra_ports, icon_url }
    }
}

pub async fn presets(call: Call, (): ()) -> Answer<Found<Vec<PresetOut>>> {
    let presets = call.app.store.presets().await?;
    call.reply(Found(presets.into_iter().map(PresetOut::from).collect()))
}

/// Platform domain
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "PlatformDomain")]
pub struct DomainOut {
    id: Uuid,
    domain: String,
    is_default: bool,
    region: Option<String>,
    pro_only: bool,
}

impl From<PlatformDomain> for DomainOut {
    fn from(domain: PlatformDomain) -> Self {
        let PlatformDomain { id, domain, is_default, region, pro_only } = domain;
        Self { id, domain, is_default, region, pro_only }
    }
}

pub async fn domains(call: Call, (): ()) -> Answer<Found<Vec<DomainOut>>> {
    let domains = call.app.store.platform_domains().await?;
    call.reply(Found(domains.into_iter().map(DomainOut::from).collect()))
}

/// Scope preset
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ScopePreset")]
pub struct ScopePresetOut {
    id: &'static str,
    name: &'static str,
    description: &'static str,
    scopes: Vec<Grant>,
}

pub async fn scope_presets(call: Call, (): ()) -> Answer<Found<Vec<ScopePresetOut>>> {
    let preset = |preset: &GrantPreset| ScopePresetOut {
        id: preset.id,
        name: preset.name,
        description: preset.description,
        scopes: preset.grants().iter().collect(),
    };
    call.reply(Found(GrantPreset::ALL.iter().map(preset).collect()))
}
