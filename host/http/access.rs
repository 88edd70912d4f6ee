//! Who may visit a tunnel: firewall and GeoIP rules.

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::Serialize;
use uuid::Uuid;

use super::call::Call;
use super::reply::{Answer, Found};
use super::tunnels;
use crate::domain::access::{CountryAction, CountryRule, FirewallRule, Range, RuleType};
use crate::domain::input;
use crate::gate::Body;
use crate::store::change::access::{ReplaceCountryRules, ReplaceFirewall, ReplacedCountryRules};
use crate::store::facts::Subject;

/// Firewall rules
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Firewall")]
pub struct FirewallOut {
    rules: Vec<FirewallRuleOut>,
}

/// Firewall rule
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "FirewallRule")]
pub struct FirewallRuleOut {
    id: Uuid,
    rule_type: RuleType,
    ip_address: Option<String>,
    /// With all host bits zero.
    ip_cidr: Option<String>,
    description: Option<String>,
    created_at: DateTime<Utc>,
}

impl From<FirewallRule> for FirewallRuleOut {
    fn from(rule: FirewallRule) -> Self {
        let FirewallRule { id, rule_type, range, description, created_at } = rule;
        let (ip_address, ip_cidr) = match range {
            Range::Address(address) => (Some(address.to_string()), None),
            Range::Network(network) => (None, Some(network.to_string())),
        };
        Self { id, rule_type, ip_address, ip_cidr, description, created_at }
    }
}

impl From<Vec<FirewallRule>> for FirewallOut {
    fn from(rules: Vec<FirewallRule>) -> Self {
        Self { rules: rules.into_iter().map(FirewallRuleOut::from).collect() }
    }
}

pub async fn firewall(call: Call, (): ()) -> Answer<Found<FirewallOut>> {
    let tunnel = tunnels::of(&call).await?;
    let rules = call.app.store.firewall(tunnel.id).await?;
    call.reply(Found(rules.into()))
}

pub async fn replace_firewall(call: Call, body: Body<input::ReplaceFirewall>) -> Answer<Found<FirewallOut>> {
    let tunnel_id = call.id()?;
    let admitted = call.admit(Subject::Tunnel(tunnel_id), body).await?;
    let app = call.app.clone();
    let change = |rules| ReplaceFirewall { tunnel_id, rules };
    let answer = call.commit(admitted, change, |rules: Vec<FirewallRule>| Found(FirewallOut::from(rules))).await?;
    app.nodes.apply(tunnel_id).await;
    Ok(answer)
}

/// GeoIP rules
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Geoip")]
pub struct GeoipOut {
    rules: Vec<GeoipRuleOut>,
    /// False while the tunnel's node has no country database: then no visitor's country is known.
    enforced: bool,
}

/// GeoIP rule
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "GeoipRule")]
pub struct GeoipRuleOut {
    /// ISO 3166-1 alpha-2.
    country_code: String,
    action: CountryAction,
}

impl GeoipOut {
    fn new(rules: Vec<CountryRule>, enforced: bool) -> Self {
        let rule = |rule: CountryRule| GeoipRuleOut { country_code: rule.country.to_string(), action: rule.action };
        Self { rules: rules.into_iter().map(rule).collect(), enforced }
    }
}

pub async fn geoip(call: Call, (): ()) -> Answer<Found<GeoipOut>> {
    let tunnel = tunnels::of(&call).await?;
    let rules = call.app.store.country_rules(tunnel.id).await?;
    call.reply(Found(GeoipOut::new(rules, tunnel.node.knows_countries)))
}

pub async fn replace_geoip(call: Call, body: Body<input::ReplaceGeoip>) -> Answer<Found<GeoipOut>> {
    let tunnel_id = call.id()?;
    let admitted = call.admit(Subject::Tunnel(tunnel_id), body).await?;
    let app = call.app.clone();
    let change = |rules| ReplaceCountryRules { tunnel_id, rules };
    let answer = |replaced| {
        let ReplacedCountryRules { rules, enforced } = replaced;
        Found(GeoipOut::new(rules, enforced))
    };
    let answer = call.commit(admitted, change, answer).await?;
    app.nodes.apply(tunnel_id).await;
    Ok(answer)
}
