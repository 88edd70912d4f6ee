//! The generations of policies in this process: the set that decides, those that are ready to take its place, and
//! earlier ones.
//!
//! A set is loaded, configured and tested with its own cases before it is ready. If any of that fails, nothing changes,
//! and the reason is kept for `status`.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;

use crate::engine::engines::Engines;
use crate::load::chain::{ChainError, Loaded, Loader};
use crate::load::policies::{Generation, ModuleBytes, Policies, Source};
use crate::serve::differences::Difference;
use crate::serve::live::PolicySet;
use crate::serve::observer::DecisionObserver;
use crate::serve::pinned::Pinned;
use crate::serve::status::{Failure, ModuleStatus, Status};

/// Most earlier sets that a rollback leads to.
pub const KEPT: usize = 4;
/// Most sets that are ready at once: each host may propose one.
const READY: usize = 4;

pub struct Generations {
    loader: Arc<Loader>,
    observer: Arc<DecisionObserver>,
    current: ArcSwap<PolicySet>,
    history: Mutex<History>,
    /// Held while a set is loaded, so that only one is loaded at a time.
    staging: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct History {
    /// Sets that decided before, oldest first: one of them decides again without being loaded.
    earlier: Vec<Arc<PolicySet>>,
    /// Sets that may decide next, oldest first.
    ready: Vec<Arc<PolicySet>>,
    last_failure: Option<Failure>,
}

/// Why policies were not reloaded, in one line. The current set stays in use.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    #[error("{0}")]
    Configuration(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error(transparent)]
    Chain(#[from] ChainError),
    #[error("policy: loading panicked: {0}")]
    Panicked(#[source] tokio::task::JoinError),
    #[error("generation {0} was made by another version of Culvert: {1}")]
    Content(u64, #[source] serde_json::Error),
}

/// What was loaded and is not to be used.
pub struct Tried {
    pub policies: Policies,
    pub loaded: Vec<Loaded>,
    pub modules: Vec<ModuleBytes>,
}

/// The policies of a configuration, which were found and are not loaded.
pub struct Found {
    /// It has no number yet.
    pub generation: Generation,
    pub modules: Vec<ModuleBytes>,
}

impl Found {
    /// # Errors
    ///
    /// Where a module is not found: one line that names the entry and what to do.
    pub fn find(loader: &Loader, policies: &Policies) -> Result<Self, ChainError> {
        let modules = loader.find(&policies.entries)?;
        let generation = policies.of(&modules).map_err(|error| ChainError::Engine(error.to_string()))?;
        Ok(Self { generation, modules })
    }
}

impl Generations {
    /// Begins with the set that decides.
    pub fn begin(loader: Loader, observer: Arc<DecisionObserver>, first: PolicySet) -> Self {
        let number = first.generation.number;
        if first.generation.is_rollback {
            tracing::info!(generation = number, "the policies stay rolled back until the next reload");
        }
        observer.metrics.generation.set(number.cast_signed());
        let (current, history, staging) =
            (ArcSwap::from_pointee(first), Mutex::default(), tokio::sync::Mutex::default());
        let generations = Self { loader: Arc::new(loader), observer, current, history, staging };
        generations.sweep(&generations.history());
        generations
    }

    /// Removes the files that no set uses: of sets that are forgotten, and of loads that failed.
    fn sweep(&self, history: &History) {
        let current = self.current();
        let sets = history.earlier.iter().chain(&history.ready).chain([&current]);
        let (mut digests, mut artefacts) = (BTreeSet::new(), BTreeSet::new());
        for Loaded { module, .. } in sets.flat_map(|set| set.modules()) {
            digests.insert(module.digest.clone());
            artefacts.extend(module.artefacts.iter().map(String::as_str));
        }
        self.loader.modules.retain(&digests);
        self.loader.artefacts.retain(&artefacts);
    }

    /// Pins the current set.
    pub fn pin(&self) -> Pinned {
        Pinned::new(self.current(), self.observer.clone(), None)
    }

    pub fn current(&self) -> Arc<PolicySet> {
        self.current.load_full()
    }

    /// The number of the set that decides.
    pub fn number(&self) -> u64 {
        self.current.load().generation.number
    }

    /// Reads the configuration and finds its policies.
    ///
    /// # Errors
    ///
    /// Where they are not found, in one line.
    pub async fn find<E>(
        &self,
        read: impl FnOnce() -> Result<Policies, E> + Send + 'static,
    ) -> Result<Found, ReloadError>
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let found = self.in_background(move |loader| {
            let policies = read().map_err(|error| ReloadError::Configuration(error.into()))?;
            Ok(Found::find(loader, &policies)?)
        });
        found.await
    }

    /// Loads policies without putting them into use, from these modules if they are given, and looks at them. Nothing is kept of
    /// them.
    ///
    /// # Errors
    ///
    /// Where they cannot be loaded, in one line.
    pub async fn try_out<T, E>(
        &self,
        read: impl FnOnce() -> Result<Policies, E> + Send + 'static,
        given: Option<Vec<ModuleBytes>>,
        look: impl FnOnce(&Engines, Tried) -> T + Send + 'static,
    ) -> Result<T, ReloadError>
    where
        T: Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let known = self.known();
        let tried = self.in_background(move |loader| {
            let policies = read().map_err(|error| ReloadError::Configuration(error.into()))?;
            let source = given.as_deref().map_or(Source::Configured, Source::Given);
            let (loaded, modules) = loader.load_from(source, &policies.entries, &known)?;
            Ok(Tried { policies, loaded, modules })
        });
        let looked = match tried.await {
            Ok(tried) => {
                // Others load meanwhile.
                let loader = self.loader.clone();
                let looked = tokio::task::spawn_blocking(move || look(&loader.engines, tried));
                looked.await.map_err(ReloadError::Panicked)
            }
            Err(problem) => Err(problem),
        };
        self.sweep(&self.history());
        looked
    }

    /// Loads something on a thread where it holds up nothing, and nothing else meanwhile.
    async fn in_background<T: Send + 'static>(
        &self,
        load: impl FnOnce(&Loader) -> Result<T, ReloadError> + Send + 'static,
    ) -> Result<T, ReloadError> {
        let _one = self.staging.lock().await;
        let loader = self.loader.clone();
        let loaded = tokio::task::spawn_blocking(move || load(&loader));
        loaded.await.unwrap_or_else(|panic| Err(ReloadError::Panicked(panic)))
    }

