//! The kinds of policies, and the interfaces and functions of `wit/` by which they are called.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The version of `wit/` that this host offers.
pub const INTERFACE_VERSION: &str = "1.0.0";

/// What a policy decides; each kind is a world of `wit/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "tools", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    PlanAccess,
    TeamRole,
    Validation,
}

impl Kind {
    pub const ALL: [Kind; 3] = [Kind::PlanAccess, Kind::TeamRole, Kind::Validation];

    /// The world's name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::PlanAccess => "plan-access",
            Kind::TeamRole => "team-role",
            Kind::Validation => "validation",
        }
    }

    /// The interface that holds the world's decision.
    pub(crate) fn interface(self) -> &'static str {
        match self {
            Kind::PlanAccess => "plans",
            Kind::TeamRole => "roles",
            Kind::Validation => "inputs",
        }
    }

    /// The interface's name as a component exports it.
    pub fn export(self) -> String {
        format!("culvert:policy/{}@{INTERFACE_VERSION}", self.interface())
    }

    /// The name of the function that decides.
    pub fn decision(self) -> &'static str {
        match self {
            Kind::PlanAccess | Kind::TeamRole => "check",
            Kind::Validation => "validate",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
