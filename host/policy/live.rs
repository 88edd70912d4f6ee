//! The set of modules that decides: every chain, on every lane.
//!
//! A set never changes. Of one kind, the modules are asked in the order of the configuration.

use std::collections::HashMap;
use std::sync::{Arc, RwLock};

use wasmtime::Engine;
use wasmtime::component::{Component, InstancePre};

use super::bindings::plan_access::PlanAccessPre;
use super::bindings::team_role::TeamRolePre;
use super::bindings::validation::ValidationPre;
use super::component::{Configured, Kind, LoadError};
use super::engine::{self, Engines};
use super::sandbox::{self, Sandbox};
use crate::domain::plan::Entitlement;

/// One module on one lane, ready to be instantiated.
pub struct Decider<P> {
    pub instances: P,
    pub module: Arc<Configured>,
}

/// The chains, on one engine.
pub struct Lane {
    pub engine: Engine,
    pub plan_access: Vec<Decider<PlanAccessPre<Sandbox>>>,
    pub team_role: Vec<Decider<TeamRolePre<Sandbox>>>,
    pub validation: Vec<Decider<ValidationPre<Sandbox>>>,
}

pub struct Set {
    lanes: Vec<Lane>,
    modules: Vec<Arc<Configured>>,
    /// What plans include: a pure function of the plan's name, asked once for each.
    pub entitlements: RwLock<HashMap<String, Option<Entitlement>>>,
}

impl Set {
    /// The modules in the order of the configuration.
    pub fn new(engines: &Engines, modules: Vec<Arc<Configured>>) -> Result<Self, LoadError> {
        let lanes = engines.lanes().iter().map(|engine| lane(engine, &modules)).collect::<Result<_, _>>()?;
        Ok(Self { lanes, modules, entitlements: RwLock::default() })
    }

    /// The lane of the thread that asks.
    pub fn lane(&self) -> &Lane {
        &self.lanes[engine::lane_of_this_thread(self.lanes.len())]
    }

    pub fn modules(&self) -> &[Arc<Configured>] {
        &self.modules
    }
}

fn lane(engine: &Engine, modules: &[Arc<Configured>]) -> Result<Lane, LoadError> {
    let mut lane =
        Lane { engine: engine.clone(), plan_access: Vec::new(), team_role: Vec::new(), validation: Vec::new() };
    for module in modules {
        let component = module.on(engine)?;
        match module.kind {
            Kind::PlanAccess => lane.plan_access.push(decider(engine, &component, module, PlanAccessPre::new)?),
            Kind::TeamRole => lane.team_role.push(decider(engine, &component, module, TeamRolePre::new)?),
            Kind::Validation => lane.validation.push(decider(engine, &component, module, ValidationPre::new)?),
        }
    }
    Ok(lane)
}

fn decider<P>(
    engine: &Engine,
    component: &Component,
    module: &Arc<Configured>,
    typed: fn(InstancePre<Sandbox>) -> wasmtime::Result<P>,
) -> Result<Decider<P>, LoadError> {
    let instances = sandbox::linker(engine).instantiate_pre(component).and_then(typed);
    let instances = instances.map_err(|e| LoadError::Contract(e.root_cause().to_string()))?;
    Ok(Decider { instances, module: module.clone() })
}
