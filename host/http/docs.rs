//! The documentation that the host serves by itself: the endpoints, and what every code means.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytes::Bytes;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use salvo::http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderValue, IF_NONE_MATCH};
use salvo::http::{ResBody, StatusCode};
use salvo::writing::Redirect;
use salvo::{Depot, FlowCtrl, Handler, Request, Response, Router, async_trait};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::book;
use super::openapi;
use super::problem;
use crate::Api;
use culvert_domain::error::Code;
use culvert_service::gate::PolicyCode;

/// How a receiver checks a signature, in Python.
pub(crate) const VERIFY: &str = r#"import hashlib, hmac, time

def is_genuine(secret, headers, raw_body):
    timestamp = headers["Service-Webhook-Timestamp"]
    signed = f"{headers['Service-Webhook-Id']}.{timestamp}.".encode() + raw_body
    expected = "v1=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
    fresh = time.time() - int(timestamp) < 300
    return fresh and hmac.compare_digest(expected, headers["Service-Webhook-Signature"])"#;

const GUIDE: &str = include_str!("../../policies/README.md");
const STYLE: &str = include_str!("docs.css");

pub(crate) fn router(api: &Arc<Api>) -> Router {
    let document = openapi::document(&api.public_url, &api.docs_url);
    let fixed = |path: &str, rendered| {
        let page = Fixed(Arc::new(rendered));
        Router::with_path(path).get(page.clone()).head(page)
    };
    let errors = Errors { api: api.clone(), rendered: Arc::default() };
    let document_text = serde_json::to_vec(&document).unwrap_or_default();
    let pages = book::PAGES.iter().map(|page| {
        let handler = BookPage { page, rendered: Arc::default() };
        Router::with_path(page.path()).get(handler.clone()).head(handler)
    });
    Router::new()
        .append(&mut pages.collect())
        .get(StartPage(api.start_page))
        .head(StartPage(api.start_page))
        .push(fixed("docs", Rendered::page(&reference(&document))))
        .push(Router::with_path("docs/errors").get(errors.clone()).head(errors))
        .push(fixed("docs/policies", Rendered::page(&policies())))
        .push(fixed(openapi::PATH.trim_start_matches('/'), Rendered::new("application/json", document_text)))
}

/// Something that is rendered once, and answered often: whoever asks needs no key.
struct Rendered {
    content_type: &'static str,
    body: Bytes,
    /// Of the body (RFC 9110, section 8.8.3).
    etag: String,
}

impl Rendered {
    fn new(content_type: &'static str, body: Vec<u8>) -> Self {
        let etag = format!("\"{}\"", &hex::encode(Sha256::digest(&body))[..32]);
        Self { content_type, body: body.into(), etag }
    }

    fn page(page: &Markup) -> Self {
        Self::new("text/html; charset=utf-8", page.0.clone().into_bytes())
    }

    fn answer(&self, req: &Request, res: &mut Response) {
        let headers = res.headers_mut();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("public, max-age=300"));
        if let Ok(etag) = HeaderValue::from_str(&self.etag) {
            headers.insert(ETAG, etag);
        }
        if self.is_known(req) {
            res.status_code(StatusCode::NOT_MODIFIED);
            return;
        }
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        res.status_code(StatusCode::OK);
        res.replace_body(ResBody::Once(self.body.clone()));
    }

    /// Whether the client has it already (RFC 9110, section 13.1.2).
    fn is_known(&self, req: &Request) -> bool {
        let known = req.headers().get_all(IF_NONE_MATCH).iter().filter_map(|known| known.to_str().ok());
        let mut tags = known.flat_map(|list| list.split(',')).map(str::trim);
        tags.any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == self.etag)
    }
}

#[derive(Clone)]
struct Fixed(Arc<Rendered>);

#[async_trait]
impl Handler for Fixed {
    async fn handle(&self, req: &mut Request, _: &mut Depot, res: &mut Response, _: &mut FlowCtrl) {
        self.0.answer(req, res);
    }
}

/// A page of the book, rendered when it is first asked for.
#[derive(Clone)]
struct BookPage {
    page: &'static book::Page,
    rendered: Arc<OnceLock<Rendered>>,
}

