//! One decision: a fresh sandbox from the configured snapshot, one call, and a look at the answer.

use wasmtime::Engine;

use super::bindings::types::{Denial, Verdict, Violation};
use super::bindings::{inputs, plans, roles};
use super::component::Configured;
use super::live::{Lane, Set};
use super::sandbox::{self, Failure, Limits, SandboxStore};

/// Bytes of a detail or a message.
const TEXT_LIMIT: usize = 2_000;
/// Bytes of a field's path.
const FIELD_LIMIT: usize = 200;
/// Violations of one input.
const VIOLATION_LIMIT: usize = 1_000;

/// A module that gave no answer that counts.
#[derive(Debug, thiserror::Error)]
#[error("policy {module} failed: {failure}")]
pub struct Failed {
    pub module: String,
    pub failure: Failure,
}

type Answer<T> = Result<T, Failed>;

impl Set {
    /// What a plan includes, by the first module of the chain.
    pub(super) fn entitlements_of(&self, plan: &str) -> Answer<Option<plans::Entitlement>> {
        let Lane { engine, plan_access, .. } = self.lane();
        let first = plan_access.first().ok_or_else(missing)?;
        ask(engine, &first.module, |store| {
            first.instances.instantiate(&mut *store)?.culvert_policy_plans().call_entitlements(store, plan)
        })
    }

    /// The first module that denies decides.
    pub fn plan_access(&self, question: &plans::Ask) -> Answer<Verdict> {
        let Lane { engine, plan_access, .. } = self.lane();
        some(plan_access)?;
        first_denial(plan_access.iter().map(|decider| {
            let verdict = ask(engine, &decider.module, |store| {
                decider.instances.instantiate(&mut *store)?.culvert_policy_plans().call_check(store, question)
            });
            verdict.and_then(|verdict| checked_verdict(&decider.module, verdict))
        }))
    }

    /// The first module that denies decides.
    pub fn team_role(&self, question: &roles::Ask) -> Answer<Verdict> {
        let Lane { engine, team_role, .. } = self.lane();
        some(team_role)?;
        first_denial(team_role.iter().map(|decider| {
            let verdict = ask(engine, &decider.module, |store| {
                decider.instances.instantiate(&mut *store)?.culvert_policy_roles().call_check(store, question)
            });
            verdict.and_then(|verdict| checked_verdict(&decider.module, verdict))
        }))
    }

    /// What any module of the chain finds wrong.
    pub fn validation(&self, input: &inputs::Input, facts: &inputs::Facts) -> Answer<Vec<Violation>> {
        let Lane { engine, validation, .. } = self.lane();
        some(validation)?;
        let mut all = Vec::new();
        for decider in validation {
            let violations = ask(engine, &decider.module, |store| {
                decider.instances.instantiate(&mut *store)?.culvert_policy_inputs().call_validate(store, input, facts)
            })?;
            all.extend(checked_violations(&decider.module, violations)?);
        }
        Ok(all)
    }
}

/// A pure question may be asked again: where the machine was too busy for the first one, another
/// fresh sandbox gets the whole deadline once more.
fn ask<T>(engine: &Engine, module: &Configured, call: impl Fn(&mut SandboxStore) -> wasmtime::Result<T>) -> Answer<T> {
    let answer = match once(engine, module.limits, &call) {
        Err(Failure::Timeout) => once(engine, module.limits, &call),
        answer => answer,
    };
    answer.map_err(|failure| failed(module, failure))
}

fn once<T>(
    engine: &Engine,
    limits: Limits,
    call: impl Fn(&mut SandboxStore) -> wasmtime::Result<T>,
) -> Result<T, Failure> {
    let mut store = sandbox::store(engine, limits);
    call(&mut store).map_err(|error| sandbox::failure(&store, &error))
}

fn first_denial(verdicts: impl Iterator<Item = Answer<Verdict>>) -> Answer<Verdict> {
    for verdict in verdicts {
        match verdict? {
            Verdict::Allow => {}
            denied @ Verdict::Deny(_) => return Ok(denied),
        }
    }
    Ok(Verdict::Allow)
}

fn checked_verdict(module: &Configured, verdict: Verdict) -> Answer<Verdict> {
    if let Verdict::Deny(Denial { code, detail, rule }) = &verdict {
        if !module.description.codes.iter().any(|declared| declared.code == *code) {
            return Err(breach(module, format!("it denies with the undeclared code {}", excerpt(code))));
        }
        check_rule(module, rule)?;
        check_text(module, "detail", detail)?;
    }
    Ok(verdict)
}

fn checked_violations(module: &Configured, violations: Vec<Violation>) -> Answer<Vec<Violation>> {
    if violations.len() > VIOLATION_LIMIT {
        return Err(breach(module, format!("it finds {} violations; {VIOLATION_LIMIT} may be", violations.len())));
    }
    for Violation { field, message, rule } in &violations {
        if field.is_empty() || field.len() > FIELD_LIMIT || field.chars().any(char::is_control) {
            return Err(breach(module, format!("a violation names the field {}", excerpt(field))));
        }
        check_rule(module, rule)?;
        check_text(module, "message", message)?;
    }
    Ok(violations)
}

fn check_rule(module: &Configured, rule: &str) -> Answer<()> {
    if module.description.rules.iter().any(|declared| declared.id == rule) {
        return Ok(());
    }
    Err(breach(module, format!("it decides by the undeclared rule {}", excerpt(rule))))
}

fn check_text(module: &Configured, name: &str, text: &str) -> Answer<()> {
    if !text.is_empty() && text.len() <= TEXT_LIMIT {
        return Ok(());
    }
    Err(breach(module, format!("a {name} has {} bytes; 1 to {TEXT_LIMIT} are allowed", text.len())))
}

fn breach(module: &Configured, what: String) -> Failed {
    failed(module, Failure::Contract(what))
}

fn failed(module: &Configured, failure: Failure) -> Failed {
    Failed { module: module.description.name.clone(), failure }
}

fn some<D>(chain: &[D]) -> Answer<()> {
    if chain.is_empty() { Err(missing()) } else { Ok(()) }
}

fn missing() -> Failed {
    Failed { module: "(none)".into(), failure: Failure::Sandbox("no module of this kind is loaded".into()) }
}

fn excerpt(text: &str) -> String {
    format!("{:?}", text.chars().take(80).collect::<String>())
}
