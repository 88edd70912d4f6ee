//! Whatever is sent that is not as it must be: a refusal that names it, and nothing else.
//!
//! What there is to send is read from the API's own description, so that a new field is tried out by
//! itself.

use culvert_http::openapi::document;
use culvert_http::routes::table;
use culvert_http::row::{BodyKind, Row};
use culvert_test_macros::both_engines;
use reqwest::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::api::{Answer, Api};
use crate::support::device::Remote;
use crate::support::host::{Engine, TestHost};

/// Where a value under test goes, in a body that is right but for it.
const HERE: &str = "the value under test";

/// A scope with one of everything.
struct Stage {
    host: TestHost,
    api: Api,
    document: Value,
    tunnel: Uuid,
    port: Uuid,
    device: Uuid,
    webhook: Uuid,
    node: Uuid,
    refused: usize,
    problems: Vec<String>,
}

/// A field of a request.
struct Field {
    /// As faults name it: `rules[0].ip_cidr`.
    path: String,
    /// A body that is right but for [`HERE`].
    body: Value,
    schema: Value,
}

impl Stage {
    async fn set(engine: Engine) -> Self {
        let host = TestHost::with(engine, |config| {
            (config.rate_limit.per_minute, config.rate_limit.per_day) = (1_000_000, 1_000_000);
        })
        .await;
        let ada = host.person("ada").await;
        let api = host.api(&ada.key);
        let device = host.device(&ada, ada.account_id, Remote::Enabled).await.id;
        let tunnel = json!({"local_port": 80, "protocol": "http", "subdomain": "subject"});
        let tunnel = api.post("/tunnels", tunnel).await.id();
        let port = api.post(&format!("/tunnels/{tunnel}/extra-ports"), json!({"local_port": 81})).await.id();
        let rules = json!({"rules": [{"rule_type": "blacklist", "ip_address": "10.0.0.1"}]});
        api.put(&format!("/tunnels/{tunnel}/firewall"), rules).await.data();
        api.put(&format!("/tunnels/{tunnel}/geoip"), json!({"rules": [{"country_code": "FR"}]})).await.data();
        let webhook = host.webhook(ada.account_id).await;
        let node = host.app.store.nodes().await.unwrap()[0].id;
        let document = document("https://api.example.test", "https://api.example.test/docs");
        Self { host, api, document, tunnel, port, device, webhook, node, refused: 0, problems: Vec::new() }
    }

    fn path(&self, row: &Row) -> String {
        let ids = [
            ("{tunnel_id}", self.tunnel),
            ("{port_id}", self.port),
            ("{device_id}", self.device),
            ("{webhook_id}", self.webhook),
            ("{operation_id}", self.node),
        ];
        ids.iter().fold(row.path.to_owned(), |path, (name, id)| path.replace(name, &id.to_string()))
    }

    /// A body that is as it must be.
    fn right(&self, row: &Row) -> Value {
        match (row.method.as_str(), row.path) {
            ("POST", "/tunnels") => json!({"local_port": 80, "protocol": "http", "extra_ports": [{"local_port": 81}]}),
            ("PATCH", "/tunnels/{tunnel_id}" | "/devices/{device_id}") => json!({"name": "another"}),
            ("PUT", "/tunnels/{tunnel_id}/devices") => json!({"device_ids": [self.device]}),
            ("POST", "/tunnels/{tunnel_id}/actions/start") => json!({"device_id": self.device}),
            ("POST", "/tunnels/{tunnel_id}/extra-ports") => json!({"local_port": 82}),
            ("PUT", "/tunnels/{tunnel_id}/domain") | ("POST", "/tunnels/{tunnel_id}/domain/actions/verify") => {
                json!({"domain": "www.example.com"})
            }
            ("PUT", "/tunnels/{tunnel_id}/firewall") => {
                json!({"rules": [{"rule_type": "whitelist", "ip_address": "10.0.0.2"}]})
            }
            ("PUT", "/tunnels/{tunnel_id}/geoip") => json!({"rules": [{"country_code": "DE"}]}),
            ("POST", "/tunnels/{tunnel_id}/move") => json!({"node_id": self.node}),
            ("POST", "/webhooks") => json!({"url": "https://8.8.8.8/", "events": ["tunnel.started"]}),
            ("PATCH", "/webhooks/{webhook_id}") => json!({"description": "another"}),
            _ if row.takes == BodyKind::EmptyObject => json!({}),
            other => panic!("{other:?} takes a body; add one that is right"),
        }
    }

