//! A plan of its own, in front of the shipped ones.

use culvert::policy::types::Verdict;
use exports::culvert::policy::plans::{Ask, Entitlement};

culvert_policy_sdk::policy! {
    StartupPlan: "plan-access", wit: "../../../wit",
    settings: "../settings.schema.json",
    rules: { "startup-tunnels": "The plan `startup` includes so many tunnels" },
    codes: { "plan_limit_reached": "The plan's tunnels are used up. Delete one, or change the plan." },
}

#[derive(serde::Deserialize)]
struct StartupPlan {
    tunnels: u32,
}

impl StartupPlan {
    fn entitlements(&self, plan: &str) -> Option<Entitlement> {
        (plan == "startup").then(|| Entitlement {
            api_access: true,
            remote_actions: ["start", "stop", "restart", "stop_all"].map(String::from).into(),
            tunnel_limit: Some(self.tunnels),
            bandwidth_limit_bytes: Some(50_000_000_000),
            custom_domains: true,
            ..nothing()
        })
    }

    fn check(&self, ask: &Ask) -> Verdict {
        let (asked, used) = (ask.caller.plan == "startup", ask.usage.tunnels >= self.tunnels);
        if !asked || !used || ask.action != "tunnels.create" {
            return Verdict::Allow;
        }
        deny("plan_limit_reached", "startup-tunnels", format!("startup includes {} tunnels.", self.tunnels))
    }
}
