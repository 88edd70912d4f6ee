//! Webhook endpoints: making, reading, changing and deleting them, and what they may be.

use culvert_test_macros::both_engines;
use futures_util::future::join_all;
use insta::{allow_duplicates, assert_snapshot};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::api::{Answer, Api};
use crate::support::database::bytes_of;
use crate::support::host::{Engine, Person, TestHost};
use crate::support::names::{Answer as Says, Names};

/// A host that asks a name server of the test's own, and somebody with a key.
struct Stage {
    host: TestHost,
    ada: Person,
    api: Api,
    names: Names,
}

impl Stage {
    async fn set(engine: Engine) -> Self {
        Self::set_on(engine, "self-hosted").await
    }

    async fn set_on(engine: Engine, plan: &str) -> Self {
        let names = Names::open().await;
        names.set("hooks.example.test", [Says::addresses(["93.184.215.14"])]);
        let host = TestHost::with(engine, |config| {
            config.dns.resolver = Some(names.address);
            config.default_plan = plan.into();
            config.rate_limit.per_minute = 1000;
        })
        .await;
        let ada = host.person("ada").await;
        let api = host.api(&ada.key);
        Self { host, ada, api, names }
    }

    /// Asks for an endpoint that listens to one kind.
    async fn create(&self, url: &str) -> Answer {
        self.api.post("/webhooks", json!({"url": url, "events": ["device.online"]})).await
    }
}

const URL: &str = "https://hooks.example.test/culvert?for=ada";

/// The faults of an answer, one a line.
fn faults(answer: &Answer) -> String {
    assert_eq!(answer.outcome(), "422 validation_failed");
    let errors = answer.body["errors"].as_array().unwrap().iter();
    let mut lines: Vec<_> = errors
        .map(|error| format!("{}: {}", error["field"].as_str().unwrap(), error["message"].as_str().unwrap()))
        .collect();
    lines.sort();
    lines.join("\n")
}

