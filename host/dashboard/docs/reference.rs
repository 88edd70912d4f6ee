//! The reference of the API, made from its description (OpenAPI 3.1).

use maud::{Markup, html};
use serde_json::Value;

use super::schema::{self, kind, text};
use super::{book, frame};
use crate::view::sample::Sample;
use crate::view::secret;

/// How a receiver checks a signature, in Python.
const VERIFY: &str = r#"import hashlib, hmac, time

def is_genuine(secret, headers, raw_body):
    timestamp = headers["Service-Webhook-Timestamp"]
    signed = f"{headers['Service-Webhook-Id']}.{timestamp}.".encode() + raw_body
    expected = "v1=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
    fresh = time.time() - int(timestamp) < 300
    return fresh and hmac.compare_digest(expected, headers["Service-Webhook-Signature"])"#;

/// One endpoint.
pub(crate) struct Operation<'d> {
    pub id: &'d str,
    pub method: String,
    pub path: &'d str,
    pub summary: &'d str,
    pub value: &'d Value,
}

pub(crate) fn operations(document: &Value) -> Vec<Operation<'_>> {
    let paths = document["paths"].as_object().into_iter().flatten();
    let all = paths.flat_map(|(path, methods)| {
        methods.as_object().into_iter().flatten().map(move |(method, value)| Operation {
            id: text(&value["operationId"]),
            method: method.to_uppercase(),
            path,
            summary: text(&value["summary"]),
            value,
        })
    });
    all.collect()
}

pub(crate) fn page(document: &Value) -> Markup {
    let operations = operations(document);
    let server = text(&document["servers"][0]["url"]);
    let groups: Vec<(&str, &str, Vec<&Operation<'_>>)> = document["tags"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|tag| (text(&tag["name"]), text(&tag["description"])))
        .map(|(name, about)| {
            (name, about, operations.iter().filter(|one| text(&one.value["tags"][0]) == name).collect())
        })
        .collect();
    let account = Sample { method: "GET", url: &format!("{server}/account"), body: None, idempotent: false };
    let content = html! {
        h1 { "Reference of the API" }
        p { (book::inline(text(&document["info"]["description"]))) }
        (secret::command(&account.curl()))
        p { "Every endpoint needs an API key with the scope that it names. Keys are made on the page "
            a href="/dashboard/me/keys" { "Keys" } " of the dashboard, or with " code { "culvert key create" } " on the host's machine." }
        p { "Lists take " code { "limit" } " and " code { "cursor" } "; where an " code { "Idempotency-Key" }
            " is required, a repeated request is answered the same and done once." }
        @for (name, about, operations) in groups.iter().filter(|(_, _, operations)| !operations.is_empty()) {
            h2 id=(anchor(name)) { (name) }
            p { (about) "." }
            ul { @for operation in operations {
                li { a href={ "#" (operation.id) } { code { (operation.method) " " (operation.path) } } " " (operation.summary) }
            } }
            @for operation in operations { (endpoint(operation, server)) }
        }
        (events(document))
        h2 #records { "Records" }
        p { "Fields with an asterisk are always there." }
        @for (name, schema) in document["components"]["schemas"].as_object().into_iter().flatten() {
            section id={ "schema-" (name) } { h3 { (name) } (schema::fields(schema)) }
        }
    };
    frame::page("Reference of the API", content, "/docs")
}

fn anchor(name: &str) -> String {
    name.to_lowercase().replace(' ', "-")
}

fn endpoint(operation: &Operation<'_>, server: &str) -> Markup {
    let value = operation.value;
    let request = &value["requestBody"]["content"]["application/json"];
    let parameters = value["parameters"].as_array().map(Vec::as_slice).unwrap_or_default();
    html! {
        section id=(operation.id) {
            h3 { code { (operation.method) " " (operation.path) } }
            p { (operation.summary) ". " (book::inline(text(&value["description"]))) }
            @if !parameters.is_empty() {
                div.scroll role="region" aria-label="Parameters" tabindex="0" { table {
                    thead { tr { th { "Parameter" } th { "In" } th { "Value" } } }
                    tbody { @for parameter in parameters {
                        tr {
                            td { code { (text(&parameter["name"])) } }
                            td { (text(&parameter["in"])) }
                            td.long { (kind(&parameter["schema"])) " " (book::inline(text(&parameter["description"]))) }
                        }
                    } }
                } }
            }
            @if !request["schema"]["$ref"].is_null() { p { "Takes " (kind(&request["schema"])) "." } }
            (samples(operation, server, &request["example"], parameters))
            (answers(&value["responses"]))
        }
    }
}

fn samples(operation: &Operation<'_>, server: &str, body: &Value, parameters: &[Value]) -> Markup {
    // `{tunnel_id}` is a pattern to curl.
    let path =
        operation.path.split('/').map(|part| match part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) {
            Some(name) => name.to_uppercase(),
            None => part.to_owned(),
        });
    let url = format!("{server}{}", path.collect::<Vec<_>>().join("/"));
    let idempotent = parameters.iter().any(|parameter| parameter["name"] == "Idempotency-Key");
    let body = (!body.is_null()).then_some(body);
    let sample = Sample { method: &operation.method, url: &url, body, idempotent };
    html! {
        @for (language, text) in [("curl", sample.curl()), ("Python", sample.python()), ("TypeScript", sample.typescript())] {
            details { summary { (language) } (secret::command(&text)) }
        }
    }
}

fn answers(responses: &Value) -> Markup {
    let responses = || responses.as_object().into_iter().flatten();
    let refusals: Vec<&String> =
        responses().filter(|(_, response)| !response["$ref"].is_null()).map(|(status, _)| status).collect();
    html! {
        @for (status, response) in responses().filter(|(_, response)| response["$ref"].is_null()) {
            @let content = &response["content"]["application/json"];
            p { "Answers " strong { (status) } " with " (kind(&content["schema"]["properties"]["data"])) " in " code { "data" } "." }
            @if !content["example"].is_null() {
                details { summary { "An answer" } (secret::command(&format!("{:#}", content["example"]))) }
            }
        }
        p.muted { "Refusals: " @for (place, status) in refusals.iter().enumerate() { @if place > 0 { ", " } (status) } ", with the "
            a href="/docs/errors" { "code" } " that says why." }
    }
}

/// What webhook endpoints are sent, and how they know that it is genuine.
fn events(document: &Value) -> Markup {
    html! {
        h2 #events { "Events" }
        p {
            "A delivery is a " code { "POST" } " of one event. Answer 2xx within 15 seconds; else it comes again after "
            "about 1 minute, 5 minutes, 30 minutes, 2 hours and 12 hours, each time with the same "
            code { "Service-Webhook-Id" } ": keep the ids that you have dealt with. Events come in any order."
        }
        p {
            "Check " code { "Service-Webhook-Signature" } " before anything else, on the body as it came, and refuse a "
            code { "Service-Webhook-Timestamp" } " older than five minutes. The signature is this API's own and not "
            "Standard Webhooks', though the secrets look alike: their libraries do not verify it."
        }
        (secret::command(VERIFY))
        div.scroll role="region" aria-label="Events" tabindex="0" { table {
            thead { tr { th { "Event" } th { "Record" } } }
            tbody { @for (kind, event) in document["webhooks"].as_object().into_iter().flatten() {
                @let body = &event["post"]["requestBody"]["content"]["application/json"]["schema"]["allOf"][0];
                tr { td { code { (kind) } } td { (schema::kind(body)) } }
            } }
        } }
    }
}
