//! Deliveries: signed, tried again, and made to nobody who is not to be reached.

use std::collections::HashSet;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use culvert_test_macros::both_engines;
use culvert_webhook::sign::signature;
use futures_util::future::join_all;
use insta::{allow_duplicates, assert_snapshot};
use proptest::prelude::*;
use rcgen::{SanType, date_time_ymd};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use uuid::Uuid;

use crate::support::api::{Api, scrubbed};
use crate::support::host::{Engine, Person, TestHost};
use crate::support::names::{Answer as Says, Names};
use crate::support::receiver::{Authority, Delivered, NAME, Receiver, Reply};
use crate::support::visitor::named_service;

/// When the attempts after the first are made, counted from the one before.
const RETRIES: [u64; 5] = [60, 300, 1800, 7200, 43_200];

const DAY: Duration = Duration::from_hours(24);

/// An endpoint that somebody has registered.
struct Stage {
    host: TestHost,
    ada: Person,
    api: Api,
    authority: Authority,
    receiver: Receiver,
    webhook: Webhook,
}

#[derive(Clone)]
struct Webhook {
    path: String,
    id: Uuid,
    secret: String,
}

/// Registers an endpoint that hears of nothing but tests.
async fn register(api: &Api, url: &str) -> Webhook {
    let created = api.post("/webhooks", json!({"url": url, "events": ["device.offline"]})).await;
    let secret = created.data()["secret"].as_str().unwrap().to_owned();
    Webhook { path: format!("/webhooks/{}", created.id()), id: created.id(), secret }
}

/// Schedules a test event; its id.
async fn send(api: &Api, webhook: &Webhook) -> String {
    let answer = api.post(&format!("{}/test", webhook.path), json!({})).await;
    answer.data()["event_id"].as_str().unwrap().to_owned()
}

/// The attempts of an endpoint, newest first.
async fn attempts(api: &Api, webhook: &Webhook) -> Vec<Value> {
    api.get(&format!("{}/deliveries?limit=100", webhook.path)).await.data().as_array().unwrap().clone()
}

impl Stage {
    async fn set(engine: Engine) -> Self {
        let authority = Authority::new();
        let host = TestHost::with(engine, |config| authority.let_in(config)).await;
        let ada = host.person("ada").await;
        let api = host.api(&ada.key);
        let receiver = authority.receiver(&host.clock).await;
        let webhook = register(&api, &receiver.url()).await;
        Self { host, ada, api, authority, receiver, webhook }
    }

    async fn send(&self) -> String {
        send(&self.api, &self.webhook).await
    }

    async fn attempts(&self) -> Vec<Value> {
        attempts(&self.api, &self.webhook).await
    }

    /// An event's nth attempt, once it has ended.
    async fn attempt(&self, event: &str, number: u64) -> Value {
        attempt(&self.host, &self.api, &self.webhook, event, number).await
    }

    /// Points the endpoint elsewhere.
    async fn lead_to(&self, url: &str) {
        self.api.patch(&self.webhook.path, json!({"url": url})).await.data();
    }
}

async fn attempt(host: &TestHost, api: &Api, webhook: &Webhook, event: &str, number: u64) -> Value {
    host.until(async || {
        let ended = |a: &Value| a["event_id"] == event && a["attempt"] == number && a["status"] != "pending";
        attempts(api, webhook).await.into_iter().find(ended)
    })
    .await
}

/// `failed timeout`, or only the status where there is no error; with the code of the answer.
fn outcome(attempt: &Value) -> String {
    let words = ["status", "error", "status_code"].map(|field| match &attempt[field] {
        Value::String(text) => text.clone(),
        Value::Null => "-".into(),
        other => other.to_string(),
    });
    words.join(" ")
}

/// How long after an attempt's end the next one is due.
fn next_after(attempt: &Value, ended_at: chrono::DateTime<chrono::Utc>) -> i64 {
    let next: chrono::DateTime<chrono::Utc> = attempt["next_attempt_at"].as_str().unwrap().parse().unwrap();
    (next - ended_at).num_milliseconds()
}

/// A delivery, as a receiver that checks its signature sees it.
fn signed(secret: &str, delivered: &Delivered) -> Value {
    json!({
        "secret": secret,
        "id": delivered.header("service-webhook-id"),
        "timestamp": delivered.header("service-webhook-timestamp"),
        "signature": delivered.header("service-webhook-signature"),
        "body": hex::encode(&delivered.body),
    })
}

/// Whether the signatures of deliveries hold, by another implementation in another language.
fn verify(deliveries: &[Value]) -> Vec<bool> {
    let mut python = Command::new("python3");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/verify_signature.py");
    let mut python = python.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let lines: String = deliveries.iter().map(|delivery| format!("{delivery}\n")).collect();
    let mut input = python.stdin.take().unwrap();
    let writer = std::thread::spawn(move || input.write_all(lines.as_bytes()).unwrap());
    let output = python.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap().lines().map(|line| line == "holds").collect()
}

