//! Decision records, and the figures that go with them.

use culvert::config::Config;
use culvert_policy::engine::bindings::types::Verdict;
use culvert_policy::serve::records::RecordsConfig;
use insta::{assert_json_snapshot, assert_snapshot};
use regex::Regex;
use serde_json::{Value, json};

use crate::sandbox;
use crate::support::device::Remote;
use crate::support::host::{Engine, TestHost};
use crate::support::hostile::{DENY, GOOD};
use crate::support::policies::{Swapped, builtin, entry};
use crate::support::visitor::{echo_service, visit};

fn recording(sample: f64) -> impl FnOnce(&mut Config) {
    move |config| {
        config.decisions.file = Some(config.data_dir.join("decisions.jsonl"));
        config.decisions.sample = sample;
    }
}

/// The records of a host, which ends for it.
async fn records(swapped: Swapped) -> Vec<Value> {
    let host = swapped.host.restart().await;
    let file = host.config().decisions.file.clone().unwrap();
    let text = std::fs::read_to_string(file).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .filter(|record: &Value| !record["request_id"].is_null())
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policy_decision_is_recorded_without_secrets() {
    let swapped = Swapped::start(recording(1.0)).await;
    let api = swapped.host.api(&swapped.host.person("ada").await.key);
    let body = json!({
        "local_port": 0, "protocol": "http", "http_basic_auth_enabled": true,
        "http_basic_auth_username": "ada", "http_basic_auth_password": "correct horse",
    });
    let refused = api.post("/tunnels", body).await;
    assert_eq!(refused.status, 422);
    let request_id = refused.header("x-request-id").unwrap().to_owned();
    let (host_id, digest) = (swapped.host.node_id(), swapped.host.policy_status().await["digest"].clone());
    let records = records(swapped).await;
    let at_host = |record: &Value| record["host_id"] == json!(host_id) && record["generation_sha256"] == digest;
    assert!(records.iter().all(at_host));
    assert!(!serde_json::to_string(&records).unwrap().contains("correct horse"));
    assert!(records.iter().all(|record| record["request_id"] == request_id.as_str()));
    let calls: Vec<_> = records
        .iter()
        .map(|record| (record["module"].clone(), record["call"].clone(), record["verdict"].clone()))
        .collect();
    assert_json_snapshot!(calls, @r#"
    [
      [
        "plan-access",
        "entitlements",
        "known"
      ],
      [
        "plan-access",
        "check",
        "allow"
      ],
      [
        "team-role",
        "check",
        "allow"
      ],
      [
        "validation",
        "validate",
        "invalid"
      ]
    ]
    "#);
    let last = records.last().unwrap();
    assert_json_snapshot!(last, {".host_id" => "", ".generation_sha256" => "", ".request_id" => "", ".sha256" => "", ".input.facts.caller" => ""}, @r#"
    {
      "answer": [
        {
          "field": "local_port",
          "message": "must be between 1 and 65535",
          "rule": "port"
        }
      ],
      "call": "validate",
      "duration_us": 0.0,
      "generation": 1,
      "generation_sha256": "",
      "host_id": "",
      "input": {
        "facts": {
          "attributes": [
            {
              "name": "input.host_header",
              "value": "null"
            },
            {
              "name": "input.local_scheme",
              "value": "null"
            },
            {
              "name": "input.local_tls_verify",
              "value": "null"
            },
            {
              "name": "input.proxy_protocol",
              "value": "null"
            },
            {
              "name": "input.tls_passthrough",
              "value": "null"
            },
            {
              "name": "current.tls_passthrough",
              "value": "null"
            }
          ],
          "caller": "",
          "current": null,
          "faulted": []
        },
        "input": {
          "tunnel-create": {
            "country": null,
            "device-ids": null,
            "extra-ports": null,
            "game-preset-id": null,
            "http-basic-auth-enabled": true,
            "http-basic-auth-password": "********",
            "http-basic-auth-username": "ada",
            "http-ssl-enabled": null,
            "local-host": null,
            "local-port": 0,
            "name": null,
            "pro-network": null,
            "protocol": "http",
            "region": null,
            "subdomain": null
          }
        }
      },
      "kind": "validation",
      "masked": [
        "http_basic_auth_password"
      ],
      "mode": "enforce",
      "module": "validation",
      "request_id": "",
      "rules": [
        "port"
      ],
      "settings_sha256": "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",
      "sha256": "",
      "time": "2026-01-15T12:00:00Z",
      "verdict": "invalid",
      "version": "1.2.0"
    }
    "#);
}

/// What a receiver knows the host by is often in its URL.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn webhook_url_is_masked_in_decision_records() {
    let swapped = Swapped::start(recording(1.0)).await;
    let api = swapped.host.api(&swapped.host.person("ada").await.key);
    for url in ["https://ada:lovelace@hooks.example.com/", "https://hooks.example.com/?token=lovelace"] {
        api.post("/webhooks", json!({"url": url, "events": ["device.online"]})).await;
    }
    let records = records(swapped).await;
    let about = records.iter().filter(|record| record["call"] == "validate");
    assert!(about.clone().all(|record| record["masked"] == json!(["url"])));
    let urls: Vec<_> = about.map(|record| record["input"]["input"]["webhook-create"]["url"].clone()).collect();
    assert_eq!(urls, ["https://********@hooks.example.com/", "https://hooks.example.com/?********"]);
    assert!(!serde_json::to_string(&records).unwrap().contains("lovelace"));
}

/// Rotation needs no signal: the writer notices that its file was moved away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moved_record_file_is_followed_by_a_new_one() {
    let swapped = Swapped::start(recording(1.0)).await;
    let api = swapped.host.api(&swapped.host.person("ada").await.key);
    let file = swapped.host.config().decisions.file.clone().unwrap();
    let (moved, has) = (file.with_extension("1"), |file: &std::path::Path, id: &str| {
        std::fs::read_to_string(file).is_ok_and(|text| text.contains(id))
    });
    let ask = async || api.post("/tunnels", json!({"local_port": 80})).await.header("x-request-id").unwrap().to_owned();
    let first = ask().await;
    swapped.host.until_found(async || has(&file, &first).then_some(())).await;
    std::fs::rename(&file, &moved).unwrap();
    let second = ask().await;
    swapped.host.until_found(async || has(&file, &second).then_some(())).await;
    assert!(has(&moved, &first) && !has(&moved, &second));
}

/// A disk that is full costs records, and no request. The operator sees it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_disk_is_shown_in_policy_status() {
    let swapped = Swapped::start(|config| config.decisions.file = Some("/dev/full".into())).await;
    let api = swapped.host.api(&swapped.host.person("ada").await.key);
    assert_eq!(api.post("/tunnels", json!({"local_port": 80})).await.status, 201);
    // The writer takes what is queued in batches, so the first problem may be told before all four are lost.
    let all_lost = async || {
        let status = swapped.status().await;
        (status["records"]["lost"].as_u64()? >= 4).then_some(status)
    };
    let status = swapped.host.until_found(all_lost).await;
    assert_eq!(status["records"]["problem"], "No space left on device (os error 28)");
    assert_eq!(swapped.metric("culvert_policy_records_written_total").await, Some(0.0));
}

