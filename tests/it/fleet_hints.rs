//! What a host changes for a device, or for an open page, that is at another host.

use std::process::Command;
use std::time::Duration;

use culvert_domain::fleet::LEASE;
use culvert_wire::control::Done;
use serde_json::{Value, json};

use crate::fleet::Runs;
use crate::support::database::{run, texts_of};
use crate::support::fleet::TestFleet;
use crate::support::host::within;
use crate::support::program::command_at;

/// Backends of the database that listen.
const LISTENERS: &str =
    "SELECT pid::TEXT AS text FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'";

/// The backends that listen, once both hosts do.
async fn both_listen(fleet: &TestFleet) -> Vec<String> {
    let database = fleet.hosts[0].config().database_url();
    let listen = async || {
        let listeners = texts_of(&database, LISTENERS).await;
        (listeners.len() == 2).then_some(listeners)
    };
    fleet.hosts[0].until_found(listen).await
}

/// Stops a tunnel, whose device and node are at the second host, by a request to the first. No host looks by itself here.
async fn stop_from_elsewhere(fleet: &TestFleet, key: &str, runs: &mut Runs) {
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
    stop_from_elsewhere(&fleet, &ada.key, &mut runs).await;
    let elsewhere = &fleet.hosts[1];
    assert!(elsewhere.metric("culvert_hints_taken_total").await >= Some(1.0));
    // A host hears itself as well, once a second.
    let echo = "culvert_notification_echo_duration_seconds_count";
    elsewhere.until_found(async || (elsewhere.metric(echo).await >= Some(1.0)).then_some(())).await;
}

/// Nobody waits for the next report of the host that holds its connection: that host looks within a second.
#[tokio::test]
async fn removed_device_leaves_its_host_soon() {
    let fleet = TestFleet::start(2).await;
    let ada = fleet.hosts[0].person("ada").await;
    let (device, mut wire) = fleet.hosts[1].wired(&ada, ada.account_id).await;
    command_at(&fleet.hosts[0], &["device", "remove", &device.id.to_string()]).await;
    fleet.pass(Duration::from_secs(3)).await;
    within(20, async { while wire.next().await.is_some() {} }).await;
}

/// Whoever listens again looks for what it has missed.
#[tokio::test]
async fn lost_connection_of_a_listener_delays_a_command_and_loses_none() {
    let fleet = TestFleet::start(2).await;
    let ada = fleet.hosts[0].person("ada").await;
    let mut runs = Runs::at(&fleet.hosts[1], &ada).await;
    let database = fleet.hosts[0].config().database_url();
    let first = both_listen(&fleet).await;
    for listener in &first {
        run(&database, &format!("SELECT pg_terminate_backend({listener})")).await;
    }
    stop_from_elsewhere(&fleet, &ada.key, &mut runs).await;
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

/// A tunnel there could not start.
#[tokio::test]
async fn no_tunnel_is_placed_on_a_node_whose_host_is_not_heard_of() {
    let fleet = TestFleet::start(2).await;
    let ada = fleet.hosts[0].person("ada").await;
    fleet.pass(Duration::from_secs(3)).await;
    let api = fleet.hosts[0].api(&ada.key);
    let nodes = [0, 1].map(|number: usize| json!(fleet.hosts[number].node_id()));
    let create = async || {
        let tunnel = api.post("/tunnels", json!({"local_port": 80})).await.data().clone();
        (tunnel["id"].as_str().unwrap().to_owned(), tunnel["node"]["id"].clone())
    };
    let (first, second) = (create().await, create().await);
    assert_ne!(first.1, second.1, "the one with fewer tunnels takes the next one");
    let move_to = async |node_id: &Value| {
        let here = if first.1 == *node_id { &second } else { &first };
        api.post(&format!("/tunnels/{}/move", here.0), json!({"node_id": node_id})).await.outcome()
    };
    fleet.pass_without(LEASE.to_std().unwrap(), &[1]).await;
    for _ in 0..3 {
        assert_eq!(create().await.1, nodes[0]);
    }
    assert_eq!(move_to(&nodes[1]).await, "409 node_unavailable");
    // It is back.
    fleet.pass(Duration::from_secs(3)).await;
    assert_eq!(create().await.1, nodes[1]);
    assert_eq!(move_to(&nodes[1]).await, "202");
}

/// A backend of the database that stands: its connection is open, and nothing comes.
struct Standing<'a>(&'a str);

impl<'a> Standing<'a> {
    fn new(process_id: &'a str) -> Self {
        signal("-STOP", process_id);
        Self(process_id)
    }
}

impl Drop for Standing<'_> {
    fn drop(&mut self) {
        signal("-CONT", self.0);
    }
}

fn signal(signal: &str, process_id: &str) {
    let sent = Command::new("kill").args([signal, process_id]).status();
    assert!(sent.is_ok_and(|status| status.success()), "kill {signal} {process_id}");
}

/// The host does not hear itself any longer, and listens on another connection.
#[tokio::test]
async fn listener_that_hears_nothing_is_replaced() {
    let fleet = TestFleet::start(2).await;
    let ada = fleet.hosts[0].person("ada").await;
    let mut runs = Runs::at(&fleet.hosts[1], &ada).await;
    let listeners = both_listen(&fleet).await;
    let _standing: Vec<_> = listeners.iter().map(|process_id| Standing::new(process_id)).collect();
    stop_from_elsewhere(&fleet, &ada.key, &mut runs).await;
}
