//! How pages tell what became of an operation: each end with its code and with what to do.

use std::time::Duration;

use culvert_test_macros::both_engines;
use culvert_wire::control::{Done, Failure, ToHost};
use culvert_wire::failure_code::FailureCode;
use serde_json::json;
use uuid::Uuid;

use crate::dashboard::is_sound;
use crate::support::host::{Engine, TestHost};
use crate::support::tab::Tab;

#[both_engines]
async fn page_tells_how_an_operation_has_ended_and_what_to_do(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let (device, mut wire) = host.wired(&ada, ada.account_id).await;
    let tunnel = api.post("/tunnels", json!({"local_port": 80})).await.id();
    let mut tab = Tab::entered(&host, ada.account_id).await;
    let start =
        async || api.post(&format!("/tunnels/{tunnel}/actions/start"), json!({"device_id": device.id})).await.id();
    let mut ended: Vec<(Uuid, &str, &str, &str)> = Vec::new();

    let done = start().await;
    wire.obey(Done::Start).await;
    ended.push((done, "succeeded", "", ""));
    let stop = api.post(&format!("/tunnels/{tunnel}/actions/stop"), json!({})).await.id();
    wire.obey(Done::Stop).await;
    host.until_ended(&api, stop).await;

    let failed = start().await;
    wire.command().await;
    wire.begin(failed).await;
    wire.finish(failed, Err(Failure::new(FailureCode::LocalTargetUnreachable, "Nothing listens there."))).await;
    ended.push((failed, "failed", "local_target_unreachable", "Start the service there"));

    let unclaimed = start().await;
    wire.command().await;
    for _ in 0..3 {
        host.pass(Duration::from_secs(20)).await;
        wire.renew(&[]).await;
    }
    ended.push((unclaimed, "expired", "not_claimed", "Look whether it is online"));

    // The agent is gone before it began, and after.
    let claimed = start().await;
    wire.send(ToHost::Claimed { operation_id: claimed }).await;
    host.until_operation(&api, claimed, "claimed").await;
    wire.hang_up().await;
    host.pass(Duration::from_secs(45)).await;
    ended.push((claimed, "failed", "device_disconnected", "nothing was done"));
    let mut wire = host.connect(&device, |_| {}).await.unwrap();
    let begun = start().await;
    wire.begin(begun).await;
    let page = format!("/dashboard/me/operations/{begun}");
    assert!(tab.get(&page).await.text.contains("under way"));
    wire.hang_up().await;
    host.pass(Duration::from_secs(45)).await;
    ended.push((begun, "failed", "outcome_unknown", "to ask for it again is safe"));

    for (operation, status, code, advice) in ended {
        let path = format!("/dashboard/me/operations/{operation}");
        let shown = tab.get(&path).await;
        is_sound(&path, &shown);
        for part in [status, code, advice] {
            assert!(shown.text.contains(part), "{status} {code}: {part}: {}", shown.text);
        }
        // Whatever has ended is not looked at again and again.
        assert!(!shown.text.contains("http-equiv=\"refresh\""), "{code}");
        let list = tab.get("/dashboard/me/operations").await;
        assert!(list.text.contains(&format!("/operations/{operation}\"")), "{code}");
    }
}