/// covers: POST /webhooks/{webhook_id}/test
/// covers: headers and signature
#[both_engines]
async fn delivery_request_matches_documented_format(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    stage.host.clock.advance(Duration::from_millis(1500));
    let scheduled = stage.api.post(&format!("{}/test", stage.webhook.path), json!({})).await;
    assert_eq!(scheduled.data()["webhook_id"], json!(stage.webhook.id));
    allow_duplicates! { assert_snapshot!(scheduled, @r#"
    202
    {
      "data": {
        "event_id": "[uuid]",
        "type": "webhook.test",
        "webhook_id": "[uuid]"
      },
      "meta": {
        "request_id": "[uuid]"
      }
    }
    "#) }
    let delivered = stage.receiver.next().await;
    assert_eq!(delivered.what, "POST /");
    assert_eq!(delivered.header("content-type"), "application/json");
    assert_eq!(delivered.header("host"), stage.receiver.address.to_string());
    assert_eq!(delivered.header("service-webhook-id"), scheduled.data()["event_id"].as_str().unwrap());
    assert_eq!(delivered.header("service-webhook-timestamp"), stage.host.clock.now().timestamp().to_string());
    let event = delivered.event();
    assert_eq!(
        (&event["id"], &event["created_at"]),
        (&scheduled.data()["event_id"], &json!("2026-01-15T12:00:01.500Z"))
    );
    assert_eq!(event["data"], json!({"webhook_id": stage.webhook.id}));
    allow_duplicates! { assert_snapshot!(scrubbed(&event), @r#"
    {
      "api_version": "v2",
      "created_at": "[time]",
      "data": {
        "webhook_id": "[uuid]"
      },
      "id": "[uuid]",
      "scope": {
        "team_id": null,
        "type": "personal"
      },
      "type": "webhook.test"
    }
    "#) }
    let headers: HashSet<_> = delivered.headers.keys().map(String::as_str).collect();
    let expected = [
        "accept",
        "content-length",
        "content-type",
        "host",
        "service-webhook-id",
        "service-webhook-signature",
        "service-webhook-timestamp",
        "user-agent",
    ];
    assert_eq!(headers, HashSet::from(expected), "and nothing that tells of the host");
    let agent = format!("Culvert-Webhooks/{}", env!("CARGO_PKG_VERSION"));
    assert_eq!(delivered.headers["user-agent"], agent);
}

/// Held against Python's HMAC: it holds, and not if anything that it covers is another.
///
/// covers: headers and signature
#[both_engines]
async fn delivery_signature_verifies_with_independent_hmac(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    stage.send().await;
    let delivered = stage.receiver.next().await;
    let right = signed(&stage.webhook.secret, &delivered);
    let shape = delivered.header("service-webhook-signature").strip_prefix("v1=").unwrap();
    assert!(shape.len() == 64 && shape.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)), "{shape}");
    let mut all = vec![right.clone()];
    for (field, other) in [
        ("id", json!(Uuid::from_u128(1))),
        ("timestamp", json!((stage.host.clock.now().timestamp() + 1).to_string())),
        ("secret", json!(stage.webhook.secret.replace("whsec_", ""))),
        ("signature", json!(shape)),
    ] {
        let mut wrong = right.clone();
        wrong[field] = other;
        all.push(wrong);
    }
    for at in 0..delivered.body.len() {
        let mut changed = delivered.clone();
        changed.body[at] ^= 1;
        all.push(signed(&stage.webhook.secret, &changed));
    }
    let held = verify(&all);
    assert_eq!(held.len(), all.len());
    assert_eq!(held.iter().position(|held| *held), Some(0));
    assert_eq!(held.iter().filter(|held| **held).count(), 1);
}

/// The schedule of the specification, to the second: five retries, and then no more.
///
/// covers: retries after 1 m, 5 m, 30 m, 2 h, 12 h
#[both_engines]
async fn failed_delivery_is_retried_five_times_on_schedule(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    stage.receiver.reply(Reply::Status(500));
    let event = stage.send().await;
    let first = stage.receiver.next().await;
    let mut signatures = vec![signed(&stage.webhook.secret, &first)];
    assert_eq!(outcome(&stage.attempt(&event, 1).await), "failed http_status 500");
    for (number, wait) in (2..).zip(RETRIES) {
        let due = stage.host.clock.now() + Duration::from_secs(wait);
        let pending = stage.attempts().await.remove(0);
        assert_eq!(
            (&pending["attempt"], &pending["status"], &pending["next_attempt_at"]),
            (&json!(number), &json!("pending"), &json!(due))
        );
        stage.host.pass(Duration::from_secs(wait - 1)).await;
        stage.host.pass(Duration::from_secs(1)).await;
        let again = stage.receiver.next().await;
        assert_eq!((again.at, &again.body), (due, &first.body), "not a second earlier, and the same bytes");
        assert_eq!(again.header("service-webhook-id"), event);
        assert_eq!(again.header("service-webhook-timestamp"), due.timestamp().to_string());
        signatures.push(signed(&stage.webhook.secret, &again));
        assert_eq!(outcome(&stage.attempt(&event, number).await), "failed http_status 500");
    }
    let fresh: HashSet<_> = signatures.iter().map(|signed| signed["signature"].to_string()).collect();
    assert_eq!((fresh.len(), verify(&signatures)), (6, vec![true; 6]));

    let all = stage.attempts().await;
    assert_eq!(all.iter().map(|attempt| attempt["attempt"].as_u64().unwrap()).collect::<Vec<_>>(), [6, 5, 4, 3, 2, 1]);
    assert_eq!(all[0]["next_attempt_at"], Value::Null);
    let webhook = stage.api.get(&stage.webhook.path).await;
    assert_eq!(webhook.data()["last_delivery"], json!({"status": "failed", "at": stage.host.clock.now()}));
    assert_eq!(webhook.data()["status"], "enabled");
    stage.host.pass(DAY).await;
    stage.receiver.reply(Reply::Status(200));
    let sentinel = stage.send().await;
    assert_eq!(stage.receiver.next().await.header("service-webhook-id"), sentinel, "nothing else came");
    assert_eq!(stage.attempts().await.len(), 7);
}

#[both_engines]
async fn successful_attempt_ends_retries(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    stage.receiver.reply_first([Reply::Status(500), Reply::Reset, Reply::Status(204)]);
    let event = stage.send().await;
    for (number, wait) in [(1, 60), (2, 300)] {
        stage.receiver.next().await;
        assert!(outcome(&stage.attempt(&event, number).await).starts_with("failed"));
        stage.host.pass(Duration::from_secs(wait)).await;
    }
    stage.receiver.next().await;
    assert_eq!(outcome(&stage.attempt(&event, 3).await), "succeeded - 204");
    let figures = stage.host.app.admin.metrics.text(&stage.host.app.admin.gauges());
    for figure in [r#"outcome="failed"} 2"#, r#"outcome="succeeded"} 1"#] {
        assert!(figures.contains(&format!("culvert_webhook_attempts_total{{{figure}\n")), "{figures}");
    }
    let listed = stage.api.get(&format!("{}/deliveries", stage.webhook.path)).await;
    allow_duplicates! { assert_snapshot!(listed, @r#"
    200
    {
      "data": [
        {
          "attempt": 3,
          "attempted_at": "[time]",
          "created_at": "[time]",
          "duration_ms": 0,
          "error": null,
          "event": "webhook.test",
          "event_id": "[uuid]",
          "id": "[uuid]",
          "next_attempt_at": null,
          "status": "succeeded",
          "status_code": 204
        },
        {
          "attempt": 2,
          "attempted_at": "[time]",
          "created_at": "[time]",
          "duration_ms": 0,
          "error": "connect_failed",
          "event": "webhook.test",
          "event_id": "[uuid]",
          "id": "[uuid]",
          "next_attempt_at": "[time]",
          "status": "failed",
          "status_code": null
        },
        {
          "attempt": 1,
          "attempted_at": "[time]",
          "created_at": "[time]",
          "duration_ms": 0,
          "error": "http_status",
          "event": "webhook.test",
          "event_id": "[uuid]",
          "id": "[uuid]",
          "next_attempt_at": "[time]",
          "status": "failed",
          "status_code": 500
        }
      ],
      "meta": {
        "next_cursor": null,
        "request_id": "[uuid]"
      }
    }
    "#) }
    let webhook = stage.api.get(&stage.webhook.path).await;
    assert_eq!(webhook.data()["last_delivery"], json!({"status": "succeeded", "at": stage.host.clock.now()}));
    stage.host.pass(DAY).await;
    let sentinel = stage.send().await;
    assert_eq!(stage.receiver.next().await.header("service-webhook-id"), sentinel, "nothing else came");
}

/// Every 2xx is a success; every other answer is none, and has no say in what comes next.
#[both_engines]
async fn endpoint_response_does_not_change_retry_schedule(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let inside = stage.authority.receiver(&stage.host.clock).await;
    let redirect = |status| Reply::With(status, format!("location: {}\r\n", inside.url()));
    let now = stage.host.clock.now();
    for status in [200, 201, 202, 204, 299] {
        stage.receiver.reply(Reply::Status(status));
        let event = stage.send().await;
        assert_eq!(outcome(&stage.attempt(&event, 1).await), format!("succeeded - {status}"));
    }
    for (reply, status) in [
        (Reply::With(429, "retry-after: 7200\r\n".into()), 429),
        (Reply::With(503, "retry-after: 1\r\n".into()), 503),
        (Reply::Status(410), 410),
        (Reply::Status(404), 404),
        (redirect(301), 301),
        (redirect(302), 302),
        (redirect(307), 307),
        (redirect(308), 308),
        (Reply::Status(304), 304),
    ] {
        stage.receiver.reply(reply);
        let event = stage.send().await;
        let failed = stage.attempt(&event, 1).await;
        assert_eq!(outcome(&failed), format!("failed http_status {status}"));
        assert_eq!(next_after(&failed, now), 60_000, "{status}");
    }
    assert_eq!(inside.connections(), 0, "no redirect is followed");
    assert_eq!(stage.api.get(&stage.webhook.path).await.data()["status"], "enabled");
    stage.receiver.waiting();
    stage.host.pass(Duration::from_mins(1)).await;
    let again: HashSet<_> = join_nine(&mut stage.receiver).await;
    assert_eq!(again.len(), 9, "every one of them is tried again");
}

/// Fifteen seconds for all of it, to the millisecond.
#[both_engines]
async fn hanging_endpoint_times_out_after_fifteen_seconds(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    stage.receiver.reply(Reply::hang());
    let event = stage.send().await;
    stage.receiver.next().await;
    stage.host.clock.advance(Duration::from_millis(14_999));
    stage.host.pass(Duration::from_millis(1)).await;
    let failed = stage.attempt(&event, 1).await;
    assert_eq!((outcome(&failed).as_str(), &failed["duration_ms"]), ("failed timeout -", &json!(15_000)));
    assert_eq!(next_after(&failed, stage.host.clock.now()), 60_000, "from its end");
    // The connection is not kept.
    stage.receiver.until_at_work(0).await;
}

/// Who answers a byte at a time gets no more of it.
#[both_engines]
async fn slow_response_bytes_do_not_extend_timeout(engine: Engine) {
    for (first, drops) in [
        ("H", "TTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"),
        ("HTTP/1.1 200 OK\r\ncontent-length: 64\r\n\r\n", "many more drops than there are seconds"),
    ] {
        let mut stage = Stage::set(engine).await;
        stage.receiver.reply(Reply::Drip(first, drops));
        let event = stage.send().await;
        stage.receiver.next().await;
        stage.receiver.until_sent(first.len() as u64).await;
        for second in 1..15 {
            stage.host.clock.advance(Duration::from_secs(1));
            stage.receiver.until_sent(first.len() as u64 + second).await;
        }
        stage.host.pass(Duration::from_secs(1)).await;
        let failed = stage.attempt(&event, 1).await;
        assert_eq!((&failed["error"], &failed["duration_ms"]), (&json!("timeout"), &json!(15_000)));
    }
}

/// A receiver that never stops talking is not listened to.
#[both_engines]
async fn response_body_larger_than_16_kib_fails_delivery(engine: Engine) {
    const LITTLE: u64 = 64 << 20;
    let mut stage = Stage::set(engine).await;
    let block: &'static str = "0123456789abcdef".repeat(4096).leak();
    for (first, expected) in [
        ("HTTP/1.1 200 OK\r\ncontent-length: 10000000000\r\n\r\n", "failed too_large 200"),
        ("HTTP/1.1 200 OK\r\n\r\n", "failed too_large 200"),
        ("HTTP/1.1 500 No\r\ncontent-length: 10000000000\r\n\r\n", "failed http_status 500"),
        ("HTTP/1.1 200 OK\r\nx-endless: ", "failed connect_failed -"),
    ] {
        stage.receiver.reply(Reply::Endless(first, block));
        let before = stage.receiver.sent();
        let event = stage.send().await;
        stage.receiver.next().await;
        assert_eq!(outcome(&stage.attempt(&event, 1).await), expected, "{first}");
        stage.receiver.until_at_work(0).await;
        let sent = stage.receiver.sent() - before;
        assert!(sent < LITTLE, "{sent} bytes of {first}");
    }
    for (length, expected) in [(16 * 1024, "succeeded - 200"), (16 * 1024 + 1, "failed too_large 200")] {
        stage.receiver.reply(Reply::Body(length));
        let event = stage.send().await;
        assert_eq!(outcome(&stage.attempt(&event, 1).await), expected);
    }
}

#[both_engines]
async fn unreachable_endpoint_delivery_is_retried(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let nobody = TcpListener::bind((stage.receiver.address.ip(), 0)).await.unwrap().local_addr().unwrap();
    stage.lead_to(&format!("https://{nobody}/")).await;
    let event = stage.send().await;
    let failed = stage.attempt(&event, 1).await;
    assert_eq!(outcome(&failed), "failed connect_failed -");
    assert_eq!(next_after(&failed, stage.host.clock.now()), 60_000);
    // It has moved: what is open goes where the endpoint is now.
    stage.lead_to(&stage.receiver.url()).await;
    stage.host.pass(Duration::from_mins(1)).await;
    assert_eq!(stage.receiver.next().await.header("service-webhook-id"), event);
    assert_eq!(outcome(&stage.attempt(&event, 2).await), "succeeded - 200");
    for reply in [Reply::Reset, Reply::Nonsense] {
        stage.receiver.reply(reply);
        let event = stage.send().await;
        assert_eq!(outcome(&stage.attempt(&event, 1).await), "failed connect_failed -");
    }
}

/// Whoever cannot prove to be the endpoint hears nothing of what it was to be sent.
#[both_engines]
async fn endpoint_with_invalid_certificate_receives_nothing(engine: Engine) {
    let stage = Stage::set(engine).await;
    let clock = &stage.host.clock;
    let other_name =
        |names: &mut Vec<SanType>| *names = vec![SanType::DnsName("other.example.test".try_into().unwrap())];
    let mut impostors = vec![
        stage.authority.receiver_with(clock, |params| other_name(&mut params.subject_alt_names)).await,
        stage.authority.receiver_with(clock, |params| params.not_after = date_time_ymd(2001, 1, 1)).await,
        Authority::new().receiver(clock).await,
    ];
    for impostor in &mut impostors {
        stage.lead_to(&impostor.url()).await;
        let event = stage.send().await;
        assert_eq!(outcome(&stage.attempt(&event, 1).await), "failed tls_error -");
        assert!(impostor.connections() == 1 && impostor.waiting().is_empty());
    }
    let plain = named_service("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
    stage.lead_to(&format!("https://{plain}/")).await;
    let event = stage.send().await;
    assert_eq!(outcome(&stage.attempt(&event, 1).await), "failed tls_error -");
}

/// A name that has gone, and a name server that has.
#[both_engines]
async fn dns_failure_fails_attempt_and_is_retried(engine: Engine) {
    let (authority, names) = (Authority::new(), Names::open().await);
    let host = TestHost::with(engine, |config| {
        authority.let_in(config);
        config.dns.resolver = Some(names.address);
    })
    .await;
    let api = host.api(&host.person("ada").await.key);
    let mut receiver = authority.receiver(&host.clock).await;
    let here = Says::Addresses(vec![receiver.address.ip()]);
    names.set(NAME, [here.clone(), Says::NoSuchName]);
    let webhook = register(&api, &receiver.url_at(NAME)).await;
    let event = send(&api, &webhook).await;
    assert_eq!(outcome(&attempt(&host, &api, &webhook, &event, 1).await), "failed dns_failed -");
    names.set(NAME, [Says::Silence]);
    let mut questions = names.questions();
    questions.borrow_and_update();
    host.pass(Duration::from_mins(1)).await;
    questions.changed().await.unwrap();
    host.clock.advance(Duration::from_secs(3));
    let failed = attempt(&host, &api, &webhook, &event, 2).await;
    assert_eq!((outcome(&failed).as_str(), &failed["duration_ms"]), ("failed dns_failed -", &json!(3000)));
    names.set(NAME, [here]);
    host.pass(Duration::from_mins(5)).await;
    assert_eq!(receiver.next().await.header("host"), format!("{NAME}:{}", receiver.address.port()));
    assert_eq!(outcome(&attempt(&host, &api, &webhook, &event, 3).await), "succeeded - 200");
}

/// What was judged is what is dialled: a name that leads inside a moment later gains nothing.
#[both_engines]
async fn hostname_rebound_to_private_address_is_not_contacted(engine: Engine) {
    let (authority, names) = (Authority::new(), Names::open().await);
    let clock = culvert_wire::clock::Clock::manual(crate::support::host::start_of_time());
    let (mut outside, inside) = (authority.receiver(&clock).await, TcpListener::bind("127.0.0.1:0").await.unwrap());
    // As if one loopback address were outside, and every other one inside.
    let host = TestHost::with(engine, |config| {
        authority.let_in(config);
        config.webhooks.allow_networks = vec![outside.address.ip().into()];
        config.dns.resolver = Some(names.address);
    })
    .await;
    let api = host.api(&host.person("ada").await.key);
    let public = Says::addresses(["93.184.215.14"]);
    let (there, here) = (Says::Addresses(vec![outside.address.ip()]), Says::addresses(["127.0.0.1"]));
    let both = Says::Addresses(vec![outside.address.ip(), "127.0.0.1".parse().unwrap()]);
    let port = inside.local_addr().unwrap().port();
    for (number, turned) in
        [here.clone(), both, Says::addresses(["::ffff:127.0.0.1"]), Says::Alias("inside.example.test".into())]
            .into_iter()
            .enumerate()
    {
        let name = format!("turns-{number}.example.test");
        names.set("inside.example.test", [here.clone()]);
        names.set(&name, [public.clone(), turned]);
        let webhook = register(&api, &format!("https://{name}:{port}/")).await;
        let event = send(&api, &webhook).await;
        let failed = attempt(&host, &api, &webhook, &event, 1).await;
        assert_eq!(outcome(&failed), "failed dns_failed -", "{number}");
        assert_eq!(next_after(&failed, host.clock.now()), 60_000, "it may turn back");
    }
    // Looked at once more between the judgement and the dialling, this one would lead inside.
    names.set("later.example.test", [there.clone(), there.clone(), here.clone()]);
    let webhook = register(&api, &outside.url_at("later.example.test")).await;
    let event = send(&api, &webhook).await;
    assert_eq!(
        outcome(&attempt(&host, &api, &webhook, &event, 1).await),
        "failed tls_error -",
        "it is dialled, and called otherwise"
    );
    // And the other way around: refused while it leads inside, and made when it does not.
    names.set(NAME, [here, there]);
    let url = outside.url_at(NAME);
    let body = json!({"url": url, "events": ["device.offline"]});
    assert_eq!(api.post("/webhooks", body).await.fields(), ["url"]);
    let webhook = register(&api, &url).await;
    let event = send(&api, &webhook).await;
    outside.next().await;
    assert_eq!(outcome(&attempt(&host, &api, &webhook, &event, 1).await), "succeeded - 200");
    let dialled = inside.into_std().unwrap().accept();
    assert_eq!(dialled.unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "nobody has come");
}

/// Networks that the operator has closed since the endpoint was made.
#[both_engines]
async fn endpoint_in_denied_network_is_not_contacted(engine: Engine) {
    let (authority, names) = (Authority::new(), Names::open().await);
    let clock = culvert_wire::clock::Clock::manual(crate::support::host::start_of_time());
    let receiver = authority.receiver(&clock).await;
    let host = TestHost::with(engine, |config| {
        authority.let_in(config);
        config.webhooks.deny_networks = vec!["127.0.0.1/32".parse().unwrap(), "93.0.0.0/8".parse().unwrap()];
        config.dns.resolver = Some(names.address);
    })
    .await;
    let api = host.api(&host.person("ada").await.key);
    names.set(NAME, [Says::Addresses(vec![receiver.address.ip()]), Says::addresses(["127.0.0.1"])]);
    for url in ["https://127.0.0.1/", "https://93.184.215.14/", "https://[::ffff:127.0.0.1]/"] {
        assert_eq!(
            api.post("/webhooks", json!({"url": url, "events": ["device.offline"]})).await.fields(),
            ["url"],
            "{url}"
        );
    }
    let webhook = register(&api, &receiver.url_at(NAME)).await;
    let event = send(&api, &webhook).await;
    assert_eq!(outcome(&attempt(&host, &api, &webhook, &event, 1).await), "failed dns_failed -");
    assert_eq!(receiver.connections(), 0);
}

/// Disabled, an endpoint is sent nothing; enabled again, nothing of what it missed.
///
/// covers: enabled endpoints that list the kind
#[both_engines]
async fn disabled_endpoint_cancels_pending_deliveries(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let leave = Arc::new(Semaphore::new(0));
    stage.receiver.reply_first([Reply::Status(500), Reply::Wait(leave.clone())]);
    let retried = stage.send().await;
    stage.receiver.next().await;
    stage.attempt(&retried, 1).await;
    let under_way = stage.send().await;
    stage.receiver.next().await;
    stage.api.patch(&stage.webhook.path, json!({"status": "disabled"})).await.data();
    let open = stage.attempts().await;
    let canceled: HashSet<_> = open
        .iter()
        .filter(|attempt| attempt["status"] == "canceled")
        .map(|attempt| (attempt["event_id"].as_str().unwrap().to_owned(), attempt["attempt"].as_u64().unwrap()))
        .collect();
    assert_eq!(canceled, HashSet::from([(retried.clone(), 2), (under_way.clone(), 1)]));
    assert_eq!(open.len(), 3);
    assert!(
        open.iter().all(|attempt| attempt["next_attempt_at"].is_null()),
        "the one that failed is not tried again either"
    );
    // How it came out changes nothing any longer.
    leave.add_permits(1);
    stage.receiver.until_at_work(0).await;

    stage.host.pass(DAY).await;
    stage.api.patch(&stage.webhook.path, json!({"status": "enabled"})).await.data();
    stage.host.pass(DAY).await;
    let sentinel = stage.send().await;
    assert_eq!(stage.receiver.next().await.header("service-webhook-id"), sentinel, "nothing else came");
    stage.attempt(&sentinel, 1).await;
    assert_eq!(stage.attempts().await.len(), 4);
    assert_eq!(stage.attempt(&under_way, 1).await["status"], "canceled");
    assert_eq!(stage.attempt(&retried, 2).await["status"], "canceled");
}

#[both_engines]
async fn deleted_endpoint_receives_no_deliveries(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    stage.receiver.reply(Reply::Status(500));
    let event = stage.send().await;
    stage.receiver.next().await;
    stage.attempt(&event, 1).await;
    // Another one at the same URL goes on.
    let other = register(&stage.api, &stage.receiver.url()).await;
    stage.api.delete(&stage.webhook.path).await.data();
    stage.host.pass(DAY).await;
    let sentinel = send(&stage.api, &other).await;
    let delivered = stage.receiver.next().await;
    assert_eq!(delivered.header("service-webhook-id"), sentinel, "nothing else came");
    assert_eq!(verify(&[signed(&other.secret, &delivered)]), [true], "and each has a secret of its own");
}

/// Newest first, in pages, a hundred in all, and nothing of what was sent.
///
/// covers: GET /webhooks/{webhook_id}/deliveries
/// covers: delivery attempts shown: 100
#[both_engines]
async fn delivery_list_pages_last_hundred_attempts(engine: Engine) {
    let stage = Stage::set(engine).await;
    let mut events = Vec::new();
    for _ in 0..103 {
        events.insert(0, stage.send().await);
    }
    let ended = async || stage.attempts().await.iter().all(|attempt| attempt["status"] == "succeeded").then_some(());
    stage.host.until(ended).await;
    let mut found = Vec::new();
    let mut path = format!("{}/deliveries?limit=30", stage.webhook.path);
    let mut pages = Vec::new();
    loop {
        let page = stage.api.get(&path).await;
        let rows = page.data().as_array().unwrap();
        pages.push(rows.len());
        found.extend(rows.iter().map(|row| row["event_id"].as_str().unwrap().to_owned()));
        let Some(cursor) = page.body["meta"]["next_cursor"].as_str() else { break };
        path = format!("{}/deliveries?limit=30&cursor={cursor}", stage.webhook.path);
    }
    assert_eq!((pages, &found[..]), (vec![30, 30, 30, 10], &events[..100]));
    let whole = stage.api.get(&format!("{}/deliveries?limit=100", stage.webhook.path)).await;
    assert_eq!((whole.data().as_array().unwrap().len(), &whole.body["meta"]["next_cursor"]), (100, &Value::Null));
    assert_eq!(stage.api.get(&format!("{}/deliveries", stage.webhook.path)).await.data().as_array().unwrap().len(), 25);
    assert_eq!(stage.api.get(&format!("{}/deliveries?limit=101", stage.webhook.path)).await.fields(), ["limit"]);
    let row = scrubbed(&whole.data()[0]);
    allow_duplicates! { assert_snapshot!(row, @r#"
    {
      "attempt": 1,
      "attempted_at": "[time]",
      "created_at": "[time]",
      "duration_ms": 0,
      "error": null,
      "event": "webhook.test",
      "event_id": "[uuid]",
      "id": "[uuid]",
      "next_attempt_at": null,
      "status": "succeeded",
      "status_code": 200
    }
    "#) }
    // A cursor is for its own list.
    let other = register(&stage.api, &stage.receiver.url()).await;
    let cursor = path.split_once("cursor=").unwrap().1;
    assert_eq!(stage.api.get(&format!("{}/deliveries?cursor={cursor}", other.path)).await.fields(), ["cursor"]);
}

/// While two attempts at one endpoint hang, fifty others get theirs. No time passes meanwhile.
#[both_engines]
async fn hanging_endpoint_does_not_delay_other_endpoints(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let hung = stage.authority.receiver(&stage.host.clock).await;
    hung.reply(Reply::hang());
    let hanging = register(&stage.api, &hung.url()).await;
    for _ in 0..5 {
        send(&stage.api, &hanging).await;
    }
    hung.until_at_work(2).await;
    let mut healthy = Vec::new();
    for team in ["one", "two", "three"] {
        let team = stage.host.team(team, &stage.ada).await;
        let key = stage.host.key(stage.ada.account_id, team, "full_access").await;
        let api = stage.api.with_key(&key.key);
        for _ in 0..17 {
            let number = healthy.len();
            healthy.push((api.clone(), register(&api, &format!("{}{number}", stage.receiver.url())).await));
        }
    }
    healthy.truncate(50);
    let before = stage.host.clock.now();
    join_all(healthy.iter().map(|(api, webhook)| send(api, webhook))).await;
    let mut heard = HashSet::new();
    for _ in 0..50 {
        heard.insert(stage.receiver.next().await.what);
    }
    assert_eq!(heard, (0..50).map(|number| format!("POST /{number}")).collect());
    assert_eq!((stage.host.clock.now(), hung.at_work(), hung.most_at_work()), (before, 2, 2));
    let open = attempts(&stage.api, &hanging).await;
    assert!(open.len() == 5 && open.iter().all(|attempt| attempt["status"] == "pending"));
}

/// Sixty-four in all; whatever else is due follows when one of them has ended.
#[both_engines]
async fn concurrent_deliveries_are_limited_to_64_in_total(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let leave = Arc::new(Semaphore::new(0));
    stage.receiver.reply(Reply::Wait(leave.clone()));
    let mut endpoints = vec![(stage.api.clone(), stage.webhook.clone())];
    for team in ["one", "two", "three", "four"] {
        let team = stage.host.team(team, &stage.ada).await;
        let api = stage.api.with_key(&stage.host.key(stage.ada.account_id, team, "full_access").await.key);
        for _ in 0..20 {
            endpoints.push((api.clone(), register(&api, &stage.receiver.url()).await));
        }
    }
    let mut events = HashSet::new();
    for _ in 0..2 {
        events.extend(join_all(endpoints.iter().map(|(api, webhook)| send(api, webhook))).await);
    }
    let mut delivered = HashSet::new();
    for _ in 0..64 {
        delivered.insert(stage.receiver.next().await.header("service-webhook-id").to_owned());
    }
    stage.receiver.until_at_work(64).await;
    leave.add_permits(162);
    for _ in 64..162 {
        delivered.insert(stage.receiver.next().await.header("service-webhook-id").to_owned());
    }
    assert_eq!((delivered, stage.receiver.most_at_work()), (events, 64));
}

/// Two at a time, the others one after the other, each once.
#[both_engines]
async fn concurrent_deliveries_are_limited_to_two_per_endpoint(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let leave = Arc::new(Semaphore::new(0));
    stage.receiver.reply(Reply::Wait(leave.clone()));
    let mut events = HashSet::new();
    for _ in 0..12 {
        events.insert(stage.send().await);
    }
    let mut delivered = HashSet::new();
    for _ in 0..12 {
        delivered.insert(stage.receiver.next().await.header("service-webhook-id").to_owned());
        leave.add_permits(1);
    }
    assert_eq!(delivered, events);
    let ended = async || stage.attempts().await.iter().all(|attempt| attempt["status"] == "succeeded").then_some(());
    stage.host.until(ended).await;
    assert_eq!((stage.receiver.most_at_work(), stage.receiver.waiting().len()), (2, 0));
}

/// What the host's end interrupts is delivered when it is back: at least once, as the same event.
#[both_engines]
async fn interrupted_deliveries_resume_after_host_restart(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    stage.receiver.reply(Reply::hang());
    let event = stage.send().await;
    let first = stage.receiver.next().await;
    let waiting = stage.send().await;
    stage.receiver.next().await;
    let third = stage.send().await;
    let host = stage.host.restart().await;
    stage.receiver.until_at_work(0).await;
    stage.receiver.reply(Reply::Status(200));
    let api = host.api(&stage.ada.key);
    let mut seen = HashSet::new();
    host.pass(Duration::from_mins(1)).await;
    for _ in 0..3 {
        let delivered = stage.receiver.next().await;
        let id = delivered.header("service-webhook-id").to_owned();
        if id == event {
            assert_eq!(delivered.body, first.body);
            assert_ne!(delivered.header("service-webhook-timestamp"), first.header("service-webhook-timestamp"));
            assert_eq!(verify(&[signed(&stage.webhook.secret, &delivered)]), [true]);
        }
        seen.insert(id);
    }
    assert_eq!(seen, HashSet::from([event.clone(), waiting, third]));
    let ended = async || {
        attempts(&api, &stage.webhook).await.iter().all(|attempt| attempt["status"] == "succeeded").then_some(())
    };
    host.until(ended).await;
    assert_eq!(attempts(&api, &stage.webhook).await.len(), 3, "it is the same attempt, made again");
}

/// A repeated request schedules nothing anew.
#[both_engines]
async fn replayed_test_request_schedules_one_event(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let path = format!("{}/test", stage.webhook.path);
    let test = || stage.api.request(Method::POST, &path).header("idempotency-key", "t");
    let (first, again) = (stage.api.send(test()).await, stage.api.send(test()).await);
    assert_eq!((again.status, again.header("idempotent-replayed"), &again.text), (202, Some("true"), &first.text));
    let event = first.data()["event_id"].as_str().unwrap();
    stage.attempt(event, 1).await;
    assert_eq!(stage.attempts().await.len(), 1);
    assert_eq!(stage.receiver.waiting().len(), 1);
}

#[both_engines]
async fn delivery_attempts_are_deleted_after_30_days(engine: Engine) {
    let stage = Stage::set(engine).await;
    let event = stage.send().await;
    stage.attempt(&event, 1).await;
    stage.host.clock.advance((30 * DAY).checked_sub(Duration::from_secs(1)).unwrap());
    stage.host.app.store.prune().await.unwrap();
    assert_eq!(stage.attempts().await.len(), 1);
    stage.host.clock.advance(Duration::from_secs(1));
    stage.host.app.store.prune().await.unwrap();
    assert_eq!(stage.attempts().await.len(), 0);
    let rows = crate::support::database::bytes_of(&stage.host, "SELECT body AS bytes FROM events").await;
    assert_eq!(rows.len(), 0, "nor is the event itself");
}

/// The events of the next nine deliveries.
async fn join_nine(receiver: &mut Receiver) -> HashSet<String> {
    let mut events = HashSet::new();
    for _ in 0..9 {
        events.insert(receiver.next().await.header("service-webhook-id").to_owned());
    }
    events
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// Whatever is signed: another implementation agrees, and a changed byte is seen.
    #[test]
    fn signature_verifies_independently_and_detects_tampering(
        deliveries in prop::collection::vec(
            (any::<[u8; 16]>(), "whsec_[A-Za-z0-9+/]{43}=", 0_i64..=253_402_300_799, prop::collection::vec(any::<u8>(), 1..2000), any::<prop::sample::Index>()),
            1..64,
        ),
    ) {
        let mut lines = Vec::new();
        for (id, secret, timestamp, mut body, at) in deliveries {
            let id = Uuid::from_bytes(id);
            let signature = signature(&secret, id, timestamp, &body);
            let line = |body: &[u8]| json!({
                "secret": secret, "id": id, "timestamp": timestamp.to_string(), "signature": signature,
                "body": hex::encode(body),
            });
            lines.push(line(&body));
            let at = at.index(body.len());
            body[at] = body[at].wrapping_add(1);
            lines.push(line(&body));
        }
        let held = verify(&lines);
        prop_assert_eq!(held.len(), lines.len());
        for (at, held) in held.into_iter().enumerate() {
            prop_assert_eq!(held, at % 2 == 0);
        }
    }
}