#[async_trait]
impl Handler for BookPage {
    async fn handle(&self, req: &mut Request, _: &mut Depot, res: &mut Response, _: &mut FlowCtrl) {
        let render = || Rendered::page(&layout(self.page.title(), PreEscaped(self.page.render())));
        self.rendered.get_or_init(render).answer(req, res);
    }
}

/// Leads from `/` to where people begin.
#[derive(Clone, Copy)]
struct StartPage(&'static str);

#[async_trait]
impl Handler for StartPage {
    async fn handle(&self, _: &mut Request, _: &mut Depot, res: &mut Response, _: &mut FlowCtrl) {
        res.render(Redirect::found(self.0));
    }
}

/// The codes, those of the policies included: rendered anew when other policies decide.
#[derive(Clone)]
struct Errors {
    api: Arc<Api>,
    /// With the generation that it tells of.
    rendered: Arc<Mutex<(u64, Option<Arc<Rendered>>)>>,
}

#[async_trait]
impl Handler for Errors {
    async fn handle(&self, req: &mut Request, _: &mut Depot, res: &mut Response, _: &mut FlowCtrl) {
        self.current().answer(req, res);
    }
}

impl Errors {
    fn current(&self) -> Arc<Rendered> {
        let generation = self.api.service.policy_generation();
        let mut rendered = self.rendered.lock().unwrap_or_else(PoisonError::into_inner);
        if rendered.0 != generation {
            *rendered = (generation, None);
        }
        rendered.1.get_or_insert_with(|| Arc::new(Rendered::page(&errors(&self.api)))).clone()
    }
}

fn layout(title: &str, body: Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    a href="/docs" { strong { "Culvert API" } }
                    nav { a href="/docs/book" { "Documentation" } a href="/docs" { "Reference" } a href="/docs/errors" { "Errors" } a href="/docs/policies" { "Policies" } a href=(openapi::PATH) { "OpenAPI" } }
                }
                main { (body) }
            }
        }
    }
}

fn reference(document: &Value) -> Markup {
    let operations = operations(document);
    let server = text(&document["servers"][0]["url"]);
    layout(
        "Culvert API",
        html! {
            h1 { "Culvert API" }
            p { (text(&document["info"]["description"])) }
            pre { "curl " (server) "/account -H 'Authorization: Bearer <API_KEY>'" }
            p {
                "Every endpoint needs an API key with the scope it names. Keys are made by the operator, "
                "in the dashboard, or with " code { "culvert key create" } "."
            }
            p {
                "Lists take " code { "limit" } " and " code { "cursor" } "; where an " code { "Idempotency-Key" }
                " is required, a repeated request is answered the same and done once."
            }
            p class="note" {
                "Starting a tunnel of the protocols " code { "udp" } ", " code { "both" } " and " code { "http" }
                " is answered with an operation that fails with " code { "unsupported_action" }
                ": this version's nodes carry " code { "tcp" } ", on extra ports as on a tunnel's own. Custom domains "
                "are verified and assigned, and lead to their tunnels once nodes carry " code { "http" } "."
            }
            ul class="index" {
                @for operation in &operations {
                    li { a href={ "#" (operation.id) } { code { (operation.method) " " (operation.path) } } " " (operation.summary) }
                }
            }
            @for operation in &operations { (endpoint(operation)) }
            (events(document))
            h2 { "Records" }
            @for (name, schema) in document["components"]["schemas"].as_object().into_iter().flatten() {
                section id={ "schema-" (name) } { h3 { (name) } (fields(schema)) }
            }
        },
    )
}

struct Operation<'d> {
    id: &'d str,
    method: String,
    path: &'d str,
    summary: &'d str,
    value: &'d Value,
}

fn operations(document: &Value) -> Vec<Operation<'_>> {
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

