//! Webhook endpoints in the dashboard.

use culvert_domain::caller::Role;
use culvert_test_macros::both_engines;
use insta::{allow_duplicates, assert_snapshot};
use serde_json::json;

use crate::dashboard::is_sound;
use crate::support::host::{Engine, TestHost};
use crate::support::receiver::{Authority, Reply};
use crate::support::tab::{Shown, Tab};

const LIST: &str = "/dashboard/me/webhooks";

/// What the page says of the last delivery: its state, and what was answered.
fn delivered(page: &Shown) -> Option<(String, String)> {
    let row = page.text.split("aria-label=\"Deliveries\"").nth(1)?.split("<tr>").nth(2)?;
    let mut cells = row.split("<td>").skip(3);
    let words = |cell: &str| {
        let texts = cell.split('>').map(|part| part.split('<').next().unwrap_or_default().trim());
        texts.filter(|text| !text.is_empty()).collect::<Vec<_>>().join(" ")
    };
    Some((words(cells.next()?), words(cells.next()?)))
}

fn secret_of(page: &Shown) -> Option<&str> {
    let (_, rest) = page.text.split_once("<code>whsec_")?;
    rest.split('<').next()
}

#[both_engines]
async fn endpoint_is_created_tested_changed_and_deleted(engine: Engine) {
    let authority = Authority::new();
    let host = TestHost::with(engine, |config| authority.let_in(config)).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let mut receiver = authority.receiver(&host.clock).await;
    let mut tab = Tab::entered(&host, ada.account_id).await;

    // What is wrong stands at its field, and what was chosen stays.
    let page = tab.get(LIST).await;
    let typed = [("url", "http://hooks.example.test/"), ("event command.failed", "yes")];
    let refused = tab.submit(&page, LIST, &typed).await;
    assert_eq!(refused.outcome(), "422 validation_failed");
    allow_duplicates! {
        assert_snapshot!(refused.fault("url").unwrap(), @"must be an https:// URL of at most 2048 characters, without user information or fragment");
    }
    let chosen = refused.form(LIST).into_iter().filter_map(|(name, _)| name.strip_prefix("event ").map(String::from));
    let chosen: Vec<String> = chosen.collect();
    assert_eq!(chosen, ["command.failed", "tunnel.started", "tunnel.stopped", "device.offline"]);
    let mut none = page.form(LIST);
    none.retain(|(name, _)| !name.starts_with("event "));
    assert!(tab.post(LIST, &none).await.fault("events").is_some());

    // The secret is shown once; a reload makes no other endpoint.
    let page = tab.get(LIST).await;
    let mut form = page.form(LIST);
    form.retain(|(name, _)| name != "url");
    form.push(("url".into(), receiver.url()));
    let created = tab.post(LIST, &form).await;
    assert!(secret_of(&created).is_some(), "{}", created.text);
    assert_eq!(secret_of(&tab.post(LIST, &form).await), secret_of(&created));
    let webhooks = api.get("/webhooks").await.data().clone();
    assert_eq!(webhooks.as_array().unwrap().len(), 1);
    assert_eq!(webhooks[0]["events"], serde_json::json!(["tunnel.started", "tunnel.stopped", "device.offline"]));
    let path = format!("{LIST}/{}", webhooks[0]["id"].as_str().unwrap());
    assert!(!tab.get(&path).await.text.contains("whsec_"));

    // A test event arrives, and the page says what was answered.
    let page = tab.get(&path).await;
    assert_eq!(tab.submit(&page, &format!("{path}/test"), &[]).await.led_to(), path);
    assert_eq!(receiver.next().await.event()["type"], "webhook.test");
    let shown = host.until_seen(async || {
        let delivered = delivered(&tab.clone().get(&path).await).ok_or_else(|| "no row".to_owned())?;
        if delivered.0 == "succeeded" { Ok(delivered) } else { Err(format!("{delivered:?}")) }
    });
    assert!(shown.await.1.starts_with("200 "));

    // Settings and state are changed by forms of their own.
    let page = tab.get(&path).await;
    let typed = [("event device.online", "yes"), ("description", "for the pager")];
    assert_eq!(tab.submit(&page, &format!("{path}/settings"), &typed).await.led_to(), path);
    let page = tab.get(&path).await;
    assert_eq!(tab.submit(&page, &format!("{path}/status"), &[]).await.led_to(), path);
    let webhook = api.get(&path.replace("/dashboard/me", "")).await.data().clone();
    assert_eq!((&webhook["description"], &webhook["status"]), (&"for the pager".into(), &"disabled".into()));
    assert_eq!(webhook["events"].as_array().unwrap().len(), 4);
    let page = tab.get(&path).await;
    assert!(!page.text.contains("Send a test event"));
    assert_eq!(tab.submit(&page, &format!("{path}/settings"), &[("description", "")]).await.led_to(), path);
    assert!(api.get(&path.replace("/dashboard/me", "")).await.data()["description"].is_null());

    let page = tab.get(&path).await;
    assert_eq!(tab.submit(&page, &format!("{path}/delete"), &[]).await.led_to(), LIST);
    assert_eq!(tab.submit(&page, &format!("{path}/delete"), &[]).await.led_to(), LIST, "a second click");
    assert_eq!(tab.get(&path).await.outcome(), "404 not_found");
}