/// What a shadow would have answered is recorded where it disagrees, whatever is sampled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answer_of_shadow_that_disagrees_is_recorded() {
    let swapped = Swapped::start(recording(0.0)).await;
    let api = swapped.host.api(&swapped.host.person("ada").await.key);
    let deny = swapped.write("deny.wasm", &crate::support::hostile::Module { check: DENY, ..GOOD });
    let chain = builtin(&["plan-access", "team-role", "validation"]);
    swapped.configure(&(chain + &entry("team-role", &deny, "mode = \"shadow\"")));
    assert_eq!(swapped.reload().await, Ok(2));
    assert_eq!(api.post("/tunnels", json!({"local_port": 80})).await.status, 201);
    let disagreed = r#"culvert_policy_shadow_answers_total{kind="team-role",module="hostile",outcome="disagreed"}"#;
    swapped.host.until_found(async || swapped.metric(disagreed).await.filter(|count| *count == 1.0)).await;
    let records = records(swapped).await;
    let [record] = records.as_slice() else { panic!("{records:?}") };
    assert_eq!((&record["mode"], &record["rules"]), (&json!("shadow"), &json!(["test-rule"])));
    assert_eq!(record["input"]["action"], "tunnels.create");
    assert_eq!(record["settings_sha256"].as_str().unwrap().len(), 64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zero_sample_rate_records_no_decisions() {
    let swapped = Swapped::start(recording(0.0)).await;
    let api = swapped.host.api(&swapped.host.person("ada").await.key);
    assert_eq!(api.post("/tunnels", json!({"local_port": 80})).await.status, 201);
    assert_eq!(records(swapped).await, Vec::<Value>::new());
}

/// Nobody reads from the pipe that records go to, so its writer is held up from the first few on. The
/// questions are not: each is answered, and what finds no place in the queue is counted.
#[test]
fn full_record_queue_drops_and_counts_records() {
    const QUESTIONS: u64 = 20_000;
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("decisions.pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let config = RecordsConfig { file: Some(pipe.clone()), sample: 1.0 };
    let (pinned, observer) = sandbox::pinned(GOOD.component(), &config).unwrap();
    for _ in 0..QUESTIONS {
        assert_eq!(sandbox::decide(&pinned).unwrap(), Verdict::Allow);
    }
    let dropped = observer.metrics.records_dropped.get();
    assert!(dropped > 0);
    let reader = std::thread::spawn(move || std::fs::read_to_string(pipe).unwrap().lines().count() as u64);
    observer.close();
    assert_eq!(reader.join().unwrap() + dropped, QUESTIONS);
    assert_eq!(observer.metrics.records_written.get() + dropped, QUESTIONS);
}

/// Of a part of the requests, all decisions are recorded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sampled_request_records_all_its_decisions() {
    let swapped = Swapped::start(recording(0.5)).await;
    let api = swapped.host.api(&swapped.host.person("ada").await.key);
    for _ in 0..60 {
        assert_eq!(api.post("/tunnels", json!({"local_port": 80})).await.status, 201);
    }
    let mut requests = std::collections::BTreeMap::<String, usize>::new();
    for record in records(swapped).await.iter().filter(|record| record["call"] != "entitlements") {
        *requests.entry(record["request_id"].to_string()).or_default() += 1;
    }
    assert!(requests.values().all(|decisions| *decisions == 3), "{requests:?}");
    // Of 60 coins, as good as never fewer than ten or more than fifty show the same side.
    assert!((10..=50).contains(&requests.len()), "{}", requests.len());
}

/// Every figure's name and kind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_endpoint_lists_every_metric_name_and_type() {
    let swapped = Swapped::start(|config| config.rate_limit.per_minute = 2).await;
    let api = swapped.host.api(&swapped.host.person("ada").await.key);
    assert_eq!(api.post("/tunnels", json!({"local_port": 80})).await.status, 201);
    assert_eq!(api.post("/tunnels", json!({"local_port": 0})).await.status, 422);
    assert_eq!(api.get("/tunnels").await.status, 429);
    let metrics = swapped.metrics().await;
    let kinds: Vec<&str> = metrics.lines().filter(|line| line.starts_with("# TYPE")).collect();
    assert_snapshot!(kinds.join("\n"), @"
    # TYPE culvert_http_requests counter
    # TYPE culvert_http_request_statements counter
    # TYPE culvert_http_request_duration_seconds histogram
    # TYPE culvert_rate_limited counter
    # TYPE culvert_webhook_attempts counter
    # TYPE culvert_webhook_lag_seconds gauge
    # TYPE culvert_mail_attempts counter
    # TYPE culvert_tunnel_bytes counter
    # TYPE culvert_node_corrections counter
    # TYPE culvert_grants counter
    # TYPE culvert_edge_requests counter
    # TYPE culvert_edge_handshakes counter
    # TYPE culvert_edge_basic_auth counter
    # TYPE culvert_node_visits counter
    # TYPE culvert_node_reuses counter
    # TYPE culvert_udp_datagrams counter
    # TYPE culvert_udp_drops counter
    # TYPE culvert_node_unproven gauge
    # TYPE culvert_node_visit_wait_seconds histogram
    # TYPE culvert_edge_request_duration_seconds histogram
    # TYPE culvert_host_heartbeats counter
    # TYPE culvert_host_heartbeat_duration_seconds histogram
    # TYPE culvert_leader_term gauge
    # TYPE culvert_host_lease_seconds gauge
    # TYPE culvert_leader gauge
    # TYPE culvert_grace gauge
    # TYPE culvert_draining gauge
    # TYPE culvert_store_went_back counter
    # TYPE culvert_settings_differ gauge
    # TYPE culvert_database_standby gauge
    # TYPE culvert_agents_sent_away counter
    # TYPE culvert_notification_echo_duration_seconds histogram
    # TYPE culvert_hints_taken counter
    # TYPE culvert_notification_gaps counter
    # TYPE culvert_node_requests counter
    # TYPE culvert_node_request_duration_seconds histogram
    # TYPE culvert_acme_orders counter
    # TYPE culvert_certificates gauge
    # TYPE culvert_certificate_expiry_seconds gauge
    # TYPE culvert_agent_heartbeats counter
    # TYPE culvert_agent_heartbeat_statements counter
    # TYPE culvert_node_refused counter
    # TYPE culvert_api_refused counter
    # TYPE culvert_database_statements counter
    # TYPE culvert_node_buffer_bytes gauge
    # TYPE culvert_agents_connected gauge
    # TYPE culvert_tunnels_served gauge
    # TYPE culvert_visitors gauge
    # TYPE culvert_policy_decisions counter
    # TYPE culvert_policy_rules counter
    # TYPE culvert_policy_failures counter
    # TYPE culvert_policy_decision_duration_seconds histogram
    # TYPE culvert_policy_long_decisions gauge
    # TYPE culvert_policy_shadow_answers counter
    # TYPE culvert_policy_shadows_dropped counter
    # TYPE culvert_policy_reloads counter
    # TYPE culvert_policy_generation gauge
    # TYPE culvert_policy_records_written counter
    # TYPE culvert_policy_records_dropped counter
    ");
    for (figure, value) in [
        (r#"culvert_http_requests_total{method="POST",route="/tunnels",status="201"}"#, 1.0),
        (r#"culvert_http_requests_total{method="POST",route="/tunnels",status="422"}"#, 1.0),
        (r#"culvert_rate_limited_total{window="minute"}"#, 1.0),
        (r#"culvert_policy_decisions_total{kind="validation",module="validation",verdict="invalid"}"#, 1.0),
        (r#"culvert_policy_decisions_total{kind="team-role",module="team-role",verdict="allow"}"#, 2.0),
        ("culvert_policy_generation", 1.0),
        ("culvert_agents_connected", 0.0),
    ] {
        assert_eq!(swapped.metric(figure).await, Some(value), "{figure} in {metrics}");
    }
}

/// Each rule asks for metrics that are there, and has its line on the page of alerts.
#[tokio::test]
async fn alerts_ask_for_metrics_that_are_served() {
    let host = TestHost::start(Engine::Sqlite).await;
    let metrics = host.metrics().await;
    let rules = std::fs::read_to_string("deploy/alerts.yaml").unwrap();
    let page = std::fs::read_to_string("docs/operate/alerts.md").unwrap();
    let name = Regex::new(r"culvert_\w+").unwrap();
    let asked: Vec<_> =
        rules.lines().filter(|line| line.contains("expr:")).flat_map(|line| name.find_iter(line)).collect();
    for metric in &asked {
        let family = metric.as_str().trim_end_matches("_total").trim_end_matches("_bucket");
        assert!(metrics.contains(&format!("# TYPE {family} ")), "{family} is not served");
    }
    let alert = Regex::new(r"alert: (\w+)").unwrap();
    let alerts: Vec<_> = alert.captures_iter(&rules).map(|found| found[1].to_owned()).collect();
    assert!(alerts.len() == 17 && asked.len() >= alerts.len(), "{alerts:?}");
    for alert in alerts {
        assert!(page.contains(&format!("| `{alert}` |")), "{alert} is not on the page");
    }
}

/// Agents, tunnels, and what goes through them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_tunnel_and_traffic_metrics_follow_activity() {
    let swapped = Swapped::start(|_| {}).await;
    let host = &swapped.host;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let service = echo_service().await;
    assert_eq!(swapped.metric("culvert_agents_connected").await, Some(0.0));
    let device = host.device(&ada, ada.account_id, Remote::Disabled).await;
    let tunnel = api.post("/tunnels", json!({"local_port": service.port()})).await.id();
    host.run_tunnel(&api, &device, tunnel).await;
    assert_eq!(swapped.metric("culvert_agents_connected").await, Some(1.0));
    host.report_load().await;
    assert_eq!(swapped.metric("culvert_tunnels_served").await, Some(1.0));
    assert_eq!(visit(host, &api, tunnel, b"five!").await.unwrap(), b"five!");
    host.record_traffic().await;
    assert_eq!(swapped.metric(r#"culvert_tunnel_bytes_total{direction="in"}"#).await, Some(5.0));
    assert_eq!(swapped.metric(r#"culvert_tunnel_bytes_total{direction="out"}"#).await, Some(5.0));
}
