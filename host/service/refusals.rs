//! Refused requests: noted without delay for the request, and looked up by people.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use culvert_domain::caller::Caller;
use culvert_domain::error::{Chain, Code, Error, Result};
use culvert_domain::page::{Page, PageRows};
use culvert_domain::refusal::{Refusal, RefusedRequest};
use culvert_domain::refused_by::Stage;
use tokio::sync::{Mutex, mpsc};
use tokio_util::future::FutureExt;
use uuid::Uuid;

use crate::Service;
use crate::try_limiter::TryLimiter;

/// Refusals that wait to be stored. One more is lost, and counted.
const QUEUE: usize = 8192;
/// Refusals of a scope that are kept: more than a key may ask for. One more is lost, and counted.
const OF_SCOPE: (u32, Duration) = (240, Duration::from_mins(1));
/// Refusals that are kept of a credential that asks too often.
const OF_RATE: (u32, Duration) = (1, Duration::from_mins(1));
/// Refusals of one transaction.
const BATCH: usize = 200;
/// After so many of a scope it is looked at whether it has too many.
const TRIMMED_EVERY: u32 = 100;
/// Scopes of which the refusals are counted. Beyond them, counting begins anew.
const COUNTED: usize = 10_000;

/// The way from requests to the store.
pub struct Refusals {
    queue: mpsc::Sender<Refusal>,
    waiting: Mutex<mpsc::Receiver<Refusal>>,
    /// Of scopes, and of credentials that ask too often.
    recent: TryLimiter<Uuid>,
    lost: AtomicU64,
}

impl Default for Refusals {
    fn default() -> Self {
        let (queue, waiting) = mpsc::channel(QUEUE);
        let recent = TryLimiter::remembering(COUNTED);
        Self { queue, waiting: Mutex::new(waiting), recent, lost: AtomicU64::new(0) }
    }
}

impl Refusals {
    /// Notes that a request was refused. It never waits. What is our own fault is no refusal, unless it may be tried again; and of
    /// those that come too often one a minute is told.
    pub fn note(&self, service: &Service, refused: &RefusedRequest<'_>, error: &Error) {
        if refused.status >= 500 && !matches!(error.code, Code::PolicyUnavailable | Code::ServiceUnavailable) {
            return;
        }
        let refusal = Refusal::of(refused, error, service.clock().now());
        let (counted, limit) = match refusal.stage {
            Stage::Rate => (refusal.credential_id, OF_RATE),
            _ => (refusal.scope_id, OF_SCOPE),
        };
        let taken = self.recent.take(counted, limit, service.clock().moment());
        if taken.is_err() || self.queue.try_send(refusal).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many were lost since the start of the host.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Stores refusals as they come, until the host stops.
    pub(crate) async fn store(&self, service: &Service, stop: &tokio_util::sync::CancellationToken) {
        let (mut waiting, mut counts) = (self.waiting.lock().await, HashMap::new());
        loop {
            let mut batch = Vec::new();
            if waiting.recv_many(&mut batch, BATCH).with_cancellation_token(stop).await.is_none() {
                while let Ok(refusal) = waiting.try_recv() {
                    batch.push(refusal);
                }
                return self.store_batch(service, batch, Vec::new()).await;
            }
            let trimmed = due(&mut counts, &batch);
            self.store_batch(service, batch, trimmed).await;
        }
    }

    async fn store_batch(&self, service: &Service, batch: Vec<Refusal>, trimmed: Vec<Uuid>) {
        let Err(error) = write_all(service, batch.clone(), trimmed).await else { return };
        if error.code == Code::ServiceUnavailable || batch.len() == 1 {
            self.lose(batch.len(), &error);
            return;
        }
        // One that cannot be stored takes no other along.
        for refusal in batch {
            if let Err(error) = write_all(service, vec![refusal], Vec::new()).await {
                self.lose(1, &error);
            }
        }
    }

    fn lose(&self, count: usize, error: &Error) {
        self.lost.fetch_add(count as u64, Ordering::Relaxed);
        tracing::warn!(error = %Chain(error), count, "refused requests could not be noted");
    }
}

async fn write_all(service: &Service, batch: Vec<Refusal>, trimmed: Vec<Uuid>) -> Result<()> {
    let write = service.store.write(None, move |write| {
        Box::pin(async move {
            for refusal in &batch {
                write.insert_refusal(refusal).await?;
            }
            for scope_id in trimmed {
                write.trim_refusals(scope_id).await?;
            }
            Ok(())
        })
    });
    write.await
}

/// The scopes that have had many refusals since they were looked at.
fn due(counts: &mut HashMap<Uuid, u32>, batch: &[Refusal]) -> Vec<Uuid> {
    if counts.len() > COUNTED {
        counts.clear();
    }
    batch.iter().for_each(|refusal| *counts.entry(refusal.scope_id).or_default() += 1);
    let due: Vec<Uuid> =
        counts.iter().filter(|(_, count)| **count >= TRIMMED_EVERY).map(|(scope_id, _)| *scope_id).collect();
    counts.retain(|_, count| *count < TRIMMED_EVERY);
    due
}

impl Service {
    /// A page of what was refused in the caller's scope, the newest first: to a member its own, to everybody else all.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn refusals(&self, caller: &Caller, page: Page) -> Result<PageRows<Refusal>> {
        self.store.refusals(caller.scope.id, caller.own_alone(), page).await
    }

    /// What was refused by the id of its request.
    ///
    /// # Errors
    ///
    /// `not_found` if nothing is known of it in the caller's scope; if the database fails.
    pub async fn refusal(&self, caller: &Caller, request_id: Uuid) -> Result<Refusal> {
        self.store.refusal(caller.scope.id, caller.own_alone(), request_id).await?.ok_or_else(Error::not_found)
    }

    /// What a rule says, by the policies that decide now.
    pub fn rule_summary(&self, sha256: &str, rule: &str) -> Option<String> {
        let policies = self.policies.generations.current();
        let module = policies.modules().iter().find(|loaded| loaded.module.digest == sha256)?;
        let rule = module.module.description.rules.iter().find(|known| known.id == rule)?;
        Some(rule.summary.clone())
    }
}
