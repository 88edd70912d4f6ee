//! The description of the API is that of what is served, and the documentation explains every code.

use std::collections::{BTreeMap, BTreeSet};

use culvert_domain::error::Code;
use culvert_domain::event::{EventKind, TEST_EVENT};
use culvert_domain::permission::Permission;
use culvert_domain::string_enum::StringEnum;
use culvert_http::openapi::{document, path_parameters};
use culvert_http::problem::status;
use culvert_http::routes::table;
use insta::assert_snapshot;
use serde_json::Value;

use crate::support::host::{Engine, TestHost};

fn served() -> Value {
    document("https://api.example.test", "https://api.example.test/docs")
}

#[test]
fn openapi_paths_match_served_routes() {
    let document = served();
    let mut described = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            described.insert(format!("{} {path}", method.to_uppercase()));
            let named: Vec<_> = operation["parameters"]
                .as_array()
                .unwrap()
                .iter()
                .filter(|parameter| parameter["in"] == "path")
                .map(|parameter| parameter["name"].as_str().unwrap())
                .collect();
            assert_eq!(named, path_parameters(path).collect::<Vec<_>>(), "{path}");
        }
    }
    let routed: BTreeSet<_> = table().iter().map(|row| format!("{} {}", row.method, row.path)).collect();
    assert_eq!(described, routed);
}

/// The routes, for review: what they need, take and answer.
#[test]
fn route_table_matches_snapshot() {
    let line = |row: &culvert_http::row::Row| {
        let key = if row.idempotent { " key" } else { "" };
        let paged = if row.paged { " paged" } else { "" };
        format!(
            "{:6} {:42} {} {:16} {:?}{key}{paged}",
            row.method.as_str(),
            row.path,
            row.status,
            row.action.permission().unwrap(),
            row.takes
        )
    };
    assert_snapshot!(table().iter().map(line).collect::<Vec<_>>().join("\n"), @"
    GET    /                                          200 account:read     Nothing
    GET    /account                                   200 account:read     Nothing
    GET    /account/usage                             200 account:read     Nothing
    GET    /nodes                                     200 tunnels:read     Nothing
    GET    /presets                                   200 tunnels:read     Nothing
    GET    /domains                                   200 tunnels:read     Nothing
    GET    /scope-presets                             200 account:read     Nothing
    GET    /tunnels                                   200 tunnels:read     Nothing paged
    POST   /tunnels                                   201 tunnels:write    Object key
    GET    /tunnels/{tunnel_id}                       200 tunnels:read     Nothing
    PATCH  /tunnels/{tunnel_id}                       200 tunnels:write    Object
    DELETE /tunnels/{tunnel_id}                       200 tunnels:write    EmptyObject key
    PUT    /tunnels/{tunnel_id}/devices               200 tunnels:write    Object key
    POST   /tunnels/{tunnel_id}/actions/start         202 tunnels:control  Object key
    POST   /tunnels/{tunnel_id}/actions/stop          202 tunnels:control  EmptyObject key
    POST   /tunnels/{tunnel_id}/actions/restart       202 tunnels:control  EmptyObject key
    GET    /tunnels/{tunnel_id}/extra-ports           200 tunnels:read     Nothing
    POST   /tunnels/{tunnel_id}/extra-ports           201 tunnels:write    Object key
    DELETE /tunnels/{tunnel_id}/extra-ports/{port_id} 200 tunnels:write    EmptyObject key
    GET    /tunnels/{tunnel_id}/domain                200 tunnels:read     Nothing
    PUT    /tunnels/{tunnel_id}/domain                200 tunnels:write    Object key
    DELETE /tunnels/{tunnel_id}/domain                200 tunnels:write    EmptyObject key
    POST   /tunnels/{tunnel_id}/domain/actions/verify 200 tunnels:write    Object key
    GET    /tunnels/{tunnel_id}/firewall              200 tunnels:read     Nothing
    PUT    /tunnels/{tunnel_id}/firewall              200 tunnels:write    Object key
    GET    /tunnels/{tunnel_id}/geoip                 200 tunnels:read     Nothing
    PUT    /tunnels/{tunnel_id}/geoip                 200 tunnels:write    Object key
    POST   /tunnels/{tunnel_id}/move                  202 tunnels:write    Object key
    GET    /tunnels/{tunnel_id}/usage                 200 tunnels:read     Nothing
    GET    /tunnels/{tunnel_id}/sessions              200 tunnels:read     Nothing paged
    GET    /devices                                   200 devices:read     Nothing paged
    GET    /devices/{device_id}                       200 devices:read     Nothing
    PATCH  /devices/{device_id}                       200 devices:write    Object
    POST   /devices/{device_id}/actions/stop-all      202 devices:control  EmptyObject key
    POST   /devices/{device_id}/actions/restart-agent 202 devices:control  EmptyObject key
    GET    /operations                                200 operations:read  Nothing paged
    GET    /operations/{operation_id}                 200 operations:read  Nothing
    GET    /webhooks                                  200 webhooks:read    Nothing paged
    POST   /webhooks                                  201 webhooks:write   Object key
    GET    /webhooks/{webhook_id}                     200 webhooks:read    Nothing
    PATCH  /webhooks/{webhook_id}                     200 webhooks:write   Object
    DELETE /webhooks/{webhook_id}                     200 webhooks:write   EmptyObject key
    POST   /webhooks/{webhook_id}/test                202 webhooks:write   EmptyObject key
    GET    /webhooks/{webhook_id}/deliveries          200 webhooks:read    Nothing paged
    ");
}

/// Every reference leads somewhere, every schema is used, every name is a valid one.
#[test]
fn openapi_references_and_component_names_are_valid() {
    let document = served();
    let mut used = BTreeSet::new();
    references(&document, &mut used);
    for reference in &used {
        assert!(document.pointer(reference).is_some(), "{reference} leads nowhere");
    }
    for kind in ["schemas", "responses", "headers"] {
        for name in document["components"][kind].as_object().unwrap().keys() {
            assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || b".-_".contains(&b)), "{name}");
            assert!(used.contains(&format!("/components/{kind}/{name}")), "{kind}/{name} is used by nobody");
        }
    }
    let mut ids = BTreeSet::new();
    for methods in document["paths"].as_object().unwrap().values() {
        for operation in methods.as_object().unwrap().values() {
            assert!(ids.insert(operation["operationId"].as_str().unwrap()), "{}", operation["operationId"]);
        }
    }
}

