//! Admission of access rules for visitors: request bodies and their validated forms.

use super::RequestDraft;
use culvert_api_types::requests::{self, Input, ReplaceFirewall, ReplaceGeoip};
use culvert_domain::access::{
    COUNTRY_RULES, Country, CountryAction, CountryRule, FIREWALL_RULES, NewFirewallRule, Range,
};
use culvert_domain::error::{Fault, Result};
use culvert_domain::facts::ResourceFacts;
use culvert_domain::plan::Entitlement;
use culvert_domain::text;

impl RequestDraft for ReplaceFirewall {
    type Valid = Vec<NewFirewallRule>;

    fn input(&self) -> Option<Input<'_>> {
        Some(Input::FirewallReplace(self))
    }

    fn validate(self, _: &ResourceFacts, _: &Entitlement) -> Result<Vec<NewFirewallRule>, Vec<Fault>> {
        let rules = listed(self.rules, FIREWALL_RULES)?;
        collect(rules.into_iter().map(firewall_rule))
    }
}

/// Validates a firewall rule. A fault's field is a path in the rule, empty for the rule itself.
fn firewall_rule(rule: requests::NewFirewallRule) -> Result<NewFirewallRule, (&'static str, &'static str)> {
    let rule_type = rule.rule_type.ok_or((".rule_type", "is required"))?;
    let range = match (&rule.ip_address, &rule.ip_cidr) {
        (Some(address), None) => Range::address(address).ok_or((".ip_address", "must be an IPv4 or IPv6 address"))?,
        (None, Some(range)) => Range::network(range).ok_or((".ip_cidr", "must be an address or CIDR range"))?,
        _ => return Err(("", "must have exactly one of ip_address and ip_cidr")),
    };
    if let Some(message) = rule.description.as_deref().and_then(text::fault) {
        return Err((".description", message));
    }
    Ok(NewFirewallRule { rule_type, range, description: rule.description })
}

impl RequestDraft for ReplaceGeoip {
    type Valid = Vec<CountryRule>;

    fn input(&self) -> Option<Input<'_>> {
        Some(Input::GeoipReplace(self))
    }

    fn validate(self, _: &ResourceFacts, _: &Entitlement) -> Result<Vec<CountryRule>, Vec<Fault>> {
        let rules = listed(self.rules, COUNTRY_RULES)?;
        let mut seen = Vec::new();
        collect(rules.into_iter().map(|rule| {
            let code = rule.country_code.ok_or((".country_code", "is required"))?;
            let country = Country::parse(&code).ok_or((".country_code", "must be two letters"))?;
            if seen.contains(&country) {
                return Err((".country_code", "stands in the list before it"));
            }
            seen.push(country);
            Ok(CountryRule { country, action: rule.action.unwrap_or(CountryAction::Block) })
        }))
    }
}

fn listed<T>(rules: Option<Vec<T>>, most: usize) -> Result<Vec<T>, Vec<Fault>> {
    let rules = rules.ok_or_else(|| vec![Fault::new("rules", "is required")])?;
    if rules.len() > most {
        return Err(vec![Fault::new("rules", format!("must hold at most {most} rules"))]);
    }
    Ok(rules)
}

/// All rules, or the faults of those that are invalid.
fn collect<T>(rules: impl Iterator<Item = Result<T, (&'static str, &'static str)>>) -> Result<Vec<T>, Vec<Fault>> {
    let (mut valid, mut faults) = (Vec::new(), Vec::new());
    for (index, rule) in rules.enumerate() {
        match rule {
            Ok(rule) => valid.push(rule),
            Err((field, message)) => faults.push(Fault::new(format!("rules[{index}]{field}"), message)),
        }
    }
    if faults.is_empty() { Ok(valid) } else { Err(faults) }
}
