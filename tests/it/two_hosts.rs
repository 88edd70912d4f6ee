//! Two hosts on one PostgreSQL database, with the same keys: what one has answered, the other knows.

use std::time::Duration;

use reqwest::Method;
use serde_json::json;

use crate::support::host::{Engine, TestHost, within};

/// The second host has a data folder and a node of its own.
async fn two_hosts() -> (TestHost, TestHost) {
    let first = TestHost::start(Engine::Postgres).await;
    let (database, keys) = (first.config().database_url(), first.config().secret_key_file());
    let second = TestHost::with(Engine::Postgres, |config| {
        config.database_url = Some(database);
        config.secret_key_file = Some(keys);
        config.several_hosts = true;
        config.node.domain = Some("other.tunnel.localhost".into());
    })
    .await;
    (first, second)
}

#[tokio::test]
async fn resources_and_cursors_of_one_host_are_served_by_another() {
    let (first, second) = two_hosts().await;
    let ada = first.person("ada").await;
    let (one, other) = (first.api(&ada.key), second.api(&ada.key));
    for port in [80, 81, 82] {
        one.post("/tunnels", json!({"local_port": port})).await.data();
    }
    let made = one.get("/tunnels").await;
    assert_eq!(other.get("/tunnels").await.data(), made.data());
    assert_eq!(one.get("/nodes").await.data().as_array().unwrap().len(), 2, "each host has a node");
    let page = one.get("/tunnels?limit=2").await;
    let cursor = page.body["meta"]["next_cursor"].as_str().unwrap();
    let rest = other.get(&format!("/tunnels?limit=2&cursor={cursor}")).await;
    assert_eq!(rest.data().as_array().unwrap(), &made.data().as_array().unwrap()[2..]);
}

#[tokio::test]
async fn request_that_is_sent_to_two_hosts_takes_effect_once() {
    let (first, second) = two_hosts().await;
    let ada = first.person("ada").await;
    let (one, other) = (first.api(&ada.key), second.api(&ada.key));
    let request = |api: &crate::support::api::Api| {
        api.request(Method::POST, "/tunnels").json(&json!({"local_port": 80})).header("idempotency-key", "once")
    };
    let (at_one, at_other) = tokio::join!(one.send(request(&one)), other.send(request(&other)));
    assert_eq!((at_one.status, at_other.status), (201, 201), "{} {}", at_one.text, at_other.text);
    assert_eq!(at_one.text, at_other.text);
    assert_eq!(one.get("/account/usage").await.data()["total_tunnels"], 1);
}

#[tokio::test]
async fn key_that_was_revoked_at_one_host_is_refused_by_another_within_a_second() {
    let (first, second) = two_hosts().await;
    let ada = first.person("ada").await;
    let other = second.api(&ada.key);
    assert_eq!(other.get("/account").await.status, 200);
    first.revoke(ada.key_id).await;
    second.clock.advance(Duration::from_secs(1));
    assert_eq!(other.get("/account").await.outcome(), "401 invalid_api_key");
}

/// The agent is connected to the other host, which looks for changes once a second.
#[tokio::test]
async fn command_that_one_host_took_reaches_an_agent_of_another_within_a_second() {
    let (first, second) = two_hosts().await;
    let ada = first.person("ada").await;
    let (device, mut wire) = first.wired(&ada, ada.account_id).await;
    let other = second.api(&ada.key);
    let tunnel = other.post("/tunnels", json!({"local_port": 80})).await.id();
    let start = other.post(&format!("/tunnels/{tunnel}/actions/start"), json!({"device_id": device.id})).await.id();
    first.pass(Duration::from_secs(1)).await;
    assert_eq!(within(20, wire.command()).await.operation_id, start);
}
