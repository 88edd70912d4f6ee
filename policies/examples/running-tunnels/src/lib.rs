//! Limits how many tunnels run at once, by role.

use std::collections::HashMap;

use culvert::policy::types::Verdict;
use culvert_policy_sdk::facts::{CALLER_ROLE, TUNNEL_RUNNING, USAGE_CALLERS_RUNNING_TUNNELS};
use exports::culvert::policy::roles::Ask;

culvert_policy_sdk::policy! {
    RunningTunnels: "team-role", wit: "../../../wit",
    settings: "../settings.schema.json",
    facts: [CALLER_ROLE, TUNNEL_RUNNING, USAGE_CALLERS_RUNNING_TUNNELS],
    rules: { "running-tunnels": "A role may run so many of its own tunnels at once" },
    codes: { "too_many_running_tunnels": "Stop one of your tunnels before you start another one." },
}

#[derive(serde::Deserialize)]
struct RunningTunnels {
    limits: HashMap<String, u32>,
}

impl RunningTunnels {
    fn check(&self, ask: &Ask) -> Verdict {
        let role = CALLER_ROLE.of(&ask.attributes).unwrap_or_default();
        let running = USAGE_CALLERS_RUNNING_TUNNELS.of(&ask.attributes).unwrap_or(u32::MAX);
        let starts = ask.action == "tunnels.start" && TUNNEL_RUNNING.of(&ask.attributes) != Some(true);
        match self.limits.get(&role) {
            Some(limit) if starts && running >= *limit => {
                let detail = format!("A {role} may run {limit} tunnels at once.");
                deny("too_many_running_tunnels", "running-tunnels", detail)
            }
            _ => Verdict::Allow,
        }
    }
}
