//! The API's description (OpenAPI 3.1), made from the table of its routes.

mod endpoints;
mod events;
mod links;
mod names;
mod problems;

use std::collections::BTreeSet;

use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

pub use names::path_parameters;

use super::problem::Problem;
use culvert_domain::permission::Permission;
use culvert_domain::string_enum::StringEnum;

/// Where the document is served.
pub const PATH: &str = "/v2/openapi.json";

/// An example of every record, by its name.
const EXAMPLES: &str = include_str!("openapi/examples.json");

/// The whole document.
pub fn document(public_url: &str, docs_url: &str) -> Value {
    let mut schemas = Schemas::new();
    let problem = schemas.answers.subschema_for::<Problem<'_>>();
    let paths = endpoints::paths(&mut schemas);
    let events = events::webhooks(&mut schemas);
    let problem_statuses = endpoints::all_problem_statuses();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Culvert",
            "version": "2",
            "summary": "Tunnels from a port on a device to a public address",
            "description": description(&problem_statuses),
            "contact": {"name": "Culvert", "url": docs_url},
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": format!("{public_url}/v2")}],
        "externalDocs": {"url": docs_url},
        "security": [{"api_key": []}],
        "tags": endpoints::tags(),
        "paths": paths,
        "webhooks": events,
        "components": {
            "responses": problems::responses(&problem_statuses, &problem, docs_url),
            "schemas": schemas.definitions(),
            "headers": headers(),
            "securitySchemes": {
                "api_key": {"type": "http", "scheme": "bearer", "description": scopes()},
            },
        },
    })
}

fn description(problem_statuses: &BTreeSet<u16>) -> String {
    format!(
        "Successful answers carry `data` and `meta`; errors are problem records (RFC 9457) whose `code` says what is \
         wrong. What is none of these operations is answered with `not_found` (404), {}. Times are RFC 3339 in UTC, \
         identifiers are UUIDs. What is added later - fields, values of lists that are called open, event kinds - \
         breaks no client that ignores what it does not know.",
        problems::codes_beside(problem_statuses),
    )
}

/// Requests and answers are described by the rules of their own direction.
struct Schemas {
    requests: SchemaGenerator,
    answers: SchemaGenerator,
    examples: Map<String, Value>,
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
            // A file of ours, which a test reads.
            examples: serde_json::from_str(EXAMPLES).unwrap_or_default(),
        }
    }

    /// An example of what a schema describes, where it is a record or a list of them.
    fn example(&self, schema: &Schema) -> Option<Value> {
        let schema = schema.as_value();
        if schema["type"] == "array" {
            return Some(json!([self.examples.get(referred(&schema["items"])?)?]));
        }
        self.examples.get(referred(schema)?).cloned()
    }

    fn definitions(mut self) -> Map<String, Value> {
        let mut definitions = self.answers.take_definitions(true);
        definitions.extend(self.requests.take_definitions(true));
        for (name, schema) in &mut definitions {
            if let (Some(example), Some(schema)) = (self.examples.get(name), schema.as_object_mut()) {
                schema.insert("examples".into(), json!([example]));
            }
        }
        definitions
    }
}

/// The name that a schema refers to.
fn referred(schema: &Value) -> Option<&str> {
    schema["$ref"].as_str()?.rsplit('/').next()
}

fn headers() -> Value {
    json!({
        "X-Request-Id": {
            "description": "Identifies the request; the same as `request_id` in the body, but for a repeated answer.",
            "schema": {"type": "string", "format": "uuid"},
        },
        "X-Policy-Generation": {
            "description": "The generation of the policies that decided; it grows when the operator reloads them.",
            "schema": {"type": "integer", "minimum": 1},
        },
        "X-RateLimit-Limit": {
            "description": "Requests in the window (a minute or a day) with the least left.",
            "schema": {"type": "integer", "minimum": 1},
        },
        "X-RateLimit-Remaining": {
            "description": "Requests left in that window.", "schema": {"type": "integer", "minimum": 0},
        },
        "Retry-After": {
            "description": "Seconds after which a retry is worth it.", "schema": {"type": "integer", "minimum": 1},
        },
        "WWW-Authenticate": {
            "description": "How to authenticate (RFC 6750).", "schema": {"type": "string", "const": "Bearer"},
        },
        "Idempotent-Replayed": {
            "description": "`true` on the repeated answer to a repeated request.",
            "schema": {"type": "string", "const": "true"},
        },
    })
}

fn scopes() -> String {
    let scope = |permission: &Permission| format!("- `{permission}`: {}", permission.description());
    let list = Permission::ALL.iter().map(scope).collect::<Vec<_>>().join("\n");
    format!("An API key. Every endpoint needs one scope of:\n\n{list}")
}
