//! Operations: every state that one can come to, and how; see `docs/develop/decisions/0003-operations.md`.
//! The test holds the agent's end of the wire, so that it can stop half-way.

use std::collections::HashSet;
use std::time::Duration;

use chrono::DateTime;
use culvert_agent::device::Device;
use culvert_domain::operation::{Operation, OperationStatus, RemoteAction};
use culvert_domain::string_enum::StringEnum;
use culvert_test_macros::both_engines;
use culvert_wire::control::{Action, Capability, Done, Failure, ToAgent, ToHost};
use culvert_wire::failure_code::FailureCode;
use insta::{allow_duplicates, assert_snapshot};
use proptest::prelude::*;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::api::Api;
use crate::support::device::Remote;
use crate::support::host::{Engine, Person, TestHost};
use crate::support::visitor::echo_service;
use crate::support::wire::Wire;

/// A tunnel, and a device that consents, of which the test holds the wire.
struct Stage {
    host: TestHost,
    ada: Person,
    api: Api,
    tunnel: Uuid,
    device: Device,
    wire: Wire,
}

impl Stage {
    async fn set(engine: Engine) -> Self {
        let host = TestHost::start(engine).await;
        let ada = host.person("ada").await;
        let api = host.api(&ada.key);
        let tunnel = api.post("/tunnels", json!({"local_port": 80})).await.id();
        let (device, wire) = host.wired(&ada, ada.account_id).await;
        Self { host, ada, api, tunnel, device, wire }
    }

    /// Asks for an action on the tunnel, and has the operation's id.
    async fn act(&self, action: &str) -> Uuid {
        let body = if action == "start" { json!({"device_id": self.device.id}) } else { json!({}) };
        let asked = self.api.post(&format!("/tunnels/{}/actions/{action}", self.tunnel), body).await;
        assert_eq!((asked.status, &asked.data()["status"]), (202, &json!("queued")));
        asked.id()
    }

    async fn act_on_device(&self, action: &str) -> Uuid {
        self.api.post(&format!("/devices/{}/actions/{action}", self.device.id), json!({})).await.id()
    }

    async fn operation(&self, id: Uuid) -> Value {
        self.api.get(&format!("/operations/{id}")).await.data().clone()
    }

    async fn tunnel(&self) -> Value {
        self.api.get(&format!("/tunnels/{}", self.tunnel)).await.data().clone()
    }

    /// Lets time pass while the agent is heard of.
    async fn pass(&mut self, seconds: u64, leases: &[Uuid]) {
        for _ in 0..seconds / 20 {
            self.host.pass(Duration::from_secs(20)).await;
            self.wire.renew(leases).await;
        }
        self.host.pass(Duration::from_secs(seconds % 20)).await;
    }
}

/// `failed execution_timeout`, or only the state where there is no error.
fn outcome(operation: &Value) -> String {
    let status = operation["status"].as_str().unwrap();
    match operation["error"]["code"].as_str() {
        Some(code) => format!("{status} {code}"),
        None => status.into(),
    }
}

