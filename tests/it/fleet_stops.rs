//! Stops of tunnels on several hosts, while something else happens to what is stopped.

use std::time::Duration;

use culvert_domain::session::EndReason;
use culvert_service::sessions;
use culvert_wire::control::{Done, Grant};
use culvert_wire::node::ToHost;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use uuid::Uuid;

use crate::support::api::Api;
use crate::support::database::{WAITING_FOR_LOCKS, run, texts_of, until_there};
use crate::support::fleet::TestFleet;
use crate::support::host::{Person, within};
use crate::support::node::Ended;
use crate::support::wire::Wire;

/// Two hosts, and a device at one of them, of which the test holds the wire. The tunnel is on the node of the first host.
struct Stage {
    fleet: TestFleet,
    ada: Person,
    device: Uuid,
    wire: Wire,
    tunnel: Uuid,
}

impl Stage {
    async fn set(device_at: usize) -> Self {
        let fleet = TestFleet::start(2).await;
        fleet.pass(Duration::from_secs(3)).await;
        let ada = fleet.hosts[0].person("ada").await;
        let (device, wire) = fleet.hosts[device_at].wired(&ada, ada.account_id).await;
        let tunnel = fleet.hosts[0].tunnel_here(&fleet.hosts[0].api(&ada.key), 80).await;
        Self { fleet, ada, device: device.id, wire, tunnel }
    }

    fn api(&self) -> Api {
        self.fleet.hosts[0].api(&self.ada.key)
    }

    async fn start(&mut self) -> Grant {
        let start = json!({"device_id": self.device});
        self.api().post(&format!("/tunnels/{}/actions/start", self.tunnel), start).await.data();
        within(20, self.wire.obey(Done::Start)).await.unwrap()
    }

    /// How an operation has ended.
    async fn outcome(&self, operation: Uuid) -> (Value, Value) {
        let operation = self.fleet.hosts[0].until_ended(&self.api(), operation).await;
        (operation["status"].clone(), operation["error"]["code"].clone())
    }
}

/// The move has begun a session that no node was asked to end.
#[tokio::test]
async fn stop_of_everything_fails_if_a_tunnel_was_moved_meanwhile() {
    let mut stage = Stage::set(0).await;
    let mut node = stage.fleet.hosts[0].played_node(Ended::Withheld).await;
    let Grant { lease_id, tunnel_id, epoch, .. } = stage.start().await;
    let stop = stage.api().post(&format!("/devices/{}/actions/stop-all", stage.device), json!({})).await.id();
    let (api, to) = (stage.api(), json!({"node_id": stage.fleet.hosts[1].node_id()}));
    let obey = stage.wire.obey(Done::StopAll { stopped: vec![tunnel_id] });
    let moves = async {
        node.until(|held| held.ended == [lease_id]).await;
        assert_eq!(api.post(&format!("/tunnels/{tunnel_id}/move"), to).await.status, 202);
        node.send(ToHost::Ended { tunnel_id, session_id: lease_id, epoch }).await;
    };
    within(20, async { tokio::join!(obey, moves) }).await;
    assert_eq!(stage.outcome(stop).await, (json!("failed"), json!("node_unavailable")));
    let leases = stage.fleet.hosts[0].app.store.leases_of_device(stage.device).await.unwrap();
    let nodes: Vec<_> = leases.iter().map(|lease| lease.node_id).collect();
    assert_eq!(nodes, [stage.fleet.hosts[1].node_id()]);
}

/// Its node may serve the tunnel until it has heard of the end.
#[tokio::test]
async fn stop_of_a_session_that_has_ended_otherwise_waits_for_its_node() {
    for (is_heard_of, wanted) in
        [(false, (json!("failed"), json!("node_unavailable"))), (true, (json!("succeeded"), json!(null)))]
    {
        let mut stage = Stage::set(1).await;
        let grant = stage.start().await;
        let stop = stage.api().post(&format!("/tunnels/{}/actions/stop", stage.tunnel), json!({})).await.id();
        let operation = within(20, stage.wire.command()).await.operation_id;
        within(20, stage.wire.begin(operation)).await;
        let node = &stage.fleet.hosts[0];
        if !is_heard_of {
            let silent = "UPDATE hosts SET lease_until = lease_until - 15000000 WHERE id = ";
            run(&node.config().database_url(), &format!("{silent}'{}'", node.app.service.fleet().host_id())).await;
        }
        let store = &stage.fleet.hosts[1].app.store;
        sessions::end_all(store, stage.ada.account_id, vec![grant.lease_id], EndReason::NodeShutdown).await.unwrap();
        stage.wire.finish(operation, Ok(Done::Stop)).await;
        assert_eq!(stage.outcome(stop).await, wanted, "heard of: {is_heard_of}");
    }
}

/// The former process of a node's host has answered, and its commit comes after the new process has started.
#[tokio::test]
async fn answer_whose_commit_is_under_way_at_a_restart_is_withdrawn() {
    let mut fleet = TestFleet::start(2).await;
    let url = fleet.hosts[0].config().database_url();
    let node = fleet.hosts.remove(0);
    let asked = format!(
        "INSERT INTO node_requests (id, host_id, asked_by, node_id, kind, state, expires_at) \
         SELECT gen_random_uuid(), host_id, '{}', id, 'end', 'waiting', 9000000000000000 FROM nodes WHERE id = '{}'",
        fleet.hosts[0].app.service.fleet().host_id(),
        node.node_id()
    );
    run(&url, &asked).await;
    let mut former = PgConnection::connect(&url).await.unwrap();
    let answer = "BEGIN; UPDATE node_requests SET state = 'answered', answer = '{\"Ok\":null}' WHERE state = 'waiting'";
    sqlx::raw_sql(AssertSqlSafe(answer)).execute(&mut former).await.unwrap();
    let commits = async {
        until_there(&url, WAITING_FOR_LOCKS).await;
        sqlx::raw_sql("COMMIT").execute(&mut former).await.unwrap();
    };
    within(20, async { tokio::join!(Box::pin(node.restart()), commits) }).await;
    assert_eq!(texts_of(&url, "SELECT state AS text FROM node_requests").await, ["withdrawn"]);
}
