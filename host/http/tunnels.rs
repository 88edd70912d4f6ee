//! Tunnels.

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::Serialize;
use uuid::Uuid;

use super::account::BandwidthResponse;
use super::call::Call;
use super::ports::ExtraPortResponse;
use super::reply::{Accepted, Created, HandlerResult, List, Single};
use crate::gate::{Body, NoBody};
use crate::record::address::AddressResponse;
use crate::record::operation::OperationResponse;
use crate::service::moves::MoveTunnel;
use crate::service::operations::requests::{ActOnRunning, Start};
use crate::service::tunnels::{BindTunnel, Bound, CreateTunnel, DeleteTunnel, UpdateTunnel};
use culvert_domain::device::Device;
use culvert_domain::error::{Error, Result};
use culvert_domain::input::{BindDevices, MoveTunnel as MoveTunnelInput, NewTunnel, StartTunnel, TunnelPatch};
use culvert_domain::node::{Node, NodeStatus};
use culvert_domain::operation::RemoteAction;
use culvert_domain::session::{EndReason, Session};
use culvert_domain::tunnel::{Protocol, Tunnel, TunnelStatus};
use culvert_store::facts::Resource;

/// Tunnel
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Tunnel")]
pub struct TunnelResponse {
    id: Uuid,
    name: String,
    protocol: Protocol,
    local_host: String,
    local_port: u16,
    remote_port: u16,
    status: TunnelStatus,
    runtime: RuntimeResponse,
    bindings: BindingsResponse,
    node: TunnelNodeResponse,
    public_address: AddressResponse,
    subdomain: Option<String>,
    region: Option<String>,
    country: Option<String>,
    game_preset_id: Option<Uuid>,
    http_ssl_enabled: bool,
    http_basic_auth_enabled: bool,
    http_basic_auth_username: Option<String>,
    /// The domain that is assigned to the tunnel.
    custom_domain: Option<String>,
    /// Seconds; null: 3600 for a connection, 300 for a UDP flow.
    idle_timeout: Option<u32>,
    /// Bytes.
    buffer_size: u32,
    pro_network: bool,
    created_by: Uuid,
    created_at: DateTime<Utc>,
    updated_at: DateTime<Utc>,
}

/// Where it runs.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Runtime")]
pub struct RuntimeResponse {
    /// True for running, degraded and stopping.
    running: bool,
    device_id: Option<Uuid>,
}

/// Device bindings
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "DeviceBindings")]
pub struct BindingsResponse {
    /// Empty: any authorized device, if it is unrestricted.
    device_ids: Vec<Uuid>,
    /// False with an empty list where the devices that were listed have gone: then the tunnel starts
    /// nowhere until the list is changed.
    unrestricted: bool,
}

/// The node that the tunnel is placed on.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "TunnelNode")]
pub struct TunnelNodeResponse {
    id: Uuid,
    name: String,
    region: String,
    country: String,
    region_flag: Option<String>,
    status: NodeStatus,
}

/// Tunnel with what a single read adds
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "TunnelDetail")]
pub struct TunnelDetailResponse {
    #[serde(flatten)]
    tunnel: TunnelResponse,
    current_device: Option<CurrentDeviceResponse>,
    /// The devices that may run it.
    authorized_devices: Vec<AuthorizedDeviceResponse>,
    extra_ports: Vec<ExtraPortResponse>,
}

/// The device that runs the tunnel.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "CurrentDevice")]
pub struct CurrentDeviceResponse {
    id: Uuid,
    name: Option<String>,
    platform: Option<String>,
    online: bool,
}

/// A device that may run the tunnel.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "AuthorizedDevice")]
pub struct AuthorizedDeviceResponse {
    id: Uuid,
    name: Option<String>,
    online: bool,
    remote_control_enabled: bool,
}

