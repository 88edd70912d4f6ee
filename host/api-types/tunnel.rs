//! Tunnels, and what is made of them.

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::Serialize;
use uuid::Uuid;

use crate::account::BandwidthResponse;
use crate::address::AddressResponse;
use crate::port::ExtraPortResponse;
use culvert_domain::device::Device;
use culvert_domain::local_service::{LocalScheme, LocalService, ProxyProtocol};
use culvert_domain::node::{Node, NodeStatus};
use culvert_domain::protocol::Protocol;
use culvert_domain::session::{EndReason, Session};
use culvert_domain::tunnel::{Tunnel, TunnelStatus};
use culvert_domain::tunnel_devices::TunnelDevices;
use culvert_domain::usage::Bandwidth;

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
    /// The Host header of requests to the service of an http tunnel; null: the visitor's.
    host_header: Option<String>,
    local_scheme: LocalScheme,
    /// Whether the service's certificate is verified; null: unless its address is loopback or private.
    local_tls_verify: Option<bool>,
    proxy_protocol: ProxyProtocol,
    tls_passthrough: bool,
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
    /// The devices that may run it: the 100 that were enrolled last.
    authorized_devices: Vec<AuthorizedDeviceResponse>,
    /// How many devices may run it.
    authorized_devices_total: u32,
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
        let LocalService { host_header, scheme, tls_verify, proxy_protocol, tls_passthrough } =
            tunnel.spec.service.clone();
        let node_status = tunnel.node.shown_status();
        let Node { id, name, region, country, region_flag, .. } = tunnel.node.clone();
        Self {
            public_address: tunnel.public_address().into(),
            id: tunnel.id,
            name: tunnel.spec.name,
            protocol: tunnel.spec.protocol,
            local_host: tunnel.spec.local_host,
            local_port: tunnel.spec.local_port,
            remote_port: tunnel.remote_port,
            status,
            runtime: RuntimeResponse { running: device_id.is_some(), device_id },
            bindings: BindingsResponse { unrestricted: !tunnel.restricted, device_ids: tunnel.device_ids },
            node: TunnelNodeResponse { id, name, region, country, region_flag, status: node_status },
            subdomain: tunnel.spec.subdomain,
            region: tunnel.spec.region,
            country: tunnel.spec.country,
            game_preset_id: tunnel.spec.preset_id,
            http_ssl_enabled: tunnel.spec.https,
            http_basic_auth_enabled: tunnel.spec.basic_auth,
            http_basic_auth_username: tunnel.spec.basic_auth_user,
            custom_domain: tunnel.custom_domain,
            idle_timeout: tunnel.spec.idle_timeout,
            buffer_size: tunnel.spec.buffer_size,
            host_header,
            local_scheme: scheme,
            local_tls_verify: tls_verify,
            proxy_protocol,
            tls_passthrough,
            pro_network: tunnel.spec.pro_network,
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

/// Device bindings after a replacement
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "BoundDevices")]
pub struct BoundResponse {
    #[serde(flatten)]
    bindings: BindingsResponse,
    /// The device that ran the tunnel and may no longer.
    stopped_device_id: Option<Uuid>,
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

/// Tunnel usage
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "TunnelUsage")]
pub struct TunnelUsageResponse {
    tunnel_id: Uuid,
    bandwidth: BandwidthResponse,
    as_of: DateTime<Utc>,
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

impl From<Device> for CurrentDeviceResponse {
    fn from(device: Device) -> Self {
        let Device { id, name, platform, online, .. } = device;
        Self { id, name, platform, online }
    }
}

impl TunnelDetailResponse {
    pub fn new(tunnel: Tunnel, devices: TunnelDevices) -> Self {
        let TunnelDevices { current, authorized, authorized_total } = devices;
        Self {
            extra_ports: ExtraPortResponse::all(&tunnel),
            current_device: current.map(CurrentDeviceResponse::from),
            authorized_devices: authorized.iter().map(AuthorizedDeviceResponse::from).collect(),
            authorized_devices_total: authorized_total,
            tunnel: TunnelResponse::from(tunnel),
        }
    }
}

impl BoundResponse {
    pub fn new(device_ids: Vec<Uuid>, stopped_device_id: Option<Uuid>) -> Self {
        let bindings = BindingsResponse { unrestricted: device_ids.is_empty(), device_ids };
        Self { bindings, stopped_device_id }
    }
}

impl MovingResponse {
    pub fn new(tunnel_id: Uuid, node_id: Uuid) -> Self {
        Self { tunnel_id, node_id, status: TunnelStatus::Moving }
    }
}

impl TunnelUsageResponse {
    pub fn new(tunnel_id: Uuid, bandwidth: Bandwidth, as_of: DateTime<Utc>) -> Self {
        Self { tunnel_id, bandwidth: BandwidthResponse::new(bandwidth, as_of), as_of }
    }
}

impl SessionResponse {
    pub fn new(session: Session, now: DateTime<Utc>) -> Self {
        let duration_seconds = session.duration_seconds(now);
        let Session { id, tunnel_id, device_id, node_id, started_at, ended_at, traffic, end_reason } = session;
        let (bytes_in, bytes_out) = (traffic.bytes_in, traffic.bytes_out);
        Self {
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
    }
}
