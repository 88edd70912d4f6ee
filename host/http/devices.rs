//! Devices.

use super::call::Call;
use super::reply::{Accepted, Answer, Found, Listed};
use crate::domain::input::DevicePatch;
use crate::domain::operation::RemoteAction;
use crate::error::Error;
use crate::gate::{Body, NoBody};
use crate::record::device::DeviceOut;
use crate::record::operation::OperationOut;
use crate::store::change::actions::ActOnDevice;
use crate::store::change::devices::UpdateDevice;
use crate::store::facts::Subject;

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
