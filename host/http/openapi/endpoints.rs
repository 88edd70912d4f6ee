//! Endpoints, one operation a row of the table of routes.

use std::collections::BTreeSet;

use salvo::http::Method;
use schemars::Schema;
use serde_json::{Map, Value, json};

use super::names::{operation_id, path_parameters};
use super::{Schemas, links, problems};
use crate::page::{DEFAULT_LIMIT, MAX_LIMIT};
use crate::routes;
use crate::row::{BodyKind, Row};

const TAGS: [(&str, &str); 7] = [
    ("Account and catalog", "The account behind the key, and what the platform offers"),
    ("Tunnels", "Tunnels: what they lead to, who may run them, where they run"),
    ("Devices", "Machines that run an agent"),
    ("Operations", "What became of remote actions"),
    ("Webhooks", "Endpoints that are told of events, and what was delivered to them"),
    ("Access", "Who may visit a tunnel, and by which names and ports"),
    ("Events", "What webhook endpoints are sent"),
];

pub(super) fn tags() -> Value {
    TAGS.iter().map(|(name, description)| json!({"name": name, "description": description})).collect()
}

pub(super) fn paths(schemas: &mut Schemas) -> Map<String, Value> {
    let mut paths: Map<String, Value> = Map::new();
    for row in routes::table() {
        let path = paths.entry(row.path).or_insert_with(|| json!({}));
        path[row.method.as_str().to_lowercase()] = operation(&row, schemas);
    }
    paths
}

fn operation(row: &Row, schemas: &mut Schemas) -> Value {
    let scope = row.action.permission().map(|scope| scope.to_string()).unwrap_or_default();
    let mut operation = json!({
        "operationId": operation_id(row.action),
        "tags": [tag(row)],
        "summary": row.title,
        "description": format!("Needs the scope `{scope}`."),
        "x-scope": scope,
        "parameters": parameters(row),
        "responses": responses(row, schemas),
    });
    if let Some(request) = row.request {
        let schema = request(&mut schemas.requests);
        let example = schemas.example(&schema);
        operation["requestBody"] =
            json!({"required": true, "content": {"application/json": content(&schema, example)}});
    } else if row.takes == BodyKind::EmptyObject && row.method != Method::DELETE {
        let schema = json!({"type": "object", "maxProperties": 0});
        operation["requestBody"] = json!({"required": false, "content": {"application/json": {"schema": schema}}});
    }
    operation
}

fn content(schema: &Schema, example: Option<Value>) -> Value {
    let mut content = json!({"schema": schema});
    if let Some(example) = example {
        content["example"] = example;
    }
    content
}

/// `tunnels.create` belongs to the tunnels.
fn tag(row: &Row) -> &'static str {
    let access = ["/extra-ports", "/domain", "/firewall", "/geoip"];
    match row.action.name().split_once('.').map(|(noun, _)| noun) {
        Some("tunnels") if access.iter().any(|part| row.path.contains(part)) => "Access",
        Some("tunnels") => "Tunnels",
        Some("devices") => "Devices",
        Some("operations") => "Operations",
        Some("webhooks") => "Webhooks",
        _ => "Account and catalog",
    }
}

fn parameters(row: &Row) -> Vec<Value> {
    let mut parameters: Vec<Value> = path_parameters(row.path)
        .map(|name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string", "format": "uuid"}}))
        .collect();
    if row.paged {
        parameters.push(json!({
            "name": "limit", "in": "query", "description": "Rows of a page.",
            "schema": {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT},
        }));
        parameters.push(json!({
            "name": "cursor", "in": "query", "description": "`meta.next_cursor` of the page before, unchanged.",
            "schema": {"type": "string"},
        }));
    }
    if row.idempotent {
        parameters.push(json!({
            "name": "Idempotency-Key", "in": "header", "required": true,
            "description": "Names this one effect: repeated with the same key, the request is answered the same and \
                done once.",
            "schema": {"type": "string", "minLength": 1, "maxLength": 128, "pattern": "^[!-~]{1,128}$"},
        }));
    }
    parameters
}

fn responses(row: &Row, schemas: &mut Schemas) -> Value {
    let data = (row.response)(&mut schemas.answers);
    let mut headers = json!({
        "X-Request-Id": {"$ref": "#/components/headers/X-Request-Id"},
        "X-Policy-Generation": {"$ref": "#/components/headers/X-Policy-Generation"},
        "X-RateLimit-Limit": {"$ref": "#/components/headers/X-RateLimit-Limit"},
        "X-RateLimit-Remaining": {"$ref": "#/components/headers/X-RateLimit-Remaining"},
    });
    if row.idempotent {
        headers["Idempotent-Replayed"] = json!({"$ref": "#/components/headers/Idempotent-Replayed"});
    }
    let mut responses = Map::new();
    let example = schemas.example(&data).map(|example| answer(&example, row.paged));
    let mut success = json!({"description": row.title, "headers": headers});
    let schema = envelope(&data, row.paged);
    success["content"] = match example {
        Some(example) => json!({"application/json": {"schema": schema, "example": example}}),
        None => json!({"application/json": {"schema": schema}}),
    };
    let links = links::of(row);
    if !links.is_empty() {
        success["links"] = Value::Object(links);
    }
    responses.insert(row.status.to_string(), success);
    for status in problem_statuses(row) {
        let reference = format!("#/components/responses/{}", problems::name(status));
        responses.insert(status.to_string(), json!({"$ref": reference}));
    }
    Value::Object(responses)
}

/// The statuses that any endpoint's problems can have.
pub(super) fn all_problem_statuses() -> BTreeSet<u16> {
    routes::table().iter().flat_map(problem_statuses).collect()
}

/// The statuses that an endpoint's problems can have.
fn problem_statuses(row: &Row) -> Vec<u16> {
    let changes = row.method != Method::GET;
    let body = row.takes != BodyKind::Nothing;
    let mut statuses = vec![400, 401, 403, 429, 500, 503];
    statuses.extend(body.then_some([408, 413, 415]).into_iter().flatten());
    statuses.extend((body || row.paged).then_some(422));
    statuses.extend((path_parameters(row.path).count() > 0).then_some(404));
    statuses.extend(changes.then_some(409));
    statuses.retain(|status| problems::codes(*status).next().is_some());
    statuses.sort_unstable();
    statuses
}

fn envelope(data: &Schema, paged: bool) -> Value {
    let mut meta = json!({
        "type": "object",
        "properties": {"request_id": {"type": "string"}},
        "required": ["request_id"],
    });
    if paged {
        meta["properties"]["next_cursor"] =
            json!({"type": ["string", "null"], "description": "null on the last page."});
        meta["required"] = json!(["request_id", "next_cursor"]);
    }
    json!({"type": "object", "properties": {"data": data, "meta": meta}, "required": ["data", "meta"]})
}

fn answer(data: &Value, paged: bool) -> Value {
    let mut answer = json!({"data": data, "meta": {"request_id": "0191a0c4-0000-7000-8000-00000000000a"}});
    if paged {
        answer["meta"]["next_cursor"] = Value::Null;
    }
    answer
}
