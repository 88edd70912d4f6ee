//! How many statements each route sends to the database: a change of these numbers is seen in the review.

use std::fmt::Write as _;
use std::time::Duration;

use culvert_service::jobs::{heartbeat, ticker};
use culvert_store::statements::counted;
use culvert_test_macros::both_engines;
use insta::{allow_duplicates, assert_snapshot};
use serde_json::json;

use crate::support::device::Remote;
use crate::support::host::{Engine, Person, TestHost};

/// The statements that a route has sent so far: outside of transactions, and in them.
async fn sent(host: &TestHost, route: &str) -> (f64, f64) {
    let (method, path) = route.split_once(' ').unwrap();
    let metrics = host.metrics().await;
    let count = |part_of: &str| {
        let name = format!(
            "culvert_http_request_statements_total{{method=\"{method}\",route=\"{path}\",part_of=\"{part_of}\"}} "
        );
        metrics.lines().find_map(|line| line.strip_prefix(&name)).map_or(0.0, |count| count.parse().unwrap())
    };
    (count("nothing"), count("transaction"))
}

/// Runs a request, and notes what it sent.
macro_rules! note {
    ($table:ident, $host:expr, $route:literal, $what:literal, $request:expr, $status:literal) => {{
        let before = sent($host, $route).await;
        let answer = $request.await;
        assert_eq!(answer.status, $status, "{}: {}", $route, answer.text);
        let after = sent($host, $route).await;
        // Whoever comes first, the request or the ticker, reads for the node what has changed.
        // On PostgreSQL, what reads and counts the uses of a key is sent for several requests at once, and is none's.
        let is_any = $what.starts_with("http") || $what == "the key is read";
        let alone = if is_any { "*".into() } else { (after.0 - before.0).to_string() };
        let in_transaction = after.1 - before.1;
        writeln!($table, "{:<42} {:<16} {alone} {in_transaction}", $route, $what).unwrap();
        answer
    }};
}