/// covers: POST /tunnels/{tunnel_id}/actions/start
/// covers: GET /operations/{operation_id}
#[both_engines]
async fn start_operation_advances_from_queued_to_succeeded(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let second = Duration::from_secs(1);
    let queued = stage.act("start").await;
    let answer = stage.api.get(&format!("/operations/{queued}")).await;
    allow_duplicates! { assert_snapshot!(answer, @r#"
    200
    {
      "data": {
        "action": "start",
        "claimed_at": null,
        "created_at": "[time]",
        "device_id": "[uuid]",
        "error": null,
        "expires_at": "[time]",
        "finished_at": null,
        "id": "[uuid]",
        "result": null,
        "started_at": null,
        "status": "queued",
        "tunnel_id": "[uuid]"
      },
      "meta": {
        "request_id": "[uuid]"
      }
    }
    "#) }
    assert_eq!(stage.tunnel().await["status"], "starting");
    let command = stage.wire.command().await;
    assert_eq!(
        (command.operation_id, command.action, command.tunnel_id, command.expires_in_ms),
        (queued, Action::Start, Some(stage.tunnel), 60_000)
    );

    stage.host.clock.advance(second);
    stage.wire.send(ToHost::Claimed { operation_id: queued }).await;
    let claimed = stage.host.until_operation(&stage.api, queued, "claimed").await;
    assert_eq!(
        (claimed["claimed_at"].clone(), claimed["started_at"].clone()),
        (json!("2026-01-15T12:00:01Z"), Value::Null)
    );

    stage.host.clock.advance(second);
    stage.wire.send(ToHost::Ready { operation_id: queued }).await;
    let running = stage.host.until_operation(&stage.api, queued, "running").await;
    assert_eq!(
        (running["started_at"].clone(), running["finished_at"].clone()),
        (json!("2026-01-15T12:00:02Z"), Value::Null)
    );
    let grant = stage
        .wire
        .until(|frame| match frame {
            ToAgent::Proceed { grant, .. } => grant,
            _ => None,
        })
        .await;
    let now = stage.host.clock.now().timestamp_micros();
    assert_eq!((grant.tunnel_id, grant.epoch, grant.target.port), (stage.tunnel, now, 80));
    assert_eq!(stage.tunnel().await["status"], "starting");

    stage.host.clock.advance(second);
    stage.wire.finish(queued, Ok(Done::Start)).await;
    let answer = stage.api.get(&format!("/operations/{queued}")).await;
    assert_eq!(answer.data()["finished_at"], "2026-01-15T12:00:03Z");
    assert_eq!(answer.data()["result"]["session_id"], json!(grant.lease_id));
    allow_duplicates! { assert_snapshot!(answer, @r#"
    200
    {
      "data": {
        "action": "start",
        "claimed_at": "[time]",
        "created_at": "[time]",
        "device_id": "[uuid]",
        "error": null,
        "expires_at": "[time]",
        "finished_at": "[time]",
        "id": "[uuid]",
        "result": {
          "already_running": false,
          "device_id": "[uuid]",
          "previous_device_id": null,
          "public_address": {
            "hostname": "[host]",
            "ipv4": "[host]",
            "ipv6": null,
            "port": "[port]",
            "url": null
          },
          "rolled_back": false,
          "session_id": "[uuid]",
          "tunnel_id": "[uuid]"
        },
        "started_at": "[time]",
        "status": "succeeded",
        "tunnel_id": "[uuid]"
      },
      "meta": {
        "request_id": "[uuid]"
      }
    }
    "#) }
    let tunnel = stage.tunnel().await;
    assert_eq!(
        (&tunnel["status"], &tunnel["runtime"]),
        (&json!("running"), &json!({"device_id": stage.device.id, "running": true}))
    );
}

/// An agent that reports a later state first has been through the earlier ones.
#[both_engines]
async fn unreported_operation_states_get_timestamps_on_completion(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    stage.act("start").await;
    stage.wire.obey(Done::Start).await;
    let stop = stage.act("stop").await;
    let told = stage.wire.command().await;
    stage.wire.finish(told.operation_id, Ok(Done::Stop)).await;
    let stopped = stage.operation(stop).await;
    assert_eq!(stopped["status"], "succeeded");
    assert!(stopped["claimed_at"].is_string() && stopped["started_at"].is_string());
    let tunnel = stage.tunnel().await;
    assert_eq!((&tunnel["status"], &tunnel["runtime"]["running"]), (&json!("stopped"), &json!(false)));
}

#[both_engines]
async fn unclaimed_operation_expires_after_60_seconds(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let id = stage.act("start").await;
    stage.wire.command().await;
    stage.pass(59, &[]).await;
    assert_eq!(stage.operation(id).await["status"], "queued");
    stage.host.pass(Duration::from_secs(1)).await;
    let expired = stage.operation(id).await;
    assert_eq!(
        (outcome(&expired).as_str(), &expired["finished_at"]),
        ("expired not_claimed", &json!("2026-01-15T12:01:00Z"))
    );
    assert_eq!(stage.tunnel().await["status"], "stopped");
    // The agent hears of it, and a late claim changes nothing.
    stage
        .wire
        .until(|frame| matches!(frame, ToAgent::Cancel { operation_id } if operation_id == id).then_some(()))
        .await;
    stage.wire.send(ToHost::Claimed { operation_id: id }).await;
    stage
        .wire
        .until(|frame| matches!(frame, ToAgent::Abandon { operation_id } if operation_id == id).then_some(()))
        .await;
    assert_eq!(stage.operation(id).await["status"], "expired");
}

#[both_engines]
async fn queued_operation_is_canceled_by_consent_or_tunnel_removal(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let id = stage.act("start").await;
    let path = format!("/devices/{}", stage.device.id);
    stage.api.patch(&path, json!({"remote_control_enabled": false})).await.data();
    assert_eq!(stage.operation(id).await["status"], "canceled");
    let told = stage
        .wire
        .until(|frame| match frame {
            ToAgent::Consent(state) => Some(state),
            _ => None,
        })
        .await;
    assert_eq!((told.enabled, told.revision), (false, 1));

    let (device, mut wire) = stage.host.wired(&stage.ada, stage.ada.account_id).await;
    stage.device = device;
    let id = stage.act("start").await;
    let told = wire.command().await.operation_id;
    stage.api.delete(&format!("/tunnels/{}", stage.tunnel)).await.data();
    assert_eq!(stage.operation(id).await["status"], "canceled");
    wire.send(ToHost::Claimed { operation_id: told }).await;
    wire.until(|frame| matches!(frame, ToAgent::Abandon { .. }).then_some(())).await;
}

#[both_engines]
async fn queued_operation_is_canceled_when_device_is_removed(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let queued = stage.act("start").await;
    stage.wire.command().await;
    let (id, scope) = (stage.device.id, stage.ada.account_id);
    stage
        .host
        .app
        .store
        .write(Some(scope), move |write| Box::pin(async move { culvert_service::devices::remove(write, id).await }))
        .await
        .unwrap();
    assert_eq!(stage.operation(queued).await["status"], "canceled");
    let last = stage
        .wire
        .until(|frame| match frame {
            ToAgent::Goodbye { reason, .. } => Some(reason),
            _ => None,
        })
        .await;
    assert_eq!(last, "the device was removed");
    let Err(ToAgent::Refused { code, .. }) = stage.host.connect(&stage.device, |_| {}).await else { panic!("let in") };
    assert_eq!(code, "not_found");
    assert_eq!(stage.api.get(&format!("/devices/{id}")).await.outcome(), "404 not_found");
}

/// A deleted tunnel's operation that was claimed has failed, and is not begun.
#[both_engines]
async fn claimed_operation_fails_when_its_tunnel_is_deleted(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let id = stage.act("start").await;
    stage.wire.send(ToHost::Claimed { operation_id: id }).await;
    stage.host.until_operation(&stage.api, id, "claimed").await;
    stage.api.delete(&format!("/tunnels/{}", stage.tunnel)).await.data();
    assert_eq!(outcome(&stage.operation(id).await), "failed tunnel_deleted");
    stage.wire.send(ToHost::Ready { operation_id: id }).await;
    stage.wire.until(|frame| matches!(frame, ToAgent::Abandon { .. }).then_some(())).await;
}

#[both_engines]
async fn claimed_operation_is_canceled_only_by_agent(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let id = stage.act("start").await;
    stage.wire.send(ToHost::Claimed { operation_id: id }).await;
    stage.host.until_operation(&stage.api, id, "claimed").await;
    let path = format!("/devices/{}", stage.device.id);
    stage.api.patch(&path, json!({"remote_control_enabled": false})).await.data();
    assert_eq!(stage.operation(id).await["status"], "claimed");
    stage.wire.send(ToHost::Canceled { operation_id: id }).await;
    assert_eq!(outcome(&stage.host.until_ended(&stage.api, id).await), "canceled agent_rejected");
}

/// Consent that was withdrawn since the claim: the command does not begin.
#[both_engines]
async fn claimed_operation_cannot_begin_after_consent_withdrawal(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let id = stage.act("start").await;
    stage.wire.send(ToHost::Claimed { operation_id: id }).await;
    stage.host.until_operation(&stage.api, id, "claimed").await;
    stage.api.patch(&format!("/devices/{}", stage.device.id), json!({"remote_control_enabled": false})).await.data();
    stage.wire.send(ToHost::Ready { operation_id: id }).await;
    stage
        .wire
        .until(|frame| matches!(frame, ToAgent::Abandon { operation_id } if operation_id == id).then_some(()))
        .await;
    assert_eq!(outcome(&stage.operation(id).await), "failed remote_control_disabled");
    assert_eq!(stage.tunnel().await["runtime"]["running"], false);
}

#[both_engines]
async fn operation_times_out_120_seconds_after_claim(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let id = stage.act("start").await;
    stage.host.clock.advance(Duration::from_secs(5));
    let lease = stage.wire.begin(id).await.unwrap().lease_id;
    stage.pass(119, &[lease]).await;
    assert_eq!(stage.operation(id).await["status"], "running");
    stage.host.pass(Duration::from_secs(1)).await;
    assert_eq!(outcome(&stage.operation(id).await), "failed execution_timeout");
    // Its lease is taken back, and the tunnel says what happened.
    stage
        .wire
        .until(|frame| matches!(frame, ToAgent::Revoke { lease_id, .. } if lease_id == lease).then_some(()))
        .await;
    assert_eq!(stage.tunnel().await["status"], "error");
    stage.wire.finish(id, Ok(Done::Start)).await;
    assert_eq!(outcome(&stage.operation(id).await), "failed execution_timeout");
    assert_eq!(stage.tunnel().await["status"], "error");
}

#[both_engines]
async fn agent_restart_operation_times_out_after_180_seconds(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let id = stage.act_on_device("restart-agent").await;
    assert_eq!(stage.wire.begin(id).await, None);
    stage.pass(179, &[]).await;
    assert_eq!(stage.operation(id).await["status"], "running");
    stage.host.pass(Duration::from_secs(1)).await;
    assert_eq!(outcome(&stage.operation(id).await), "failed execution_timeout");
}

#[both_engines]
async fn disconnected_device_fails_claimed_and_running_operations(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let claimed = stage.act("start").await;
    stage.wire.send(ToHost::Claimed { operation_id: claimed }).await;
    stage.host.until_operation(&stage.api, claimed, "claimed").await;
    stage.wire.hang_up().await;
    stage.host.pass(Duration::from_secs(44)).await;
    assert_eq!(outcome(&stage.api.get(&format!("/operations/{claimed}")).await.data().clone()), "claimed");
    stage.host.pass(Duration::from_secs(1)).await;
    let ended = stage.api.get(&format!("/operations/{claimed}")).await;
    assert_eq!(outcome(ended.data()), "failed device_disconnected");

    stage.wire = stage.host.connect(&stage.device, |_| {}).await.unwrap();
    let running = stage.act("start").await;
    stage.wire.begin(running).await.unwrap();
    stage.wire.hang_up().await;
    stage.host.pass(Duration::from_secs(45)).await;
    let ended = stage.api.get(&format!("/operations/{running}")).await;
    assert_eq!(outcome(ended.data()), "failed outcome_unknown");
    let tunnel = stage.api.get(&format!("/tunnels/{}", stage.tunnel)).await;
    assert_eq!((&tunnel.data()["status"], &tunnel.data()["runtime"]["running"]), (&json!("error"), &json!(false)));
}

/// An agent that comes back in time goes on where it was: the command is told again, and what is
/// reported counts.
#[both_engines]
async fn reconnected_device_finishes_its_claimed_operation(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let id = stage.act("start").await;
    let first = stage.wire.command().await;
    stage.wire.send(ToHost::Claimed { operation_id: id }).await;
    stage.host.until_operation(&stage.api, id, "claimed").await;
    stage.wire.hang_up().await;
    stage.wire = stage.host.connect(&stage.device, |_| {}).await.unwrap();
    let again = stage.wire.command().await;
    assert_eq!(again.operation_id, first.operation_id);
    stage.wire.begin(id).await.unwrap();
    stage.wire.finish(id, Ok(Done::Start)).await;
    assert_eq!(outcome(&stage.operation(id).await), "succeeded");
}

#[both_engines]
async fn agent_reported_failure_is_shown_in_operation_error(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let id = stage.act("start").await;
    stage.wire.begin(id).await.unwrap();
    stage
        .wire
        .finish(id, Err(Failure::new(FailureCode::LocalTargetUnreachable, "127.0.0.1:80 does not answer.")))
        .await;
    let failed = stage.operation(id).await;
    assert_eq!(failed["error"], json!({"code": "local_target_unreachable", "detail": "127.0.0.1:80 does not answer."}));
    assert_eq!(failed["result"], Value::Null);
    assert_eq!(stage.tunnel().await["status"], "error");
    // The next start mends it.
    stage.act("start").await;
    stage.wire.obey(Done::Start).await;
    assert_eq!(stage.tunnel().await["status"], "running");
}

#[both_engines]
async fn agent_refusal_for_missing_consent_fails_operation(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let id = stage.act("start").await;
    stage.wire.command().await;
    stage.wire.send(ToHost::Claimed { operation_id: id }).await;
    let failure = Failure::new(FailureCode::RemoteControlDisabled, "Remote control is turned off on the device.");
    stage.wire.finish(id, Err(failure)).await;
    assert_eq!(outcome(&stage.operation(id).await), "failed remote_control_disabled");
}

/// Capabilities are looked at once more when a command is claimed.
#[both_engines]
async fn agent_lacking_capability_cannot_claim_queued_operation(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let id = stage.act("start").await;
    stage.wire.hang_up().await;
    stage.wire = stage
        .host
        .connect(&stage.device, |hello| hello.capabilities.retain(|has| has != Capability::RUNTIME_LEASE))
        .await
        .unwrap();
    stage.wire.send(ToHost::Claimed { operation_id: id }).await;
    stage.wire.until(|frame| matches!(frame, ToAgent::Abandon { .. }).then_some(())).await;
    assert_eq!(outcome(&stage.operation(id).await), "failed unsupported_action");
}

/// covers: upgrade_required
#[both_engines]
async fn action_without_agent_capability_returns_upgrade_required(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let tunnel = api.post("/tunnels", json!({"local_port": 80})).await.id();
    for protocol in ["udp", "both"] {
        let tunnel = api.post("/tunnels", json!({"local_port": 80, "protocol": protocol})).await.id();
        let has: Vec<_> = Capability::ALL.into_iter().filter(|has| *has != Capability::DATAGRAMS).collect();
        let (device, _wire) = host.wired_with(&ada, ada.account_id, &has).await;
        let start = api.post(&format!("/tunnels/{tunnel}/actions/start"), json!({"device_id": device.id})).await;
        assert_eq!(start.outcome(), "409 upgrade_required", "{protocol}");
    }
    for service in [
        json!({"local_port": 80, "proxy_protocol": "v2"}),
        json!({"local_port": 80, "protocol": "http", "local_scheme": "https"}),
        json!({"local_port": 443, "protocol": "http"}),
    ] {
        let tunnel = api.post("/tunnels", service.clone()).await.id();
        let has: Vec<_> = Capability::ALL.into_iter().filter(|has| *has != Capability::LOCAL_SERVICES).collect();
        let (device, _wire) = host.wired_with(&ada, ada.account_id, &has).await;
        let start = api.post(&format!("/tunnels/{tunnel}/actions/start"), json!({"device_id": device.id})).await;
        assert_eq!(start.outcome(), "409 upgrade_required", "{service}");
    }
    // Nor is it given to a tunnel that runs there.
    let has: Vec<_> = Capability::ALL.into_iter().filter(|has| *has != Capability::LOCAL_SERVICES).collect();
    let (device, mut wire) = host.wired_with(&ada, ada.account_id, &has).await;
    let running = api.post("/tunnels", json!({"local_port": 80, "protocol": "http"})).await.id();
    api.post(&format!("/tunnels/{running}/actions/start"), json!({"device_id": device.id})).await.id();
    wire.obey(Done::Start).await.unwrap();
    for change in [json!({"proxy_protocol": "v2"}), json!({"local_scheme": "https"}), json!({"local_port": 8443})] {
        let refused = api.patch(&format!("/tunnels/{running}"), change.clone()).await;
        assert_eq!(refused.outcome(), "409 upgrade_required", "{change}");
    }
    let port = json!({"protocol": "http", "local_port": 8443});
    let refused = api.post(&format!("/tunnels/{running}/extra-ports"), port).await;
    assert_eq!(refused.outcome(), "409 upgrade_required");
    assert_eq!(api.patch(&format!("/tunnels/{running}"), json!({"name": "older"})).await.status, 200);
    let of_protocols = [Capability::DATA_CHANNEL_V2, Capability::DATAGRAMS, Capability::LOCAL_SERVICES];
    let of_actions = Capability::ALL.into_iter().filter(|capability| !of_protocols.contains(capability));
    for missing in of_actions {
        let has: Vec<_> = Capability::ALL.into_iter().filter(|has| *has != missing).collect();
        let (device, _wire) = host.wired_with(&ada, ada.account_id, &has).await;
        let start = api.post(&format!("/tunnels/{tunnel}/actions/start"), json!({"device_id": device.id})).await;
        let restart = api.post(&format!("/devices/{}/actions/restart-agent", device.id), json!({})).await;
        let needed_by = |action: RemoteAction| action.capabilities().contains(&missing);
        assert_eq!(start.outcome() == "409 upgrade_required", needed_by(RemoteAction::Start), "{missing}: {start}");
        assert_eq!(
            restart.outcome() == "409 upgrade_required",
            needed_by(RemoteAction::RestartAgent),
            "{missing}: {restart}"
        );
        assert!(
            [&start, &restart]
                .iter()
                .any(|answer| answer.body["detail"].as_str().is_some_and(|detail| detail.contains(missing)))
        );
    }
}

/// What is on its way is in the way of others: on the tunnel, and on the devices.
///
/// covers: operation_in_progress
#[both_engines]
async fn conflicting_operation_is_refused_while_one_is_in_progress(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let (other, mut other_wire) = stage.host.wired(&stage.ada, stage.ada.account_id).await;
    let second = stage.api.post("/tunnels", json!({"local_port": 81})).await.id();
    let start = async |tunnel: Uuid, device: Uuid, handoff: bool| {
        let body = json!({"device_id": device, "handoff": handoff});
        stage.api.post(&format!("/tunnels/{tunnel}/actions/start"), body).await
    };
    let stop_all =
        async |device: Uuid| stage.api.post(&format!("/devices/{device}/actions/stop-all"), json!({})).await.outcome();
    let busy = "409 operation_in_progress";

    let first = start(stage.tunnel, stage.device.id, false).await.id();
    assert_eq!(start(stage.tunnel, stage.device.id, false).await.outcome(), busy);
    assert_eq!(start(stage.tunnel, other.id, false).await.outcome(), busy);
    assert_eq!(stop_all(stage.device.id).await, busy);
    // Another tunnel is not in the way.
    let also = start(second, stage.device.id, false).await.id();
    for operation in [first, also] {
        stage.wire.begin(operation).await;
        stage.wire.finish(operation, Ok(Done::Start)).await;
    }

    // A handoff counts for both devices.
    let handoff = start(stage.tunnel, other.id, true).await.id();
    assert_eq!(stop_all(stage.device.id).await, busy);
    assert_eq!(stop_all(other.id).await, busy);
    other_wire.begin(handoff).await;
    other_wire.finish(handoff, Ok(Done::Start)).await;

    // What is asked of a whole device is in the way of every tunnel's on it.
    assert_eq!(stop_all(other.id).await, "202");
    assert_eq!(start(second, other.id, true).await.outcome(), busy);
    let restart = stage.api.post(&format!("/tunnels/{}/actions/restart", stage.tunnel), json!({})).await;
    assert_eq!(restart.outcome(), busy);
    assert_eq!(stage.api.post(&format!("/tunnels/{second}/actions/restart"), json!({})).await.status, 202);
}

/// Sixty-four at once, of which one is taken.
///
/// covers: operation_in_progress
#[both_engines]
async fn concurrent_starts_accept_exactly_one_operation(engine: Engine) {
    let stage = Stage::set(engine).await;
    let path = format!("/tunnels/{}/actions/start", stage.tunnel);
    let asked = (0..64).map(|_| stage.api.post(&path, json!({"device_id": stage.device.id})));
    let answers = futures_util::future::join_all(asked).await;
    let mut outcomes: Vec<_> = answers.iter().map(super::support::api::Answer::outcome).collect();
    outcomes.sort();
    assert_eq!(
        (outcomes[0].as_str(), outcomes[1].as_str(), outcomes[63].as_str()),
        ("202", "409 operation_in_progress", "409 operation_in_progress")
    );
}

#[both_engines]
async fn start_of_running_tunnel_reports_already_running(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    stage.act("start").await;
    let grant = stage.wire.obey(Done::Start).await.unwrap();
    let path = format!("/tunnels/{}/actions/start", stage.tunnel);
    let again = stage.api.post(&path, json!({"device_id": stage.device.id})).await;
    assert_eq!((again.status, &again.data()["status"]), (202, &json!("succeeded")));
    assert_eq!(again.data()["result"]["already_running"], true);
    assert_eq!(again.data()["result"]["session_id"], json!(grant.lease_id));
    // Without a device, it is the one that runs it.
    let without = stage.api.post(&path, json!({})).await;
    assert_eq!(without.data()["result"]["already_running"], true);
    let (other, _wire) = stage.host.wired(&stage.ada, stage.ada.account_id).await;
    let elsewhere = stage.api.post(&path, json!({"device_id": other.id})).await;
    assert_eq!(elsewhere.outcome(), "409 tunnel_already_running");
}

/// covers: POST /tunnels/{tunnel_id}/actions/restart
/// covers: POST /devices/{device_id}/actions/stop-all
#[both_engines]
async fn stop_all_and_restart_report_their_results(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let device = host.device(&ada, ada.account_id, Remote::Enabled).await;
    let echo = echo_service().await;
    let mut tunnels = Vec::new();
    for _ in 0..2 {
        let tunnel = api.post("/tunnels", json!({"local_port": echo.port()})).await.id();
        let start = api.post(&format!("/tunnels/{tunnel}/actions/start"), json!({"device_id": device.id})).await.id();
        assert_eq!(outcome(&host.until_ended(&api, start).await), "succeeded");
        tunnels.push(tunnel);
    }
    let restart = api.post(&format!("/tunnels/{}/actions/restart", tunnels[0]), json!({})).await.id();
    let ended = host.until_ended(&api, restart).await;
    assert_eq!((outcome(&ended).as_str(), &ended["result"]["already_running"]), ("succeeded", &json!(false)));
    let sessions = api.get(&format!("/tunnels/{}/sessions", tunnels[0])).await;
    assert_eq!(sessions.data()[0]["end_reason"], Value::Null);
    assert_eq!(sessions.data()[1]["end_reason"], "restarted");

    let stop_all = api.post(&format!("/devices/{}/actions/stop-all", device.id), json!({})).await.id();
    let ended = host.until_ended(&api, stop_all).await;
    let stopped: HashSet<_> =
        ended["result"]["stopped"].as_array().unwrap().iter().map(|id| id.as_str().unwrap().to_owned()).collect();
    assert_eq!(stopped, tunnels.iter().map(Uuid::to_string).collect());
    assert_eq!(ended["result"]["failed"], json!([]));
    for tunnel in &tunnels {
        assert_eq!(api.get(&format!("/tunnels/{tunnel}")).await.data()["status"], "stopped");
        assert_eq!(api.get(&format!("/tunnels/{tunnel}/sessions")).await.data()[0]["end_reason"], "stop_all");
    }
    assert_eq!(device.tunnels().await, Vec::<Uuid>::new());
    let listed = api.get("/operations").await;
    assert_eq!(listed.data()[0]["id"], json!(stop_all), "newest first");
    assert_eq!(listed.data().as_array().unwrap().len(), 4);
}

#[both_engines]
async fn finished_operations_are_pruned_after_30_days(engine: Engine) {
    let stage = Stage::set(engine).await;
    let id = stage.act("start").await;
    stage.api.patch(&format!("/devices/{}", stage.device.id), json!({"remote_control_enabled": false})).await.data();
    stage.host.clock.advance(Duration::from_secs(30 * 86_400 - 1));
    stage.host.app.store.prune().await.unwrap();
    assert_eq!(stage.operation(id).await["status"], "canceled");
    stage.host.clock.advance(Duration::from_secs(1));
    stage.host.app.store.prune().await.unwrap();
    assert_eq!(stage.api.get(&format!("/operations/{id}")).await.outcome(), "404 not_found");
}

/// Every step that there is. Everything else in the state machine follows from these.
const STEPS: [(OperationStatus, OperationStatus); 8] = {
    use OperationStatus::{Canceled, Claimed, Expired, Failed, Queued, Running, Succeeded};
    [
        (Queued, Claimed),
        (Queued, Expired),
        (Queued, Canceled),
        (Claimed, Running),
        (Claimed, Failed),
        (Claimed, Canceled),
        (Running, Succeeded),
        (Running, Failed),
    ]
};

fn queued() -> Operation {
    Operation {
        id: Uuid::from_u128(1),
        scope_id: Uuid::from_u128(2),
        account_id: Uuid::from_u128(2),
        action: RemoteAction::Start,
        status: OperationStatus::Queued,
        device_id: Uuid::from_u128(3),
        tunnel_id: None,
        handoff_from_device_id: None,
        session_id: None,
        result: None,
        error: None,
        created_at: DateTime::UNIX_EPOCH,
        claimed_at: None,
        started_at: None,
        finished_at: None,
        expires_at: DateTime::UNIX_EPOCH,
    }
}

proptest! {
    /// Whatever is reported, in whatever order: only steps that there are, none from an end, and a
    /// time for each state that was passed, in order.
    #[test]
    fn operation_state_machine_only_moves_forward(reports in prop::collection::vec(prop::sample::select(OperationStatus::ALL), 0..12)) {
        let mut operation = queued();
        for (second, to) in reports.into_iter().enumerate() {
            let now = DateTime::UNIX_EPOCH + chrono::TimeDelta::seconds(second as i64 + 1);
            let before = operation.clone();
            let mut at = before.status;
            for passed in operation.advance(to, now) {
                let state = passed.status;
                prop_assert!(STEPS.contains(&(at, state)), "{at:?} to {state:?}");
                at = state;
            }
            prop_assert_eq!(at, operation.status);
            if before.status.is_terminal() {
                prop_assert_eq!(&before, &operation);
            }
            let times: Vec<_> = [operation.claimed_at, operation.started_at, operation.finished_at].into_iter().flatten().collect();
            prop_assert!(times.is_sorted());
            prop_assert_eq!(operation.finished_at.is_some(), operation.status.is_terminal());
            prop_assert!(operation.started_at.is_none() || operation.claimed_at.is_some());
        }
    }
}
