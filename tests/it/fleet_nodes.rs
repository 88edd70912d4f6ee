//! Tunnels on the node of one host, for an agent at another, asked for at a third.

use std::time::Duration;

use culvert_domain::session::{EndReason, SESSION_LEASE};
use culvert_service::sessions;
use futures_util::future::join_all;
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::support::api::Api;
use crate::support::cable::Cable;
use crate::support::database::{WAITING_FOR_LOCKS, run, until_there};
use crate::support::device::{Remote, TestDevice};
use crate::support::fleet::TestFleet;
use crate::support::host::{Person, TestHost, within};
use crate::support::program::command_at;
use crate::support::visitor::{Visitor, echo_service, is_closed};

/// Three hosts: the node, the agent and the client are each at another one.
struct Stage {
    fleet: TestFleet,
    ada: Person,
    cable: Cable,
    device: TestDevice,
}

impl Stage {
    async fn set() -> Self {
        let fleet = TestFleet::start(3).await;
        fleet.pass(Duration::from_secs(3)).await;
        let ada = fleet.hosts[0].person("ada").await;
        let cable = fleet.hosts[1].cable().await;
        let device = fleet.hosts[1].device_over(&cable, &ada, Remote::Enabled).await;
        Self { fleet, ada, cable, device }
    }

    fn node(&self) -> &TestHost {
        &self.fleet.hosts[0]
    }

    fn agent(&self) -> &TestHost {
        &self.fleet.hosts[1]
    }

    /// The client's host.
    fn api(&self) -> Api {
        self.fleet.hosts[2].api(&self.ada.key)
    }

    /// A tunnel on the node of a host, to an echo service.
    async fn tunnel_on(&self, number: usize) -> Uuid {
        self.fleet.hosts[number].tunnel_here(&self.api(), echo_service().await.port()).await
    }

    /// Lets time pass, in which these hosts do nothing, and the agent renews its leases.
    async fn pass_without(&self, seconds: u64, still: &[usize]) {
        for _ in 0..seconds / 10 {
            self.fleet.pass_without(Duration::from_secs(10), still).await;
            self.device.clock.advance(Duration::from_secs(10));
            let whole = Some(SESSION_LEASE.as_secs());
            let renewed = async || (self.device.status().await.lease_seconds == whole).then_some(());
            self.agent().until_found(renewed).await;
        }
    }

    /// Asks for something, and waits for how it ends.
    async fn outcome(&self, tunnel: Uuid, action: &str) -> Value {
        let body = if action == "start" { json!({"device_id": self.device.id}) } else { json!({}) };
        let operation = self.api().post(&format!("/tunnels/{tunnel}/actions/{action}"), body).await.id();
        self.agent()
            .until_seen(async || {
                let operation = self.api().get(&format!("/operations/{operation}")).await.data().clone();
                let has_ended = ["succeeded", "failed"].iter().any(|status| operation["status"] == *status);
                if has_ended { Ok(operation) } else { Err(operation) }
            })
            .await
    }

    /// Ends a tunnel's session as where its node stops.
    async fn end_session(&self, tunnel: Uuid) {
        let store = &self.agent().app.store;
        let session = store.lease_of_tunnel(tunnel).await.unwrap().unwrap().session_id;
        sessions::end_all(store, self.ada.account_id, vec![session], EndReason::NodeShutdown).await.unwrap();
    }

    /// How often the agent's host was told something by another one.
    async fn hints(&self) -> f64 {
        self.agent().metric("culvert_hints_taken_total").await.unwrap_or_default()
    }

    /// Waits until the agent's host is told more than it was before, and until the tunnel runs with the agent's next heartbeat.
    async fn until_resumed_by_hint(&self, tunnel: Uuid, before: f64) {
        self.agent().until_found(async || (self.hints().await > before).then_some(())).await;
        self.device.clock.advance(Duration::from_secs(10));
        self.agent().until_tunnel(&self.api(), tunnel, "running").await;
    }

    /// A tunnel that runs on the first host's node.
    async fn running(&self) -> Uuid {
        self.running_on(0).await
    }

