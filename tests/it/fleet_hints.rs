//! What a host changes for a device, or for an open page, that is at another host.

use std::time::Duration;

use culvert_wire::control::Done;
use serde_json::json;

use crate::fleet::Runs;
use crate::support::database::{run, texts_of};
use crate::support::fleet::TestFleet;
use crate::support::host::within;

/// Backends of the database that listen.
const LISTENERS: &str =
    "SELECT pid::TEXT AS text FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'";

/// The stop of a tunnel whose device and node are at the second host, asked for at the first. No host looks by itself here.
async fn is_stopped_from_elsewhere(fleet: &TestFleet, key: &str, runs: &mut Runs) {
    let api = fleet.hosts[0].api(key);
    let asked = api.post(&format!("/tunnels/{}/actions/stop", runs.tunnel), json!({})).await.id();
    within(20, runs.wire.obey(Done::Stop)).await;
    let operation = fleet.hosts[0].until_seen(async || {
        let operation = api.get(&format!("/operations/{asked}")).await.data().clone();
        if operation["status"] == "succeeded" { Ok(operation) } else { Err(operation) }
    });
    assert_eq!(operation.await["result"]["tunnel_id"], json!(runs.tunnel));
}

#[tokio::test]
async fn command_reaches_a_device_at_another_host_by_a_notification() {
    let fleet = TestFleet::start(2).await;
    let ada = fleet.hosts[0].person("ada").await;
    let mut runs = Runs::at(&fleet.hosts[1], &ada).await;
    is_stopped_from_elsewhere(&fleet, &ada.key, &mut runs).await;
}

/// Whoever listens again looks for what it has missed.
#[tokio::test]
async fn lost_connection_of_a_listener_delays_a_command_and_loses_none() {
    let fleet = TestFleet::start(2).await;
    let ada = fleet.hosts[0].person("ada").await;
    let mut runs = Runs::at(&fleet.hosts[1], &ada).await;
    let database = fleet.hosts[0].config().database_url();
    let first = fleet.hosts[0].until_found(async || {
        let listeners = texts_of(&database, LISTENERS).await;
        (listeners.len() == 2).then_some(listeners)
    });
    let first = first.await;
    for listener in &first {
        run(&database, &format!("SELECT pg_terminate_backend({listener})")).await;
    }
    is_stopped_from_elsewhere(&fleet, &ada.key, &mut runs).await;
    let now = texts_of(&database, LISTENERS).await;
    assert!(first.iter().all(|listener| !now.contains(listener)), "{first:?} {now:?}");
}

/// Its process stood, or has not sent a heartbeat since. The transaction asks, whatever the host believes.
#[tokio::test]
async fn host_that_was_ended_writes_nothing_before_it_has_heard_of_it() {
    let fleet = TestFleet::start(2).await;
    let ada = fleet.hosts[0].person("ada").await;
    fleet.pass(Duration::from_secs(3)).await;
    let ended = fleet.hosts[0].app.service.fleet().host_id();
    run(&fleet.hosts[0].config().database_url(), &format!("UPDATE hosts SET ended_at = 1 WHERE id = '{ended}'")).await;
    let [first, second] = [0, 1].map(|number: usize| fleet.hosts[number].api(&ada.key));
    assert_eq!(first.get("/tunnels").await.status, 200, "within its window");
    let refused = first.post("/tunnels", json!({"local_port": 80})).await;
    assert_eq!(refused.outcome(), "503 service_unavailable");
    assert_eq!(refused.headers["retry-after"], "3");
    assert_eq!(*second.get("/tunnels").await.data(), json!([]));
    second.post("/tunnels", json!({"local_port": 80})).await.id();
}
