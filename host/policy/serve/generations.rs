//! The generations of policies in this process: the current set, the earlier ones, and how they are
//! replaced.
//!
//! A new set is loaded, configured and tested with its own cases before it replaces the current one. If
//! any of that fails, the current set stays and the reason is kept for `status`.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::engine::engines::Engines;
use crate::engine::kind::Kind;
use crate::load::chain::{ChainError, Loaded, Loader, Mode};
use crate::serve::differences::Difference;
use crate::serve::generation_state::{GenerationState, Policies, Rollback, StateFile};
use crate::serve::live::PolicySet;
use crate::serve::module_guard::ModuleGuard;
use crate::serve::observer::DecisionObserver;
use crate::serve::pinned::Pinned;
use crate::serve::record_writer::RecordsHealth;

/// Most earlier sets that are kept for a rollback.
const KEPT: usize = 4;

pub struct Generations {
    loader: Arc<Loader>,
    observer: Arc<DecisionObserver>,
    current: ArcSwap<PolicySet>,
    history: Mutex<History>,
    file: StateFile,
    /// Held while a set is loaded, so that only one is loaded at a time.
    staging: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct History {
    /// Oldest first.
    earlier: Vec<Arc<PolicySet>>,
    state: GenerationState,
    rollbacks: u64,
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
    #[error("the policies were rolled back while these were loaded; reload once more")]
    RolledBack,
}

/// There is no earlier set to roll back to.
#[derive(Debug, thiserror::Error)]
#[error("there is no earlier generation to go back to")]
pub struct NoEarlierGeneration;

/// The last reload that failed.
#[derive(Clone, Debug, Serialize)]
pub struct Failure {
    pub at: DateTime<Utc>,
    pub problem: String,
}

/// The current policies, for the operator.
#[derive(Debug, Serialize)]
pub struct Status {
    pub generation: u64,
    pub loaded_at: DateTime<Utc>,
    pub modules: Vec<ModuleStatus>,
    /// The generations available for a rollback, most recent first.
    pub earlier: Vec<u64>,
    /// The last reload that failed, until one succeeds.
    pub last_failure: Option<Failure>,
    /// None where no decisions are recorded.
    pub records: Option<RecordsHealth>,
}

#[derive(Debug, Serialize)]
pub struct ModuleStatus {
    pub kind: Kind,
    /// The module's name in the configuration.
    pub module: String,
    pub name: String,
    pub version: String,
    pub sha256: String,
    /// SHA-256 of its settings as JSON.
    pub settings_sha256: String,
    pub mode: Mode,
    pub deadline_ms: u32,
    pub memory_kib: u32,
    /// Whether a trusted key has signed it.
    #[serde(rename = "signed")]
    pub is_signed: bool,
    /// Whether the module is not asked for a while, because it timed out again and again.
    pub breaker_open: bool,
}

impl Generations {
    /// Loads the first set.
    ///
    /// # Errors
    ///
    /// Where a module cannot be loaded: one line that names the entry and what to do.
    pub fn open(
        loader: Loader,
        observer: DecisionObserver,
        policies: &Policies,
        file: StateFile,
    ) -> Result<Self, ChainError> {
        let observer = Arc::new(observer);
        let mut state = file.read();
        let configuration = policies.digest();
        let held = state.rollback.take().filter(|rollback| rollback.from == configuration);
        let wanted = held.as_ref().map_or(policies, |rollback| &rollback.to);
        let mut set = stage(&loader, &observer, wanted, state.newest + 1)?;
        // The modules are compared as well, because a host of another version has others built in.
        let is_known = state.configuration == configuration && state.modules == set.digests();
        if is_known {
            set.generation = state.active;
        }
        if held.is_some() {
            tracing::info!(generation = set.generation, "the policies stay rolled back until the next reload");
        }
        state.newest = state.newest.max(set.generation);
        (state.active, state.modules) = (set.generation, set.digests());
        (state.rollback, state.configuration) = (held, configuration);
        observer.metrics.generation.set(set.generation.cast_signed());
        let history = Mutex::new(History { state, ..History::default() });
        let current = ArcSwap::from_pointee(set);
        let staging = tokio::sync::Mutex::default();
        let generations = Self { loader: Arc::new(loader), observer, current, history, file, staging };
        generations.keep(&generations.history());
        Ok(generations)
    }