    async fn running_on(&self, number: usize) -> Uuid {
        let tunnel = self.tunnel_on(number).await;
        let started = self.outcome(tunnel, "start").await;
        assert_eq!(started["status"], "succeeded", "{started}");
        tunnel
    }
}

/// What is answered holds: a start serves, a rule turns visitors away, and the port of what was stopped is closed.
#[tokio::test]
async fn start_rule_and_stop_hold_when_they_are_answered() {
    let stage = Stage::set().await;
    let tunnel = stage.running().await;
    let public = stage.node().public(&stage.api(), tunnel).await;
    for _ in 0..10 {
        let rules = json!({"rules": [{"rule_type": "blacklist", "ip_address": "127.0.1.1"}]});
        let firewall = format!("/tunnels/{tunnel}/firewall");
        assert!(Visitor::from("127.0.1.1", public).await.is_some());
        assert_eq!(stage.api().put(&firewall, rules).await.data()["enforced"], true);
        // Of a thousand that come after the answer, nobody is let in.
        let admitted = join_all((0..100).map(|_| Visitor::from("127.0.1.1", public))).await.into_iter().flatten();
        assert_eq!(admitted.count(), 0);
        assert!(Visitor::from("127.0.1.2", public).await.is_some());
        assert_eq!(stage.api().put(&firewall, json!({"rules": []})).await.status, 200);
    }
    for _ in 0..3 {
        assert_eq!(stage.outcome(tunnel, "stop").await["status"], "succeeded");
        assert!(is_closed(public).await);
        assert_eq!(stage.outcome(tunnel, "start").await["status"], "succeeded");
        assert!(Visitor::from("127.0.1.1", public).await.is_some());
    }
    let asked = "culvert_node_request_duration_seconds_count{kind=\"serve\"}";
    assert!(stage.agent().metric(asked).await >= Some(3.0));
    let granted = stage.agent().metric("culvert_grants_total{node=\"elsewhere\"}").await;
    assert_eq!(granted, Some(4.0), "one for each start");
}

/// Where the node's host could not be asked, nobody says that rules are in force.
#[tokio::test]
async fn rules_are_not_said_to_be_in_force_by_a_node_that_was_not_asked() {
    let stage = Stage::set().await;
    let firewall = format!("/tunnels/{}/firewall", stage.running().await);
    let replace = async || stage.api().put(&firewall, json!({"rules": []})).await.data()["enforced"].clone();
    let url = stage.node().config().database_url();
    run(&url, "ALTER TABLE node_requests ADD CONSTRAINT asked CHECK (kind <> 'apply')").await;
    assert_eq!(replace().await, false);
    run(&url, "ALTER TABLE node_requests DROP CONSTRAINT asked").await;
    assert_eq!(replace().await, true);
}

/// The last bytes of a visit are counted, although the node's host stores them and the agent's host ends the session.
#[tokio::test]
async fn traffic_of_a_stopped_tunnel_is_counted() {
    let stage = Stage::set().await;
    let tunnel = stage.running().await;
    let mut visitor = stage.node().visitor(&stage.api(), tunnel).await;
    assert_eq!(visitor.echo(&[7; 1000]).await.unwrap(), [7; 1000]);
    assert_eq!(stage.outcome(tunnel, "stop").await["status"], "succeeded");
    let used = stage.api().get("/account/usage").await.data().clone();
    let month = &used["bandwidth"]["month"];
    assert_eq!([&month["bytes_in"], &month["bytes_out"]], [&json!(1005), &json!(1005)], "{used}");
}

/// What was not heard of is found by the look of the next second.
#[tokio::test]
async fn request_that_no_notification_tells_of_is_found_by_the_next_look() {
    let stage = Stage::set().await;
    let url = stage.node().config().database_url();
    let asking = stage.agent().app.service.fleet().host_id();
    let ask = "INSERT INTO node_requests (id, host_id, asked_by, node_id, kind, state, expires_at) \
               SELECT gen_random_uuid(), host_id, '{asking}', id, 'apply', 'waiting', 9000000000000000 FROM nodes";
    run(&url, &ask.replace("{asking}", &asking.to_string())).await;
    for (number, host) in stage.fleet.hosts.iter().enumerate() {
        host.pass(Duration::ZERO).await;
        host.until_found(async || (host.app.store.waiting_requests().await.unwrap().is_empty()).then_some(())).await;
        let answers = host.app.store.node_answers().await.unwrap();
        assert_eq!(answers.len(), if number == 1 { 2 } else { 0 }, "host {number}");
    }
}

