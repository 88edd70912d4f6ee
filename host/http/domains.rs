//! Custom domains of http tunnels.

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::Serialize;

use super::call::Call;
use super::reply::{Answer, Found};
use super::tunnels;
use crate::domain::custom_domain::{CustomDomain, CustomDomainStatus};
use crate::domain::input;
use crate::gate::{Body, NoBody};
use crate::store::change::domains::{AssignDomain, RemoveDomain, VerifyDomain};
use crate::store::facts::Subject;

/// Custom domain
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "CustomDomain")]
pub struct CustomDomainOut {
    /// The name that was verified or assigned last.
    domain: Option<String>,
    status: CustomDomainStatus,
    /// What the domain's CNAME must be. It is this tunnel's alone.
    cname_target: String,
    verified_at: Option<DateTime<Utc>>,
    last_checked_at: Option<DateTime<Utc>>,
    /// Why the CNAME was not found, when it was looked for last.
    error: Option<LookupErrorOut>,
    certificate: Option<CertificateOut>,
}

/// Why a CNAME was not found: `cname_not_found`, `cname_mismatch`, `dns_failed`.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "LookupError")]
pub struct LookupErrorOut {
    code: String,
    detail: String,
}

/// The certificate of an assigned domain.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Certificate")]
pub struct CertificateOut {
    /// `none`, `pending`, `issued` or `failed`; this version's nodes have none.
    status: &'static str,
    expires_at: Option<DateTime<Utc>>,
    error: Option<String>,
}

impl CustomDomainOut {
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
        let certificate = || CertificateOut { status: "none", expires_at: None, error: None };
        Self {
            domain: Some(domain),
            status,
            cname_target,
            verified_at,
            last_checked_at: Some(last_checked_at),
            error: error.map(|error| LookupErrorOut { code: error.code, detail: error.detail }),
            certificate: assigned.then(certificate),
        }
    }
}

pub async fn read(call: Call, (): ()) -> Answer<Found<CustomDomainOut>> {
    let tunnel = tunnels::of(&call).await?;
    let domain = call.app.store.custom_domain(tunnel.id).await?;
    call.reply(Found(CustomDomainOut::new(domain, tunnel.cname_target())))
}

pub async fn verify(call: Call, body: Body<input::VerifyDomain>) -> Answer<Found<CustomDomainOut>> {
    let tunnel_id = call.id()?;
    let admitted = call.admit(Subject::Tunnel(tunnel_id), body).await?;
    let target = tunnels::of(&call).await?.cname_target();
    let found = call.app.guard.check_alias(&admitted.valid, &target).await;
    let change = |domain| VerifyDomain { tunnel_id, domain, found: found.clone() };
    call.commit(admitted, change, move |domain| Found(CustomDomainOut::new(Some(domain), target.clone()))).await
}

pub async fn assign(call: Call, body: Body<input::AssignDomain>) -> Answer<Found<CustomDomainOut>> {
    let tunnel_id = call.id()?;
    let admitted = call.admit(Subject::Tunnel(tunnel_id), body).await?;
    let target = tunnels::of(&call).await?.cname_target();
    let change = |domain| AssignDomain { tunnel_id, domain };
    call.commit(admitted, change, move |domain| Found(CustomDomainOut::new(Some(domain), target.clone()))).await
}

/// A custom domain that is gone
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "DeletedDomain")]
pub struct DeletedOut {
    domain: String,
    /// Always true.
    #[schemars(extend("const" = true))]
    deleted: bool,
}

pub async fn remove(call: Call, body: Body<NoBody>) -> Answer<Found<DeletedOut>> {
    let tunnel_id = call.id()?;
    let admitted = call.admit(Subject::Tunnel(tunnel_id), body).await?;
    let answer = |domain| Found(DeletedOut { domain, deleted: true });
    call.commit(admitted, |()| RemoveDomain { tunnel_id }, answer).await
}
