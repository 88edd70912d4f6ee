//! Devices.

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::Serialize;
use uuid::Uuid;

use super::call::Call;
use super::operations::OperationOut;
use super::reply::{Accepted, Answer, Found, Listed};
use crate::domain::device::Device;
use crate::domain::input::DevicePatch;
use crate::domain::operation::RemoteAction;
use crate::error::Error;
use crate::gate::{Body, NoBody};
use crate::store::change::actions::ActOnDevice;
use crate::store::change::devices::UpdateDevice;
use crate::store::facts::Subject;

/// Device
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Device")]
pub struct DeviceOut {
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

impl From<Device> for DeviceOut {
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

pub async fn list(call: Call, (): ()) -> Answer<Listed<DeviceOut>> {
    let devices = call.app.store.devices(call.caller.scope.id, call.page()?).await?;
    call.listed(devices, DeviceOut::from)
}

pub async fn read(call: Call, (): ()) -> Answer<Found<DeviceOut>> {
    let device = call.app.store.device(call.caller.scope.id, call.id()?).await?.ok_or_else(Error::not_found)?;
    call.reply(Found(device.into()))
}

pub async fn update(call: Call, body: Body<DevicePatch>) -> Answer<Found<DeviceOut>> {
    let device_id = call.id()?;
    let admitted = call.admit(Subject::Device(device_id), body).await?;
    call.commit(admitted, |patch| UpdateDevice { device_id, patch }, |device| Found(device.into())).await
}

pub async fn stop_all(call: Call, body: Body<NoBody>) -> Answer<Accepted<OperationOut>> {
    act(call, body, RemoteAction::StopAll).await
}

pub async fn restart_agent(call: Call, body: Body<NoBody>) -> Answer<Accepted<OperationOut>> {
    act(call, body, RemoteAction::RestartAgent).await
}

async fn act(call: Call, body: Body<NoBody>, action: RemoteAction) -> Answer<Accepted<OperationOut>> {
    let device_id = call.id()?;
    let admitted = call.admit(Subject::Device(device_id), body).await?;
    call.commit(admitted, |()| ActOnDevice { device_id, action }, |operation| Accepted(operation.into())).await
}