/// A policy refuses a member what it refuses its key.
#[both_engines]
async fn member_of_a_team_reads_its_endpoints_and_changes_none(engine: Engine) {
    let host = TestHost::start(engine).await;
    let (ada, grace) = (host.person("ada").await, host.person("grace").await);
    let team = host.team("Lab", &ada).await;
    host.join(team, &grace, Role::Member).await;
    let webhook = host.webhook(team).await;
    let mut tab = Tab::entered(&host, grace.account_id).await;
    let list = format!("/dashboard/{team}/webhooks");
    let page = tab.get(&format!("{list}/{webhook}")).await;
    assert_eq!(page.status, 200);
    for button in ["Send a test event", "Disable", "Delete endpoint"] {
        assert!(page.text.contains(&format!("aria-disabled=\"true\">{button}</button>")), "{button}: {}", page.text);
    }
    for action in ["settings", "status", "test", "delete"] {
        let path = format!("{list}/{webhook}/{action}");
        let form = tab.made_up(&host, &path, &[("url", "https://hooks.example.test/"), ("status", "disabled")]).await;
        assert_eq!(tab.post(&path, &form).await.outcome(), "403 team_role_forbidden", "{action}");
    }
    let page = tab.get(&list).await;
    assert!(page.text.contains("<fieldset disabled>") && page.text.contains("<code>team_role_forbidden</code>"));
    let form = tab.made_up(&host, &list, &[("url", "https://hooks.example.test/")]).await;
    assert_eq!(tab.post(&list, &form).await.outcome(), "403 team_role_forbidden");
}

/// The states of an endpoint's attempts, the newest first.
async fn states(host: &TestHost, key: &str, webhook: &str) -> Vec<(u64, String)> {
    let attempts = host.api(key).get(&format!("/webhooks/{webhook}/deliveries?limit=100")).await.data().clone();
    let state = |attempt: &serde_json::Value| {
        (attempt["attempt"].as_u64().unwrap(), attempt["status"].as_str().unwrap().to_owned())
    };
    attempts.as_array().unwrap().iter().map(state).collect()
}

