//! The settings of a module of rules. Its JSON Schema has been checked by the host.

use culvert_policy_sdk::time::Offset;
use serde::Deserialize;

#[derive(Debug, Deserialize)]
pub struct Settings {
    /// What the module calls itself.
    pub name: Option<String>,
    /// The time zone of `now` and other times.
    #[serde(default)]
    pub utc_offset: Offset,
    pub rules: Vec<Rule>,
}

#[derive(Debug, Deserialize)]
pub struct Rule {
    pub name: String,
    /// The request is refused where this is true.
    pub when: String,
    /// The code of a denial; empty in rules of input.
    #[serde(default)]
    pub code: String,
    /// The field that a violation names; empty in other rules.
    #[serde(default)]
    pub field: String,
    /// A sentence for the client.
    pub message: String,
}
