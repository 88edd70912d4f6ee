//! How other policies come to decide, at every host on the database at once.
//!
//! A generation of policies is a row, with its modules. It is proposed, loaded by each host that is alive, activated by one
//! statement, and confirmed by each host. The transaction of a change reads which generation decides, and a decision of
//! another one is made again ([`crate::commit`]).

mod confirmation;
mod opening;
mod trial;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use culvert_domain::error::{Chain, Code, Error, Result};
use culvert_policy::load::chain::ChainError;
use culvert_policy::load::policies::{Generation, ModuleBytes, Policies};
use culvert_policy::serve::generations::{Found, Generations, KEPT, ReloadError};
use culvert_store::Store;
use culvert_store::error::first_error;
use culvert_store::policy_generations::{Activation, StoredGeneration, StoredModule};
use futures_util::future;
use tokio::sync::{Mutex, Notify};
use tokio_util::task::TaskTracker;

use crate::Service;
use crate::gate::PinnedPolicies;
use crate::secrets::{Purpose, Secrets};

use confirmation::Confirmation;
pub use opening::{Opening, active};
pub use trial::{Tried, TryPolicies, try_at_hosts};

/// How long the hosts have to load a generation.
const LOADED_WITHIN: Duration = Duration::from_mins(1);
/// How long a change waits until its host has the generation that decides.
const FOLLOWED_WITHIN: Duration = Duration::from_secs(2);
/// How often it is looked what has come of a generation of which no notification tells.
const LOOK_EVERY: Duration = Duration::from_millis(250);

pub(crate) struct PolicyRollout {
    pub(crate) generations: Arc<Generations>,
    /// One at a time is proposed here.
    proposing: Mutex<()>,
    /// One at a time loads what other hosts propose.
    following: Mutex<()>,
    /// One at a time is tried out.
    trying: Mutex<()>,
    how_to_try: OnceLock<TryPolicies>,
    /// Something has come of a generation at another host.
    news: Notify,
    /// The generation that decides, where this host cannot load it; otherwise 0.
    unloadable: AtomicU64,
    /// What the database knows of this host.
    confirmation: Confirmation,
}

/// Why other policies do not decide, in one line.
#[derive(Debug, thiserror::Error)]
pub enum RolloutError {
    #[error(transparent)]
    Load(#[from] ReloadError),
    #[error("there is no earlier generation to go back to")]
    NoEarlier,
    #[error("other policies came into use meanwhile; look at `culvert policy status`, and try once more")]
    Overtaken,
    #[error("generation {0} was made with another secret_key_file than this host's")]
    Foreign(u64),
    #[error(
        "policy: generation {number} decides, and cannot be loaded: {problem}; `culvert policy reload --offline` has those of \
         the settings decide, while no host runs"
    )]
    Unloadable { number: u64, problem: String },
    #[error(
        "a host runs on the database, or other policies came into use meanwhile; `culvert policy reload` asks the host"
    )]
    InUse,
    #[error("host {name}: {problem}")]
    AtHost { name: String, problem: String },
    #[error("{0} has not loaded them within 60 seconds; stop that host, or try once more")]
    NotLoaded(String),
    #[error("generation {number} decides, but {hosts} has not said so within 30 seconds; look at `culvert host list`")]
    NotConfirmed { number: u64, hosts: String },
    #[error("the database: {}", Chain(.0))]
    Database(#[from] Error),
}

impl From<ChainError> for RolloutError {
    fn from(error: ChainError) -> Self {
        Self::Load(error.into())
    }
}

/// The generation to propose, and the number of the one that it is to replace.
fn next(active: Option<&Generation>, generation: Generation) -> (u64, Generation) {
    let earlier = active.into_iter().flat_map(|active| [active.number].into_iter().chain(active.earlier.clone()));
    let earlier = earlier.take(KEPT).collect();
    (active.map_or(0, |active| active.number), Generation { earlier, ..generation })
}

async fn propose(
    store: &Store,
    secrets: &Secrets,
    generation: &Generation,
    modules: Vec<ModuleBytes>,
    at_least: u64,
) -> Result<u64> {
    let Generation { content, configuration, earlier, is_rollback, is_trial, .. } = generation.clone();
    let mac = secrets.mac(Purpose::Policies, content.as_bytes());
    let proposed_by = store.host_id();
    let stored =
        StoredGeneration { number: 0, content, mac, configuration, earlier, is_rollback, is_trial, proposed_by };
    let module = |ModuleBytes { sha256, wasm, signature }| StoredModule { sha256, wasm, signature };
    store.propose_policies(stored, modules.into_iter().map(module).collect(), at_least).await
}

