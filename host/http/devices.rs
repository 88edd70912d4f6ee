//! Devices.

use super::call::Call;
use super::reply::{Accepted, HandlerResult, List, Single};
use crate::gate::{Body, NoBody};
use crate::record::device::DeviceResponse;
use crate::record::operation::OperationResponse;
use crate::service::devices::UpdateDevice;
use crate::service::operations::requests::ActOnDevice;
use culvert_domain::error::Error;
use culvert_domain::input::DevicePatch;
use culvert_domain::operation::RemoteAction;
use culvert_store::facts::Resource;

pub async fn list(call: Call, (): ()) -> HandlerResult<List<DeviceResponse>> {
    let devices = call.api.service.store.devices(call.caller.scope.id, call.page()?).await?;
    call.listed(devices, DeviceResponse::from)
}

pub async fn read(call: Call, (): ()) -> HandlerResult<Single<DeviceResponse>> {
    let device = call.api.service.store.device(call.caller.scope.id, call.id()?).await?.ok_or_else(Error::not_found)?;
    call.reply(Single(device.into()))
}

pub async fn update(call: Call, body: Body<DevicePatch>) -> HandlerResult<Single<DeviceResponse>> {
    let device_id = call.id()?;
    let admitted = call.admit(Resource::Device(device_id), body).await?;
    call.commit(admitted, |patch| UpdateDevice { device_id, patch }, |device| Single(device.into())).await
}

pub async fn stop_all(call: Call, body: Body<NoBody>) -> HandlerResult<Accepted<OperationResponse>> {
    act(call, body, RemoteAction::StopAll).await
}

pub async fn restart_agent(call: Call, body: Body<NoBody>) -> HandlerResult<Accepted<OperationResponse>> {
    act(call, body, RemoteAction::RestartAgent).await
}

async fn act(call: Call, body: Body<NoBody>, action: RemoteAction) -> HandlerResult<Accepted<OperationResponse>> {
    let device_id = call.id()?;
    let admitted = call.admit(Resource::Device(device_id), body).await?;
    call.commit(admitted, |()| ActOnDevice { device_id, action }, |operation| Accepted(operation.into())).await
}
