//! The steps of an order at an ACME authority. Each is stored before the next one begins.

use chrono::TimeDelta;
use culvert_certificates::acme::{self, AcmeAccount, AcmeError, Authority, Consequence, OrderView};
use culvert_domain::certificate::{Certificate, CertificateStatus, ChallengeKind, Step};
use culvert_domain::error::Error;
use culvert_store::acme::StoredChallenge;
use culvert_store::certificates::NewCertificate;

use super::{Jobs, end_order};
use crate::certificates::{open_key, seal_key};
use crate::secrets::Purpose;

/// How often the authority is asked what has become of an order, and for how long.
pub(super) const ASK_EVERY: TimeDelta = TimeDelta::seconds(2);
const ASK_FOR: TimeDelta = TimeDelta::hours(1);
/// How long a TXT record may take to become visible.
const VISIBLE_WITHIN: TimeDelta = TimeDelta::minutes(15);
/// How often the authority is asked when it wants a renewal.
const RENEWAL_EVERY: TimeDelta = TimeDelta::hours(12);
/// When one that waits for others is looked at again.
const LATER: TimeDelta = TimeDelta::minutes(5);

/// Why a step was not done.
pub(super) enum StepError {
    Acme(AcmeError),
    /// The database.
    Host(Error),
}

impl From<AcmeError> for StepError {
    fn from(error: AcmeError) -> Self {
        Self::Acme(error)
    }
}

impl From<Error> for StepError {
    fn from(error: Error) -> Self {
        Self::Host(error)
    }
}

/// What comes after a step.
pub(super) enum Next {
    Step,
    Wait(TimeDelta),
    /// The order is over, or nobody wants it any longer.
    End,
}

/// Does the next step of an order.
pub(super) async fn step(jobs: &Jobs, authority: &Authority, known: &mut Certificate) -> Result<Next, StepError> {
    let account = jobs.certificates.account.get_or_try_init(|| account(jobs, authority)).await?;
    let url = known.order_url.clone().unwrap_or_default();
    let kind = known.challenge.unwrap_or(ChallengeKind::TlsAlpn01);
    match known.step() {
        Step::Order => order(jobs, account, known).await,
        Step::Prepare => prepare(jobs, account, known, &url, kind).await,
        Step::Answer => answer(jobs, account, known, &url, kind).await,
        Step::Check => check(jobs, account, known, &url).await,
        Step::Collect => collect(jobs, account, known, &url).await,
    }
}

async fn order(jobs: &Jobs, account: &AcmeAccount, known: &mut Certificate) -> Result<Next, StepError> {
    let now = jobs.clock.now();
    if known.status == CertificateStatus::Issued
        && known.failures == 0
        && let Some(chain) = jobs.service.store.served_chain(known.id).await?
    {
        // An authority that does not answer is not one that wants a renewal now.
        let asked = account.renewal(&chain).await.ok().flatten();
        let at = asked.or_else(|| account.renew_at(&chain)).filter(|at| *at > now);
        if let Some(at) = at {
            return Ok(Next::Wait((at - now).min(RENEWAL_EVERY)));
        }
    }
    let (limit, directory) = (jobs.certificates.orders_per_hour, known.issuer.clone());
    let place = jobs
        .service
        .store
        .write(None, move |write| Box::pin(async move { write.place_order(&directory, limit).await }));
    if !place.await? {
        return Ok(Next::Wait(LATER));
    }
    let url = account.order(&known.name).await?;
    known.ordered(url, now);
    save(jobs, known).await
}

/// Gives the nodes what proves the names.
async fn prepare(
    jobs: &Jobs,
    account: &AcmeAccount,
    known: &mut Certificate,
    url: &str,
    kind: ChallengeKind,
) -> Result<Next, StepError> {
    let proofs = account.proofs(url, kind).await?;
    let challenges = proofs.into_iter().map(|proof| StoredChallenge {
        name: proof.name,
        kind,
        token: proof.token,
        value: proof.key_authorization,
    });
    let challenges: Vec<StoredChallenge> = challenges.collect();
    known.challenged(jobs.clock.now());
    let saved = known.clone();
    let nodes = jobs.service.store.write(None, move |write| {
        Box::pin(async move {
            if !write.save_certificate(&saved).await? {
                return Ok(None);
            }
            write.set_challenges(&saved, &challenges).await?;
            Ok(Some(write.touched_nodes()))
        })
    });
    let Some(nodes) = nodes.await? else { return Ok(Next::End) };
    jobs.service.nodes.wait_until_applied(nodes).await;
    if kind == ChallengeKind::Dns01
        && let Some(dns) = &jobs.certificates.dns
    {
        dns.set(&jobs.service.store.challenges(known.id).await?).await.map_err(refused)?;
    }
    Ok(Next::Step)
}

