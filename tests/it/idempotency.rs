//! One effect for one Idempotency-Key; see `docs/develop/decisions/0008-idempotency.md`.

use std::time::Duration;

use culvert_service::idempotency::IdempotencyKey;
use culvert_test_macros::both_engines;
use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::support::api::{Answer, Api};
use crate::support::host::{Engine, TestHost};

async fn create(api: &Api, key: &str, body: &Value) -> Answer {
    api.send(api.request(Method::POST, "/tunnels").json(body).header("idempotency-key", key)).await
}

fn replayed(answer: &Answer) -> bool {
    answer.header("idempotent-replayed") == Some("true")
}

/// covers: idempotent replay
#[both_engines]
async fn repeated_request_replays_response_without_new_effect(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let body = json!({"local_port": 80, "name": "once"});
    let first = create(&api, "k", &body).await;
    assert!(!replayed(&first));
    // The same request, however its JSON is written.
    let again = api
        .request(Method::POST, "/tunnels")
        .header("idempotency-key", "k")
        .header("content-type", "application/json")
        .body("{ \"name\": \"\\u006fnce\",\n \"local_port\": 80 }");
    let again = api.send(again).await;
    assert!(replayed(&again));
    assert_eq!((again.status, &again.text), (201, &first.text), "to the byte");
    assert_ne!(again.header("x-request-id"), first.header("x-request-id"));
    assert_eq!(api.get("/account/usage").await.data()["total_tunnels"], 1);
}

/// Sixty-four at once with one key: one is done, the others are told of it.
#[both_engines]
async fn concurrent_requests_with_same_key_create_one_tunnel(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let body = json!({"local_port": 80});
    let answers = join_all((0..64).map(|_| create(&api, "race", &body))).await;
    assert!(
        answers.iter().all(|answer| answer.status == 201),
        "{:?}",
        answers.iter().map(Answer::outcome).collect::<Vec<_>>()
    );
    assert_eq!(answers.iter().filter(|answer| replayed(answer)).count(), 63);
    assert!(answers.iter().all(|answer| answer.text == answers[0].text));
    assert_eq!(api.get("/account/usage").await.data()["total_tunnels"], 1);
}

/// covers: idempotency_conflict
#[both_engines]
async fn idempotency_key_reuse_for_other_request_is_conflict(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let tunnel = create(&api, "k", &json!({"local_port": 80})).await.id();
    assert_eq!(create(&api, "k", &json!({"local_port": 81})).await.outcome(), "409 idempotency_conflict");
    let elsewhere = api.request(Method::DELETE, &format!("/tunnels/{tunnel}")).header("idempotency-key", "k");
    assert_eq!(api.send(elsewhere).await.outcome(), "409 idempotency_conflict");
    let query =
        api.request(Method::POST, "/tunnels?x=1").json(&json!({"local_port": 80})).header("idempotency-key", "k");
    assert_eq!(api.send(query).await.outcome(), "409 idempotency_conflict");
    // Keys are the API key's own.
    let other = host.key(ada.account_id, ada.account_id, "full_access").await;
    assert!(!replayed(&create(&api.with_key(&other.key), "k", &json!({"local_port": 80})).await));
}

/// A refusal is no result: the next request with the key is judged anew.
#[both_engines]
async fn refused_request_releases_idempotency_key(engine: Engine) {
    let host = TestHost::with(engine, |config| config.default_plan = "free".into()).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    assert_eq!(create(&api, "k", &json!({"local_port": 0})).await.outcome(), "422 validation_failed");
    for _ in 0..3 {
        api.post("/tunnels", json!({"local_port": 1})).await.data();
    }
    assert_eq!(create(&api, "k", &json!({"local_port": 80})).await.outcome(), "403 plan_limit_reached");
    let tunnel = api.get("/tunnels?limit=1").await.data()[0]["id"].as_str().unwrap().to_owned();
    api.delete(&format!("/tunnels/{tunnel}")).await.data();
    let fresh = create(&api, "k", &json!({"local_port": 80})).await;
    assert_eq!((fresh.status, replayed(&fresh)), (201, false));
    // And the one that used up the limit can be repeated.
    assert!(replayed(&create(&api, "k", &json!({"local_port": 80})).await));
}

