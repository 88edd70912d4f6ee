//! Team role rules in CEL.

use culvert::policy::types::{Denial, Verdict};
use culvert_policy_rules::{ToValue, Value, map};
use exports::culvert::policy::roles::{Ask, Device, Part};

culvert_policy_rules::rules_policy!("team-role", question: Ask);
culvert_policy_rules::caller!();

culvert_policy_rules::question!(Ask, |ask| attributes: ask.attributes, {
    "action" => ask.action,
    "caller.account_id" => ask.caller.account_id,
    "caller.scope" => ask.caller.scope,
    "caller.scope_id" => ask.caller.scope_id,
    "caller.role" => ask.caller.role,
    "caller.plan" => ask.caller.plan,
    "tunnel.id" => ask.tunnel.as_ref().map(|tunnel| &tunnel.id),
    "tunnel.created_by_caller" => ask.tunnel.as_ref().map(|tunnel| tunnel.created_by_caller),
    "devices" => ask.devices,
});

impl ToValue for Device {
    fn to_value(&self) -> Value {
        let part = match self.part {
            Part::Target => "target",
            Part::Yields => "yields",
        };
        map([
            ("id", self.id.to_value()),
            ("part", part.to_value()),
            ("owned_by_caller", self.owned_by_caller.to_value()),
            ("owner_active", self.owner_active.to_value()),
        ])
    }
}

impl Policy {
    fn check(&self, ask: &Ask) -> Verdict {
        match self.rules.matching(ask).next() {
            Some(rule) => {
                Verdict::Deny(Denial { code: rule.code.clone(), detail: rule.message.clone(), rule: rule.name.clone() })
            }
            None => Verdict::Allow,
        }
    }
}
