//! Errors, by status.

use std::collections::BTreeSet;

use schemars::Schema;
use serde_json::{Map, Value, json};

use crate::problem;
use culvert_domain::error::Code;

/// Errors of these statuses, each with its codes.
pub(super) fn responses(statuses: &BTreeSet<u16>, problem: &Schema, docs_url: &str) -> Map<String, Value> {
    statuses.iter().map(|status| (name(*status), response(*status, problem, docs_url))).collect()
}

/// The codes of all other statuses, for the description.
pub(super) fn codes_beside(statuses: &BTreeSet<u16>) -> String {
    let beside = of_the_api().filter(|code| !statuses.contains(&status(code)));
    beside.map(|code| format!("`{}` ({})", code.as_str(), status(code))).collect::<Vec<_>>().join(" or ")
}

/// The codes that have a status.
pub(super) fn codes(status: u16) -> impl Iterator<Item = &'static Code> {
    of_the_api().filter(move |code| self::status(code) == status)
}

fn of_the_api() -> impl Iterator<Item = &'static Code> {
    Code::ALL.iter().filter(|code| !code.is_of_dashboard())
}

fn status(code: &Code) -> u16 {
    problem::status(code).as_u16()
}

/// The name of a status's response.
pub(super) fn name(status: u16) -> String {
    format!("Problem{status}")
}

fn response(status: u16, problem: &Schema, docs_url: &str) -> Value {
    let codes: Vec<&Code> = codes(status).collect();
    let list: Vec<String> = codes.iter().map(|code| format!("- `{}`: {}", code.as_str(), code.title())).collect();
    let own = if status == 403 { "\n\nPolicies bring codes of their own." } else { "" };
    let schema = json!({
        "allOf": [problem],
        "properties": {
            "status": {"const": status},
            "code": {"type": "string", "examples": codes.iter().map(|code| code.as_str()).collect::<Vec<_>>()},
        },
    });
    json!({
        "description": format!("{}{own}", list.join("\n")),
        "headers": headers(status),
        "content": {"application/problem+json": {"schema": schema, "example": example(status, codes[0], docs_url)}},
    })
}

fn headers(status: u16) -> Value {
    let mut headers = json!({});
    let mut add = |name: &str| headers[name] = json!({"$ref": format!("#/components/headers/{name}")});
    add("X-Request-Id");
    add("X-Policy-Generation");
    if status != 401 {
        add("X-RateLimit-Limit");
        add("X-RateLimit-Remaining");
    }
    if matches!(status, 409 | 429 | 503) {
        add("Retry-After");
    }
    if status == 401 {
        add("WWW-Authenticate");
    }
    headers
}

fn example(status: u16, code: &Code, docs_url: &str) -> Value {
    let mut example = json!({
        "type": format!("{docs_url}/errors#{}", code.as_str()),
        "title": code.title(),
        "status": status,
        "code": code.as_str(),
        "detail": format!("{}.", code.title()),
        "request_id": "0191a0c4-0000-7000-8000-00000000000a",
    });
    if status == 422 {
        example["errors"] = json!([{"field": "local_port", "message": "must be between 1 and 65535"}]);
    }
    example
}
