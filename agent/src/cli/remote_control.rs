//! `remote-control` and `targets`: whether clients of the API start tunnels here, and where those may lead.

use culvert_wire::allowed_target::{self, AllowedTarget};
use culvert_wire::clock::Clock;
use culvert_wire::control::Failure;
use culvert_wire::failure_code::FailureCode;

use super::{Change, CliError, Decision, Output, print};
use crate::consent::Consent;
use crate::device::Device;
use crate::ipc::{self, Answer, Request};
use crate::state_dir::StateDir;
use crate::targets::Targets;

pub(super) async fn remote_control(state: &StateDir, decision: Decision, output: Output) -> Result<(), CliError> {
    let (enabled, allow) = match decision {
        Decision::Status => return consent_status(state, output),
        Decision::Enable { allow } => (true, allow),
        Decision::Disable => (false, Vec::new()),
    };
    let request = Request::RemoteControl { enabled, allow: allow.clone() };
    let (now, confirmed) = match ipc::ask(state, &request).await? {
        Some(Ok(Answer::RemoteControl { state, confirmed })) => (state, confirmed),
        Some(Err(failure)) => return Err(CliError::Refused(failure)),
        _ => (decide_at_rest(state, enabled, allow)?.state(), false),
    };
    let word = if now.enabled { "enabled" } else { "disabled" };
    print(output, &serde_json::json!({"remote_control_enabled": now.enabled, "confirmed": confirmed}), || {
        let later = if confirmed { "" } else { "; the server will hear of it when the agent next connects" };
        format!("remote control is {word}{later}")
    });
    if now.enabled == enabled {
        Ok(())
    } else {
        let detail = "it was turned off on the server meanwhile; decide again";
        Err(CliError::Refused(Failure::new(FailureCode::ConsentOutdated, detail)))
    }
}

/// No agent runs, so the decision waits in the state folder for the next one.
pub(super) fn decide_at_rest(state: &StateDir, enabled: bool, allow: Vec<AllowedTarget>) -> Result<Consent, CliError> {
    let device = Device::load(state)?.ok_or(CliError::NotEnrolled)?;
    let mut consent = Consent::load(state)?;
    let list = Targets::open(state, consent.enabled())?;
    if enabled {
        list.replace(allowed_target::with(list.list(), allowed_target::standard().into_iter().chain(allow))?)?;
    }
    consent.decide(enabled, &list.list(), &device, &Clock::system())?;
    Ok(consent)
}

/// Shows the list of allowed targets, or changes it.
pub(super) async fn change_targets(state: &StateDir, change: Change, output: Output) -> Result<(), CliError> {
    let (allow, revoke) = match change {
        Change::List => (Vec::new(), Vec::new()),
        Change::Allow { targets } => (targets, Vec::new()),
        Change::Revoke { targets } => (Vec::new(), targets),
    };
    let request = Request::Targets { allow: allow.clone(), revoke: revoke.clone() };
    let (list, confirmed) = match ipc::ask(state, &request).await? {
        Some(Ok(Answer::Targets { targets, confirmed })) => (targets, confirmed),
        Some(Err(failure)) => return Err(CliError::Refused(failure)),
        _ => change_at_rest(state, allow, &revoke)?,
    };
    print(output, &serde_json::json!({"targets": list, "confirmed": confirmed}), || {
        let mut lines: Vec<_> = list.iter().map(ToString::to_string).collect();
        if confirmed == Some(false) {
            lines.push("the server will hear of it when the agent next connects".into());
        }
        lines.join("\n")
    });
    Ok(())
}

/// No agent runs, so the change waits in the state folder for the next one.
fn change_at_rest(
    state: &StateDir,
    allow: Vec<AllowedTarget>,
    revoke: &[AllowedTarget],
) -> Result<(Vec<AllowedTarget>, Option<bool>), CliError> {
    let device = Device::load(state)?.ok_or(CliError::NotEnrolled)?;
    let mut consent = Consent::load(state)?;
    let targets = Targets::open(state, consent.enabled())?;
    let before = targets.list();
    let list = allowed_target::without(allowed_target::with(before.clone(), allow)?, revoke)?;
    if list == before {
        return Ok((list, None));
    }
    targets.replace(list.clone())?;
    if consent.enabled() {
        consent.decide(true, &list, &device, &Clock::system())?;
    }
    Ok((list, consent.enabled().then_some(false)))
}

fn consent_status(state: &StateDir, output: Output) -> Result<(), CliError> {
    Device::load(state)?.ok_or(CliError::NotEnrolled)?;
    let enabled = Consent::load(state)?.enabled();
    let word = if enabled { "enabled" } else { "disabled" };
    print(output, &serde_json::json!({"remote_control_enabled": enabled}), || format!("remote control is {word}"));
    Ok(())
}