    /// Every field of a request, and of what lies in its lists.
    fn fields(&self, row: &Row) -> Vec<Field> {
        let operation = &self.document["paths"][row.path][row.method.as_str().to_lowercase()];
        let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
        let right = self.right(row);
        let mut fields = Vec::new();
        for (name, schema) in self.properties(schema) {
            let item = self.plain(&schema["items"]);
            for (inner, schema) in self.properties(&item) {
                let mut body = right.clone();
                let item = &mut body[&name][0];
                if inner == "ip_cidr" {
                    item.as_object_mut().unwrap().remove("ip_address");
                }
                item[&inner] = json!(HERE);
                fields.push(Field { path: format!("{name}[0].{inner}"), body, schema });
            }
            let mut body = right.clone();
            body[&name] = json!(HERE);
            fields.push(Field { path: name, body, schema });
        }
        fields
    }

    fn properties(&self, schema: &Value) -> Vec<(String, Value)> {
        let schema = self.plain(schema);
        let properties = schema["properties"].as_object().into_iter().flatten();
        properties.map(|(name, schema)| (name.clone(), self.plain(schema))).collect()
    }

    /// A schema without a reference.
    fn plain(&self, schema: &Value) -> Value {
        let Some(reference) = schema["$ref"].as_str() else { return schema.clone() };
        self.document.pointer(reference.trim_start_matches('#')).unwrap().clone()
    }

    /// Everything that a request could have changed.
    async fn state(&self) -> Vec<Value> {
        let of = |rest: &str| format!("/tunnels/{}{rest}", self.tunnel);
        let mut state = Vec::new();
        for path in [
            "/tunnels?limit=100".to_owned(),
            of(""),
            of("/extra-ports"),
            of("/domain"),
            of("/firewall"),
            of("/geoip"),
            of("/sessions"),
            "/devices".into(),
            "/operations".into(),
            "/webhooks".into(),
            format!("/webhooks/{}/deliveries", self.webhook),
        ] {
            let mut data = self.api.get(&path).await.data().clone();
            // That it was seen since is no request's doing.
            data.as_array_mut().into_iter().flatten().for_each(|item| item["last_seen_at"] = Value::Null);
            state.push(data);
        }
        state
    }

    async fn send(&self, row: &Row, path: &str, body: Option<Vec<u8>>) -> Answer {
        let key = Uuid::from_bytes(self.host.clock.random());
        let request = self.api.request(row.method.clone(), path).header("idempotency-key", key.to_string());
        let request = match body {
            Some(body) => request.header("content-type", "application/json").body(body),
            None => request,
        };
        self.api.send(request).await
    }

    /// Sends a body that must be refused with a code, for what is wrong with a field where one is named.
    async fn refuses(&mut self, row: &Row, body: &[u8], code: &str, field: Option<&str>) {
        let answer = self.send(row, &self.path(row), Some(body.to_vec())).await;
        self.refused += 1;
        let problem = answer.header("content-type") == Some("application/problem+json")
            && ["type", "title", "detail", "request_id"].iter().all(|name| answer.body[*name].is_string())
            && answer.body["status"] == answer.status;
        let names = |named: &String| field.is_some_and(|field| named == field || lies_in(named, field));
        let named = match field {
            Some(_) => !answer.fields().is_empty() && answer.fields().iter().all(names),
            None => answer.fields().is_empty(),
        };
        let short = answer.text.len() <= body.len() + 65_536;
        if answer.outcome() != code || !problem || !named || !short {
            let body: String = String::from_utf8_lossy(body).chars().take(200).collect();
            let (method, fields) = (&row.method, answer.fields());
            let expected = field.unwrap_or("no field");
            self.problems.push(format!(
                "{method} {} {body}\n  {} of {fields:?}, not {code} of {expected}",
                row.path,
                answer.outcome()
            ));
        }
    }

