//! A policy that prints and panics, to see what becomes of that.

use culvert::policy::types::Verdict;
use exports::culvert::policy::roles::Ask;

culvert_policy_sdk::policy! {
    Loud: "team-role", wit: "../../wit",
    rules: { "loud": "Never decides" },
}

#[derive(serde::Deserialize)]
struct Loud {}

impl Loud {
    fn check(&self, ask: &Ask) -> Verdict {
        culvert_policy_sdk::debug!("asked for {}", ask.action);
        assert!(ask.action != "tunnels.delete", "nobody deletes");
        Verdict::Allow
    }
}
