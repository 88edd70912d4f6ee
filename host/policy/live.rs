//! The set of modules that decides: every chain, on every lane.
//!
//! A set never changes. Of one kind, the modules are asked in the order of the configuration.

use std::collections::HashMap;
use std::sync::{Arc, RwLock};

use chrono::{DateTime, Utc};
use wasmtime::Engine;
use wasmtime::component::{Component, InstancePre};

use super::bindings::plan_access::PlanAccessPre;
use super::bindings::team_role::TeamRolePre;
use super::bindings::validation::ValidationPre;
use super::call::Failed;
use super::chain::{Loaded, Mode};
use super::component::{Configured, LoadError};
use super::engine::{self, Engines};
use super::kind::Kind;
use super::meters::{Meters, ModuleMeters};
use super::question::{Answer, Question};
use super::sandbox::{self, Sandbox};
use crate::domain::plan::Entitlement;

pub struct Set {
    /// Counts the sets of this process, from 1.
    pub generation: u64,
    pub loaded_at: DateTime<Utc>,
    lanes: Vec<Lane>,
    modules: Vec<Loaded>,
    /// What plans include: a pure function of the plan's name, asked once for each.
    pub entitlements: RwLock<HashMap<String, Option<Entitlement>>>,
}

/// The chains, on one engine.
#[derive(Default)]
struct Lane {
    plan_access: Chain,
    team_role: Chain,
    validation: Chain,
}

/// The modules of one kind.
#[derive(Default)]
pub struct Chain {
    pub enforced: Vec<Decider>,
    pub shadows: Vec<Decider>,
}

/// One module on one lane, ready to be instantiated.
pub struct Decider {
    pub engine: Engine,
    pub instances: Instances,
    pub module: Arc<Configured>,
    pub meters: Arc<ModuleMeters>,
}

pub enum Instances {
    PlanAccess(PlanAccessPre<Sandbox>),
    TeamRole(TeamRolePre<Sandbox>),
    Validation(ValidationPre<Sandbox>),
}

impl Set {
    /// The modules in the order of the configuration.
    pub fn new(
        engines: &Engines,
        meters: &Meters,
        modules: Vec<Loaded>,
        generation: u64,
        loaded_at: DateTime<Utc>,
    ) -> Result<Self, LoadError> {
        let counted: Vec<_> = modules.iter().map(|loaded| Arc::new(meters.of(&loaded.module))).collect();
        let lanes = engines.lanes().iter().map(|engines| {
            let mut lane = Lane::default();
            for (Loaded { entry, module }, meters) in modules.iter().zip(&counted) {
                let engine = engines.of(module.size);
                let decider = Decider {
                    engine: engine.clone(),
                    instances: instances(engine, &module.on(engine)?, module.kind)?,
                    module: module.clone(),
                    meters: meters.clone(),
                };
                let chain = lane.chain_mut(module.kind);
                match entry.mode {
                    Mode::Enforce => chain.enforced.push(decider),
                    Mode::Shadow => chain.shadows.push(decider),
                }
            }
            Ok(lane)
        });
        let lanes = lanes.collect::<Result<_, LoadError>>()?;
        Ok(Self { generation, loaded_at, lanes, modules, entitlements: RwLock::default() })
    }

    /// The modules of a kind, on the lane of the thread that asks.
    pub fn chain(&self, kind: Kind) -> &Chain {
        self.lanes[engine::lane_of_this_thread(self.lanes.len())].chain(kind)
    }

    /// Whether any module knows a plan, asked without anybody watching.
    pub fn knows(&self, plan: &str) -> Result<bool, Failed> {
        let question = Question::Entitlements(plan.into());
        for decider in &self.chain(Kind::PlanAccess).enforced {
            if matches!(decider.ask(&question)?, Answer::Entitlement(Some(_))) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub fn modules(&self) -> &[Loaded] {
        &self.modules
    }
}

impl Lane {
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
