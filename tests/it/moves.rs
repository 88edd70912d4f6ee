//! Tunnels that are placed on another node: two of them in one host, each at an address of its own.

use std::net::SocketAddr;
use std::time::Duration;

use culvert::config::Listen;
use culvert_domain::node::{Node, NodeStatus};
use culvert_domain::port::PortRange;
use culvert_test_macros::both_engines;
use culvert_wire::control::{Done, ToAgent, ToHost};
use insta::{allow_duplicates, assert_snapshot};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::api::{Answer, Api};
use crate::support::device::{Remote, TestDevice};
use crate::support::host::{Engine, Person, TestHost, own_address, second_node};
use crate::support::visitor::{Visitor, echo_service, is_closed, named_service, reached_at, visit};

/// A host with two nodes: one in the region `north`, one in `south`.
struct Stage {
    host: TestHost,
    ada: Person,
    api: Api,
    north: Uuid,
    south: Uuid,
}

impl Stage {
    async fn set(engine: Engine) -> Self {
        let range = PortRange { first: 20_000, last: 29_999 };
        Self::with_ports(engine, range, range).await
    }

    async fn with_ports(engine: Engine, north: PortRange, south: PortRange) -> Self {
        let address = own_address();
        let host = TestHost::with(engine, |config| {
            let mut second = second_node(config, address, "south.localhost");
            second.http_listen = Listen::At(SocketAddr::new(address, 0));
            // The same port for visitors of both, so that a move does not change it.
            (config.node.https_port, second.https_port) = (Some(443), Some(443));
            (config.node.ports, second.ports) = (north, south);
            config.extra_node.push(second);
        })
        .await;
        let ada = host.person("ada").await;
        let api = host.api(&ada.key);
        let nodes = host.app.store.nodes().await.unwrap();
        let (second, first): (Vec<_>, Vec<_>) = nodes.iter().partition(|node| node.hostname == address.to_string());
        let stage = Self { host, ada, api, north: first[0].id, south: second[0].id };
        stage.set_node(stage.north, |node| node.region = "north".into()).await;
        stage.set_node(stage.south, |node| node.region = "south".into()).await;
        stage
    }

    /// What the operator's command line does.
    async fn set_node(&self, id: Uuid, change: impl FnOnce(&mut Node)) {
        let nodes = self.host.app.store.nodes().await.unwrap();
        let mut node = nodes.into_iter().find(|node| node.id == id).unwrap();
        change(&mut node);
        let write =
            self.host.app.store.write(None, move |write| Box::pin(async move { write.update_node(&node).await }));
        write.await.unwrap();
    }

    /// A new tunnel in a region.
    async fn tunnel(&self, region: &str, mut tunnel: Value) -> Uuid {
        tunnel["region"] = json!(region);
        let created = self.api.post("/tunnels", tunnel).await;
        assert_eq!(created.data()["node"]["region"], region);
        created.id()
    }

    async fn device(&self) -> TestDevice {
        self.host.device(&self.ada, self.ada.account_id, Remote::Disabled).await
    }

    async fn read(&self, tunnel: Uuid) -> Value {
        self.api.get(&format!("/tunnels/{tunnel}")).await.data().clone()
    }

    async fn sessions(&self, tunnel: Uuid) -> Value {
        self.api.get(&format!("/tunnels/{tunnel}/sessions")).await.data().clone()
    }

    async fn ask(&self, tunnel: Uuid, node: impl serde::Serialize) -> Answer {
        self.api.post(&format!("/tunnels/{tunnel}/move"), json!({"node_id": node})).await
    }

    /// Moves a tunnel that can be moved.
    async fn go(&self, tunnel: Uuid, node: Uuid) {
        let moving = self.ask(tunnel, node).await;
        let expected = json!({"tunnel_id": tunnel, "node_id": node, "status": "moving"});
        assert_eq!((moving.status, moving.data()), (202, &expected));
    }

    async fn is_running(&self, tunnel: Uuid) {
        self.host.until_tunnel(&self.api, tunnel, "running").await;
    }
}

