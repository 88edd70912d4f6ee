//! Several hosts as an operator runs them: processes on one PostgreSQL database, with one agent.

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::json;
use sqlx::{Connection, PgConnection};
use tokio::net::TcpStream;

use crate::support::api::Api;
use crate::support::cable::Cable;
use crate::support::database::{END_LISTENERS, WAITING_FOR_LOCKS, texts_of, until_there};
use crate::support::host::{Engine, within};
use crate::support::program::{Place, Program, fails};
use crate::support::visitor::{Visitor, echo_service};

/// A host with a node and a domain of its own, which agents are told of.
fn named(place: Place, name: &str) -> Place {
    let url = place.url();
    place
        .set("CULVERT_AGENT_URL", &url)
        .set("CULVERT_NODE__DOMAIN", &format!("{name}.tunnel.localhost"))
        .set("CULVERT_RATE_LIMIT__PER_MINUTE", "1000000")
}

/// Waits until all hosts tell the same of a tunnel.
async fn until_status(apis: &[Api], tunnel: &str, status: &str) {
    for api in apis {
        within(20, async { while api.get(tunnel).await.data()["status"] != status {} }).await;
    }
}

/// Three hosts that run. The last one has another limit a day.
async fn three_hosts() -> (Vec<Place>, Vec<Program>) {
    let first = named(Place::new(Engine::Postgres).await, "a");
    let mut places = vec![first];
    let mut hosts: Vec<Program> = vec![places[0].serve().await];
    for name in ["b", "c"] {
        let place = named(Place::beside(&places[0]).await, name);
        let place = if name == "c" { place.set("CULVERT_RATE_LIMIT__PER_DAY", "5000") } else { place };
        hosts.push(place.serve().await);
        places.push(place);
    }
    (places, hosts)
}

/// As where a tool has all hosts read their configuration, which is the same: nobody is told that others were faster.
#[tokio::test]
async fn same_policies_are_reloaded_at_all_hosts_at_once() {
    let (places, hosts) = three_hosts().await;
    for _ in 0..3 {
        let reloads = join_all(places.iter().map(|place| place.json("culvert policy reload"))).await;
        let newest = reloads.iter().map(|reloaded| reloaded["generation"].as_u64().unwrap()).max().unwrap();
        for place in &places {
            let status = place.json("culvert policy status").await;
            assert_eq!((&status["generation"], &status["last_failure"]), (&json!(newest), &json!(null)), "{status}");
        }
    }
    for host in hosts {
        assert_eq!(host.interrupt().await, Some(0));
    }
}

/// They find by looking what they do not hear: a reload that has returned holds all the same.
#[tokio::test]
async fn policies_are_reloaded_while_hosts_do_not_hear_each_other() {
    let (places, hosts) = three_hosts().await;
    places[0].json("culvert account create --email ada@example.com --name Ada").await;
    let key = places[0].json("culvert key create --account ada@example.com --scopes full_access").await;
    let apis: Vec<_> = places.iter().map(|place| Api::new(&place.url(), key["key"].as_str().unwrap())).collect();
    let mut database = PgConnection::connect(&places[0].database_url()).await.unwrap();
    let cut = tokio::spawn(async move { while sqlx::raw_sql(END_LISTENERS).execute(&mut database).await.is_ok() {} });
    for place in &places {
        let reloaded = place.json("culvert policy reload").await["generation"].to_string();
        for api in &apis {
            let created = api.post("/tunnels", json!({"local_port": 80})).await;
            assert_eq!(created.header("x-policy-generation"), Some(&*reloaded));
        }
    }
    assert!(!cut.is_finished());
    drop(hosts);
}

/// Nobody waits for the nodes of a host that was stopped while it started, or that could not start.
#[tokio::test]
async fn host_that_does_not_become_ready_gives_its_place_back() {
    let place = named(Place::new(Engine::Postgres).await, "a");
    let url = place.database_url();
    assert_eq!(place.serve().await.terminate().await, Some(0));
    let alive = async || texts_of(&url, "SELECT name AS text FROM hosts WHERE ended_at IS NULL").await;
    // Registering a node waits, and nothing before that.
    let mut database = PgConnection::connect(&url).await.unwrap();
    sqlx::raw_sql("BEGIN; LOCK TABLE platform_domains IN SHARE MODE").execute(&mut database).await.unwrap();
    let mut host = place.start_logged("culvert serve");
    within(20, until_there(&url, WAITING_FOR_LOCKS)).await;
    assert_eq!(alive().await.len(), 1);
    host.signal("-TERM").await;
    within(20, host.until("told to stop while it starts")).await;
    sqlx::raw_sql("COMMIT").execute(&mut database).await.unwrap();
    assert_eq!(host.ended().await, Some(0));
    assert_eq!(alive().await, [""; 0]);

    let taken = std::net::TcpListener::bind(place.url().strip_prefix("http://").unwrap()).unwrap();
    assert!(fails(&place, "culvert serve").await.contains("listen: "));
    assert_eq!(alive().await, [""; 0]);
    drop(taken);
    assert_eq!(place.serve().await.terminate().await, Some(0));
}