    fn end(self, least: usize) {
        assert!(self.problems.is_empty(), "{} problems:\n{}", self.problems.len(), self.problems.join("\n"));
        assert!(self.refused >= least, "only {} requests were made", self.refused);
    }
}

fn lies_in(field: &str, whole: &str) -> bool {
    field.strip_prefix(whole).is_some_and(|rest| rest.starts_with(['.', '[']))
}

/// The types that a schema lets through: `string`, `null`.
fn types(schema: &Value) -> Vec<String> {
    let list = |value: &Value| match value {
        Value::Array(types) => types.iter().filter_map(|kind| kind.as_str().map(str::to_owned)).collect(),
        Value::String(kind) => vec![kind.clone()],
        _ => Vec::new(),
    };
    let own = list(&schema["type"]);
    if own.is_empty() && (schema["enum"].is_array() || schema["oneOf"].is_array()) {
        vec!["string".into()]
    } else {
        own
    }
}

/// JSON that a schema does not let through.
fn wrong(schema: &Value) -> Vec<String> {
    let types = types(schema);
    assert!(!types.is_empty(), "of what type is {schema}?");
    let is = |kind: &str| types.iter().any(|known| known == kind);
    let mut wrong: Vec<String> = Vec::new();
    let others = [
        ("null", "null"),
        ("boolean", "true"),
        ("boolean", "\"true\""),
        ("integer", "80"),
        ("integer", "-1"),
        ("integer", "\"80\""),
        ("string", "\"some words, and more of them\""),
        ("string", "\"\\u0000\""),
        ("array", "[]"),
        ("array", "[[]]"),
        ("object", "{}"),
        ("object", "{\"a\": {\"b\": []}}"),
    ];
    let fits = |kind: &str, json: &str| {
        is(kind) && !(json.starts_with('"') && kind != "string") || is("string") && json.starts_with('"')
    };
    wrong.extend(others.iter().filter(|(kind, json)| !fits(kind, json)).map(|(_, json)| (*json).to_owned()));
    wrong.push(format!("{}{}", "[".repeat(60), "]".repeat(60)));
    wrong.push(format!("{}7{}", "{\"a\":".repeat(60), "}".repeat(60)));
    if is("integer") {
        let numbers = [
            "1.5",
            "1e308",
            "-1e308",
            "18446744073709551615",
            "18446744073709551616",
            "9223372036854775808",
            "-9223372036854775809",
            "-1",
            "1e-9",
        ];
        wrong.extend(numbers.map(String::from));
        for (bound, step) in [("minimum", -1), ("maximum", 1)] {
            let bound = schema[bound].as_i64().unwrap_or_else(|| panic!("{schema} has no {bound}"));
            wrong.push((bound + step).to_string());
        }
    }
    if is("string") {
        let long = schema["maxLength"].as_u64().unwrap_or(20_000) as usize + 1;
        wrong.extend([json!("x".repeat(long)), json!("ü".repeat(long)), json!("a\0b")].map(|text| text.to_string()));
    }
    let chosen = schema["enum"].is_array() || schema["oneOf"].is_array() || schema["format"] == "uuid";
    if chosen {
        wrong.extend(
            [
                "\"\"",
                "\"something else\"",
                "\"TCP\"",
                "\" tcp\"",
                "\"00000000000000000000000000000000\"",
                "\"{00000000-0000-0000-0000-000000000000}\"",
            ]
            .map(String::from),
        );
    }
    if is("array") {
        wrong.extend(
            ["[null]", "[7]", "[true]", "[[]]", "[{}]", "[{\"a\": []}]", "[\"\\u0000\"]", "[\"\"]", "[1e308]"]
                .map(String::from),
        );
        wrong.push(format!("[{}null]", "null,".repeat(20_000)));
    }
    if schema["const"] == false {
        wrong.push("true".into());
    }
    wrong
}

