//! Lists in pages: whole, in order, and right while rows are added.

use std::collections::HashSet;
use std::time::Duration;

use culvert_test_macros::both_engines;
use proptest::test_runner::{Config, TestRunner};
use serde_json::json;

use crate::support::api::Api;
use crate::support::host::{Engine, TestHost};

/// The ids of all pages, and what is done between any two of them.
async fn walk(api: &Api, limit: usize, mut between: impl AsyncFnMut()) -> Vec<String> {
    let mut ids = Vec::new();
    let mut path = format!("/tunnels?limit={limit}");
    loop {
        let page = api.get(&path).await;
        let rows = page.data().as_array().unwrap();
        assert!(rows.len() <= limit);
        ids.extend(rows.iter().map(|row| row["id"].as_str().unwrap().to_owned()));
        let Some(cursor) = page.body["meta"]["next_cursor"].as_str() else { return ids };
        assert_eq!(rows.len(), limit, "only the last page is short");
        path = format!("/tunnels?limit={limit}&cursor={cursor}");
        between().await;
    }
}

async fn create(host: &TestHost, api: &Api) -> String {
    // Some are made in the same instant.
    let [step] = host.clock.random::<1>();
    host.clock.advance(Duration::from_micros(u64::from(step % 2)));
    api.post("/tunnels", json!({"local_port": 80})).await.id().to_string()
}

/// However many rows, however large a page, whatever is inserted meanwhile: every row that was
/// there is shown once, newest first.
///
/// covers: GET /tunnels
/// covers: GET /tunnels/{tunnel_id}/sessions
/// covers: GET /devices
/// covers: GET /operations
#[both_engines]
async fn pagination_returns_each_row_once_despite_inserts(engine: Engine) {
    tokio::task::spawn_blocking(move || {
        let mut runner = TestRunner::new(Config { cases: 12, failure_persistence: None, ..Config::default() });
        runner
            .run(&(0..30_usize, 1..12_usize, 0..4_usize), |(rows, limit, inserted)| {
                check(engine, rows, limit, inserted);
                Ok(())
            })
            .unwrap();
    })
    .await
    .unwrap();
}

#[both_engines]
async fn foreign_or_tampered_cursor_is_rejected(engine: Engine) {
    let host = TestHost::with(engine, |config| config.rate_limit.per_minute = 10_000).await;
    let (ada, eve) = (host.person("ada").await, host.person("eve").await);
    let api = host.api(&ada.key);
    for _ in 0..3 {
        create(&host, &api).await;
    }
    let first = api.get("/tunnels?limit=1").await;
    let cursor = first.body["meta"]["next_cursor"].as_str().unwrap();
    assert!(cursor.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_'), "{cursor}");
    let wrong = |path: String, key: String| {
        let api = api.with_key(&key);
        async move { api.get(&path).await }
    };
    let refused = wrong(format!("/devices?cursor={cursor}"), ada.key.clone()).await;
    assert_eq!((refused.outcome().as_str(), refused.fields()), ("422 validation_failed", vec!["cursor".into()]));
    let refused = wrong(format!("/tunnels?cursor={cursor}"), eve.key.clone()).await;
    assert_eq!(refused.fields(), ["cursor"]);
    for position in 0..cursor.len() {
        let mut changed = cursor.to_owned().into_bytes();
        changed[position] = if changed[position] == b'A' { b'B' } else { b'A' };
        let changed = String::from_utf8(changed).unwrap();
        let answer = api.get(&format!("/tunnels?cursor={changed}")).await;
        // The last character has bits that say nothing.
        assert!(answer.fields() == ["cursor"] || (position == cursor.len() - 1 && answer.status == 200), "{position}");
    }
}

/// covers: page size: 1 to 100, default 25
#[both_engines]
async fn page_limit_outside_1_to_100_is_rejected(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    for bad in ["0", "101", "-1", "x", "", "1.5", "99999999999999999999"] {
        let refused = api.get(&format!("/tunnels?limit={bad}&cursor=x")).await;
        assert_eq!(
            (refused.outcome().as_str(), refused.fields()),
            ("422 validation_failed", vec!["cursor".into(), "limit".into()]),
            "{bad}"
        );
    }
    assert_eq!(api.get("/tunnels?limit=1&limit=2").await.fields(), ["limit"]);
    for good in ["1", "100"] {
        assert_eq!(api.get(&format!("/tunnels?limit={good}")).await.status, 200);
    }
}

/// Twenty-five, where nobody says how many.
///
/// covers: GET /tunnels
/// covers: page size: 1 to 100, default 25
#[both_engines]
async fn page_without_limit_has_25_rows(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    for _ in 0..26 {
        create(&host, &api).await;
    }
    let page = api.get("/tunnels").await;
    assert_eq!(page.data().as_array().unwrap().len(), 25);
    assert!(page.body["meta"]["next_cursor"].is_string());
}

fn check(engine: Engine, rows: usize, limit: usize, inserted: usize) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let host = TestHost::with(engine, |config| config.rate_limit.per_minute = 10_000).await;
        let ada = host.person("ada").await;
        let api = host.api(&ada.key);
        let mut expected = Vec::new();
        for _ in 0..rows {
            expected.push(create(&host, &api).await);
        }
        expected.reverse();
        let between = async || {
            for _ in 0..inserted {
                create(&host, &api).await;
            }
        };
        let shown = walk(&api, limit, between).await;
        assert_eq!(shown.iter().collect::<HashSet<_>>().len(), shown.len());
        assert_eq!(shown, expected);
    });
}