/// covers: delivery_in_flight
#[both_engines]
async fn what_an_endpoint_did_not_take_is_sent_again(engine: Engine) {
    let authority = Authority::new();
    let host = TestHost::with(engine, |config| authority.let_in(config)).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let mut receiver = authority.receiver(&host.clock).await;
    receiver.reply_first([Reply::Status(500), Reply::Status(500)]);
    let new = json!({"url": receiver.url(), "events": ["device.offline"]});
    let webhook = api.post("/webhooks", new).await.id().to_string();
    let path = format!("{LIST}/{webhook}");
    let mut tab = Tab::entered(&host, ada.account_id).await;
    let until = async |wanted: &[(u64, &str)]| {
        host.until_seen(async || {
            let seen = states(&host, &ada.key, &webhook).await;
            let is_wanted = seen.iter().map(|(attempt, state)| (*attempt, state.as_str())).eq(wanted.iter().copied());
            if is_wanted { Ok(()) } else { Err(seen) }
        })
        .await;
    };
    let until_newest = async |attempt: u64, state: &str| {
        let newest = async || {
            let seen = states(&host, &ada.key, &webhook).await;
            if seen[0] == (attempt, state.to_owned()) { Ok(()) } else { Err(seen) }
        };
        host.until_seen(newest).await;
    };
    let event = api.post(&format!("/webhooks/{webhook}/test"), json!({})).await.data()["event_id"].clone();
    let event = event.as_str().unwrap();
    let first = receiver.next().await;
    until(&[(2, "pending"), (1, "failed")]).await;
    let delivery = tab.get(&format!("{path}/deliveries/{event}")).await;
    assert!(delivery.text.contains("something other than 2xx"), "{}", delivery.text);

    // Outside of the schedule, with a signature of its own; the schedule goes on.
    let resend = format!("{path}/deliveries/{event}/resend");
    let page = tab.get(&path).await;
    host.clock.advance(std::time::Duration::from_secs(5));
    assert_eq!(tab.submit(&page, &resend, &[]).await.led_to(), path);
    assert_eq!(tab.submit(&page, &resend, &[]).await.led_to(), path, "a second click sends nothing");
    let again = receiver.next().await;
    assert_eq!(again.event(), first.event());
    assert_ne!(again.header("service-webhook-signature"), first.header("service-webhook-signature"));
    until(&[(3, "failed"), (2, "pending"), (1, "failed")]).await;

    // Once it is taken, nothing waits any more.
    let page = tab.get(&path).await;
    assert_eq!(tab.submit(&page, &resend, &[]).await.led_to(), path);
    receiver.next().await;
    until(&[(4, "succeeded"), (3, "failed"), (2, "canceled"), (1, "failed")]).await;
    host.clock.advance(std::time::Duration::from_hours(1));

    // While it is being sent, it waits.
    let leave = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
    receiver.reply(Reply::Wait(leave.clone()));
    let page = tab.get(&path).await;
    assert_eq!(tab.submit(&page, &resend, &[]).await.led_to(), path);
    receiver.next().await;
    let page = tab.get(&path).await;
    assert_eq!(tab.submit(&page, &resend, &[]).await.outcome(), "409 delivery_in_flight");
    leave.add_permits(10);
    until_newest(5, "succeeded").await;

    // All that failed since a time, and not what has succeeded.
    receiver.reply(Reply::Status(503));
    api.post(&format!("/webhooks/{webhook}/test"), json!({})).await.data();
    receiver.next().await;
    for (attempt, wait) in [(2, 66), (3, 330), (4, 1980), (5, 7920), (6, 47_520)] {
        until_newest(attempt, "pending").await;
        host.clock.advance(std::time::Duration::from_secs(wait));
        receiver.next().await;
    }
    until_newest(6, "failed").await;
    receiver.reply(Reply::Status(200));
    let page = tab.get(&path).await;
    let all = format!("{path}/resend");
    for wrong in ["", "0", "721", "a day"] {
        let refused = tab.submit(&page, &all, &[("hours", wrong)]).await;
        assert_eq!(refused.fault("hours"), Some("must be a number from 1 to 720"), "{wrong}");
    }
    assert_eq!(tab.submit(&page, &all, &[("hours", "48")]).await.led_to(), path);
    receiver.next().await;
    until_newest(7, "succeeded").await;
    assert!(receiver.waiting().is_empty(), "what has succeeded is not sent again");
    // What no endpoint has, or a disabled one, is not sent.
    let unknown = format!("{path}/deliveries/{}/resend", ada.account_id);
    let form = tab.made_up(&host, &unknown, &[]).await;
    assert_eq!(tab.post(&unknown, &form).await.outcome(), "404 not_found");
    api.patch(&format!("/webhooks/{webhook}"), json!({"status": "disabled"})).await.data();
    let form = tab.made_up(&host, &resend, &[]).await;
    assert_eq!(tab.post(&resend, &form).await.outcome(), "409 webhook_disabled");
}

