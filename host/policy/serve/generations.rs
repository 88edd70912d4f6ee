//! The generations of policies in this process: the current set, the earlier ones, and how they are
//! replaced.
//!
//! A new set is loaded, configured and tested with its own cases before it replaces the current one. If
//! any of that fails, the current set stays and the reason is kept for `status`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::engine::kind::Kind;
use crate::load::chain::{ChainError, Loaded, Loader, Mode, PolicyConfig};
use crate::serve::live::PolicySet;
use crate::serve::observer::DecisionObserver;
use crate::serve::pinned::Pinned;
use crate::serve::records::Records;

/// Most earlier sets that are kept for a rollback.
const KEPT: usize = 4;

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
    /// Oldest first.
    earlier: Vec<Arc<PolicySet>>,
    /// The highest generation so far.
    newest: u64,
    rollbacks: u64,
    last_failure: Option<Failure>,
}

/// The configuration that a set is loaded from.
#[derive(Clone, Debug)]
pub struct Policies {
    pub entries: Vec<PolicyConfig>,
    /// A plan that the set must know.
    pub default_plan: String,
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
    pub last_failure: Option<Failure>,
}

#[derive(Debug, Serialize)]
pub struct ModuleStatus {
    pub kind: Kind,
    /// The module's name in the configuration.
    pub module: String,
    pub name: String,
    pub version: String,
    pub sha256: String,
    pub mode: Mode,
    pub deadline_ms: u32,
    pub memory_kib: u32,
}

impl Generations {
    /// Loads the first set.
    ///
    /// # Errors
    ///
    /// Where a module cannot be loaded: one line that names the entry and what to do.
    pub fn open(loader: Loader, observer: DecisionObserver, policies: &Policies) -> Result<Self, ChainError> {
        let observer = Arc::new(observer);
        let set = stage(&loader, &observer, policies, 1)?;
        observer.metrics.generation.set(1);
        let history = Mutex::new(History { newest: 1, ..History::default() });
        let current = ArcSwap::from(set);
        Ok(Self { loader: Arc::new(loader), observer, current, history, staging: tokio::sync::Mutex::default() })
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
        let _one = self.staging.lock().await;
        self.observer.records.iter().for_each(Records::reopen);
        let (generation, rollbacks) = {
            let history = self.history();
            (history.newest + 1, history.rollbacks)
        };
        let (loader, observer) = (self.loader.clone(), self.observer.clone());
        let staged = tokio::task::spawn_blocking(move || {
            let policies = read().map_err(|error| ReloadError::Configuration(error.into()))?;
            Ok(stage(&loader, &observer, &policies, generation)?)
        });
        match staged.await.unwrap_or_else(|panic| Err(ReloadError::Panicked(panic))) {
            Ok(set) if self.swap(&set, rollbacks) => Ok(generation),
            // Whoever rolled back in the meantime knew of a problem that this reload did not know of.
            Ok(_) => Err(self.fail(ReloadError::RolledBack)),
            Err(error) => Err(self.fail(error)),
        }
    }

    fn fail(&self, error: ReloadError) -> ReloadError {
        let problem = error.to_string();
        tracing::warn!(problem, "the policies were not reloaded");
        self.observer.metrics.count_reload("failed");
        let at = self.observer.clock.now();
        self.history().last_failure = Some(Failure { at, problem });
        error
    }

    /// Makes a set the current one, unless there was a rollback since its loading began.
    fn swap(&self, set: &Arc<PolicySet>, rollbacks: u64) -> bool {
        let mut history = self.history();
        if history.rollbacks != rollbacks {
            return false;
        }
        let generation = set.generation;
        history.newest = generation;
        history.earlier.push(self.current.swap(set.clone()));
        let surplus = history.earlier.len().saturating_sub(KEPT);
        history.earlier.drain(..surplus);
        self.observer.metrics.count_reload("done");
        self.observer.metrics.generation.set(generation.cast_signed());
        tracing::info!(generation, "the policies were reloaded");
        true
    }

    /// Makes the previous set the current one again, until the next reload or start.
    ///
    /// # Errors
    ///
    /// Where there is no earlier set.
    pub fn rollback(&self) -> Result<u64, NoEarlierGeneration> {
        let mut history = self.history();
        let set = history.earlier.pop().ok_or(NoEarlierGeneration)?;
        history.rollbacks += 1;
        let generation = set.generation;
        self.current.store(set);
        self.observer.metrics.count_reload("rolled_back");
        self.observer.metrics.generation.set(generation.cast_signed());
        tracing::info!(generation, "the policies were rolled back");
        Ok(generation)
    }

    pub fn status(&self) -> Status {
        let (set, history) = (self.current(), self.history());
        let module = |Loaded { entry, module }: &Loaded| ModuleStatus {
            kind: module.kind,
            module: entry.module.clone(),
            name: module.description.name.clone(),
            version: module.description.version.clone(),
            sha256: module.digest.clone(),
            mode: entry.mode,
            deadline_ms: entry.deadline_ms,
            memory_kib: entry.memory_kib,
        };
        Status {
            generation: set.generation,
            loaded_at: set.loaded_at,
            modules: set.modules().iter().map(module).collect(),
            earlier: history.earlier.iter().rev().map(|set| set.generation).collect(),
            last_failure: history.last_failure.clone(),
        }
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
) -> Result<Arc<PolicySet>, ChainError> {
    let Policies { entries, default_plan } = policies;
    let modules = loader.load(entries)?;
    let now = observer.clock.now();
    let set = PolicySet::new(&loader.engines, &observer.metrics, modules, generation, now);
    let set = Arc::new(set.map_err(|error| ChainError::Engine(error.to_string()))?);
    if set.has_plan(default_plan).map_err(ChainError::Failed)? {
        Ok(set)
    } else {
        Err(ChainError::DefaultPlan(default_plan.clone()))
    }
}