/// A tunnel waits for its node's host, and no session is opened and ended meanwhile.
#[tokio::test]
async fn tunnel_is_resumed_when_the_host_of_its_node_is_back() {
    Box::pin(resume_when_the_host_of_the_node_is_back(false)).await;
}

/// As where the device is started again in the meantime.
#[tokio::test]
async fn tunnel_of_a_device_that_connects_meanwhile_is_resumed_when_the_host_of_its_node_is_back() {
    Box::pin(resume_when_the_host_of_the_node_is_back(true)).await;
}

async fn resume_when_the_host_of_the_node_is_back(reconnects: bool) {
    let stage = Stage::set().await;
    let (tunnel, other) = (stage.running_on(0).await, stage.running_on(1).await);
    let url = stage.node().config().database_url();
    let node = stage.node().app.service.fleet().host_id();
    run(&url, &format!("UPDATE hosts SET lease_until = 1 WHERE id = '{node}'")).await;
    let store = &stage.agent().app.store;
    let open = async || {
        let leases = store.leases_of_device(stage.device.id).await.unwrap();
        leases.into_iter().map(|lease| lease.tunnel_id).collect::<Vec<_>>()
    };
    stage.end_session(tunnel).await;
    stage.pass_without(30, &[0]).await;
    if reconnects {
        stage.cable.lead_to(stage.agent());
        stage.device.until_disconnected().await;
        stage.device.clock.advance(Duration::from_secs(1));
        stage.device.until_connected().await;
    }
    assert_eq!(open().await, [other]);
    // It looks again after a minute. If time passes faster than the hosts answer each other, the next attempt is later.
    let status = async || stage.api().get(&format!("/tunnels/{tunnel}")).await.data()["status"].clone();
    let mut waited = 0;
    while status().await != "running" {
        assert!(waited < 600, "{} after {waited} s", status().await);
        stage.pass_without(10, &[]).await;
        waited += 10;
    }
    assert!(Visitor::from("127.0.1.1", stage.node().public(&stage.api(), tunnel).await).await.is_some());
}

/// The host that starts has the devices at other hosts told, so that none of them waits for its next look.
#[tokio::test]
async fn devices_hear_that_the_host_of_a_node_has_started() {
    let mut stage = Stage::set().await;
    let (tunnel, _other) = (stage.running_on(0).await, stage.running_on(1).await);
    let url = stage.node().config().database_url();
    let node = stage.node().app.service.fleet().host_id();
    run(&url, &format!("UPDATE hosts SET lease_until = 1 WHERE id = '{node}'")).await;
    stage.end_session(tunnel).await;
    stage.pass_without(30, &[0]).await;
    let before = stage.hints().await;
    let node = stage.fleet.hosts.remove(0).restart().await;
    stage.fleet.hosts.insert(0, node);
    stage.until_resumed_by_hint(tunnel, before).await;
}

/// As where that host was silent for a while.
#[tokio::test]
async fn devices_hear_that_the_host_of_a_node_is_heard_of_again() {
    let stage = Stage::set().await;
    let (tunnel, _other) = (stage.running_on(0).await, stage.running_on(1).await);
    stage.pass_without(20, &[0]).await;
    stage.end_session(tunnel).await;
    stage.pass_without(20, &[0]).await;
    let before = stage.hints().await;
    stage.fleet.pass(Duration::from_secs(3)).await;
    stage.until_resumed_by_hint(tunnel, before).await;
}

/// An agent that connects to another host goes on with its leases: nobody who is connected notices.
#[tokio::test]
async fn agent_that_goes_to_another_host_keeps_its_visitors() {
    let stage = Stage::set().await;
    let tunnel = stage.running().await;
    let mut visitor = stage.node().visitor(&stage.api(), tunnel).await;
    for turn in 0..100 {
        // A device may connect so many times a minute.
        stage.fleet.pass(Duration::from_secs(2)).await;
        let host = &stage.fleet.hosts[(turn + 2) % 3];
        stage.cable.lead_to(host);
        stage.device.until_disconnected().await;
        stage.device.clock.advance(Duration::from_secs(1));
        stage.device.until_connected().await;
        assert_eq!(visitor.echo(b"still there").await.unwrap(), b"still there");
        assert!(Visitor::from("127.0.1.1", stage.node().public(&stage.api(), tunnel).await).await.is_some());
    }
    assert_eq!(stage.api().get(&format!("/tunnels/{tunnel}")).await.data()["status"], "running");
}

