//! Events, as webhook endpoints receive them; see `docs/develop/decisions/0011-events-and-webhooks.md`.

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::Serialize;
use uuid::Uuid;

use crate::address::AddressResponse;
use crate::device::DeviceResponse;
use crate::operation::OperationResponse;
use culvert_domain::caller::ScopeKind;
use culvert_domain::event::OfflineReason;
use culvert_domain::protocol::Protocol;
use culvert_domain::session::EndReason;
use culvert_domain::tunnel::Tunnel;

/// The body of a delivery.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "{D}Event")]
pub struct EventResponse<D> {
    /// The same on every attempt, and in the header `Service-Webhook-Id`.
    pub id: Uuid,
    /// The event's kind.
    pub r#type: String,
    pub created_at: DateTime<Utc>,
    /// `v2`
    pub api_version: &'static str,
    pub scope: EventScopeResponse,
    pub data: D,
}

/// Whose event it is.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "EventScope")]
pub struct EventScopeResponse {
    pub r#type: ScopeKind,
    pub team_id: Option<Uuid>,
}

/// `data` of `command.*`
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Command")]
pub struct CommandResponse {
    /// As it was when it came to that state.
    pub operation: OperationResponse,
}

/// `data` of `tunnel.*`
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "TunnelRun")]
pub struct TunnelRunResponse {
    pub tunnel: EventTunnelResponse,
    pub device_id: Uuid,
    pub session_id: Uuid,
    pub node_id: Uuid,
    pub public_address: AddressResponse,
    /// The operation that brought it about, if one did.
    pub operation_id: Option<Uuid>,
    /// Why the session ended; an open list: new values may come.
    pub reason: Option<EndReason>,
}

/// The tunnel that an event is about.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "EventTunnel")]
pub struct EventTunnelResponse {
    pub id: Uuid,
    pub name: String,
    pub protocol: Protocol,
}

impl From<&Tunnel> for EventTunnelResponse {
    fn from(tunnel: &Tunnel) -> Self {
        Self { id: tunnel.id, name: tunnel.spec.name.clone(), protocol: tunnel.spec.protocol }
    }
}

/// `data` of `device.*`
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "DevicePresence")]
pub struct DevicePresenceResponse {
    pub device: DeviceResponse,
    /// Why it is offline; an open list: new values may come.
    pub reason: Option<OfflineReason>,
}

/// `data` of `webhook.test`
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "WebhookTest")]
pub struct WebhookTestResponse {
    pub webhook_id: Uuid,
}
