//! Starts tcp tunnels only if their GeoIP rules allow a country.

use culvert::policy::types::Verdict;
use culvert_policy_sdk::facts::{TUNNEL_PROTOCOL, TUNNEL_RULES};
use exports::culvert::policy::roles::Ask;

culvert_policy_sdk::policy! {
    Countries: "team-role", wit: "../../../wit",
    settings: "../settings.schema.json",
    facts: [TUNNEL_PROTOCOL, TUNNEL_RULES],
    rules: { "country-rules": "The tunnel's GeoIP rules allow one of the countries, and no other" },
    codes: { "country_rules_required": "Set GeoIP rules that allow only the given countries, then start the tunnel." },
}

#[derive(serde::Deserialize)]
struct Countries {
    countries: Vec<String>,
}

impl Countries {
    fn check(&self, ask: &Ask) -> Verdict {
        let tcp = TUNNEL_PROTOCOL.of(&ask.attributes).is_some_and(|protocol| protocol == "tcp");
        if ask.action != "tunnels.start" || !tcp {
            return Verdict::Allow;
        }
        let rules = TUNNEL_RULES.of(&ask.attributes).map(|rules| rules.geoip).unwrap_or_default();
        let mut allowed = rules.iter().filter(|rule| rule.action == "allow").peekable();
        if allowed.peek().is_some() && allowed.all(|rule| self.countries.contains(&rule.country_code)) {
            return Verdict::Allow;
        }
        let detail = format!("Its GeoIP rules must allow {} and no other.", self.countries.join(", "));
        deny("country_rules_required", "country-rules", detail)
    }
}