    /// Whether a generation is ready, or decides.
    pub fn is_ready(&self, number: u64) -> bool {
        self.number() == number || self.history().ready.iter().any(|set| set.generation.number == number)
    }

    /// Whether a set with the same content was loaded before, so that a generation needs no modules.
    pub fn knows(&self, generation: &Generation) -> bool {
        self.with_content(&generation.content).is_some()
    }

    /// Loads the set of a generation, which decides nothing yet. What was loaded before is not loaded again.
    ///
    /// # Errors
    ///
    /// Where it cannot be loaded, in one line.
    pub async fn load(&self, generation: Generation, modules: Vec<ModuleBytes>) -> Result<PolicySet, ReloadError> {
        let observer = self.observer.clone();
        if let Some(same) = self.with_content(&generation.content) {
            let set = assemble(&self.loader, &observer, same.modules().to_vec(), &same.default_plan)?;
            return Ok(set.of(generation));
        }
        let known = self.known();
        self.in_background(move |loader| load_kept(loader, &observer, generation, &modules, &known)).await
    }

    fn with_content(&self, content: &str) -> Option<Arc<PolicySet>> {
        self.sets().into_iter().find(|set| set.generation.content == content)
    }

    /// The modules of all sets.
    fn known(&self) -> Vec<Loaded> {
        self.sets().iter().flat_map(|set| set.modules().to_vec()).collect()
    }

    fn sets(&self) -> Vec<Arc<PolicySet>> {
        let (current, history) = (self.current(), self.history());
        history.ready.iter().chain(&history.earlier).chain([&current]).cloned().collect()
    }