/// An operator reads when the database has gone, why, and when it is back, and not the same every second in between.
#[tokio::test]
async fn outage_of_the_database_is_logged_when_it_begins_and_when_it_is_over() {
    let place = named(Place::new(Engine::Postgres).await, "a");
    let cable = Cable::of_database(&place.database_url()).await;
    let place = place.set("CULVERT_DATABASE_URL", &cable.url).set("RUST_LOG", "info,culvert_service=debug");
    let mut host = place.serve().await;
    cable.cut();
    let mut said = Vec::new();
    for _ in 0..3 {
        said.extend(within(20, host.lines_until("the database does not hear of this host")).await);
    }
    cable.mend();
    said.extend(within(20, host.lines_until("the database hears of this host again")).await);
    for begins in ["the database does not hear of this host", "notifications of other hosts are missed"] {
        let warnings = said.iter().filter(|line| line.contains(begins)).filter_map(|line| line.split_once(" WARN "));
        let mut warnings: Vec<_> = warnings.map(|(_, warning)| warning).collect();
        let count = warnings.len();
        warnings.sort_unstable();
        warnings.dedup();
        assert!(count > 0 && warnings.len() == count, "once for each cause: {said:#?}");
    }
}

/// The agent goes to another host within seconds, nobody who visits its tunnel notices, and the killed host takes its place
/// again at once.
#[tokio::test]
async fn killed_host_costs_its_agent_a_reconnect() {
    let (places, mut hosts) = three_hosts().await;
    let [a, b, c] = &places[..] else { panic!("three hosts") };
    a.json("culvert account create --email ada@example.com --name Ada").await;
    let key = a.json("culvert key create --account ada@example.com --scopes full_access").await;
    let apis: Vec<_> = places.iter().map(|place| Api::new(&place.url(), key["key"].as_str().unwrap())).collect();
    let code = a.json("culvert device code --account ada@example.com").await;
    let enrol = format!("culvert-agent enroll --server {} --code {}", b.url(), code["code"].as_str().unwrap());
    b.json(&enrol).await;
    let mut agent = b.start_logged("culvert-agent run");
    agent.until("connected").await;
    for place in [a, c] {
        within(20, b.until_written(".local/state/culvert-agent/hosts.json", &place.url())).await;
    }

    // Device and tunnel are at different hosts, and a third one is asked.
    let nodes = a.json("culvert node list").await["data"].clone();
    let node = nodes.as_array().unwrap().iter().find(|node| node["hostname"] == c.address.to_string()).unwrap();
    let tunnel = apis[0].post("/tunnels", json!({"local_port": echo_service().await.port(), "name": "echo"})).await;
    let path = format!("/tunnels/{}", tunnel.id());
    if tunnel.data()["node"]["id"] != node["id"] {
        apis[0].post(&format!("{path}/move"), json!({"node_id": node["id"]})).await.data();
    }
    b.json("culvert-agent start echo").await;
    until_status(&apis, &path, "running").await;
    let port = apis[0].get(&path).await.data()["remote_port"].as_u64().unwrap();
    let public = format!("{}:{port}", c.address);
    let mut visitor = Visitor(TcpStream::connect(&public).await.unwrap());
    assert_eq!(visitor.echo(b"hello").await.unwrap(), b"hello");

    // A host that stands applies nothing, and nobody says that it does.
    let firewall = format!("{path}/firewall");
    hosts[2].signal("-STOP").await;
    let replace = async |api: &Api, key: &str| {
        let request = api.request(Method::PUT, &firewall).json(&json!({"rules": []}));
        api.send(request.header("idempotency-key", key)).await.data()["enforced"].clone()
    };
    let at_once = tokio::join!(replace(&apis[0], "one"), replace(&apis[1], "one"));
    assert_eq!(at_once, (json!(false), json!(false)), "also to who asks elsewhere meanwhile");
    assert_eq!(replace(&apis[0], "one").await, json!(false), "also under the same key");
    hosts[2].signal("-CONT").await;
    let rules = async || apis[0].put(&firewall, json!({"rules": []})).await.data()["enforced"] == true;
    within(20, async { while !rules().await {} }).await;
    for api in &apis {
        assert_eq!(replace(api, "two").await, json!(true), "what the first was answered");
    }

    hosts.remove(1).kill().await;
    within(20, agent.until("connected server=")).await;
    assert_eq!(visitor.echo(b"still there").await.unwrap(), b"still there");
    until_status(&[apis[0].clone(), apis[2].clone()], &path, "running").await;
    b.json("culvert-agent stop echo").await;
    until_status(&apis[2..], &path, "stopped").await;
    assert!(TcpStream::connect(&public).await.is_err());

    let again = b.serve().await;
    until_status(&apis[1..2], &path, "stopped").await;
    let listed = a.json("culvert host list").await;
    assert_eq!(listed["different_settings"], json!(["rate_limit.per_day"]));
    let name = listed["data"][0]["name"].as_str().unwrap();
    let values =
        format!("rate_limit.per_day is to be the same at all hosts; it is 10000 at {name}, {name}; 5000 at {name}");
    let said = String::from_utf8(a.run("culvert host list").await.stdout).unwrap();
    assert_eq!(said.trim_end().lines().last(), Some(&*values));
    let states: Vec<_> = listed["data"].as_array().unwrap().iter().map(|host| host["state"].clone()).collect();
    assert_eq!(states, [json!("alive"), json!("alive"), json!("alive")]);
    for host in hosts.into_iter().chain([again]) {
        assert_eq!(host.interrupt().await, Some(0));
    }
}
