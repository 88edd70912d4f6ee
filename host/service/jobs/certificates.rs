//! Certificates: those of the platform's domains and of tunnels' names, issued and renewed in time.
//!
//! Each step of an order is stored before the next one begins. After a crash the next look goes on with it.

use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use culvert_certificates::acme::{self, AcmeAccount, AcmeError, Authority, Consequence, OrderView};
use culvert_certificates::dns_command::DnsCommand;
use culvert_certificates::local_ca::LocalCa;
use culvert_certificates::zone::Zone;
use culvert_domain::certificate::{Certificate, CertificateStatus, ChallengeKind, Step};
use culvert_domain::error::{Chain, Error, Result};
use culvert_store::certificates::{NewCertificate, OwnCertificates, StoredChallenge};
use culvert_store::error::first_error;
use futures_util::{StreamExt, stream};
use tokio::sync::OnceCell;
use uuid::Uuid;

use super::Jobs;
use crate::certificates::{LOCAL, open_key, seal_key};
use crate::secrets::Purpose;

/// Certificates that are looked at in one transaction at the start.
const BATCH: u32 = 200;
/// How often the job looks for due certificates.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Certificates that are worked on at the same time, at most.
const AT_ONCE: usize = 8;
/// How long nobody else works on a certificate that was taken.
const CLAIM: TimeDelta = TimeDelta::minutes(5);
/// How often the authority is asked what has become of an order, and for how long.
const ASK_EVERY: TimeDelta = TimeDelta::seconds(2);
const ASK_FOR: TimeDelta = TimeDelta::hours(1);
/// How long a TXT record may take to become visible.
const VISIBLE_WITHIN: TimeDelta = TimeDelta::minutes(15);
/// How often the authority is asked when it wants a renewal.
const RENEWAL_EVERY: TimeDelta = TimeDelta::hours(12);
/// When one that waits for others is looked at again.
const LATER: TimeDelta = TimeDelta::minutes(5);
/// When one whose authority is not in the configuration is looked at again.
const NEXT_DAY: TimeDelta = TimeDelta::days(1);
/// How often the ends of certificates are looked at, and how long before one the operator is warned.
const CHECK_EVERY: Duration = Duration::from_hours(1);
const WARN_BEFORE: TimeDelta = TimeDelta::days(7);
/// So long before its end a certificate of the local authority is renewed.
const RENEW_BEFORE: TimeDelta = TimeDelta::days(10);

/// Who signs.
pub struct CertificateWorker {
    local_ca: LocalCa,
    authority: Option<Authority>,
    dns: Option<DnsProof>,
    account: OnceCell<AcmeAccount>,
    orders_per_hour: u32,
}

/// How TXT records get into the DNS.
pub enum DnsProof {
    /// The built-in server.
    Zone(Zone),
    Command(DnsCommand),
}

impl DnsProof {
    async fn set(&self, challenges: &[StoredChallenge]) -> std::result::Result<(), StepError> {
        for challenge in challenges {
            let (name, value) = acme::txt_record(&challenge.name, &challenge.value);
            match self {
                Self::Zone(zone) => zone.set(&name, &value),
                Self::Command(command) => command.run("set", &name, &value).await.map_err(refused)?,
            }
        }
        Ok(())
    }

    async fn clear(&self, challenges: &[StoredChallenge]) {
        for challenge in challenges {
            let (name, value) = acme::txt_record(&challenge.name, &challenge.value);
            match self {
                Self::Zone(zone) => zone.clear(&name, &value),
                Self::Command(command) => {
                    if let Err(error) = command.run("clear", &name, &value).await {
                        tracing::warn!(%error, name, "a TXT record could not be cleared");
                    }
                }
            }
        }
    }
}

impl CertificateWorker {
    pub fn new(local_ca: LocalCa, authority: Option<(Authority, Option<DnsProof>)>, orders_per_hour: u32) -> Self {
        let (authority, dns) = authority.unzip();
        Self { local_ca, authority, dns: dns.flatten(), account: OnceCell::new(), orders_per_hour }
    }
}

/// Why a step was not done.
enum StepError {
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
enum Next {
    Step,
    Wait(TimeDelta),
    /// The order is over, or nobody wants it any longer.
    End,
}

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
        let root = worker.local_ca.root(&domain).map_err(|e| Error::internal(e.to_string()))?;
        let (issuer, secrets) = (root.issuer(), service.secrets.clone());
        let want = service.store.write(None, move |write| {
            Box::pin(async move {
                let is_usable = |id, sealed: &[u8]| open_key(&secrets, id, sealed).is_some();
                write.want_domain_certificate(node_id, &issuer, None, is_usable).await
            })
        });
        want.await?;
    }
    advance_due(jobs).await
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

