//! Who may visit a tunnel: firewall and GeoIP rules.

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::Serialize;
use uuid::Uuid;

use culvert_domain::access::{CountryAction, CountryRule, FirewallRule, Range, RuleType};

/// Firewall rules
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Firewall")]
pub struct FirewallResponse {
    rules: Vec<FirewallRuleResponse>,
    /// False where the tunnel's node may go by earlier rules: its host is not heard of, or, in the answer to a change, it has not applied these within 2 seconds.
    enforced: bool,
}

/// Firewall rule
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "FirewallRule")]
pub struct FirewallRuleResponse {
    id: Uuid,
    rule_type: RuleType,
    ip_address: Option<String>,
    /// With all host bits zero.
    ip_cidr: Option<String>,
    description: Option<String>,
    created_at: DateTime<Utc>,
}

impl From<FirewallRule> for FirewallRuleResponse {
    fn from(rule: FirewallRule) -> Self {
        let FirewallRule { id, rule_type, range, description, created_at } = rule;
        let (ip_address, ip_cidr) = match range {
            Range::Address(address) => (Some(address.to_string()), None),
            Range::Network(network) => (None, Some(network.to_string())),
        };
        Self { id, rule_type, ip_address, ip_cidr, description, created_at }
    }
}

impl FirewallResponse {
    pub fn new(rules: Vec<FirewallRule>, enforced: bool) -> Self {
        Self { rules: rules.into_iter().map(FirewallRuleResponse::from).collect(), enforced }
    }
}

/// GeoIP rules
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Geoip")]
pub struct GeoipResponse {
    rules: Vec<GeoipRuleResponse>,
    /// False while the tunnel's node has no country database: then no visitor's country is known. Also while it may go by earlier rules, as of the firewall.
    enforced: bool,
}

/// GeoIP rule
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "GeoipRule")]
pub struct GeoipRuleResponse {
    /// ISO 3166-1 alpha-2.
    country_code: String,
    action: CountryAction,
}

impl GeoipResponse {
    pub fn new(rules: Vec<CountryRule>, enforced: bool) -> Self {
        let rule =
            |rule: CountryRule| GeoipRuleResponse { country_code: rule.country.to_string(), action: rule.action };
        Self { rules: rules.into_iter().map(rule).collect(), enforced }
    }
}
