//! API scopes: what a key may be used for; see `docs/develop/decisions/0010-keys-and-rate-limits.md`.
//!
//! In this code a *scope* is whose resources they are; what a key may do is a *permission*.

use super::string_enum::{StringEnum, string_enum};

string_enum! {
    /// One API scope.
    #[schemars(rename = "Grant")]
    Permission {
        AccountRead "account:read",
        TunnelsRead "tunnels:read",
        TunnelsWrite "tunnels:write",
        TunnelsControl "tunnels:control",
        DevicesRead "devices:read",
        DevicesWrite "devices:write",
        DevicesControl "devices:control",
        OperationsRead "operations:read",
        WebhooksRead "webhooks:read",
        WebhooksWrite "webhooks:write",
    }
}

impl Permission {
    /// What it permits, in the words of the API's description.
    pub fn description(self) -> &'static str {
        match self {
            Permission::AccountRead => "read account, usage, scope presets",
            Permission::TunnelsRead => "read tunnels, catalog, usage, sessions",
            Permission::TunnelsWrite => "create and configure tunnels",
            Permission::TunnelsControl => "start, stop, restart tunnels",
            Permission::DevicesRead => "read devices",
            Permission::DevicesWrite => "rename owned devices or disable remote control",
            Permission::DevicesControl => "stop all tunnels on a device or restart an agent",
            Permission::OperationsRead => "read asynchronous operation results",
            Permission::WebhooksRead => "read webhooks and delivery history",
            Permission::WebhooksWrite => "create, update, test, delete webhooks",
        }
    }
}

/// A set of grants, a bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Permissions(u16);

impl Permissions {
    pub fn of(permissions: &[Permission]) -> Self {
        Self(permissions.iter().fold(0, |bits, permission| bits | 1 << *permission as u16))
    }

    pub fn contains(self, permission: Permission) -> bool {
        self.0 & (1 << permission as u16) != 0
    }

    pub fn iter(self) -> impl Iterator<Item = Permission> {
        Permission::ALL.iter().copied().filter(move |permission| self.contains(*permission))
    }

    /// Words separated by spaces or commas, or the name of a preset.
    ///
    /// # Errors
    ///
    /// If one of the words is unknown, or there is none.
    pub fn parse(text: &str) -> Result<Self, PermissionsError> {
        if let Some(preset) = PermissionPreset::ALL.iter().find(|preset| preset.id == text) {
            return Ok(preset.permissions());
        }
        let words = text.split([',', ' ']).map(str::trim).filter(|word| !word.is_empty());
        let permissions =
            words.map(|word| Permission::parse(word).ok_or_else(|| PermissionsError::Unknown(word.into())));
        match permissions.collect::<Result<Vec<_>, _>>()?.as_slice() {
            [] => Err(PermissionsError::None),
            permissions => Ok(Self::of(permissions)),
        }
    }

    /// Separated by spaces.
    pub fn to_words(self) -> String {
        self.iter().map(StringEnum::as_str).collect::<Vec<_>>().join(" ")
    }
}

/// Why a text names no permissions.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PermissionsError {
    #[error(
        "`{0}` is no scope; the scopes are {scopes}, the presets {presets}",
        scopes = Permission::list(), presets = PermissionPreset::ALL.map(|preset| preset.id).join(", ")
    )]
    Unknown(String),
    #[error("at least one scope is needed")]
    None,
}

/// A named set of permissions, for `GET /scope-presets` and the command line.
pub struct PermissionPreset {
    pub id: &'static str,
    pub name: &'static str,
    pub description: &'static str,
    permissions: &'static [Permission],
}

const READS: [Permission; 5] = [
    Permission::AccountRead,
    Permission::TunnelsRead,
    Permission::DevicesRead,
    Permission::OperationsRead,
    Permission::WebhooksRead,
];

impl PermissionPreset {
    pub const ALL: [PermissionPreset; 5] = [
        PermissionPreset {
            id: "read_only",
            name: "Read only",
            description: "Read everything, change nothing",
            permissions: &READS,
        },
        PermissionPreset {
            id: "operator",
            name: "Operator",
            description: "Read everything, run tunnels and devices",
            permissions: &[
                Permission::AccountRead,
                Permission::TunnelsRead,
                Permission::DevicesRead,
                Permission::OperationsRead,
                Permission::WebhooksRead,
                Permission::TunnelsControl,
                Permission::DevicesControl,
            ],
        },
        PermissionPreset {
            id: "tunnel_manager",
            name: "Tunnel manager",
            description: "Create, configure and run tunnels",
            permissions: &[
                Permission::AccountRead,
                Permission::TunnelsRead,
                Permission::TunnelsWrite,
                Permission::TunnelsControl,
                Permission::DevicesRead,
                Permission::OperationsRead,
            ],
        },
        PermissionPreset {
            id: "webhook_manager",
            name: "Webhook manager",
            description: "Create and configure webhook endpoints",
            permissions: &[Permission::AccountRead, Permission::WebhooksRead, Permission::WebhooksWrite],
        },
        PermissionPreset {
            id: "full_access",
            name: "Full access",
            description: "Everything that the API offers",
            permissions: Permission::ALL,
        },
    ];

    pub fn permissions(&self) -> Permissions {
        Permissions::of(self.permissions)
    }
}
