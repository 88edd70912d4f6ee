//! The API's description (OpenAPI 3.1), made from the table of its routes.

use salvo::http::Method;
use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::page::{DEFAULT_LIMIT, MAX_LIMIT};
use super::problem::{self, Problem};
use super::routes::{self, Row, Takes};
use crate::domain::grant::Grant;
use crate::domain::word::Word;
use crate::error::Code;

/// Where the document is served.
pub const PATH: &str = "/v2/openapi.json";

/// The whole document.
pub fn document(public_url: &str, docs_url: &str) -> Value {
    let mut schemas = Schemas::new();
    let mut paths: Map<String, Value> = Map::new();
    for row in routes::table() {
        let path = paths.entry(row.path).or_insert_with(|| json!({}));
        path[row.method.as_str().to_lowercase()] = operation(&row, &mut schemas);
    }
    let problem = schemas.answers.subschema_for::<Problem<'_>>();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Culvert",
            "version": "2",
            "description": "Tunnels from a port on a device to a public address. Successful answers carry `data` and \
                `meta`; errors are problem records (RFC 9457) whose `code` says what is wrong.",
        },
        "servers": [{"url": format!("{public_url}/v2")}],
        "externalDocs": {"url": docs_url},
        "security": [{"api_key": []}],
        "paths": paths,
        "components": {
            "schemas": schemas.definitions(),
            "responses": {"Problem": problem_response(&problem)},
            "headers": headers(),
            "securitySchemes": {
                "api_key": {"type": "http", "scheme": "bearer", "description": scopes()},
            },
        },
    })
}

/// Requests and answers are described by the rules of their own direction.
struct Schemas {
    requests: SchemaGenerator,
    answers: SchemaGenerator,
}

impl Schemas {
    fn new() -> Self {
        let settings = || {
            SchemaSettings::draft2020_12().with(|settings| {
                settings.definitions_path = "/components/schemas".into();
                settings.meta_schema = None;
            })
        };
        Self {
            requests: settings().for_deserialize().into_generator(),
            answers: settings().for_serialize().into_generator(),
        }
    }

    fn definitions(mut self) -> Map<String, Value> {
        let mut definitions = self.answers.take_definitions(true);
        definitions.extend(self.requests.take_definitions(true));
        definitions
    }
}

fn operation(row: &Row, schemas: &mut Schemas) -> Value {
    let mut operation = json!({
        "operationId": row.action.name().replace('.', "_"),
        "tags": [tag(row)],
        "summary": row.title,
        "description": format!("Needs the scope `{}`.", row.action.grant()),
        "parameters": parameters(row),
        "responses": responses(row, schemas),
    });
    if let Some(request) = row.request {
        let schema = request(&mut schemas.requests);
        operation["requestBody"] = json!({"required": true, "content": {"application/json": {"schema": schema}}});
    } else if row.takes == Takes::EmptyObject && row.method != Method::DELETE {
        let schema = json!({"type": "object", "maxProperties": 0});
        operation["requestBody"] = json!({"required": false, "content": {"application/json": {"schema": schema}}});
    }
    operation
}

/// `tunnels.create` belongs to the tunnels.
fn tag(row: &Row) -> &'static str {
    match row.action.name().split_once('.').map(|(noun, _)| noun) {
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

/// The names in `{braces}`.
pub fn path_parameters(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
}

fn responses(row: &Row, schemas: &mut Schemas) -> Value {
    let data = (row.response)(&mut schemas.answers);
    let mut headers = json!({
        "X-Request-Id": {"$ref": "#/components/headers/X-Request-Id"},
        "X-RateLimit-Limit": {"$ref": "#/components/headers/X-RateLimit-Limit"},
        "X-RateLimit-Remaining": {"$ref": "#/components/headers/X-RateLimit-Remaining"},
    });
    if row.idempotent {
        headers["Idempotent-Replayed"] = json!({"$ref": "#/components/headers/Idempotent-Replayed"});
    }
    let mut responses = Map::new();
    let success = json!({
        "description": row.title,
        "headers": headers,
        "content": {"application/json": {"schema": envelope(&data, row.paged)}},
    });
    responses.insert(row.status.to_string(), success);
    for status in problem_statuses(row) {
        responses.insert(status.to_string(), json!({"$ref": "#/components/responses/Problem"}));
    }
    Value::Object(responses)
}

/// The statuses that an endpoint's problems can have.
fn problem_statuses(row: &Row) -> Vec<u16> {
    let changes = row.method != Method::GET;
    let body = row.takes != Takes::Nothing;
    let mut statuses = vec![401, 403, 429, 500, 503];
    statuses.extend(body.then_some([400, 413]).into_iter().flatten());
    statuses.extend((body || row.paged).then_some(422));
    statuses.extend((path_parameters(row.path).count() > 0).then_some(404));
    statuses.extend(changes.then_some(409));
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

fn problem_response(problem: &Schema) -> Value {
    let codes: Vec<String> =
        Code::ALL.iter().map(|code| format!("`{}` ({})", code.as_str(), problem::status(code).as_u16())).collect();
    json!({
        "description": format!("A problem record. Codes: {}; policies bring their own.", codes.join(", ")),
        "headers": {
            "X-Request-Id": {"$ref": "#/components/headers/X-Request-Id"},
            "Retry-After": {"$ref": "#/components/headers/Retry-After"},
        },
        "content": {"application/problem+json": {"schema": problem}},
    })
}

fn headers() -> Value {
    json!({
        "X-Request-Id": {
            "description": "Identifies the request.", "schema": {"type": "string", "format": "uuid"},
        },
        "X-RateLimit-Limit": {
            "description": "Requests in the window (a minute or a day) with the least left.",
            "schema": {"type": "integer"},
        },
        "X-RateLimit-Remaining": {
            "description": "Requests left in that window.", "schema": {"type": "integer"},
        },
        "Retry-After": {
            "description": "Seconds after which a retry is worth it.", "schema": {"type": "integer", "minimum": 1},
        },
        "Idempotent-Replayed": {
            "description": "`true` on the repeated answer to a repeated request.",
            "schema": {"type": "string", "const": "true"},
        },
    })
}

fn scopes() -> String {
    let scope = |grant: &Grant| format!("- `{grant}`: {}", grant.permission());
    let list = Grant::ALL.iter().map(scope).collect::<Vec<_>>().join("\n");
    format!("An API key. Every endpoint needs one scope of:\n\n{list}")
}