/// What was sent is shown to who asks for it, which the audit log tells; and each part of a signature that differs is named.
#[both_engines]
async fn delivery_shows_its_payload_and_why_a_signature_is_not_genuine(engine: Engine) {
    let authority = Authority::new();
    let host = TestHost::with(engine, |config| authority.let_in(config)).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let mut receiver = authority.receiver(&host.clock).await;
    let created =
        api.post("/webhooks", json!({"url": receiver.url(), "events": ["device.offline"]})).await.data().clone();
    let (webhook, secret) = (created["id"].as_str().unwrap(), created["secret"].as_str().unwrap());
    api.post(&format!("/webhooks/{webhook}/test"), json!({})).await.data();
    let sent = receiver.next().await;
    let event = sent.event()["id"].as_str().unwrap().to_owned();
    let path = format!("{LIST}/{webhook}/deliveries/{event}");
    let mut tab = Tab::entered(&host, ada.account_id).await;
    let page = tab.get(&path).await;
    is_sound(&path, &page);
    let body = String::from_utf8(sent.body.clone()).unwrap();
    let shown = |page: &Shown| page.text.replace("&quot;", "\"").contains(&body);
    assert!(!shown(&page));
    let page_with = tab.submit(&page, &format!("{path}/payload"), &[]).await;
    assert!(page_with.status == 200 && shown(&page_with), "{}", page_with.text);
    assert!(tab.get("/dashboard/me/audit").await.text.contains("webhooks.read_delivery"));

    let header = |name: &str| sent.headers[name].clone();
    let (timestamp, signature) = (header("service-webhook-timestamp"), header("service-webhook-signature"));
    let fields = [("secret", secret), ("timestamp", &timestamp), ("signature", &signature), ("payload", &body)];
    let genuine = tab.submit(&page, &format!("{path}/signature"), &fields).await;
    assert!(genuine.text.contains("The signature is genuine."), "{}", genuine.text);
    assert!(!genuine.text.contains(secret));
    let anew = body.replace("\":", "\": ");
    let mistaken = [("secret", &secret[6..]), ("timestamp", &timestamp), ("signature", &signature), ("payload", &anew)];
    let page = tab.get(&path).await;
    let refused = tab.submit(&page, &format!("{path}/signature"), &mistaken).await;
    for part in ["Secret: “whsec_” is missing", "Body: the JSON is the same"] {
        assert!(refused.text.contains(part), "{part}: {}", refused.text);
    }
    assert!(!refused.text.contains(&secret[6..]));
    // Twenty in a minute.
    for _ in 2..20 {
        assert_eq!(tab.submit(&page, &format!("{path}/signature"), &fields).await.status, 200);
    }
    let refused = tab.submit(&page, &format!("{path}/signature"), &fields).await;
    assert_eq!(refused.outcome(), "429 rate_limited");
    host.clock.advance(std::time::Duration::from_mins(1));
    assert_eq!(tab.submit(&page, &format!("{path}/signature"), &fields).await.status, 200);
    // Another's, and one that was never sent.
    let eve = host.person("eve").await;
    assert_eq!(Tab::entered(&host, eve.account_id).await.get(&path).await.outcome(), "404 not_found");
    let unknown = format!("{LIST}/{webhook}/deliveries/{webhook}");
    assert_eq!(tab.get(&unknown).await.outcome(), "404 not_found");
}
