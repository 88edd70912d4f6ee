//! Certificates: those of the platform's domains and of tunnels' names, issued and renewed in time.
//!
//! Each step of an order is stored before the next one begins. After a crash the next look goes on with it.

mod dns_proof;
mod order;
mod start;

use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use culvert_certificates::acme::{AcmeAccount, AcmeError, Authority, Consequence};
use culvert_domain::certificate::{Certificate, ChallengeKind};
use culvert_domain::error::{Chain, Error, Result};
use culvert_store::certificates::NewCertificate;
use culvert_store::error::first_error;
use culvert_wire::clock::Moment;
use futures_util::{StreamExt, stream};
use tokio::sync::{Notify, OnceCell};
use tokio_util::future::FutureExt;

use super::Jobs;
use crate::certificates::{LOCAL, seal_key};
use crate::local_roots::LocalRoots;
pub use dns_proof::DnsProof;
pub use start::start;

/// Least time between two looks at what is due by then, and the wait after an error of the database.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Certificates that are worked on at the same time, at most.
const AT_ONCE: usize = 8;
/// How long nobody else works on a certificate that was taken.
const CLAIM: TimeDelta = TimeDelta::minutes(5);
/// When one whose authority is not in the configuration is looked at again.
const NEXT_DAY: TimeDelta = TimeDelta::days(1);
/// How often certificates are counted.
const COUNT_EVERY: Duration = Duration::from_mins(1);
/// How often the ends of certificates are looked at, and how long before one the operator is warned.
const CHECK_EVERY: Duration = Duration::from_hours(1);
const WARN_BEFORE: TimeDelta = TimeDelta::days(7);
/// So long before its end a certificate of the local authority is renewed.
const RENEW_BEFORE: TimeDelta = TimeDelta::days(10);

/// Who signs.
pub struct CertificateWorker {
    local_roots: LocalRoots,
    authority: Option<Authority>,
    dns: Option<DnsProof>,
    account: OnceCell<AcmeAccount>,
    orders_per_hour: u32,
    woken: Notify,
}

impl CertificateWorker {
    pub fn new(
        local_roots: LocalRoots,
        authority: Option<(Authority, Option<DnsProof>)>,
        orders_per_hour: u32,
    ) -> Self {
        let (authority, dns) = authority.unzip();
        Self {
            local_roots,
            authority,
            dns: dns.flatten(),
            account: OnceCell::new(),
            orders_per_hour,
            woken: Notify::new(),
        }
    }

    /// Has the worker look for due certificates.
    pub fn wake(&self) {
        self.woken.notify_one();
    }
}

/// Runs until the host stops.
pub async fn run(jobs: Arc<Jobs>) {
    let work = async {
        let (mut check, mut count) = (jobs.clock.moment(), jobs.clock.moment());
        loop {
            let next = advance_until(&jobs).await.unwrap_or_else(|error| {
                tracing::warn!(error = %Chain(&error), "certificates could not be looked for");
                Some(jobs.clock.moment().plus(LOOK_AGAIN))
            });
            if jobs.clock.moment() >= check {
                check = jobs.clock.moment().plus(CHECK_EVERY);
                check_ends(&jobs).await;
            }
            if jobs.clock.moment() >= count {
                count = jobs.clock.moment().plus(COUNT_EVERY);
                count_by_status(&jobs).await;
            }
            let next = next.into_iter().fold(check.min(count), Moment::min);
            tokio::select! {
                biased;
                () = jobs.certificates.woken.notified() => {}
                () = jobs.clock.until(next) => {}
            }
        }
    };
    work.with_cancellation_token(&jobs.stop).await;
}

async fn count_by_status(jobs: &Jobs) {
    match jobs.service.store.certificate_counts().await {
        Ok(counts) => jobs.metrics.certificates.stand(&counts),
        Err(error) => tracing::warn!(error = %Chain(&error), "certificates could not be counted"),
    }
}

/// Notes when the first certificate ends, and warns if that is soon: its renewal must have failed for weeks.
async fn check_ends(jobs: &Jobs) {
    let end = match jobs.service.store.first_certificate_end().await {
        Ok(end) => end,
        Err(error) => return tracing::warn!(error = %Chain(&error), "the ends of certificates could not be read"),
    };
    let Some(end) = end else { return };
    let left = end - jobs.clock.now();
    jobs.metrics.certificates.expires_in(left.num_seconds());
    if left < WARN_BEFORE {
        tracing::warn!(%end, "a certificate ends soon and could not be renewed; `/v2/tunnels/…/domain` says why");
    }
}

