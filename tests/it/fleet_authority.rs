//! Nodes whose host does not reach the database: how long they serve, and when others may take what they serve.

use std::net::SocketAddr;
use std::time::Duration;

use chrono::TimeDelta;
use culvert::config::NodeReplace;
use culvert_domain::fleet::{Cluster, HostLease};
use culvert_domain::session::SESSION_LEASE;
use culvert_domain::tunnel::TunnelStatus;
use serde_json::json;
use uuid::Uuid;

use crate::support::api::Api;
use crate::support::cable::Cable;
use crate::support::database::run;
use crate::support::device::{Remote, TestDevice};
use crate::support::fleet::TestFleet;
use crate::support::host::Person;
use crate::support::program::{command_at, fails_at};
use crate::support::visitor::{Visitor, echo_service, is_closed};

/// How often agents renew their leases.
const STEP: Duration = Duration::from_secs(10);
/// The shortest time that the setting allows.
const AUTHORITY: Duration = Duration::from_mins(1);

/// The statements count the authority of nodes as the rules do that `fleet_model` explores.
#[tokio::test]
async fn database_counts_the_authority_of_nodes_as_the_rules_do() {
    let fleet = TestFleet::start(2).await;
    let (store, url) = (&fleet.hosts[0].app.store, fleet.hosts[0].config().database_url());
    let (node, now) = (fleet.hosts[1].node_id(), fleet.hosts[0].clock.now());
    let row = HostLease { id: node, until: now, ended: false, drains: false };
    for authority in [60, 61, 70, 600] {
        let boundaries = |around: i64| [around - 1, around, around + 1, 0, 75];
        for (lease, grace) in
            boundaries(-authority).into_iter().flat_map(|l| boundaries(60 - authority).map(|g| (l, g)))
        {
            let at = |seconds| now + TimeDelta::seconds(seconds);
            let row = HostLease { until: at(lease), ..row.clone() };
            let cluster = Cluster { grace_until: at(grace), ..Cluster::default() };
            let (lease_until, grace_until) = (row.until.timestamp_micros(), cluster.grace_until.timestamp_micros());
            let change = format!(
                "UPDATE hosts SET lease_until = {lease_until}, authority = {authority}000000 WHERE id = '{node}'; \
                 UPDATE cluster SET grace_until = {grace_until}"
            );
            run(&url, &change).await;
            let may_serve = !store.nodes_of_lost_hosts().await.unwrap().contains(&node);
            let wanted = cluster.nodes_may_serve(&row, TimeDelta::seconds(authority), now);
            assert_eq!(may_serve, wanted, "authority {authority}, lease {lease}, grace {grace}");
        }
    }
}

/// Three hosts. The first one, its node and a device that is connected to it will be cut off from the rest.
struct Stage {
    fleet: TestFleet,
    ada: Person,
    tunnel: Uuid,
    /// Where the first node serves it.
    public: SocketAddr,
    runs: TestDevice,
    other: TestDevice,
}

impl Stage {
    async fn set(ahead: &[i64; 3], authority: Duration) -> Self {
        let fleet = TestFleet::with_authority(ahead, authority).await;
        fleet.pass(Duration::from_secs(3)).await;
        let ada = fleet.hosts[0].person("ada").await;
        let mut devices = Vec::new();
        for host in &fleet.hosts[..2] {
            devices.push(host.device_over(&host.cable().await, &ada, Remote::Enabled).await);
        }
        let (other, runs) = (devices.pop().unwrap(), devices.pop().unwrap());
        let api = fleet.hosts[0].api(&ada.key);
        let tunnel = fleet.hosts[0].tunnel_here(&api, echo_service().await.port()).await;
        fleet.hosts[0].run_tunnel(&api, &runs, tunnel).await;
        let public = fleet.hosts[0].public(&api, tunnel).await;
        // Everybody is heard of at the same time.
        fleet.pass(Duration::from_secs(3)).await;
        Self { fleet, ada, tunnel, public, runs, other }
    }

    /// What the rest of the world sees.
    fn api(&self) -> Api {
        self.fleet.hosts[1].api(&self.ada.key)
    }

    /// Lets time pass in which these hosts do not reach the database. The devices renew their leases where they are connected,
    /// until the host has nothing any longer.
    async fn pass_without(&self, still: &[usize]) {
        self.fleet.pass_without(STEP, still).await;
        for (host, device) in self.fleet.hosts.iter().zip([&self.runs, &self.other]) {
            device.clock.advance(STEP);
            if host.app.service.fleet().is_node_authority_over() {
                continue;
            }
            let heard = async || {
                let seen = host.app.service.liveness().last_seen_at(device.id);
                (seen == Some(host.clock.now())).then_some(())
            };
            host.until_found(heard).await;
        }
    }

