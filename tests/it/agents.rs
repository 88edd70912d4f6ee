//! Devices and their agents: who they are, what they consent to, and what they do when the network
//! or their process fails.

use std::pin::pin;
use std::time::Duration;

use culvert_agent::agent::Exit;
use culvert_agent::device::DeviceKey;
use culvert_agent::ipc::{Answer, Request};
use culvert_test_macros::both_engines;
use culvert_wire::control::{Action, Capability, ConsentState, Done, Failure, ToAgent, ToHost, connect_statement};
use culvert_wire::failure_code::FailureCode;
use futures_util::future::poll_immediate;
use insta::{allow_duplicates, assert_snapshot};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::agent_end::{HostEnd, grant};
use crate::support::api::Api;
use crate::support::database::execute_script;
use crate::support::device::{Remote, TestDevice};
use crate::support::host::{Engine, Person, TestHost};
use crate::support::visitor::{echo_service, named_service, visit};
use crate::support::wire::signed_consent;

/// A tunnel to a local port.
async fn tunnel_to(api: &Api, port: u16) -> Uuid {
    api.post("/tunnels", json!({"local_port": port})).await.id()
}

/// Starts a tunnel through the API, and waits until that is done.
async fn start(host: &TestHost, api: &Api, tunnel: Uuid, body: Value) -> Value {
    let asked = api.post(&format!("/tunnels/{tunnel}/actions/start"), body).await;
    host.until_ended(api, asked.id()).await
}

async fn sessions(api: &Api, tunnel: Uuid) -> Vec<Value> {
    api.get(&format!("/tunnels/{tunnel}/sessions")).await.data().as_array().unwrap().clone()
}

