//! Presets: what a known game or application needs.

use uuid::Uuid;

use super::protocol::Protocol;
use super::string_enum::string_enum;

string_enum! {
    PresetCategory {
        Game "game",
        Application "app",
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preset {
    pub id: Uuid,
    pub slug: String,
    pub name: String,
    pub category: PresetCategory,
    pub protocol: Protocol,
    pub local_port: u16,
    pub extra_ports: Vec<PresetPort>,
    pub icon_url: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PresetPort {
    pub local_port: u16,
    pub label: Option<String>,
    pub protocol: Protocol,
}
