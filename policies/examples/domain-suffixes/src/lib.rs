//! Custom domains lie below known suffixes.

use culvert::policy::types::Violation;
use culvert_policy_sdk::pattern::is_domain_or_below;
use exports::culvert::policy::inputs::{Facts, Input};

culvert_policy_sdk::policy! {
    DomainSuffixes: "validation", wit: "../../../wit",
    settings: "../settings.schema.json",
    rules: { "domain-suffix": "Custom domains lie below one of the suffixes" },
}

#[derive(serde::Deserialize)]
struct DomainSuffixes {
    suffixes: Vec<String>,
}

impl DomainSuffixes {
    fn validate(&self, input: &Input, _: &Facts) -> Vec<Violation> {
        let (Input::DomainAssign(named) | Input::DomainVerify(named)) = input else { return Vec::new() };
        let Some(domain) = &named.domain else { return Vec::new() };
        if self.suffixes.iter().any(|suffix| is_domain_or_below(domain, suffix)) {
            return Vec::new();
        }
        vec![violation("domain", "domain-suffix", format!("must lie below {}", self.suffixes.join(" or ")))]
    }
}