impl From<Tunnel> for TunnelResponse {
    fn from(tunnel: Tunnel) -> Self {
        let status = tunnel.status();
        let device_id = tunnel.running_on();
        let Node { id, name, region, country, region_flag, status: node_status, .. } = tunnel.node.clone();
        Self {
            public_address: tunnel.public_address().into(),
            id: tunnel.id,
            name: tunnel.name,
            protocol: tunnel.protocol,
            local_host: tunnel.local_host,
            local_port: tunnel.local_port,
            remote_port: tunnel.remote_port,
            status,
            runtime: RuntimeResponse { running: device_id.is_some(), device_id },
            bindings: BindingsResponse { unrestricted: !tunnel.restricted, device_ids: tunnel.device_ids },
            node: TunnelNodeResponse { id, name, region, country, region_flag, status: node_status },
            subdomain: tunnel.subdomain,
            region: tunnel.region,
            country: tunnel.country,
            game_preset_id: tunnel.preset_id,
            http_ssl_enabled: tunnel.https,
            http_basic_auth_enabled: tunnel.basic_auth,
            http_basic_auth_username: tunnel.basic_auth_user,
            custom_domain: tunnel.custom_domain,
            idle_timeout: tunnel.idle_timeout,
            buffer_size: tunnel.buffer_size,
            pro_network: tunnel.pro_network,
            created_by: tunnel.created_by,
            created_at: tunnel.created_at,
            updated_at: tunnel.updated_at,
        }
    }
}

impl From<&Device> for AuthorizedDeviceResponse {
    fn from(device: &Device) -> Self {
        let Device { id, name, online, remote_control, .. } = device;
        Self { id: *id, name: name.clone(), online: *online, remote_control_enabled: *remote_control }
    }
}

pub async fn list(call: Call, (): ()) -> HandlerResult<List<TunnelResponse>> {
    let tunnels = call.api.service.store.tunnels(call.caller.scope.id, call.page()?).await?;
    call.listed(tunnels, TunnelResponse::from)
}

pub async fn create(call: Call, body: Body<NewTunnel>) -> HandlerResult<Created<TunnelResponse>> {
    let admitted = call.admit(Resource::Scope, body).await?;
    let hash = call.api.service.passwords.hash(admitted.valid.basic_auth_password.clone()).await?;
    let change = |definition| CreateTunnel { definition, password_hash: hash.clone() };
    call.commit(admitted, change, |tunnel| Created(TunnelResponse::from(tunnel))).await
}

pub async fn read(call: Call, (): ()) -> HandlerResult<Single<TunnelDetailResponse>> {
    let (store, scope_id) = (&call.api.service.store, call.caller.scope.id);
    let tunnel = of(&call).await?;
    let devices = store.authorized_devices(scope_id, tunnel.id).await?;
    let current_device = match tunnel.running_on() {
        Some(id) => store.device(scope_id, id).await?.map(|device| {
            let Device { id, name, platform, online, .. } = device;
            CurrentDeviceResponse { id, name, platform, online }
        }),
        None => None,
    };
    let extra_ports = store.extra_ports(tunnel.id).await?;
    call.reply(Single(TunnelDetailResponse {
        extra_ports: extra_ports.into_iter().map(|port| ExtraPortResponse::new(port, &tunnel)).collect(),
        current_device,
        authorized_devices: devices.iter().map(AuthorizedDeviceResponse::from).collect(),
        tunnel: TunnelResponse::from(tunnel),
    }))
}

pub async fn update(call: Call, body: Body<TunnelPatch>) -> HandlerResult<Single<TunnelResponse>> {
    let tunnel_id = call.id()?;
    let admitted = call.admit(Resource::Tunnel(tunnel_id), body).await?;
    let hash = call.api.service.passwords.hash(admitted.valid.basic_auth_password.clone().flatten()).await?;
    let change = |change| UpdateTunnel { tunnel_id, change, password_hash: hash.clone() };
    call.commit(admitted, change, |tunnel| Single(TunnelResponse::from(tunnel))).await
}

/// A tunnel that is gone
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "DeletedTunnel")]
pub struct DeletedResponse {
    id: Uuid,
    /// Always true.
    #[schemars(extend("const" = true))]
    deleted: bool,
}

pub async fn delete(call: Call, body: Body<NoBody>) -> HandlerResult<Single<DeletedResponse>> {
    let tunnel_id = call.id()?;
    let admitted = call.admit(Resource::Tunnel(tunnel_id), body).await?;
    let answer = |id| Single(DeletedResponse { id, deleted: true });
    call.commit(admitted, |()| DeleteTunnel { tunnel_id }, answer).await
}

/// Device bindings after a replacement
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "BoundDevices")]
pub struct BoundResponse {
    #[serde(flatten)]
    bindings: BindingsResponse,
    /// The device that ran the tunnel and may no longer.
    stopped_device_id: Option<Uuid>,
}

