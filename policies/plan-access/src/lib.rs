//! The default plan-access policy: what each plan includes, from the operator's settings.

mod plan;
mod rules;

use culvert::policy::types::{Code, Description, Problem, Rule, Verdict};
use exports::culvert::policy::plans::{Ask, Entitlement};
use plan::{Plan, Plans, Settings};

culvert_policy_sdk::policy!(Policy: "plan-access", wit: "../../wit");

struct Policy {
    plans: Plans,
}

impl Policy {
    fn describe() -> Description {
        Description {
            name: "plan-access".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            summary: "What each plan includes, by the settings".into(),
            rules: rules::RULES.map(|(id, summary)| Rule { id: id.into(), summary: summary.into() }).into(),
            codes: rules::CODES.map(|(code, text)| Code { code: code.into(), text: text.into() }).into(),
            settings_schema: include_str!("../settings.schema.json").into(),
        }
    }

    fn configure(settings: Settings) -> Result<Self, Vec<Problem>> {
        Ok(Self { plans: settings.into_plans() })
    }

    fn entitlements(&self, plan: &str) -> Option<Entitlement> {
        self.plans.get(plan).map(Plan::entitlement)
    }

    fn check(&self, ask: &Ask) -> Verdict {
        match rules::judge(self.plans.get(&ask.caller.plan), ask) {
            Some(denial) => Verdict::Deny(denial),
            None => Verdict::Allow,
        }
    }
}
