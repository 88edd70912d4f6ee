//! Devices.

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::Serialize;
use uuid::Uuid;

use culvert_domain::device::Device;

/// Device
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Device")]
pub struct DeviceResponse {
    id: Uuid,
    /// The account that enrolled it.
    owner_id: Uuid,
    name: Option<String>,
    platform: Option<String>,
    /// The agent's version.
    version: Option<String>,
    online: bool,
    /// Turned on at the device only.
    remote_control_enabled: bool,
    /// An open list: new values may come.
    capabilities: Vec<String>,
    last_seen_at: Option<DateTime<Utc>>,
}

impl From<Device> for DeviceResponse {
    fn from(device: Device) -> Self {
        let Device {
            id, owner_id, name, platform, version, online, remote_control, capabilities, last_seen_at, ..
        } = device;
        Self {
            id,
            owner_id,
            name,
            platform,
            version,
            online,
            remote_control_enabled: remote_control,
            capabilities,
            last_seen_at,
        }
    }
}
