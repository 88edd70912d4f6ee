//! Keeps subdomains for the customers that they were promised to.

use std::collections::BTreeMap;

use culvert::policy::types::Verdict;
use exports::culvert::policy::plans::{Ask, Entitlement};
use serde::Deserialize;

culvert_policy_sdk::policy! {
    Policy: "plan-access", wit: "wit",
    settings: "../settings.schema.json",
    rules: { "reserved-subdomain": "A reserved subdomain is for its customers alone" },
    codes: { "subdomain_reserved": "The subdomain is reserved for another customer. Choose another one." },
}

/// What the operator writes under `settings`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Policy {
    /// Subdomains, each with the scopes (accounts or Teams, by id) that may have it.
    #[serde(default)]
    reserved: BTreeMap<String, Vec<String>>,
}

impl Policy {
    /// Plans are the business of the next module in the chain.
    fn entitlements(&self, _plan: &str) -> Option<Entitlement> {
        None
    }

    fn check(&self, ask: &Ask) -> Verdict {
        let subdomain = ask.wants.subdomain.as_deref().unwrap_or_default().to_ascii_lowercase();
        match self.reserved.get(&subdomain) {
            Some(scopes) if !scopes.contains(&ask.caller.scope_id) => {
                deny("subdomain_reserved", "reserved-subdomain", format!("The subdomain {subdomain} is reserved."))
            }
            _ => Verdict::Allow,
        }
    }
}

#[cfg(test)]
mod tests {
    use culvert_policy_sdk::Settings as _;

    use super::*;

    #[test]
    fn settings_are_read() {
        let policy = Policy::parse(r#"{"reserved": {"acme": ["a"]}}"#).unwrap();
        assert_eq!(policy.reserved["acme"], ["a"]);
        assert!(Policy::parse(r#"{"resreved": {}}"#).is_err());
    }
}