/// Every field, with everything that it must not be.
///
/// covers: validation_failed
/// covers: local_port: 1 to 65535
/// covers: idle_timeout: 30 to 3600
/// covers: buffer_size: 1024 to 1048576
#[both_engines]
async fn invalid_field_value_is_rejected_without_changes(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    for row in table().iter().filter(|row| row.request.is_some()) {
        let before = stage.state().await;
        let fields = stage.fields(row);
        assert!(!fields.is_empty(), "{} {} takes nothing", row.method, row.path);
        for Field { path, body, schema } in fields {
            let body = body.to_string();
            for value in wrong(&schema) {
                let body = body.replace(&format!("\"{HERE}\""), &value);
                stage.refuses(row, body.as_bytes(), "422 validation_failed", Some(&path)).await;
            }
        }
        assert_eq!(stage.state().await, before, "{} {} has changed something", row.method, row.path);
    }
    stage.end(800);
}

/// What is no JSON, no object, or says more than there is to say.
#[both_engines]
async fn malformed_body_is_rejected_without_changes(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let deep = |open: &str, close: &str| format!("{{\"x\":{}{}}}", open.repeat(20_000), close.repeat(20_000));
    for row in table().iter().filter(|row| row.takes != BodyKind::Nothing) {
        let before = stage.state().await;
        let right = stage.right(row).to_string();
        let fields = right.trim_start_matches('{').trim_end_matches('}').to_owned();
        let more = |field: &str| {
            format!(
                "{{{}}}",
                [fields.as_str(), field].iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>().join(",")
            )
        };
        let mut broken: Vec<Vec<u8>> = [
            "{",
            "}",
            "{]",
            "x",
            "{'a':1}",
            "{\"a\":1,}",
            "{\"a\":}",
            "{a:1}",
            "{} {}",
            "{}x",
            "NaN",
            "{\"a\":NaN}",
            "{\"a\":1e999}",
            "{\"a\":01}",
            "{\"a\":\"\\ud800\"}",
            "{\"a\":\"\\x\"}",
            "{\"a\":\"\n\"}",
            "/**/{}",
            "\u{feff}{}",
            " ",
        ]
        .map(|text| text.as_bytes().to_vec())
        .into();
        broken.push(more("\"x\":1,\"x\":1").into_bytes());
        broken.push(more("\"x\":{\"y\":1,\"y\":1}").into_bytes());
        broken.push(more("\"x\":[{\"y\":1,\"y\":1}]").into_bytes());
        broken.push([&b"{\"a\":\"\xff\"}"[..]].concat());
        broken.push([&b"{\"\xc3\x28\":1}"[..]].concat());
        broken.push(vec![0xff, 0xfe, b'{', 0, b'}', 0]);
        broken.push(vec![0; 16]);
        broken.push(deep("[", "]").into_bytes());
        broken.push(deep("{\"a\":", "}").into_bytes());
        broken.push("[".repeat(100_000).into_bytes());
        if let Some((first, rest)) = fields.split_once(',').or((!fields.is_empty()).then_some((fields.as_str(), ""))) {
            broken.push(format!("{{{first},{first},{rest}}}").replace(",}", "}").into_bytes());
        }
        for body in broken {
            stage.refuses(row, &body, "400 invalid_json", None).await;
        }
        for body in ["[]", "null", "true", "7", "\"{}\"", "[{}]", " [] "] {
            stage.refuses(row, body.as_bytes(), "400 invalid_json_object", None).await;
        }
        for (body, field) in [
            (more("\"colour\":1"), "colour"),
            (more("\"\":null"), ""),
            (more("\"__proto__\":{}"), "__proto__"),
            (more("\"Local_Port\":80"), "Local_Port"),
            (more("\"a.b\":80"), "a.b"),
        ] {
            stage.refuses(row, body.as_bytes(), "422 validation_failed", Some(field)).await;
        }
        if row.takes == BodyKind::Object {
            stage.refuses(row, b"", "400 invalid_json", None).await;
        }
        let large = format!("{{\"x\":\"{}\"}}", "x".repeat(300_000));
        stage.refuses(row, large.as_bytes(), "413 payload_too_large", None).await;
        assert_eq!(stage.state().await, before, "{} {} has changed something", row.method, row.path);
    }
    stage.end(500);
}

