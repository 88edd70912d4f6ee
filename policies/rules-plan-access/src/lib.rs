//! Plan access rules in CEL. They refuse requests; what plans include is left to the next module of the chain.

use culvert::policy::types::{Denial, Verdict};
use exports::culvert::policy::plans::{Ask, Entitlement};

culvert_policy_rules::rules_policy!("plan-access", question: Ask);
culvert_policy_rules::caller!();

culvert_policy_rules::question!(Ask, |ask| attributes: ask.attributes, {
    "action" => ask.action,
    "caller.account_id" => ask.caller.account_id,
    "caller.scope" => ask.caller.scope,
    "caller.scope_id" => ask.caller.scope_id,
    "caller.role" => ask.caller.role,
    "caller.plan" => ask.caller.plan,
    "usage.tunnels" => ask.usage.tunnels,
    "usage.webhook_endpoints" => ask.usage.webhook_endpoints,
    "usage.extra_ports" => ask.usage.extra_ports,
    "usage.bytes_this_month" => ask.usage.bytes_this_month,
    "wants.premium_network" => ask.wants.premium_network,
    "wants.extra_ports" => ask.wants.extra_ports,
    "wants.subdomain" => ask.wants.subdomain,
    "wants.domain" => ask.wants.domain,
});

impl Policy {
    #[expect(clippy::unused_self, reason = "the signature is the SDK's")]
    fn entitlements(&self, _plan: &str) -> Option<Entitlement> {
        None
    }

    fn check(&self, ask: &Ask) -> Verdict {
        match self.rules.matching(ask).next() {
            Some(rule) => {
                Verdict::Deny(Denial { code: rule.code.clone(), detail: rule.message.clone(), rule: rule.name.clone() })
            }
            None => Verdict::Allow,
        }
    }
}
