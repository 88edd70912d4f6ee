//! The order of checks (`docs/develop/decisions/0001-order-of-checks.md`, whose steps are numbered below): a
//! request with several faults is told of the first.

use culvert_test_macros::both_engines;
use reqwest::Method;
use serde_json::json;
use uuid::Uuid;

use crate::support::device::Remote;
use crate::support::host::{Engine, TestHost};

/// Each request is the one before, with its first fault mended.
///
/// covers: api_version_gone
/// covers: method_not_allowed
/// covers: invalid_content_type
/// covers: payload_too_large
/// covers: invalid_json
/// covers: invalid_json_object
/// covers: idempotency_key_required
/// covers: invalid_idempotency_key
/// covers: Idempotency-Key: at most 128 characters
#[both_engines]
async fn request_with_several_errors_reports_first_failed_check(engine: Engine) {
    let host = TestHost::with(engine, |config| config.rate_limit.per_minute = 13).await;
    let ada = host.person("ada").await;
    let reader = host.key(ada.account_id, ada.account_id, "read_only").await;
    let poor = host.person("poor").await;
    host.set_plan(poor.account_id, "none").await;
    let nobodys = Uuid::from_u128(7);
    let path = format!("/tunnels/{nobodys}/actions/start");
    let api = host.api(&ada.key);

    // 1: version 1 is gone, key or not.
    let url = format!("{}/v1/tunnels", host.url());
    let gone = reqwest::Client::builder().no_proxy().build().unwrap().get(url).send().await.unwrap();
    assert_eq!(gone.status().as_u16(), 410);
    // 2: no key, and no good key, on a route that does not exist.
    assert_eq!(api.without_key().get("/nothing").await.outcome(), "401 missing_api_key");
    assert_eq!(api.with_key("ctk_wrong").get("/nothing").await.outcome(), "401 invalid_api_key");
    // 4: the route, then the method.
    assert_eq!(api.with_key(&reader.key).get("/nothing").await.outcome(), "404 not_found");
    let put = api.send(api.with_key(&reader.key).request(Method::PUT, &path)).await;
    assert_eq!((put.outcome().as_str(), put.header("allow")), ("405 method_not_allowed", Some("POST")));
    // 5: the scope, before the plan and the body.
    let broken = |key: &str| {
        let api = api.with_key(key);
        let request = api.request(Method::POST, &path).body("{").header("content-type", "text/plain");
        (api, request)
    };
    let (reading, request) = broken(&reader.key);
    let refused = reading.send(request).await;
    assert_eq!(refused.outcome(), "403 insufficient_scope");
    assert_eq!(refused.body["detail"], "The key lacks the scope tunnels:control.");
    // 6: the plan, before the body.
    let (poorly, request) = broken(&poor.key);
    assert_eq!(poorly.send(request).await.outcome(), "403 feature_not_available");
    // 7: content type, size, JSON, object, key.
    let (api, request) = broken(&ada.key);
    assert_eq!(api.send(request).await.outcome(), "400 invalid_content_type");
    let json =
        |body: &str| api.request(Method::POST, &path).body(body.to_owned()).header("content-type", "application/json");
    assert_eq!(api.send(json(&" ".repeat(300 * 1024))).await.outcome(), "413 payload_too_large");
    assert_eq!(api.send(json("{")).await.outcome(), "400 invalid_json");
    assert_eq!(api.send(json("[]")).await.outcome(), "400 invalid_json_object");
    assert_eq!(api.send(json("{}")).await.outcome(), "400 idempotency_key_required");
    for bad in ["", " ", "a b", &"k".repeat(129), "ü"] {
        let refused = api.send(json("{}").header("idempotency-key", bad.as_bytes())).await;
        assert_eq!(refused.outcome(), "400 invalid_idempotency_key", "{bad}");
    }
    // 9: the resource, before what is wrong with the fields.
    let keyed = |body: &str| json(body).header("idempotency-key", "k");
    assert_eq!(api.send(keyed(r#"{"device_id": 7}"#)).await.outcome(), "404 not_found");
    let no_id =
        api.request(Method::POST, "/tunnels/seven/actions/start").json(&json!({})).header("idempotency-key", "k");
    assert_eq!(api.send(no_id).await.outcome(), "404 not_found");
    // 3: the minute is over before any of it.
    assert_eq!(api.get("/nothing").await.outcome(), "404 not_found");
    assert_eq!(api.get("/nothing").await.outcome(), "429 rate_limited");
}

/// Steps 10 to 13, on one tunnel that everything is wrong with.
///
/// covers: feature_not_available
/// covers: tunnel_not_running
/// covers: device_offline
/// covers: device_not_allowed
/// covers: remote_control_disabled
/// covers: tunnel_already_running
#[both_engines]
async fn policy_checks_precede_field_validation_and_state_checks(engine: Engine) {
    let host = TestHost::with(engine, |config| config.default_plan = "free".into()).await;
    let ada = host.person("ada").await;
    let bob = host.person("bob").await;
    let team = host.team("Engines", &ada).await;
    host.join(team, &bob, culvert_domain::caller::Role::Member).await;
    let owner = host.key(ada.account_id, team, "full_access").await;
    let member = host.key(bob.account_id, team, "full_access").await;
    let device = host.device(&ada, team, Remote::Disabled).await;
    let api = host.api(&owner.key);
    let tunnel = api.post("/tunnels", json!({"local_port": 80})).await.id();
    let path = format!("/tunnels/{tunnel}");
    let bad = json!({"pro_network": true, "local_port": "x"});
    // 10: the plan.
    assert_eq!(api.with_key(&member.key).patch(&path, bad.clone()).await.outcome(), "403 feature_not_available");
    host.set_plan(team, "pro").await;
    host.pass(std::time::Duration::from_secs(1)).await;
    // 11: the role.
    assert_eq!(api.with_key(&member.key).patch(&path, bad.clone()).await.outcome(), "403 team_role_forbidden");
    let start = format!("{path}/actions/start");
    let foreign_device = json!({"device_id": device.id, "handoff": 1});
    assert_eq!(api.with_key(&member.key).post(&start, foreign_device).await.outcome(), "403 team_role_forbidden");
    // A device that is not there is judged by step 12.
    let unknown = json!({"device_id": Uuid::from_u128(7), "handoff": 1});
    let refused = api.with_key(&member.key).post(&start, unknown).await;
    assert_eq!(
        (refused.outcome().as_str(), refused.fields()),
        ("422 validation_failed", vec!["device_id".into(), "handoff".into()])
    );
    // 12: the fields.
    assert_eq!(api.patch(&path, bad).await.outcome(), "422 validation_failed");
    assert_eq!(api.post(&start, json!({})).await.fields(), ["device_id"]);
    // 13: the state, in its own order.
    let go = json!({"device_id": device.id});
    assert_eq!(api.post(&start, go.clone()).await.outcome(), "409 remote_control_disabled");
    assert_eq!(api.post(&format!("{path}/actions/stop"), json!({})).await.outcome(), "409 tunnel_not_running");
    let other = host.device(&ada, team, Remote::Disabled).await;
    api.put(&format!("{path}/devices"), json!({"device_ids": [other.id]})).await.data();
    assert_eq!(api.post(&start, go.clone()).await.outcome(), "409 device_not_allowed");
    device.shut_down().await;
    assert_eq!(api.post(&start, go).await.outcome(), "409 device_offline");
}