/// covers: GET /devices/{device_id}
#[both_engines]
async fn enrolment_code_is_single_use_and_expires_in_ten_minutes(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let key = DeviceKey::generate(&host.clock);
    let code = host.device_code(ada.account_id, ada.account_id).await;
    assert_eq!(host.redeem(&code, &key, &Capability::ALL).await.status().as_u16(), 200);
    let answer = host.api(&ada.key).get("/devices").await;
    allow_duplicates! { assert_snapshot!(answer, @r#"
    200
    {
      "data": [
        {
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
          "last_seen_at": null,
          "name": "machine",
          "online": false,
          "owner_id": "[uuid]",
          "platform": "test",
          "remote_control_enabled": false,
          "version": "1"
        }
      ],
      "meta": {
        "next_cursor": null,
        "request_id": "[uuid]"
      }
    }
    "#) }
    let again = host.redeem(&code, &key, &Capability::ALL).await;
    assert_eq!(again.status().as_u16(), 422);
    let problem: Value = again.json().await.unwrap();
    assert_eq!(
        problem["errors"],
        json!([{"field": "code", "message": "is not valid, was used already, or is older than ten minutes"}])
    );

    let late = host.device_code(ada.account_id, ada.account_id).await;
    host.clock.advance(Duration::from_mins(10));
    assert_eq!(host.redeem(&late, &key, &Capability::ALL).await.status().as_u16(), 422);
    let in_time = host.device_code(ada.account_id, ada.account_id).await;
    host.clock.advance(Duration::from_secs(599));
    assert_eq!(host.redeem(&in_time, &key, &Capability::ALL).await.status().as_u16(), 200);
}

/// Guessing codes is as slow as guessing keys.
#[both_engines]
async fn wrong_enrolment_codes_are_rate_limited(engine: Engine) {
    let host = TestHost::with(engine, |config| config.rate_limit.failed_auth_per_minute = 2).await;
    let key = DeviceKey::generate(&host.clock);
    let mut statuses = Vec::new();
    for _ in 0..3 {
        statuses.push(host.redeem("guess", &key, &[]).await.status().as_u16());
    }
    assert_eq!(statuses, [422, 422, 429]);
}

#[both_engines]
async fn connection_without_enrolled_device_key_is_refused(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let device = host.enrol(&ada, ada.account_id, &Capability::ALL).await;
    let other = DeviceKey::generate(&host.clock);
    // A signature over something else is as good as none.
    let Err(ToAgent::Refused { code, detail }) =
        host.connect(&device, |hello| hello.signature = other.sign(&connect_statement(device.id, b"nonce"))).await
    else {
        panic!("let in")
    };
    assert_eq!((code.as_str(), detail.as_str()), ("not_found", "This device is not enrolled here, or was removed."));
    let Err(ToAgent::Refused { code, .. }) = host.connect(&device, |hello| hello.device_id = Uuid::from_u128(7)).await
    else {
        panic!("let in")
    };
    assert_eq!(code, "not_found");
    assert!(host.connect(&device, |_| {}).await.is_ok());
}

/// An older state of the database knows older epochs. The node, and the agents, have seen newer ones.
#[both_engines]
async fn epochs_rise_after_an_older_state_of_the_database_was_restored(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let (device, mut wire) = host.wired(&ada, ada.account_id).await;
    let tunnel = tunnel_to(&api, 80).await;
    api.post(&format!("/tunnels/{tunnel}/actions/start"), json!({"device_id": device.id})).await.id();
    let old = wire.obey(Done::Start).await.unwrap();
    assert!(wire.attach(&old).await.is_some());
    let restore = "UPDATE tunnels SET epoch = 0; UPDATE device_presence SET epoch = 1";
    execute_script(&host.config().database_url(), restore).await;
    host.clock.advance(Duration::from_secs(1));
    let mut newer = host.connect(&device, |hello| hello.lease_ids = vec![old.lease_id]).await.unwrap();
    assert!(newer.welcome.connection_epoch > wire.welcome.connection_epoch);
    api.post(&format!("/tunnels/{tunnel}/actions/restart"), json!({})).await.id();
    let new = newer.obey(Done::Restart).await.unwrap();
    assert!(new.epoch > old.epoch);
    assert!(newer.attach(&new).await.is_some());
}

/// What an older connection still says does not count.
#[both_engines]
async fn newer_device_connection_closes_older_connection(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let (device, mut older) = host.wired(&ada, ada.account_id).await;
    let mut newer = host.connect(&device, |_| {}).await.unwrap();
    let now = host.clock.now().timestamp_micros();
    assert_eq!((older.welcome.connection_epoch, newer.welcome.connection_epoch), (now, now + 1));
    let reason = older
        .until(|frame| match frame {
            ToAgent::Goodbye { reason, .. } => Some(reason),
            _ => None,
        })
        .await;
    assert_eq!(reason, "a newer connection of the device counts");
    assert_eq!(older.next().await, None);
    assert_eq!(newer.renew(&[]).await, Vec::<Uuid>::new());
    assert_eq!(host.api(&ada.key).get(&format!("/devices/{}", device.id)).await.data()["online"], true);
}

#[both_engines]
async fn silent_device_is_offline_after_45_seconds(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let (device, mut wire) = host.wired(&ada, ada.account_id).await;
    let api = host.api(&ada.key);
    let path = format!("/devices/{}", device.id);
    host.pass(Duration::from_secs(40)).await;
    wire.renew(&[]).await;
    host.pass(Duration::from_secs(44)).await;
    let seen = api.get(&path).await;
    assert_eq!((&seen.data()["online"], &seen.data()["last_seen_at"]), (&json!(true), &json!("2026-01-15T12:00:40Z")));
    host.pass(Duration::from_secs(1)).await;
    let gone = api.get(&path).await;
    assert_eq!((&gone.data()["online"], &gone.data()["last_seen_at"]), (&json!(false), &json!("2026-01-15T12:00:40Z")));
}

/// A consent says on what it was given. What the API turned off meanwhile stays off.
#[both_engines]
async fn consent_signed_for_old_revision_is_ignored(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let (device, wire) = host.wired(&ada, ada.account_id).await;
    let path = format!("/devices/{}", device.id);
    assert_eq!(api.get(&path).await.data()["remote_control_enabled"], true);
    wire.hang_up().await;
    let off = api.patch(&path, json!({"remote_control_enabled": false})).await;
    assert_eq!(off.data()["remote_control_enabled"], false);

    let old = signed_consent(&device, true, 0);
    let mut wire = host.connect(&device, |hello| hello.signed_consent = Some(old.clone())).await.unwrap();
    assert_eq!(wire.welcome.consent, ConsentState { enabled: false, revision: 1 });
    let mut forged = signed_consent(&device, true, 0);
    forged.revision = 1;
    for void in [old, forged] {
        wire.send(ToHost::Consent(void)).await;
        let state = wire
            .until(|frame| match frame {
                ToAgent::Consent(state) => Some(state),
                _ => None,
            })
            .await;
        assert_eq!(state, ConsentState { enabled: false, revision: 1 });
    }
    wire.send(ToHost::Consent(signed_consent(&device, true, 1))).await;
    let state = wire
        .until(|frame| match frame {
            ToAgent::Consent(state) => Some(state),
            _ => None,
        })
        .await;
    assert_eq!(state, ConsentState { enabled: true, revision: 1 });
    assert_eq!(api.get(&path).await.data()["remote_control_enabled"], true);
}

/// Consent is about remote control: without it tunnels go on, and people at the device go on
/// starting and stopping them.
#[both_engines]
async fn device_without_consent_accepts_local_commands_only(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let device = host.device(&ada, ada.account_id, Remote::Disabled).await;
    let (tunnel, other) = (tunnel_to(&api, echo_service().await.port()).await, tunnel_to(&api, 1).await);
    let path = format!("/tunnels/{tunnel}");
    assert_eq!(
        api.post(&format!("{path}/actions/start"), json!({"device_id": device.id})).await.outcome(),
        "409 remote_control_disabled"
    );

    let Ok(Answer::Started(started)) = device.start_tunnel(&tunnel.to_string()).await else { panic!("not started") };
    assert_eq!(started.target_error, None);
    assert_eq!(visit(&host, &api, tunnel, b"hello").await.unwrap(), b"hello");
    assert!(matches!(device.start_tunnel(&tunnel.to_string()).await, Ok(Answer::Started(_))), "it runs already");
    for action in ["stop", "restart"] {
        assert_eq!(
            api.post(&format!("{path}/actions/{action}"), json!({})).await.outcome(),
            "409 remote_control_disabled"
        );
    }
    assert_eq!(
        api.post(&format!("/devices/{}/actions/stop-all", device.id), json!({})).await.outcome(),
        "409 remote_control_disabled"
    );

    let Ok(Answer::Stopped { tunnel_id }) =
        device.stop_tunnel("tcp-1").await.or(device.stop_tunnel(&tunnel.to_string()).await)
    else {
        panic!("not stopped")
    };
    assert_eq!(tunnel_id, tunnel);
    host.until_tunnel(&api, tunnel, "stopped").await;
    assert_eq!(sessions(&api, tunnel).await[0]["end_reason"], "stopped_local");
    assert_eq!(device.stop_tunnel(&tunnel.to_string()).await.unwrap_err().code, "tunnel_not_running");
    assert_eq!(device.start_tunnel("nothing").await.unwrap_err().code, "not_found");

    // Deleting one that runs stops it nevertheless.
    assert!(device.start_tunnel("tcp-1").await.is_ok(), "by its name, and with nobody behind it yet");
    api.delete(&format!("/tunnels/{other}")).await.data();
    device.until(async || device.tunnels().await.is_empty()).await;
}

#[both_engines]
async fn local_start_with_ambiguous_tunnel_name_is_refused(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let device = host.device(&ada, ada.account_id, Remote::Disabled).await;
    for _ in 0..2 {
        tunnel_to(&api, 80).await;
    }
    assert_eq!(device.start_tunnel("tcp-80").await.unwrap_err().code, "ambiguous");
}

/// People at the device say so, and it holds at once.
///
/// covers: PATCH /devices/{device_id}
#[both_engines]
async fn remote_control_consent_is_granted_only_at_device(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let device = host.device(&ada, ada.account_id, Remote::Disabled).await;
    let path = format!("/devices/{}", device.id);
    for enabled in [true, false, true] {
        let Ok(Answer::RemoteControl { state, confirmed }) =
            device.ask(Request::RemoteControl { enabled, allow: Vec::new() }).await
        else {
            panic!("refused")
        };
        assert_eq!((state.enabled, confirmed), (enabled, true));
        assert_eq!(api.get(&path).await.data()["remote_control_enabled"], enabled);
    }
    assert_eq!(api.patch(&path, json!({"remote_control_enabled": true})).await.fields(), ["remote_control_enabled"]);
    api.patch(&path, json!({"remote_control_enabled": false})).await.data();
    let heard = async || match device.ask(Request::Status).await {
        Ok(Answer::Status(status)) => !status.remote_control.enabled,
        other => panic!("{other:?}"),
    };
    device.until(heard).await;
}

/// An agent that cannot reach its host stops by itself when its lease is over, and not before.
#[both_engines]
async fn partitioned_agent_stops_tunnel_when_lease_expires(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let cable = host.cable().await;
    let device = host.device_over(&cable, &ada, Remote::Enabled).await;
    let tunnel = tunnel_to(&api, echo_service().await.port()).await;
    assert_eq!(start(&host, &api, tunnel, json!({"device_id": device.id})).await["status"], "succeeded");
    let held = host.visitor(&api, tunnel).await;

    cable.cut();
    device.clock.advance(Duration::from_millis(29_999));
    assert_eq!(device.tunnels().await, [tunnel]);
    assert_eq!(visit(&host, &api, tunnel, b"still there").await.unwrap(), b"still there");
    device.clock.advance(Duration::from_millis(1));
    // A visitor is cut off, not told that all has been said.
    assert!(held.was_reset().await);
    assert_eq!(device.tunnels().await, Vec::<Uuid>::new());

    // The host comes to the same by itself.
    assert_eq!(api.get(&format!("/tunnels/{tunnel}")).await.data()["runtime"]["running"], true);
    host.pass(Duration::from_secs(30)).await;
    assert_eq!(sessions(&api, tunnel).await[0]["end_reason"], "lease_expired");
    assert_eq!(api.get(&format!("/tunnels/{tunnel}")).await.data()["runtime"]["running"], false);

    // When the network is back, so is the tunnel.
    cable.mend();
    host.until_tunnel(&api, tunnel, "running").await;
    assert_eq!(visit(&host, &api, tunnel, b"back").await.unwrap(), b"back");
    assert_eq!(sessions(&api, tunnel).await.len(), 2);
}

/// A short loss of the network is no loss of the tunnel.
#[both_engines]
async fn reconnect_within_lease_keeps_session_open(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let cable = host.cable().await;
    let device = host.device_over(&cable, &ada, Remote::Enabled).await;
    let tunnel = tunnel_to(&api, echo_service().await.port()).await;
    start(&host, &api, tunnel, json!({"device_id": device.id})).await;
    let mut held = host.visitor(&api, tunnel).await;
    let former = host.connection_epoch(device.id).await;
    cable.cut();
    cable.mend();
    host.until_reconnected(device.id, former).await;
    host.until_tunnel(&api, tunnel, "running").await;
    assert_eq!(sessions(&api, tunnel).await.len(), 1);
    assert_eq!(held.echo(b"unbroken").await.unwrap(), b"unbroken");
}

/// From the moment that another device has the lease, no visitor reaches the former one, even if
/// that one has not heard of it.
///
/// covers: POST /tunnels/{tunnel_id}/actions/start
#[both_engines]
async fn handoff_never_serves_from_two_devices_at_once(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let cable = host.cable().await;
    let former = host.device_over(&cable, &ada, Remote::Enabled).await;
    let (latter, mut wire) = host.wired(&ada, ada.account_id).await;
    let tunnel = tunnel_to(&api, echo_service().await.port()).await;
    start(&host, &api, tunnel, json!({"device_id": former.id})).await;
    let mut held = host.visitor(&api, tunnel).await;
    let before = host.connection_epoch(former.id).await;
    cable.cut();

    let asked = api
        .post(&format!("/tunnels/{tunnel}/actions/start"), json!({"device_id": latter.id, "handoff": true}))
        .await
        .id();
    wire.command().await;
    assert_eq!(held.echo(b"not yet").await.unwrap(), b"not yet", "until then nothing has changed");
    let grant = wire.begin(asked).await.unwrap();
    assert_eq!(grant.epoch, host.clock.now().timestamp_micros() + 1);
    assert!(held.was_reset().await, "cut off with the new lease");
    // Its host is out of reach, but the node has told it.
    former.until(async || former.tunnels().await.is_empty()).await;

    // Who comes now waits for the new one.
    let service = named_service("the new one").await;
    wire.send(ToHost::Serving { lease_id: grant.lease_id }).await;
    let (visitor, ()) = tokio::join!(visit(&host, &api, tunnel, b""), wire.serve(&grant, service));
    assert_eq!(visitor.unwrap(), b"the new one");
    wire.finish(asked, Ok(Done::Start)).await;
    let operation = api.get(&format!("/operations/{asked}")).await;
    assert_eq!(operation.data()["result"]["previous_device_id"], json!(former.id));
    assert_eq!(sessions(&api, tunnel).await[1]["end_reason"], "handoff");

    // It comes back, and stays away from what is another's.
    cable.mend();
    host.until_reconnected(former.id, before).await;
    former.until_connected().await;
    assert_eq!(former.tunnels().await, Vec::<Uuid>::new());
    assert_eq!(api.get(&format!("/tunnels/{tunnel}")).await.data()["runtime"]["device_id"], json!(latter.id));
}

/// The node takes no connection under a lease that is over.
#[both_engines]
async fn attach_with_stale_lease_epoch_is_refused(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let (one, mut wire) = host.wired(&ada, ada.account_id).await;
    let tunnel = tunnel_to(&api, 80).await;
    api.post(&format!("/tunnels/{tunnel}/actions/start"), json!({"device_id": one.id})).await.id();
    let old = wire.obey(Done::Start).await.unwrap();
    assert!(wire.attach(&old).await.is_some());
    api.post(&format!("/tunnels/{tunnel}/actions/restart"), json!({})).await.id();
    let new = wire.obey(Done::Restart).await.unwrap();
    let now = host.clock.now().timestamp_micros();
    assert_eq!((old.epoch, new.epoch), (now, now + 1));
    assert!(wire.attach(&old).await.is_none());
    let mut forged = old;
    forged.epoch = new.epoch;
    assert!(wire.attach(&forged).await.is_none(), "a token is for its own epoch");
    assert!(wire.attach(&new).await.is_some());
}

#[both_engines]
async fn failed_handoff_restores_previous_device(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let former = host.device(&ada, ada.account_id, Remote::Enabled).await;
    let (latter, mut wire) = host.wired(&ada, ada.account_id).await;
    let tunnel = tunnel_to(&api, echo_service().await.port()).await;
    start(&host, &api, tunnel, json!({"device_id": former.id})).await;
    let handoff = async || {
        api.post(&format!("/tunnels/{tunnel}/actions/start"), json!({"device_id": latter.id, "handoff": true}))
            .await
            .id()
    };

    let asked = handoff().await;
    wire.begin(asked).await.unwrap();
    wire.finish(asked, Err(Failure::new(FailureCode::LocalTargetUnreachable, "nothing there"))).await;
    let failed = api.get(&format!("/operations/{asked}")).await;
    allow_duplicates! { assert_snapshot!(failed, @r#"
    200
    {
      "data": {
        "action": "start",
        "claimed_at": "[time]",
        "created_at": "[time]",
        "device_id": "[uuid]",
        "error": {
          "code": "local_target_unreachable",
          "detail": "nothing there"
        },
        "expires_at": "[time]",
        "finished_at": "[time]",
        "id": "[uuid]",
        "result": {
          "already_running": false,
          "device_id": "[uuid]",
          "previous_device_id": "[uuid]",
          "public_address": {
            "hostname": "[host]",
            "ipv4": "[host]",
            "ipv6": null,
            "port": "[port]",
            "url": null
          },
          "rolled_back": true,
          "session_id": "[uuid]",
          "tunnel_id": "[uuid]"
        },
        "started_at": "[time]",
        "status": "failed",
        "tunnel_id": "[uuid]"
      },
      "meta": {
        "request_id": "[uuid]"
      }
    }
    "#) }
    host.until_tunnel(&api, tunnel, "running").await;
    assert_eq!(visit(&host, &api, tunnel, b"as before").await.unwrap(), b"as before");

    // So it is when the other device vanishes in the middle of it.
    let asked = handoff().await;
    wire.begin(asked).await.unwrap();
    wire.send(ToHost::Goodbye).await;
    let failed = host.until_ended(&api, asked).await;
    assert_eq!((&failed["error"]["code"], &failed["result"]["rolled_back"]), (&json!("outcome_unknown"), &json!(true)));
    host.until_tunnel(&api, tunnel, "running").await;
    assert_eq!(api.get(&format!("/tunnels/{tunnel}")).await.data()["runtime"]["device_id"], json!(former.id));
}

/// The former device needs no consent; the new one is checked wholly before anything changes.
#[both_engines]
async fn handoff_requires_consent_of_new_device_only(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let former = host.device(&ada, ada.account_id, Remote::Disabled).await;
    let unwilling = host.device(&ada, ada.account_id, Remote::Disabled).await;
    let willing = host.device(&ada, ada.account_id, Remote::Enabled).await;
    let tunnel = tunnel_to(&api, echo_service().await.port()).await;
    former.start_tunnel(&tunnel.to_string()).await.unwrap();
    host.until_tunnel(&api, tunnel, "running").await;
    let path = format!("/tunnels/{tunnel}/actions/start");
    let refused = api.post(&path, json!({"device_id": unwilling.id, "handoff": true})).await;
    assert_eq!(refused.outcome(), "409 remote_control_disabled");
    assert_eq!(api.get(&format!("/tunnels/{tunnel}")).await.data()["status"], "running");
    assert_eq!(
        start(&host, &api, tunnel, json!({"device_id": willing.id, "handoff": true})).await["status"],
        "succeeded"
    );
    former.until(async || former.tunnels().await.is_empty()).await;
    assert_eq!(visit(&host, &api, tunnel, b"moved").await.unwrap(), b"moved");
}

/// What ran on a device runs again when its agent is back, however it went.
#[both_engines]
async fn restarted_agent_resumes_running_tunnels(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let mut device = host.device(&ada, ada.account_id, Remote::Enabled).await;
    let tunnel = tunnel_to(&api, echo_service().await.port()).await;
    start(&host, &api, tunnel, json!({"device_id": device.id})).await;
    for (politely, reason) in [(true, "device_disconnected"), (false, "agent_restart")] {
        let (folder, state) = if politely { device.shut_down().await } else { device.kill().await };
        if politely {
            // Else the new process could come before its predecessor's goodbye is written.
            host.until(async || (!sessions(&api, tunnel).await[0]["ended_at"].is_null()).then_some(())).await;
        }
        device = TestDevice::start_again(folder, state, host.clock.clone());
        let running = async || {
            let sessions = sessions(&api, tunnel).await;
            let back = sessions.len() > 1 && sessions[1]["end_reason"] == reason;
            let tunnel = api.get(&format!("/tunnels/{tunnel}")).await;
            (back && tunnel.data()["status"] == "running").then_some(())
        };
        host.until(running).await;
        assert_eq!(visit(&host, &api, tunnel, b"again").await.unwrap(), b"again");
    }
    // What was stopped stays stopped.
    let stop = api.post(&format!("/tunnels/{tunnel}/actions/stop"), json!({})).await.id();
    host.until_ended(&api, stop).await;
    let (folder, state) = device.shut_down().await;
    let device = TestDevice::start_again(folder, state, host.clock.clone());
    device.until_connected().await;
    assert_eq!(device.tunnels().await, Vec::<Uuid>::new());
}

/// The connection is closed while the host still answers what came before the goodbye.
#[both_engines]
async fn goodbye_is_read_from_a_connection_that_takes_no_answers(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let (device, mut wire) = host.wired(&ada, ada.account_id).await;
    for _ in 0..50 {
        wire.send(ToHost::Stop { request_id: host.clock.id(), lease_id: host.clock.id() }).await;
    }
    wire.send(ToHost::Goodbye).await;
    drop(wire);
    host.until_offline(&api, device.id).await;
}

/// What is decided while the other side cannot hear of it holds when it can.
#[both_engines]
async fn changes_made_during_partition_apply_on_reconnect(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let cable = host.cable().await;
    let device = host.device_over(&cable, &ada, Remote::Enabled).await;
    let (one, two) = (named_service("one").await, named_service("two").await);
    let (moved, stopped) = (tunnel_to(&api, one.port()).await, tunnel_to(&api, one.port()).await);
    for tunnel in [moved, stopped] {
        device.start_tunnel(&tunnel.to_string()).await.unwrap();
    }
    let former = host.connection_epoch(device.id).await;
    cable.cut();
    device.clock.advance(Duration::from_secs(26));
    device.until(async || !device.status().await.connected).await;
    api.patch(&format!("/tunnels/{moved}"), json!({"local_port": two.port()})).await.data();
    device.stop_tunnel(&stopped.to_string()).await.unwrap();
    cable.mend();
    host.until_reconnected(device.id, former).await;
    device.until(async || device.target(moved).await.ends_with(&two.port().to_string())).await;
    assert_eq!(visit(&host, &api, moved, b"").await.unwrap(), b"two");
    assert_eq!(device.tunnels().await, [moved], "a stop is a stop");
    assert_eq!(sessions(&api, stopped).await[0]["end_reason"], "stopped_local");
    assert_eq!(sessions(&api, moved).await.len(), 1);
}

/// A start that the loss of the connection interrupted goes on when the connection is back.
#[both_engines]
async fn start_interrupted_by_disconnect_completes_on_reconnect(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let (device, mut wire) = host.wired(&ada, ada.account_id).await;
    let tunnel = tunnel_to(&api, 80).await;
    let asked = api.post(&format!("/tunnels/{tunnel}/actions/start"), json!({"device_id": device.id})).await.id();
    let lease = wire.begin(asked).await.unwrap().lease_id;
    wire.hang_up().await;
    let mut wire = host.connect(&device, |hello| hello.lease_ids = vec![lease]).await.unwrap();
    assert_eq!(wire.welcome.grants.iter().map(|grant| grant.lease_id).collect::<Vec<_>>(), [lease]);
    wire.finish(asked, Ok(Done::Start)).await;
    assert_eq!(api.get(&format!("/tunnels/{tunnel}")).await.data()["status"], "running");
}

/// A tunnel that could not be resumed is tried again, whatever its protocol.
#[both_engines]
async fn failed_tunnel_resume_is_retried(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    for protocol in ["tcp", "udp", "both", "http"] {
        resume_is_retried(&host, &ada, &api, protocol).await;
    }
}

async fn resume_is_retried(host: &TestHost, ada: &Person, api: &Api, protocol: &str) {
    let (device, mut wire) = host.wired(ada, ada.account_id).await;
    let tunnel = api.post("/tunnels", json!({"local_port": 80, "protocol": protocol})).await.id();
    api.post(&format!("/tunnels/{tunnel}/actions/start"), json!({"device_id": device.id})).await.id();
    wire.obey(Done::Start).await.unwrap();
    wire.hang_up().await;
    let mut wire = host.connect(&device, |hello| hello.boot_id = Uuid::from_u128(2)).await.unwrap();
    let lease_id = wire.welcome.grants[0].lease_id;
    wire.send(ToHost::NotResumed { lease_id, detail: "The node could not be reached.".into() }).await;
    host.until_tunnel(api, tunnel, "error").await;
    wire.renew(&[]).await;
    let again = wire
        .until(|frame| match frame {
            ToAgent::Resume { grant } => Some(grant),
            _ => None,
        })
        .await;
    wire.send(ToHost::Serving { lease_id: again.lease_id }).await;
    host.until_tunnel(api, tunnel, "running").await;
}

/// Turned off twice is turned off: a consent that was given in between, and has not arrived yet,
/// is void.
#[both_engines]
async fn api_disable_invalidates_consent_in_transit(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let device = host.enrol(&ada, ada.account_id, &Capability::ALL).await;
    let consent = signed_consent(&device, true, 0);
    api.patch(&format!("/devices/{}", device.id), json!({"remote_control_enabled": false})).await.data();
    let wire = host.connect(&device, |hello| hello.signed_consent = Some(consent)).await.unwrap();
    assert_eq!(wire.welcome.consent, ConsentState { enabled: false, revision: 1 });
}

#[both_engines]
async fn host_restart_resumes_running_tunnel(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let device = host.device(&ada, ada.account_id, Remote::Enabled).await;
    let tunnel = tunnel_to(&api, echo_service().await.port()).await;
    start(&host, &api, tunnel, json!({"device_id": device.id})).await;
    let host = host.restart().await;
    let api = host.api(&ada.key);
    // The host said when to come back; the agent's time is the host's.
    device.until_disconnected().await;
    host.clock.advance(Duration::from_secs(10));
    host.until_tunnel(&api, tunnel, "running").await;
    assert_eq!(visit(&host, &api, tunnel, b"again").await.unwrap(), b"again");
    let sessions = sessions(&api, tunnel).await;
    assert_eq!((sessions.len(), &sessions[1]["end_reason"]), (2, &json!("node_shutdown")));
}

/// The agent replaces its process; the operation is done when the new one runs what ran.
///
/// covers: POST /devices/{device_id}/actions/restart-agent
#[both_engines]
async fn remote_agent_restart_resumes_running_tunnels(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let device = host.device(&ada, ada.account_id, Remote::Enabled).await;
    let id = device.id;
    let tunnel = tunnel_to(&api, echo_service().await.port()).await;
    start(&host, &api, tunnel, json!({"device_id": id})).await;
    let asked = api.post(&format!("/devices/{id}/actions/restart-agent"), json!({})).await.id();
    let (exit, folder, state) = device.ended().await;
    assert_eq!(exit, Exit::Replace(std::env::current_exe().unwrap()));
    assert_eq!(api.get(&format!("/operations/{asked}")).await.data()["status"], "running");
    let device = TestDevice::start_again(folder, state, host.clock.clone());
    let done = host.until_ended(&api, asked).await;
    assert_eq!((&done["status"], &done["result"]["resumed_tunnels"]), (&json!("succeeded"), &json!([tunnel])));
    assert_eq!(device.tunnels().await, [tunnel]);
    assert_eq!(sessions(&api, tunnel).await[1]["end_reason"], "agent_restart");
    assert_eq!(visit(&host, &api, tunnel, b"again").await.unwrap(), b"again");
}

/// With consent a changed target is followed at once. Without, only people at the device lead it
/// elsewhere, by starting it anew.
#[both_engines]
async fn changed_target_is_followed_only_with_consent(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let device = host.device(&ada, ada.account_id, Remote::Enabled).await;
    let (one, two, three) = (named_service("one").await, named_service("two").await, named_service("three").await);
    let tunnel = tunnel_to(&api, one.port()).await;
    let path = format!("/tunnels/{tunnel}");
    start(&host, &api, tunnel, json!({"device_id": device.id})).await;
    assert_eq!(visit(&host, &api, tunnel, b"").await.unwrap(), b"one");
    api.patch(&path, json!({"local_port": two.port()})).await.data();
    device.until(async || device.target(tunnel).await.ends_with(&two.port().to_string())).await;
    assert_eq!(visit(&host, &api, tunnel, b"").await.unwrap(), b"two");

    device.ask(Request::RemoteControl { enabled: false, allow: Vec::new() }).await.unwrap();
    api.patch(&path, json!({"local_port": three.port()})).await.data();
    let (folder, state) = device.shut_down().await;
    let device = TestDevice::start_again(folder, state, host.clock.clone());
    device.until_connected().await;
    host.until_tunnel(&api, tunnel, "running").await;
    assert_eq!(visit(&host, &api, tunnel, b"").await.unwrap(), b"two", "where it led when it was last agreed to");
    device.stop_tunnel(&tunnel.to_string()).await.unwrap();
    host.until_tunnel(&api, tunnel, "stopped").await;
    device.start_tunnel(&tunnel.to_string()).await.unwrap();
    assert_eq!(visit(&host, &api, tunnel, b"").await.unwrap(), b"three");
}

/// covers: PUT /tunnels/{tunnel_id}/devices
#[both_engines]
async fn allowlist_without_running_device_stops_tunnel(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let device = host.device(&ada, ada.account_id, Remote::Enabled).await;
    let other = host.device(&ada, ada.account_id, Remote::Enabled).await;
    let tunnel = tunnel_to(&api, echo_service().await.port()).await;
    start(&host, &api, tunnel, json!({"device_id": device.id})).await;
    let bind = async |ids: &[Uuid]| {
        api.put(&format!("/tunnels/{tunnel}/devices"), json!({"device_ids": ids})).await.data()["stopped_device_id"]
            .clone()
    };
    assert_eq!(bind(&[device.id, other.id]).await, Value::Null);
    assert_eq!(bind(&[other.id]).await, json!(device.id));
    device.until(async || device.tunnels().await.is_empty()).await;
    assert_eq!(sessions(&api, tunnel).await[0]["end_reason"], "device_not_allowed");
    assert_eq!(device.start_tunnel(&tunnel.to_string()).await.unwrap_err().code, "device_not_allowed");
}

/// Whoever leaves a Team takes their devices out of it: nothing of it runs there any longer.
#[both_engines]
async fn departing_member_device_stops_team_tunnels(engine: Engine) {
    let host = TestHost::start(engine).await;
    let (ada, bob) = (host.person("ada").await, host.person("bob").await);
    let team = host.team("Engines", &ada).await;
    host.join(team, &bob, culvert_domain::caller::Role::Member).await;
    let (owner, member) =
        (host.key(ada.account_id, team, "full_access").await, host.key(bob.account_id, team, "full_access").await);
    let api = host.api(&owner.key);
    let device = host.device(&bob, team, Remote::Enabled).await;
    let tunnel = tunnel_to(&api, echo_service().await.port()).await;
    let second = tunnel_to(&api, 1).await;
    start(&host, &api, tunnel, json!({"device_id": device.id})).await;
    let queued = api.post(&format!("/tunnels/{second}/actions/start"), json!({"device_id": device.id})).await.id();
    host.until_ended(&api, queued).await;
    host.leave(team, &bob).await;
    device.until(async || device.tunnels().await.is_empty()).await;
    assert_eq!(sessions(&api, tunnel).await[0]["end_reason"], "device_not_allowed");
    host.pass(Duration::from_secs(1)).await;
    assert_eq!(host.api(&member.key).get("/tunnels").await.outcome(), "401 invalid_api_key");
    let refused = api.post(&format!("/tunnels/{tunnel}/actions/start"), json!({"device_id": device.id})).await;
    assert_eq!(refused.outcome(), "422 validation_failed", "it is no device of the Team any longer");
    assert_eq!(api.get(&format!("/devices/{}", device.id)).await.outcome(), "404 not_found");
}

/// A command is executed once, however often it is delivered, and whatever process it finds.
#[tokio::test]
async fn redelivered_command_is_executed_once() {
    let host = HostEnd::open().await;
    let consent = ConsentState { enabled: true, revision: 0 };
    let device = TestDevice::of(&host.url, Remote::Enabled);
    let mut agent = host.welcome(consent).await;
    let (restart, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
    agent.command(restart, Action::RestartAgent, None).await;
    assert_eq!(agent.next().await, ToHost::Claimed { operation_id: restart });
    assert_eq!(agent.next().await, ToHost::Ready { operation_id: restart });
    agent.command(restart, Action::RestartAgent, None).await;
    assert_eq!(agent.next().await, ToHost::Claimed { operation_id: restart }, "not begun, it is claimed again");
    assert_eq!(agent.next().await, ToHost::Ready { operation_id: restart });
    agent.send(ToAgent::Proceed { operation_id: restart, grant: None }).await;
    let (exit, folder, state) = device.ended().await;
    assert!(matches!(exit, Exit::Replace(_)));

    let device = TestDevice::again(folder, state);
    let mut agent = host.welcome(consent).await;
    assert_eq!(agent.hello.operation_ids, [restart]);
    let outcome = Ok(Done::RestartAgent {
        previous_version: env!("CARGO_PKG_VERSION").into(),
        version: env!("CARGO_PKG_VERSION").into(),
        boot_id: agent.hello.boot_id,
    });
    let finished = ToHost::Finished { operation_id: restart, outcome };
    assert_eq!(agent.next().await, finished, "told without being asked");
    agent.command(restart, Action::RestartAgent, None).await;
    assert_eq!(agent.next().await, finished, "delivered again, it is answered from the journal");
    agent.send(ToAgent::Settled { operation_id: restart }).await;
    agent.command(restart, Action::RestartAgent, None).await;
    // Nothing came of that: the next that is heard is about the next command.
    agent.command(other, Action::StopAll, None).await;
    assert_eq!(agent.next().await, ToHost::Claimed { operation_id: other });
    device.shut_down().await;
}

/// What had begun when the process ended cannot be known, and is not done again to find out.
#[tokio::test]
async fn command_interrupted_by_crash_reports_unknown_outcome() {
    let host = HostEnd::open().await;
    let consent = ConsentState { enabled: true, revision: 0 };
    let device = TestDevice::of(&host.url, Remote::Enabled);
    let mut agent = host.welcome(consent).await;
    let (operation_id, tunnel_id) = (Uuid::from_u128(1), Uuid::from_u128(9));
    agent.command(operation_id, Action::Start, Some(tunnel_id)).await;
    assert_eq!(agent.next().await, ToHost::Claimed { operation_id });
    assert_eq!(agent.next().await, ToHost::Ready { operation_id });
    let target = echo_service().await;
    agent.send(ToAgent::Proceed { operation_id, grant: Some(grant(tunnel_id, target.port())) }).await;
    device.until(async || device.tunnels().await == [tunnel_id]).await;
    let (folder, state) = device.kill().await;

    let device = TestDevice::again(folder, state);
    let mut agent = host.welcome(consent).await;
    assert_eq!(agent.hello.operation_ids, [operation_id]);
    let failure =
        Failure::new(FailureCode::OutcomeUnknown, "The agent's process ended while the action was carried out.");
    assert_eq!(agent.next().await, ToHost::Finished { operation_id, outcome: Err(failure) });
    assert_eq!(device.tunnels().await, Vec::<Uuid>::new());
    device.shut_down().await;
}

/// The host cannot give the device's consent, and an agent without it does nothing.
#[tokio::test]
async fn consent_claimed_by_host_is_rejected_by_agent() {
    let host = HostEnd::open().await;
    let device = TestDevice::of(&host.url, Remote::Disabled);
    let mut agent = host.welcome(ConsentState { enabled: true, revision: 3 }).await;
    agent.send(ToAgent::Consent(ConsentState { enabled: true, revision: 4 })).await;
    let operation_id = Uuid::from_u128(1);
    agent.command(operation_id, Action::StopAll, None).await;
    assert_eq!(agent.next().await, ToHost::Claimed { operation_id });
    let failure = Failure::new(FailureCode::RemoteControlDisabled, "Remote control is turned off on the device.");
    assert_eq!(agent.next().await, ToHost::Finished { operation_id, outcome: Err(failure) });
    device.shut_down().await;
}

/// What is decided at the device between the claim and the beginning counts.
#[tokio::test]
async fn consent_withdrawn_after_claim_fails_command() {
    let host = HostEnd::open().await;
    let device = TestDevice::of(&host.url, Remote::Enabled);
    let mut agent = host.welcome(ConsentState { enabled: true, revision: 0 }).await;
    let (operation_id, tunnel_id) = (Uuid::from_u128(1), Uuid::from_u128(9));
    agent.command(operation_id, Action::Start, Some(tunnel_id)).await;
    assert_eq!(agent.next().await, ToHost::Claimed { operation_id });
    assert_eq!(agent.next().await, ToHost::Ready { operation_id });
    let confirm = async {
        assert!(matches!(agent.next().await, ToHost::Consent(signed) if !signed.enabled));
        agent.send(ToAgent::Consent(ConsentState { enabled: false, revision: 1 })).await;
    };
    let (off, ()) = tokio::join!(device.ask(Request::RemoteControl { enabled: false, allow: Vec::new() }), confirm);
    assert!(off.is_ok());
    let target = echo_service().await;
    agent.send(ToAgent::Proceed { operation_id, grant: Some(grant(tunnel_id, target.port())) }).await;
    let failure = Failure::new(FailureCode::RemoteControlDisabled, "Remote control is turned off on the device.");
    assert_eq!(agent.next().await, ToHost::Finished { operation_id, outcome: Err(failure) });
    assert_eq!(device.tunnels().await, Vec::<Uuid>::new());
    device.shut_down().await;
}

/// The first lease counts from when the agent asked for it, which is before the host wrote it.
#[tokio::test]
async fn lease_expiry_counts_from_agent_request() {
    let host = HostEnd::open().await;
    let device = TestDevice::of(&host.url, Remote::Enabled);
    let mut agent = host.welcome(ConsentState { enabled: true, revision: 0 }).await;
    let (operation_id, tunnel_id) = (Uuid::from_u128(1), Uuid::from_u128(9));
    agent.command(operation_id, Action::Start, Some(tunnel_id)).await;
    assert_eq!(agent.next().await, ToHost::Claimed { operation_id });
    assert_eq!(agent.next().await, ToHost::Ready { operation_id });
    device.clock.advance(Duration::from_secs(20));
    let target = echo_service().await;
    agent.send(ToAgent::Proceed { operation_id, grant: Some(grant(tunnel_id, target.port())) }).await;
    device.until(async || device.tunnels().await == [tunnel_id]).await;
    device.clock.advance(Duration::from_secs(9));
    assert_eq!(device.tunnels().await, [tunnel_id]);
    device.clock.advance(Duration::from_secs(1));
    device.until(async || device.tunnels().await.is_empty()).await;
    device.shut_down().await;
}

/// A host that is busy says when to come back, and is left alone until then.
#[tokio::test]
async fn agent_waits_for_reconnect_delay_of_busy_host() {
    let host = HostEnd::open().await;
    let device = TestDevice::of(&host.url, Remote::Enabled);
    let mut agent = host.meet().await;
    agent.send(ToAgent::Goodbye { reason: "busy".into(), reconnect_after_ms: 60_000 }).await;
    let mut again = pin!(host.meet());
    let mut seconds = 0;
    while poll_immediate(again.as_mut()).await.is_none() {
        device.clock.advance(Duration::from_secs(1));
        seconds += 1;
        device.status().await;
    }
    assert!(seconds >= 60, "it came back after {seconds} s");
    device.shut_down().await;
}

/// Clouds keep secrets at link-local addresses: no tunnel leads there.
#[tokio::test]
async fn link_local_targets_are_refused() {
    let host = HostEnd::open().await;
    let device = TestDevice::of(&host.url, Remote::Enabled);
    let mut agent = host.welcome(ConsentState { enabled: true, revision: 0 }).await;
    for (number, place) in ["169.254.169.254", "fe80::1", "::ffff:169.254.169.254"].into_iter().enumerate() {
        let (operation_id, tunnel_id) = (Uuid::from_u128(number as u128 + 1), Uuid::from_u128(9));
        agent.command(operation_id, Action::Start, Some(tunnel_id)).await;
        assert_eq!(agent.next().await, ToHost::Claimed { operation_id });
        assert_eq!(agent.next().await, ToHost::Ready { operation_id });
        let mut grant = grant(tunnel_id, 80);
        grant.target.host = place.into();
        agent.send(ToAgent::Proceed { operation_id, grant: Some(grant) }).await;
        let ToHost::Finished { outcome: Err(failure), .. } = agent.next().await else { panic!("{place}") };
        assert_eq!(failure.code, "target_not_allowed");
        assert!(failure.detail.contains("culvert-agent targets allow"), "{}", failure.detail);
    }
    device.shut_down().await;
}

#[tokio::test]
async fn second_agent_on_state_folder_is_refused() {
    let host = HostEnd::open().await;
    let device = TestDevice::of(&host.url, Remote::Enabled);
    host.welcome(ConsentState { enabled: true, revision: 0 }).await;
    let second = device.second_process().await;
    assert_eq!(second.unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
}
