//! Events: each kind, by what brings it about, as an endpoint hears of it; see
//! `docs/develop/decisions/0011-events-and-webhooks.md`.

use std::collections::BTreeSet;
use std::time::Duration;

use culvert_agent::ipc::Request;
use culvert_domain::caller::Role;
use culvert_test_macros::both_engines;
use culvert_wire::control::{Done, Failure, ToAgent, ToHost};
use culvert_wire::failure_code::FailureCode;
use insta::{allow_duplicates, assert_snapshot};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::api::{Api, scrubbed};
use crate::support::database::bytes_of;
use crate::support::device::{Remote, TestDevice};
use crate::support::host::{Engine, Person, TestHost};
use crate::support::receiver::{Authority, Delivered, Receiver};
use crate::support::visitor::{echo_service, visit};

const ALL: [&str; 11] = [
    "command.queued",
    "command.claimed",
    "command.running",
    "command.succeeded",
    "command.failed",
    "command.expired",
    "command.canceled",
    "tunnel.started",
    "tunnel.stopped",
    "device.online",
    "device.offline",
];

/// A host, and an endpoint of a scope that hears of everything.
struct Stage {
    host: TestHost,
    ada: Person,
    api: Api,
    authority: Authority,
    ear: Ear,
}

/// An endpoint.
struct Ear {
    api: Api,
    path: String,
    receiver: Receiver,
}

impl Stage {
    async fn set(engine: Engine) -> Self {
        Self::set_on(engine, "self-hosted").await
    }

    async fn set_on(engine: Engine, plan: &str) -> Self {
        let authority = Authority::new();
        let host = TestHost::with(engine, |config| {
            authority.let_in(config);
            config.default_plan = plan.into();
        })
        .await;
        let ada = host.person("ada").await;
        let api = host.api(&ada.key);
        let ear = Ear::open(&authority, &host, &api, &ALL).await;
        Self { host, ada, api, authority, ear }
    }

    async fn tunnel_to(&self, port: u16) -> Uuid {
        self.api.post("/tunnels", json!({"local_port": port, "name": "web"})).await.id()
    }

    async fn device(&self, remote: Remote) -> TestDevice {
        self.host.device(&self.ada, self.ada.account_id, remote).await
    }

    /// Starts a tunnel from afar; the operation, once it has ended.
    async fn start(&self, tunnel: Uuid, body: Value) -> Value {
        let asked = self.api.post(&format!("/tunnels/{tunnel}/actions/start"), body).await;
        self.host.until_ended(&self.api, asked.id()).await
    }

    async fn heard(&mut self) -> Vec<Value> {
        self.ear.heard(&self.host).await
    }
}

impl Ear {
    async fn open(authority: &Authority, host: &TestHost, api: &Api, events: &[&str]) -> Self {
        let receiver = authority.receiver(&host.clock).await;
        let created = api.post("/webhooks", json!({"url": receiver.url(), "events": events})).await;
        Self { api: api.clone(), path: format!("/webhooks/{}", created.id()), receiver }
    }

    /// The events that were not heard before, in the order in which they came about. Whatever has been
    /// committed was sent before this returns.
    async fn heard(&mut self, host: &TestHost) -> Vec<Value> {
        let sent = async || {
            let attempts = self.api.get(&format!("{}/deliveries?limit=100", self.path)).await;
            attempts.data().as_array().unwrap().iter().all(|attempt| attempt["status"] == "succeeded").then_some(())
        };
        host.until(sent).await;
        let mut events: Vec<_> = self.receiver.waiting().iter().map(Delivered::event).collect();
        // Ids are made in order; deliveries have none.
        events.sort_by_key(|event| event["id"].as_str().unwrap().to_owned());
        events
    }
}

/// `tunnel.stopped handoff`: the kinds of events, with the reason where there is one.
fn kinds(events: &[Value]) -> Vec<String> {
    let kind = |event: &Value| match event["data"]["reason"].as_str() {
        Some(reason) => format!("{} {reason}", event["type"].as_str().unwrap()),
        None => event["type"].as_str().unwrap().to_owned(),
    };
    events.iter().map(kind).collect()
}

fn find<'e>(events: &'e [Value], kind: &str) -> &'e Value {
    events.iter().find(|event| event["type"] == kind).unwrap()
}

/// An event about a device, whatever machine this is.
fn anywhere(event: &Value) -> String {
    let mut event = event.clone();
    for field in ["platform", "version"] {
        assert!(event["data"]["device"][field].is_string());
        event["data"]["device"][field] = json!(format!("[{field}]"));
    }
    scrubbed(&event)
}

