//! Custom domains of http tunnels.

use culvert_api_types::custom_domain::CustomDomainResponse;
use culvert_api_types::deleted::DeletedDomain;
use culvert_api_types::read::{Body, NoBody};
use culvert_api_types::requests;
use culvert_domain::facts::Resource;
use culvert_service::domains::{AssignDomain, RemoveDomain, VerifyDomain};

use super::call::Call;
use super::reply::{HandlerResult, Single};

pub(crate) async fn read(call: Call, (): ()) -> HandlerResult<Single<CustomDomainResponse>> {
    let (tunnel, domain) = call.service().custom_domain(&call.caller, call.id()?).await?;
    call.reply(Single(CustomDomainResponse::new(domain, tunnel.cname_target())))
}

pub(crate) async fn verify(
    call: Call,
    body: Body<requests::VerifyDomain>,
) -> HandlerResult<Single<CustomDomainResponse>> {
    let tunnel_id = call.id()?;
    let admitted = call.admit(Resource::Tunnel(tunnel_id), body).await?;
    let target = call.service().tunnel(&call.caller, tunnel_id).await?.cname_target();
    let found = call.service().check_cname(&admitted.valid, &target).await;
    let change = |domain| VerifyDomain { tunnel_id, domain, found: found.clone() };
    call.commit(admitted, change, move |domain| Single(CustomDomainResponse::new(Some(domain), target.clone()))).await
}

pub(crate) async fn assign(
    call: Call,
    body: Body<requests::AssignDomain>,
) -> HandlerResult<Single<CustomDomainResponse>> {
    let tunnel_id = call.id()?;
    let admitted = call.admit(Resource::Tunnel(tunnel_id), body).await?;
    let target = call.service().tunnel(&call.caller, tunnel_id).await?.cname_target();
    let change = |domain| AssignDomain { tunnel_id, domain };
    call.commit(admitted, change, move |domain| Single(CustomDomainResponse::new(Some(domain), target.clone()))).await
}

pub(crate) async fn remove(call: Call, body: Body<NoBody>) -> HandlerResult<Single<DeletedDomain>> {
    let tunnel_id = call.id()?;
    let admitted = call.admit(Resource::Tunnel(tunnel_id), body).await?;
    call.commit(admitted, |()| RemoveDomain { tunnel_id }, |domain| Single(DeletedDomain::new(domain))).await
}
