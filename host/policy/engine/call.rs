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
    ///
    /// # Errors
    ///
    /// If the module gives no valid response. [`Failure`] says why.
    pub fn ask(&self, request: &PolicyRequest) -> Result<PolicyResponse, Failed> {
        let response = match self.once(request) {
            Err(Failure::Timeout) => self.once(request),
            response => response,
        };
        let checked = response.and_then(|response| check(&self.module, response));
        checked.map_err(|failure| Failed { module: self.module.description.name.clone(), failure })
    }

    fn once(&self, request: &PolicyRequest) -> Result<PolicyResponse, Failure> {
        let mut store = sandbox::store(&self.engine, self.module.limits);
        self.call(&mut store, request).map_err(|error| sandbox::failure(&store, &error))
    }

    fn call(&self, store: &mut SandboxStore, request: &PolicyRequest) -> wasmtime::Result<PolicyResponse> {
        Ok(match (&self.instances, request) {
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

fn check(module: &Configured, response: PolicyResponse) -> Result<PolicyResponse, Failure> {
    let declared = &module.description;
    let checked = match &response {
        PolicyResponse::Verdict(Verdict::Deny(Denial { code, detail, rule })) => {
            contract::denial(declared, code, detail, rule)
        }
        PolicyResponse::Violations(found) => contract::violations(found.len()).and_then(|()| {
            let mut found = found.iter();
            found.try_for_each(|Violation { field, message, rule }| contract::violation(declared, field, message, rule))
        }),
        PolicyResponse::Verdict(Verdict::Allow) | PolicyResponse::Entitlement(_) => Ok(()),
    };
    checked.map(|()| response).map_err(Failure::Contract)
}
