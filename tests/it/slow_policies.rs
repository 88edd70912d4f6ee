//! Modules that take long: they cost their own requests, and no others.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;

use crate::support::hostile::{GOOD, Module};
use crate::support::policies::{Swapped, builtin, entry};

/// Never answers.
const ENDLESS: Module = Module { check: "(loop $again (br $again)) unreachable", ..GOOD };
/// Clients that ask at once.
const CLIENTS: usize = 8;

/// A host whose team-role module never answers, within its deadline of a second.
async fn stage() -> Swapped {
    let swapped = Swapped::start(|_| {}).await;
    let endless = swapped.write("endless.wasm", &ENDLESS);
    let chain = entry("team-role", &endless, "deadline_ms = 1000") + &builtin(&["plan-access", "validation"]);
    swapped.configure(&chain);
    assert_eq!(swapped.reload().await, Ok(2));
    swapped
}

/// The eight take their turns, up to a second each. All else is answered before the first of them is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn module_at_its_deadline_holds_up_no_other_request() {
    let swapped = stage().await;
    let api = swapped.host.api(&swapped.host.person("ada").await.key);
    let ended = Arc::new(AtomicUsize::new(0));
    let mut asked = Vec::new();
    for _ in 0..CLIENTS {
        let (api, ended) = (api.clone(), ended.clone());
        asked.push(tokio::spawn(async move {
            let answer = api.post("/tunnels", json!({"local_port": 80})).await.outcome();
            ended.fetch_add(1, Ordering::SeqCst);
            answer
        }));
    }
    // The first is under way once it is counted as running long.
    swapped.host.until_found(async || swapped.metric(LONG).await.filter(|running| *running >= 1.0)).await;
    for _ in 0..5 {
        assert_eq!(reqwest::get(swapped.admin("healthz")).await.unwrap().status(), 200);
        assert_eq!(api.get("/tunnels").await.status, 200);
    }
    assert_eq!(ended.load(Ordering::SeqCst), 0, "the host answered others only after the module's deadline");
    for answer in asked {
        assert_eq!(answer.await.unwrap(), "503 policy_unavailable");
    }
}

const LONG: &str = "culvert_policy_long_decisions{kind=\"team-role\",module=\"hostile\"}";
const REFUSED: &str = "culvert_policy_failures_total{kind=\"team-role\",module=\"hostile\",cause=\"breaker\"}";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn breaker_opens_for_module_that_times_out_again_and_again() {
    let swapped = stage().await;
    let api = swapped.host.api(&swapped.host.person("ada").await.key);
    let ask = async || api.post("/tunnels", json!({"local_port": 80})).await.outcome();
    let open = async || swapped.status().await["modules"][0]["breaker_open"].clone();
    for _ in 0..5 {
        assert_eq!(open().await, false);
        assert_eq!(ask().await, "503 policy_unavailable");
    }
    assert_eq!((open().await, swapped.metric(REFUSED).await), (json!(true), Some(0.0)));
    assert_eq!(ask().await, "503 policy_unavailable");
    assert_eq!(swapped.metric(REFUSED).await, Some(1.0), "the module was not asked");
    // After a pause it is asked once, and not again.
    swapped.host.clock.advance(Duration::from_secs(5));
    assert_eq!((ask().await, swapped.metric(REFUSED).await), ("503 policy_unavailable".into(), Some(1.0)));
    assert_eq!((ask().await, swapped.metric(REFUSED).await), ("503 policy_unavailable".into(), Some(2.0)));
    // Another generation begins anew.
    swapped.configure("");
    swapped.reload().await.unwrap();
    assert_eq!((ask().await, open().await), ("201".into(), json!(false)));
}
