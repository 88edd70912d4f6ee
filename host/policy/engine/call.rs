//! A single decision: a fresh sandbox from the snapshot, one call, and the check of the response.

use std::time::Duration;

use crate::engine::bindings::types::{Denial, Verdict, Violation};
use crate::engine::contract;
use crate::engine::cpu_time;
use crate::engine::engines::TICK;
use crate::engine::request::{PolicyRequest, PolicyResponse};
use crate::engine::sandbox::{self, Failed, Failure, Limits, SandboxStore};
use crate::load::component::Configured;
use crate::serve::live::{Instances, ModuleInstance};

/// How long a decision may occupy a thread that serves requests. Most take some microseconds.
pub(crate) const BRIEF: Duration = TICK;
/// How often a brief decision is repeated that did not get the processor.
const RETRIES: usize = 4;

impl ModuleInstance {
    /// Evaluates a request with the module's whole deadline, as processor time.
    ///
    /// # Errors
    ///
    /// If the module gives no valid response. [`Failure`] says why.
    pub fn ask(&self, request: &PolicyRequest) -> Result<PolicyResponse, Failed> {
        let store = sandbox::patient_store(&self.engine, self.module.limits);
        self.decide(store, request).map_err(|failure| self.failed(failure))
    }

    /// Evaluates a request if that takes about a millisecond at most. None if it takes longer: a decision has no side
    /// effects, so it can be made again with the whole deadline, where it holds up nobody.
    pub fn ask_briefly(&self, request: &PolicyRequest) -> Option<Result<PolicyResponse, Failed>> {
        let limits = self.module.limits;
        let within = |deadline| self.decide(sandbox::store(&self.engine, Limits { deadline, ..limits }), request);
        let brief = limits.deadline.min(BRIEF);
        // After a long decision another one is expected, and is given up at the next tick.
        let mut expected = self.guard.was_long();
        let mut before = if expected { cpu_time::of_this_thread() } else { Duration::MAX };
        let mut response = within(if expected { Duration::ZERO } else { brief });
        // The tick may have come too soon. On a busy machine the time may have gone by while another thread had the
        // processor.
        for _ in 0..RETRIES {
            if !matches!(response, Err(Failure::Timeout))
                || cpu_time::of_this_thread().saturating_sub(before) > brief / 2
            {
                break;
            }
            if !std::mem::take(&mut expected) {
                before = cpu_time::of_this_thread();
            }
            response = within(brief);
        }
        match response {
            Err(Failure::Timeout) if limits.deadline > BRIEF => None,
            response => Some(response.map_err(|failure| self.failed(failure))),
        }
    }

    pub(crate) fn failed(&self, failure: Failure) -> Failed {
        Failed { module: self.name().into(), failure }
    }

    fn decide(&self, mut store: SandboxStore, request: &PolicyRequest) -> Result<PolicyResponse, Failure> {
        let response =
            self.call(&mut store, request).map_err(|error| redacted(sandbox::failure(&store, &error), request))?;
        check(&self.module, response)
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

/// A failure without the request's secrets, which the text of a panic may repeat.
fn redacted(mut failure: Failure, request: &PolicyRequest) -> Failure {
    if let Failure::Panic(text) = &mut failure {
        let (_, secrets) = request.clone().redacted();
        secrets.iter().for_each(|secret| secret.redact_text(text));
    }
    failure
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