    /// Writes the state, and removes what no kept set uses any more.
    fn keep(&self, history: &History) {
        // Written before anything is removed that an older state names.
        self.file.write(&history.state);
        self.sweep(history);
    }

    /// Removes the files that no kept set uses: of sets that are forgotten, and of loads that failed.
    fn sweep(&self, history: &History) {
        let current = self.current();
        let sets = history.earlier.iter().chain([&current]);
        let (mut digests, mut artefacts) = (BTreeSet::new(), BTreeSet::new());
        for Loaded { module, .. } in sets.flat_map(|set| set.modules()) {
            digests.insert(module.digest.clone());
            artefacts.extend(module.artefacts.iter().map(String::as_str));
        }
        self.loader.modules.retain(&digests);
        self.loader.artefacts.retain(&artefacts);
    }

    /// Whether a rollback holds.
    pub fn is_rolled_back(&self) -> bool {
        self.history().state.rollback.is_some()
    }

    /// Pins the current set.
    pub fn pin(&self) -> Pinned {
        Pinned::new(self.current(), self.observer.clone(), None)
    }

    pub fn current(&self) -> Arc<PolicySet> {
        self.current.load_full()
    }

    /// Reads the configuration again and puts its policies into use. Returns their generation.
    ///
    /// # Errors
    ///
    /// Where the policies cannot be loaded, in one line. The current set stays in use.
    pub async fn reload<E>(
        &self,
        read: impl FnOnce() -> Result<Policies, E> + Send + 'static,
    ) -> Result<u64, ReloadError>
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        // A rollback while this waits for its turn ends it as well.
        let rollbacks = self.history().rollbacks;
        let _one = self.staging.lock().await;
        let generation = self.history().state.newest + 1;
        let (loader, observer) = (self.loader.clone(), self.observer.clone());
        let staged = tokio::task::spawn_blocking(move || {
            let policies = read().map_err(|error| ReloadError::Configuration(error.into()))?;
            Ok((stage(&loader, &observer, &policies, generation)?, policies.digest()))
        });
        match staged.await.unwrap_or_else(|panic| Err(ReloadError::Panicked(panic))) {
            Ok((set, configuration)) => {
                // Whoever rolled back in the meantime knew of a problem that this reload did not know of.
                let is_swapped = self.swap(set, configuration, rollbacks);
                if is_swapped { Ok(generation) } else { Err(self.fail(ReloadError::RolledBack)) }
            }
            Err(error) => Err(self.fail(error)),
        }
    }

