//! A host that is to be stopped: the others take its work, and nobody notices.

use std::time::Duration;

use culvert_wire::control::ToAgent;
use reqwest::Client;
use reqwest::header::CONNECTION;
use serde_json::json;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::api::Api;
use crate::support::fleet::{TestFleet, readiness};
use crate::support::host::{Engine, within};
use crate::support::postgres::empty_database;
use crate::support::program::{Place, Program, fails};
use crate::support::proxies::Proxy;
use crate::support::visitor::{Visitor, echo_service};

const BEAT: Duration = Duration::from_secs(3);

#[tokio::test]
async fn draining_host_gives_its_work_to_others() {
    let (fleet, _cables) = TestFleet::reachable(2).await;
    fleet.pass(BEAT).await;
    let [first, second] = &fleet.hosts[..] else { panic!("two hosts") };
    let ada = first.person("ada").await;
    let (api, other) = (first.api(&ada.key), second.api(&ada.key));
    assert!(first.app.service.fleet().leads());
    let mut wired = Vec::new();
    for _ in 0..25 {
        wired.push(first.wired(&ada, ada.account_id).await);
    }
    assert_eq!((first.app.control.agents.count(), readiness(first).await), (25, 200));

    let host_id = first.app.service.fleet().host_id();
    assert!(second.app.store.drain_host(host_id, true).await.unwrap());
    fleet.pass(BEAT).await;
    assert_eq!((readiness(first).await, readiness(second).await), (503, 200));
    let agents = || first.app.control.agents.count();
    first.until_found(async || (agents() == 5).then_some(())).await;
    first.clock.advance(Duration::from_secs(1));
    first.until_found(async || (agents() == 0).then_some(())).await;
    let (device, wire) = &mut wired[0];
    let goodbye = ToAgent::Goodbye { reason: "the host is about to be stopped".into(), reconnect_after_ms: 1000 };
    assert_eq!(wire.next().await, Some(goodbye));
    let ToAgent::Goodbye { reason, reconnect_after_ms } = first.connect(device, |_| {}).await.err().unwrap() else {
        panic!("it is let in")
    };
    assert_eq!((&*reason, reconnect_after_ms), ("the host is about to be stopped", 3000));
    second.connect(device, |_| {}).await.unwrap();

    // It answers whoever asks nevertheless, and has clients come by another connection.
    let (answer, from_other) = (api.get("/tunnels").await, other.get("/tunnels").await);
    assert_eq!((answer.status, answer.header(CONNECTION.as_str())), (200, Some("close")));
    assert_eq!((from_other.status, from_other.header(CONNECTION.as_str())), (200, None));
    for port in 3000..3003 {
        let tunnel = api.post("/tunnels", json!({"local_port": port})).await;
        assert_eq!(tunnel.data()["node"]["id"], json!(second.node_id()));
    }
    assert!(!first.app.service.fleet().leads());
    assert!(second.app.service.fleet().leads());

    second.app.store.drain_host(host_id, false).await.unwrap();
    fleet.pass(BEAT).await;
    assert_eq!(readiness(first).await, 200);
    first.connect(device, |_| {}).await.unwrap();
}

#[tokio::test]
async fn host_that_drains_alone_goes_on() {
    let mut fleet = TestFleet::start(2).await;
    let host_id = fleet.hosts[0].app.service.fleet().host_id();
    fleet.hosts[0].app.store.drain_host(host_id, true).await.unwrap();
    fleet.pass(BEAT).await;
    assert_eq!(readiness(&fleet.hosts[0]).await, 503);
    fleet.hosts.pop().unwrap().stop().await;
    fleet.pass(BEAT).await;
    assert_eq!(readiness(&fleet.hosts[0]).await, 200);
    assert!(fleet.hosts[0].app.service.fleet().leads());
    let api = fleet.hosts[0].api(&fleet.hosts[0].person("ada").await.key);
    assert_eq!(api.post("/tunnels", json!({"local_port": 80})).await.status, 201);
}

