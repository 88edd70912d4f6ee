//! Extra ports: more public ports of one tunnel, each to a port of its own at the device.

use std::net::SocketAddr;

use culvert_agent::ipc::Request;
use culvert_domain::port::PortRange;
use culvert_test_macros::both_engines;
use futures_util::future::join_all;
use insta::{allow_duplicates, assert_snapshot};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use uuid::Uuid;

use crate::support::api::{Answer, Api};
use crate::support::device::{Remote, TestDevice};
use crate::support::host::{Engine, Person, TestHost};
use crate::support::visitor::{
    Visitor, echo_service, exchange, is_closed, named_service, patient_service, reached_at, visit,
};

/// A tunnel to a service that says `main`, and a device that can run it.
struct Stage {
    host: TestHost,
    ada: Person,
    api: Api,
    device: TestDevice,
    tunnel: Uuid,
}

impl Stage {
    async fn set(engine: Engine, remote: Remote) -> Self {
        let host = TestHost::start(engine).await;
        let ada = host.person("ada").await;
        let api = host.api(&ada.key);
        let device = host.device(&ada, ada.account_id, remote).await;
        let tunnel = api.post("/tunnels", json!({"local_port": named_service("main").await.port()})).await.id();
        Self { host, ada, api, device, tunnel }
    }

    async fn start(&self) {
        self.host.run_tunnel(&self.api, &self.device, self.tunnel).await;
    }

    async fn start_again(&self) {
        self.device.stop_tunnel(&self.tunnel.to_string()).await.unwrap();
        self.host.until_tunnel(&self.api, self.tunnel, "stopped").await;
        self.start().await;
    }

    /// A new extra port to a service; its id, and where it is reached.
    async fn add(&self, service: SocketAddr) -> (Uuid, SocketAddr) {
        let port = add(&self.api, self.tunnel, json!({"local_port": service.port()})).await;
        (port.id(), reached_at(port.data()))
    }

    /// As [`add`], where the device takes it at once; when this returns, it has.
    async fn add_and_tell(&self, service: SocketAddr) -> (Uuid, SocketAddr) {
        let (id, address) = self.add(service).await;
        let told = async || {
            let leads = self.device.leads(self.tunnel, id);
            // What it has noted, it has done when it answers.
            self.device.status().await;
            leads
        };
        self.device.until(told).await;
        (id, address)
    }

    async fn remove(&self, port: Uuid) -> Answer {
        self.api.delete(&format!("/tunnels/{}/extra-ports/{port}", self.tunnel)).await
    }

    /// What a visitor of an address hears.
    async fn says(&self, address: SocketAddr) -> String {
        String::from_utf8(exchange(address, b"").await.unwrap()).unwrap()
    }

    async fn status(&self) -> Value {
        self.api.get(&format!("/tunnels/{}", self.tunnel)).await.data()["status"].clone()
    }
}

async fn add(api: &Api, tunnel: Uuid, port: Value) -> Answer {
    api.post(&format!("/tunnels/{tunnel}/extra-ports"), port).await
}

async fn list(api: &Api, tunnel: Uuid) -> Answer {
    api.get(&format!("/tunnels/{tunnel}/extra-ports")).await
}

/// `tcp 5432 → 20000`, with the port that is given away as it is where it is not by chance.
fn line(port: &Value) -> String {
    let url = port["public_address"]["url"].as_str().unwrap_or("no url");
    let number = port["remote_port"].as_u64().filter(|number| *number < 20_000).map(|number| number.to_string());
    format!(
        "{} {} → {} {url}",
        port["protocol"].as_str().unwrap(),
        port["local_port"],
        number.unwrap_or("[port]".into())
    )
}