async fn start(stage: &Stage, device: &TestDevice, tunnel: Uuid) {
    device.start_tunnel(&tunnel.to_string()).await.unwrap();
    stage.is_running(tunnel).await;
}

fn only(port: u16) -> PortRange {
    PortRange { first: port, last: port }
}

/// covers: GET /nodes
#[both_engines]
async fn node_list_returns_every_node_with_its_attributes(engine: Engine) {
    let stage = Stage::set(engine).await;
    stage
        .set_node(stage.south, |node| {
            (node.country, node.region_flag, node.status, node.pro_only) =
                ("AR".into(), Some("🇦🇷".into()), NodeStatus::Maintenance, true);
        })
        .await;
    let nodes = stage.api.get("/nodes").await;
    let ids: Vec<_> = nodes.data().as_array().unwrap().iter().map(|node| node["id"].clone()).collect();
    assert_eq!(ids, [json!(stage.north), json!(stage.south)]);
    allow_duplicates! { assert_snapshot!(nodes, @r#"
    200
    {
      "data": [
        {
          "country": "ZZ",
          "id": "[uuid]",
          "name": "[node]",
          "pro_only": false,
          "region": "north",
          "region_flag": null,
          "status": "online"
        },
        {
          "country": "AR",
          "id": "[uuid]",
          "name": "[node]",
          "pro_only": true,
          "region": "south",
          "region_flag": "🇦🇷",
          "status": "maintenance"
        }
      ],
      "meta": {
        "request_id": "[uuid]"
      }
    }
    "#) }
}

/// covers: POST /tunnels/{tunnel_id}/move
#[both_engines]
async fn moving_stopped_tunnel_changes_its_node(engine: Engine) {
    let stage = Stage::set(engine).await;
    let tunnel = stage.tunnel("north", json!({"local_port": named_service("service").await.port()})).await;
    let before = stage.read(tunnel).await;
    stage.host.clock.advance(Duration::from_secs(1));
    let moving = stage.ask(tunnel, stage.south).await;
    allow_duplicates! { assert_snapshot!(moving, @r#"
    202
    {
      "data": {
        "node_id": "[uuid]",
        "status": "moving",
        "tunnel_id": "[uuid]"
      },
      "meta": {
        "request_id": "[uuid]"
      }
    }
    "#) }
    let after = stage.read(tunnel).await;
    assert_eq!(
        (&after["status"], &after["node"]["id"], &after["node"]["region"]),
        (&json!("stopped"), &json!(stage.south), &json!("south"))
    );
    assert_eq!(after["remote_port"], before["remote_port"], "it is free there");
    assert_ne!(after["public_address"]["hostname"], before["public_address"]["hostname"]);
    assert_ne!(after["updated_at"], before["updated_at"]);
    assert_eq!(stage.sessions(tunnel).await, json!([]));
    let device = stage.device().await;
    start(&stage, &device, tunnel).await;
    assert_eq!(stage.sessions(tunnel).await[0]["node_id"], json!(stage.south));
    assert_eq!(visit(&stage.host, &stage.api, tunnel, b"").await.unwrap(), b"service");
    assert!(is_closed(reached_at(&before)).await);
}

/// It goes on by itself, with all that belongs to it, and with nothing that its device had not
/// agreed to.
///
/// covers: POST /tunnels/{tunnel_id}/move
#[both_engines]
async fn running_tunnel_resumes_on_new_node_after_move(engine: Engine) {
    let stage = Stage::set(engine).await;
    let (agreed, later) = (named_service("agreed").await, named_service("later").await);
    let tunnel = stage
        .tunnel(
            "north",
            json!({"local_port": agreed.port(), "extra_ports": [{"local_port": echo_service().await.port()}]}),
        )
        .await;
    let path = format!("/tunnels/{tunnel}");
    let device = stage.device().await;
    start(&stage, &device, tunnel).await;
    let before = stage.read(tunnel).await;
    stage
        .api
        .put(&format!("{path}/firewall"), json!({"rules": [{"rule_type": "blacklist", "ip_address": "127.1.0.1"}]}))
        .await
        .data();
    stage.api.patch(&path, json!({"local_port": later.port()})).await.data();
    stage.api.post(&format!("{path}/extra-ports"), json!({"local_port": later.port()})).await.data();
    let inside = Visitor::from("127.2.0.1", reached_at(&before["extra_ports"][0])).await.unwrap();

    stage.host.clock.advance(Duration::from_secs(1));
    stage.go(tunnel, stage.south).await;
    assert!(
        is_closed(reached_at(&before)).await && is_closed(reached_at(&before["extra_ports"][0])).await,
        "from the answer on"
    );
    assert!(inside.was_reset().await);
    stage.is_running(tunnel).await;
    let after = stage.read(tunnel).await;
    assert_eq!((&after["node"]["id"], &after["remote_port"]), (&json!(stage.south), &before["remote_port"]));
    assert_eq!(after["runtime"], json!({"running": true, "device_id": device.id}));
    assert_eq!(
        visit(&stage.host, &stage.api, tunnel, b"").await.unwrap(),
        b"agreed",
        "where nobody at the device has led it elsewhere"
    );
    let extra = reached_at(&after["extra_ports"][0]);
    assert_eq!((extra.ip(), extra.port()), (reached_at(&after).ip(), reached_at(&before["extra_ports"][0]).port()));
    assert!(Visitor::from("127.2.0.1", extra).await.is_some());
    assert!(Visitor::from("127.1.0.1", extra).await.is_none(), "the rules came along");
    assert!(is_closed(reached_at(&after["extra_ports"][1])).await, "nobody at the device knows of it");
    assert_eq!(stage.api.get("/operations").await.data(), &json!([]));
    let sessions = stage.sessions(tunnel).await;
    let said = |session: &Value| {
        json!([session["node_id"], session["device_id"], session["end_reason"], session["duration_seconds"]])
    };
    assert_eq!(
        sessions.as_array().unwrap().iter().map(said).collect::<Vec<_>>(),
        [json!([stage.south, device.id, null, 0]), json!([stage.north, device.id, "tunnel_moved", 1]),]
    );

    device.stop_tunnel(&tunnel.to_string()).await.unwrap();
    stage.host.until_tunnel(&stage.api, tunnel, "stopped").await;
    start(&stage, &device, tunnel).await;
    assert_eq!(visit(&stage.host, &stage.api, tunnel, b"").await.unwrap(), b"later");
    // And back, where it was.
    stage.go(tunnel, stage.north).await;
    stage.is_running(tunnel).await;
    assert_eq!(reached_at(&stage.read(tunnel).await), reached_at(&before));
    assert_eq!(visit(&stage.host, &stage.api, tunnel, b"").await.unwrap(), b"later");
}

/// Until its agent stands ready at the new node, it is moving.
#[both_engines]
async fn moved_tunnel_status_stays_moving_until_agent_serves(engine: Engine) {
    let stage = Stage::set(engine).await;
    let tunnel = stage.tunnel("north", json!({"local_port": 80})).await;
    let (device, mut wire) = stage.host.wired(&stage.ada, stage.ada.account_id).await;
    stage.api.post(&format!("/tunnels/{tunnel}/actions/start"), json!({"device_id": device.id})).await.id();
    let old = wire.obey(Done::Start).await.unwrap();
    stage.go(tunnel, stage.south).await;
    let moving = stage.read(tunnel).await;
    assert_eq!(
        (&moving["status"], &moving["runtime"], &moving["current_device"]),
        (&json!("moving"), &json!({"running": false, "device_id": null}), &Value::Null)
    );
    let reason = wire
        .until(|frame| match frame {
            ToAgent::Revoke { lease_id, reason } if lease_id == old.lease_id => Some(reason),
            _ => None,
        })
        .await;
    assert_eq!(reason, "tunnel_moved");
    let new = wire
        .until(|frame| match frame {
            ToAgent::Resume { grant } => Some(grant),
            _ => None,
        })
        .await;
    assert_eq!((new.tunnel_id, new.epoch, &new.target), (tunnel, old.epoch + 1, &old.target));
    assert_ne!((&new.node, &new.public_address), (&old.node, &old.public_address));
    assert!(wire.attach(&old).await.is_none(), "the old node takes it no longer");
    assert!(wire.attach(&new).await.is_some());
    assert_eq!(stage.read(tunnel).await["status"], "moving");

    // On its way, it can be sent on.
    stage.go(tunnel, stage.north).await;
    assert_eq!(stage.read(tunnel).await["status"], "moving");
    assert!(wire.attach(&new).await.is_none());
    let back = wire
        .until(|frame| match frame {
            ToAgent::Resume { grant } => Some(grant),
            _ => None,
        })
        .await;
    assert_eq!(back.node, old.node);
    wire.send(ToHost::Serving { lease_id: back.lease_id }).await;
    stage.is_running(tunnel).await;
    let service = named_service("moved").await;
    let (said, ()) = tokio::join!(visit(&stage.host, &stage.api, tunnel, b""), wire.serve(&back, service));
    assert_eq!(said.unwrap(), b"moved");
    let reasons: Vec<_> =
        stage.sessions(tunnel).await.as_array().unwrap().iter().map(|session| session["end_reason"].clone()).collect();
    assert_eq!(reasons, [Value::Null, json!("tunnel_moved"), json!("tunnel_moved")]);
}

/// A device that never comes to the new node leaves the tunnel stopped there.
#[both_engines]
async fn moving_tunnel_stops_after_device_stays_disconnected(engine: Engine) {
    let stage = Stage::set(engine).await;
    let tunnel = stage.tunnel("north", json!({"local_port": 80})).await;
    let (device, mut wire) = stage.host.wired(&stage.ada, stage.ada.account_id).await;
    stage.api.post(&format!("/tunnels/{tunnel}/actions/start"), json!({"device_id": device.id})).await.id();
    wire.obey(Done::Start).await.unwrap();
    stage.go(tunnel, stage.south).await;
    wire.hang_up().await;
    stage.host.pass(Duration::from_secs(29)).await;
    assert_eq!(stage.read(tunnel).await["status"], "moving");
    stage.host.pass(Duration::from_secs(1)).await;
    let after = stage.read(tunnel).await;
    assert_eq!((&after["status"], &after["node"]["id"]), (&json!("stopped"), &json!(stage.south)));
    assert!(is_closed(reached_at(&after)).await);
    assert_eq!(stage.sessions(tunnel).await[0]["end_reason"], "device_disconnected");
}

/// A device that was away meanwhile finds its tunnel at the new node.
#[both_engines]
async fn reconnecting_device_serves_moved_tunnel_on_new_node(engine: Engine) {
    let stage = Stage::set(engine).await;
    let cable = stage.host.cable().await;
    let device = stage.host.device_over(&cable, &stage.ada, Remote::Disabled).await;
    let tunnel = stage.tunnel("north", json!({"local_port": echo_service().await.port()})).await;
    start(&stage, &device, tunnel).await;
    let former = stage.host.connection_epoch(device.id).await;
    let (old, inside) = (reached_at(&stage.read(tunnel).await), stage.host.visitor(&stage.api, tunnel).await);
    cable.cut();
    stage.go(tunnel, stage.south).await;
    assert!(inside.was_reset().await);
    assert!(is_closed(old).await);
    cable.mend();
    stage.host.until_reconnected(device.id, former).await;
    stage.is_running(tunnel).await;
    assert_eq!(visit(&stage.host, &stage.api, tunnel, b"here").await.unwrap(), b"here");
    assert_eq!(stage.sessions(tunnel).await.as_array().unwrap().len(), 2);

    // And when it was away for longer than its lease.
    cable.cut();
    stage.go(tunnel, stage.north).await;
    device.clock.advance(Duration::from_secs(30));
    stage.host.pass(Duration::from_secs(30)).await;
    assert_eq!(stage.read(tunnel).await["status"], "stopped");
    cable.mend();
    stage.is_running(tunnel).await;
    assert_eq!(reached_at(&stage.read(tunnel).await), old);
    assert_eq!(visit(&stage.host, &stage.api, tunnel, b"here").await.unwrap(), b"here");
}

/// A number that is taken at the new node, or is not among its numbers, is exchanged; where there
/// is none left, all stays as it is.
#[both_engines]
async fn move_replaces_unavailable_port_or_fails_if_none_free(engine: Engine) {
    let stage = Stage::with_ports(engine, only(20_001), PortRange { first: 20_000, last: 20_001 }).await;
    let device = stage.device().await;
    let tunnel = stage.tunnel("north", json!({"local_port": echo_service().await.port()})).await;
    let others = [
        stage.tunnel("south", json!({"local_port": 80})).await,
        stage.tunnel("south", json!({"local_port": 80})).await,
    ];
    start(&stage, &device, tunnel).await;
    let mut inside = stage.host.visitor(&stage.api, tunnel).await;
    let before = stage.read(tunnel).await;
    assert_eq!(stage.ask(tunnel, stage.south).await.outcome(), "409 no_port_available");
    assert_eq!(stage.read(tunnel).await, before);
    assert_eq!(inside.echo(b"still here").await.unwrap(), b"still here");

    let mut taken = Vec::new();
    for other in others {
        taken.push((stage.read(other).await["remote_port"].clone(), other));
    }
    let (_, lower) = taken.iter().find(|(port, _)| *port == 20_000).unwrap();
    stage.api.delete(&format!("/tunnels/{lower}")).await.data();
    stage.go(tunnel, stage.south).await;
    stage.is_running(tunnel).await;
    assert_eq!(stage.read(tunnel).await["remote_port"], 20_000, "its own is another's there");
    assert_eq!(visit(&stage.host, &stage.api, tunnel, b"here").await.unwrap(), b"here");
    stage.go(tunnel, stage.north).await;
    stage.is_running(tunnel).await;
    assert_eq!(stage.read(tunnel).await["remote_port"], 20_001, "its own is none of the node's");
    assert_eq!(visit(&stage.host, &stage.api, tunnel, b"here").await.unwrap(), b"here");
}

/// What it leaves behind others can have, at once; so with what it has where it ends.
#[both_engines]
async fn moved_tunnel_releases_port_on_previous_node(engine: Engine) {
    let stage = Stage::with_ports(engine, only(20_001), only(20_001)).await;
    let device = stage.device().await;
    let service = echo_service().await.port();
    let moved = stage.tunnel("north", json!({"local_port": service})).await;
    start(&stage, &device, moved).await;
    stage.go(moved, stage.south).await;
    let heir = stage.tunnel("north", json!({"local_port": service})).await;
    start(&stage, &device, heir).await;
    stage.is_running(moved).await;
    assert_eq!(stage.ask(heir, stage.south).await.outcome(), "409 no_port_available");
    stage.api.delete(&format!("/tunnels/{moved}")).await.data();
    let second = stage.tunnel("south", json!({"local_port": service})).await;
    start(&stage, &device, second).await;
    for tunnel in [heir, second] {
        assert_eq!(visit(&stage.host, &stage.api, tunnel, b"here").await.unwrap(), b"here");
    }
    assert_eq!(stage.api.post("/tunnels", json!({"local_port": 80})).await.outcome(), "409 no_port_available");
}

/// Numbers on both transports stay one number, and names stay what they are.
#[both_engines]
async fn move_keeps_ports_and_subdomains_of_non_tcp_tunnels(engine: Engine) {
    let stage = Stage::set(engine).await;
    for protocol in ["udp", "both", "http"] {
        let tunnel = stage
            .tunnel(
                "north",
                json!({
                    "local_port": 80, "protocol": protocol, "subdomain": format!("my-{protocol}"),
                    "extra_ports": [{"local_port": 81}, {"local_port": 82, "protocol": "both"}],
                }),
            )
            .await;
        let before = stage.read(tunnel).await;
        stage.go(tunnel, stage.south).await;
        let mut after = stage.read(tunnel).await;
        assert_eq!(after["node"]["id"], json!(stage.south));
        (after["node"], after["updated_at"]) = (before["node"].clone(), before["updated_at"].clone());
        for record in ["", "/extra_ports/0", "/extra_ports/1"] {
            let address = format!("{record}/public_address");
            let hostname = |tunnel: &Value| {
                let name = tunnel.pointer(&address).unwrap()["hostname"].as_str().unwrap().to_owned();
                // The name of an http tunnel is below the domain of its node.
                if protocol == "http" { name.split('.').next().unwrap().to_owned() } else { name }
            };
            assert_eq!(hostname(&after), hostname(&before), "{protocol}{record}");
            *after.pointer_mut(&address).unwrap() = before.pointer(&address).unwrap().clone();
        }
        assert_eq!(after, before, "{protocol}");
        // The next tunnel may get its ports in the north, and wants them in the south.
        assert_eq!(stage.api.delete(&format!("/tunnels/{tunnel}")).await.status, 200);
    }
}

/// covers: node_unavailable
/// covers: already_on_node
#[both_engines]
async fn disallowed_move_is_refused_and_keeps_placement(engine: Engine) {
    let stage = Stage::set(engine).await;
    let bob = stage.host.person("bob").await;
    let tunnel = stage.tunnel("north", json!({"local_port": 80, "pro_network": false})).await;
    let before = stage.read(tunnel).await;
    assert_eq!(stage.ask(tunnel, stage.north).await.outcome(), "409 already_on_node");
    for status in [NodeStatus::Maintenance, NodeStatus::Degraded, NodeStatus::Offline] {
        stage.set_node(stage.south, |node| node.status = status).await;
        assert_eq!(stage.ask(tunnel, stage.south).await.outcome(), "409 node_unavailable", "{status}");
    }
    stage.set_node(stage.south, |node| (node.status, node.pro_only) = (NodeStatus::Online, true)).await;
    assert_eq!(stage.ask(tunnel, stage.south).await.outcome(), "409 node_unavailable", "it is for the premium network");
    stage.set_node(stage.south, |node| node.pro_only = false).await;
    for none in
        [json!(stage.host.clock.id()), json!(tunnel), json!("south"), json!(null), json!(7), json!([stage.south])]
    {
        let refused = stage.ask(tunnel, &none).await;
        assert_eq!(
            (refused.outcome().as_str(), refused.fields()),
            ("422 validation_failed", vec!["node_id".to_owned()]),
            "{none}"
        );
    }
    assert_eq!(stage.api.post(&format!("/tunnels/{tunnel}/move"), json!({})).await.fields(), ["node_id"]);
    let foreign =
        stage.host.api(&bob.key).post(&format!("/tunnels/{tunnel}/move"), json!({"node_id": stage.south})).await;
    assert_eq!(foreign.outcome(), "404 not_found");

    let (device, mut wire) = stage.host.wired(&stage.ada, stage.ada.account_id).await;
    stage.api.post(&format!("/tunnels/{tunnel}/actions/start"), json!({"device_id": device.id})).await.id();
    assert_eq!(stage.ask(tunnel, stage.south).await.outcome(), "409 operation_in_progress");
    wire.obey(Done::Start).await.unwrap();
    stage.api.post(&format!("/tunnels/{tunnel}/actions/stop"), json!({})).await.id();
    assert_eq!(stage.ask(tunnel, stage.south).await.outcome(), "409 operation_in_progress");
    wire.obey(Done::Stop).await;
    let after = stage.read(tunnel).await;
    assert_eq!(
        (&after["node"], &after["public_address"], &after["status"]),
        (&before["node"], &before["public_address"], &json!("stopped"))
    );
    stage.go(tunnel, stage.south).await;
}