/// Asks the authority to look; in the DNS, as soon as the records are visible from here.
async fn answer(
    jobs: &Jobs,
    account: &AcmeAccount,
    known: &mut Certificate,
    url: &str,
    kind: ChallengeKind,
) -> Result<Next, StepError> {
    if kind == ChallengeKind::Dns01 {
        for challenge in jobs.service.store.challenges(known.id).await? {
            let (name, value) = acme::txt_record(&challenge.name, &challenge.value);
            if !jobs.service.gate.guard().texts(&name).await.contains(&value) {
                let since = known.ordered_at.unwrap_or(jobs.clock.now());
                if jobs.clock.now() > since + VISIBLE_WITHIN {
                    return Err(refused(format!("the TXT record of {name} is not visible")));
                }
                return Ok(Next::Wait(ASK_EVERY));
            }
        }
    }
    account.answer(url, kind).await?;
    known.answered(jobs.clock.now());
    save(jobs, known).await
}

async fn check(jobs: &Jobs, account: &AcmeAccount, known: &mut Certificate, url: &str) -> Result<Next, StepError> {
    match account.view(url).await? {
        OrderView::Pending => wait(jobs, known),
        OrderView::Ready => {
            // Stored before it is used: after a crash the order is collected with it.
            let key = seal_key(&jobs.service.secrets, known.id, &acme::new_key()?);
            known.finalized(key, jobs.clock.now());
            save(jobs, known).await
        }
        OrderView::Invalid(problem) => Err(refused(problem)),
        OrderView::Processing | OrderView::Valid => Err(refused("the order was finalized by somebody else".into())),
    }
}

async fn collect(jobs: &Jobs, account: &AcmeAccount, known: &mut Certificate, url: &str) -> Result<Next, StepError> {
    let sealed_key = known.new_key.clone().unwrap_or_default();
    let key = open_key(&jobs.service.secrets, known.id, &sealed_key);
    let key = key.ok_or_else(|| refused("the key of the order cannot be opened".into()))?;
    match account.view(url).await? {
        OrderView::Ready => {
            let waits = wait(jobs, known)?;
            account.finalize(url, &known.name, &key).await?;
            Ok(waits)
        }
        OrderView::Pending | OrderView::Processing => wait(jobs, known),
        OrderView::Invalid(problem) => Err(refused(problem)),
        OrderView::Valid => {
            let chain = account.chain(url).await?;
            let renewal = account.renewal(&chain.pem).await.ok().flatten();
            let now = jobs.clock.now();
            let renew_at = match renewal {
                Some(at) => at.min(now + RENEWAL_EVERY),
                None => chain.renew_at,
            };
            known.issued(chain.not_after, renew_at);
            tracing::info!(name = known.name, not_after = %chain.not_after, "a certificate was issued");
            jobs.metrics.certificates.ordered(true);
            let new = NewCertificate { chain: chain.pem, sealed_key };
            end_order(jobs, known.clone(), Some(new)).await?;
            Ok(Next::End)
        }
    }
}

/// The authority is not done yet.
fn wait(jobs: &Jobs, known: &Certificate) -> Result<Next, StepError> {
    if known.ordered_at.is_some_and(|ordered| jobs.clock.now() > ordered + ASK_FOR) {
        return Err(refused("the authority has not finished the order within an hour".into()));
    }
    Ok(Next::Wait(ASK_EVERY))
}

fn refused(problem: String) -> StepError {
    StepError::Acme(AcmeError { problem, retry_after: None, consequence: Consequence::Failed })
}

async fn save(jobs: &Jobs, known: &Certificate) -> Result<Next, StepError> {
    Ok(if super::save(jobs, known).await? { Next::Step } else { Next::End })
}

/// The host's account at the authority. It is made on first use.
async fn account(jobs: &Jobs, authority: &Authority) -> Result<AcmeAccount, StepError> {
    let service = &jobs.service;
    let directory = authority.directory().to_owned();
    let sealed = service.store.acme_account(&directory).await?;
    let open = |sealed: Vec<u8>| service.secrets.open_sealed(Purpose::Certificates, directory.as_bytes(), &sealed);
    if let Some(credentials) = sealed.and_then(open) {
        return Ok(authority.account(&credentials).await?);
    }
    let (account, credentials) = authority.create_account().await?;
    let sealed = service.secrets.seal(Purpose::Certificates, directory.as_bytes(), &credentials);
    let keep = service
        .store
        .write(None, move |write| Box::pin(async move { write.keep_acme_account(&directory, &sealed).await }));
    keep.await?;
    tracing::info!(directory = authority.directory(), "an account was made at the authority");
    Ok(account)
}