fn references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            if let Some(reference) = fields.get("$ref").and_then(Value::as_str) {
                found.insert(reference.trim_start_matches('#').into());
            }
            fields.values().for_each(|value| references(value, found));
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        _ => {}
    }
}

/// Whoever follows the links comes to every endpoint that needs an id. What they give is there, and is taken.
#[test]
fn openapi_links_reach_every_endpoint_that_needs_an_id() {
    let document = served();
    let operations = operations(&document);
    let mut reached = BTreeSet::new();
    for (path, operation) in operations.values() {
        for response in operation["responses"].as_object().unwrap().values() {
            for link in response["links"].as_object().into_iter().flat_map(|links| links.values()) {
                let goal = link["operationId"].as_str().unwrap();
                let place = format!("from {} to {goal}", operation["operationId"]);
                let (goal_path, goal_operation) = operations.get(goal).unwrap_or_else(|| panic!("{place}"));
                let given = names(&link["parameters"]);
                let parameters = goal_operation["parameters"].as_array().unwrap();
                let known = parameters.iter().map(|parameter| parameter["name"].as_str().unwrap()).collect();
                assert!(given.is_subset(&known), "{place}: {given:?}");
                let fields = &goal_operation["requestBody"]["content"]["application/json"]["schema"]["$ref"];
                for field in names(&link["requestBody"]) {
                    let schema = fields.as_str().unwrap().trim_start_matches('#');
                    let pointer = format!("{schema}/properties/{field}");
                    assert!(document.pointer(&pointer).is_some(), "{place}: {field}");
                }
                let mut expressions = Vec::new();
                texts(&link["parameters"], &mut expressions);
                texts(&link["requestBody"], &mut expressions);
                assert!(!expressions.is_empty(), "{place}");
                for expression in expressions {
                    assert!(is_there(expression, path, operation, response), "{place}: {expression}");
                }
                if path_parameters(goal_path).all(|name| given.contains(name)) {
                    reached.insert(goal);
                }
            }
        }
    }
    let needs_an_id = |path: &str| path_parameters(path).next().is_some();
    let missed: Vec<_> =
        operations.iter().filter(|(id, (path, _))| needs_an_id(path) && !reached.contains(*id)).collect();
    assert!(missed.is_empty(), "{missed:?}");
}

/// The operations by their ids, each with its path.
fn operations(document: &Value) -> BTreeMap<&str, (&str, &Value)> {
    let paths = document["paths"].as_object().unwrap().iter();
    let all = paths.flat_map(|(path, methods)| {
        methods.as_object().unwrap().values().map(move |operation| (path.as_str(), operation))
    });
    all.map(|(path, operation)| (operation["operationId"].as_str().unwrap(), (path, operation))).collect()
}

fn names(fields: &Value) -> BTreeSet<&str> {
    fields.as_object().into_iter().flat_map(|fields| fields.keys()).map(String::as_str).collect()
}

fn texts<'v>(value: &'v Value, found: &mut Vec<&'v str>) {
    match value {
        Value::Object(fields) => fields.values().for_each(|value| texts(value, found)),
        Value::Array(items) => items.iter().for_each(|item| texts(item, found)),
        Value::String(text) => found.push(text),
        _ => {}
    }
}

