//! Keeps subdomains for the customers that they were promised to.

use std::collections::BTreeMap;

use culvert::policy::types::{Code, Denial, Description, Problem, Rule, Verdict};
use exports::culvert::policy::plans::{Ask, Entitlement};
use serde::Deserialize;

culvert_policy_sdk::policy!(Policy: "plan-access", wit: "wit");

const RULE: &str = "reserved-subdomain";
const CODE: &str = "subdomain_reserved";

/// What the operator writes under `settings`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// Subdomains, each with the scopes (accounts or Teams, by id) that may have it.
    #[serde(default)]
    reserved: BTreeMap<String, Vec<String>>,
}

struct Policy {
    reserved: BTreeMap<String, Vec<String>>,
}

impl Policy {
    fn describe() -> Description {
        Description {
            name: env!("CARGO_PKG_NAME").into(),
            version: env!("CARGO_PKG_VERSION").into(),
            summary: "Keeps subdomains for the customers that they were promised to".into(),
            rules: vec![Rule { id: RULE.into(), summary: "A reserved subdomain is for its customers alone".into() }],
            codes: vec![Code {
                code: CODE.into(),
                text: "The subdomain is reserved for another customer. Choose another one.".into(),
            }],
            settings_schema: include_str!("../settings.schema.json").into(),
        }
    }

    fn configure(settings: Settings) -> Result<Self, Vec<Problem>> {
        Ok(Self { reserved: settings.reserved })
    }

    /// Plans are the business of the next module in the chain.
    fn entitlements(&self, _plan: &str) -> Option<Entitlement> {
        None
    }

    fn check(&self, ask: &Ask) -> Verdict {
        let subdomain = ask.wants.subdomain.as_deref().unwrap_or_default().to_ascii_lowercase();
        match self.reserved.get(&subdomain) {
            Some(scopes) if !scopes.contains(&ask.caller.scope_id) => Verdict::Deny(Denial {
                code: CODE.into(),
                detail: format!("The subdomain {subdomain} is reserved."),
                rule: RULE.into(),
            }),
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
        let settings = Settings::parse(r#"{"reserved": {"acme": ["a"]}}"#).unwrap();
        assert_eq!(settings.reserved["acme"], ["a"]);
        assert!(Settings::parse(r#"{"resreved": {}}"#).is_err());
    }
}
