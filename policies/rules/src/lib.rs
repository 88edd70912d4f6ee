//! Rules whose conditions are written in CEL (Common Expression Language, <https://cel.dev>): what the modules
//! `builtin:rules-plan-access`, `builtin:rules-team-role` and `builtin:rules-validation` share.
//!
//! Conditions are compiled once, in `configure`. A condition that cannot be evaluated for a request ends the decision
//! with a panic, which the host takes as a failure of the module: nothing is let through.

mod condition;
mod functions;
mod module;
mod names;
mod question;
mod rule_set;
#[cfg(test)]
mod sample;
mod settings;
mod value;

pub use cel::Value;
pub use culvert_policy_sdk as sdk;
pub use question::Question;
pub use rule_set::{Problem, RuleSet};
pub use settings::{Rule, Settings};
pub use value::{ToValue, map};