/// covers: POST /webhooks
/// covers: GET /webhooks/{webhook_id}
#[both_engines]
async fn webhook_secret_is_shown_only_on_creation(engine: Engine) {
    let stage = Stage::set(engine).await;
    let body = json!({"url": URL, "events": ["tunnel.started", "command.failed"], "description": "for the pager"});
    let created = stage.api.post("/webhooks", body).await;
    allow_duplicates! { assert_snapshot!(created, @r#"
    201
    {
      "data": {
        "created_at": "[time]",
        "description": "for the pager",
        "events": [
          "tunnel.started",
          "command.failed"
        ],
        "id": "[uuid]",
        "last_delivery": null,
        "secret": "[secret]",
        "status": "enabled",
        "updated_at": "[time]",
        "url": "https://hooks.example.test/culvert?for=ada"
      },
      "meta": {
        "request_id": "[uuid]"
      }
    }
    "#) }
    let secret = created.data()["secret"].as_str().unwrap();
    let bytes = base64_of(secret.strip_prefix("whsec_").unwrap());
    assert_eq!(bytes.len(), 32);

    let path = format!("/webhooks/{}", created.id());
    let read = stage.api.get(&path).await;
    allow_duplicates! { assert_snapshot!(read, @r#"
    200
    {
      "data": {
        "created_at": "[time]",
        "description": "for the pager",
        "events": [
          "tunnel.started",
          "command.failed"
        ],
        "id": "[uuid]",
        "last_delivery": null,
        "status": "enabled",
        "updated_at": "[time]",
        "url": "https://hooks.example.test/culvert?for=ada"
      },
      "meta": {
        "request_id": "[uuid]"
      }
    }
    "#) }
    let mut shown = created.data().clone();
    shown.as_object_mut().unwrap().remove("secret");
    assert_eq!(*read.data(), shown);
    let listed = stage.api.get("/webhooks").await;
    assert_eq!(*listed.data(), json!([shown]));
    assert_eq!(listed.body["meta"]["next_cursor"], Value::Null);
    let changed = stage.api.patch(&path, json!({"description": "changed"})).await;
    for answer in [&read, &listed, &changed] {
        assert!(!answer.text.contains("secret") && !answer.text.contains("whsec_"));
    }
    // No other endpoint has the same.
    let other = stage.create(URL).await;
    assert_ne!(other.data()["secret"].as_str().unwrap(), secret);
    assert_eq!(other.data()["description"], Value::Null);
}

/// Neither the row nor the stored answer can be read without the host's key.
#[both_engines]
async fn webhook_secret_is_encrypted_in_database(engine: Engine) {
    let stage = Stage::set(engine).await;
    let created = stage.create(URL).await;
    let secret = created.data()["secret"].as_str().unwrap().as_bytes();
    for sql in ["SELECT secret AS bytes FROM webhooks", "SELECT answer AS bytes FROM idempotency"] {
        let found = bytes_of(&stage.host, sql).await;
        assert_eq!(found.len(), 1);
        for part in [secret, &secret[6..], &base64_of(std::str::from_utf8(&secret[6..]).unwrap())] {
            assert!(!found[0].windows(8).any(|bytes| bytes == &part[..8]), "{sql}");
        }
    }
}

#[both_engines]
async fn replayed_webhook_creation_returns_same_secret(engine: Engine) {
    let stage = Stage::set(engine).await;
    let create = || {
        let body = json!({"url": URL, "events": ["device.online"]});
        stage.api.request(Method::POST, "/webhooks").json(&body).header("idempotency-key", "k")
    };
    let first = stage.api.send(create()).await;
    let again = stage.api.send(create()).await;
    assert_eq!((again.status, again.header("idempotent-replayed"), &again.text), (201, Some("true"), &first.text));
    assert!(again.data()["secret"].as_str().unwrap().starts_with("whsec_"));
    assert_eq!(stage.api.get("/webhooks").await.data().as_array().unwrap().len(), 1);
}

/// Only what is named changes.
///
/// covers: PATCH /webhooks/{webhook_id}
#[both_engines]
async fn webhook_update_changes_only_named_fields(engine: Engine) {
    let stage = Stage::set(engine).await;
    stage.names.set("other.example.test", [Says::addresses(["2606:2800:21f:cb07:6820:80da:af6b:8b2c"])]);
    let created =
        stage.api.post("/webhooks", json!({"url": URL, "events": ["device.online"], "description": "a"})).await;
    let path = format!("/webhooks/{}", created.id());
    let mut expected = created.data().clone();
    expected.as_object_mut().unwrap().remove("secret");
    for (field, value) in [
        ("url", json!("https://other.example.test:8443/")),
        ("events", json!(["command.queued", "device.offline"])),
        ("description", json!("b")),
        ("description", Value::Null),
        ("status", json!("disabled")),
        ("status", json!("enabled")),
    ] {
        stage.host.clock.advance(std::time::Duration::from_secs(1));
        let changed = stage.api.patch(&path, json!({field: value})).await;
        expected[field] = value;
        expected["updated_at"] = json!(stage.host.clock.now());
        assert_eq!((changed.status, changed.data()), (200, &expected), "{field}");
    }
    let read = stage.api.get(&path).await;
    assert_eq!(*read.data(), expected);
    // What was read can be put back.
    assert_eq!(stage.api.patch(&path, expected.clone()).await.data()["url"], expected["url"]);
    assert_eq!(faults(&stage.api.patch(&path, json!({})).await), "body: at least one field is required");
}

/// covers: DELETE /webhooks/{webhook_id}
#[both_engines]
async fn deleted_webhook_is_not_found(engine: Engine) {
    let stage = Stage::set(engine).await;
    let path = format!("/webhooks/{}", stage.create(URL).await.id());
    let delete = || stage.api.request(Method::DELETE, &path).header("idempotency-key", "d");
    let deleted = stage.api.send(delete()).await;
    allow_duplicates! { assert_snapshot!(deleted, @r#"
    200
    {
      "data": {
        "deleted": true,
        "id": "[uuid]"
      },
      "meta": {
        "request_id": "[uuid]"
      }
    }
    "#) }
    assert_eq!(stage.api.send(delete()).await.text, deleted.text, "replayed");
    for path in [path.clone(), format!("{path}/deliveries")] {
        assert_eq!(stage.api.get(&path).await.outcome(), "404 not_found");
    }
    assert_eq!(stage.api.patch(&path, json!({"status": "disabled"})).await.outcome(), "404 not_found");
    assert_eq!(stage.api.post(&format!("{path}/test"), json!({})).await.outcome(), "404 not_found");
    assert_eq!(stage.api.delete(&path).await.outcome(), "404 not_found");
    assert_eq!(*stage.api.get("/webhooks").await.data(), json!([]));
}

/// covers: GET /webhooks
#[both_engines]
async fn webhook_list_is_paginated_newest_first(engine: Engine) {
    let stage = Stage::set(engine).await;
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.insert(0, stage.create(URL).await.id().to_string());
    }
    let mut found = Vec::new();
    let mut path = "/webhooks?limit=2".to_owned();
    for rows in [2, 2, 1] {
        let page = stage.api.get(&path).await;
        assert_eq!(page.data().as_array().unwrap().len(), rows);
        found.extend(page.data().as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap().to_owned()));
        path = format!("/webhooks?limit=2&cursor={}", page.body["meta"]["next_cursor"].as_str().unwrap_or_default());
    }
    assert_eq!(found, ids);
    assert_eq!(path, "/webhooks?limit=2&cursor=", "the last page has no next one");
    let foreign = stage.api.get("/webhooks?limit=2").await.body["meta"]["next_cursor"].as_str().unwrap().to_owned();
    assert_eq!(stage.api.get(&format!("/tunnels?cursor={foreign}")).await.fields(), ["cursor"]);
}

/// Every URL that is none, or leads inside, whoever spells it.
///
/// covers: POST /webhooks
#[both_engines]
async fn webhook_url_must_be_https_to_public_address(engine: Engine) {
    let stage = Stage::set(engine).await;
    for (name, says) in [
        ("inside.example.test", Says::addresses(["10.1.2.3"])),
        ("inside6.example.test", Says::addresses(["fd00::1"])),
        ("mixed.example.test", Says::addresses(["93.184.215.14", "192.168.1.1", "93.184.215.15"])),
        ("mixed6.example.test", Says::addresses(["93.184.215.14", "::1"])),
        ("mapped.example.test", Says::addresses(["::ffff:169.254.169.254"])),
        ("alias.example.test", Says::Alias("inside.example.test".into())),
        ("empty.example.test", Says::addresses([])),
        ("public6.example.test", Says::addresses(["2606:2800:21f:cb07:6820:80da:af6b:8b2c"])),
        ("alias-outside.example.test", Says::Alias("hooks.example.test".into())),
    ] {
        stage.names.set(name, [says]);
    }
    let mut table = String::new();
    for url in [
        "http://hooks.example.test/",
        "HTTPS://hooks.example.test/",
        "ftp://hooks.example.test/",
        "hooks.example.test",
        "https://",
        "https:///path",
        "https://user@hooks.example.test/",
        "https://user:password@hooks.example.test/",
        "https://hooks.example.test/#fragment",
        "https://hooks.example.test/#",
        "https://hooks.example.test:65536/",
        "https://hooks.example.test:8443/",
        "https://hooks.example.test/a b",
        "https://127.0.0.1/",
        "https://10.0.0.1:8443/",
        "https://169.254.169.254/latest/meta-data/",
        "https://2130706433/",
        "https://0x7f.1/",
        "https://127.1/",
        "https://0/",
        "https://[::1]/",
        "https://[fd00::1]/",
        "https://[::ffff:127.0.0.1]/",
        "https://[64:ff9b::a00:1]/",
        "https://localhost/",
        "https://nothing.example.test/",
        "https://empty.example.test/",
        "https://inside.example.test/",
        "https://inside6.example.test/",
        "https://mixed.example.test/",
        "https://mixed6.example.test/",
        "https://mapped.example.test/",
        "https://alias.example.test/",
        "https://alias-outside.example.test/",
        "https://public6.example.test/",
        "https://8.8.8.8/",
        "https://[2606:4700::1111]/",
    ] {
        let answer = stage.create(url).await;
        let said = if answer.status == 201 { "201".to_owned() } else { faults(&answer).replace('\n', "; ") };
        table += &format!("{url:45} {said}\n");
    }
    allow_duplicates! { assert_snapshot!(table, @"
    http://hooks.example.test/                    url: must be an https:// URL of at most 2048 characters, without user information or fragment
    HTTPS://hooks.example.test/                   url: must be an https:// URL of at most 2048 characters
    ftp://hooks.example.test/                     url: must be an https:// URL of at most 2048 characters, without user information or fragment
    hooks.example.test                            url: must be an https:// URL of at most 2048 characters, without user information or fragment
    https://                                      url: must be an https:// URL of at most 2048 characters, without user information or fragment
    https:///path                                 url: must be an https:// URL of at most 2048 characters, without user information or fragment
    https://user@hooks.example.test/              url: must be an https:// URL of at most 2048 characters, without user information or fragment
    https://user:password@hooks.example.test/     url: must be an https:// URL of at most 2048 characters, without user information or fragment
    https://hooks.example.test/#fragment          url: must be an https:// URL of at most 2048 characters, without user information or fragment
    https://hooks.example.test/#                  url: must be an https:// URL of at most 2048 characters, without user information or fragment
    https://hooks.example.test:65536/             url: must be an https:// URL of at most 2048 characters
    https://hooks.example.test:8443/              201
    https://hooks.example.test/a b                url: must be an https:// URL of at most 2048 characters, without user information or fragment
    https://127.0.0.1/                            url: must lead to public addresses only
    https://10.0.0.1:8443/                        url: must lead to public addresses only
    https://169.254.169.254/latest/meta-data/     url: must lead to public addresses only
    https://2130706433/                           url: must lead to public addresses only
    https://0x7f.1/                               url: must lead to public addresses only
    https://127.1/                                url: must lead to public addresses only
    https://0/                                    url: must lead to public addresses only
    https://[::1]/                                url: must lead to public addresses only
    https://[fd00::1]/                            url: must lead to public addresses only
    https://[::ffff:127.0.0.1]/                   url: must lead to public addresses only
    https://[64:ff9b::a00:1]/                     url: must lead to public addresses only
    https://localhost/                            url: must have a host name with a public address
    https://nothing.example.test/                 url: must have a host name with a public address
    https://empty.example.test/                   url: must have a host name with a public address
    https://inside.example.test/                  url: must have a host name with a public address
    https://inside6.example.test/                 url: must have a host name with a public address
    https://mixed.example.test/                   url: must have a host name with a public address
    https://mixed6.example.test/                  url: must have a host name with a public address
    https://mapped.example.test/                  url: must have a host name with a public address
    https://alias.example.test/                   url: must have a host name with a public address
    https://alias-outside.example.test/           201
    https://public6.example.test/                 201
    https://8.8.8.8/                              201
    https://[2606:4700::1111]/                    201
    ") }
    // A change is judged like a create.
    let path = format!("/webhooks/{}", stage.api.get("/webhooks?limit=1").await.data()[0]["id"].as_str().unwrap());
    for url in ["https://mixed.example.test/", "https://[::1]/", "http://hooks.example.test/"] {
        assert_eq!(stage.api.patch(&path, json!({"url": url})).await.fields(), ["url"], "{url}");
    }
    let long = |length: usize| format!("https://hooks.example.test/{}", "x".repeat(length - 27));
    assert_eq!(stage.create(&long(2048)).await.data()["url"], long(2048));
    assert_eq!(stage.create(&long(2049)).await.fields(), ["url"]);
}

/// Whoever runs the name server cannot hold up a request: three seconds, and the answer is no.
#[both_engines]
async fn webhook_url_with_unresponsive_dns_is_refused_after_timeout(engine: Engine) {
    let stage = Stage::set(engine).await;
    stage.names.set("silent.example.test", [Says::Silence]);
    let mut questions = stage.names.questions();
    questions.borrow_and_update();
    let refused = async {
        let answer = stage.create("https://silent.example.test/").await;
        assert_eq!(faults(&answer), "url: must have a host name with a public address");
    };
    let pass = async {
        questions.changed().await.unwrap();
        stage.host.clock.advance(std::time::Duration::from_secs(3));
    };
    tokio::join!(refused, pass);
}

/// covers: webhook events: at least one, each once
#[both_engines]
async fn webhook_events_must_be_known_and_unique(engine: Engine) {
    let stage = Stage::set(engine).await;
    let all = [
        "command.queued",
        "command.claimed",
        "command.running",
        "command.succeeded",
        "command.failed",
        "command.expired",
        "command.canceled",
        "tunnel.started",
        "tunnel.stopped",
        "device.online",
        "device.offline",
    ];
    let created = stage.api.post("/webhooks", json!({"url": URL, "events": all})).await;
    assert_eq!(created.data()["events"], json!(all));
    let path = format!("/webhooks/{}", created.id());
    let mut table = String::new();
    for events in [
        json!([]),
        json!(["device.online", "device.gone", "webhook.test", "*"]),
        json!(["device.online", "tunnel.started", "device.online"]),
        json!("device.online"),
        json!(["device.online", 7, null]),
        json!(["Device.Online"]),
        Value::Null,
    ] {
        let created = stage.api.post("/webhooks", json!({"url": URL, "events": events})).await;
        let changed = stage.api.patch(&path, json!({"events": events})).await;
        let said = faults(&created);
        table += &format!("{events}\n  {}\n", said.replace(&all.join(", "), "[all]").replace('\n', "\n  "));
        assert_eq!(faults(&changed), said);
    }
    allow_duplicates! { assert_snapshot!(table, @r#"
    []
      events: must hold at least one event
    ["device.online","device.gone","webhook.test","*"]
      events[1]: must be one of [all]
      events[2]: must be one of [all]
      events[3]: must be one of [all]
    ["device.online","tunnel.started","device.online"]
      events[2]: stands in the list before it
    "device.online"
      events: must be an array
    ["device.online",7,null]
      events[1]: must be a string
      events[2]: must be a string
    ["Device.Online"]
      events[0]: must be one of [all]
    null
      events: must be an array
    "#) }
    assert_eq!(stage.api.get(&path).await.data()["events"], json!(all), "as it was");
}

/// Faults of shape, of meaning and of the network, in one answer.
#[both_engines]
async fn webhook_validation_reports_all_errors_at_once(engine: Engine) {
    let stage = Stage::set(engine).await;
    assert_eq!(faults(&stage.api.post("/webhooks", json!({})).await), "events: is required\nurl: is required");
    let body = json!({
        "url": "https://10.0.0.1/", "events": ["device.online", 1, "no"], "description": "d".repeat(256),
        "secret": "mine", "colour": "red",
    });
    let created = stage.api.post("/webhooks", body.clone()).await;
    allow_duplicates! { assert_snapshot!(created, @r#"
    422
    {
      "code": "validation_failed",
      "detail": "The request has invalid fields; `errors` names them.",
      "errors": [
        {
          "field": "events[1]",
          "message": "must be a string"
        },
        {
          "field": "events[2]",
          "message": "must be one of command.queued, command.claimed, command.running, command.succeeded, command.failed, command.expired, command.canceled, tunnel.started, tunnel.stopped, device.online, device.offline",
          "rule": "event"
        },
        {
          "field": "description",
          "message": "must have at most 255 characters, none of them a control character",
          "rule": "label"
        },
        {
          "field": "url",
          "message": "must lead to public addresses only"
        },
        {
          "field": "colour",
          "message": "is not a field of this request"
        },
        {
          "field": "secret",
          "message": "is not a field of this request"
        }
      ],
      "request_id": "[uuid]",
      "status": 422,
      "title": "The request has invalid fields",
      "type": "https://api.example.test/docs/errors#validation_failed"
    }
    "#) }
    let path = format!("/webhooks/{}", stage.create(URL).await.id());
    assert_eq!(faults(&stage.api.patch(&path, body).await), faults(&created));
    let wrong = json!({"url": 1, "events": {}, "description": [], "status": "gone", "secret": null});
    assert_eq!(stage.api.patch(&path, wrong).await.fields(), ["description", "events", "secret", "status", "url"]);
    assert_eq!(stage.api.patch(&path, json!({"url": null})).await.fields(), ["url"]);
    assert_eq!(stage.api.patch(&path, json!({"status": null})).await.fields(), ["status"]);
    let create = json!({"url": URL, "events": ["device.online"], "status": "disabled"});
    assert_eq!(stage.api.post("/webhooks", create).await.fields(), ["status"], "accepted on update only");
}

/// Another scope's endpoint is not there, for a key of the same account as well.
#[both_engines]
async fn webhook_of_another_account_or_team_is_not_found(engine: Engine) {
    let stage = Stage::set(engine).await;
    let team = stage.host.team("Engines", &stage.ada).await;
    let elsewhere = stage.host.key(stage.ada.account_id, team, "full_access").await;
    let bob = stage.host.person("bob").await;
    let path = format!("/webhooks/{}", stage.create(URL).await.id());
    for key in [&elsewhere.key, &bob.key] {
        let api = stage.api.with_key(key);
        for answer in [
            api.get(&path).await,
            api.get(&format!("{path}/deliveries")).await,
            api.patch(&path, json!({"status": "disabled"})).await,
            api.patch(&path, json!({"url": "no"})).await,
            api.post(&format!("{path}/test"), json!({})).await,
            api.delete(&path).await,
        ] {
            assert_eq!(answer.outcome(), "404 not_found");
        }
        assert_eq!(*api.get("/webhooks").await.data(), json!([]));
    }
    assert_eq!(stage.api.get(&path).await.data()["status"], "enabled");
    assert_eq!(stage.api.get("/webhooks/no-uuid").await.outcome(), "404 not_found");
}

/// Forty at once: twenty are made, and every other one is told why it was not.
///
/// covers: webhook_limit_reached
/// covers: webhook endpoints a scope: 20
#[both_engines]
async fn concurrent_webhook_creation_respects_limit_of_20(engine: Engine) {
    let stage = Stage::set(engine).await;
    let answers = join_all((0..40).map(|_| stage.create(URL))).await;
    let outcomes: Vec<_> = answers.iter().map(Answer::outcome).collect();
    let count = |outcome: &str| outcomes.iter().filter(|found| *found == outcome).count();
    assert_eq!((count("201"), count("409 webhook_limit_reached")), (20, 20), "{outcomes:?}");
    let listed = stage.api.get("/webhooks?limit=100").await;
    assert_eq!(listed.data().as_array().unwrap().len(), 20);
    let refused = stage.create(URL).await;
    allow_duplicates! { assert_snapshot!(refused, @r#"
    409
    {
      "code": "webhook_limit_reached",
      "detail": "20 webhook endpoints exist; a scope can have 20.",
      "request_id": "[uuid]",
      "status": 409,
      "title": "The scope has no room for more webhook endpoints",
      "type": "https://api.example.test/docs/errors#webhook_limit_reached"
    }
    "#) }
    // A Team's are the Team's own.
    let team = stage.host.team("Engines", &stage.ada).await;
    let member = stage.host.key(stage.ada.account_id, team, "full_access").await;
    let body = json!({"url": URL, "events": ["device.online"]});
    assert_eq!(stage.api.with_key(&member.key).post("/webhooks", body).await.status, 201);
    // One less makes room for one.
    let id = listed.data()[7]["id"].as_str().unwrap();
    stage.api.delete(&format!("/webhooks/{id}")).await.data();
    assert_eq!(stage.create(URL).await.status, 201);
    assert_eq!(stage.create(URL).await.outcome(), "409 webhook_limit_reached");
}

/// The plan's own number comes first.
///
/// covers: plan_limit_reached
#[both_engines]
async fn webhook_limit_follows_plan(engine: Engine) {
    let stage = Stage::set_on(engine, "free").await;
    let answers = join_all((0..10).map(|_| stage.create(URL))).await;
    let outcomes: Vec<_> = answers.iter().map(Answer::outcome).collect();
    assert_eq!(outcomes.iter().filter(|found| *found == "403 plan_limit_reached").count(), 9, "{outcomes:?}");
    let refused = stage.create(URL).await;
    allow_duplicates! { assert_snapshot!(refused, @r#"
    403
    {
      "code": "plan_limit_reached",
      "detail": "The plan includes 1 webhook endpoints; 1 exist.",
      "request_id": "[uuid]",
      "status": 403,
      "title": "A limit of the plan is reached",
      "type": "https://api.example.test/docs/errors#plan_limit_reached"
    }
    "#) }
    stage.host.set_plan(stage.ada.account_id, "pro").await;
    stage.host.clock.advance(std::time::Duration::from_secs(1));
    assert_eq!(stage.create(URL).await.status, 201);
}

/// covers: POST /webhooks/{webhook_id}/test
/// covers: webhook_disabled
#[both_engines]
async fn disabled_webhook_refuses_test_delivery(engine: Engine) {
    let stage = Stage::set(engine).await;
    let path = format!("/webhooks/{}", stage.create(URL).await.id());
    stage.api.patch(&path, json!({"status": "disabled"})).await.data();
    let refused = stage.api.post(&format!("{path}/test"), json!({})).await;
    allow_duplicates! { assert_snapshot!(refused, @r#"
    409
    {
      "code": "webhook_disabled",
      "detail": "The webhook endpoint is disabled.",
      "request_id": "[uuid]",
      "status": 409,
      "title": "The webhook endpoint is disabled",
      "type": "https://api.example.test/docs/errors#webhook_disabled"
    }
    "#) }
    assert_eq!(*stage.api.get(&format!("{path}/deliveries")).await.data(), json!([]));
}

fn base64_of(text: &str) -> Vec<u8> {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.decode(text).unwrap()
}
