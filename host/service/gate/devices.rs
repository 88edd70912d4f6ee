//! Admission of requests about devices.

use super::{RequestDraft, check_text};
use culvert_api_types::requests::{DevicePatch, Input};
use culvert_domain::error::{Fault, Result};
use culvert_domain::facts::ResourceFacts;
use culvert_domain::plan::Entitlement;

impl RequestDraft for DevicePatch {
    type Valid = DevicePatch;

    fn input(&self) -> Option<Input<'_>> {
        Some(Input::DeviceUpdate(self))
    }

    fn validate(self, _: &ResourceFacts, _: &Entitlement) -> Result<Self, Vec<Fault>> {
        match self {
            Self { remote_control_enabled: Some(true), .. } => Err(vec![Fault::new(
                "remote_control_enabled",
                "can only be turned off here; it is turned on at the device itself",
            )]),
            Self { name: None, remote_control_enabled: None } => {
                Err(vec![Fault::new("body", "at least one field is required")])
            }
            patch => {
                let mut faults = Vec::new();
                check_text(patch.name.as_deref(), "name", &mut faults);
                if faults.is_empty() { Ok(patch) } else { Err(faults) }
            }
        }
    }
}