    async fn is_served(&self) -> bool {
        Visitor::from("127.0.1.1", self.public).await.is_some()
    }

    async fn move_to_the_last_node(&self) -> String {
        let node = json!({"node_id": self.fleet.hosts[2].node_id()});
        self.api().post(&format!("/tunnels/{}/move", self.tunnel), node).await.outcome()
    }

    async fn start_on_the_other_device(&self) -> String {
        let start = json!({"device_id": self.other.id, "handoff": true});
        self.api().post(&format!("/tunnels/{}/actions/start", self.tunnel), start).await.outcome()
    }

    async fn node_status(&self) -> String {
        let tunnel = self.api().get(&format!("/tunnels/{}", self.tunnel)).await;
        tunnel.data()["node"]["status"].as_str().unwrap().into()
    }

    /// As the API shows it; read past it, whose requests are counted.
    async fn status(&self) -> String {
        let tunnel = self.fleet.hosts[1].app.store.tunnel(self.ada.account_id, self.tunnel).await.unwrap();
        tunnel.unwrap().status().to_string()
    }
}

/// Nobody is cut while the database is away for less than the authority; then the node ends everything, until the database has
/// said what it is to serve.
#[tokio::test]
async fn node_serves_for_ten_minutes_without_the_database() {
    let stage = Stage::set(&[0; 3], culvert_domain::fleet::AUTHORITY).await;
    let mut visitor = stage.fleet.hosts[0].visitor(&stage.api(), stage.tunnel).await;
    for _ in 0..59 {
        stage.pass_without(&[0, 1, 2]).await;
    }
    assert_eq!(visitor.echo(b"still there").await.unwrap(), b"still there");
    assert!(stage.is_served().await);
    stage.pass_without(&[0, 1, 2]).await;
    assert!(visitor.echo(b"cut").await.is_err());
    assert!(is_closed(stage.public).await);
    // The device holds its lease still, so its tunnel goes on when the device is back.
    stage.pass_without(&[]).await;
    let served = async || {
        // It dials its host and the node again after a while.
        stage.runs.clock.advance(Duration::from_millis(100));
        (stage.is_served().await && stage.status().await == "running").then_some(())
    };
    stage.fleet.hosts[0].until_found(served).await;
}

/// A visitor of the former node is served until nobody could be served anywhere else, whatever the clocks of the hosts say.
#[tokio::test]
async fn tunnel_of_a_silent_node_runs_elsewhere_when_that_node_serves_it_no_longer() {
    let stage = Stage::set(&[0, 60, -60], AUTHORITY).await;
    stage.pass_without(&[0]).await;
    assert_eq!(stage.node_status().await, "online", "its lease lasts");
    stage.pass_without(&[0]).await;
    assert_eq!((stage.status().await, stage.node_status().await), ("degraded".into(), "degraded".into()));
    assert_eq!(stage.start_on_the_other_device().await, "409 node_unavailable");
    // 48 seconds after its last heartbeat the host is dead for the others, and its devices with it.
    for _ in 0..3 {
        stage.pass_without(&[0]).await;
    }
    assert_eq!((stage.status().await, stage.node_status().await), ("stopped".into(), "degraded".into()));
    assert_eq!(stage.move_to_the_last_node().await, "202");
    assert_eq!(stage.start_on_the_other_device().await, "409 operation_in_progress");
    let back = json!({"node_id": stage.fleet.hosts[1].node_id()});
    let moved = stage.api().post(&format!("/tunnels/{}/move", stage.tunnel), back).await;
    assert_eq!(moved.outcome(), "409 operation_in_progress");
    assert!(stage.is_served().await);
    stage.pass_without(&[0]).await;
    assert!(is_closed(stage.public).await, "after 60 seconds");
    for _ in 0..2 {
        let early = stage.start_on_the_other_device().await;
        assert_eq!(early, "409 operation_in_progress", "not before another 15 seconds");
        stage.pass_without(&[0]).await;
    }
    assert_eq!(stage.start_on_the_other_device().await, "202");
    stage.fleet.hosts[1].until_tunnel(&stage.api(), stage.tunnel, "running").await;
    let public = stage.fleet.hosts[1].public(&stage.api(), stage.tunnel).await;
    assert!(Visitor::from("127.0.1.1", public).await.is_some());
}