/// covers: DELETE /tunnels/{tunnel_id}
#[both_engines]
async fn repeated_delete_replays_first_response(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let tunnel = api.post("/tunnels", json!({"local_port": 80})).await.id();
    let delete = || api.request(Method::DELETE, &format!("/tunnels/{tunnel}")).header("idempotency-key", "d");
    let first = api.send(delete()).await;
    let again = api.send(delete()).await;
    assert_eq!((again.status, &again.text, replayed(&again)), (200, &first.text, true));
    // No body and an empty object are the same request.
    assert!(replayed(&api.send(delete().json(&json!({}))).await));
}

/// Who may not do it any longer is not told what came of it.
#[both_engines]
async fn replay_without_current_authorization_is_refused(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    create(&api, "k", &json!({"local_port": 80})).await.data();
    host.set_plan(ada.account_id, "none").await;
    host.clock.advance(Duration::from_secs(1));
    assert_eq!(create(&api, "k", &json!({"local_port": 80})).await.outcome(), "403 feature_not_available");
    host.revoke(ada.key_id).await;
    host.clock.advance(Duration::from_secs(1));
    assert_eq!(create(&api, "k", &json!({"local_port": 80})).await.outcome(), "401 invalid_api_key");
}

#[both_engines]
async fn stored_response_is_kept_for_a_day_across_restarts(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let first = create(&host.api(&ada.key), "k", &json!({"local_port": 80})).await;
    let host = host.restart().await;
    host.pass(Duration::from_secs(24 * 3600 - 1)).await;
    let again = create(&host.api(&ada.key), "k", &json!({"local_port": 80})).await;
    assert_eq!((replayed(&again), &again.text), (true, &first.text));
    host.pass(Duration::from_secs(1)).await;
    let anew = create(&host.api(&ada.key), "k", &json!({"local_port": 80})).await;
    assert_eq!((anew.status, replayed(&anew)), (201, false));
    assert_ne!(anew.id(), first.id());
}

/// A request whose twin does not end waits for it as long as is bearable.
///
/// covers: idempotency_in_progress
#[both_engines]
async fn duplicate_of_unfinished_request_times_out_as_conflict(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let key = IdempotencyKey { credential_id: ada.key_id, key: "k".into(), request: Vec::new() };
    let (begins, begun) = oneshot::channel();
    let service = host.app.service.clone();
    let twin = tokio::spawn(async move {
        let run = async move {
            begins.send(()).unwrap();
            std::future::pending().await
        };
        service.carry_out(Some(&key), run).await
    });
    begun.await.unwrap();
    let body = json!({"local_port": 80});
    let mut waiting = Box::pin(create(&api, "k", &body));
    // The clock moves as often as it takes for the request to have looked at it.
    let refused = loop {
        tokio::select! {
            biased;
            answer = &mut waiting => break answer,
            () = tokio::task::yield_now() => host.clock.advance(Duration::from_millis(10)),
        }
    };
    assert_eq!((refused.outcome().as_str(), refused.header("retry-after")), ("409 idempotency_in_progress", Some("1")));
    twin.abort();
    assert!(twin.await.unwrap_err().is_cancelled());
    assert!(!replayed(&create(&api, "k", &body).await));
}

/// The header is for endpoints that ask for it.
#[both_engines]
async fn idempotency_key_is_ignored_by_other_endpoints(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let tunnel = create(&api, "k", &json!({"local_port": 80})).await.id();
    let patch = api
        .request(Method::PATCH, &format!("/tunnels/{tunnel}"))
        .json(&json!({"name": "x"}))
        .header("idempotency-key", "k");
    assert_eq!(api.send(patch).await.data()["name"], "x");
    assert_eq!(
        api.send(api.request(Method::GET, "/account").header("idempotency-key", "ü".as_bytes())).await.status,
        200
    );
}

/// What a stored answer holds is not to be read in the database.
#[both_engines]
async fn stored_response_is_encrypted_in_database(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let name = format!("secret-{}", Uuid::from_u128(99));
    create(&host.api(&ada.key), "k", &json!({"local_port": 80, "name": name})).await.data();
    let found = crate::support::database::bytes_of(&host, "SELECT answer AS bytes FROM idempotency").await;
    assert_eq!(found.len(), 1);
    assert!(!found[0].windows(6).any(|bytes| bytes == b"secret"));
}
