//! Which check has refused a request.

use serde::{Deserialize, Serialize};

use super::string_enum::string_enum;

string_enum! {
    /// The checks of a request, in the order in which they are made.
    Stage {
        Rate "rate",
        Route "route",
        Permission "permission",
        Body "body",
        Replay "replay",
        Resource "resource",
        PlanAccess "plan-access",
        TeamRole "team-role",
        Validation "validation",
        State "state",
    }
}

/// A module of a policy, as it was loaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyModule {
    pub name: String,
    pub version: String,
    pub sha256: String,
}

/// What a policy has refused, and on what facts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedBy {
    pub stage: Stage,
    /// The rule that refuses the request. Where fields are refused, their faults name the rules.
    pub rule: Option<String>,
    /// The number of the set of policies.
    pub generation: u64,
    pub modules: Vec<PolicyModule>,
    /// What the module was asked, as JSON in the names of the interface, without secrets. Empty if it is too long.
    pub question: String,
    /// The secrets of the question, to be masked in what a module says. They are kept nowhere.
    pub secrets: Vec<String>,
}
