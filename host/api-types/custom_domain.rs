//! Custom domains of http tunnels.

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::Serialize;

use culvert_domain::certificate::ShownStatus;
use culvert_domain::custom_domain::{CustomDomain, CustomDomainStatus, DomainCertificate};

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
    status: ShownStatus,
    /// The end of the one that is served.
    expires_at: Option<DateTime<Utc>>,
    /// Why there is none, or why its renewal has failed.
    error: Option<String>,
}

impl CustomDomainResponse {
    pub fn new(domain: Option<CustomDomain>, cname_target: String) -> Self {
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
        let CustomDomain { domain, status, assigned, verified_at, last_checked_at, error, certificate, .. } = domain;
        let DomainCertificate { status: certificate_status, expires_at, error: certificate_error } = certificate;
        let certificate = CertificateResponse { status: certificate_status, expires_at, error: certificate_error };
        Self {
            domain: Some(domain),
            status,
            cname_target,
            verified_at,
            last_checked_at: Some(last_checked_at),
            error: error.map(|error| LookupErrorResponse { code: error.code.to_string(), detail: error.detail }),
            certificate: assigned.then_some(certificate),
        }
    }
}
