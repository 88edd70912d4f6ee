//! The set of modules that decides: every chain, on every shard.
//!
//! A set never changes. The modules of a kind are evaluated in the order of the configuration.

use std::collections::HashMap;
use std::sync::{Arc, RwLock};

use chrono::{DateTime, Utc};
use wasmtime::Engine;
use wasmtime::component::{Component, InstancePre};

use crate::engine::bindings::plan_access::PlanAccessPre;
use crate::engine::bindings::plans::Entitlement;
use crate::engine::bindings::team_role::TeamRolePre;
use crate::engine::bindings::validation::ValidationPre;
use crate::engine::engines::{self, Engines};
use crate::engine::kind::Kind;
use crate::engine::request::{PolicyRequest, PolicyResponse};
use crate::engine::sandbox::Failed;
use crate::engine::sandbox::{self, Sandbox};
use crate::load::chain::{Loaded, Mode};
use crate::load::component::Configured;
use crate::load::load_error::LoadError;
use crate::load::policies::Generation;
use crate::serve::metrics::{ModuleMetrics, PolicyMetrics};
use crate::serve::module_guard::ModuleGuard;
use culvert_domain::policy_fact::PolicyFacts;

pub struct PolicySet {
    pub generation: Arc<Generation>,
    /// Of the generation.
    pub digest: Arc<str>,
    pub loaded_at: DateTime<Utc>,
    /// The plan that it must know.
    pub default_plan: String,
    shards: Vec<Shard>,
    modules: Vec<Loaded>,
    /// One for each module.
    guards: Vec<Arc<ModuleGuard>>,
    /// The facts that at least one module wants.
    pub wanted: PolicyFacts,
    /// What plans include. This depends only on the plan's name, so each name is evaluated once.
    pub entitlements: RwLock<HashMap<String, Option<Entitlement>>>,
}

/// The chains on one shard.
#[derive(Default)]
struct Shard {
    plan_access: Chain,
    team_role: Chain,
    validation: Chain,
}

/// The modules of one kind.
#[derive(Default)]
pub struct Chain {
    pub enforced: Vec<ModuleInstance>,
    pub shadows: Vec<ModuleInstance>,
}

/// One module on one shard, ready to be instantiated.
pub struct ModuleInstance {
    pub engine: Engine,
    pub instances: Instances,
    pub module: Arc<Configured>,
    pub metrics: Arc<ModuleMetrics>,
    pub guard: Arc<ModuleGuard>,
    pub mode: Mode,
}

impl ModuleInstance {
    pub fn name(&self) -> &str {
        &self.module.description.name
    }
}

pub enum Instances {
    PlanAccess(PlanAccessPre<Sandbox>),
    TeamRole(TeamRolePre<Sandbox>),
    Validation(ValidationPre<Sandbox>),
}

impl PolicySet {
    /// Prepares the modules, in the order of the configuration, on every shard.
    ///
    /// # Errors
    ///
    /// If an engine does not accept the compiled code of a module, or the module does not fit the contract.
    pub fn new(
        engines: &Engines,
        metrics: &PolicyMetrics,
        modules: Vec<Loaded>,
        loaded_at: DateTime<Utc>,
    ) -> Result<Self, LoadError> {
        let guards: Vec<Arc<ModuleGuard>> = modules.iter().map(|_| Arc::default()).collect();
        let counted: Vec<_> = modules.iter().map(|loaded| Arc::new(metrics.of(&loaded.module))).collect();
        let shards = engines.shards().iter().map(|engines| {
            let mut shard = Shard::default();
            for ((Loaded { entry, module, .. }, metrics), guard) in modules.iter().zip(&counted).zip(&guards) {
                let engine = engines.of(module.size);
                let decider = ModuleInstance {
                    engine: engine.clone(),
                    instances: instances(engine, &module.on(engine)?, module.kind)?,
                    module: module.clone(),
                    metrics: metrics.clone(),
                    guard: guard.clone(),
                    mode: entry.mode,
                };
                let chain = shard.chain_mut(module.kind);
                match entry.mode {
                    Mode::Enforce => chain.enforced.push(decider),
                    Mode::Shadow => chain.shadows.push(decider),
                }
            }
            Ok(shard)
        });
        let shards = shards.collect::<Result<_, LoadError>>()?;
        let wanted = modules.iter().fold(PolicyFacts::NONE, |all, loaded| all.union(loaded.module.facts));
        Ok(Self {
            generation: Arc::default(),
            digest: Arc::from(""),
            loaded_at,
            default_plan: String::new(),
            shards,
            modules,
            guards,
            wanted,
            entitlements: RwLock::default(),
        })
    }

    /// The same set, as a generation.
    #[must_use]
    pub fn of(self, generation: Generation) -> Self {
        Self { digest: generation.digest().into(), generation: Arc::new(generation), ..self }
    }

    /// The modules of a kind, on the calling thread's shard.
    pub fn chain(&self, kind: Kind) -> &Chain {
        self.shards[engines::shard_of_this_thread(self.shards.len())].chain(kind)
    }

    /// Whether any module knows a plan. This evaluation is not counted or recorded.
    ///
    /// # Errors
    ///
    /// If a module gives no valid response.
    pub fn has_plan(&self, plan: &str) -> Result<bool, Failed> {
        let request = PolicyRequest::Entitlements(plan.into());
        for decider in &self.chain(Kind::PlanAccess).enforced {
            if matches!(decider.ask(&request)?, PolicyResponse::Entitlement(Some(_))) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub fn modules(&self) -> &[Loaded] {
        &self.modules
    }

    /// The modules, each with its guard.
    pub fn guarded(&self) -> impl Iterator<Item = (&Loaded, &ModuleGuard)> {
        self.modules.iter().zip(self.guards.iter().map(Arc::as_ref))
    }
}

impl Shard {
    fn chain(&self, kind: Kind) -> &Chain {
        match kind {
            Kind::PlanAccess => &self.plan_access,
            Kind::TeamRole => &self.team_role,
            Kind::Validation => &self.validation,
        }
    }

    fn chain_mut(&mut self, kind: Kind) -> &mut Chain {
        match kind {
            Kind::PlanAccess => &mut self.plan_access,
            Kind::TeamRole => &mut self.team_role,
            Kind::Validation => &mut self.validation,
        }
    }
}

fn instances(engine: &Engine, component: &Component, kind: Kind) -> Result<Instances, LoadError> {
    let typed = |instances: InstancePre<Sandbox>| match kind {
        Kind::PlanAccess => PlanAccessPre::new(instances).map(Instances::PlanAccess),
        Kind::TeamRole => TeamRolePre::new(instances).map(Instances::TeamRole),
        Kind::Validation => ValidationPre::new(instances).map(Instances::Validation),
    };
    let instances = sandbox::linker(engine).instantiate_pre(component).and_then(typed);
    instances.map_err(|error| LoadError::Contract(error.root_cause().to_string()))
}