/// A start from afar, step by step, each step as it was then.
///
/// covers: command.queued
/// covers: command.claimed
/// covers: command.running
/// covers: command.succeeded
#[both_engines]
async fn remote_start_emits_event_for_every_command_state(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let device = stage.device(Remote::Enabled).await;
    let tunnel = stage.tunnel_to(echo_service().await.port()).await;
    stage.heard().await;
    let operation = stage.start(tunnel, json!({"device_id": device.id})).await;
    let events = stage.heard().await;
    assert_eq!(
        kinds(&events),
        ["command.queued", "command.claimed", "command.running", "tunnel.started", "command.succeeded"]
    );
    for event in events.iter().filter(|event| event["type"] != "tunnel.started") {
        let told = &event["data"]["operation"];
        assert_eq!(event["type"], format!("command.{}", told["status"].as_str().unwrap()));
        assert_eq!(
            (&told["id"], &told["tunnel_id"], &told["device_id"]),
            (&operation["id"], &json!(tunnel), &json!(device.id))
        );
    }
    assert_eq!(events[4]["data"], json!({"operation": operation}), "as the API shows it");
    let [queued, claimed, running] = [&events[0], &events[1], &events[2]].map(|event| &event["data"]["operation"]);
    let times =
        |operation: &Value| ["claimed_at", "started_at", "finished_at"].map(|field| operation[field].is_string());
    assert_eq!(
        [times(queued), times(claimed), times(running)],
        [[false; 3], [true, false, false], [true, true, false]]
    );
    allow_duplicates! { assert_snapshot!(scrubbed(&events[0]), @r#"
    {
      "api_version": "v2",
      "created_at": "[time]",
      "data": {
        "operation": {
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
        }
      },
      "id": "[uuid]",
      "scope": {
        "team_id": null,
        "type": "personal"
      },
      "type": "command.queued"
    }
    "#) }
    allow_duplicates! { assert_snapshot!(scrubbed(&events[4]), @r#"
    {
      "api_version": "v2",
      "created_at": "[time]",
      "data": {
        "operation": {
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
        }
      },
      "id": "[uuid]",
      "scope": {
        "team_id": null,
        "type": "personal"
      },
      "type": "command.succeeded"
    }
    "#) }

    let started = &events[3]["data"];
    let sessions = stage.api.get(&format!("/tunnels/{tunnel}/sessions")).await;
    let session = &sessions.data()[0];
    assert_eq!(started["tunnel"], json!({"id": tunnel, "name": "web", "protocol": "tcp"}));
    assert_eq!((&started["device_id"], &started["operation_id"]), (&json!(device.id), &operation["id"]));
    assert_eq!((&started["session_id"], &started["node_id"]), (&session["id"], &session["node_id"]));
    assert_eq!(started["public_address"], stage.api.get(&format!("/tunnels/{tunnel}")).await.data()["public_address"]);
    allow_duplicates! { assert_snapshot!(scrubbed(&events[3]), @r#"
    {
      "api_version": "v2",
      "created_at": "[time]",
      "data": {
        "device_id": "[uuid]",
        "node_id": "[uuid]",
        "operation_id": "[uuid]",
        "public_address": {
          "hostname": "[host]",
          "ipv4": "[host]",
          "ipv6": null,
          "port": "[port]",
          "url": null
        },
        "reason": null,
        "session_id": "[uuid]",
        "tunnel": {
          "id": "[uuid]",
          "name": "web",
          "protocol": "tcp"
        }
      },
      "id": "[uuid]",
      "scope": {
        "team_id": null,
        "type": "personal"
      },
      "type": "tunnel.started"
    }
    "#) }
}

/// Where it runs already nothing is done, and every state is told of all the same.
#[both_engines]
async fn start_of_running_tunnel_emits_every_command_event(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let device = stage.device(Remote::Enabled).await;
    let tunnel = stage.tunnel_to(echo_service().await.port()).await;
    stage.start(tunnel, json!({"device_id": device.id})).await;
    stage.heard().await;
    let operation = stage.start(tunnel, json!({"device_id": device.id})).await;
    let events = stage.heard().await;
    assert_eq!(kinds(&events), ["command.queued", "command.claimed", "command.running", "command.succeeded"]);
    assert_eq!(events[3]["data"]["operation"], operation);
    assert_eq!(operation["result"]["already_running"], true);
    for event in &events {
        let told = &event["data"]["operation"];
        assert_eq!(event["type"], format!("command.{}", told["status"].as_str().unwrap()));
        assert_eq!((&told["id"], told["result"].is_null()), (&operation["id"], event["type"] != "command.succeeded"));
    }
}

/// covers: command.failed
#[both_engines]
async fn failed_command_emits_failed_event(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let (device, mut wire) = stage.host.wired(&stage.ada, stage.ada.account_id).await;
    let tunnel = stage.tunnel_to(80).await;
    stage.heard().await;
    let asked = stage.api.post(&format!("/tunnels/{tunnel}/actions/start"), json!({"device_id": device.id})).await.id();
    wire.begin(asked).await.unwrap();
    wire.finish(asked, Err(Failure::new(FailureCode::LocalTargetUnreachable, "127.0.0.1:80 does not answer."))).await;
    let events = stage.heard().await;
    // It never stood ready for visitors, so it did not stop either.
    assert_eq!(kinds(&events), ["command.queued", "command.claimed", "command.running", "command.failed"]);
    assert_eq!(events[3]["data"]["operation"]["error"]["code"], "local_target_unreachable");
    assert!(events[..3].iter().all(|event| event["data"]["operation"]["error"].is_null()));
    allow_duplicates! { assert_snapshot!(scrubbed(&events[3]), @r#"
    {
      "api_version": "v2",
      "created_at": "[time]",
      "data": {
        "operation": {
          "action": "start",
          "claimed_at": "[time]",
          "created_at": "[time]",
          "device_id": "[uuid]",
          "error": {
            "code": "local_target_unreachable",
            "detail": "[host]:80 does not answer."
          },
          "expires_at": "[time]",
          "finished_at": "[time]",
          "id": "[uuid]",
          "result": null,
          "started_at": "[time]",
          "status": "failed",
          "tunnel_id": "[uuid]"
        }
      },
      "id": "[uuid]",
      "scope": {
        "team_id": null,
        "type": "personal"
      },
      "type": "command.failed"
    }
    "#) }

    // Refused by the agent at once, it has been claimed.
    let stop_all = stage.api.post(&format!("/devices/{}/actions/stop-all", device.id), json!({})).await.id();
    wire.until(|frame| matches!(frame, ToAgent::Command(command) if command.operation_id == stop_all).then_some(()))
        .await;
    wire.finish(stop_all, Err(Failure::new(FailureCode::AgentRejected, "No."))).await;
    let events = stage.heard().await;
    assert_eq!(kinds(&events), ["command.queued", "command.claimed", "command.failed"]);
    assert_eq!(events[2]["data"]["operation"]["tunnel_id"], Value::Null);
    assert_eq!(events[1]["data"]["operation"]["error"], Value::Null);
}

/// covers: command.expired
#[both_engines]
async fn unclaimed_command_emits_expired_event(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let (device, mut wire) = stage.host.wired(&stage.ada, stage.ada.account_id).await;
    let tunnel = stage.tunnel_to(80).await;
    stage.api.post(&format!("/tunnels/{tunnel}/actions/start"), json!({"device_id": device.id})).await.id();
    stage.heard().await;
    for seconds in [20, 20, 19] {
        stage.host.pass(Duration::from_secs(seconds)).await;
        wire.renew(&[]).await;
    }
    assert_eq!(kinds(&stage.heard().await), [""; 0]);
    stage.host.pass(Duration::from_secs(1)).await;
    let events = stage.heard().await;
    assert_eq!(kinds(&events), ["command.expired"]);
    assert_eq!(events[0]["data"]["operation"]["finished_at"], events[0]["created_at"]);
    allow_duplicates! { assert_snapshot!(scrubbed(&events[0]), @r#"
    {
      "api_version": "v2",
      "created_at": "[time]",
      "data": {
        "operation": {
          "action": "start",
          "claimed_at": null,
          "created_at": "[time]",
          "device_id": "[uuid]",
          "error": {
            "code": "not_claimed",
            "detail": "The device did not take the command in time."
          },
          "expires_at": "[time]",
          "finished_at": "[time]",
          "id": "[uuid]",
          "result": null,
          "started_at": null,
          "status": "expired",
          "tunnel_id": "[uuid]"
        }
      },
      "id": "[uuid]",
      "scope": {
        "team_id": null,
        "type": "personal"
      },
      "type": "command.expired"
    }
    "#) }
}

/// covers: command.canceled
#[both_engines]
async fn canceled_command_emits_canceled_event(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let (device, _wire) = stage.host.wired(&stage.ada, stage.ada.account_id).await;
    let tunnel = stage.tunnel_to(80).await;
    let path = format!("/tunnels/{tunnel}/actions/start");
    stage.heard().await;
    let asked = stage.api.post(&path, json!({"device_id": device.id})).await.id();
    stage.api.patch(&format!("/devices/{}", device.id), json!({"remote_control_enabled": false})).await.data();
    let events = stage.heard().await;
    assert_eq!(kinds(&events), ["command.queued", "command.canceled"]);
    assert_eq!(events[1]["data"]["operation"]["id"], json!(asked));
    allow_duplicates! { assert_snapshot!(scrubbed(&events[1]), @r#"
    {
      "api_version": "v2",
      "created_at": "[time]",
      "data": {
        "operation": {
          "action": "start",
          "claimed_at": null,
          "created_at": "[time]",
          "device_id": "[uuid]",
          "error": {
            "code": "remote_control_disabled",
            "detail": "Remote control was turned off on the device."
          },
          "expires_at": "[time]",
          "finished_at": "[time]",
          "id": "[uuid]",
          "result": null,
          "started_at": null,
          "status": "canceled",
          "tunnel_id": "[uuid]"
        }
      },
      "id": "[uuid]",
      "scope": {
        "team_id": null,
        "type": "personal"
      },
      "type": "command.canceled"
    }
    "#) }

    let (device, _wire) = stage.host.wired(&stage.ada, stage.ada.account_id).await;
    stage.heard().await;
    let asked = stage.api.post(&path, json!({"device_id": device.id})).await.id();
    stage.api.delete(&format!("/tunnels/{tunnel}")).await.data();
    let events = stage.heard().await;
    assert_eq!(kinds(&events), ["command.queued", "command.canceled"]);
    assert_eq!(events[1]["data"]["operation"]["id"], json!(asked));
}

/// Whoever starts and stops it, it is told of.
///
/// covers: tunnel.started
/// covers: tunnel.stopped
#[both_engines]
async fn local_and_remote_actions_emit_tunnel_events(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let device = stage.device(Remote::Enabled).await;
    let tunnel = stage.tunnel_to(echo_service().await.port()).await;
    stage.heard().await;
    stage.host.run_tunnel(&stage.api, &device, tunnel).await;
    let events = stage.heard().await;
    assert_eq!(kinds(&events), ["tunnel.started"]);
    assert_eq!((&events[0]["data"]["operation_id"], &events[0]["data"]["reason"]), (&Value::Null, &Value::Null));
    let session = events[0]["data"]["session_id"].clone();
    device.stop_tunnel(&tunnel.to_string()).await.unwrap();
    stage.host.until_tunnel(&stage.api, tunnel, "stopped").await;
    let events = stage.heard().await;
    assert_eq!(kinds(&events), ["tunnel.stopped stopped_local"]);
    assert_eq!((&events[0]["data"]["operation_id"], &events[0]["data"]["session_id"]), (&Value::Null, &session));

    stage.start(tunnel, json!({"device_id": device.id})).await;
    stage.heard().await;
    let stop = stage.api.post(&format!("/tunnels/{tunnel}/actions/stop"), json!({})).await.id();
    stage.host.until_ended(&stage.api, stop).await;
    let events = stage.heard().await;
    assert_eq!(
        kinds(&events),
        ["command.queued", "command.claimed", "command.running", "tunnel.stopped stopped_api", "command.succeeded"]
    );
    assert_eq!(events[3]["data"]["operation_id"], json!(stop));
    allow_duplicates! { assert_snapshot!(scrubbed(&events[3]), @r#"
    {
      "api_version": "v2",
      "created_at": "[time]",
      "data": {
        "device_id": "[uuid]",
        "node_id": "[uuid]",
        "operation_id": "[uuid]",
        "public_address": {
          "hostname": "[host]",
          "ipv4": "[host]",
          "ipv6": null,
          "port": "[port]",
          "url": null
        },
        "reason": "stopped_api",
        "session_id": "[uuid]",
        "tunnel": {
          "id": "[uuid]",
          "name": "web",
          "protocol": "tcp"
        }
      },
      "id": "[uuid]",
      "scope": {
        "team_id": null,
        "type": "personal"
      },
      "type": "tunnel.stopped"
    }
    "#) }
}

#[both_engines]
async fn restart_and_stop_all_emit_tunnel_events(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let device = stage.device(Remote::Enabled).await;
    let echo = echo_service().await.port();
    let (one, two) = (stage.tunnel_to(echo).await, stage.tunnel_to(echo).await);
    for tunnel in [one, two] {
        stage.start(tunnel, json!({"device_id": device.id})).await;
    }
    stage.heard().await;
    let restart = stage.api.post(&format!("/tunnels/{one}/actions/restart"), json!({})).await.id();
    stage.host.until_ended(&stage.api, restart).await;
    let events = stage.heard().await;
    let told: Vec<_> = events.iter().filter(|event| !event["data"]["tunnel"].is_null()).collect();
    assert_eq!(
        kinds(&told.iter().map(|event| (*event).clone()).collect::<Vec<_>>()),
        ["tunnel.stopped restarted", "tunnel.started"]
    );
    assert!(told.iter().all(|event| event["data"]["operation_id"] == json!(restart) && event["data"]["tunnel"]["id"] == json!(one)));
    assert_ne!(told[0]["data"]["session_id"], told[1]["data"]["session_id"]);

    let stop_all = stage.api.post(&format!("/devices/{}/actions/stop-all", device.id), json!({})).await.id();
    stage.host.until_ended(&stage.api, stop_all).await;
    let events = stage.heard().await;
    let stopped: Vec<_> = events.iter().filter(|event| event["type"] == "tunnel.stopped").collect();
    let tunnels: BTreeSet<_> =
        stopped.iter().map(|event| event["data"]["tunnel"]["id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(tunnels, BTreeSet::from([one.to_string(), two.to_string()]));
    assert!(
        stopped
            .iter()
            .all(|event| event["data"]["reason"] == "stop_all" && event["data"]["operation_id"] == json!(stop_all))
    );
    assert_eq!(stopped.len(), 2);
}

/// It stops in one place and starts in another, and both are the operation's doing.
#[both_engines]
async fn handoff_emits_stopped_and_started_events(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let (former, latter) = (stage.device(Remote::Enabled).await, stage.device(Remote::Enabled).await);
    let tunnel = stage.tunnel_to(echo_service().await.port()).await;
    stage.start(tunnel, json!({"device_id": former.id})).await;
    stage.heard().await;
    let operation = stage.start(tunnel, json!({"device_id": latter.id, "handoff": true})).await;
    assert_eq!(operation["status"], "succeeded");
    let events = stage.heard().await;
    let (stopped, started) = (find(&events, "tunnel.stopped"), find(&events, "tunnel.started"));
    assert_eq!(
        kinds(&events).iter().filter(|kind| kind.starts_with("tunnel.")).collect::<Vec<_>>(),
        ["tunnel.stopped handoff", "tunnel.started"]
    );
    assert_eq!((&stopped["data"]["device_id"], &started["data"]["device_id"]), (&json!(former.id), &json!(latter.id)));
    assert!([stopped, started].iter().all(|event| event["data"]["operation_id"] == operation["id"]));
}

/// A handoff that fails ends where it began.
#[both_engines]
async fn rolled_back_handoff_emits_started_for_previous_device(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let former = stage.device(Remote::Enabled).await;
    let (latter, mut wire) = stage.host.wired(&stage.ada, stage.ada.account_id).await;
    let tunnel = stage.tunnel_to(echo_service().await.port()).await;
    stage.start(tunnel, json!({"device_id": former.id})).await;
    stage.heard().await;
    let body = json!({"device_id": latter.id, "handoff": true});
    let asked = stage.api.post(&format!("/tunnels/{tunnel}/actions/start"), body).await.id();
    wire.begin(asked).await.unwrap();
    wire.finish(asked, Err(Failure::new(FailureCode::LocalTargetUnreachable, "nothing there"))).await;
    stage.host.until_tunnel(&stage.api, tunnel, "running").await;
    let events = stage.heard().await;
    assert_eq!(
        kinds(&events),
        [
            "command.queued",
            "command.claimed",
            "tunnel.stopped handoff",
            "command.running",
            "command.failed",
            "tunnel.started"
        ]
    );
    let places: Vec<_> = [2, 5].map(|at| &events[at]["data"]["device_id"]).into();
    assert_eq!(places, [&json!(former.id), &json!(former.id)]);
}

/// A lease that nobody renews, a tunnel that is deleted, a list that names the device no longer.
///
/// covers: tunnel.stopped
#[both_engines]
async fn expired_deleted_or_unbound_tunnel_emits_stopped_event(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let (device, mut wire) = stage.host.wired(&stage.ada, stage.ada.account_id).await;
    let mut table = String::new();
    for how in ["lease", "deleted", "bound"] {
        let tunnel = stage.tunnel_to(80).await;
        let path = format!("/tunnels/{tunnel}");
        stage.api.post(&format!("{path}/actions/start"), json!({"device_id": device.id})).await.id();
        wire.obey(Done::Start).await.unwrap();
        stage.heard().await;
        match how {
            "lease" => {
                for seconds in [15, 14] {
                    stage.host.pass(Duration::from_secs(seconds)).await;
                    wire.renew(&[]).await;
                }
                assert_eq!(kinds(&stage.heard().await), [""; 0]);
                stage.host.pass(Duration::from_secs(1)).await;
            }
            "deleted" => drop(stage.api.delete(&path).await.id()),
            _ => {
                let other = stage.host.enrol(&stage.ada, stage.ada.account_id, &[]).await;
                stage.api.put(&format!("{path}/devices"), json!({"device_ids": [other.id]})).await.data();
            }
        }
        let events = stage.heard().await;
        table += &format!("{how}: {}\n", kinds(&events).join(", "));
        let run = &events[0]["data"];
        assert_eq!(
            (&run["tunnel"]["id"], &run["device_id"], &run["operation_id"]),
            (&json!(tunnel), &json!(device.id), &Value::Null)
        );
    }
    allow_duplicates! { assert_snapshot!(table, @"
    lease: tunnel.stopped lease_expired
    deleted: tunnel.stopped tunnel_deleted
    bound: tunnel.stopped device_not_allowed
    ") }
}

/// The month is used up: what runs stops.
#[both_engines]
async fn exhausted_bandwidth_emits_tunnel_stopped_event(engine: Engine) {
    let mut stage = Stage::set_on(engine, "free").await;
    let device = stage.device(Remote::Disabled).await;
    let tunnel = stage.tunnel_to(echo_service().await.port()).await;
    stage.host.run_tunnel(&stage.api, &device, tunnel).await;
    let scope = stage.ada.account_id;
    stage.host.use_up_month(scope, tunnel).await;
    visit(&stage.host, &stage.api, tunnel, b"hello").await.unwrap();
    stage.heard().await;
    stage.host.record_traffic().await;
    let events = stage.heard().await;
    assert_eq!(kinds(&events), ["tunnel.stopped limit_reached"]);
    assert_eq!(events[0]["data"]["operation_id"], Value::Null);
}

/// A short loss of the network is no loss of the tunnel, nor of the device.
///
/// covers: tunnel.started
#[both_engines]
async fn short_reconnect_emits_no_event(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let cable = stage.host.cable().await;
    let device = stage.host.device_over(&cable, &stage.ada, Remote::Enabled).await;
    let tunnel = stage.tunnel_to(echo_service().await.port()).await;
    stage.start(tunnel, json!({"device_id": device.id})).await;
    stage.heard().await;
    let former = stage.host.connection_epoch(device.id).await;
    cable.cut();
    cable.mend();
    stage.host.until_reconnected(device.id, former).await;
    stage.host.until_tunnel(&stage.api, tunnel, "running").await;
    stage.host.pass(Duration::from_secs(1)).await;
    assert_eq!(kinds(&stage.heard().await), [""; 0]);
}

/// covers: device.online
/// covers: device.offline
#[both_engines]
async fn device_connect_and_shutdown_emit_presence_events(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let device = stage.device(Remote::Enabled).await;
    let id = device.id;
    let tunnel = stage.tunnel_to(echo_service().await.port()).await;
    let events = stage.heard().await;
    assert_eq!(kinds(&events), ["device.online"]);
    let shown = stage.api.get(&format!("/devices/{id}")).await.data().clone();
    assert_eq!((&shown["online"], &shown["remote_control_enabled"]), (&json!(true), &json!(true)));
    assert_eq!(events[0]["data"]["device"], shown, "as it is, not as it was when it was away");
    allow_duplicates! { assert_snapshot!(anywhere(&events[0]), @r#"
    {
      "api_version": "v2",
      "created_at": "[time]",
      "data": {
        "device": {
          "capabilities": [
            "remote_control_v1",
            "runtime_lease_v1",
            "command_dedup_v1",
            "restart_agent_v1",
            "data_channel_v2",
            "datagrams_v1",
            "local_services_v1"
          ],
          "id": "[uuid]",
          "last_seen_at": "[time]",
          "name": "machine",
          "online": true,
          "owner_id": "[uuid]",
          "platform": "[platform]",
          "remote_control_enabled": true,
          "version": "[version]"
        },
        "reason": null
      },
      "id": "[uuid]",
      "scope": {
        "team_id": null,
        "type": "personal"
      },
      "type": "device.online"
    }
    "#) }

    stage.start(tunnel, json!({"device_id": id})).await;
    stage.heard().await;
    let (folder, state) = device.shut_down().await;
    stage.host.until_offline(&stage.api, id).await;
    let events = stage.heard().await;
    assert_eq!(kinds(&events), ["tunnel.stopped device_disconnected", "device.offline shutdown"]);
    let gone = &events[1]["data"]["device"];
    assert_eq!((&gone["id"], &gone["online"]), (&json!(id), &json!(false)));
    allow_duplicates! { assert_snapshot!(anywhere(&events[1]), @r#"
    {
      "api_version": "v2",
      "created_at": "[time]",
      "data": {
        "device": {
          "capabilities": [
            "remote_control_v1",
            "runtime_lease_v1",
            "command_dedup_v1",
            "restart_agent_v1",
            "data_channel_v2",
            "datagrams_v1",
            "local_services_v1"
          ],
          "id": "[uuid]",
          "last_seen_at": "[time]",
          "name": "machine",
          "online": false,
          "owner_id": "[uuid]",
          "platform": "[platform]",
          "remote_control_enabled": true,
          "version": "[version]"
        },
        "reason": "shutdown"
      },
      "id": "[uuid]",
      "scope": {
        "team_id": null,
        "type": "personal"
      },
      "type": "device.offline"
    }
    "#) }

    // It is back, and runs what it ran.
    let device = TestDevice::start_again(folder, state, stage.host.clock.clone());
    stage.host.until_tunnel(&stage.api, tunnel, "running").await;
    assert_eq!(kinds(&stage.heard().await), ["device.online", "tunnel.started"]);
    device.ask(Request::RemoteControl { enabled: false, allow: Vec::new() }).await.unwrap();
    assert_eq!(kinds(&stage.heard().await), [""; 0]);
}

/// A host that is away for a moment ends what runs on its node. Its devices stay what they are.
#[both_engines]
async fn host_restart_emits_tunnel_events_only(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let device = stage.device(Remote::Enabled).await;
    let tunnel = stage.tunnel_to(echo_service().await.port()).await;
    stage.start(tunnel, json!({"device_id": device.id})).await;
    stage.heard().await;
    stage.host = stage.host.restart().await;
    // The host said when to come back; the agent's time is the host's.
    stage.host.pass(Duration::from_secs(10)).await;
    stage.host.until_tunnel(&stage.api, tunnel, "running").await;
    let events = stage.heard().await;
    assert_eq!(kinds(&events), ["tunnel.stopped node_shutdown", "tunnel.started"]);
    assert!(events.iter().all(|event| event["data"]["operation_id"].is_null()));
    device.shut_down().await;
}

/// 45 seconds of silence, and back again.
///
/// covers: device.offline
#[both_engines]
async fn silent_device_emits_offline_event_after_45_seconds(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let (device, mut wire) = stage.host.wired(&stage.ada, stage.ada.account_id).await;
    assert_eq!(kinds(&stage.heard().await), ["device.online"]);
    stage.host.pass(Duration::from_secs(40)).await;
    wire.renew(&[]).await;
    stage.host.pass(Duration::ZERO).await;
    wire.hang_up().await;
    stage.host.pass(Duration::from_secs(44)).await;
    assert_eq!(kinds(&stage.heard().await), [""; 0]);
    stage.host.pass(Duration::from_secs(1)).await;
    let events = stage.heard().await;
    assert_eq!(kinds(&events), ["device.offline timeout"]);
    assert_eq!(events[0]["data"]["device"]["online"], false);
    stage.host.pass(Duration::from_mins(1)).await;
    assert_eq!(kinds(&stage.heard().await), [""; 0], "it is told of once");
    let mut wire = stage.host.connect(&device, |_| {}).await.unwrap();
    wire.renew(&[]).await;
    stage.host.pass(Duration::from_secs(1)).await;
    assert_eq!(kinds(&stage.heard().await), ["device.online"]);
}

/// What the operator takes away: the command, the tunnel, the device.
#[both_engines]
async fn removed_device_emits_cancel_stop_and_offline_events(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let (device, mut wire) = stage.host.wired(&stage.ada, stage.ada.account_id).await;
    let (runs, queued) = (stage.tunnel_to(80).await, stage.tunnel_to(81).await);
    for tunnel in [runs, queued] {
        stage.api.post(&format!("/tunnels/{tunnel}/actions/start"), json!({"device_id": device.id})).await.id();
        if tunnel == runs {
            wire.obey(Done::Start).await.unwrap();
        }
    }
    let away = stage.host.enrol(&stage.ada, stage.ada.account_id, &[]).await;
    stage.heard().await;
    for id in [device.id, away.id] {
        let scope = stage.ada.account_id;
        stage
            .host
            .app
            .store
            .write(Some(scope), move |write| Box::pin(async move { culvert_service::devices::remove(write, id).await }))
            .await
            .unwrap();
    }
    let events = stage.heard().await;
    assert_eq!(kinds(&events), ["command.canceled", "tunnel.stopped device_not_allowed", "device.offline removed"]);
    assert_eq!(events[2]["data"]["device"]["id"], json!(device.id), "and the one that was offline is not told of");
}

/// A Team's events say whose they are, and stay in the Team.
#[both_engines]
async fn team_events_are_delivered_to_team_endpoints_only(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let bob = stage.host.person("bob").await;
    let team = stage.host.team("Engines", &stage.ada).await;
    stage.host.join(team, &bob, Role::Member).await;
    let api = stage.host.api(&stage.host.key(stage.ada.account_id, team, "full_access").await.key);
    let mut ear = Ear::open(&stage.authority, &stage.host, &api, &ALL).await;
    let bobs_own = stage.host.api(&bob.key);
    let mut bobs_ear = Ear::open(&stage.authority, &stage.host, &bobs_own, &ALL).await;
    let device = stage.host.device(&bob, team, Remote::Enabled).await;
    let events = ear.heard(&stage.host).await;
    assert_eq!(kinds(&events), ["device.online"]);
    assert_eq!(events[0]["scope"], json!({"type": "team", "team_id": team}));

    let tunnel = api.post("/tunnels", json!({"local_port": echo_service().await.port()})).await.id();
    let asked = api.post(&format!("/tunnels/{tunnel}/actions/start"), json!({"device_id": device.id})).await.id();
    stage.host.until_ended(&api, asked).await;
    let events = ear.heard(&stage.host).await;
    assert_eq!(events.len(), 5);
    assert!(events.iter().all(|event| event["scope"] == json!({"type": "team", "team_id": team})));
    stage.host.leave(team, &bob).await;
    assert_eq!(
        kinds(&ear.heard(&stage.host).await),
        ["tunnel.stopped device_not_allowed", "device.offline not_allowed"]
    );

    // Nobody's own scope has heard of any of it.
    assert_eq!(kinds(&stage.heard().await), [""; 0]);
    // But for the device, which has gone along with its owner and connects again.
    let online = async || {
        stage.host.clock.advance(Duration::from_secs(1));
        bobs_own.get(&format!("/devices/{}", device.id)).await.data()["online"] == true
    };
    device.until(online).await;
    assert_eq!(kinds(&bobs_ear.heard(&stage.host).await), ["device.online"]);
    stage.device(Remote::Disabled).await;
    let events = stage.heard().await;
    assert_eq!(events[0]["scope"], json!({"type": "personal", "team_id": null}));
    assert_eq!(kinds(&bobs_ear.heard(&stage.host).await), [""; 0]);
}

/// Each endpoint hears of what it listens to, of one event under one id.
///
/// covers: enabled endpoints that list the kind
#[both_engines]
async fn endpoint_receives_only_subscribed_events(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let mut commands =
        Ear::open(&stage.authority, &stage.host, &stage.api, &["command.queued", "command.succeeded"]).await;
    let mut devices = Ear::open(&stage.authority, &stage.host, &stage.api, &["device.online"]).await;
    let device = stage.device(Remote::Enabled).await;
    let tunnel = stage.tunnel_to(echo_service().await.port()).await;
    stage.start(tunnel, json!({"device_id": device.id})).await;
    let (all, some) = (stage.heard().await, commands.heard(&stage.host).await);
    assert_eq!(all.len(), 6);
    assert_eq!(kinds(&some), ["command.queued", "command.succeeded"]);
    assert!(some.iter().all(|event| all.contains(event)), "the same, with the same id");
    assert_eq!(kinds(&devices.heard(&stage.host).await), ["device.online"]);

    // From the moment that it listens to something else, or to nothing.
    stage.api.patch(&devices.path, json!({"events": ["tunnel.stopped"]})).await.data();
    stage.api.patch(&commands.path, json!({"status": "disabled"})).await.data();
    let stop = stage.api.post(&format!("/tunnels/{tunnel}/actions/stop"), json!({})).await.id();
    stage.host.until_ended(&stage.api, stop).await;
    assert_eq!(kinds(&devices.heard(&stage.host).await), ["tunnel.stopped stopped_api"]);
    assert_eq!(kinds(&commands.heard(&stage.host).await), [""; 0]);
}

/// What nobody listens to is not written down, nor what was not done.
#[both_engines]
async fn event_without_enabled_subscriber_is_not_stored(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let rows = async |stage: &Stage| bytes_of(&stage.host, "SELECT body AS bytes FROM events").await.len();
    stage.api.patch(&stage.ear.path, json!({"events": ["command.queued"]})).await.data();
    let (device, mut wire) = stage.host.wired(&stage.ada, stage.ada.account_id).await;
    let tunnel = stage.tunnel_to(80).await;
    assert_eq!(rows(&stage).await, 0, "of a device that came");
    let path = format!("/tunnels/{tunnel}/actions/start");
    let start = async |stage: &Stage, id: Uuid| stage.api.post(&path, json!({"device_id": id})).await;
    let away = stage.host.enrol(&stage.ada, stage.ada.account_id, &[]).await;
    assert_eq!(start(&stage, away.id).await.outcome(), "409 device_offline");
    assert_eq!(start(&stage, Uuid::from_u128(1)).await.outcome(), "422 validation_failed");
    assert_eq!(rows(&stage).await, 0, "of what was refused");
    let asked = start(&stage, device.id).await.id();
    assert_eq!(start(&stage, device.id).await.outcome(), "409 operation_in_progress");
    wire.begin(asked).await.unwrap();
    wire.finish(asked, Ok(Done::Start)).await;
    wire.send(ToHost::Goodbye).await;
    stage.host.until_offline(&stage.api, device.id).await;
    assert_eq!(kinds(&stage.heard().await), ["command.queued"]);
    assert_eq!(rows(&stage).await, 1);
    stage.api.patch(&stage.ear.path, json!({"status": "disabled"})).await.data();
    stage.host.connect(&device, |_| {}).await.unwrap();
    assert_eq!(start(&stage, device.id).await.status, 202);
    assert_eq!(rows(&stage).await, 1, "of what a disabled endpoint listens to");
}
