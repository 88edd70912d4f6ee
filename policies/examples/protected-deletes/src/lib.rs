//! Deletes some tunnels by some keys only.

use culvert::policy::types::Verdict;
use culvert_policy_sdk::facts::{KEY_PRESET, TUNNEL_NAME};
use culvert_policy_sdk::pattern::is_glob_match;
use exports::culvert::policy::roles::Ask;

culvert_policy_sdk::policy! {
    ProtectedDeletes: "team-role", wit: "../../../wit",
    settings: "../settings.schema.json",
    facts: [KEY_PRESET, TUNNEL_NAME],
    rules: { "protected-delete": "Protected tunnels are deleted with keys of one preset" },
    codes: { "tunnel_protected": "The tunnel is protected. Use a key that may delete it." },
}

#[derive(serde::Deserialize)]
struct ProtectedDeletes {
    tunnels: String,
    preset: String,
}

impl ProtectedDeletes {
    fn check(&self, ask: &Ask) -> Verdict {
        let name = TUNNEL_NAME.of(&ask.attributes).unwrap_or_default();
        let may = KEY_PRESET.of(&ask.attributes).is_some_and(|preset| preset == self.preset);
        if ask.action != "tunnels.delete" || may || !is_glob_match(&self.tunnels, &name) {
            return Verdict::Allow;
        }
        deny("tunnel_protected", "protected-delete", format!("{name} is deleted with a key of {}.", self.preset))
    }
}
