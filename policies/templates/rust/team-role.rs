//! Leaves some actions to the Team's owner.

use culvert::policy::types::{Role, Scope, Verdict};
use exports::culvert::policy::roles::Ask;
use serde::Deserialize;

culvert_policy_sdk::policy! {
    Policy: "team-role", wit: "wit",
    settings: "../settings.schema.json",
    rules: { "owner-only": "Some actions are for the owner alone" },
    codes: { "team_owner_required": "Only the Team's owner may do this. Ask them." },
}

/// What the operator writes under `settings`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Policy {
    /// Actions, as the API documentation names them.
    #[serde(default)]
    owner_only: Vec<String>,
}

impl Policy {
    fn check(&self, ask: &Ask) -> Verdict {
        let in_team = ask.caller.scope == Scope::Team;
        if in_team && ask.caller.role != Some(Role::Owner) && self.owner_only.contains(&ask.action) {
            let detail = format!("Only the Team's owner may do {}.", ask.action);
            return deny("team_owner_required", "owner-only", detail);
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
        assert_eq!(Policy::parse(r#"{"owner_only": ["tunnels.move"]}"#).unwrap().owner_only, ["tunnels.move"]);
        assert!(Policy::parse(r#"{"owners_only": []}"#).is_err());
    }
}
