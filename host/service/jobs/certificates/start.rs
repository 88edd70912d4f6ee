//! What is wanted at the start of a host: which names need certificates, and from whom.

use culvert_certificates::acme::Authority;
use culvert_domain::certificate::ChallengeKind;
use culvert_domain::error::Result;
use culvert_store::certificates::OwnCertificates;
use uuid::Uuid;

use super::{DnsProof, Jobs};
use crate::certificates::open_key;

/// Certificates that are looked at in one transaction.
const BATCH: u32 = 200;

/// Notes at the start which names need certificates, and from whom, and issues those of the local authority.
///
/// # Errors
///
/// If the local authority's files cannot be used, or the database fails.
pub async fn start(jobs: &Jobs, domains: Vec<(Uuid, String)>) -> Result<()> {
    let (worker, service) = (&jobs.certificates, &jobs.service);
    if let Some(authority) = &worker.authority {
        return start_with(jobs, authority, domains).await;
    }
    service.store.write(None, |write| Box::pin(write.forget_tunnel_certificates())).await?;
    for (node_id, domain) in domains {
        let root = worker.local_roots.root(&service.store, &service.secrets, &domain).await?;
        let (issuer, secrets) = (root.issuer(), service.secrets.clone());
        let want = service.store.write(None, move |write| {
            Box::pin(async move {
                let is_usable = |id, sealed: &[u8]| open_key(&secrets, id, sealed).is_some();
                write.want_domain_certificate(node_id, &issuer, None, is_usable).await
            })
        });
        want.await?;
    }
    super::advance_due(jobs).await
}

async fn start_with(jobs: &Jobs, authority: &Authority, domains: Vec<(Uuid, String)>) -> Result<()> {
    let store = &jobs.service.store;
    let has_wildcard = jobs.certificates.dns.is_some();
    store.order_certificates(OwnCertificates { issuer: authority.directory().into(), with_subdomains: !has_wildcard });
    for (node_id, _) in domains {
        let (directory, secrets) = (authority.directory().to_owned(), jobs.service.secrets.clone());
        let want = store.write(None, move |write| {
            Box::pin(async move {
                if !has_wildcard {
                    return write.forget_domain_certificate(node_id).await;
                }
                let is_usable = |id, sealed: &[u8]| open_key(&secrets, id, sealed).is_some();
                write.want_domain_certificate(node_id, &directory, Some(ChallengeKind::Dns01), is_usable).await
            })
        });
        want.await?;
    }
    if let Some(DnsProof::Zone(_)) = &jobs.certificates.dns
        && let Some(dns) = &jobs.certificates.dns
    {
        // The authority may be looking since before this start.
        let _ = dns.set(&store.dns_challenges().await?).await;
    }
    store.write(None, |write| Box::pin(write.resume_orders())).await?;
    renew_unreadable(jobs).await?;
    store.want_certificates_of_tunnels().await
}

/// Has certificates issued anew whose keys were sealed with a key file that is not there any longer.
async fn renew_unreadable(jobs: &Jobs) -> Result<()> {
    let mut after = Some(Uuid::nil());
    while let Some(from) = after {
        let secrets = jobs.service.secrets.clone();
        let batch = jobs.service.store.write(None, move |write| {
            Box::pin(async move {
                let mut last = None;
                for keys in write.certificate_keys(from, BATCH).await? {
                    last = Some(keys.id);
                    if [&keys.key, &keys.new_key]
                        .into_iter()
                        .flatten()
                        .any(|key| open_key(&secrets, keys.id, key).is_none())
                    {
                        write.begin_certificate_anew(keys.id).await?;
                    }
                }
                Ok(last)
            })
        });
        after = batch.await?;
    }
    Ok(())
}