fn endpoint(operation: &Operation<'_>) -> Markup {
    let value = operation.value;
    let request = &value["requestBody"]["content"]["application/json"]["schema"];
    let responses = value["responses"].as_object();
    html! {
        section id=(operation.id) {
            h3 { code { (operation.method) " " (operation.path) } }
            p { (operation.summary) ". " (text(&value["description"])) }
            @let parameters = value["parameters"].as_array().map(Vec::as_slice).unwrap_or_default();
            @if !parameters.is_empty() {
                table {
                    @for parameter in parameters {
                        tr {
                            td { code { (text(&parameter["name"])) } }
                            td { (text(&parameter["in"])) }
                            td { (kind(&parameter["schema"])) " " (text(&parameter["description"])) }
                        }
                    }
                }
            }
            @if !request.is_null() { p { "Takes " (kind(request)) "." } }
            @for (status, response) in responses.into_iter().flatten() {
                @let data = &response["content"]["application/json"]["schema"]["properties"]["data"];
                @if !data.is_null() { p { "Answers " strong { (status) } " with " (kind(data)) " in " code { "data" } "." } }
            }
        }
    }
}

/// What webhook endpoints are sent, and how they know that it is genuine.
fn events(document: &Value) -> Markup {
    html! {
        h2 id="events" { "Events" }
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
        pre { (VERIFY) }
        table {
            @for (kind, event) in document["webhooks"].as_object().into_iter().flatten() {
                @let body = &event["post"]["requestBody"]["content"]["application/json"]["schema"]["allOf"][0];
                tr { td { code { (kind) } } td { (self::kind(body)) } }
            }
        }
    }
}

fn fields(schema: &Value) -> Markup {
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().map(text).collect();
    html! {
        @if let Some(about) = schema["description"].as_str() { p { (about) } }
        @match schema["properties"].as_object() {
            Some(properties) => table {
                @for (name, property) in properties {
                    tr {
                        td { code { (name) } @if required.contains(&name.as_str()) { " *" } }
                        td { (kind(property)) }
                        td { (text(&property["description"])) }
                    }
                }
            },
            None => p { (kind(schema)) },
        }
    }
}

/// What a value is, in a few words.
fn kind(schema: &Value) -> Markup {
    if let Some(name) = schema["$ref"].as_str().and_then(|reference| reference.rsplit('/').next()) {
        return html! { a href={ "#schema-" (name) } { (name) } };
    }
    for choice in ["anyOf", "oneOf", "allOf"] {
        if let Some(choices) = schema[choice].as_array() {
            return html! {
                @for (index, choice) in choices.iter().enumerate() { @if index > 0 { " or " } (kind(choice)) }
            };
        }
    }
    if let Some(words) = schema["enum"].as_array() {
        return html! { @for word in words { code { (text(word)) } " " } };
    }
    if let Some(word) = schema["const"].as_str() {
        return html! { code { (word) } };
    }
    let kinds: Vec<&str> = match &schema["type"] {
        Value::Array(kinds) => kinds.iter().map(text).collect(),
        one => vec![text(one)],
    };
    html! {
        (kinds.join(" or "))
        @if kinds.contains(&"array") { " of " (kind(&schema["items"])) }
        @if let Some(format) = schema["format"].as_str() { " (" (format) ")" }
        @for (word, key) in [("at least", "minimum"), ("at most", "maximum"), ("shortest", "minLength"), ("longest", "maxLength")] {
            @if !schema[key].is_null() { ", " (word) " " (schema[key].to_string()) }
        }
        @if !schema["default"].is_null() { ", default " code { (schema["default"].to_string()) } }
    }
}

/// The guide for authors and operators of policies, as it stands in the repository.
fn policies() -> Markup {
    layout("Policies – Culvert", PreEscaped(book::render("policies/README.md", GUIDE)))
}

fn errors(api: &Api) -> Markup {
    let policies = api.service.policy_codes();
    let own = |code: &str| Code::ALL.iter().any(|own| own.as_str() == code);
    layout(
        "Errors – Culvert API",
        html! {
            h1 { "Errors" }
            p { "Every error is a problem record (RFC 9457). Branch on " code { "code" } "." }
            @for code in Code::ALL {
                section id=(code.as_str()) {
                    h3 { code { (code.as_str()) } " " span class="status" { (problem::status(code).as_u16()) } }
                    p { (code.title()) ". " (code.explanation()) }
                }
            }
            @for PolicyCode { code, text, policy } in policies.iter().filter(|policy| !own(&policy.code)) {
                section id=(code) {
                    h3 { code { (code) } " " span class="status" { "403" } }
                    p { (text) }
                    p class="note" { "From the policy " (policy) "." }
                }
            }
        },
    )
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
