//! API scopes: what a key may be used for (specification, "Authentication").
//!
//! In this code a *scope* is whose resources they are; what a key may do is a *grant*.

use super::word::{Word, words};

words! {
    /// One API scope.
    Grant {
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

impl Grant {
    /// What it permits, as the specification says it.
    pub fn permission(self) -> &'static str {
        match self {
            Grant::AccountRead => "read account, usage, scope presets",
            Grant::TunnelsRead => "read tunnels, catalog, usage, sessions",
            Grant::TunnelsWrite => "create and configure tunnels",
            Grant::TunnelsControl => "start, stop, restart tunnels",
            Grant::DevicesRead => "read devices",
            Grant::DevicesWrite => "rename owned devices or disable remote control",
            Grant::DevicesControl => "stop all tunnels on a device or restart an agent",
            Grant::OperationsRead => "read asynchronous operation results",
            Grant::WebhooksRead => "read webhooks and delivery history",
            Grant::WebhooksWrite => "create, update, test, delete webhooks",
        }
    }
}

/// A set of grants, a bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grants(u16);

impl Grants {
    pub fn of(grants: &[Grant]) -> Self {
        Self(grants.iter().fold(0, |bits, grant| bits | 1 << *grant as u16))
    }

    pub fn contains(self, grant: Grant) -> bool {
        self.0 & (1 << grant as u16) != 0
    }

    pub fn iter(self) -> impl Iterator<Item = Grant> {
        Grant::ALL.iter().copied().filter(move |grant| self.contains(*grant))
    }

    /// Words separated by spaces or commas, or the name of a preset.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Some(preset) = GrantPreset::ALL.iter().find(|preset| preset.id == text) {
            return Ok(preset.grants());
        }
        let words = text.split([',', ' ']).map(str::trim).filter(|word| !word.is_empty());
        let grants = words.map(|word| {
            Grant::parse(word).ok_or_else(|| {
                let presets = GrantPreset::ALL.map(|preset| preset.id).join(", ");
                format!("`{word}` is no scope; the scopes are {}, the presets {presets}", Grant::list())
            })
        });
        match grants.collect::<Result<Vec<_>, _>>()?.as_slice() {
            [] => Err("at least one scope is needed".into()),
            grants => Ok(Self::of(grants)),
        }
    }

    /// Separated by spaces.
    pub fn to_words(self) -> String {
        self.iter().map(Word::word).collect::<Vec<_>>().join(" ")
    }
}

/// A named set of grants, for `GET /scope-presets` and the command line.
pub struct GrantPreset {
    pub id: &'static str,
    pub name: &'static str,
    pub description: &'static str,
    grants: &'static [Grant],
}

const READS: [Grant; 5] =
    [Grant::AccountRead, Grant::TunnelsRead, Grant::DevicesRead, Grant::OperationsRead, Grant::WebhooksRead];

impl GrantPreset {
    pub const ALL: [GrantPreset; 5] = [
        GrantPreset {
            id: "read_only",
            name: "Read only",
            description: "Read everything, change nothing",
            grants: &READS,
        },
        GrantPreset {
            id: "operator",
            name: "Operator",
            description: "Read everything, run tunnels and devices",
            grants: &[
                Grant::AccountRead,
                Grant::TunnelsRead,
                Grant::DevicesRead,
                Grant::OperationsRead,
                Grant::WebhooksRead,
                Grant::TunnelsControl,
                Grant::DevicesControl,
            ],
        },
        GrantPreset {
            id: "tunnel_manager",
            name: "Tunnel manager",
            description: "Create, configure and run tunnels",
            grants: &[
                Grant::AccountRead,
                Grant::TunnelsRead,
                Grant::TunnelsWrite,
                Grant::TunnelsControl,
                Grant::DevicesRead,
                Grant::OperationsRead,
            ],
        },
        GrantPreset {
            id: "webhook_manager",
            name: "Webhook manager",
            description: "Create and configure webhook endpoints",
            grants: &[Grant::AccountRead, Grant::WebhooksRead, Grant::WebhooksWrite],
        },
        GrantPreset {
            id: "full_access",
            name: "Full access",
            description: "Everything that the API offers",
            grants: Grant::ALL,
        },
    ];

    pub fn grants(&self) -> Grants {
        Grants::of(self.grants)
    }
}
