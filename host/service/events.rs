//! Webhook events: what has happened, as subscribers are told. This is the only file that writes events. A created
//! tunnel has no event: nothing of it runs yet.

use culvert_domain::device::Device;
use culvert_domain::error::{Error, Result};
use culvert_domain::event::{EventKind, OfflineReason, TEST_EVENT};
use culvert_domain::operation::{Operation, OperationStatus};
use culvert_domain::session::EndReason;
use culvert_domain::string_enum::StringEnum;
use serde::Serialize;
use uuid::Uuid;

use culvert_api_types::event::{
    CommandResponse, DevicePresenceResponse, EventResponse, EventScopeResponse, EventTunnelResponse, TunnelRunResponse,
    WebhookTestResponse,
};
use culvert_domain::caller::ScopeKind;
use culvert_store::outbox::{NewEvent, Subscribers};
use culvert_store::sessions::RunRef;
use culvert_store::{Hint, Write};

/// An operation has reached its current state.
///
/// # Errors
///
/// If the database fails.
pub async fn operation_advanced(write: &mut Write, operation: Operation) -> Result<()> {
    write.notify(Hint::Scope(operation.scope_id));
    let kind = EventKind::of_operation(operation.status);
    match write.subscribers(operation.scope_id, kind).await? {
        Some(subscribers) => {
            publish(write, &subscribers, kind.as_str(), CommandResponse { operation: operation.into() }).await.map(drop)
        }
        None => Ok(()),
    }
}

/// An operation has succeeded at the moment of its request. All of its states have events.
///
/// # Errors
///
/// If the database fails.
pub async fn operation_succeeded_at_once(write: &mut Write, operation: &Operation) -> Result<()> {
    let asked = Operation {
        status: OperationStatus::Queued,
        claimed_at: None,
        started_at: None,
        finished_at: None,
        result: None,
        ..operation.clone()
    };
    operation_advanced(write, asked.clone()).await?;
    let mut passing = Operation { result: operation.result.clone(), ..asked };
    for passed in passing.advance(OperationStatus::Succeeded, operation.created_at) {
        operation_advanced(write, passed).await?;
    }
    Ok(())
}

/// A tunnel has started to serve visitors.
///
/// # Errors
///
/// If the database fails.
pub async fn tunnel_started(write: &mut Write, run: RunRef) -> Result<()> {
    tunnel_run(write, EventKind::TunnelStarted, run, None).await
}

/// A tunnel has stopped to serve visitors.
///
/// # Errors
///
/// If the database fails.
pub async fn tunnel_stopped(write: &mut Write, run: RunRef, reason: EndReason) -> Result<()> {
    tunnel_run(write, EventKind::TunnelStopped, run, Some(reason)).await
}

async fn tunnel_run(write: &mut Write, kind: EventKind, run: RunRef, reason: Option<EndReason>) -> Result<()> {
    write.notify(Hint::Scope(run.scope_id));
    let Some(subscribers) = write.subscribers(run.scope_id, kind).await? else { return Ok(()) };
    let Some(tunnel) = write.tunnel(run.scope_id, run.tunnel_id).await? else { return Ok(()) };
    let data = TunnelRunResponse {
        tunnel: EventTunnelResponse::from(&tunnel),
        device_id: run.device_id,
        session_id: run.session_id,
        node_id: run.node_id,
        public_address: tunnel.public_address().into(),
        operation_id: operation_behind(write, run, reason).await?,
        reason,
    };
    publish(write, &subscribers, kind.as_str(), data).await.map(drop)
}

/// The operation that started or ended a session, if there is one.
async fn operation_behind(write: &mut Write, run: RunRef, reason: Option<EndReason>) -> Result<Option<Uuid>> {
    use EndReason::{Error, Handoff, Restarted, StopAll, StoppedApi};
    if reason.is_some_and(|reason| !matches!(reason, StoppedApi | StopAll | Restarted | Handoff | Error)) {
        return Ok(None);
    }
    write.begun_operation_of(run).await
}

/// A device is online.
///
/// # Errors
///
/// If the database fails.
pub async fn device_online(write: &mut Write, device: Device) -> Result<()> {
    device_presence(write, EventKind::DeviceOnline, device, None).await
}

/// A device is offline.
///
/// # Errors
///
/// If the database fails.
pub async fn device_offline(write: &mut Write, device: Device, reason: OfflineReason) -> Result<()> {
    device_presence(write, EventKind::DeviceOffline, device, Some(reason)).await
}

async fn device_presence(
    write: &mut Write,
    kind: EventKind,
    device: Device,
    reason: Option<OfflineReason>,
) -> Result<()> {
    write.notify(Hint::Scope(device.scope_id));
    match write.subscribers(device.scope_id, kind).await? {
        Some(subscribers) => {
            let data = DevicePresenceResponse { device: device.into(), reason };
            publish(write, &subscribers, kind.as_str(), data).await.map(drop)
        }
        None => Ok(()),
    }
}

/// A test event for one endpoint, whatever events it subscribes to. Returns the event's id.
///
/// # Errors
///
/// If the database fails.
pub async fn webhook_test(write: &mut Write, scope_id: Uuid, webhook_id: Uuid) -> Result<Uuid> {
    let subscribers = write.only_subscriber(scope_id, webhook_id).await?;
    publish(write, &subscribers, TEST_EVENT, WebhookTestResponse { webhook_id }).await
}

async fn publish(write: &mut Write, subscribers: &Subscribers, kind: &str, data: impl Serialize) -> Result<Uuid> {
    let (id, created_at) = (write.clock.id(), write.now);
    let team_id = (subscribers.scope == ScopeKind::Team).then_some(subscribers.scope_id);
    let scope = EventScopeResponse { r#type: subscribers.scope, team_id };
    let event = EventResponse { id, r#type: kind.into(), created_at, api_version: "v2", scope, data };
    let body = serde_json::to_vec(&event).map_err(Error::internal)?;
    write.insert_event(subscribers, NewEvent { id, kind, body: &body }).await?;
    Ok(id)
}
