//! Devices, and which of them a tunnel may run on.

use crate::exports::culvert::policy::inputs::{DeviceBindings, DeviceUpdate};
use crate::findings::Findings;
use crate::text;

pub fn bindings(bindings: &DeviceBindings, findings: &mut Findings) {
    findings.require("device_ids", bindings.device_ids.as_ref());
    allowlist(bindings.device_ids.as_deref().unwrap_or_default(), findings);
}

pub fn allowlist(devices: &[String], findings: &mut Findings) {
    findings.check(devices.len() <= 100, "device_ids", "device-count", "must hold at most 100 devices");
}

pub fn update(change: &DeviceUpdate, findings: &mut Findings) {
    findings.require_any(change.name.is_some() || change.remote_control_enabled.is_some());
    text::name(change.name.as_deref(), "name", findings);
    let message = "can only be turned off here; it is turned on at the device itself";
    let holds = change.remote_control_enabled != Some(true);
    findings.check(holds, "remote_control_enabled", "remote-consent", message);
}