/// A generation that a host with the same keys has made.
fn authentic(secrets: &Secrets, stored: StoredGeneration) -> Result<Generation, RolloutError> {
    let StoredGeneration { number, content, mac, configuration, earlier, is_rollback, is_trial, .. } = stored;
    if !secrets.verify_mac(Purpose::Policies, content.as_bytes(), &mac) {
        return Err(RolloutError::Foreign(number));
    }
    Ok(Generation { number, content, configuration, earlier, is_rollback, is_trial })
}

async fn kept_modules(store: &Store, generation: &Generation) -> Result<Vec<ModuleBytes>> {
    let module = |StoredModule { sha256, wasm, signature }| ModuleBytes { sha256, wasm, signature };
    Ok(store.policy_modules(&modules_of(&generation.content)).await?.into_iter().map(module).collect())
}

/// The digests of the modules that a generation consists of.
fn modules_of(content: &str) -> Vec<String> {
    let generation = Generation { content: content.to_owned(), ..Generation::default() };
    let entries = generation.policies().map(|policies| policies.entries).unwrap_or_default();
    entries.into_iter().filter_map(|entry| entry.sha256).collect()
}

impl PolicyRollout {
    pub(crate) fn new(generations: Arc<Generations>) -> Self {
        let confirmation = Confirmation::of(generations.number());
        Self {
            generations,
            proposing: Mutex::default(),
            following: Mutex::default(),
            trying: Mutex::default(),
            how_to_try: OnceLock::new(),
            news: Notify::new(),
            unloadable: AtomicU64::new(0),
            confirmation,
        }
    }

    /// # Errors
    ///
    /// `policy_unavailable`, where this host cannot load the policies that decide.
    pub(crate) fn check(&self) -> Result<()> {
        if self.unloadable.load(Ordering::Relaxed) == 0 { Ok(()) } else { Err(behind()) }
    }
}

fn behind() -> Error {
    Error::new(Code::PolicyUnavailable, "This host does not have the policies that decide.")
        .after(Duration::from_secs(1))
}