/// Advances what is due. Returns when the next certificate is.
async fn advance_until(jobs: &Jobs) -> Result<Option<Moment>> {
    let soonest = jobs.clock.moment().plus(LOOK_AGAIN);
    advance_due(jobs).await?;
    let next = jobs.service.store.next_certificate().await?;
    Ok(next.map(|next| jobs.clock.moment_of(next).max(soonest)))
}

async fn advance_due(jobs: &Jobs) -> Result<()> {
    let due = jobs.service.store.due_certificates().await?;
    let advanced = stream::iter(due).map(|known| advance(jobs, known)).buffer_unordered(AT_ONCE);
    advanced.fold(Ok(()), async |all, one| first_error(all, one)).await
}

/// Takes a certificate and does what can be done for it now.
async fn advance(jobs: &Jobs, mut known: Certificate) -> Result<()> {
    let (claimed, until) = (known.clone(), jobs.clock.now() + CLAIM);
    let claim = jobs
        .service
        .store
        .write(None, move |write| Box::pin(async move { write.claim_certificate(&claimed, until).await }));
    if !claim.await? {
        return Ok(());
    }
    if known.issuer.starts_with(LOCAL) {
        return issue_locally(jobs, known).await;
    }
    let authority = jobs.certificates.authority.as_ref().filter(|authority| authority.directory() == known.issuer);
    let Some(authority) = authority else { return save_later(jobs, known, NEXT_DAY).await };
    loop {
        match order::step(jobs, authority, &mut known).await {
            Ok(order::Next::Step) => {}
            Ok(order::Next::Wait(time)) => return save_later(jobs, known, time).await,
            Ok(order::Next::End) => return Ok(()),
            Err(order::StepError::Host(error)) => return Err(error),
            Err(order::StepError::Acme(error)) => return note_failure(jobs, known, error).await,
        }
    }
}

async fn note_failure(jobs: &Jobs, mut known: Certificate, error: AcmeError) -> Result<()> {
    let now = jobs.clock.now();
    match error.consequence {
        Consequence::Repeat => save_later(jobs, known, order::ASK_EVERY).await,
        Consequence::Interrupted => {
            tracing::warn!(name = known.name, %error, "the authority could not be asked; its order stands");
            known.interrupted(&error.problem, error.retry_after, now);
            save(jobs, &known).await.map(drop)
        }
        Consequence::Failed => {
            tracing::warn!(name = known.name, %error, "a certificate was not issued");
            jobs.metrics.certificates.ordered(false);
            known.failed(&error.problem, error.retry_after, now);
            end_order(jobs, known, None).await
        }
    }
}

async fn issue_locally(jobs: &Jobs, mut known: Certificate) -> Result<()> {
    let (service, domain) = (&jobs.service, known.name.trim_start_matches("*.").to_owned());
    let root = jobs.certificates.local_roots.root(&service.store, &service.secrets, &domain).await;
    let now = jobs.clock.now();
    let issue = move || root?.issue(&domain, now).map_err(Error::internal);
    match tokio::task::spawn_blocking(issue).await.map_err(Error::internal)? {
        Ok(issued) => {
            known.issued(issued.not_after, issued.not_after - RENEW_BEFORE);
            let sealed_key = seal_key(&jobs.service.secrets, known.id, &issued.key);
            end_order(jobs, known, Some(NewCertificate { chain: issued.chain, sealed_key })).await
        }
        Err(error) => {
            let problem = Chain(&error).to_string();
            tracing::error!(problem, name = known.name, "a certificate could not be issued");
            known.failed(&problem, None, jobs.clock.now());
            end_order(jobs, known, None).await
        }
    }
}

async fn save_later(jobs: &Jobs, mut known: Certificate, time: TimeDelta) -> Result<()> {
    known.due_at = jobs.clock.now() + time;
    save(jobs, &known).await.map(drop)
}

/// Stores how far a certificate is. Returns false if it is not wanted any longer.
async fn save(jobs: &Jobs, known: &Certificate) -> Result<bool> {
    let saved = known.clone();
    jobs.service.store.write(None, move |write| Box::pin(async move { write.save_certificate(&saved).await })).await
}

/// Stores the end of an order, and serves what was issued.
async fn end_order(jobs: &Jobs, known: Certificate, new: Option<NewCertificate>) -> Result<()> {
    if known.challenge == Some(ChallengeKind::Dns01)
        && let Some(dns) = &jobs.certificates.dns
    {
        dns.clear(&jobs.service.store.challenges(known.id).await?).await;
    }
    let end = jobs.service.store.write(None, move |write| {
        Box::pin(async move {
            if write.save_certificate(&known).await? {
                if let Some(new) = &new {
                    write.serve_certificate(&known, new).await?;
                }
                write.set_challenges(&known, &[]).await?;
            }
            Ok(())
        })
    });
    end.await
}
