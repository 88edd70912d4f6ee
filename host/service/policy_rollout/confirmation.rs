//! What this host says to the others of the policies that decide, and what they say.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use culvert_domain::error::{Chain, Result};
use culvert_domain::fleet::ForHost;
use culvert_store::Hint;
use culvert_store::policy_generations::HostStage;
use culvert_wire::clock::Moment;
use tokio::sync::Mutex;
use uuid::Uuid;

use super::{LOOK_EVERY, PolicyRollout, RolloutError};
use crate::Service;

/// How long the hosts have to confirm that a generation decides.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(30);

/// What the database knows of the generation that decides at this host.
pub(super) struct Confirmation {
    known: AtomicU64,
    saying: Mutex<()>,
}

impl Confirmation {
    /// A host says which one decides when it takes its place.
    pub(super) fn of(number: u64) -> Self {
        Self { known: AtomicU64::new(number), saying: Mutex::default() }
    }
}

impl PolicyRollout {
    /// Whether the database knows what decides here.
    pub(crate) fn is_confirmed(&self) -> bool {
        self.confirmation.known.load(Ordering::Relaxed) == self.generations.number()
    }

    /// The database has lost what was written last: what decides here is said again.
    pub(crate) fn confirm_again(&self) {
        self.confirmation.known.store(0, Ordering::Relaxed);
    }
}

impl Service {
    /// The other hosts that are alive, each with the generation that decides there.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn policies_of_hosts(&self) -> Result<Vec<(String, u64)>> {
        if !self.fleet.has_others() {
            return Ok(Vec::new());
        }
        let stages = self.store.policy_stages(self.policies.generations.number()).await?;
        Ok(stages.into_iter().map(|stage| (stage.name, stage.decides)).collect())
    }

    /// Waits until each host says that this generation decides there, or a later one.
    pub(super) async fn decides_everywhere(&self, number: u64) -> Result<u64, RolloutError> {
        let deadline = self.clock().moment().plus(CONFIRMED_WITHIN);
        let confirmed = self.until_hosts(number, None, deadline, |stage| stage.decides >= number).await?;
        confirmed.map_err(|hosts| RolloutError::NotConfirmed { number, hosts })?;
        Ok(number)
    }

    /// Says which generation decides here. One says so at a time: an older one must not be said last.
    pub(super) async fn confirm(&self) -> Result<()> {
        self.store.send_hint(Hint::Installation);
        let one = self.policies.confirmation.saying.lock().await;
        let number = self.policies.generations.number();
        self.store.confirm_policies(number).await?;
        self.policies.confirmation.known.store(number, Ordering::Relaxed);
        drop(one);
        let proposed_by = self.store.policy_generation(number).await?.and_then(|stored| stored.proposed_by);
        let other = proposed_by.filter(|id| Some(*id) != self.store.host_id());
        self.tell_hosts(other.as_slice()).await;
        Ok(())
    }

    /// Waits until all other hosts that are alive are so far with a generation, as long as the one decides that it is to
    /// replace. The inner error names those that are not.
    pub(super) async fn until_hosts(
        &self,
        number: u64,
        based_on: Option<u64>,
        deadline: Moment,
        is_done: impl Fn(&HostStage) -> bool,
    ) -> Result<Result<(), String>, RolloutError> {
        let clock = self.clock();
        let mut told = Vec::new();
        while self.store.is_on_a_server() {
            let heard = self.policies.news.notified();
            let stages = self.store.policy_stages(number).await?;
            let failed = stages.iter().find_map(|stage| Some((stage.name.clone(), stage.problem.clone()?)));
            if let Some((name, problem)) = failed {
                return Err(RolloutError::AtHost { name, problem });
            }
            let waited_for: Vec<_> = stages.iter().filter(|stage| !is_done(stage)).collect();
            if waited_for.is_empty() {
                break;
            }
            if let Some(based_on) = based_on
                && self.store.active_policy_number().await? != based_on
            {
                return Err(RolloutError::Overtaken);
            }
            let left = deadline.since(clock.moment());
            if left.is_zero() {
                let names: Vec<&str> = waited_for.iter().map(|stage| stage.name.as_str()).collect();
                return Ok(Err(names.join(", ")));
            }
            let ids: Vec<_> = waited_for.iter().map(|stage| stage.host_id).filter(|id| !told.contains(id)).collect();
            self.tell_hosts(&ids).await;
            told.extend(ids);
            let _ = clock.timeout(LOOK_EVERY.min(left), heard).await;
        }
        Ok(Ok(()))
    }

    /// Tells hosts that there is something for them. They look by themselves as well.
    pub(super) async fn tell_hosts(&self, host_ids: &[Uuid]) {
        let hosts: Vec<_> = host_ids.iter().map(|id| (*id, ForHost::Policies)).collect();
        if hosts.is_empty() {
            return;
        }
        if let Err(error) = self.store.notify_hosts(&hosts).await {
            tracing::warn!(error = %Chain(&error), "the other hosts could not be told of policies");
        }
    }
}
