//! Who may visit a tunnel: firewall and GeoIP rules.

use culvert_api_types::access::{FirewallResponse, GeoipResponse};
use culvert_api_types::read::Body;
use culvert_api_types::requests;
use culvert_domain::facts::Resource;
use culvert_service::access::{CountryRules, FirewallRules, ReplaceCountryRules, ReplaceFirewall};

use super::call::Call;
use super::reply::{HandlerResult, Single};

pub(crate) async fn firewall(call: Call, (): ()) -> HandlerResult<Single<FirewallResponse>> {
    let FirewallRules { rules, enforced } = call.service().firewall(&call.caller, call.id()?).await?;
    call.reply(Single(FirewallResponse::new(rules, enforced)))
}

pub(crate) async fn replace_firewall(
    call: Call,
    body: Body<requests::ReplaceFirewall>,
) -> HandlerResult<Single<FirewallResponse>> {
    let tunnel_id = call.id()?;
    let admitted = call.admit(Resource::Tunnel(tunnel_id), body).await?;
    let change = |rules| ReplaceFirewall { tunnel_id, rules };
    let answer = |FirewallRules { rules, enforced }| Single(FirewallResponse::new(rules, enforced));
    call.commit(admitted, change, answer).await
}

pub(crate) async fn geoip(call: Call, (): ()) -> HandlerResult<Single<GeoipResponse>> {
    let CountryRules { rules, enforced } = call.service().country_rules(&call.caller, call.id()?).await?;
    call.reply(Single(GeoipResponse::new(rules, enforced)))
}

pub(crate) async fn replace_geoip(
    call: Call,
    body: Body<requests::ReplaceGeoip>,
) -> HandlerResult<Single<GeoipResponse>> {
    let tunnel_id = call.id()?;
    let admitted = call.admit(Resource::Tunnel(tunnel_id), body).await?;
    let change = |rules| ReplaceCountryRules { tunnel_id, rules };
    let answer = |CountryRules { rules, enforced }| Single(GeoipResponse::new(rules, enforced));
    call.commit(admitted, change, answer).await
}
