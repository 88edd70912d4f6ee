//! Presets of the catalogue (`GET /v2/presets`), as commands name them.

use std::str::FromStr;

use uuid::Uuid;

/// What a preset stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preset {
    pub slug: &'static str,
    pub id: Uuid,
    pub protocol: &'static str,
    pub local_port: u16,
    /// The local ports beside it.
    pub extra_ports: &'static [u16],
}

const fn preset(
    number: u128,
    slug: &'static str,
    protocol: &'static str,
    local_port: u16,
    extra_ports: &'static [u16],
) -> Preset {
    let id = Uuid::from_u128(0x0191_a0c4_0000_7000_8000_0000_0000_0000 + number);
    Preset { slug, id, protocol, local_port, extra_ports }
}

/// All of them. A host has the same.
pub const PRESETS: [Preset; 10] = [
    preset(1, "minecraft-java", "tcp", 25565, &[]),
    preset(2, "minecraft-bedrock", "udp", 19132, &[]),
    preset(3, "valheim", "udp", 2456, &[2457]),
    preset(4, "terraria", "tcp", 7777, &[]),
    preset(5, "rust", "udp", 28015, &[28016]),
    preset(6, "7-days-to-die", "both", 26900, &[]),
    preset(7, "palworld", "udp", 8211, &[]),
    preset(8, "ssh", "tcp", 22, &[]),
    preset(9, "rdp", "both", 3389, &[]),
    preset(10, "http", "http", 8080, &[]),
];

impl FromStr for Preset {
    type Err = String;

    fn from_str(slug: &str) -> Result<Self, String> {
        let found = PRESETS.into_iter().find(|preset| preset.slug == slug);
        found.ok_or_else(|| format!("must be one of {}", PRESETS.map(|preset| preset.slug).join(", ")))
    }
}
