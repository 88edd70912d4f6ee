//! Policies that the hosts try out, so that a reload is foreseen: each host compares them with what it has decided itself.

use culvert_domain::fleet::ForHost;
use culvert_policy::load::policies::{Generation, ModuleBytes};
use culvert_store::Store;
use culvert_store::policy_generations::HostStage;
use futures_util::future::BoxFuture;
use tokio::sync::Notify;

use super::{LOADED_WITHIN, LOOK_EVERY, RolloutError, modules_of, propose};
use crate::Service;
use crate::secrets::Secrets;

/// How a host tries policies out. It returns what it has found as JSON, or why they cannot be loaded.
pub type TryPolicies =
    Box<dyn Fn(Generation, Vec<ModuleBytes>) -> BoxFuture<'static, Result<String, String>> + Send + Sync>;

/// What another host has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    pub host: String,
    /// As [`TryPolicies`] returns it.
    pub found: Result<String, String>,
}

/// Has all other hosts that are alive try policies out, and returns what they have found. They decide nothing. `news` tells that
/// a host may have said something.
///
/// # Errors
///
/// If the database fails.
pub async fn try_at_hosts(
    store: &Store,
    secrets: &Secrets,
    generation: &Generation,
    modules: Vec<ModuleBytes>,
    news: &Notify,
) -> Result<Vec<Tried>, RolloutError> {
    if store.policy_stages(0).await?.is_empty() {
        return Ok(Vec::new());
    }
    let trial = Generation { is_trial: true, ..generation.clone() };
    let number = propose(store, secrets, &trial, modules, 0).await?;
    let tried = until_tried(store, number, news).await;
    store.withdraw_policies(number).await?;
    // With what earlier ones have left behind that nobody waited for.
    store.forget_policies(modules_of).await?;
    Ok(tried?.into_iter().map(Tried::from).collect())
}

/// Waits until each host has said something, or has had the time to.
async fn until_tried(store: &Store, number: u64, news: &Notify) -> Result<Vec<HostStage>, RolloutError> {
    let clock = store.clock();
    let deadline = clock.moment().plus(LOADED_WITHIN);
    let hosts = store.policy_stages(number).await?;
    let hosts: Vec<_> = hosts.iter().map(|stage| (stage.host_id, ForHost::Policies)).collect();
    store.notify_hosts(&hosts).await?;
    loop {
        let heard = news.notified();
        let stages = store.policy_stages(number).await?;
        let is_waiting = stages.iter().any(|stage| !stage.is_loaded && stage.problem.is_none());
        if !is_waiting || clock.moment() >= deadline {
            return Ok(stages);
        }
        let _ = clock.timeout(LOOK_EVERY, heard).await;
    }
}

impl From<HostStage> for Tried {
    fn from(stage: HostStage) -> Self {
        let HostStage { name, is_loaded, problem, found, .. } = stage;
        let found = match (problem, found) {
            (Some(problem), _) => Err(problem),
            (None, Some(found)) => Ok(found),
            (None, None) if is_loaded => Err("it runs an earlier version, which does not compare".into()),
            (None, None) => Err(format!("it has not answered within {} seconds", LOADED_WITHIN.as_secs())),
        };
        Self { host: name, found }
    }
}

impl Service {
    /// Says how this host tries policies out, once.
    pub fn try_policies_by(&self, how: TryPolicies) {
        let _ = self.policies.how_to_try.set(how);
    }

    /// As [`try_at_hosts`].
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn try_policies_elsewhere(
        &self,
        generation: &Generation,
        modules: Vec<ModuleBytes>,
    ) -> Result<Vec<Tried>, RolloutError> {
        if !self.fleet.has_others() {
            return Ok(Vec::new());
        }
        try_at_hosts(&self.store, &self.secrets, generation, modules, &self.policies.news).await
    }
}