impl Service {
    /// Reads the configuration again and puts its policies into use, at all hosts. Returns their generation: it decides each
    /// request that begins from now on.
    ///
    /// # Errors
    ///
    /// Why the policies that decided go on to decide, in one line; and where a host does not say that the new ones do.
    pub async fn reload_policies<E>(
        &self,
        read: impl FnOnce() -> Result<Policies, E> + Send + 'static,
    ) -> Result<u64, RolloutError>
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let reloaded = self.try_reload(read).await;
        if let Err(problem) = &reloaded {
            self.policies.generations.note_failure(problem.to_string());
        }
        reloaded
    }

    async fn try_reload<E>(
        &self,
        read: impl FnOnce() -> Result<Policies, E> + Send + 'static,
    ) -> Result<u64, RolloutError>
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let PolicyRollout { generations, proposing, .. } = &self.policies;
        let _one = proposing.lock().await;
        let active = self.active_policies().await?;
        let Found { generation, modules } = generations.find(read).await?;
        let (based_on, generation) = next(active.as_ref(), generation);
        let content = generation.content.clone();
        let number = self.propose_and_load(generation, modules).await?;
        match self.roll_out(number, based_on).await {
            // Other hosts may have read the same at once, as where each gets a SIGHUP.
            Err(RolloutError::Overtaken) => self.overtaken_by(&content).await,
            rolled_out => rolled_out,
        }
    }

    /// Proposes a generation and has it be ready here. The other hosts load it meanwhile; where there are none, nothing is
    /// proposed that cannot be loaded.
    async fn propose_and_load(&self, generation: Generation, modules: Vec<ModuleBytes>) -> Result<u64, RolloutError> {
        let generations = &self.policies.generations;
        let load = generations.load(generation.clone(), modules.clone());
        let propose = async {
            let number = propose(&self.store, &self.secrets, &generation, modules, 0).await?;
            // Where that fails, they look by themselves.
            let others = self.store.policy_stages(number).await.unwrap_or_default();
            self.tell_hosts(&others.iter().map(|stage| stage.host_id).collect::<Vec<_>>()).await;
            Ok::<_, RolloutError>(number)
        };
        let (number, set) = if self.fleet.has_others() {
            match future::join(load, propose).await {
                (Ok(set), proposed) => (proposed?, set),
                (Err(problem), Ok(number)) => {
                    self.withdraw(number).await;
                    return Err(problem.into());
                }
                (Err(problem), Err(_)) => return Err(problem.into()),
            }
        } else {
            let set = load.await?;
            (propose.await?, set)
        };
        generations.stage(set.of(Generation { number, ..generation }));
        Ok(number)
    }

    /// Removes a generation that is not to decide, with its modules. If the database fails, the generation expires.
    async fn withdraw(&self, number: u64) {
        self.policies.generations.withdraw(number);
        let withdrawn = self.store.withdraw_policies(number).await;
        if let Err(error) = first_error(withdrawn, self.store.forget_policies(modules_of).await) {
            tracing::warn!(error = %Chain(&error), generation = number, "a generation of policies could not be withdrawn");
        }
    }

    /// The generation that was faster, if it consists of the same.
    async fn overtaken_by(&self, content: &str) -> Result<u64, RolloutError> {
        let active = self.active_policies().await?.filter(|active| active.content == content);
        let number = active.ok_or(RolloutError::Overtaken)?.number;
        self.follow_policies().await?;
        self.decides_everywhere(number).await
    }

    /// Goes back to the policies before those that decide, until the next reload, at all hosts. Returns their generation.
    ///
    /// # Errors
    ///
    /// As [`Service::reload_policies`]; if there are none.
    pub async fn rollback_policies(&self) -> Result<u64, RolloutError> {
        let active = self.active_policies().await?.ok_or(RolloutError::NoEarlier)?;
        let (number, earlier) = active.earlier.split_first().ok_or(RolloutError::NoEarlier)?;
        let former = self.store.policy_generation(*number).await?.ok_or(RolloutError::NoEarlier)?;
        let Generation { content, .. } = authentic(&self.secrets, former)?;
        let (configuration, earlier) = (active.configuration, earlier.to_vec());
        let generation = Generation { content, configuration, earlier, is_rollback: true, ..Generation::default() };
        let number = propose(&self.store, &self.secrets, &generation, Vec::new(), 0).await?;
        if let Err(problem) = self.load_kept(Generation { number, ..generation }).await {
            self.withdraw(number).await;
            return Err(problem);
        }
        self.roll_out(number, active.number).await
    }

    async fn active_policies(&self) -> Result<Option<Generation>, RolloutError> {
        self.store.active_policies().await?.map(|stored| authentic(&self.secrets, stored)).transpose()
    }

    /// Has a generation be ready here.
    async fn load_kept(&self, generation: Generation) -> Result<(), RolloutError> {
        let generations = &self.policies.generations;
        let known = generations.knows(&generation);
        let modules = if known { Vec::new() } else { kept_modules(&self.store, &generation).await? };
        generations.stage(generations.load(generation, modules).await?);
        Ok(())
    }

    /// Has a generation that is ready here decide everywhere, or nowhere.
    async fn roll_out(&self, number: u64, based_on: u64) -> Result<u64, RolloutError> {
        let activated = self.activate(number, based_on).await;
        if let Err(problem) = activated {
            self.withdraw(number).await;
            return Err(problem);
        }
        self.follow_active().await?;
        let everywhere = self.decides_everywhere(number).await;
        self.store.forget_policies(modules_of).await?;
        everywhere
    }

    async fn activate(&self, number: u64, based_on: u64) -> Result<(), RolloutError> {
        self.store.note_policy_stage(number, Ok(None)).await?;
        let deadline = self.clock().moment().plus(LOADED_WITHIN);
        loop {
            let loaded = self.until_hosts(number, Some(based_on), deadline, |stage| stage.is_loaded).await?;
            loaded.map_err(RolloutError::NotLoaded)?;
            match self.store.activate_policies(number, based_on).await? {
                Activation::Active => return Ok(()),
                Activation::Overtaken => return Err(RolloutError::Overtaken),
                // A host has come.
                Activation::NotLoaded => self.clock().sleep(LOOK_EVERY).await,
            }
        }
    }

    /// Has the generation decide here that decides in the database, if it is ready here. Returns the generation that decides
    /// in the database.
    async fn follow_active(&self) -> Result<u64> {
        let PolicyRollout { generations, unloadable, .. } = &self.policies;
        loop {
            // Read before the other: whatever has come to decide here meanwhile is newer.
            let former = generations.number();
            let active = self.store.active_policy_number().await?;
            if active == former {
                if !self.policies.is_confirmed() {
                    self.confirm().await?;
                }
                return Ok(active);
            }
            if !generations.is_ready(active) {
                return Ok(active);
            }
            if generations.activate(active, former) {
                unloadable.store(0, Ordering::Relaxed);
                self.confirm().await?;
            }
        }
    }

    /// Something has come of a generation at another host.
    pub(crate) fn heard_of_policies(self: &Arc<Self>, tasks: &TaskTracker) {
        self.policies.news.notify_waiters();
        let service = self.clone();
        // Loading takes its time, and nothing waits for it.
        tasks.spawn(async move {
            if let Err(error) = service.follow_policies().await {
                tracing::warn!(error = %Chain(&error), "it could not be looked which policies decide");
            }
        });
    }

    /// Has the generation decide here that decides in the database, and loads those that are proposed.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn follow_policies(&self) -> Result<()> {
        let PolicyRollout { generations, unloadable, .. } = &self.policies;
        // Not after what is being loaded.
        self.follow_active().await?;
        let one = self.policies.following.lock().await;
        let active = self.follow_active().await?;
        if !generations.is_ready(active) && active != unloadable.load(Ordering::Relaxed) {
            self.take_over(active).await?;
        }
        let mut trials = Vec::new();
        for number in self.store.proposed_policies(active).await? {
            match self.store.policy_generation(number).await? {
                Some(trial) if trial.is_trial => trials.push(trial),
                // Whoever proposes loads it as well.
                Some(own) if own.proposed_by == self.store.host_id() => {}
                Some(proposed) => self.prepare(proposed).await?,
                None => {}
            }
        }
        // What decides does not wait for a comparison.
        drop(one);
        for trial in trials {
            self.try_out(trial).await?;
        }
        Ok(())
    }

    /// Loads the generation that decides. Where it cannot be loaded, this host decides nothing any longer.
    async fn take_over(&self, number: u64) -> Result<()> {
        let Some(stored) = self.store.policy_generation(number).await? else { return Ok(()) };
        if let Err(problem) = self.load_stored(stored).await? {
            let decides = "the policies that decide cannot be loaded; this host decides nothing";
            tracing::error!(generation = number, problem, "{decides}");
            self.policies.unloadable.store(number, Ordering::Relaxed);
            return Ok(());
        }
        self.follow_active().await?;
        Ok(())
    }

    /// Loads a generation that another host proposes, and says what has come of it.
    async fn prepare(&self, stored: StoredGeneration) -> Result<()> {
        let (number, proposed_by) = (stored.number, stored.proposed_by);
        let is_ready = self.policies.generations.is_ready(number);
        let loaded = if is_ready { Ok(()) } else { self.load_stored(stored).await? };
        self.store.note_policy_stage(number, loaded.map(|()| None)).await?;
        self.tell_hosts(proposed_by.as_slice()).await;
        Ok(())
    }

    /// Compares a generation with what this host has decided, unless it does so already.
    async fn try_out(&self, stored: StoredGeneration) -> Result<()> {
        let PolicyRollout { trying, how_to_try, .. } = &self.policies;
        let (Ok(_one), Some(how)) = (trying.try_lock(), how_to_try.get()) else { return Ok(()) };
        let (number, proposed_by) = (stored.number, stored.proposed_by);
        let found = match authentic(&self.secrets, stored) {
            Ok(generation) => {
                let modules = kept_modules(&self.store, &generation).await?;
                how(generation, modules).await
            }
            Err(problem) => Err(problem.to_string()),
        };
        self.store.note_policy_stage(number, found.map(Some)).await?;
        self.tell_hosts(proposed_by.as_slice()).await;
        Ok(())
    }

    /// Has a generation be ready here. The inner error is why it is not.
    async fn load_stored(&self, stored: StoredGeneration) -> Result<Result<(), String>> {
        let loaded = match authentic(&self.secrets, stored) {
            Ok(generation) => self.load_kept(generation).await,
            Err(problem) => Err(problem),
        };
        match loaded {
            Err(RolloutError::Database(error)) => Err(error),
            other => Ok(other.map_err(|problem| problem.to_string())),
        }
    }

    /// Has a request be decided by the generation that decides now.
    ///
    /// # Errors
    ///
    /// `policy_unavailable` if this host does not have it; if the database fails.
    pub(crate) async fn renew_policies(&self, policies: &PinnedPolicies) -> Result<()> {
        let active = self.store.active_policy_number().await?;
        if active == policies.generation() {
            return Ok(());
        }
        if active != self.policies.generations.number() {
            let _ = self.clock().timeout(FOLLOWED_WITHIN, Box::pin(self.follow_policies())).await;
        }
        if policies.generation() == self.policies.generations.number() {
            return Err(behind());
        }
        policies.pin_anew(self.policies.generations.pin());
        Ok(())
    }
}
