//! What the present state does not allow is told before it is tried, with the code that it would be refused with.

use chrono::TimeDelta;
use culvert_test_macros::both_engines;
use serde_json::json;

use crate::dashboard::is_sound;
use crate::support::device::Remote;
use crate::support::host::{Engine, TestHost};
use crate::support::tab::{Shown, Tab};

/// The code that stands beside a button that is of no use.
fn beside(page: &Shown, label: &str) -> String {
    let button = format!("aria-disabled=\"true\">{label}</button>");
    let said = page.text.split(&button).nth(1).unwrap_or_else(|| panic!("{label} can be tried: {}", page.text));
    code(said)
}

/// The code in a row of a device, in place of the button that starts a tunnel there.
fn in_row(page: &Shown, device: &str) -> String {
    let row = page.text.split(&format!("<td>{device}</td>")).nth(1).unwrap_or_else(|| panic!("{}", page.text));
    code(row.split("</tr>").next().unwrap())
}

fn code(text: &str) -> String {
    let code = text.split("<code>").nth(1).and_then(|rest| rest.split("</code>").next());
    code.unwrap_or_else(|| panic!("no code: {text}")).to_owned()
}

/// The code above a form that is of no use.
fn above_form(page: &Shown) -> String {
    let (notice, _) = page.text.split_once("<fieldset disabled>").unwrap_or_else(|| panic!("{}", page.text));
    code(notice.rsplit("class=\"notice\"").next().unwrap())
}

#[both_engines]
async fn full_lists_say_so_above_their_forms(engine: Engine) {
    let host = TestHost::with(engine, |config| config.rate_limit.per_minute = 10_000).await;
    let ada = host.person("ada").await;
    let (api, mut tab) = (host.api(&ada.key), Tab::with_password(&host, ada.account_id).await);
    let tunnel = api.post("/tunnels", json!({"local_port": 80})).await.id();
    let ports = format!("/tunnels/{tunnel}/extra-ports");
    let mut refused = String::new();
    while refused.is_empty() {
        let answer = api.post(&ports, json!({"local_port": 81, "protocol": "tcp"})).await;
        refused = if answer.status < 300 { String::new() } else { answer.outcome() };
    }
    let path = format!("/dashboard/me/tunnels/{tunnel}/ports");
    let page = tab.get(&path).await;
    is_sound(&path, &page);
    assert_eq!(
        (refused.as_str(), above_form(&page).as_str()),
        ("409 extra_port_limit_reached", "extra_port_limit_reached")
    );

    for _ in 0..20 {
        host.webhook(ada.account_id).await;
    }
    let page = tab.get("/dashboard/me/webhooks").await;
    is_sound("webhooks", &page);
    assert_eq!(above_form(&page), "webhook_limit_reached");
    let body = json!({"url": "https://8.8.8.8/", "events": ["device.online"]});
    assert_eq!(api.post("/webhooks", body).await.outcome(), "409 webhook_limit_reached");

    // The first one came with the account.
    for _ in 0..48 {
        host.key(ada.account_id, ada.account_id, "read_only").await;
    }
    let last = tab.get("/dashboard/me/keys").await;
    host.key(ada.account_id, ada.account_id, "read_only").await;
    let page = tab.get("/dashboard/me/keys").await;
    is_sound("keys", &page);
    assert_eq!(above_form(&page), "key_limit_reached");
    let refused = tab.submit(&last, "/dashboard/me/keys", &[("name", "one more")]).await;
    assert_eq!(refused.outcome(), "409 key_limit_reached");
}

#[both_engines]
async fn device_that_cannot_start_a_tunnel_says_why(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let (api, mut tab) = (host.api(&ada.key), Tab::entered(&host, ada.account_id).await);
    let (device, _wire) = host.wired(&ada, ada.account_id).await;
    let (old, _old_wire) = host.wired_with(&ada, ada.account_id, &["tunnel.start"]).await;
    for (id, name) in [(device.id, "laptop"), (old.id, "attic")] {
        api.patch(&format!("/devices/{id}"), json!({"name": name})).await.data();
    }
    let tunnel = api.post("/tunnels", json!({"local_port": 80, "protocol": "http", "subdomain": "hello"})).await.id();
    let (of_api, path) = (format!("/tunnels/{tunnel}/actions"), format!("/dashboard/me/tunnels/{tunnel}"));
    let start = async |device| api.post(&format!("{of_api}/start"), json!({"device_id": device})).await;
    let page = tab.get(&path).await;
    is_sound(&path, &page);
    assert!(page.text.contains(">Start</button>"), "the new one can");
    assert_eq!(in_row(&page, "attic"), "upgrade_required");
    assert_eq!(start(old.id).await.outcome(), "409 upgrade_required");

    start(device.id).await.data();
    let page = tab.get(&path).await;
    assert_eq!(in_row(&page, "laptop"), "operation_in_progress");
    assert_eq!(start(device.id).await.outcome(), "409 operation_in_progress");
    let settings = tab.get(&format!("{path}/settings")).await;
    assert_eq!(above_form(&settings), "operation_in_progress");

    let scope = ada.account_id;
    let until = host.clock.now() + TimeDelta::days(1);
    host.app.store.write(Some(scope), move |write| Box::pin(write.suspend_scope(scope, until))).await.unwrap();
    assert_eq!(in_row(&tab.get(&path).await, "laptop"), "tunnel_suspended");
    assert_eq!(start(device.id).await.outcome(), "409 tunnel_suspended");
}

/// What runs goes on where remote control was turned off, and can be stopped at the device alone.
#[both_engines]
async fn running_tunnel_without_consent_says_why_it_cannot_be_stopped(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let (api, mut tab) = (host.api(&ada.key), Tab::entered(&host, ada.account_id).await);
    let device = host.device(&ada, ada.account_id, Remote::Disabled).await;
    let tunnel = api.post("/tunnels", json!({"local_port": 80})).await.id();
    host.run_tunnel(&api, &device, tunnel).await;
    let path = format!("/dashboard/me/tunnels/{tunnel}");
    let page = tab.get(&path).await;
    is_sound(&path, &page);
    for (label, action) in [("Stop", "stop"), ("Restart", "restart")] {
        assert_eq!(beside(&page, label), "remote_control_disabled");
        let refused = api.post(&format!("/tunnels/{tunnel}/actions/{action}"), json!({})).await;
        assert_eq!(refused.outcome(), "409 remote_control_disabled");
    }
}
