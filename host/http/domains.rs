//! Custom domains of http tunnels.

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::Serialize;

use super::call::Call;
use super::reply::{HandlerResult, Single};
use super::tunnels;
use crate::gate::{Body, NoBody};
use crate::service::domains::{AssignDomain, RemoveDomain, VerifyDomain};
use culvert_domain::custom_domain::{CustomDomain, CustomDomainStatus};
use culvert_domain::input;
use culvert_store::facts::Resource;

/// Custom domain
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "CustomDomain")]
pub struct CustomDomainResponse {
    /// The name that was verified or assigned last.
    domain: Option<String>,
    status: CustomDomainStatus,
    /// What the domain's CNAME must be. It is this tunnel's alone.
    cname_target: String,
    verified_at: Option<DateTime<Utc>>,
    last_checked_at: Option<DateTime<Utc>>,
    /// Why the CNAME was not found, when it was looked for last.
    error: Option<LookupErrorResponse>,
    certificate: Option<CertificateResponse>,
}

/// Why a CNAME was not found: `cname_not_found`, `cname_mismatch`, `dns_failed`.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "LookupError")]
pub struct LookupErrorResponse {
    code: String,
    detail: String,
}

/// The certificate of an assigned domain.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Certificate")]
pub struct CertificateResponse {
    /// `none`, `pending`, `issued` or `failed`; this version's nodes have none.
    status: &'static str,
    expires_at: Option<DateTime<Utc>>,
    error: Option<String>,
}

impl CustomDomainResponse {
    fn new(domain: Option<CustomDomain>, cname_target: String) -> Self {
        let Some(domain) = domain else {
            let status = CustomDomainStatus::None;
            return Self {
                domain: None,
                status,
                cname_target,
                verified_at: None,
                last_checked_at: None,
                error: None,
                certificate: None,
            };
        };
        let CustomDomain { domain, status, assigned, verified_at, last_checked_at, error, .. } = domain;
        let certificate = || CertificateResponse { status: "none", expires_at: None, error: None };
        Self {
            domain: Some(domain),
            status,
            cname_target,
            verified_at,
            last_checked_at: Some(last_checked_at),
            error: error.map(|error| LookupErrorResponse { code: error.code, detail: error.detail }),
            certificate: assigned.then(certificate),
        }
    }
}

pub async fn read(call: Call, (): ()) -> HandlerResult<Single<CustomDomainResponse>> {
    let tunnel = tunnels::of(&call).await?;
    let domain = call.api.service.store.custom_domain(tunnel.id).await?;
    call.reply(Single(CustomDomainResponse::new(domain, tunnel.cname_target())))
}

pub async fn verify(call: Call, body: Body<input::VerifyDomain>) -> HandlerResult<Single<CustomDomainResponse>> {
    let tunnel_id = call.id()?;
    let admitted = call.admit(Resource::Tunnel(tunnel_id), body).await?;
    let target = tunnels::of(&call).await?.cname_target();
    let found = call.api.service.guard.check_cname(&admitted.valid, &target).await;
    let change = |domain| VerifyDomain { tunnel_id, domain, found: found.clone() };
    call.commit(admitted, change, move |domain| Single(CustomDomainResponse::new(Some(domain), target.clone()))).await
}

pub async fn assign(call: Call, body: Body<input::AssignDomain>) -> HandlerResult<Single<CustomDomainResponse>> {
    let tunnel_id = call.id()?;
    let admitted = call.admit(Resource::Tunnel(tunnel_id), body).await?;
    let target = tunnels::of(&call).await?.cname_target();
    let change = |domain| AssignDomain { tunnel_id, domain };
    call.commit(admitted, change, move |domain| Single(CustomDomainResponse::new(Some(domain), target.clone()))).await
}

/// A custom domain that is gone
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "DeletedDomain")]
pub struct DeletedResponse {
    domain: String,
    /// Always true.
    #[schemars(extend("const" = true))]
    deleted: bool,
}

pub async fn remove(call: Call, body: Body<NoBody>) -> HandlerResult<Single<DeletedResponse>> {
    let tunnel_id = call.id()?;
    let admitted = call.admit(Resource::Tunnel(tunnel_id), body).await?;
    let answer = |domain| Single(DeletedResponse { domain, deleted: true });
    call.commit(admitted, |()| RemoveDomain { tunnel_id }, answer).await
}
