//! DNS checks of custom domains: verified domains are looked up again every day.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tokio_util::future::FutureExt;

use super::Jobs;
use culvert_domain::custom_domain::{CHECK_EVERY, CustomDomain};
use culvert_domain::error::{Chain, Result};
use culvert_store::domains::DueDomain;
use culvert_store::error::first_error;

/// How often the job looks for due domains.
const LOOK_EVERY: Duration = Duration::from_mins(10);
/// Lookups at the same time, at most.
const AT_ONCE: usize = 8;

/// Runs until the host stops.
pub async fn run(jobs: Arc<Jobs>) {
    let checks = async {
        loop {
            // The time that the checks take does not delay the next ones.
            let next = jobs.clock.moment().plus(LOOK_EVERY);
            if jobs.service.fleet.leads()
                && let Err(error) = check_due(&jobs).await
            {
                tracing::warn!(error = %Chain(&error), "custom domains could not be looked up");
            }
            jobs.clock.until(next).await;
        }
    };
    checks.with_cancellation_token(&jobs.stop).await;
}

async fn check_due(jobs: &Jobs) -> Result<()> {
    let due = jobs.service.store.due_domains().await?;
    let checked = stream::iter(due).map(|due| check(jobs, due)).buffer_unordered(AT_ONCE);
    checked.fold(Ok(()), async |all, one| first_error(all, one)).await
}

async fn check(jobs: &Jobs, due: DueDomain) -> Result<()> {
    let DueDomain { scope_id, tunnel_id, domain } = due;
    let Some(tunnel) = jobs.service.store.tunnel(scope_id, tunnel_id).await? else { return Ok(()) };
    let found = jobs.service.gate.guard().check_cname(&domain, &tunnel.cname_target()).await;
    jobs.service
        .store
        .write(Some(scope_id), move |write| {
            Box::pin(async move {
                // The domain may have been removed meanwhile, or checked by another host.
                let known = write.custom_domain_by_name(tunnel_id, &domain).await?;
                let due = |known: &CustomDomain| known.last_checked_at <= write.now - CHECK_EVERY;
                let Some(mut known) = known.filter(due) else { return Ok(()) };
                known.note(found, write.now);
                write.record_check(tunnel_id, &known).await
            })
        })
        .await
}
