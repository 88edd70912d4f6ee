//! Tunnels: create, read, list, change, bind, delete.

use std::time::Duration;

use culvert_test_macros::both_engines;
use insta::{allow_duplicates, assert_snapshot};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::database::{bytes_of, execute};
use crate::support::device::Remote;
use crate::support::host::{Engine, TestHost};
use crate::support::policies::{Swapped, builtin, entry};

/// covers: POST /tunnels
/// covers: GET /tunnels/{tunnel_id}
#[both_engines]
async fn created_tunnel_is_readable_and_listed(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let created = api.post("/tunnels", json!({"local_port": 8080})).await;
    allow_duplicates! { assert_snapshot!(created, @r#"
    201
    {
      "data": {
        "bindings": {
          "device_ids": [],
          "unrestricted": true
        },
        "buffer_size": 65536,
        "country": null,
        "created_at": "[time]",
        "created_by": "[uuid]",
        "custom_domain": null,
        "game_preset_id": null,
        "host_header": null,
        "http_basic_auth_enabled": false,
        "http_basic_auth_username": null,
        "http_ssl_enabled": true,
        "id": "[uuid]",
        "idle_timeout": null,
        "local_host": "[host]",
        "local_port": 8080,
        "local_scheme": "auto",
        "local_tls_verify": null,
        "name": "tcp-8080",
        "node": {
          "country": "ZZ",
          "id": "[uuid]",
          "name": "[node]",
          "region": "local",
          "region_flag": null,
          "status": "online"
        },
        "pro_network": true,
        "protocol": "tcp",
        "proxy_protocol": "none",
        "public_address": {
          "hostname": "[host]",
          "ipv4": "[host]",
          "ipv6": null,
          "port": "[port]",
          "url": null
        },
        "region": null,
        "remote_port": "[port]",
        "runtime": {
          "device_id": null,
          "running": false
        },
        "status": "stopped",
        "subdomain": null,
        "tls_passthrough": false,
        "updated_at": "[time]"
      },
      "meta": {
        "request_id": "[uuid]"
      }
    }
    "#) }
    let read = api.get(&format!("/tunnels/{}", created.id())).await;
    allow_duplicates! { assert_snapshot!(read, @r#"
    200
    {
      "data": {
        "authorized_devices": [],
        "authorized_devices_total": 0,
        "bindings": {
          "device_ids": [],
          "unrestricted": true
        },
        "buffer_size": 65536,
        "country": null,
        "created_at": "[time]",
        "created_by": "[uuid]",
        "current_device": null,
        "custom_domain": null,
        "extra_ports": [],
        "game_preset_id": null,
        "host_header": null,
        "http_basic_auth_enabled": false,
        "http_basic_auth_username": null,
        "http_ssl_enabled": true,
        "id": "[uuid]",
        "idle_timeout": null,
        "local_host": "[host]",
        "local_port": 8080,
        "local_scheme": "auto",
        "local_tls_verify": null,
        "name": "tcp-8080",
        "node": {
          "country": "ZZ",
          "id": "[uuid]",
          "name": "[node]",
          "region": "local",
          "region_flag": null,
          "status": "online"
        },
        "pro_network": true,
        "protocol": "tcp",
        "proxy_protocol": "none",
        "public_address": {
          "hostname": "[host]",
          "ipv4": "[host]",
          "ipv6": null,
          "port": "[port]",
          "url": null
        },
        "region": null,
        "remote_port": "[port]",
        "runtime": {
          "device_id": null,
          "running": false
        },
        "status": "stopped",
        "subdomain": null,
        "tls_passthrough": false,
        "updated_at": "[time]"
      },
      "meta": {
        "request_id": "[uuid]"
      }
    }
    "#) }
    let listed = api.get("/tunnels").await;
    assert_eq!(listed.body["data"], json!([created.data()]));
    assert_eq!(listed.body["meta"]["next_cursor"], Value::Null);
}

/// covers: POST /tunnels
#[both_engines]
async fn created_tunnel_keeps_every_given_field(engine: Engine) {
    let host = TestHost::with(engine, |config| config.node.http_port = Some(80)).await;
    let ada = host.person("ada").await;
    let device = host.device(&ada, ada.account_id, Remote::Disabled).await;
    let api = host.api(&ada.key);
    let created = api
        .post(
            "/tunnels",
            json!({
                "name": "Wiki ☕", "protocol": "http", "local_host": "wiki.internal", "local_port": 80,
                "region": "eu-central", "country": "de", "subdomain": "Wiki",
                "http_ssl_enabled": false, "http_basic_auth_enabled": true,
                "http_basic_auth_username": "ada", "http_basic_auth_password": "correct horse",
                "host_header": "wiki.internal:81", "local_scheme": "h2c",
                "pro_network": false, "device_ids": [device.id, device.id],
                "extra_ports": [{"local_port": 81, "label": "admin", "protocol": "http"}, {"local_port": 5432}],
            }),
        )
        .await;
    assert!(!created.text.contains("correct horse") && !created.text.contains("password"), "{created}");
    let read = api.get(&format!("/tunnels/{}", created.id())).await;
    allow_duplicates! { assert_snapshot!(read, @r#"
    200
    {
      "data": {
        "authorized_devices": [
          {
            "id": "[uuid]",
            "name": "machine",
            "online": true,
            "remote_control_enabled": false
          }
        ],
        "authorized_devices_total": 1,
        "bindings": {
          "device_ids": [
            "[uuid]"
          ],
          "unrestricted": false
        },
        "buffer_size": 65536,
        "country": "DE",
        "created_at": "[time]",
        "created_by": "[uuid]",
        "current_device": null,
        "custom_domain": null,
        "extra_ports": [
          {
            "id": "[uuid]",
            "label": "admin",
            "local_port": 81,
            "protocol": "http",
            "public_address": {
              "hostname": "p81-wiki.tunnel.localhost",
              "ipv4": "[host]",
              "ipv6": null,
              "port": 80,
              "url": "http://p81-wiki.tunnel.localhost"
            },
            "remote_port": 80
          },
          {
            "id": "[uuid]",
            "label": null,
            "local_port": 5432,
            "protocol": "tcp",
            "public_address": {
              "hostname": "wiki.tunnel.localhost",
              "ipv4": "[host]",
              "ipv6": null,
              "port": "[port]",
              "url": null
            },
            "remote_port": "[port]"
          }
        ],
        "game_preset_id": null,
        "host_header": "wiki.internal:81",
        "http_basic_auth_enabled": true,
        "http_basic_auth_username": "ada",
        "http_ssl_enabled": false,
        "id": "[uuid]",
        "idle_timeout": null,
        "local_host": "wiki.internal",
        "local_port": 80,
        "local_scheme": "h2c",
        "local_tls_verify": null,
        "name": "Wiki ☕",
        "node": {
          "country": "ZZ",
          "id": "[uuid]",
          "name": "[node]",
          "region": "local",
          "region_flag": null,
          "status": "online"
        },
        "pro_network": false,
        "protocol": "http",
        "proxy_protocol": "none",
        "public_address": {
          "hostname": "wiki.tunnel.localhost",
          "ipv4": "[host]",
          "ipv6": null,
          "port": 80,
          "url": "http://wiki.tunnel.localhost"
        },
        "region": "eu-central",
        "remote_port": 80,
        "runtime": {
          "device_id": null,
          "running": false
        },
        "status": "stopped",
        "subdomain": "wiki",
        "tls_passthrough": false,
        "updated_at": "[time]"
      },
      "meta": {
        "request_id": "[uuid]"
      }
    }
    "#) }
}

#[both_engines]
async fn preset_fills_in_omitted_tunnel_fields(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let presets = api.get("/presets").await;
    let valheim = presets.data().as_array().unwrap().iter().find(|preset| preset["slug"] == "valheim").unwrap();
    let filled = api.post("/tunnels", json!({"local_port": 2456, "game_preset_id": valheim["id"]})).await;
    let filled = api.get(&format!("/tunnels/{}", filled.id())).await;
    assert_eq!(filled.data()["name"], "Valheim");
    assert_eq!(filled.data()["protocol"], "udp");
    assert_eq!(filled.data()["game_preset_id"], valheim["id"]);
    assert_eq!(filled.data()["extra_ports"][0]["local_port"], 2457);
    assert_eq!(filled.data()["extra_ports"][0]["label"], "query");
    let said =
        json!({"local_port": 1, "game_preset_id": valheim["id"], "name": "x", "protocol": "tcp", "extra_ports": []});
    let said = api.post("/tunnels", said).await;
    let said = api.get(&format!("/tunnels/{}", said.id())).await;
    assert_eq!(said.data()["name"], "x");
    assert_eq!(said.data()["protocol"], "tcp");
    assert_eq!(said.data()["extra_ports"], json!([]));
    let unknown = api.post("/tunnels", json!({"local_port": 1, "game_preset_id": Uuid::from_u128(7)})).await;
    assert_eq!((unknown.outcome(), unknown.fields()), ("422 validation_failed".into(), vec!["game_preset_id".into()]));
}

/// covers: subdomain_unavailable
#[both_engines]
async fn http_tunnel_gets_unique_subdomain(engine: Engine) {
    let host =
        TestHost::with(engine, |config| (config.node.http_port, config.node.https_port) = (Some(80), Some(443))).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let one = api.post("/tunnels", json!({"local_port": 80, "protocol": "http"})).await;
    let subdomain = one.data()["subdomain"].as_str().unwrap().to_owned();
    let hostname = format!("{subdomain}.tunnel.localhost");
    assert_eq!(one.data()["public_address"]["hostname"], hostname.as_str());
    assert_eq!(one.data()["public_address"]["url"], format!("https://{hostname}"));
    assert_eq!(one.data()["remote_port"], 443);
    let plain = api.patch(&format!("/tunnels/{}", one.id()), json!({"http_ssl_enabled": false})).await;
    assert_eq!(plain.data()["remote_port"], 80);
    assert_eq!(plain.data()["public_address"]["url"], format!("http://{hostname}"));
    let taken = api
        .post("/tunnels", json!({"local_port": 80, "protocol": "http", "subdomain": subdomain.to_uppercase()}))
        .await;
    assert_eq!(taken.outcome(), "409 subdomain_unavailable");
    api.delete(&format!("/tunnels/{}", one.id())).await.data();
    let free = api.post("/tunnels", json!({"local_port": 80, "protocol": "http", "subdomain": subdomain})).await;
    assert_eq!(free.status, 201);
}

/// It was made before such names were refused.
#[both_engines]
async fn extra_port_does_not_get_name_of_an_older_tunnel(engine: Engine) {
    let host = TestHost::start(engine).await;
    let api = host.api(&host.person("ada").await.key);
    let http = |subdomain: &str, ports: Value| {
        let tunnel = json!({"local_port": 80, "protocol": "http", "subdomain": subdomain, "extra_ports": ports});
        async { api.post("/tunnels", tunnel).await }
    };
    http("older", json!([])).await.data();
    execute(&host, "UPDATE tunnels SET subdomain = 'p8080-hello' WHERE subdomain = 'older'").await;
    let port = json!({"local_port": 8080, "protocol": "http"});
    let refused = http("hello", json!([port])).await;
    assert_eq!(refused.outcome(), "409 subdomain_unavailable");
    assert_eq!(refused.body["detail"], "Another tunnel has the name of this port.");
    let tunnel = http("hello", json!([])).await.id();
    assert_eq!(api.post(&format!("/tunnels/{tunnel}/extra-ports"), port).await.outcome(), "409 subdomain_unavailable");
}

/// Its visitors would reach the tunnel of somebody else.
#[both_engines]
async fn subdomain_that_was_given_up_rests_for_a_day(engine: Engine) {
    let host = TestHost::start(engine).await;
    let (ada, bob) = (host.api(&host.person("ada").await.key), host.api(&host.person("bob").await.key));
    let named = json!({"local_port": 80, "protocol": "http", "subdomain": "shop"});
    for _ in 0..2 {
        let tunnel = ada.post("/tunnels", named.clone()).await;
        assert_eq!(tunnel.status, 201, "its own scope gets it back at once");
        ada.delete(&format!("/tunnels/{}", tunnel.id())).await.data();
    }
    assert_eq!(bob.post("/tunnels", named.clone()).await.outcome(), "409 subdomain_unavailable");
    host.clock.advance(Duration::from_hours(24) - Duration::from_secs(1));
    assert_eq!(bob.post("/tunnels", named.clone()).await.outcome(), "409 subdomain_unavailable");
    host.clock.advance(Duration::from_secs(1));
    assert_eq!(bob.post("/tunnels", named).await.outcome(), "201");
}

/// A scope cannot keep more names from all others than its plan gives it, and the last ones that it gave up.
#[both_engines]
async fn only_last_twenty_subdomains_of_a_scope_rest(engine: Engine) {
    let host = TestHost::start(engine).await;
    let (ada, bob) = (host.api(&host.person("ada").await.key), host.api(&host.person("bob").await.key));
    let named = |number: usize| json!({"local_port": 80, "protocol": "http", "subdomain": format!("shop-{number}")});
    for number in 0..22 {
        let tunnel = ada.post("/tunnels", named(number)).await.id();
        host.clock.advance(Duration::from_mins(1));
        ada.delete(&format!("/tunnels/{tunnel}")).await.data();
    }
    let mut outcomes = Vec::new();
    for number in [0, 1, 2, 21] {
        outcomes.push(bob.post("/tunnels", named(number)).await.outcome());
    }
    assert_eq!(outcomes, ["201", "201", "409 subdomain_unavailable", "409 subdomain_unavailable"]);
    // Nothing is kept longer than it counts.
    host.clock.advance(Duration::from_hours(24));
    host.app.store.prune().await.unwrap();
    assert_eq!(bytes_of(&host, "SELECT domain_id AS bytes FROM resting_subdomains").await, Vec::<Vec<u8>>::new());
}

/// The http extra port 8080 of `hello` is `p8080-hello`.
///
/// covers: port_conflict
#[both_engines]
async fn names_of_http_extra_ports_belong_to_one_tunnel(engine: Engine) {
    let host = TestHost::start(engine).await;
    let api = host.api(&host.person("ada").await.key);
    let http = |subdomain: &str, ports: Value| {
        let tunnel = json!({"local_port": 80, "protocol": "http", "subdomain": subdomain, "extra_ports": ports});
        async { api.post("/tunnels", tunnel).await }
    };
    let none = || json!([]);
    assert_eq!(http("p8080-hello", none()).await.outcome(), "409 subdomain_unavailable");
    assert_eq!(http("P1-hello", none()).await.outcome(), "409 subdomain_unavailable");
    for free in ["p-hello", "p123456-hello", "p80a-hello", "p8080"] {
        assert_eq!(http(free, none()).await.outcome(), "201");
    }
    let twice = json!([
        {"local_port": 8080, "protocol": "http"}, {"local_port": 8080}, {"local_port": 8080, "protocol": "http"},
    ]);
    assert_eq!(http("hello", twice).await.outcome(), "409 port_conflict");
    let once = json!([{"local_port": 8080, "protocol": "http"}, {"local_port": 8080}]);
    let tunnel = http("hello", once).await.id();
    let path = format!("/tunnels/{tunnel}/extra-ports");
    let again = api.post(&path, json!({"local_port": 8080, "protocol": "http"})).await;
    assert_eq!(again.outcome(), "409 port_conflict");
    assert_eq!(again.body["detail"], "The tunnel has an http extra port for the local port 8080 already.");
    assert_eq!(api.post(&path, json!({"local_port": 8081, "protocol": "http"})).await.outcome(), "201");
    assert_eq!(api.post(&path, json!({"local_port": 8080})).await.outcome(), "201");
    // A label has 63 characters, of which `p65535-` takes seven.
    let (long, longer) = ("a".repeat(56), "b".repeat(57));
    assert_eq!(http(&long, json!([{"local_port": 65_535, "protocol": "http"}])).await.outcome(), "201");
    let refused = http(&longer, json!([{"local_port": 81}, {"local_port": 65_535, "protocol": "http"}])).await;
    assert_eq!(
        (refused.outcome(), refused.fields()),
        ("422 validation_failed".into(), vec!["extra_ports[1].protocol".into()])
    );
    let plain = http(&longer, none()).await.id();
    let refused =
        api.post(&format!("/tunnels/{plain}/extra-ports"), json!({"local_port": 81, "protocol": "http"})).await;
    assert_eq!((refused.outcome(), refused.fields()), ("422 validation_failed".into(), vec!["protocol".into()]));
}

/// covers: PATCH /tunnels/{tunnel_id}
#[both_engines]
async fn tunnel_update_leaves_omitted_fields_unchanged(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let tunnel = api.post("/tunnels", json!({"local_port": 80, "name": "before", "protocol": "http"})).await;
    let path = format!("/tunnels/{}", tunnel.id());
    let changed = api.patch(&path, json!({
        "name": "after", "idle_timeout": 30, "buffer_size": 1024, "host_header": "app", "local_scheme": "http",
        "http_basic_auth_enabled": true, "http_basic_auth_username": "ada", "http_basic_auth_password": "12345678",
    })).await;
    let mut expected = tunnel.data().clone();
    for (name, value) in [
        ("name", json!("after")),
        ("idle_timeout", json!(30)),
        ("buffer_size", json!(1024)),
        ("host_header", json!("app")),
        ("local_scheme", json!("http")),
        ("http_basic_auth_enabled", json!(true)),
        ("http_basic_auth_username", json!("ada")),
    ] {
        expected[name] = value;
    }
    assert_eq!(changed.data(), &expected);
    let incomplete = api.patch(&path, json!({"http_basic_auth_password": null})).await;
    assert_eq!(incomplete.fields(), ["http_basic_auth_password"]);
    let off = api.patch(&path, json!({"http_basic_auth_enabled": false, "http_basic_auth_username": null, "http_basic_auth_password": null})).await;
    assert_eq!(off.data()["http_basic_auth_username"], Value::Null);
}

/// covers: PATCH /tunnels/{tunnel_id}
#[both_engines]
async fn fetched_tunnel_is_accepted_as_update_request(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let tunnel = api.post("/tunnels", json!({"local_port": 80})).await;
    let path = format!("/tunnels/{}", tunnel.id());
    let mut read = api.get(&path).await.data().clone();
    // The only field whose null is no value of its own.
    read.as_object_mut().unwrap().remove("idle_timeout");
    assert_eq!(api.patch(&path, read.clone()).await.status, 200);
    let bindings = api.put(&format!("{path}/devices"), read["bindings"].clone()).await;
    assert_eq!(bindings.data(), &json!({"device_ids": [], "unrestricted": true, "stopped_device_id": null}));
}

/// covers: DELETE /tunnels/{tunnel_id}
#[both_engines]
async fn deleted_tunnel_is_not_found(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let tunnel = api.post("/tunnels", json!({"local_port": 80, "extra_ports": [{"local_port": 81}]})).await;
    let path = format!("/tunnels/{}", tunnel.id());
    let deleted = api.delete(&path).await;
    assert_eq!(deleted.data(), &json!({"id": tunnel.id(), "deleted": true}));
    assert_eq!(api.get(&path).await.outcome(), "404 not_found");
    assert_eq!(api.delete(&path).await.outcome(), "404 not_found");
    assert_eq!(api.get("/tunnels").await.data(), &json!([]));
}

/// covers: PUT /tunnels/{tunnel_id}/devices
#[both_engines]
async fn device_allowlist_update_replaces_whole_list(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let (one, other) = (
        host.device(&ada, ada.account_id, Remote::Disabled).await,
        host.device(&ada, ada.account_id, Remote::Disabled).await,
    );
    let api = host.api(&ada.key);
    let tunnel = api.post("/tunnels", json!({"local_port": 80, "device_ids": [one.id]})).await;
    let path = format!("/tunnels/{}", tunnel.id());
    assert_eq!(tunnel.data()["bindings"], json!({"device_ids": [one.id], "unrestricted": false}));
    let authorized = api.get(&path).await;
    assert_eq!(authorized.data()["authorized_devices"].as_array().unwrap().len(), 1);
    let bound = api.put(&format!("{path}/devices"), json!({"device_ids": [other.id]})).await;
    assert_eq!(bound.data(), &json!({"device_ids": [other.id], "unrestricted": false, "stopped_device_id": null}));
    let stranger = host.person("eve").await;
    let foreign = host.device(&stranger, stranger.account_id, Remote::Disabled).await;
    for unknown in [foreign.id, Uuid::from_u128(7)] {
        let refused = api.put(&format!("{path}/devices"), json!({"device_ids": [one.id, unknown]})).await;
        assert_eq!(refused.outcome(), "422 validation_failed");
        assert_eq!(
            refused.body["errors"],
            json!([{"field": "device_ids[1]", "message": "is no device of this scope"}])
        );
    }
    assert_eq!(api.get(&path).await.data()["bindings"]["device_ids"], json!([other.id]));
}

/// covers: plan_limit_reached
#[both_engines]
async fn tunnel_features_and_limits_follow_plan(engine: Engine) {
    let host = TestHost::with(engine, |config| config.default_plan = "free".into()).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let tunnel = api.post("/tunnels", json!({"local_port": 80})).await;
    assert_eq!(tunnel.data()["pro_network"], false);
    for refused in [
        api.post("/tunnels", json!({"local_port": 80, "pro_network": true})).await,
        api.patch(&format!("/tunnels/{}", tunnel.id()), json!({"pro_network": true})).await,
    ] {
        assert_eq!(refused.outcome(), "403 feature_not_available");
        assert_eq!(refused.body["detail"], "The plan does not include the premium network (`pro_network`).");
    }
    let ports = json!([{"local_port": 1}, {"local_port": 2}]);
    let refused = api.post("/tunnels", json!({"local_port": 80, "extra_ports": ports})).await;
    assert_eq!(refused.outcome(), "403 plan_limit_reached");
    for _ in 0..2 {
        assert_eq!(api.post("/tunnels", json!({"local_port": 80})).await.status, 201);
    }
    let refused = api.post("/tunnels", json!({"local_port": 80})).await;
    assert_eq!(refused.outcome(), "403 plan_limit_reached");
    host.set_plan(ada.account_id, "pro").await;
    host.pass(Duration::from_secs(1)).await;
    assert_eq!(api.post("/tunnels", json!({"local_port": 80})).await.data()["pro_network"], true);
}

/// Sixty-four at once, for three that the plan includes.
#[both_engines]
async fn concurrent_tunnel_creation_respects_plan_limit(engine: Engine) {
    let host = TestHost::with(engine, |config| config.default_plan = "free".into()).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let creates = (0..64).map(|_| api.post("/tunnels", json!({"local_port": 80})));
    let answers = futures_util::future::join_all(creates).await;
    let outcomes: Vec<String> = answers.iter().map(super::support::api::Answer::outcome).collect();
    assert_eq!(outcomes.iter().filter(|outcome| *outcome == "201").count(), 3, "{outcomes:?}");
    assert_eq!(outcomes.iter().filter(|outcome| *outcome == "403 plan_limit_reached").count(), 61, "{outcomes:?}");
    assert_eq!(api.get("/account/usage").await.data()["total_tunnels"], 3);
}

/// Without a limit, a crowd is no reason to refuse anybody.
#[both_engines]
async fn concurrent_tunnel_creation_without_limit_succeeds(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let creates = (0..64).map(|_| api.post("/tunnels", json!({"local_port": 80})));
    let answers = futures_util::future::join_all(creates).await;
    assert!(
        answers.iter().all(|answer| answer.status == 201),
        "{:?}",
        answers.iter().map(super::support::api::Answer::outcome).collect::<Vec<_>>()
    );
    let ports: std::collections::HashSet<u64> =
        answers.iter().map(|answer| answer.data()["remote_port"].as_u64().unwrap()).collect();
    assert_eq!(ports.len(), 64);
}

/// Two ports for two: no guess that fails gives away what the tunnel has already.
#[both_engines]
async fn tunnel_in_minimal_port_range_gets_distinct_ports(engine: Engine) {
    let host = TestHost::with(engine, |config| config.node.ports = "20000-20001".parse().unwrap()).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    for _ in 0..12 {
        let extra = json!([{"local_port": 81, "protocol": "both"}]);
        let tunnel = api.post("/tunnels", json!({"local_port": 80, "extra_ports": extra})).await.id();
        let read = api.get(&format!("/tunnels/{tunnel}")).await;
        assert_ne!(read.data()["remote_port"], read.data()["extra_ports"][0]["remote_port"]);
        let full = api.post("/tunnels", json!({"local_port": 80})).await;
        assert_eq!(full.outcome(), "409 no_port_available");
        api.delete(&format!("/tunnels/{tunnel}")).await.data();
    }
}

/// A plan that changed a moment ago decides, on what the request did not say as well.
#[both_engines]
async fn changed_plan_determines_defaults_of_next_tunnel(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    api.get("/account").await.data();
    host.set_plan(ada.account_id, "free").await;
    assert_eq!(api.post("/tunnels", json!({"local_port": 80})).await.data()["pro_network"], false);
}

/// One fault a field, and none that follows from another.
///
/// covers: validation_failed
#[both_engines]
async fn malformed_field_causes_no_follow_up_errors(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let path = format!("/tunnels/{}", api.post("/tunnels", json!({"local_port": 80})).await.id());
    assert_eq!(api.patch(&path, json!({"local_port": "80"})).await.fields(), ["local_port"]);
    assert_eq!(api.patch(&path, json!({})).await.fields(), ["body"]);
    assert_eq!(api.post("/tunnels", json!({"local_port": 80, "extra_ports": [7]})).await.fields(), ["extra_ports[0]"]);
    let many = json!(vec![json!({}); 1001]);
    assert_eq!(api.post("/tunnels", json!({"local_port": 80, "extra_ports": many})).await.fields(), ["extra_ports"]);
    let start = api.post(&format!("{path}/actions/start"), json!({"device_id": "nonsense", "handoff": true})).await;
    assert_eq!(start.fields(), ["device_id"]);
}

/// covers: no_port_available
/// covers: node_unavailable
#[both_engines]
async fn tunnel_creation_without_free_port_or_node_is_refused(engine: Engine) {
    let host = TestHost::with(engine, |config| config.node.ports = "20000-20002".parse().unwrap()).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let tcp = api.post("/tunnels", json!({"local_port": 80})).await;
    let both = api.post("/tunnels", json!({"local_port": 80, "protocol": "both"})).await;
    let udp = api.post("/tunnels", json!({"local_port": 80, "protocol": "udp"})).await;
    assert_ne!(tcp.data()["remote_port"], both.data()["remote_port"]);
    assert_ne!(udp.data()["remote_port"], both.data()["remote_port"]);
    assert_eq!(api.post("/tunnels", json!({"local_port": 80})).await.status, 201);
    let full = api.post("/tunnels", json!({"local_port": 80})).await;
    assert_eq!(full.outcome(), "409 no_port_available");
    assert_eq!(api.get("/account/usage").await.data()["total_tunnels"], 4, "nothing was half done");
    api.delete(&format!("/tunnels/{}", both.id())).await.data();
    assert_eq!(api.post("/tunnels", json!({"local_port": 80})).await.data()["remote_port"], both.data()["remote_port"]);

    let mut node = host.app.store.nodes().await.unwrap().remove(0);
    node.status = culvert_domain::node::NodeStatus::Maintenance;
    host.app.store.write(None, move |write| Box::pin(async move { write.update_node(&node).await })).await.unwrap();
    let refused = api.post("/tunnels", json!({"local_port": 80, "protocol": "http"})).await;
    assert_eq!(refused.outcome(), "409 node_unavailable");
    assert_eq!(api.get("/").await.data()["status"], "maintenance");
}

/// How a service is spoken to is said of http tunnels; what was read of any tunnel can be written back.
#[both_engines]
async fn service_fields_belong_to_http_tunnels(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let tcp = api.post("/tunnels", json!({"local_port": 80, "host_header": null, "local_scheme": "auto"})).await;
    let path = format!("/tunnels/{}", tcp.id());
    let refused = api.patch(&path, json!({"host_header": "app", "local_scheme": "h2c"})).await;
    assert_eq!((refused.status, refused.fields()), (422, vec!["host_header".into(), "local_scheme".into()]));
    assert_eq!(api.patch(&path, json!({"host_header": null, "local_scheme": "auto"})).await.status, 200);
    for (field, wrong) in [
        ("host_header", json!("http://app/")),
        ("host_header", json!("user@app")),
        ("host_header", json!("app:0")),
        ("host_header", json!("")),
        ("host_header", json!("a".repeat(256))),
        ("host_header", json!(7)),
        ("local_scheme", json!("ftp")),
        ("local_scheme", Value::Null),
        ("local_tls_verify", json!("yes")),
        ("proxy_protocol", json!("v3")),
        ("proxy_protocol", json!("spp")),
        ("proxy_protocol", Value::Null),
        ("tls_passthrough", json!(1)),
        ("tls_passthrough", Value::Null),
    ] {
        let refused = api.post("/tunnels", json!({"local_port": 80, "protocol": "http", field: wrong})).await;
        assert_eq!((refused.status, refused.fields()), (422, vec![field.to_owned()]), "{wrong}");
    }
}

/// Each protocol has forms of its own to tell a service who the visitor is.
#[both_engines]
async fn proxy_protocol_fits_the_tunnels_protocol(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let mut seen = Vec::new();
    for protocol in ["tcp", "http", "udp", "both"] {
        for value in ["none", "v1", "v2", "spp"] {
            let asked =
                api.post("/tunnels", json!({"local_port": 80, "protocol": protocol, "proxy_protocol": value})).await;
            seen.push(match asked.status {
                201 => format!("{protocol} {value}"),
                _ => format!("{protocol}: {}", asked.body["errors"][0]["message"].as_str().unwrap()),
            });
        }
    }
    allow_duplicates! { assert_snapshot!(seen.join("\n"), @"
    tcp none
    tcp v1
    tcp v2
    tcp: must be one of `none`, `v1`, `v2` for tcp tunnels
    http none
    http v1
    http v2
    http: must be one of `none`, `v1`, `v2` for http tunnels
    udp none
    udp: must be one of `none`, `v2`, `spp` for udp tunnels
    udp v2
    udp spp
    both none
    both: must be one of `none`, `v2` for both tunnels
    both v2
    both: must be one of `none`, `v2` for both tunnels
    "); }
}

/// Passed-through requests are seen by the service alone, so nobody else can ask for a password.
#[both_engines]
async fn basic_auth_and_pass_through_exclude_each_other(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let passed = json!({"local_port": 443, "protocol": "http", "tls_passthrough": true});
    let tunnel = api.post("/tunnels", passed).await;
    assert_eq!(tunnel.data()["tls_passthrough"], true);
    let path = format!("/tunnels/{}", tunnel.id());
    let auth = json!({"http_basic_auth_enabled": true, "http_basic_auth_username": "ada", "http_basic_auth_password": "correct horse"});
    let refused = api.patch(&path, auth.clone()).await;
    assert_eq!((refused.status, refused.fields()), (422, vec!["tls_passthrough".into()]), "{}", refused.outcome());
    api.patch(&path, json!({"tls_passthrough": false})).await.data();
    assert_eq!(api.patch(&path, auth).await.status, 200);
    let refused = api.patch(&path, json!({"tls_passthrough": true})).await;
    assert_eq!((refused.status, refused.fields()), (422, vec!["tls_passthrough".into()]));
    let refused =
        api.post("/tunnels", json!({"local_port": 443, "local_tls_verify": true, "tls_passthrough": true})).await;
    assert_eq!(refused.fields(), ["local_tls_verify", "tls_passthrough"]);
}

/// A module for the interface 1.0.0 refuses a change without a field, and does not know these.
#[both_engines]
async fn older_module_lets_a_change_of_newer_fields_pass(engine: Engine) {
    let swapped = Swapped::on(engine, |_| {}).await;
    let wasm = std::fs::read("policies/dist/validation@1.0.0.wasm").unwrap();
    let file = swapped.write_wasm("validation.wasm", &wasm);
    swapped.configure(&(builtin(&["plan-access", "team-role"]) + &entry("validation", &file, "")));
    assert_eq!(swapped.reload().await, Ok(2));
    let ada = swapped.host.person("ada").await;
    let api = swapped.host.api(&ada.key);
    let tunnel = api.post("/tunnels", json!({"local_port": 80, "protocol": "http"})).await.id();
    let path = format!("/tunnels/{tunnel}");
    for (field, value) in [
        ("host_header", json!("app")),
        ("local_scheme", json!("https")),
        ("local_tls_verify", json!(false)),
        ("proxy_protocol", json!("v2")),
        ("tls_passthrough", json!(true)),
    ] {
        assert_eq!(api.patch(&path, json!({field: value})).await.data()[field], value);
    }
    assert_eq!(api.patch(&path, json!({})).await.fields(), ["body"]);
    let refused = api.patch(&path, json!({"host_header": "a b"})).await;
    assert_eq!((refused.status, refused.fields()), (422, vec!["host_header".into()]), "the host judges as well");
}