/// A port that nobody can be told to close is not said to be closed.
#[tokio::test]
async fn stop_fails_while_the_host_of_the_node_is_not_heard_of() {
    let stage = Stage::set().await;
    let tunnel = stage.running().await;
    let public = stage.node().public(&stage.api(), tunnel).await;
    let node = stage.node().app.service.fleet().host_id();
    let url = stage.node().config().database_url();
    run(&url, &format!("UPDATE hosts SET lease_until = lease_until - 15000000 WHERE id = '{node}'")).await;
    let stopped = stage.outcome(tunnel, "stop").await;
    assert_eq!((&stopped["status"], &stopped["error"]["code"]), (&json!("failed"), &json!("node_unavailable")));
    // It goes on, also at the device, which had ended it.
    let visited = stage.agent().until_found(async || Visitor::from("127.0.1.1", public).await);
    assert_eq!(visited.await.echo(b"still there").await.unwrap(), b"still there");
    // Nor that it goes by new rules.
    let (api, firewall) = (stage.api(), format!("/tunnels/{tunnel}/firewall"));
    let replaced = api.put(&firewall, json!({"rules": []})).await;
    let read = api.get(&firewall).await;
    assert_eq!([&replaced.data()["enforced"], &read.data()["enforced"]], [false, false]);
}

/// Either a stop is recorded or the service goes on: an end that the asking host does not take up in time is withdrawn.
#[tokio::test]
async fn end_that_is_not_taken_up_is_withdrawn() {
    let stage = Stage::set().await;
    let tunnel = stage.running().await;
    let public = stage.node().public(&stage.api(), tunnel).await;
    let store = &stage.agent().app.store;
    let leases = store.leases_of_device(stage.device.id).await.unwrap();
    let ended = stage.agent().app.service.nodes().end(&leases).await.unwrap();
    assert!(is_closed(public).await);
    // The host that has asked stands.
    stage.fleet.pass_without(Duration::from_secs(12), &[1]).await;
    stage.node().until_found(async || (!is_closed(public).await).then_some(())).await;
    let ends = ended.elsewhere.clone();
    let taken_up = store.write(None, move |write| Box::pin(async move { write.take_up_ends(&ends).await }));
    assert!(!taken_up.await.unwrap());
    stage.agent().app.service.nodes().release(ended).await;
}

/// As where the node's host is killed just after it has answered: its new process serves what the database shows.
#[tokio::test]
async fn end_that_a_former_process_has_answered_is_withdrawn() {
    let mut stage = Stage::set().await;
    stage.running().await;
    let leases = stage.agent().app.store.leases_of_device(stage.device.id).await.unwrap();
    let ended = stage.agent().app.service.nodes().end(&leases).await.unwrap();
    let node = stage.fleet.hosts.remove(0).restart().await;
    stage.fleet.hosts.insert(0, node);
    let ends = ended.elsewhere.clone();
    let store = &stage.agent().app.store;
    let taken_up = store.write(None, move |write| Box::pin(async move { write.take_up_ends(&ends).await }));
    assert!(!taken_up.await.unwrap());
    stage.agent().app.service.nodes().release(ended).await;
}