    /// Has a loaded set be ready to decide.
    pub fn stage(&self, set: PolicySet) {
        let mut history = self.history();
        history.ready.push(Arc::new(set));
        let surplus = history.ready.len().saturating_sub(READY);
        history.ready.drain(..surplus);
    }

    /// Notes why policies were not reloaded.
    pub fn note_failure(&self, problem: String) {
        tracing::warn!(problem, "the policies were not reloaded");
        self.observer.metrics.count_reload("failed");
        let at = self.observer.clock.now();
        let mut history = self.history();
        history.last_failure = Some(Failure { at, problem });
        self.sweep(&history);
    }

    /// Has a generation decide from now on in place of `former`. False where it is not ready, or another one decides by now.
    pub fn activate(&self, number: u64, former: u64) -> bool {
        let mut history = self.history();
        if self.number() != former {
            return self.number() == number;
        }
        let Some(place) = history.ready.iter().position(|set| set.generation.number == number) else { return false };
        let set = history.ready.remove(place);
        // What was proposed before this one is for other policies than these.
        history.ready.retain(|set| set.generation.number > number);
        let is_rollback = set.generation.is_rollback;
        history.earlier.retain(|earlier| earlier.generation.content != set.generation.content);
        history.earlier.push(self.current.swap(set));
        let surplus = history.earlier.len().saturating_sub(KEPT);
        history.earlier.drain(..surplus);
        history.last_failure = None;
        self.sweep(&history);
        self.observer.metrics.count_reload(if is_rollback { "rolled_back" } else { "done" });
        self.observer.metrics.generation.set(number.cast_signed());
        let what = if is_rollback { "the policies were rolled back" } else { "the policies were reloaded" };
        tracing::info!(generation = number, "{what}");
        true
    }

    /// Forgets a generation that is not to decide.
    pub fn withdraw(&self, number: u64) {
        let mut history = self.history();
        history.ready.retain(|set| set.generation.number != number);
        self.sweep(&history);
    }

    pub fn status(&self) -> Status {
        let (set, history) = (self.current(), self.history());
        Status {
            generation: set.generation.number,
            digest: set.generation.digest(),
            loaded_at: set.loaded_at,
            modules: set.guarded().map(|(loaded, guard)| ModuleStatus::of(loaded, guard)).collect(),
            is_rollback: set.generation.is_rollback,
            earlier: set.generation.earlier.clone(),
            last_failure: history.last_failure.clone(),
            records: self.observer.records.as_ref().map(|records| records.health()),
        }
    }

    /// The newest decisions in which a shadow module disagreed.
    pub fn shadow_differences(&self) -> Vec<Difference> {
        self.observer.shadows.differences().newest()
    }

    /// Stops the shadow modules and writes the decision records that are still queued.
    pub fn close(&self) {
        self.observer.close();
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Loads the set of a generation from its modules. Those that are known are not loaded again.
///
/// # Errors
///
/// Where it cannot be loaded: one line that names the entry and what to do.
pub fn load_kept(
    loader: &Loader,
    observer: &Arc<DecisionObserver>,
    generation: Generation,
    modules: &[ModuleBytes],
    known: &[Loaded],
) -> Result<PolicySet, ReloadError> {
    let policies = generation.policies().map_err(|error| ReloadError::Content(generation.number, error))?;
    let (loaded, _) = loader.load_from(Source::Given(modules), &policies.entries, known)?;
    Ok(assemble(loader, observer, loaded, &policies.default_plan)?.of(generation))
}

/// A set that is ready for use: every module is loaded, and the default plan is known.
fn assemble(
    loader: &Loader,
    observer: &Arc<DecisionObserver>,
    modules: Vec<Loaded>,
    default_plan: &str,
) -> Result<PolicySet, ChainError> {
    let now = observer.clock.now();
    let set = PolicySet::new(&loader.engines, &observer.metrics, modules, now);
    let mut set = set.map_err(|error| ChainError::Engine(error.to_string()))?;
    default_plan.clone_into(&mut set.default_plan);
    if set.has_plan(default_plan).map_err(ChainError::Failed)? {
        Ok(set)
    } else {
        Err(ChainError::DefaultPlan(default_plan.to_owned()))
    }
}
