//! Leaves some actions to the Team's owner.

use culvert::policy::types::{Code, Denial, Description, Problem, Role, Rule, Scope, Verdict};
use exports::culvert::policy::roles::Ask;
use serde::Deserialize;

culvert_policy_sdk::policy!(Policy: "team-role", wit: "wit");

const RULE: &str = "owner-only";
const CODE: &str = "team_owner_required";

/// What the operator writes under `settings`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// Actions, as the API documentation names them.
    #[serde(default)]
    owner_only: Vec<String>,
}

struct Policy {
    owner_only: Vec<String>,
}

impl Policy {
    fn describe() -> Description {
        Description {
            name: env!("CARGO_PKG_NAME").into(),
            version: env!("CARGO_PKG_VERSION").into(),
            summary: "Leaves some actions to the Team's owner".into(),
            rules: vec![Rule { id: RULE.into(), summary: "Some actions are for the owner alone".into() }],
            codes: vec![Code { code: CODE.into(), text: "Only the Team's owner may do this. Ask them.".into() }],
            settings_schema: include_str!("../settings.schema.json").into(),
        }
    }

    fn configure(settings: Settings) -> Result<Self, Vec<Problem>> {
        Ok(Self { owner_only: settings.owner_only })
    }

    fn check(&self, ask: &Ask) -> Verdict {
        let in_team = ask.caller.scope == Scope::Team;
        if in_team && ask.caller.role != Some(Role::Owner) && self.owner_only.contains(&ask.action) {
            return Verdict::Deny(Denial {
                code: CODE.into(),
                detail: format!("Only the Team's owner may do {}.", ask.action),
                rule: RULE.into(),
            });
        }
        Verdict::Allow
    }
}

#[cfg(test)]
mod tests {
    use culvert_policy_sdk::Settings as _;

    use super::*;

    #[test]
    fn settings_are_read() {
        assert_eq!(Settings::parse(r#"{"owner_only": ["tunnels.move"]}"#).unwrap().owner_only, ["tunnels.move"]);
        assert!(Settings::parse(r#"{"owners_only": []}"#).is_err());
    }
}