/// A node whose host does not run serves nothing. If that host starts before a stop is recorded, the stop is not recorded; if
/// it starts while it is, it waits.
#[tokio::test]
async fn stop_is_recorded_only_as_long_as_the_node_has_no_host() {
    let mut stage = Stage::set().await;
    stage.running().await;
    let (agent, url) = (stage.agent().app.service.clone(), stage.node().config().database_url());
    let store = stage.agent().app.store.clone();
    let leases = store.leases_of_device(stage.device.id).await.unwrap();
    let node = stage.fleet.hosts.remove(0);
    let is_lost = format!(
        "UPDATE hosts SET ended_at = 1, lease_until = 1, authority = 0 WHERE id = '{}'",
        node.app.service.fleet().host_id()
    );
    run(&url, &is_lost).await;
    let ended = agent.nodes().end(&leases).await.unwrap();
    let node = node.restart().await;
    let ends = ended.elsewhere.clone();
    let taken_up = store.write(None, move |write| Box::pin(async move { write.take_up_ends(&ends).await }));
    assert!(!taken_up.await.unwrap());
    agent.nodes().release(ended).await;

    run(&url, &is_lost).await;
    let ended = agent.nodes().end(&leases).await.unwrap();
    let (ends, database) = (ended.elsewhere.clone(), url.clone());
    let (begun, begins) = oneshot::channel();
    let starting = Box::pin(node.stop_to_restart_with(|_| {}).await);
    run(&url, &is_lost).await;
    let taken_up = store.write(None, move |write| {
        Box::pin(async move {
            let taken_up = write.take_up_ends(&ends).await;
            begun.send(()).unwrap();
            until_there(&database, WAITING_FOR_LOCKS).await;
            taken_up
        })
    });
    let restarted = async {
        begins.await.unwrap();
        starting.await
    };
    let (taken_up, _) = within(20, async { tokio::join!(taken_up, restarted) }).await;
    assert!(taken_up.unwrap());
    agent.nodes().release(ended).await;
}

/// It could open the port that is said to be closed. What others ask of it waits until it has its nodes.
#[tokio::test]
async fn host_that_starts_is_waited_for() {
    let mut stage = Stage::set().await;
    let tunnel = stage.running().await;
    let public = stage.node().public(&stage.api(), tunnel).await;
    let leases = stage.agent().app.store.leases_of_device(stage.device.id).await.unwrap();
    let node = stage.fleet.hosts.remove(0);
    let url = node.config().database_url();
    let mut other = PgConnection::connect(&url).await.unwrap();
    // Registering a node waits, and nothing before that.
    sqlx::raw_sql("BEGIN; LOCK TABLE platform_domains IN SHARE MODE").execute(&mut other).await.unwrap();
    let service = stage.fleet.hosts[0].app.service.clone();
    let asked = async {
        until_there(&url, WAITING_FOR_LOCKS).await;
        let end = tokio::spawn(async move {
            let ended = service.nodes().end(&leases).await.unwrap();
            service.nodes().release(ended).await;
        });
        until_there(&url, "SELECT kind AS text FROM node_requests WHERE state = 'waiting'").await;
        sqlx::raw_sql("COMMIT").execute(&mut other).await.unwrap();
        Some(end)
    };
    let (node, end) = tokio::join!(Box::pin(node.restart()), within(20, asked));
    let end = end.unwrap();
    assert!(!end.is_finished());
    stage.fleet.hosts.insert(0, node);
    stage.fleet.pass(Duration::from_secs(1)).await;
    within(20, end).await.unwrap();
    assert!(is_closed(public).await);
}

/// Whoever renews a certificate signs it with the root that people trust.
#[tokio::test]
async fn hosts_share_the_roots_of_the_local_authority() {
    let fleet = TestFleet::start(2).await;
    let mut shown = Vec::new();
    for host in &fleet.hosts {
        let said: Value = serde_json::from_str(&command_at(host, &["ca", "show", "--json"]).await).unwrap();
        let roots = said["roots"].as_array().unwrap().clone();
        shown.push(roots.iter().map(|root| (root["domain"].clone(), root["sha256"].clone())).collect::<Vec<_>>());
        let domain = host.config().node.domain.clone().unwrap();
        let copy = std::fs::read_to_string(host.config().ca_dir().join(&domain).join("root.pem")).unwrap();
        assert!(roots.iter().any(|root| root["domain"] == json!(domain) && root["pem"] == json!(copy)));
    }
    let domains: Vec<_> = shown[0].iter().map(|(domain, _)| domain.as_str().unwrap()).collect();
    assert_eq!(domains, ["h0.tunnel.localhost", "h1.tunnel.localhost", "tunnel.localhost"]);
    assert_eq!(shown[0][..2], shown[1][..2]);
}
