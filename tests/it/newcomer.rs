//! First steps with the real programs, by the commands of `README.md`.

use crate::support::host::Engine;
use culvert_test_macros::both_engines;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::api::Api;
use crate::support::program::Place;
use crate::support::visitor::{echo_service, exchange};

/// Asks until an operation has ended. The requests are few: an operation takes milliseconds.
async fn ended(api: &Api, id: Uuid) -> Value {
    loop {
        let operation = api.get(&format!("/operations/{id}")).await;
        if !operation.data()["finished_at"].is_null() {
            return operation.data().clone();
        }
    }
}

/// `culvert dev`, and the four lines that it prints.
#[both_engines]
async fn dev_command_serves_sample_tunnel_across_restarts(engine: Engine) {
    // They look for what has become of things more often than a person would.
    let place = Place::new(engine).await.set("CULVERT_RATE_LIMIT__PER_MINUTE", "100000");
    let mut said = Vec::new();
    for _ in 0..2 {
        let mut dev = place.start("culvert dev");
        let public = dev.until("→").await;
        let key = dev.until("API key").await;
        let visit = dev.until("curl http").await;
        let by_name = dev.until("curl http").await;
        let by_https = dev.until("curl --cacert").await;
        let read = dev.until("/tunnels/").await;
        let stop = dev.until("/actions/stop").await;
        dev.until("Ctrl-C").await;
        assert!(place.shell(&format!("{visit} --silent --show-error")).await.contains("Hello"));
        // The name leads to 127.0.0.1, and this test's node is elsewhere.
        let resolve = format!("--resolve hello.tunnel.localhost:8081:{}", place.address);
        assert!(place.shell(&format!("{by_name} {resolve} --silent --show-error")).await.contains("Hello"));
        let resolve = format!("--resolve hello.tunnel.localhost:8443:{}", place.address);
        assert!(place.shell(&format!("{by_https} {resolve} --silent --show-error")).await.contains("Hello"));
        let tunnel: Value = serde_json::from_str(&place.shell(&format!("{read} --silent --show-error")).await).unwrap();
        assert_eq!(tunnel["data"]["status"], "running");
        let stopped: Value =
            serde_json::from_str(&place.shell(&format!("{stop} --silent --show-error")).await).unwrap();
        assert_eq!(stopped["data"]["action"], "stop");
        assert_eq!(dev.interrupt().await, Some(0));
        let address = public.split('→').next().unwrap().to_owned();
        said.push((address, key, visit, read));
    }
    assert_eq!(said[0], said[1], "a second start finds its data again");
}

/// `culvert serve`, the operator's commands, an agent, a tunnel; and everything that can end, ends.
#[both_engines]
async fn enrolled_device_serves_tunnel_across_host_and_agent_restarts(engine: Engine) {
    // They look for what has become of things more often than a person would.
    let place = Place::new(engine).await.set("CULVERT_RATE_LIMIT__PER_MINUTE", "100000");
    let mut host = place.serve().await;
    let account = place.json("culvert account create --email ada@example.com --name Ada").await;
    let key = place.json("culvert key create --account ada@example.com --scopes full_access").await;
    let code = place.json("culvert device code --account ada@example.com").await;
    let enrol = format!(
        "culvert-agent enroll --server {} --code {} --name laptop",
        place.url(),
        code["code"].as_str().unwrap()
    );
    let device = place.json(&enrol).await;
    assert_eq!(device["name"], "laptop");
    assert!(!place.run(&enrol).await.status.success(), "a machine is one device");
    assert_eq!(place.json("culvert-agent status").await["running"], false);

    let mut agent = place.start_logged("culvert-agent run");
    agent.until("connected").await;
    host.until("connected").await;
    let second = place.run("culvert-agent run").await;
    assert_eq!(
        String::from_utf8_lossy(&second.stderr),
        "culvert-agent: another agent is running on this state folder\n"
    );
    assert_eq!(place.json("culvert-agent remote-control status").await["remote_control_enabled"], false);
    let enabled = place.json("culvert-agent remote-control enable").await;
    assert_eq!(enabled, json!({"remote_control_enabled": true, "confirmed": true}));

    let api = Api::new(&place.url(), key["key"].as_str().unwrap());
    assert_eq!(api.get("/account").await.data()["id"], account["id"]);
    let service = echo_service().await;
    let tunnel = api.post("/tunnels", json!({"local_port": service.port()})).await;
    let public = format!("{}:{}", place.address, tunnel.data()["remote_port"]).parse().unwrap();
    let path = format!("/tunnels/{}", tunnel.id());
    let started = api.post(&format!("{path}/actions/start"), json!({"device_id": device["device_id"]})).await.id();
    let session = ended(&api, started).await["result"]["session_id"].clone();
    assert_eq!(exchange(public, b"hello").await.unwrap(), b"hello");
    agent.until("the node is reached by QUIC").await;
    let status = place.json("culvert-agent status").await;
    assert_eq!(status["agent"]["tunnels"][0]["tunnel_id"], json!(tunnel.id()));
    let node = &status["agent"]["nodes"][0];
    let address = json!(format!("{}:7835", place.address));
    assert_eq!((&node["transport"], &node["address"]), (&json!("TLS + QUIC"), &address));
    assert!(node["warm"].as_u64().unwrap() >= 1 && node["round_trip_ms"].as_f64().unwrap() > 0.0, "{node}");

    // A host that is killed comes back, and the tunnel has not noticed.
    host.kill().await;
    let mut host = place.serve().await;
    host.until("connected").await;
    agent.until("connected").await;
    // The new process resets what the former one left open, as soon as the agent speaks on it.
    agent.until("the node is reached by QUIC").await;
    assert_eq!(exchange(public, b"hello").await.unwrap(), b"hello");
    let sessions = api.get(&format!("{path}/sessions")).await;
    assert_eq!((sessions.data().as_array().unwrap().len(), &sessions.data()[0]["id"]), (1, &session));

    // An agent that is restarted from afar is another process, with the same number.
    let restart = api
        .post(&format!("/devices/{}/actions/restart-agent", device["device_id"].as_str().unwrap()), json!({}))
        .await
        .id();
    agent.until("being replaced").await;
    agent.until("serving").await;
    let restarted = ended(&api, restart).await;
    assert_eq!(
        (&restarted["status"], &restarted["result"]["resumed_tunnels"]),
        (&json!("succeeded"), &json!([tunnel.id()]))
    );
    assert_eq!(exchange(public, b"hello").await.unwrap(), b"hello");

    // People at the device stop and start it by its name.
    let name = tunnel.data()["name"].as_str().unwrap();
    assert_eq!(place.json(&format!("culvert-agent stop {name}")).await["tunnel_id"], json!(tunnel.id()));
    assert!(exchange(public, b"hello").await.is_err());
    assert_eq!(place.json(&format!("culvert-agent start {name}")).await["tunnel_id"], json!(tunnel.id()));
    assert_eq!(exchange(public, b"hello").await.unwrap(), b"hello");

    assert_eq!(agent.interrupt().await, Some(0));
    host.until("the agent has ended").await;
    let gone = api.get(&format!("/devices/{}", device["device_id"].as_str().unwrap())).await;
    assert_eq!(gone.data()["online"], false, "it said goodbye");
    assert_eq!(host.interrupt().await, Some(0));
}
