//! Admission of requests about custom domains.

use super::tunnels::is_label;
use super::{RequestDraft, UsageRequest};
use culvert_api_types::requests::{AssignDomain, Input, VerifyDomain};
use culvert_domain::caller::Caller;
use culvert_domain::custom_domain::normalized;
use culvert_domain::error::{Fault, Result};
use culvert_domain::facts::ResourceFacts;
use culvert_domain::plan::Entitlement;
use culvert_domain::protocol::Protocol;
use culvert_store::Store;

impl RequestDraft for VerifyDomain {
    /// The domain in lower case, without the trailing dot.
    type Valid = String;

    async fn resolve(&mut self, store: &Store, _: &Caller) -> Result<Vec<Fault>> {
        platform_owned(self.domain.as_deref(), store).await
    }

    fn input(&self) -> Option<Input<'_>> {
        Some(Input::DomainVerify(self))
    }

    fn wants(&self) -> UsageRequest {
        UsageRequest { domain: self.domain.clone(), ..UsageRequest::default() }
    }

    fn validate(self, facts: &ResourceFacts, _: &Entitlement) -> Result<String, Vec<Fault>> {
        check(self.domain, facts)
    }
}

impl RequestDraft for AssignDomain {
    type Valid = String;

    async fn resolve(&mut self, store: &Store, _: &Caller) -> Result<Vec<Fault>> {
        platform_owned(self.domain.as_deref(), store).await
    }

    fn input(&self) -> Option<Input<'_>> {
        Some(Input::DomainAssign(self))
    }

    fn wants(&self) -> UsageRequest {
        UsageRequest { domain: self.domain.clone(), ..UsageRequest::default() }
    }

    fn validate(self, facts: &ResourceFacts, _: &Entitlement) -> Result<String, Vec<Fault>> {
        check(self.domain, facts)
    }
}

/// Faults a domain that is a platform domain or a subdomain of one, or the name of the API or of a node: no tunnel can have
/// it.
async fn platform_owned(domain: Option<&str>, store: &Store) -> Result<Vec<Fault>> {
    let Some(domain) = domain.map(normalized) else { return Ok(Vec::new()) };
    for platform in store.platform_domains().await? {
        let below = domain.strip_suffix(&platform.domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
        if below {
            return Ok(vec![Fault::new("domain", "belongs to the platform")]);
        }
    }
    let is_own = store.is_own_name(&domain).await?;
    Ok(if is_own { vec![Fault::new("domain", "belongs to the platform")] } else { Vec::new() })
}

fn check(domain: Option<String>, facts: &ResourceFacts) -> Result<String, Vec<Fault>> {
    let fault = |message: &str| Err(vec![Fault::new("domain", message)]);
    let Some(domain) = domain.as_deref().map(normalized) else { return fault("is required") };
    if facts.tunnel.as_ref().is_some_and(|tunnel| tunnel.spec.protocol != Protocol::Http) {
        return fault("is for http tunnels only");
    }
    // A name whose last label is a number can be read as an IPv4 address: `1.2` is 1.0.0.2.
    let is_address = domain.rsplit('.').next().is_some_and(|last| last.bytes().all(|b| b.is_ascii_digit()));
    if domain.len() > 253 || !domain.contains('.') || !domain.split('.').all(is_label) || is_address {
        return fault("must be a host name of at least two labels, and no IP address");
    }
    Ok(domain)
}
