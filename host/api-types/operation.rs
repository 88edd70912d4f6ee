//! Operations.

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::Serialize;
use uuid::Uuid;

use crate::address::AddressResponse;
use culvert_domain::error::{Error, Result};
use culvert_domain::operation::{Operation, OperationError, OperationStatus, RemoteAction};

/// Operation
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Operation")]
pub struct OperationResponse {
    id: Uuid,
    status: OperationStatus,
    action: RemoteAction,
    device_id: Uuid,
    tunnel_id: Option<Uuid>,
    /// What came of it, by the action: start and restart, stop, stop_all, restart_agent.
    #[schemars(with = "Option<OperationResultResponse>")]
    result: Option<serde_json::Map<String, serde_json::Value>>,
    error: Option<OperationError>,
    created_at: DateTime<Utc>,
    claimed_at: Option<DateTime<Utc>>,
    started_at: Option<DateTime<Utc>>,
    finished_at: Option<DateTime<Utc>>,
    /// Not claimed by then, it expires.
    expires_at: DateTime<Utc>,
}

/// What came of an operation
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "OperationResult")]
pub enum OperationResultResponse {
    Start(StartResultResponse),
    StopAll(StopAllResultResponse),
    RestartAgent(RestartAgentResultResponse),
    Stop(StopResultResponse),
}

/// Of start and restart; on a failed handoff as well, where the tunnel went back.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "StartResult")]
pub struct StartResultResponse {
    pub tunnel_id: Uuid,
    pub session_id: Option<Uuid>,
    pub device_id: Uuid,
    /// The device that a handoff took it from.
    pub previous_device_id: Option<Uuid>,
    pub public_address: AddressResponse,
    /// It ran there before; nothing was done.
    pub already_running: bool,
    /// The start failed, and the device before has it back.
    pub rolled_back: bool,
}

/// Of stop.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "StopResult")]
pub struct StopResultResponse {
    pub tunnel_id: Option<Uuid>,
    pub session_id: Option<Uuid>,
}

/// Of stop_all.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "StopAllResult")]
pub struct StopAllResultResponse {
    pub stopped: Vec<Uuid>,
    pub failed: Vec<NotStoppedResponse>,
}

/// A tunnel that could not be stopped.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "NotStopped")]
pub struct NotStoppedResponse {
    pub tunnel_id: Uuid,
    pub code: String,
    pub detail: String,
}

/// Of restart_agent.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "RestartAgentResult")]
pub struct RestartAgentResultResponse {
    pub previous_version: String,
    pub version: String,
    /// Of the new process.
    pub boot_id: Uuid,
    pub resumed_tunnels: Vec<Uuid>,
}

impl OperationResultResponse {
    /// As it is stored with the operation.
    ///
    /// # Errors
    ///
    /// If the result cannot be converted to JSON.
    pub fn stored(&self) -> Result<serde_json::Value> {
        serde_json::to_value(self).map_err(Error::internal)
    }
}

impl From<Operation> for OperationResponse {
    fn from(operation: Operation) -> Self {
        let result = match operation.result {
            Some(serde_json::Value::Object(result)) => Some(result),
            _ => None,
        };
        Self {
            id: operation.id,
            status: operation.status,
            action: operation.action,
            device_id: operation.device_id,
            tunnel_id: operation.tunnel_id,
            result,
            error: operation.error,
            created_at: operation.created_at,
            claimed_at: operation.claimed_at,
            started_at: operation.started_at,
            finished_at: operation.finished_at,
            expires_at: operation.expires_at,
        }
    }
}