/// An operator who knows that a machine is off need not wait. If it was not, its node ends everything when it is back.
#[tokio::test]
async fn abandoned_node_is_not_waited_for() {
    let stage = Stage::set(&[0; 3], culvert_domain::fleet::AUTHORITY).await;
    let (store, node) = (&stage.fleet.hosts[1].app.store, stage.fleet.hosts[0].node_id());
    assert!(!store.abandon_node(node).await.unwrap(), "its host is alive");
    for _ in 0..5 {
        stage.pass_without(&[0]).await;
    }
    assert_eq!(stage.move_to_the_last_node().await, "202");
    assert_eq!(stage.start_on_the_other_device().await, "409 operation_in_progress");
    let nodes = store.nodes().await.unwrap();
    let (at, node) = (&stage.fleet.hosts[1], nodes.into_iter().find(|known| known.id == node).unwrap().name);
    let unknown = fails_at(at, &["node", "abandon", "nowhere"]).await;
    assert_eq!(unknown, "culvert: there is no node nowhere; `culvert node list` shows them\n");
    let other = at.node_id().to_string();
    let taken = fails_at(at, &["node", "set", &other, "--name", &node]).await;
    assert_eq!(taken, format!("culvert: --name: another node is called {node}; each name is one node's\n"));
    assert!(command_at(at, &["node", "abandon", &node]).await.contains("use --force"));
    assert_eq!(stage.start_on_the_other_device().await, "409 operation_in_progress");
    assert!(command_at(at, &["node", "abandon", &node, "--force"]).await.contains("is given up"));
    stage.pass_without(&[0]).await;
    assert_eq!(stage.start_on_the_other_device().await, "202");
    stage.fleet.hosts[1].until_tunnel(&stage.api(), stage.tunnel, "running").await;
    assert!(stage.is_served().await, "the operator was wrong");
    // The first heartbeat tells the host that it was ended, the second one lets it begin anew.
    for _ in 0..2 {
        stage.fleet.pass(Duration::from_secs(3)).await;
    }
    stage.fleet.hosts[0].until_found(async || is_closed(stage.public).await.then_some(())).await;
}

/// The host of a tunnel's node is asked whether it serves the tunnel still, and the client does not notice.
#[tokio::test]
async fn move_away_from_another_hosts_node_is_settled_when_it_is_answered() {
    let stage = Stage::set(&[0; 3], AUTHORITY).await;
    for turn in 0..6 {
        let node = json!({"node_id": stage.fleet.hosts[(turn + 1) % 3].node_id()});
        let moved = stage.api().post(&format!("/tunnels/{}/move", stage.tunnel), node).await;
        assert_eq!(moved.outcome(), "202", "turn {turn}");
        // The device gets its new lease with a heartbeat. If time passes faster than the hosts answer each other, with a later one.
        for steps in 0.. {
            assert!(steps < 60, "turn {turn}: {}", stage.status().await);
            stage.pass_without(&[]).await;
            if stage.status().await == "running" {
                break;
            }
        }
    }
}

/// A port that may be open is not said to be closed, and one that cannot be open any longer is.
#[tokio::test]
async fn tunnel_of_a_silent_node_can_be_stopped_when_its_authority_is_over() {
    let (fleet, cables) = TestFleet::reachable_with_authority(2, AUTHORITY).await;
    fleet.pass(Duration::from_secs(3)).await;
    let ada = fleet.hosts[0].person("ada").await;
    let device = fleet.hosts[1].device_over(&cables[1], &ada, Remote::Enabled).await;
    let api = fleet.hosts[1].api(&ada.key);
    let mut tunnels = Vec::new();
    for _ in 0..2 {
        let tunnel = fleet.hosts[0].tunnel_here(&api, echo_service().await.port()).await;
        fleet.hosts[1].run_tunnel(&api, &device, tunnel).await;
        tunnels.push(tunnel);
    }
    let mut outcomes = Vec::new();
    for seconds in 1..=8 {
        fleet.pass_without(STEP, &[0]).await;
        device.clock.advance(STEP);
        let whole = Some(SESSION_LEASE.as_secs());
        device.until(async || device.status().await.lease_seconds == whole).await;
        if seconds == 5 || seconds == 8 {
            let stop = format!("/tunnels/{}/actions/stop", tunnels.pop().unwrap());
            let operation = api.post(&stop, json!({})).await.id();
            let ended = fleet.hosts[1].until_ended(&api, operation).await;
            outcomes.push((ended["status"].clone(), ended["error"]["code"].clone()));
        }
    }
    assert_eq!(outcomes, [(json!("failed"), json!("node_unavailable")), (json!("succeeded"), json!(null))]);
}