/// What a route sends outside of transactions, and in its transaction without `BEGIN`, the lock of the scope and `COMMIT`.
/// The key is known, as it is to every second request of a client; `GET /` comes first and reads it.
#[both_engines]
async fn each_route_sends_as_many_statements_as_the_table_says(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada: Person = host.person("ada").await;
    let api = host.api(&ada.key);
    let (device, _wire) = host.wired(&ada, ada.account_id).await;
    let mut table = String::from("\n");
    note!(table, &host, "GET /", "the key is read", api.get("/"), 200);
    note!(table, &host, "GET /", "", api.get("/"), 200);
    note!(table, &host, "GET /account", "", api.get("/account"), 200);
    note!(table, &host, "GET /account/usage", "", api.get("/account/usage"), 200);
    note!(table, &host, "GET /nodes", "", api.get("/nodes"), 200);
    let tcp = json!({"local_port": 80, "name": "a"});
    let tunnel = note!(table, &host, "POST /tunnels", "tcp", api.post("/tunnels", tcp), 201).id();
    let both = json!({"local_port": 80, "protocol": "both"});
    note!(table, &host, "POST /tunnels", "both", api.post("/tunnels", both), 201);
    let http = json!({"local_port": 80, "protocol": "http"});
    note!(table, &host, "POST /tunnels", "http", api.post("/tunnels", http), 201);
    let named = json!({"local_port": 80, "protocol": "http", "subdomain": "chosen"});
    note!(table, &host, "POST /tunnels", "http, subdomain", api.post("/tunnels", named), 201);
    let bound = json!({"local_port": 80, "device_ids": [device.id]});
    note!(table, &host, "POST /tunnels", "tcp, device_ids", api.post("/tunnels", bound), 201);
    let path = format!("/tunnels/{tunnel}");
    note!(table, &host, "GET /tunnels", "", api.get("/tunnels"), 200);
    note!(table, &host, "GET /tunnels/{tunnel_id}", "", api.get(&path), 200);
    note!(table, &host, "PATCH /tunnels/{tunnel_id}", "", api.patch(&path, json!({"name": "b"})), 200);
    note!(table, &host, "GET /tunnels/{tunnel_id}/usage", "", api.get(&format!("{path}/usage")), 200);
    note!(table, &host, "GET /tunnels/{tunnel_id}/sessions", "", api.get(&format!("{path}/sessions")), 200);
    note!(table, &host, "GET /tunnels/{tunnel_id}/firewall", "", api.get(&format!("{path}/firewall")), 200);
    let actions = format!("{path}/actions/start");
    let start = api.post(&actions, json!({"device_id": device.id}));
    let started = note!(table, &host, "POST /tunnels/{tunnel_id}/actions/start", "", start, 202);
    note!(table, &host, "GET /operations", "", api.get("/operations"), 200);
    let operation = format!("/operations/{}", started.id());
    note!(table, &host, "GET /operations/{operation_id}", "", api.get(&operation), 200);
    note!(table, &host, "GET /devices", "", api.get("/devices"), 200);
    note!(table, &host, "GET /devices/{device_id}", "", api.get(&format!("/devices/{}", device.id)), 200);
    note!(table, &host, "GET /webhooks", "", api.get("/webhooks"), 200);
    note!(table, &host, "DELETE /tunnels/{tunnel_id}", "", api.delete(&path), 200);
    allow_duplicates! { assert_snapshot!(table, @"

    GET /                                      the key is read  * 0
    GET /                                                       1 0
    GET /account                                                1 0
    GET /account/usage                                          2 0
    GET /nodes                                                  1 0
    POST /tunnels                              tcp              2 6
    POST /tunnels                              both             2 6
    POST /tunnels                              http             * 8
    POST /tunnels                              http, subdomain  * 8
    POST /tunnels                              tcp, device_ids  3 7
    GET /tunnels                                                1 0
    GET /tunnels/{tunnel_id}                                    2 0
    PATCH /tunnels/{tunnel_id}                                  2 6
    GET /tunnels/{tunnel_id}/usage                              2 0
    GET /tunnels/{tunnel_id}/sessions                           2 0
    GET /tunnels/{tunnel_id}/firewall                           2 0
    POST /tunnels/{tunnel_id}/actions/start                     5 8
    GET /operations                                             1 0
    GET /operations/{operation_id}                              1 0
    GET /devices                                                1 0
    GET /devices/{device_id}                                    1 0
    GET /webhooks                                               1 0
    DELETE /tunnels/{tunnel_id}                                 3 13
    "); }
}

/// What a host sends that has nothing to do: with each tick, with those that compare, and with each heartbeat. With the echo of
/// its notifications that makes less than three statements a second.
#[both_engines]
async fn idle_host_sends_few_statements(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let device = host.device(&ada, ada.account_id, Remote::Disabled).await;
    let tunnel = api.post("/tunnels", json!({"local_port": 80})).await.id();
    host.run_tunnel(&api, &device, tunnel).await;
    let jobs = &host.app.jobs;
    // What the start has left is done.
    for ticks in [1, 30] {
        host.pass(Duration::from_secs(1)).await;
        ticker::tick(jobs, ticks).await;
    }
    let mut table = String::from("\n");
    for (what, ticks) in [("tick", 1), ("tick that compares", 30)] {
        let ((), counts) = counted(ticker::tick(jobs, ticks)).await;
        writeln!(table, "{what}: {:?}", counts.totals()).unwrap();
    }
    let (sent, counts) = counted(heartbeat::beat(jobs)).await;
    sent.unwrap();
    writeln!(table, "heartbeat: {:?}", counts.totals()).unwrap();
    match engine {
        Engine::Sqlite => assert_snapshot!(table, @r"
        tick: (1, 0)
        tick that compares: (8, 0)
        heartbeat: (0, 3)
        "),
        Engine::Postgres => assert_snapshot!(table, @r"
        tick: (1, 0)
        tick that compares: (8, 0)
        heartbeat: (2, 0)
        "),
    }
}