/// Runs until the host stops.
pub async fn run(jobs: Arc<Jobs>) {
    let work = async {
        let mut check = jobs.clock.moment();
        loop {
            let next = jobs.clock.moment().plus(LOOK_EVERY);
            if let Err(error) = advance_due(&jobs).await {
                tracing::warn!(error = %Chain(&error), "certificates could not be looked for");
            }
            if jobs.clock.moment() >= check {
                check = jobs.clock.moment().plus(CHECK_EVERY);
                check_ends(&jobs).await;
            }
            jobs.clock.until(next).await;
        }
    };
    jobs.stop.run_until_cancelled(work).await;
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
        match step(jobs, authority, &mut known).await {
            Ok(Next::Step) => {}
            Ok(Next::Wait(time)) => return save_later(jobs, known, time).await,
            Ok(Next::End) => return Ok(()),
            Err(StepError::Host(error)) => return Err(error),
            Err(StepError::Acme(error)) => return note_failure(jobs, known, error).await,
        }
    }
}

async fn note_failure(jobs: &Jobs, mut known: Certificate, error: AcmeError) -> Result<()> {
    let now = jobs.clock.now();
    match error.consequence {
        Consequence::Repeat => save_later(jobs, known, ASK_EVERY).await,
        Consequence::Interrupted => {
            tracing::warn!(name = known.name, %error, "the authority could not be asked; its order stands");
            known.interrupted(&error.problem, error.retry_after, now);
            let wait = known.due_at - now;
            save_later(jobs, known, wait).await
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
    let (ca, domain) = (jobs.certificates.local_ca.clone(), known.name.trim_start_matches("*.").to_owned());
    let issued = tokio::task::spawn_blocking(move || ca.issue(&domain)).await.map_err(Error::internal)?;
    match issued {
        Ok(issued) => {
            known.issued(issued.not_after, issued.not_after - RENEW_BEFORE);
            let sealed_key = seal_key(&jobs.service.secrets, known.id, &issued.key);
            end_order(jobs, known, Some(NewCertificate { chain: issued.chain, sealed_key })).await
        }
        Err(error) => {
            tracing::error!(%error, name = known.name, "a certificate could not be issued");
            known.failed(&error.to_string(), None, jobs.clock.now());
            end_order(jobs, known, None).await
        }
    }
}

async fn step(jobs: &Jobs, authority: &Authority, known: &mut Certificate) -> std::result::Result<Next, StepError> {
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

async fn order(jobs: &Jobs, account: &AcmeAccount, known: &mut Certificate) -> std::result::Result<Next, StepError> {
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
) -> std::result::Result<Next, StepError> {
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
        dns.set(&jobs.service.store.challenges(known.id).await?).await?;
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
) -> std::result::Result<Next, StepError> {
    if kind == ChallengeKind::Dns01 {
        for challenge in jobs.service.store.challenges(known.id).await? {
            let (name, value) = acme::txt_record(&challenge.name, &challenge.value);
            if !jobs.service.guard.texts(&name).await.contains(&value) {
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

async fn check(
    jobs: &Jobs,
    account: &AcmeAccount,
    known: &mut Certificate,
    url: &str,
) -> std::result::Result<Next, StepError> {
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

async fn collect(
    jobs: &Jobs,
    account: &AcmeAccount,
    known: &mut Certificate,
    url: &str,
) -> std::result::Result<Next, StepError> {
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
fn wait(jobs: &Jobs, known: &Certificate) -> std::result::Result<Next, StepError> {
    if known.ordered_at.is_some_and(|ordered| jobs.clock.now() > ordered + ASK_FOR) {
        return Err(refused("the authority has not finished the order within an hour".into()));
    }
    Ok(Next::Wait(ASK_EVERY))
}

fn refused(problem: String) -> StepError {
    StepError::Acme(AcmeError { problem, retry_after: None, consequence: Consequence::Failed })
}

async fn save(jobs: &Jobs, known: &Certificate) -> std::result::Result<Next, StepError> {
    let saved = known.clone();
    let is_wanted =
        jobs.service.store.write(None, move |write| Box::pin(async move { write.save_certificate(&saved).await }));
    Ok(if is_wanted.await? { Next::Step } else { Next::End })
}

async fn save_later(jobs: &Jobs, mut known: Certificate, time: TimeDelta) -> Result<()> {
    known.due_at = jobs.clock.now() + time;
    jobs.service.store.write(None, move |write| Box::pin(async move { write.save_certificate(&known).await })).await?;
    Ok(())
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

/// The host's account at the authority. It is made on first use.
async fn account(jobs: &Jobs, authority: &Authority) -> std::result::Result<AcmeAccount, StepError> {
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