/// covers: GET /tunnels/{tunnel_id}/extra-ports
/// covers: POST /tunnels/{tunnel_id}/extra-ports
/// covers: DELETE /tunnels/{tunnel_id}/extra-ports/{port_id}
#[both_engines]
async fn extra_port_is_created_listed_and_deleted(engine: Engine) {
    let host = TestHost::start(engine).await;
    let api = host.api(&host.person("ada").await.key);
    let tunnel = api.post("/tunnels", json!({"local_port": 80})).await.id();
    let empty = list(&api, tunnel).await;
    assert_eq!(empty.data(), &json!([]));
    let created = add(&api, tunnel, json!({"local_port": 5432, "label": "the database", "protocol": "tcp"})).await;
    allow_duplicates! { assert_snapshot!(created, @r#"
    201
    {
      "data": {
        "id": "[uuid]",
        "label": "the database",
        "local_port": 5432,
        "protocol": "tcp",
        "public_address": {
          "hostname": "[host]",
          "ipv4": "[host]",
          "ipv6": null,
          "port": "[port]",
          "url": null
        },
        "remote_port": "[port]"
      },
      "meta": {
        "request_id": "[uuid]"
      }
    }
    "#) }
    host.clock.advance(std::time::Duration::from_secs(1));
    let second = add(&api, tunnel, json!({"local_port": 5432})).await;
    assert_eq!(
        (second.status, &second.data()["label"], &second.data()["local_port"]),
        (201, &Value::Null, &json!(5432))
    );
    assert_ne!(second.data()["remote_port"], created.data()["remote_port"]);
    let listed = list(&api, tunnel).await;
    assert_eq!(listed.data(), &json!([created.data(), second.data()]), "in the order in which they were made");
    let tunnel_read = api.get(&format!("/tunnels/{tunnel}")).await;
    assert_eq!(&tunnel_read.data()["extra_ports"], listed.data());
    assert_ne!(tunnel_read.data()["updated_at"], tunnel_read.data()["created_at"]);

    let deleted = api.delete(&format!("/tunnels/{tunnel}/extra-ports/{}", created.id())).await;
    assert_eq!(deleted.data(), &json!({"id": created.id(), "deleted": true}));
    assert_eq!(list(&api, tunnel).await.data(), &json!([second.data()]));
    assert_eq!(api.delete(&format!("/tunnels/{tunnel}/extra-ports/{}", created.id())).await.outcome(), "404 not_found");
}

/// A port is found by its own tunnel only; all that is not is the same 404.
///
/// covers: DELETE /tunnels/{tunnel_id}/extra-ports/{port_id}
#[both_engines]
async fn extra_port_of_another_tunnel_returns_not_found(engine: Engine) {
    let host = TestHost::start(engine).await;
    let (ada, bob) = (host.person("ada").await, host.person("bob").await);
    let (api, foreign) = (host.api(&ada.key), host.api(&bob.key));
    let tunnel = api.post("/tunnels", json!({"local_port": 80})).await.id();
    let other = api.post("/tunnels", json!({"local_port": 80, "extra_ports": [{"local_port": 81}]})).await.id();
    let bobs = foreign.post("/tunnels", json!({"local_port": 80})).await.id();
    let port = list(&api, other).await.data()[0]["id"].as_str().unwrap().to_owned();
    let bobs_port = add(&foreign, bobs, json!({"local_port": 81})).await.id().to_string();
    let mut answers = Vec::new();
    for (api, tunnel, port) in [
        (&api, tunnel, port.clone()),
        (&api, tunnel, bobs_port.clone()),
        (&api, bobs, bobs_port.clone()),
        (&foreign, other, port.clone()),
        (&foreign, bobs, port.clone()),
        (&api, tunnel, host.clock.id().to_string()),
        (&api, tunnel, "no-id".into()),
        (&api, host.clock.id(), port.clone()),
    ] {
        answers.push(api.delete(&format!("/tunnels/{tunnel}/extra-ports/{port}")).await.to_string());
    }
    answers.dedup();
    assert_eq!(answers.len(), 1, "{answers:?}");
    assert!(answers[0].starts_with("404"));
    for (api, tunnel) in [(&api, bobs), (&foreign, other), (&api, host.clock.id())] {
        assert_eq!(list(api, tunnel).await.outcome(), "404 not_found");
        assert_eq!(add(api, tunnel, json!({"local_port": 82})).await.outcome(), "404 not_found");
    }
    assert_eq!(list(&api, other).await.data()[0]["id"], json!(port));
    assert_eq!(list(&foreign, bobs).await.data()[0]["id"], json!(bobs_port));
}

/// A port has its tunnel's protocol unless it says otherwise; on an http tunnel, tcp. What is http
/// shares the node's port, and is found by a name of its own.
#[both_engines]
async fn extra_port_protocol_follows_tunnel_protocol(engine: Engine) {
    let host =
        TestHost::with(engine, |config| (config.node.http_port, config.node.https_port) = (Some(80), Some(443))).await;
    let api = host.api(&host.person("ada").await.key);
    let mut said = String::new();
    for tunnel in ["tcp", "udp", "both", "http"] {
        let id = api
            .post("/tunnels", json!({"local_port": 80, "protocol": tunnel, "subdomain": format!("my-{tunnel}")}))
            .await
            .id();
        for (local_port, protocol) in
            [(81, None), (82, Some("tcp")), (83, Some("udp")), (84, Some("both")), (85, Some("http"))]
        {
            let mut port = json!({"local_port": local_port});
            protocol.iter().for_each(|protocol| port["protocol"] = json!(protocol));
            let added = add(&api, id, port).await;
            let outcome = if added.status == 201 {
                line(added.data())
            } else {
                format!("{} {:?}", added.outcome(), added.fields())
            };
            said += &format!(
                "{tunnel} {}: {}\n",
                protocol.unwrap_or("-"),
                outcome.replace(&host.config().node.hostname, "[host]")
            );
        }
    }
    allow_duplicates! { assert_snapshot!(said, @r#"
    tcp -: tcp 81 → [port] no url
    tcp tcp: tcp 82 → [port] no url
    tcp udp: udp 83 → [port] no url
    tcp both: both 84 → [port] no url
    tcp http: 422 validation_failed ["protocol"]
    udp -: udp 81 → [port] no url
    udp tcp: tcp 82 → [port] no url
    udp udp: udp 83 → [port] no url
    udp both: both 84 → [port] no url
    udp http: 422 validation_failed ["protocol"]
    both -: both 81 → [port] no url
    both tcp: tcp 82 → [port] no url
    both udp: udp 83 → [port] no url
    both both: both 84 → [port] no url
    both http: 422 validation_failed ["protocol"]
    http -: tcp 81 → [port] no url
    http tcp: tcp 82 → [port] no url
    http udp: udp 83 → [port] no url
    http both: both 84 → [port] no url
    http http: http 85 → 443 https://p85-my-http.tunnel.localhost
    "#) }
    // Without managed HTTPS, they are all reached without it.
    let http = api.get("/tunnels?limit=1").await.data()[0].clone();
    let path = format!("/tunnels/{}", http["id"].as_str().unwrap());
    api.patch(&path, json!({"http_ssl_enabled": false})).await.data();
    let ports = api.get(&path).await.data()["extra_ports"].clone();
    let port = ports.as_array().unwrap().iter().find(|port| port["protocol"] == "http").unwrap().clone();
    assert_eq!(
        line(&port).replace(&host.config().node.hostname, "[host]"),
        "http 85 → 80 http://p85-my-http.tunnel.localhost"
    );
}

/// covers: local_port: 1 to 65535
#[both_engines]
async fn invalid_extra_port_fields_are_rejected(engine: Engine) {
    let host = TestHost::start(engine).await;
    let api = host.api(&host.person("ada").await.key);
    let tunnel = api.post("/tunnels", json!({"local_port": 80})).await.id();
    let mut said = String::new();
    for port in [
        json!({}),
        json!({"local_port": null}),
        json!({"local_port": 0}),
        json!({"local_port": 65_536}),
        json!({"local_port": -1}),
        json!({"local_port": 80.5}),
        json!({"local_port": "80"}),
        json!({"local_port": 80, "protocol": "sctp"}),
        json!({"local_port": 80, "protocol": null}),
        json!({"local_port": 80, "label": "x".repeat(256)}),
        json!({"local_port": 80, "label": "a\nb"}),
        json!({"local_port": 80, "label": 7}),
        json!({"local_port": 0, "protocol": "http", "label": 7, "colour": 1}),
    ] {
        let answer = add(&api, tunnel, port.clone()).await;
        let port: String = port.to_string().chars().take(70).collect();
        said += &format!("{port} → {} {:?}\n", answer.outcome(), answer.fields());
    }
    allow_duplicates! { assert_snapshot!(said, @r#"
    {} → 422 validation_failed ["local_port"]
    {"local_port":null} → 422 validation_failed ["local_port"]
    {"local_port":0} → 422 validation_failed ["local_port"]
    {"local_port":65536} → 422 validation_failed ["local_port"]
    {"local_port":-1} → 422 validation_failed ["local_port"]
    {"local_port":80.5} → 422 validation_failed ["local_port"]
    {"local_port":"80"} → 422 validation_failed ["local_port"]
    {"local_port":80,"protocol":"sctp"} → 422 validation_failed ["protocol"]
    {"local_port":80,"protocol":null} → 422 validation_failed ["protocol"]
    {"label":"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx → 422 validation_failed ["label"]
    {"label":"a\nb","local_port":80} → 422 validation_failed ["label"]
    {"label":7,"local_port":80} → 422 validation_failed ["label"]
    {"colour":1,"label":7,"local_port":0,"protocol":"http"} → 422 validation_failed ["colour", "label", "local_port", "protocol"]
    "#) }
    assert_eq!(list(&api, tunnel).await.data(), &json!([]));
}

/// `both` is one number on both transports, taken and given back as one.
#[both_engines]
async fn protocol_both_reserves_same_port_on_tcp_and_udp(engine: Engine) {
    let host = TestHost::with(engine, |config| config.node.ports = PortRange { first: 20_000, last: 20_002 }).await;
    let api = host.api(&host.person("ada").await.key);
    let tunnel = api.post("/tunnels", json!({"local_port": 80})).await.id();
    let both = add(&api, tunnel, json!({"local_port": 81, "protocol": "both"})).await;
    let add = async |protocol: &str| add(&api, tunnel, json!({"local_port": 82, "protocol": protocol})).await.outcome();
    // Of three numbers on each transport, one tcp is the tunnel's own, and one of both is taken.
    assert_eq!((add("tcp").await, add("tcp").await), ("201".into(), "409 no_port_available".into()));
    assert_eq!(
        (add("udp").await, add("udp").await, add("udp").await),
        ("201".into(), "201".into(), "409 no_port_available".into())
    );
    assert_eq!(add("both").await, "409 no_port_available");
    api.delete(&format!("/tunnels/{tunnel}/extra-ports/{}", both.id())).await.data();
    assert_eq!((add("tcp").await, add("tcp").await), ("201".into(), "409 no_port_available".into()));
    assert_eq!((add("udp").await, add("udp").await), ("201".into(), "409 no_port_available".into()));
    // A deleted tunnel's are free as well.
    api.delete(&format!("/tunnels/{tunnel}")).await.data();
    for _ in 0..3 {
        api.post("/tunnels", json!({"local_port": 80, "protocol": "both"})).await.data();
    }
    assert_eq!(
        api.post("/tunnels", json!({"local_port": 80, "protocol": "udp"})).await.outcome(),
        "409 no_port_available"
    );
}

/// Ten is the most, whatever the plan says; what the plan says is the plan's.
///
/// covers: extra_port_limit_reached
#[both_engines]
async fn extra_port_limit_follows_plan_up_to_ten(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    for (plan, most, refusal) in [
        ("self-hosted", 10, "409 extra_port_limit_reached"),
        ("free", 1, "403 plan_limit_reached"),
        ("pro", 5, "403 plan_limit_reached"),
    ] {
        host.set_plan(ada.account_id, plan).await;
        host.pass(std::time::Duration::from_mins(1)).await;
        let ports = |count: u16| (0..count).map(|port| json!({"local_port": 1000 + port})).collect::<Vec<_>>();
        let refused = api.post("/tunnels", json!({"local_port": 80, "extra_ports": ports(most + 1)})).await;
        let at_once = if most == 10 { "422 validation_failed" } else { refusal };
        assert_eq!(refused.outcome(), at_once, "{plan}");
        let tunnel = api.post("/tunnels", json!({"local_port": 80, "extra_ports": ports(most - 1)})).await.id();
        let last = add(&api, tunnel, json!({"local_port": 80})).await;
        assert_eq!(
            (add(&api, tunnel, json!({"local_port": 80})).await.outcome().as_str(), last.status),
            (refusal, 201),
            "{plan}"
        );
        // The number is of those there are, not of those there were.
        api.delete(&format!("/tunnels/{tunnel}/extra-ports/{}", last.id())).await.data();
        assert_eq!(add(&api, tunnel, json!({"local_port": 80})).await.status, 201, "{plan}");
        api.delete(&format!("/tunnels/{tunnel}")).await.data();
    }
}

/// covers: extra_port_limit_reached
#[both_engines]
async fn concurrent_extra_port_creation_respects_limit(engine: Engine) {
    let host = TestHost::start(engine).await;
    let api = host.api(&host.person("ada").await.key);
    let tunnel = api.post("/tunnels", json!({"local_port": 80})).await.id();
    let added = join_all((0..16).map(|number| add(&api, tunnel, json!({"local_port": 1000 + number})))).await;
    let mut outcomes: Vec<_> = added.iter().map(Answer::outcome).collect();
    outcomes.sort();
    assert_eq!(outcomes, [vec!["201"; 10], vec!["409 extra_port_limit_reached"; 6]].concat());
    assert_eq!(list(&api, tunnel).await.data().as_array().unwrap().len(), 10);
}

/// Added before the start, with the tunnel or by itself: each leads to its own service, whole.
#[both_engines]
async fn extra_ports_added_before_start_reach_their_services(engine: Engine) {
    let stage = Stage::set(engine, Remote::Disabled).await;
    let (_, echo) = stage.add(echo_service().await).await;
    let (_, patient) = stage.add(patient_service().await).await;
    let (_, named) = stage.add(named_service("another").await).await;
    assert!(is_closed(echo).await, "nothing runs yet");
    stage.start().await;
    let mib: Vec<u8> = (0..1024 * 1024_u32).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect();
    for address in [echo, patient] {
        assert!(exchange(address, &mib).await.unwrap() == mib, "{address}");
    }
    assert_eq!(
        (stage.says(named).await.as_str(), visit(&stage.host, &stage.api, stage.tunnel, b"").await.unwrap().as_slice()),
        ("another", &b"main"[..])
    );
}

/// What a device lets itself be told from afar holds at once, and interrupts nobody.
///
/// covers: POST /tunnels/{tunnel_id}/extra-ports
#[both_engines]
async fn extra_port_changes_apply_at_once_to_running_tunnel(engine: Engine) {
    let stage = Stage::set(engine, Remote::Enabled).await;
    let (first, echo) = stage.add(echo_service().await).await;
    stage.start().await;
    let mut inside = Visitor::from("127.0.0.1", echo).await.unwrap();
    let (second, named) = stage.add_and_tell(named_service("another").await).await;
    assert_eq!(stage.says(named).await, "another");
    assert_eq!(inside.echo(b"still here").await.unwrap(), b"still here");

    // Gone is gone: for who comes, and for who is there.
    stage.remove(second).await.data();
    assert!(is_closed(named).await);
    assert_eq!(inside.echo(b"still here").await.unwrap(), b"still here");
    stage.remove(first).await.data();
    assert!(is_closed(echo).await);
    assert!(inside.was_reset().await);
    assert_eq!(visit(&stage.host, &stage.api, stage.tunnel, b"").await.unwrap(), b"main");
    assert_eq!(stage.api.get(&format!("/tunnels/{}/sessions", stage.tunnel)).await.data().as_array().unwrap().len(), 1);
}

/// Without remote control, nobody from afar opens a way to another port of the device.
#[both_engines]
async fn extra_port_without_consent_opens_only_after_local_start(engine: Engine) {
    let stage = Stage::set(engine, Remote::Disabled).await;
    let (first, echo) = stage.add(echo_service().await).await;
    stage.start().await;
    let (second, named) = stage.add(named_service("another").await).await;
    assert!(is_closed(named).await);
    // Not with time, not with another change, and not because remote control is turned on later.
    stage.host.pass(std::time::Duration::from_secs(10)).await;
    stage.api.patch(&format!("/tunnels/{}", stage.tunnel), json!({"name": "renamed"})).await.data();
    stage.host.pass(std::time::Duration::ZERO).await;
    assert!(is_closed(named).await);
    assert!(!stage.device.leads(stage.tunnel, second));
    stage.start_again().await;
    assert_eq!(stage.says(named).await, "another");
    // To take a port away needs none.
    let inside = Visitor::from("127.0.0.1", echo).await.unwrap();
    stage.remove(first).await.data();
    assert!(is_closed(echo).await);
    assert!(inside.was_reset().await);
    assert_eq!(stage.says(named).await, "another");
}

/// What the device agreed to, it goes on with after its agent was away; what it did not, it does not.
#[both_engines]
async fn restarted_agent_resumes_only_agreed_extra_ports(engine: Engine) {
    let stage = Stage::set(engine, Remote::Disabled).await;
    let (_, agreed) = stage.add(named_service("agreed").await).await;
    stage.start().await;
    let (_, added) = stage.add(named_service("added").await).await;
    let Stage { host, ada, api, device, tunnel } = stage;
    let (folder, state) = device.shut_down().await;
    let device = TestDevice::start_again(folder, state, host.clock.clone());
    device.until_connected().await;
    host.until_tunnel(&api, tunnel, "running").await;
    let stage = Stage { host, ada, api, device, tunnel };
    assert_eq!(stage.says(agreed).await, "agreed");
    assert!(is_closed(added).await);
    // With consent, the next run has them all.
    stage.device.ask(Request::RemoteControl { enabled: true, allow: Vec::new() }).await.unwrap();
    let restart = stage.api.post(&format!("/tunnels/{tunnel}/actions/restart"), json!({})).await.id();
    stage.host.until_operation(&stage.api, restart, "succeeded").await;
    assert_eq!((stage.says(agreed).await.as_str(), stage.says(added).await.as_str()), ("agreed", "added"));
    assert_eq!(stage.api.get("/account").await.data()["id"], json!(stage.ada.account_id));
}

/// A visitor of an extra port counts like any other.
#[both_engines]
async fn extra_port_traffic_counts_toward_tunnel_usage(engine: Engine) {
    let stage = Stage::set(engine, Remote::Disabled).await;
    let (port, echo) = stage.add(echo_service().await).await;
    stage.start().await;
    exchange(echo, &[7; 1000]).await.unwrap();
    visit(&stage.host, &stage.api, stage.tunnel, b"to the main port").await.unwrap();
    stage.remove(port).await.data();
    stage.device.stop_tunnel(&stage.tunnel.to_string()).await.unwrap();
    stage.host.until_tunnel(&stage.api, stage.tunnel, "stopped").await;
    stage.host.record_traffic().await;
    let session = stage.api.get(&format!("/tunnels/{}/sessions", stage.tunnel)).await.data()[0].clone();
    assert_eq!((&session["bytes_in"], &session["bytes_out"]), (&json!(1016), &json!(1004)));
    let usage = stage.api.get(&format!("/tunnels/{}/usage", stage.tunnel)).await;
    assert_eq!(usage.data()["bandwidth"]["month"]["bytes_total"], 2020);
}

/// A service that is missing behind an extra port is its visitor's misfortune, not the tunnel's.
#[both_engines]
async fn unreachable_extra_port_target_keeps_tunnel_running(engine: Engine) {
    let stage = Stage::set(engine, Remote::Disabled).await;
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let service = free.local_addr().unwrap();
    drop(free);
    let (_, missing) = stage.add(service).await;
    stage.start().await;
    assert!(Visitor::from("127.0.0.1", missing).await.is_none());
    stage.device.until_told().await;
    assert_eq!(stage.status().await, "running");
    assert_eq!(visit(&stage.host, &stage.api, stage.tunnel, b"").await.unwrap(), b"main");
    let listener = TcpListener::bind(service).await.unwrap();
    let came = tokio::spawn(async move { listener.accept().await.unwrap() });
    let _visitor = TcpStream::connect(missing).await.unwrap();
    came.await.unwrap();
}
