//! What a client is told when something of ours fails: that nothing was done, when to try again, and
//! nothing of what is inside.

use std::error::Error as _;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use culvert::config::Config;
use culvert_policy::engine::kind::Kind;
use culvert_policy::load::chain::PolicyConfig;
use culvert_store::error::StoreError;
use culvert_test_macros::both_engines;
use insta::{allow_duplicates, assert_snapshot};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::support::database::execute;
use crate::support::host::{Engine, TestHost};
use crate::support::hostile::{DENY, GOOD, Module};

/// The shipped policies, with a hostile one for Team roles.
fn with_roles_by(check: &'static str) -> impl FnOnce(&mut Config) {
    move |config| {
        let wasm = Module { check, ..GOOD }.component();
        let file = config.data_dir.join("roles.wasm");
        std::fs::write(&file, &wasm).unwrap();
        let roles = config.policy.iter_mut().find(|policy| policy.kind == Kind::TeamRole).unwrap();
        *roles = PolicyConfig {
            module: file.to_str().unwrap().into(),
            sha256: Some(hex::encode(Sha256::digest(&wasm))),
            ..roles.clone()
        };
    }
}

/// A policy that fails has not agreed: nothing is done, and it is worth asking again.
///
/// covers: policy_unavailable
#[both_engines]
async fn failing_policy_refuses_request_as_unavailable(engine: Engine) {
    let host = TestHost::with(engine, with_roles_by("unreachable")).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let refused = api.post("/tunnels", json!({"local_port": 80})).await;
    allow_duplicates! { assert_snapshot!(refused, @r#"
    503
    {
      "code": "policy_unavailable",
      "detail": "A policy gave no answer.",
      "request_id": "[uuid]",
      "status": 503,
      "title": "A policy gave no answer",
      "type": "https://api.example.test/docs/errors#policy_unavailable"
    }
    "#) }
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(api.get("/tunnels").await.data(), &json!([]));
}

/// A policy's own code is the API's, and its page explains it.
#[both_engines]
async fn policy_denial_uses_its_own_error_code(engine: Engine) {
    let host = TestHost::with(engine, with_roles_by(DENY)).await;
    let ada = host.person("ada").await;
    let refused = host.api(&ada.key).post("/tunnels", json!({"local_port": 80})).await;
    allow_duplicates! { assert_snapshot!(refused, @r#"
    403
    {
      "code": "test_denied",
      "detail": "hostile",
      "request_id": "[uuid]",
      "status": 403,
      "title": "Refused by a policy",
      "type": "https://api.example.test/docs/errors#test_denied"
    }
    "#) }
    let errors = reqwest::get(format!("{}/docs/errors", host.url())).await.unwrap().text().await.unwrap();
    assert!(errors.contains("<section id=\"test_denied\">"));
}

/// covers: service_unavailable
#[both_engines]
async fn unavailable_database_returns_service_unavailable(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    api.get("/tunnels").await.data();
    host.app.store.close().await;
    let refused = api.get("/tunnels").await;
    allow_duplicates! { assert_snapshot!(refused, @r#"
    503
    {
      "code": "service_unavailable",
      "detail": "The service cannot answer right now; try again.",
      "request_id": "[uuid]",
      "status": 503,
      "title": "The service is not available",
      "type": "https://api.example.test/docs/errors#service_unavailable"
    }
    "#) }
    assert_eq!(refused.header("retry-after"), Some("1"));
}

/// A row that this program never wrote is our fault, and none of it is told.
///
/// covers: internal_error
#[both_engines]
async fn unreadable_row_returns_internal_error_without_details(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let tunnel = api.post("/tunnels", json!({"local_port": 80})).await.id();
    execute(&host, "UPDATE tunnels SET local_port = -7").await;
    let broken = api.get(&format!("/tunnels/{tunnel}")).await;
    allow_duplicates! { assert_snapshot!(broken, @r#"
    500
    {
      "code": "internal_error",
      "detail": "Something went wrong on our side. The request id helps us to find it.",
      "request_id": "[uuid]",
      "status": 500,
      "title": "Something went wrong",
      "type": "https://api.example.test/docs/errors#internal_error"
    }
    "#) }
    assert!(!broken.text.contains("local_port"));
}

/// A log in memory.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The runtime has one thread, so this thread's log is the host's.
#[tokio::test]
async fn database_failure_is_logged_once_with_its_cause() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let host = TestHost::start(Engine::Sqlite).await;
    let ada = host.person("ada").await;
    execute(&host, "DROP TABLE presets").await;
    let failed = host.api(&ada.key).get("/presets").await;
    assert_eq!(failed.status, 500);
    let request_id = failed.body["request_id"].as_str().unwrap().to_owned();
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("internal error")).collect();
    let [line] = lines[..] else { panic!("one line was wanted: {lines:?}") };
    assert!(line.contains(&request_id), "{line}");
    assert!(line.contains("the database refused a statement: no such table: presets (code 1)"), "{line}");
}

#[test]
fn error_keeps_its_sources() {
    let cause = io::Error::other("the disk is gone");
    let error = culvert_domain::error::Error::from(StoreError::from(sqlx::Error::Io(cause)));
    let store = error.source().unwrap();
    let database = store.source().unwrap();
    assert_eq!(store.to_string(), "the database cannot answer now");
    assert_eq!(database.source().unwrap().to_string(), "the disk is gone");
}
