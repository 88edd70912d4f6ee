//! Devices.

use culvert_api_types::device::DeviceResponse;
use culvert_api_types::operation::OperationResponse;
use culvert_api_types::read::{Body, NoBody};
use culvert_api_types::requests::DevicePatch;
use culvert_domain::facts::Resource;
use culvert_domain::operation::RemoteAction;
use culvert_service::devices::UpdateDevice;
use culvert_service::operations::requests::ActOnDevice;

use super::call::Call;
use super::reply::{Accepted, HandlerResult, List, Single};

pub(crate) async fn list(call: Call, (): ()) -> HandlerResult<List<DeviceResponse>> {
    let devices = call.service().devices(&call.caller, call.page()?).await?;
    call.listed(devices, DeviceResponse::from)
}

pub(crate) async fn read(call: Call, (): ()) -> HandlerResult<Single<DeviceResponse>> {
    let device = call.service().device(&call.caller, call.id()?).await?;
    call.reply(Single(device.into()))
}

pub(crate) async fn update(call: Call, body: Body<DevicePatch>) -> HandlerResult<Single<DeviceResponse>> {
    let device_id = call.id()?;
    let admitted = call.admit(Resource::Device(device_id), body).await?;
    call.commit(admitted, |patch| UpdateDevice { device_id, patch }, |device| Single(device.into())).await
}

pub(crate) async fn stop_all(call: Call, body: Body<NoBody>) -> HandlerResult<Accepted<OperationResponse>> {
    act(call, body, RemoteAction::StopAll).await
}

pub(crate) async fn restart_agent(call: Call, body: Body<NoBody>) -> HandlerResult<Accepted<OperationResponse>> {
    act(call, body, RemoteAction::RestartAgent).await
}

async fn act(call: Call, body: Body<NoBody>, action: RemoteAction) -> HandlerResult<Accepted<OperationResponse>> {
    let device_id = call.id()?;
    let admitted = call.admit(Resource::Device(device_id), body).await?;
    call.commit(admitted, |()| ActOnDevice { device_id, action }, |operation| Accepted(operation.into())).await
}
