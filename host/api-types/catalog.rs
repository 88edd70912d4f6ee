//! What the platform offers: nodes, presets, domains, and sets of scopes for keys.

use schemars::JsonSchema;
use serde::Serialize;
use uuid::Uuid;

use culvert_domain::node::{Node, NodeStatus, PlatformDomain};
use culvert_domain::permission::{Permission, PermissionPreset};
use culvert_domain::preset::{Preset, PresetCategory, PresetPort};
use culvert_domain::protocol::Protocol;

/// Node
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Node")]
pub struct NodeResponse {
    id: Uuid,
    name: String,
    /// A slug.
    region: String,
    /// ISO 3166-1 alpha-2.
    country: String,
    region_flag: Option<String>,
    /// Only an `online` node takes new tunnels. `degraded` and `offline` as well where the node's host is not heard of.
    status: NodeStatus,
    /// Whether it takes tunnels of the premium network only.
    pro_only: bool,
}

impl From<Node> for NodeResponse {
    fn from(node: Node) -> Self {
        let status = node.shown_status();
        let Node { id, name, region, country, region_flag, pro_only, .. } = node;
        Self { id, name, region, country, region_flag, status, pro_only }
    }
}

/// Preset
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Preset")]
pub struct PresetResponse {
    id: Uuid,
    slug: String,
    name: String,
    category: PresetCategory,
    protocol: Protocol,
    local_port: u16,
    extra_ports: Vec<PresetPortResponse>,
    icon_url: Option<String>,
}

/// A port that a preset needs beside the main one.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "PresetPort")]
pub struct PresetPortResponse {
    local_port: u16,
    label: Option<String>,
    protocol: Protocol,
}

impl From<Preset> for PresetResponse {
    fn from(preset: Preset) -> Self {
        let Preset { id, slug, name, category, protocol, local_port, extra_ports, icon_url } = preset;
        let port = |PresetPort { local_port, label, protocol }| PresetPortResponse { local_port, label, protocol };
        let extra_ports = extra_ports.into_iter().map(port).collect();
        Self { id, slug, name, category, protocol, local_port, extra_ports, icon_url }
    }
}

/// Platform domain
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "PlatformDomain")]
pub struct DomainResponse {
    id: Uuid,
    domain: String,
    is_default: bool,
    region: Option<String>,
    pro_only: bool,
}

impl From<PlatformDomain> for DomainResponse {
    fn from(domain: PlatformDomain) -> Self {
        let PlatformDomain { id, domain, is_default, region, pro_only } = domain;
        Self { id, domain, is_default, region, pro_only }
    }
}

/// Scope preset
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ScopePreset")]
pub struct ScopePresetResponse {
    id: &'static str,
    name: &'static str,
    description: &'static str,
    scopes: Vec<Permission>,
}

impl From<&'static PermissionPreset> for ScopePresetResponse {
    fn from(preset: &'static PermissionPreset) -> Self {
        let PermissionPreset { id, name, description, .. } = preset;
        Self { id, name, description, scopes: preset.permissions().iter().collect() }
    }
}
