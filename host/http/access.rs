//! Who may visit a tunnel: firewall and GeoIP rules.

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::Serialize;
use uuid::Uuid;

use super::call::Call;
use super::reply::{HandlerResult, Single};
use super::tunnels;
use crate::gate::Body;
use crate::service::access::{ReplaceCountryRules, ReplaceFirewall, ReplacedCountryRules};
use culvert_domain::access::{CountryAction, CountryRule, FirewallRule, Range, RuleType};
use culvert_domain::input;
use culvert_store::facts::Resource;

/// Firewall rules
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Firewall")]
pub struct FirewallResponse {
    rules: Vec<FirewallRuleResponse>,
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

impl From<Vec<FirewallRule>> for FirewallResponse {
    fn from(rules: Vec<FirewallRule>) -> Self {
        Self { rules: rules.into_iter().map(FirewallRuleResponse::from).collect() }
    }
}

pub async fn firewall(call: Call, (): ()) -> HandlerResult<Single<FirewallResponse>> {
    let tunnel = tunnels::of(&call).await?;
    let rules = call.api.service.store.firewall(tunnel.id).await?;
    call.reply(Single(rules.into()))
}

pub async fn replace_firewall(
    call: Call,
    body: Body<input::ReplaceFirewall>,
) -> HandlerResult<Single<FirewallResponse>> {
    let tunnel_id = call.id()?;
    let admitted = call.admit(Resource::Tunnel(tunnel_id), body).await?;
    let change = |rules| ReplaceFirewall { tunnel_id, rules };
    call.commit(admitted, change, |rules: Vec<FirewallRule>| Single(FirewallResponse::from(rules))).await
}

/// GeoIP rules
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Geoip")]
pub struct GeoipResponse {
    rules: Vec<GeoipRuleResponse>,
    /// False while the tunnel's node has no country database: then no visitor's country is known.
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
    fn new(rules: Vec<CountryRule>, enforced: bool) -> Self {
        let rule =
            |rule: CountryRule| GeoipRuleResponse { country_code: rule.country.to_string(), action: rule.action };
        Self { rules: rules.into_iter().map(rule).collect(), enforced }
    }
}

pub async fn geoip(call: Call, (): ()) -> HandlerResult<Single<GeoipResponse>> {
    let tunnel = tunnels::of(&call).await?;
    let rules = call.api.service.store.country_rules(tunnel.id).await?;
    call.reply(Single(GeoipResponse::new(rules, tunnel.node.knows_countries)))
}

pub async fn replace_geoip(call: Call, body: Body<input::ReplaceGeoip>) -> HandlerResult<Single<GeoipResponse>> {
    let tunnel_id = call.id()?;
    let admitted = call.admit(Resource::Tunnel(tunnel_id), body).await?;
    let change = |rules| ReplaceCountryRules { tunnel_id, rules };
    let answer = |replaced| {
        let ReplacedCountryRules { rules, enforced } = replaced;
        Single(GeoipResponse::new(rules, enforced))
    };
    call.commit(admitted, change, answer).await
}
