//! The root, the account, and the catalog.

use culvert_test_macros::both_engines;
use insta::{allow_duplicates, assert_snapshot};
use serde_json::{Value, json};

use crate::support::host::{Engine, TestHost};

/// covers: GET /
#[both_engines]
async fn root_endpoint_returns_service_version(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let answer = host.api(&ada.key).get("/").await;
    allow_duplicates! { assert_snapshot!(answer, @r#"
    200
    {
      "data": {
        "documentation_url": "https://api.example.test/docs",
        "status": "available",
        "version": "v2"
      },
      "meta": {
        "request_id": "[uuid]"
      }
    }
    "#) }
}

/// covers: GET /account
/// covers: GET /account/usage
#[both_engines]
async fn personal_key_returns_account_limits_and_usage(engine: Engine) {
    let host = TestHost::with(engine, |config| config.default_plan = "pro".into()).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let answer = api.get("/account").await;
    allow_duplicates! { assert_snapshot!(answer, @r#"
    200
    {
      "data": {
        "bandwidth_limit_bytes": 500000000000,
        "created_at": "[time]",
        "display_name": "ada",
        "email": "ada@example.test",
        "id": "[uuid]",
        "plan_name": "pro",
        "scope": {
          "role": null,
          "team_id": null,
          "team_name": null,
          "type": "personal"
        },
        "tunnel_limit": 25
      },
      "meta": {
        "request_id": "[uuid]"
      }
    }
    "#) }
    let answer = api.get("/account/usage").await;
    allow_duplicates! { assert_snapshot!(answer, @r#"
    200
    {
      "data": {
        "active_tunnels": 0,
        "as_of": "[time]",
        "bandwidth": {
          "month": {
            "bytes_in": 0,
            "bytes_out": 0,
            "bytes_total": 0,
            "period_start": "[time]"
          },
          "today": {
            "bytes_in": 0,
            "bytes_out": 0,
            "bytes_total": 0,
            "period_start": "[time]"
          }
        },
        "total_tunnels": 0
      },
      "meta": {
        "request_id": "[uuid]"
      }
    }
    "#) }
}

/// covers: GET /account
#[both_engines]
async fn team_key_returns_account_with_team_role(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let team = host.team("Analytical Engines", &ada).await;
    let key = host.key(ada.account_id, team, "full_access").await;
    let answer = host.api(&key.key).get("/account").await;
    allow_duplicates! { assert_snapshot!(answer, @r#"
    200
    {
      "data": {
        "bandwidth_limit_bytes": null,
        "created_at": "[time]",
        "display_name": "ada",
        "email": "ada@example.test",
        "id": "[uuid]",
        "plan_name": "self-hosted",
        "scope": {
          "role": "owner",
          "team_id": "[uuid]",
          "team_name": "Analytical Engines",
          "type": "team"
        },
        "tunnel_limit": null
      },
      "meta": {
        "request_id": "[uuid]"
      }
    }
    "#) }
}

/// covers: GET /nodes
/// covers: GET /presets
/// covers: GET /domains
/// covers: GET /scope-presets
#[both_engines]
async fn catalog_endpoints_list_nodes_domains_and_presets(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let answer = api.get("/nodes").await;
    allow_duplicates! { assert_snapshot!(answer, @r#"
    200
    {
      "data": [
        {
          "country": "ZZ",
          "id": "[uuid]",
          "name": "[node]",
          "pro_only": false,
          "region": "local",
          "region_flag": null,
          "status": "online"
        }
      ],
      "meta": {
        "request_id": "[uuid]"
      }
    }
    "#) }
    let answer = api.get("/domains").await;
    allow_duplicates! { assert_snapshot!(answer, @r#"
    200
    {
      "data": [
        {
          "domain": "tunnel.localhost",
          "id": "[uuid]",
          "is_default": true,
          "pro_only": false,
          "region": null
        }
      ],
      "meta": {
        "request_id": "[uuid]"
      }
    }
    "#) }
    let presets = api.get("/presets").await;
    let lines: Vec<String> = presets.data().as_array().unwrap().iter().map(preset).collect();
    allow_duplicates! { assert_snapshot!(lines.join("\n"), @r#"
    game minecraft-java tcp 25565
    game minecraft-bedrock udp 19132
    game valheim udp 2456 +"udp" 2457
    game terraria tcp 7777
    game rust udp 28015 +"tcp" 28016
    game 7-days-to-die both 26900
    game palworld udp 8211
    app ssh tcp 22
    app rdp both 3389
    app http http 8080
    "#) }
    let scopes = api.get("/scope-presets").await;
    let lines: Vec<String> = scopes.data().as_array().unwrap().iter().map(scope_preset).collect();
    allow_duplicates! { assert_snapshot!(lines.join("\n"), @r#"
    read_only: ["account:read","tunnels:read","devices:read","operations:read","webhooks:read"]
    operator: ["account:read","tunnels:read","tunnels:control","devices:read","devices:control","operations:read","webhooks:read"]
    tunnel_manager: ["account:read","tunnels:read","tunnels:write","tunnels:control","devices:read","operations:read"]
    webhook_manager: ["account:read","webhooks:read","webhooks:write"]
    full_access: ["account:read","tunnels:read","tunnels:write","tunnels:control","devices:read","devices:write","devices:control","operations:read","webhooks:read","webhooks:write"]
    "#) }
}

/// The same answer for what a query does not know.
#[both_engines]
async fn unknown_query_parameters_are_ignored(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    assert_eq!(api.get("/tunnels?colour=red&colour=blue").await.data(), &json!([]));
}

fn preset(preset: &Value) -> String {
    let text = |name: &str| preset[name].as_str().unwrap_or("-").to_owned();
    let extra = preset["extra_ports"]
        .as_array()
        .unwrap()
        .iter()
        .map(|port| format!(" +{} {}", port["protocol"], port["local_port"]));
    format!(
        "{} {} {} {}{}",
        text("category"),
        text("slug"),
        text("protocol"),
        preset["local_port"],
        extra.collect::<String>()
    )
}

fn scope_preset(preset: &Value) -> String {
    format!("{}: {}", preset["id"].as_str().unwrap(), preset["scopes"])
}