#[tokio::test]
async fn host_that_cannot_be_drained_is_named() {
    let place = Place::new(Engine::Postgres).await;
    let host = place.serve().await;
    let id = place.json("culvert host list").await["data"][0]["id"].as_str().unwrap().to_owned();
    let alone = fails(&place, &format!("culvert host drain {id}")).await;
    let unknown = fails(&place, "culvert host drain nowhere").await;
    // A host that is alone has nobody to wait for.
    let stopped = within(9, host.terminate()).await;
    let ended = fails(&place, &format!("culvert host drain {id} --undo")).await;
    insta::assert_snapshot!([alone, unknown, ended].join("\n").replace(&id, "[id]"), @r"
    1: culvert: no other host is there to take the work of [id]; stop it instead
    1: culvert: there is no host nowhere; `culvert host list` shows them
    1: culvert: the host [id] does not answer or has ended (ended); its agents look for other hosts by themselves
    ");
    assert_eq!(stopped, Some(0));
}

/// A load balancer that asks whether hosts are ready.
const BALANCER: &str = "
frontend api
 mode http
 bind ADDRESS:8000
 default_backend hosts
backend hosts
 mode http
 balance roundrobin
 option httpchk GET /readyz
 default-server inter 200ms fall 2 rise 1 check
";

/// Asks without a pause until it is told to end; how often it was answered, and what else happened.
fn client(number: usize, url: String, key: String, end: CancellationToken) -> JoinHandle<(u64, Vec<String>)> {
    tokio::spawn(async move {
        let client = Client::builder().no_proxy().build().unwrap();
        let (mut answered, mut failed) = (0, Vec::new());
        while !end.is_cancelled() {
            let request = if answered % 2 == 0 {
                client.get(format!("{url}/v2/tunnels"))
            } else {
                let key = format!("{number}-{answered}-{}", failed.len());
                let webhook = json!({"url": "http://127.0.0.1:1/", "events": []});
                client.post(format!("{url}/v2/webhooks")).header("idempotency-key", key).json(&webhook)
            };
            match request.bearer_auth(&key).send().await {
                // The second request is refused for what it asks.
                Ok(answer) if answer.status() == 200 || answer.status() == 422 => answered += 1,
                Ok(answer) => failed.push(answer.status().to_string()),
                Err(error) => failed.push(format!("{error:?}")),
            }
        }
        (answered, failed)
    })
}

/// Each of three hosts is stopped and started again behind a load balancer, for a newer version where there are programs of an
/// earlier one: no request fails, and visitors of the nodes that stay are not cut.
#[tokio::test]
async fn rolling_restart_fails_no_request() {
    let drained = |place: Place, name: &str| {
        let url = place.url();
        place
            .set("CULVERT_AGENT_URL", &url)
            .set("CULVERT_NODE__DOMAIN", &format!("{name}.tunnel.localhost"))
            .set("CULVERT_RATE_LIMIT__PER_MINUTE", "1000000")
            .set("CULVERT_RATE_LIMIT__PER_DAY", "100000000")
            .set("CULVERT_TRUSTED_PROXIES", "[\"127.0.0.0/8\"]")
            .set("CULVERT_DRAIN__SECONDS", "2")
            .set("CULVERT_DRAIN__VISITORS_SECONDS", "3")
            .with_programs(Place::earlier_programs().unwrap_or_else(Place::programs))
    };
    let first = Place::new(Engine::Sqlite).await.set("CULVERT_DATABASE_URL", &empty_database().await);
    let mut places = vec![drained(first, "a")];
    let mut hosts: Vec<Program> = vec![places[0].serve().await];
    for name in ["b", "c"] {
        let place = drained(Place::beside(&places[0]).await, name);
        hosts.push(place.serve().await);
        places.push(place);
    }
    let [a, b, c] = &places[..] else { panic!("three hosts") };
    let servers: String = places
        .iter()
        .enumerate()
        .map(|(number, place)| format!(" server h{number} {}:8080\n", place.address))
        .collect();
    let balancer = Proxy::haproxy(&format!("{BALANCER}{servers}"), 8000).await;
    let url = format!("http://{}", balancer.at(8000));
    a.json("culvert account create --email ada@example.com --name Ada").await;
    let key = a.json("culvert key create --account ada@example.com --scopes full_access").await;
    let key = key["key"].as_str().unwrap();

    // The tunnel is at the node of the host that is stopped last.
    let code = a.json("culvert device code --account ada@example.com").await;
    let enrol = format!("culvert-agent enroll --server {} --code {}", a.url(), code["code"].as_str().unwrap());
    a.json(&enrol).await;
    let mut agent = a.start_logged("culvert-agent run");
    agent.until("connected").await;
    let apis: Vec<_> = places.iter().map(|place| Api::new(&place.url(), key)).collect();
    let node = a.json("culvert node list").await["data"].clone();
    let node = node.as_array().unwrap().iter().find(|node| node["hostname"] == c.address.to_string()).unwrap().clone();
    let tunnel = apis[0].post("/tunnels", json!({"local_port": echo_service().await.port(), "name": "echo"})).await;
    let path = format!("/tunnels/{}", tunnel.id());
    if tunnel.data()["node"]["id"] != node["id"] {
        apis[0].post(&format!("{path}/move"), json!({"node_id": node["id"]})).await.data();
    }
    for place in [b, c] {
        within(20, a.until_written(".local/state/culvert-agent/hosts.json", &place.url())).await;
    }
    a.json("culvert-agent start echo").await;
    within(20, async { while apis[2].get(&path).await.data()["status"] != "running" {} }).await;
    let port = apis[0].get(&path).await.data()["remote_port"].as_u64().unwrap();
    let mut visitor = Visitor(TcpStream::connect(format!("{}:{port}", c.address)).await.unwrap());

    let end = CancellationToken::new();
    let clients: Vec<_> = (0..4).map(|number| client(number, url.clone(), key.into(), end.clone())).collect();
    let programs = Place::programs();
    let migrated = a.json(&format!("{} migrate", programs.join("culvert").display())).await;
    assert!(migrated["migrated"] == false || Place::earlier_programs().is_some(), "{migrated}");
    for (number, place) in places.iter().enumerate() {
        if number == 2 {
            assert_eq!(visitor.echo(b"still there").await.unwrap(), b"still there");
        }
        let host = hosts.remove(0);
        assert_eq!(within(60, host.terminate()).await, Some(0));
        hosts.push(place.serve_by(&programs, 0).await);
    }
    end.cancel();
    for client in clients {
        let (answered, failed) = client.await.unwrap();
        assert_eq!(
            failed.iter().take(3).collect::<Vec<_>>(),
            Vec::<&String>::new(),
            "beside {answered} that were answered"
        );
        assert!(answered > 20, "only {answered} requests were answered");
    }
    within(20, async { while apis[0].get(&path).await.data()["status"] != "running" {} }).await;
}
