//! Operations.

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::Serialize;
use uuid::Uuid;

use crate::domain::operation::{Operation, OperationError, OperationStatus, RemoteAction};

/// Operation
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Operation")]
pub struct OperationOut {
    id: Uuid,
    status: OperationStatus,
    action: RemoteAction,
    device_id: Uuid,
    tunnel_id: Option<Uuid>,
    /// What came of it; its fields depend on the action.
    result: Option<serde_json::Map<String, serde_json::Value>>,
    error: Option<OperationError>,
    created_at: DateTime<Utc>,
    claimed_at: Option<DateTime<Utc>>,
    started_at: Option<DateTime<Utc>>,
    finished_at: Option<DateTime<Utc>>,
    /// Not claimed by then, it expires.
    expires_at: DateTime<Utc>,
}

impl From<Operation> for OperationOut {
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