/// An id of nothing is the id of nothing, whatever it looks like.
#[both_engines]
async fn invalid_resource_id_returns_not_found(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let before = stage.state().await;
    let unknown = stage.host.clock.id();
    let long = "7".repeat(2000);
    for row in table().iter().filter(|row| row.path.contains('{')) {
        let path = stage.path(row);
        let ids = path.split('/').filter(|part| Uuid::parse_str(part).is_ok()).map(str::to_owned).collect::<Vec<_>>();
        let body = (row.takes == BodyKind::Object).then(|| stage.right(row).to_string().into_bytes());
        for id in ids {
            let wrong = [
                unknown.to_string(),
                unknown.simple().to_string(),
                format!("%7B{id}%7D"),
                format!("urn:uuid:{id}"),
                id.replace('-', ""),
                format!("{id}0"),
                id[1..].to_owned(),
                "0".into(),
                "-1".into(),
                "null".into(),
                "%00".into(),
                format!("{id}%00"),
                "%FF".into(),
                "%F0%9F%90%B2".into(),
                "%20".into(),
                "..%2F..".into(),
                "'%20OR%201=1".into(),
                Uuid::nil().to_string(),
                Uuid::max().to_string(),
                long.clone(),
            ];
            for wrong in wrong {
                let answer = stage.send(row, &path.replace(&id, &wrong), body.clone()).await;
                stage.refused += 1;
                if answer.outcome() != "404 not_found" {
                    stage.problems.push(format!("{} {} with {wrong}: {}", row.method, row.path, answer.outcome()));
                }
            }
        }
    }
    assert_eq!(stage.state().await, before);
    stage.end(400);
}

/// A page is asked for by a number from 1 to 100 and a cursor of its own list, or not at all.
#[both_engines]
async fn invalid_page_parameters_are_rejected(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    stage.api.post("/tunnels", json!({"local_port": 80})).await.id();
    let foreign = stage.api.get("/tunnels?limit=1").await.body["meta"]["next_cursor"].as_str().unwrap().to_owned();
    let cut = foreign[1..].to_owned();
    let changed = format!("{}{}", &foreign[..foreign.len() - 2], if foreign.ends_with("AA") { "BB" } else { "AA" });
    let limits = [
        "",
        "0",
        "-1",
        "101",
        "1.5",
        "1e1",
        "abc",
        "%20",
        "25%20",
        "4294967297",
        "18446744073709551617",
        "%00",
        "null",
        "1&limit=2",
        "%FF",
    ];
    let long = "A".repeat(4000);
    let cursors = ["", "x", "%00", "AAAA", "null", &cut, &changed, &long, "AQ==", "%FF"];
    for row in table().iter().filter(|row| row.paged) {
        let path = stage.path(row);
        let asked = limits.iter().map(|limit| (format!("limit={limit}"), vec!["limit"]));
        let asked = asked.chain(cursors.iter().map(|cursor| (format!("cursor={cursor}"), vec!["cursor"])));
        let asked = asked.chain([("limit=0&cursor=x".to_owned(), vec!["cursor", "limit"])]);
        let foreign = (row.path != "/tunnels").then(|| (format!("cursor={foreign}"), vec!["cursor"]));
        for (query, fields) in asked.chain(foreign) {
            let answer = stage.send(row, &format!("{path}?{query}"), None).await;
            stage.refused += 1;
            if answer.outcome() != "422 validation_failed" || answer.fields() != fields {
                stage.problems.push(format!(
                    "{} {}?{query}: {} {:?}",
                    row.method,
                    row.path,
                    answer.outcome(),
                    answer.fields()
                ));
            }
        }
    }
    stage.end(100);
}

/// The bodies that the other tests begin with are taken: it is what is wrong in them that is refused.
#[both_engines]
async fn valid_baseline_body_is_accepted(engine: Engine) {
    let stage = Stage::set(engine).await;
    for row in table().iter().filter(|row| row.takes != BodyKind::Nothing && row.method != Method::DELETE) {
        let answer = stage.send(row, &stage.path(row), Some(stage.right(row).to_string().into_bytes())).await;
        let taken = answer.status < 300 || answer.status == 409 || answer.outcome() == "422 domain_not_verified";
        assert!(taken, "{} {}: {answer}", row.method, row.path);
    }
}