    /// Loads policies without putting them into use, and looks at them. Nothing is kept of them.
    ///
    /// # Errors
    ///
    /// Where they cannot be loaded, in one line.
    pub async fn try_out<T, E>(
        &self,
        read: impl FnOnce() -> Result<Policies, E> + Send + 'static,
        look: impl FnOnce(&Engines, &Policies, &[Loaded]) -> T + Send + 'static,
    ) -> Result<T, ReloadError>
    where
        T: Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let _one = self.staging.lock().await;
        let loader = self.loader.clone();
        let tried = tokio::task::spawn_blocking(move || {
            let policies = read().map_err(|error| ReloadError::Configuration(error.into()))?;
            let loaded = loader.load(&policies.entries)?;
            Ok(look(&loader.engines, &policies, &loaded))
        });
        let tried = tried.await.unwrap_or_else(|panic| Err(ReloadError::Panicked(panic)));
        self.sweep(&self.history());
        tried
    }

    fn fail(&self, error: ReloadError) -> ReloadError {
        let problem = error.to_string();
        tracing::warn!(problem, "the policies were not reloaded");
        self.observer.metrics.count_reload("failed");
        let at = self.observer.clock.now();
        let mut history = self.history();
        history.last_failure = Some(Failure { at, problem });
        self.sweep(&history);
        drop(history);
        error
    }

    /// Makes a set the current one, unless there was a rollback since its loading began.
    fn swap(&self, set: PolicySet, configuration: String, rollbacks: u64) -> bool {
        let mut history = self.history();
        if history.rollbacks != rollbacks {
            return false;
        }
        let generation = set.generation;
        let modules = set.digests();
        history.state =
            GenerationState { newest: generation, active: generation, configuration, modules, rollback: None };
        history.last_failure = None;
        // No other set gets the number, whatever happens from here on.
        self.file.write(&history.state);
        history.earlier.push(self.current.swap(Arc::new(set)));
        let surplus = history.earlier.len().saturating_sub(KEPT);
        history.earlier.drain(..surplus);
        self.keep(&history);
        self.observer.metrics.count_reload("done");
        self.observer.metrics.generation.set(generation.cast_signed());
        tracing::info!(generation, "the policies were reloaded");
        true
    }

    /// Makes the previous set the current one again, until the next reload: over a restart as well, while the
    /// configuration is the one that was rolled back.
    ///
    /// # Errors
    ///
    /// Where there is no earlier set.
    pub fn rollback(&self) -> Result<u64, NoEarlierGeneration> {
        let mut history = self.history();
        let set = history.earlier.pop().ok_or(NoEarlierGeneration)?;
        history.rollbacks += 1;
        let generation = set.generation;
        let to = Policies {
            entries: set.modules().iter().map(Loaded::kept_entry).collect(),
            default_plan: set.default_plan.clone(),
        };
        let from = match &history.state.rollback {
            Some(rollback) => rollback.from.clone(),
            None => history.state.configuration.clone(),
        };
        history.state.rollback = Some(Rollback { from, to });
        (history.state.active, history.state.modules) = (generation, set.digests());
        self.current.store(set);
        self.keep(&history);
        self.observer.metrics.count_reload("rolled_back");
        self.observer.metrics.generation.set(generation.cast_signed());
        tracing::info!(generation, "the policies were rolled back");
        Ok(generation)
    }

    pub fn status(&self) -> Status {
        let (set, history) = (self.current(), self.history());
        let module = |(Loaded { entry, module, is_signed, .. }, guard): (&Loaded, &ModuleGuard)| ModuleStatus {
            kind: module.kind,
            module: entry.module.clone(),
            name: module.description.name.clone(),
            version: module.description.version.clone(),
            sha256: module.digest.clone(),
            settings_sha256: module.settings_digest.clone(),
            mode: entry.mode,
            deadline_ms: entry.deadline_ms,
            memory_kib: entry.memory_kib,
            is_signed: *is_signed,
            breaker_open: guard.is_open(),
        };
        Status {
            generation: set.generation,
            loaded_at: set.loaded_at,
            modules: set.guarded().map(module).collect(),
            earlier: history.earlier.iter().rev().map(|set| set.generation).collect(),
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

/// Loads a set that is ready for use: every module is loaded, and the default plan is known.
fn stage(
    loader: &Loader,
    observer: &Arc<DecisionObserver>,
    policies: &Policies,
    generation: u64,
) -> Result<PolicySet, ChainError> {
    let Policies { entries, default_plan } = policies;
    let modules = loader.load(entries)?;
    let now = observer.clock.now();
    let set = PolicySet::new(&loader.engines, &observer.metrics, modules, generation, now);
    let mut set = set.map_err(|error| ChainError::Engine(error.to_string()))?;
    set.default_plan.clone_from(default_plan);
    if set.has_plan(default_plan).map_err(ChainError::Failed)? {
        Ok(set)
    } else {
        Err(ChainError::DefaultPlan(default_plan.clone()))
    }
}
