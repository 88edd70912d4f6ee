//! The sets that have decided in this process: the one that decides now, those before it, and how
//! one takes another's place.
//!
//! A new set is staged whole (read, configured, put to its own cases) before anything is swapped;
//! whatever goes wrong on the way, the old one stays and the reason is kept for `status`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use chrono::{DateTime, Utc};
use serde::Serialize;
use uuid::Uuid;

use crate::engine::kind::Kind;
use crate::load::chain::{ChainError, Loaded, Loader, Mode, PolicyConfig};
use crate::serve::live::PolicySet;
use crate::serve::observer::DecisionObserver;
use crate::serve::pinned::Pinned;
use crate::serve::records::Records;

/// Sets that are kept for going back.
const KEPT: usize = 4;

pub struct Generations {
    loader: Arc<Loader>,
    observer: Arc<DecisionObserver>,
    current: ArcSwap<PolicySet>,
    history: Mutex<History>,
    /// One set is staged at a time.
    staging: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct History {
    /// The oldest first.
    earlier: Vec<Arc<PolicySet>>,
    /// The highest generation that there was.
    newest: u64,
    rollbacks: u64,
    last_failure: Option<Failure>,
}

/// What a set is loaded from.
#[derive(Clone, Debug)]
pub struct Policies {
    pub entries: Vec<PolicyConfig>,
    /// A plan that the set has to know.
    pub default_plan: String,
}

/// Why policies were not reloaded. One line; the old set goes on.
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

/// There is no set that could decide again.
#[derive(Debug, thiserror::Error)]
#[error("there is no earlier generation to go back to")]
pub struct NoEarlierGeneration;

/// The last attempt that came to nothing.
#[derive(Clone, Debug, Serialize)]
pub struct Failure {
    pub at: DateTime<Utc>,
    pub problem: String,
}

/// What decides, for the operator.
#[derive(Debug, Serialize)]
pub struct Status {
    pub generation: u64,
    pub loaded_at: DateTime<Utc>,
    pub modules: Vec<ModuleStatus>,
    /// The generations that can be gone back to, the next one first.
    pub earlier: Vec<u64>,
    pub last_failure: Option<Failure>,
}

#[derive(Debug, Serialize)]
pub struct ModuleStatus {
    pub kind: Kind,
    /// As the configuration names it.
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
    /// One line that names the entry and what to do.
    pub fn open(loader: Loader, observer: DecisionObserver, policies: &Policies) -> Result<Self, ChainError> {
        let observer = Arc::new(observer);
        let set = stage(&loader, &observer, policies, 1)?;
        observer.metrics.generation.set(1);
        let history = Mutex::new(History { newest: 1, ..History::default() });
        let current = ArcSwap::from(set);
        Ok(Self { loader: Arc::new(loader), observer, current, history, staging: tokio::sync::Mutex::default() })
    }

    /// The set that decides now, for one request.
    pub fn pin(&self, request_id: Option<Uuid>) -> Pinned {
        Pinned::new(self.current(), self.observer.clone(), request_id)
    }

    pub fn current(&self) -> Arc<PolicySet> {
        self.current.load_full()
    }

    /// Reads the configuration again and has its policies decide; the generation that they are.
    ///
    /// # Errors
    ///
    /// One line. The old set goes on.
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
            // Whoever went back meanwhile has seen something that this reload did not know of.
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

    /// Has a set take over, unless there was a rollback since it was begun.
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

    /// Has the set before this one decide again, until the next reload or start.
    ///
    /// # Errors
    ///
    /// There is none before it.
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

    /// Writes down what was decided until now.
    pub fn close(&self) {
        self.observer.close();
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A set that could take over: every module loaded, and the default plan known.
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
    match set.has_plan(default_plan).map_err(ChainError::Failed)? {
        true => Ok(set),
        false => Err(ChainError::DefaultPlan(default_plan.clone())),
    }
}
