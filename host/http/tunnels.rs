//! Tunnels.

use culvert_api_types::deleted::DeletedTunnel;
use culvert_api_types::operation::OperationResponse;
use culvert_api_types::read::{Body, NoBody};
use culvert_api_types::requests::{self, BindDevices, NewTunnel, StartTunnel, TunnelPatch};
use culvert_api_types::tunnel::{
    BoundResponse, MovingResponse, SessionResponse, TunnelDetailResponse, TunnelResponse, TunnelUsageResponse,
};
use culvert_domain::facts::Resource;
use culvert_domain::operation::RemoteAction;
use culvert_service::moves::MoveTunnel;
use culvert_service::operations::requests::{ActOnRunning, Start};
use culvert_service::tunnels::{BindTunnel, CreateTunnel, DeleteTunnel, UpdateTunnel};

use super::call::Call;
use super::reply::{Accepted, Created, HandlerResult, List, Single};

pub(crate) async fn list(call: Call, (): ()) -> HandlerResult<List<TunnelResponse>> {
    let tunnels = call.service().tunnels(&call.caller, call.page()?).await?;
    call.listed(tunnels, TunnelResponse::from)
}

pub(crate) async fn create(call: Call, body: Body<NewTunnel>) -> HandlerResult<Created<TunnelResponse>> {
    let admitted = call.admit(Resource::Scope, body).await?;
    let hash = call.service().hash_password(admitted.valid.basic_auth_password.clone()).await?;
    let change = |definition| CreateTunnel { definition, password_hash: hash.clone() };
    call.commit(admitted, change, |tunnel| Created(TunnelResponse::from(tunnel))).await
}

pub(crate) async fn read(call: Call, (): ()) -> HandlerResult<Single<TunnelDetailResponse>> {
    let (tunnel, devices) = call.service().tunnel_with_devices(&call.caller, call.id()?).await?;
    call.reply(Single(TunnelDetailResponse::new(tunnel, devices)))
}

pub(crate) async fn update(call: Call, body: Body<TunnelPatch>) -> HandlerResult<Single<TunnelResponse>> {
    let tunnel_id = call.id()?;
    let admitted = call.admit(Resource::Tunnel(tunnel_id), body).await?;
    let hash = call.service().hash_password(admitted.valid.basic_auth_password.clone().flatten()).await?;
    let change = |change| UpdateTunnel { tunnel_id, change, password_hash: hash.clone() };
    call.commit(admitted, change, |tunnel| Single(TunnelResponse::from(tunnel))).await
}

pub(crate) async fn delete(call: Call, body: Body<NoBody>) -> HandlerResult<Single<DeletedTunnel>> {
    let tunnel_id = call.id()?;
    let admitted = call.admit(Resource::Tunnel(tunnel_id), body).await?;
    call.commit(admitted, |()| DeleteTunnel { tunnel_id }, |id| Single(DeletedTunnel::new(id))).await
}

pub(crate) async fn bind(call: Call, body: Body<BindDevices>) -> HandlerResult<Single<BoundResponse>> {
    let tunnel_id = call.id()?;
    let admitted = call.admit(Resource::Tunnel(tunnel_id), body).await?;
    let change = |device_ids| BindTunnel { tunnel_id, device_ids };
    call.commit(admitted, change, |bound| Single(BoundResponse::new(bound.device_ids, bound.stopped_device_id))).await
}

pub(crate) async fn start(call: Call, body: Body<StartTunnel>) -> HandlerResult<Accepted<OperationResponse>> {
    let tunnel_id = call.id()?;
    let admitted = call.admit(Resource::Tunnel(tunnel_id), body).await?;
    call.commit(admitted, |choice| Start { tunnel_id, choice }, |operation| Accepted(operation.into())).await
}

pub(crate) async fn stop(call: Call, body: Body<NoBody>) -> HandlerResult<Accepted<OperationResponse>> {
    act_on_running(call, body, RemoteAction::Stop).await
}

pub(crate) async fn restart(call: Call, body: Body<NoBody>) -> HandlerResult<Accepted<OperationResponse>> {
    act_on_running(call, body, RemoteAction::Restart).await
}

async fn act_on_running(
    call: Call,
    body: Body<NoBody>,
    action: RemoteAction,
) -> HandlerResult<Accepted<OperationResponse>> {
    let tunnel_id = call.id()?;
    let admitted = call.admit(Resource::Tunnel(tunnel_id), body).await?;
    call.commit(admitted, |()| ActOnRunning { tunnel_id, action }, |operation| Accepted(operation.into())).await
}

pub(crate) async fn move_to(call: Call, body: Body<requests::MoveTunnel>) -> HandlerResult<Accepted<MovingResponse>> {
    let tunnel_id = call.id()?;
    let admitted = call.admit(Resource::Tunnel(tunnel_id), body).await?;
    let change = |node_id| MoveTunnel { tunnel_id, node_id };
    call.commit(admitted, change, move |node_id| Accepted(MovingResponse::new(tunnel_id, node_id))).await
}

pub(crate) async fn usage(call: Call, (): ()) -> HandlerResult<Single<TunnelUsageResponse>> {
    let (tunnel_id, as_of) = (call.id()?, call.service().clock().now());
    let bandwidth = call.service().tunnel_bandwidth(&call.caller, tunnel_id).await?;
    call.reply(Single(TunnelUsageResponse::new(tunnel_id, bandwidth, as_of)))
}

pub(crate) async fn sessions(call: Call, (): ()) -> HandlerResult<List<SessionResponse>> {
    let now = call.service().clock().now();
    let tunnel = call.service().tunnel(&call.caller, call.id()?).await?;
    let sessions = call.service().sessions_of(&tunnel, call.page()?).await?;
    call.listed(sessions, |session| SessionResponse::new(session, now))
}
