//! `enroll`: makes this machine a device of a server.

use culvert_wire::clock::Clock;
use culvert_wire::control::{Capability, Failure};
use culvert_wire::enrolment::{ENROL_PATH, Enrol, Enrolled};
use culvert_wire::failure_code::FailureCode;
use culvert_wire::server_url::{is_local, server_url};

use super::remote_control::decide_at_rest;
use super::{CliError, Output, print, read_line};
use crate::VERSION;
use crate::agent::platform;
use crate::device::{Device, DeviceKey};
use crate::state_dir::StateDir;

/// The code itself, which others on the machine would see among the arguments.
fn read_code(code: String) -> Result<String, CliError> {
    if code != "-" {
        return Ok(code);
    }
    Some(read_line()?.trim().to_owned()).filter(|code| !code.is_empty()).ok_or(CliError::NoCode)
}

pub(super) async fn enrol(
    state: &StateDir,
    server: &str,
    code: String,
    name: Option<String>,
    remote_control: bool,
    output: Output,
) -> Result<(), CliError> {
    if let Some(device) = Device::load(state)? {
        return Err(CliError::AlreadyEnrolled(device.id));
    }
    let (server, client) = (server_url(server).map_err(CliError::Server)?, client(server)?);
    let code = read_code(code)?;
    let key = DeviceKey::generate(&Clock::system());
    let enrol = Enrol {
        code,
        name: name.or_else(host_name),
        platform: platform(),
        version: VERSION.into(),
        capabilities: Capability::ALL.map(String::from).into(),
        public_key: key.public(),
    };
    let request = client.post(format!("{server}{ENROL_PATH}")).json(&enrol);
    let response = request.send().await.map_err(unreachable)?;
    if !response.status().is_success() {
        let status = response.status();
        let failure = response.json().await;
        return Err(CliError::Refused(
            failure.unwrap_or_else(|_| Failure::new(FailureCode::Refused, status.to_string())),
        ));
    }
    let Enrolled { device_id, name } = response.json().await.map_err(unreachable)?;
    let device = Device { id: device_id, name, server, key };
    device.save(state)?;
    if remote_control {
        decide_at_rest(state, true, Vec::new())?;
    }
    let enrolled = serde_json::json!({
        "device_id": device.id, "name": device.name, "server": device.server, "remote_control_enabled": remote_control,
    });
    print(output, &enrolled, || {
        let name = device.name.as_deref().unwrap_or("this machine");
        let also = if remote_control { ", with remote control" } else { "" };
        format!("{name} is now the device {}{also}. Run it with `culvert-agent run`.", device.id)
    });
    Ok(())
}

fn unreachable(error: reqwest::Error) -> CliError {
    CliError::Unreachable(chain(&error))
}

/// What sends the code to the server that was named and to nobody else: no redirect takes it on, and
/// no proxy sees it on its way to this machine itself.
fn client(server: &str) -> Result<reqwest::Client, CliError> {
    let builder = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none());
    let local = reqwest::Url::parse(server).is_ok_and(|url| is_local(&url));
    let builder = if local { builder.no_proxy() } else { builder };
    builder.build().map_err(unreachable)
}

fn host_name() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

/// An error with its causes, on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    text
}