/// With `node_replace = "any"`, what a lost node served runs elsewhere by itself, and not before that node has ended it.
#[tokio::test]
async fn tunnels_of_a_lost_node_are_moved_where_the_operator_wants_that() {
    let mut fleet = TestFleet::with_authority(&[], AUTHORITY).await;
    let mut cables = Vec::new();
    for _ in 0..3 {
        cables.push(fleet.add_reachable_with(|config| config.node_replace = NodeReplace::Any).await);
    }
    fleet.pass(Duration::from_secs(3)).await;
    // One that was stopped in order may be back at once.
    let stopping = fleet.hosts.pop().unwrap();
    let ada = stopping.person("ada").await;
    let waits = stopping.tunnel_here(&stopping.api(&ada.key), 9).await;
    let stopped_node = stopping.node_id();
    stopping.stop().await;
    let [lost, other] = &fleet.hosts[..] else { panic!("two hosts") };
    let device = other.device_over(&cables[1], &ada, Remote::Enabled).await;
    let api = other.api(&ada.key);
    let (runs, stopped) = (lost.tunnel_here(&api, echo_service().await.port()).await, lost.tunnel_here(&api, 9).await);
    other.run_tunnel(&api, &device, runs).await;
    let former = lost.public(&api, runs).await;
    let placed = async |tunnel: Uuid| {
        let tunnel = other.app.store.tunnel(ada.account_id, tunnel).await.unwrap().unwrap();
        (tunnel.node.id == other.node_id(), tunnel.status())
    };
    let mut waited = 0;
    while !other.app.store.nodes_of_lost_hosts().await.unwrap().contains(&lost.node_id()) {
        assert!(waited < 180, "after {waited} s: {:?}, {:?}", placed(runs).await, placed(stopped).await);
        device.clock.advance(STEP);
        let whole = Some(SESSION_LEASE.as_secs());
        device.until(async || device.status().await.lease_seconds == whole).await;
        fleet.pass_without(STEP, &[0]).await;
        waited += 10;
        let is_moved = placed(runs).await.0 || placed(stopped).await.0;
        assert!(!is_moved || is_closed(former).await, "moved after {waited} s, while it was served");
    }
    assert!(is_closed(former).await, "to be moved after {waited} s, while it is served");
    // Tunnels are moved in the background, and the device has 15 seconds to connect to the new node: no time passes meanwhile.
    other.pass(Duration::ZERO).await;
    let wanted = [(true, TunnelStatus::Running), (true, TunnelStatus::Stopped)];
    let arrived = async || {
        let seen = [placed(runs).await, placed(stopped).await];
        if seen == wanted { Ok(()) } else { Err(seen) }
    };
    other.until_seen(arrived).await;
    assert!(Visitor::from("127.0.1.1", other.public(&api, runs).await).await.is_some());
    let waits = other.app.store.tunnel(ada.account_id, waits).await.unwrap().unwrap();
    assert_eq!(waits.node.id, stopped_node);
}

/// An agent does not stay with a host that is cut off from the database, and nobody who visits its tunnel notices.
#[tokio::test]
async fn agent_leaves_a_host_that_is_cut_off() {
    let (fleet, cables) = TestFleet::reachable(3).await;
    fleet.pass(Duration::from_secs(3)).await;
    let ada = fleet.hosts[0].person("ada").await;
    let device = fleet.hosts[0].device_over(&cables[0], &ada, Remote::Enabled).await;
    let api = fleet.hosts[1].api(&ada.key);
    let tunnel = fleet.hosts[0].tunnel_here(&api, echo_service().await.port()).await;
    fleet.hosts[0].run_tunnel(&api, &device, tunnel).await;
    let mut visitor = fleet.hosts[0].visitor(&api, tunnel).await;
    let (server, cut_off) = (device.status().await.server, device.clock.moment());
    // The others do not wait for an answer of its host any longer.
    fleet.pass_without(Duration::from_secs(15), &[0]).await;
    device.clock.advance(Duration::from_secs(15));
    let dials = || cables.iter().map(Cable::dials).sum::<u32>();
    let (first, mut looks) = (dials(), 0);
    let leaves = async || {
        looks += 1;
        // While it connects, which takes as long as it takes, its clock goes slowly.
        let waits = dials() == first || looks % 50 == 0;
        device.clock.advance(Duration::from_millis(if waits { 20 } else { 0 }));
        device.status().await.server != server
    };
    device.until(leaves).await;
    let took = device.clock.moment().since(cut_off);
    assert!(took < Duration::from_secs(40), "{took:?}");
    assert_eq!(visitor.echo(b"still there").await.unwrap(), b"still there");
    for _ in 0..8 {
        fleet.pass_without(STEP, &[0]).await;
        device.clock.advance(STEP);
        device.until(async || device.status().await.lease_seconds == Some(SESSION_LEASE.as_secs())).await;
    }
    assert_eq!(visitor.echo(b"still there").await.unwrap(), b"still there");
    let tunnel = api.get(&format!("/tunnels/{tunnel}")).await;
    assert_eq!(tunnel.data()["status"], "degraded", "its node's host is silent");
    assert_eq!(api.get(&format!("/devices/{}", device.id)).await.data()["online"], true);
}