/// Whether a request and its answer have what a runtime expression names, by their examples.
fn is_there(expression: &str, path: &str, operation: &Value, response: &Value) -> bool {
    let example = |of: &Value, pointer: &str| of["content"]["application/json"]["example"].pointer(pointer).is_some();
    if let Some(name) = expression.strip_prefix("$request.path.") {
        return path_parameters(path).any(|parameter| parameter == name);
    }
    if let Some(pointer) = expression.strip_prefix("$request.body#") {
        return example(&operation["requestBody"], pointer);
    }
    expression.strip_prefix("$response.body#").is_some_and(|pointer| example(response, pointer))
}

/// The whole document, for review: a change in it is a change of the API.
#[test]
fn openapi_document_matches_snapshot() {
    assert_snapshot!("document", serde_json::to_string_pretty(&served()).unwrap());
}

/// Whoever reads of an endpoint sees what it takes and answers.
#[test]
fn openapi_operations_and_events_have_examples() {
    let document = served();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let request = &operation["requestBody"]["content"]["application/json"];
            let takes_nothing = request["schema"]["maxProperties"] == 0;
            assert!(request.is_null() || takes_nothing || request["example"].is_object(), "{method} {path}");
            for (status, response) in operation["responses"].as_object().unwrap() {
                let answer = &response["content"]["application/json"];
                assert!(answer.is_null() || answer["example"]["data"] != Value::Null, "{method} {path} {status}");
            }
        }
    }
    for (kind, event) in document["webhooks"].as_object().unwrap() {
        assert_eq!(event["post"]["requestBody"]["content"]["application/json"]["example"]["type"], *kind);
    }
}

/// Every code stands with its status, and with no other.
#[test]
fn every_error_code_is_documented_with_its_status() {
    let document = served();
    let mut described = BTreeSet::new();
    for (name, response) in document["components"]["responses"].as_object().unwrap() {
        let schema = &response["content"]["application/problem+json"]["schema"];
        let status = schema["properties"]["status"]["const"].as_u64().unwrap();
        assert_eq!(*name, format!("Problem{status}"));
        for code in schema["properties"]["code"]["examples"].as_array().unwrap() {
            assert!(described.insert(code.as_str().unwrap().to_owned()), "{code} stands twice");
        }
    }
    for code in Code::ALL.iter().filter(|code| !code.is_of_dashboard() && !described.contains(code.as_str())) {
        // What is answered to requests that are no endpoint's.
        let stands = format!("`{}` ({})", code.as_str(), status(code).as_u16());
        assert!(document["info"]["description"].as_str().unwrap().contains(&stands), "{stands}");
    }
}

/// The events that it describes are those that endpoints can ask for, and the test event.
#[test]
fn openapi_webhooks_match_known_event_types() {
    let document = served();
    let described: BTreeSet<_> = document["webhooks"].as_object().unwrap().keys().map(String::as_str).collect();
    let known: BTreeSet<_> = EventKind::ALL.iter().map(|kind| kind.as_str()).chain([TEST_EVENT]).collect();
    assert_eq!(described, known);
}

#[tokio::test]
async fn openapi_document_and_docs_are_served_without_api_key() {
    let host = TestHost::start(Engine::Sqlite).await;
    let ada = host.person("ada").await;
    let get = async |path: &str| {
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let response = client.get(format!("{}{path}", host.url())).send().await.unwrap();
        assert_eq!(response.status().as_u16(), 200, "{path}");
        response.text().await.unwrap()
    };
    let document: Value = serde_json::from_str(&get("/v2/openapi.json").await).unwrap();
    assert_eq!(document, served());
    let reference = get("/docs").await;
    for row in table() {
        assert!(reference.contains(&format!("{} {}", row.method, row.path)), "{}", row.path);
    }
    let errors = get("/docs/errors").await;
    for code in Code::ALL {
        assert!(errors.contains(&format!("<section id=\"{}\">", code.as_str())), "{}", code.as_str());
        assert!(!code.explanation().is_empty());
    }
    // What the loaded policies bring is there as well.
    for code in ["team_role_forbidden", "not_device_owner"] {
        assert!(errors.contains(&format!("<section id=\"{code}\">")), "{code}");
    }
    // And a problem's type leads there.
    let problem = host.api(&ada.key).get("/nothing").await;
    assert_eq!(problem.body["type"], "https://api.example.test/docs/errors#not_found");
}

#[test]
fn every_permission_is_described_in_security_scheme() {
    let document = served();
    let text = document["components"]["securitySchemes"]["api_key"]["description"].as_str().unwrap();
    for grant in Permission::ALL {
        assert!(text.contains(grant.as_str()), "{grant}");
    }
}
