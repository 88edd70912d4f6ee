//! A single decision: a fresh sandbox from the snapshot, one call, and the check of the response.

use crate::engine::bindings::types::{Denial, Verdict, Violation};
use crate::engine::contract;
use crate::engine::request::{PolicyRequest, PolicyResponse};
use crate::engine::sandbox::{self, Failed, Failure, SandboxStore};
use crate::load::component::Configured;
use crate::serve::live::{Instances, ModuleInstance};

impl ModuleInstance {
    /// Evaluates a request. A decision has no side effects, so after a timeout, which may only mean
    /// that the machine was busy, it is repeated once in another fresh sandbox with the full deadline.
    pub fn ask(&self, question: &PolicyRequest) -> Result<PolicyResponse, Failed> {
        let answer = match self.once(question) {
            Err(Failure::Timeout) => self.once(question),
            answer => answer,
        };
        let checked = answer.and_then(|answer| check(&self.module, answer));
        checked.map_err(|failure| Failed { module: self.module.description.name.clone(), failure })
    }

    fn once(&self, question: &PolicyRequest) -> Result<PolicyResponse, Failure> {
        let mut store = sandbox::store(&self.engine, self.module.limits);
        self.call(&mut store, question).map_err(|error| sandbox::failure(&store, &error))
    }

    fn call(&self, store: &mut SandboxStore, question: &PolicyRequest) -> wasmtime::Result<PolicyResponse> {
        Ok(match (&self.instances, question) {
            (Instances::PlanAccess(instances), PolicyRequest::Entitlements(plan)) => PolicyResponse::Entitlement(
                instances.instantiate(&mut *store)?.culvert_policy_plans().call_entitlements(store, plan)?,
            ),
            (Instances::PlanAccess(instances), PolicyRequest::PlanAccess(ask)) => PolicyResponse::Verdict(
                instances.instantiate(&mut *store)?.culvert_policy_plans().call_check(store, ask)?,
            ),
            (Instances::TeamRole(instances), PolicyRequest::TeamRole(ask)) => PolicyResponse::Verdict(
                instances.instantiate(&mut *store)?.culvert_policy_roles().call_check(store, ask)?,
            ),
            (Instances::Validation(instances), PolicyRequest::Validation(asked)) => {
                let (input, facts) = &**asked;
                let bound = instances.instantiate(&mut *store)?;
                PolicyResponse::Violations(bound.culvert_policy_inputs().call_validate(store, input, facts)?)
            }
            _ => wasmtime::bail!("it was asked what another kind decides"),
        })
    }
}

fn check(module: &Configured, answer: PolicyResponse) -> Result<PolicyResponse, Failure> {
    let declared = &module.description;
    let checked = match &answer {
        PolicyResponse::Verdict(Verdict::Deny(Denial { code, detail, rule })) => {
            contract::denial(declared, code, detail, rule)
        }
        PolicyResponse::Violations(found) => contract::violations(found.len()).and_then(|()| {
            let mut found = found.iter();
            found.try_for_each(|Violation { field, message, rule }| contract::violation(declared, field, message, rule))
        }),
        PolicyResponse::Verdict(Verdict::Allow) | PolicyResponse::Entitlement(_) => Ok(()),
    };
    checked.map(|()| answer).map_err(Failure::Contract)
}