pub async fn bind(call: Call, body: Body<BindDevices>) -> HandlerResult<Single<BoundResponse>> {
    let tunnel_id = call.id()?;
    let admitted = call.admit(Resource::Tunnel(tunnel_id), body).await?;
    call.commit(
        admitted,
        |device_ids| BindTunnel { tunnel_id, device_ids },
        |bound| {
            let Bound { device_ids, stopped_device_id } = bound;
            let bindings = BindingsResponse { unrestricted: device_ids.is_empty(), device_ids };
            Single(BoundResponse { bindings, stopped_device_id })
        },
    )
    .await
}

pub async fn start(call: Call, body: Body<StartTunnel>) -> HandlerResult<Accepted<OperationResponse>> {
    let tunnel_id = call.id()?;
    let admitted = call.admit(Resource::Tunnel(tunnel_id), body).await?;
    call.commit(admitted, |choice| Start { tunnel_id, choice }, |operation| Accepted(operation.into())).await
}

pub async fn stop(call: Call, body: Body<NoBody>) -> HandlerResult<Accepted<OperationResponse>> {
    act_on_running(call, body, RemoteAction::Stop).await
}

pub async fn restart(call: Call, body: Body<NoBody>) -> HandlerResult<Accepted<OperationResponse>> {
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

/// A tunnel on its way to another node
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "MovingTunnel")]
pub struct MovingResponse {
    tunnel_id: Uuid,
    node_id: Uuid,
    /// Always `moving`.
    status: TunnelStatus,
}

pub async fn move_to(call: Call, body: Body<MoveTunnelInput>) -> HandlerResult<Accepted<MovingResponse>> {
    let tunnel_id = call.id()?;
    let admitted = call.admit(Resource::Tunnel(tunnel_id), body).await?;
    let change = |node_id| MoveTunnel { tunnel_id, node_id };
    let answer = move |node_id| Accepted(MovingResponse { tunnel_id, node_id, status: TunnelStatus::Moving });
    call.commit(admitted, change, answer).await
}

/// Tunnel usage
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "TunnelUsage")]
pub struct TunnelUsageResponse {
    tunnel_id: Uuid,
    bandwidth: BandwidthResponse,
    as_of: DateTime<Utc>,
}

pub async fn usage(call: Call, (): ()) -> HandlerResult<Single<TunnelUsageResponse>> {
    let tunnel_id = existing(&call).await?;
    let as_of = call.api.service.clock().now();
    let bandwidth = call.api.service.store.tunnel_bandwidth(call.caller.scope.id, tunnel_id).await?;
    call.reply(Single(TunnelUsageResponse { tunnel_id, bandwidth: BandwidthResponse::new(bandwidth, as_of), as_of }))
}

/// Session: one unbroken run of one tunnel on one device
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Session")]
pub struct SessionResponse {
    id: Uuid,
    tunnel_id: Uuid,
    device_id: Uuid,
    node_id: Uuid,
    started_at: DateTime<Utc>,
    ended_at: Option<DateTime<Utc>>,
    duration_seconds: i64,
    bytes_in: u64,
    bytes_out: u64,
    /// An open list: new values may come.
    end_reason: Option<EndReason>,
}

pub async fn sessions(call: Call, (): ()) -> HandlerResult<List<SessionResponse>> {
    let tunnel_id = existing(&call).await?;
    let now = call.api.service.clock().now();
    let sessions = call.api.service.store.sessions(call.caller.scope.id, tunnel_id, call.page()?).await?;
    call.listed(sessions, |session| {
        let duration_seconds = session.duration_seconds(now);
        let Session { id, tunnel_id, device_id, node_id, started_at, ended_at, traffic, end_reason } = session;
        let (bytes_in, bytes_out) = (traffic.bytes_in, traffic.bytes_out);
        SessionResponse {
            id,
            tunnel_id,
            device_id,
            node_id,
            started_at,
            ended_at,
            duration_seconds,
            bytes_in,
            bytes_out,
            end_reason,
        }
    })
}

/// The tunnel in the path, if the scope has it.
async fn existing(call: &Call) -> Result<Uuid> {
    Ok(of(call).await?.id)
}

/// As [`existing`], with all that there is to it.
pub(super) async fn of(call: &Call) -> Result<Tunnel> {
    let tunnel = call.api.service.store.tunnel(call.caller.scope.id, call.id()?).await?;
    tunnel.ok_or_else(Error::not_found)
}
