//! Custom domains: reading, verifying, assigning and removing them.

use crate::Service;
use culvert_domain::caller::Caller;
use culvert_domain::tunnel::Tunnel;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::commit::Change;
use crate::gate::Permit;
use culvert_domain::custom_domain::{CustomDomain, CustomDomainStatus, DomainCertificate, LookupError};
use culvert_domain::error::{Code, Error, Fault, Result};
use culvert_store::Write;

impl Service {
    /// A tunnel and its custom domain.
    ///
    /// # Errors
    ///
    /// [`Code::NotFound`] if the scope has no such tunnel; if the database fails.
    pub async fn custom_domain(&self, caller: &Caller, tunnel_id: Uuid) -> Result<(Tunnel, Option<CustomDomain>)> {
        let tunnel = self.tunnel(caller, tunnel_id).await?;
        let domain = self.store.custom_domain(tunnel.id).await?;
        Ok((tunnel, domain))
    }

    /// Looks in the DNS whether a domain's CNAME is `target`.
    ///
    /// # Errors
    ///
    /// Why it is not.
    pub async fn check_cname(&self, domain: &str, target: &str) -> Result<(), LookupError> {
        self.gate.guard().check_cname(domain, target).await
    }
}

/// Records the result of a DNS lookup of a custom domain.
pub struct VerifyDomain {
    pub tunnel_id: Uuid,
    pub domain: String,
    pub found: Result<(), LookupError>,
}

impl Change for VerifyDomain {
    type Done = CustomDomain;

    async fn apply(&self, write: &mut Write, _: &Permit) -> Result<CustomDomain> {
        let known = write.custom_domain_by_name(self.tunnel_id, &self.domain).await?;
        let mut domain = known.unwrap_or_else(|| CustomDomain {
            domain: self.domain.clone(),
            status: CustomDomainStatus::Pending,
            assigned: false,
            verified_at: None,
            last_checked_at: write.now,
            missed: 0,
            error: None,
            certificate: DomainCertificate::default(),
        });
        match &self.found {
            Ok(()) => domain.note(Ok(()), write.now),
            // Unlike the daily check, a failed lookup on request does not revoke an assigned domain.
            Err(error) => {
                domain.last_checked_at = write.now;
                domain.error = Some(error.clone());
                if !domain.assigned {
                    domain.status = CustomDomainStatus::Pending;
                }
            }
        }
        write.upsert_domain(self.tunnel_id, &domain).await?;
        Ok(domain)
    }
}

pub struct AssignDomain {
    pub tunnel_id: Uuid,
    pub domain: String,
}

impl Change for AssignDomain {
    type Done = CustomDomain;

    async fn apply(&self, write: &mut Write, _: &Permit) -> Result<CustomDomain> {
        let known = write.custom_domain_by_name(self.tunnel_id, &self.domain).await?;
        let verified = known.filter(|domain| domain.status == CustomDomainStatus::Verified);
        let Some(mut domain) = verified else {
            let fault = Fault::new("domain", "must be verified first: `POST …/domain/actions/verify`");
            let error = Error::of(Code::DomainNotVerified);
            return Err(Error { faults: vec![fault], ..error });
        };
        domain.assigned = true;
        if !write.assign_domain(self.tunnel_id, &domain).await? {
            return Err(Error::of(Code::DomainInUse));
        }
        write.set_updated_at(self.tunnel_id).await?;
        // The answer shows what becomes of its certificate.
        write.want_certificates().await?;
        write.custom_domain_by_name(self.tunnel_id, &self.domain).await?.ok_or_else(Error::not_found)
    }
}

pub struct RemoveDomain {
    pub tunnel_id: Uuid,
}

impl Change for RemoveDomain {
    /// The domain that was removed.
    type Done = String;

    async fn apply(&self, write: &mut Write, _: &Permit) -> Result<String> {
        let domain = write.custom_domain_of_tunnel(self.tunnel_id).await?.ok_or_else(Error::not_found)?;
        write.forget_domains(self.tunnel_id).await?;
        write.set_updated_at(self.tunnel_id).await?;
        Ok(domain.domain)
    }

    fn details(&self, domain: &String) -> Value {
        json!({"domain": domain})
    }
}
