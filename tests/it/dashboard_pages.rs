//! Parts of pages: what is known before a click, what the node would do with an address, the policies of a scope, search, and
//! the requests that a page shows.

use std::process::Stdio;

use culvert_domain::caller::Role;
use culvert_test_macros::both_engines;
use culvert_wire::control::{Done, Failure};
use culvert_wire::failure_code::FailureCode;
use serde_json::json;
use uuid::Uuid;

use crate::dashboard::is_sound;
use crate::support::host::{Engine, TestHost, own_address, second_node};
use crate::support::program::command_at;
use crate::support::tab::{Shown, Tab};

/// A member may not change another's tunnel: its page says so beforehand, with the policy's own words. Nothing is recorded of
/// the questions, and whoever may do it has the buttons.
#[both_engines]
async fn controls_that_a_policy_would_refuse_say_so_before_the_click(engine: Engine) {
    let host = TestHost::start(engine).await;
    let (ada, grace) = (host.person("ada").await, host.person("grace").await);
    let team = host.team("Lab", &ada).await;
    host.join(team, &grace, Role::Member).await;
    let adas = host.api(&host.key(ada.account_id, team, "full_access").await.key);
    let tunnel = adas.post("/tunnels", json!({"local_port": 3000})).await.id();
    let path = format!("/dashboard/{team}/tunnels/{tunnel}/settings");
    let mut graces = Tab::entered(&host, grace.account_id).await;
    let asked = async || {
        let metrics = host.metrics().await;
        let counts = metrics.lines().filter(|line| line.starts_with("culvert_policy_decisions_total"));
        counts.map(str::to_owned).collect::<Vec<_>>()
    };
    let before = asked().await;
    let page = graces.get(&path).await;
    assert_eq!(asked().await, before);
    is_sound(&path, &page);
    assert_eq!(page.text.matches("<fieldset disabled>").count(), 4, "{}", page.text);
    assert!(page.text.contains("by the rule <code>own-tunnel</code>"));
    let mut own = Tab::entered(&host, ada.account_id).await;
    assert!(!own.get(&path).await.text.contains("<fieldset disabled>"));
    let web = adas.post("/tunnels", json!({"local_port": 80, "protocol": "http"})).await.id();
    for (tunnel, part, forms) in [(tunnel, "access", 2), (tunnel, "ports", 1), (web, "domain", 1)] {
        let path = format!("/dashboard/{team}/tunnels/{tunnel}/{part}");
        let page = graces.get(&path).await;
        is_sound(&path, &page);
        assert_eq!(page.text.matches("<fieldset disabled>").count(), forms, "{part}: {}", page.text);
        assert!(!own.get(&path).await.text.contains("<fieldset disabled>"), "{part}");
    }
    let new = graces.get(&format!("/dashboard/{team}/tunnels/new")).await;
    assert!(!new.text.contains("<fieldset disabled>"), "a member creates tunnels");
}

/// A plan that is used up is told before the form is filled in.
#[both_engines]
async fn plan_that_allows_no_more_is_told_beforehand(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    host.set_plan(ada.account_id, "free").await;
    let api = host.api(&ada.key);
    while api.post("/tunnels", json!({"local_port": 3000})).await.status == 201 {}
    let refused = api.post("/tunnels", json!({"local_port": 3000})).await;
    let page = Tab::entered(&host, ada.account_id).await.get("/dashboard/me/tunnels/new").await;
    assert!(page.text.contains("<fieldset disabled>"), "{}", page.text);
    assert!(page.text.contains(refused.body["code"].as_str().unwrap()), "{}", page.text);
}

#[both_engines]
async fn try_an_address_tells_the_rule_that_decides(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let tunnel = api.post("/tunnels", json!({"local_port": 3000})).await.id();
    let rules = json!({"rules": [
        {"rule_type": "blacklist", "ip_cidr": "203.0.113.128/25"},
        {"rule_type": "whitelist", "ip_cidr": "203.0.113.0/24"},
    ]});
    api.put(&format!("/tunnels/{tunnel}/firewall"), rules).await.data();
    let mut tab = Tab::entered(&host, ada.account_id).await;
    for (address, said) in [
        ("203.0.113.7", "<strong>may visit</strong>, because 203.0.113.0/24 is let in"),
        ("::ffff:203.0.113.7", "<strong>may visit</strong>, because 203.0.113.0/24 is let in"),
        ("203.0.113.200", "<strong>may not visit</strong>, because 203.0.113.128/25 is refused"),
        ("2001:db8::1", "<strong>may not visit</strong>, because addresses are let in, and this is none of them"),
        ("none", "must be an IP address, such as 203.0.113.7"),
    ] {
        let page = tab.get(&format!("/dashboard/me/tunnels/{tunnel}/access?find={address}")).await;
        is_sound(address, &page);
        assert!(page.text.contains(said), "{address}: {}", page.text);
    }
}

/// Members see which modules decide, what their rules say and how often those have refused them; settings they do not.
#[both_engines]
async fn policies_of_a_scope_are_shown_with_their_rules(engine: Engine) {
    let host = TestHost::start(engine).await;
    let (ada, grace) = (host.person("ada").await, host.person("grace").await);
    let team = host.team("Lab", &ada).await;
    host.join(team, &grace, Role::Member).await;
    let graces = host.api(&host.key(grace.account_id, team, "full_access").await.key);
    let webhook = json!({"url": "https://8.8.8.8/", "events": ["device.online"]});
    assert_eq!(graces.post("/webhooks", webhook).await.outcome(), "403 team_role_forbidden");
    let path = format!("/dashboard/{team}/policies");
    let count = |page: &Shown| {
        let row = page.text.split("<code>webhooks</code>").nth(1).unwrap().split("</tr>").next().unwrap();
        row.rsplit("<td>").next().unwrap().split("</td>").next().unwrap().to_owned()
    };
    let tab = Tab::entered(&host, grace.account_id).await;
    let page = host
        .until_seen(async || {
            let page = tab.clone().get(&path).await;
            if count(&page) == "0" { Err("no refusal is counted".to_owned()) } else { Ok(page) }
        })
        .await;
    is_sound(&path, &page);
    assert!(count(&page).contains(">1<"), "{}", count(&page));
    for module in host.app.policies.status().modules {
        assert!(page.text.contains(&module.sha256) && page.text.contains(&module.version), "{}", module.name);
        assert!(!page.text.contains(&module.settings_sha256));
    }
}

#[both_engines]
async fn search_finds_pages_names_and_ids_of_the_scope_alone(engine: Engine) {
    let host = TestHost::start(engine).await;
    let (ada, eve) = (host.person("ada").await, host.person("eve").await);
    let tunnel = host.api(&ada.key).post("/tunnels", json!({"local_port": 3000, "name": "Web <b>shop</b>"})).await.id();
    let mut adas = Tab::entered(&host, ada.account_id).await;
    let mut eves = Tab::entered(&host, eve.account_id).await;
    let found = async |tab: &mut Tab, text: &str| {
        let page = tab.get(&format!("/dashboard/me/search?find={text}")).await;
        is_sound(text, &page);
        page.text.split("<ul class=\"found\">").nth(1).unwrap().split("</ul>").next().unwrap().to_owned()
    };
    let link = format!("/dashboard/me/tunnels/{tunnel}");
    host.api(&ada.key).post("/tunnels", json!({"local_port": 3001, "name": "Äpfel"})).await.data();
    assert!(found(&mut adas, "%C3%84PFEL").await.contains("Äpfel"));
    for text in ["SHOP", "web%20%3Cb", &tunnel.to_string()] {
        assert!(found(&mut adas, text).await.contains(&link), "{text}");
        assert!(!found(&mut eves, text).await.contains(&link), "{text}");
    }
    for text in ["%25", "_", "'", &Uuid::nil().to_string()] {
        assert!(!found(&mut adas, text).await.contains(&link), "{text}");
    }
    assert!(found(&mut adas, "audit").await.contains("/dashboard/me/audit"));
    assert!(!found(&mut adas, "nodes").await.contains("/operator/"));
}

/// The commands of a page's drawer, as they stand there.
fn commands(page: &Shown) -> Vec<String> {
    let drawer = page.text.split("<details class=\"drawer\">").nth(1).unwrap().split("</details>").next().unwrap();
    let text = |part: &str| part.split("</code>").next().unwrap().replace("&quot;", "\"").replace("&amp;", "&");
    drawer.split("<pre><code>").skip(1).map(text).collect()
}

/// Runs a command of a page as somebody would who pastes it.
async fn paste(host: &TestHost, key: &str, command: &str) -> serde_json::Value {
    let command = command.replace("https://api.example.test", &host.url()).replace("curl ", "curl -sS --noproxy '*' ");
    let run = tokio::process::Command::new("bash")
        .args(["-c", &command])
        .env("CULVERT_KEY", key)
        .stderr(Stdio::inherit())
        .output();
    let output = run.await.unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{command}: {e}"))
}

/// Each request that a page shows does what it says, with a key of the scope.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_pages_show_can_be_pasted() {
    let host = TestHost::start(Engine::Sqlite).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let (device, mut wire) = host.wired(&ada, ada.account_id).await;
    let mut tab = Tab::entered(&host, ada.account_id).await;
    let new = commands(&tab.get("/dashboard/me/tunnels/new").await);
    let made = paste(&host, &ada.key, &new[0]).await;
    assert_eq!(made["data"]["name"], "web", "{made}");
    let tunnel = made["data"]["id"].as_str().unwrap().to_owned();
    for page in ["tunnels", "devices", "webhooks"] {
        let all = commands(&tab.get(&format!("/dashboard/me/{page}")).await);
        let answer = paste(&host, &ada.key, &all[0]).await;
        assert!(answer["data"].is_array(), "{page}: {answer}");
    }
    let of_tunnel = commands(&tab.get(&format!("/dashboard/me/tunnels/{tunnel}")).await);
    let [read, start, stop, sessions] = of_tunnel.as_slice() else { panic!("{of_tunnel:?}") };
    let settings = commands(&tab.get(&format!("/dashboard/me/tunnels/{tunnel}/settings")).await);
    let [change, bind, delete] = settings.as_slice() else { panic!("{settings:?}") };
    assert!(paste(&host, &ada.key, sessions).await["data"].is_array());
    assert_eq!(paste(&host, &ada.key, bind).await["data"]["unrestricted"], true);
    assert_eq!(paste(&host, &ada.key, read).await["data"]["id"], tunnel.as_str());
    let started = paste(&host, &ada.key, start).await;
    assert_eq!(started["data"]["device_id"], device.id.to_string(), "{started}");
    assert_eq!(paste(&host, &ada.key, stop).await["code"], "tunnel_not_running");
    assert_eq!(paste(&host, &ada.key, change).await["data"]["local_port"], 3000);
    let webhook = commands(&tab.get("/dashboard/me/webhooks").await);
    // Names of the world are not known to the tests.
    let made = paste(&host, &ada.key, &webhook[1].replace("example.com", "8.8.8.8")).await;
    let webhook = made["data"]["id"].as_str().unwrap_or_else(|| panic!("{made}"));
    let of_webhook = commands(&tab.get(&format!("/dashboard/me/webhooks/{webhook}")).await);
    for command in &of_webhook {
        assert!(paste(&host, &ada.key, command).await["code"].is_null(), "{command}");
    }
    assert_eq!(api.get("/webhooks").await.data().as_array().unwrap().len(), 0, "the last one deletes it");
    let of_device = commands(&tab.get(&format!("/dashboard/me/devices/{}", device.id)).await);
    let [read, rename, stop_all, restart, remove] = of_device.as_slice() else { panic!("{of_device:?}") };
    assert_eq!(paste(&host, &ada.key, read).await["data"]["id"], device.id.to_string());
    assert_eq!(paste(&host, &ada.key, rename).await["data"]["name"], "machine");
    // The tunnel's start is still on its way to the device.
    for command in [stop_all, restart] {
        assert_eq!(paste(&host, &ada.key, command).await["code"], "operation_in_progress", "{command}");
    }
    assert_eq!(paste(&host, &ada.key, delete).await["data"]["id"], tunnel.as_str());
    // With no tunnel on its way, they are commands to the device.
    for (command, action) in [(restart, "restart_agent"), (stop_all, "stop_all")] {
        let asked = paste(&host, &ada.key, command).await;
        assert_eq!(asked["data"]["action"], action, "{asked}");
        let operation = asked["data"]["id"].as_str().unwrap().parse().unwrap();
        wire.begin(operation).await;
        wire.finish(operation, Err(Failure::new(FailureCode::Refused, "not now"))).await;
    }
    // What no key may do is a command on the host's machine.
    let keys = commands(&tab.get("/dashboard/me/keys").await);
    for command in [remove, &keys[0]] {
        let words: Vec<String> = command.split_whitespace().skip(1).map(|word| word.replace('\'', "")).collect();
        command_at(&host, &words.iter().map(String::as_str).collect::<Vec<_>>()).await;
    }
    assert_eq!(api.get(&format!("/devices/{}", device.id)).await.outcome(), "404 not_found");
    let keys = tab.get("/dashboard/me/keys").await;
    assert_eq!(keys.text.matches(">Revoke</button>").count(), 2, "the new one is there");
}

/// Every field that the API changes is changed here, to the same values.
#[both_engines]
async fn settings_of_a_tunnel_are_those_of_the_api(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let made = json!({"local_port": 3000, "protocol": "http", "subdomain": "hello"});
    let (first, second) =
        (api.post("/tunnels", made).await.id(), api.post("/tunnels", json!({"local_port": 1})).await.id());
    let mut tab = Tab::entered(&host, ada.account_id).await;
    let settings = |tunnel: Uuid| format!("/dashboard/me/tunnels/{tunnel}/settings");
    let page = tab.get(&settings(first)).await;
    is_sound("settings", &page);
    // Saved as it is, nothing changes.
    let before = api.get(&format!("/tunnels/{first}")).await.data().clone();
    assert_eq!(tab.submit(&page, &settings(first), &[]).await.led_to(), settings(first));
    let mut after = api.get(&format!("/tunnels/{first}")).await.data().clone();
    after["updated_at"] = before["updated_at"].clone();
    assert_eq!(after, before);
    let typed = [
        ("name", "shop"),
        ("local_host", "10.0.0.7"),
        ("local_port", "8443"),
        ("idle_timeout", "60"),
        ("buffer_size", ""),
        ("proxy_protocol", "v2"),
        ("http_basic_auth_enabled", "yes"),
        ("http_basic_auth_username", "guest"),
        ("http_basic_auth_password", "open sesame "),
        ("host_header", "shop.internal"),
        ("local_scheme", "https"),
        ("local_tls_verify", "no"),
    ];
    let page = tab.get(&settings(first)).await;
    let saved = tab.submit(&page, &settings(first), &typed).await;
    assert_eq!(saved.status, 303, "{}", saved.text);
    let now = api.get(&format!("/tunnels/{first}")).await.data().clone();
    for (field, value) in [
        ("name", json!("shop")),
        ("local_host", json!("10.0.0.7")),
        ("local_port", json!(8443)),
        ("idle_timeout", json!(60)),
        ("proxy_protocol", json!("v2")),
        ("http_basic_auth_enabled", json!(true)),
        ("http_basic_auth_username", json!("guest")),
        ("host_header", json!("shop.internal")),
        ("local_scheme", json!("https")),
        ("local_tls_verify", json!(false)),
        ("http_ssl_enabled", json!(true)),
    ] {
        assert_eq!(now[field], value, "{field}: {now}");
    }
    // An empty password leaves the one that is there; a fault stands at its field, without the password.
    let page = tab.get(&settings(first)).await;
    assert!(!page.text.contains("open sesame"));
    let refused =
        tab.submit(&page, &settings(first), &[("idle_timeout", "5"), ("http_basic_auth_password", "short")]).await;
    assert_eq!(refused.outcome(), "422 validation_failed");
    assert!(refused.fault("idle_timeout").is_some() && refused.fault("http_basic_auth_password").is_some());
    assert!(!refused.text.contains("value=\"short\""));
    // A tcp tunnel has no fields of HTTP.
    let page = tab.get(&settings(second)).await;
    assert!(!page.text.contains("host_header"));
    assert_eq!(tab.submit(&page, &settings(second), &[("idle_timeout", "")]).await.led_to(), settings(second));
}

/// Which devices may run a tunnel, and on which node it is.
#[both_engines]
async fn tunnel_is_bound_to_devices_and_moved_to_another_node(engine: Engine) {
    let address = own_address();
    let host = TestHost::with(engine, |config| {
        config.extra_node.push(second_node(config, address, "second.example.test"));
    })
    .await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let (device, _wire) = host.wired(&ada, ada.account_id).await;
    let tunnel = api.post("/tunnels", json!({"local_port": 3000})).await.id();
    let mut tab = Tab::entered(&host, ada.account_id).await;
    let path = format!("/dashboard/me/tunnels/{tunnel}");
    let page = tab.get(&format!("{path}/settings")).await;
    is_sound("settings", &page);
    let chosen = format!("device {}", device.id);
    // No device by itself is not what an empty form means.
    let mut form = page.form(&format!("{path}/devices"));
    assert!(form.iter().any(|(name, _)| name == "any device"));
    let both = tab.submit(&page, &format!("{path}/devices"), &[(&chosen, "yes")]).await;
    assert!(both.fault("device_ids").is_some(), "{}", both.text);
    form.retain(|(name, _)| name != "any device");
    let none = tab.post(&format!("{path}/devices"), &form).await;
    assert!(none.fault("device_ids").is_some(), "{}", none.text);
    form.push((chosen.clone(), "yes".into()));
    let bound = tab.post(&format!("{path}/devices"), &form).await;
    assert_eq!(bound.led_to(), format!("{path}/settings"), "{}", bound.text);
    let bindings = api.get(&format!("/tunnels/{tunnel}")).await.data()["bindings"].clone();
    assert_eq!(bindings["device_ids"], json!([device.id]));
    let page = tab.get(&format!("{path}/settings")).await;
    assert!(page.text.contains(&format!("name=\"{chosen}\" value=\"yes\" checked")));
    let former = api.get(&format!("/tunnels/{tunnel}")).await.data()["node"]["id"].clone();
    let nodes = api.get("/nodes").await.data().as_array().unwrap().clone();
    let other = nodes.iter().map(|node| &node["id"]).find(|id| **id != former).unwrap();
    assert!(page.text.contains(&format!("<option value={other} selected>")), "{}", page.text);
    let moved = tab.submit(&page, &format!("{path}/move"), &[("node_id", other.as_str().unwrap())]).await;
    assert_eq!(moved.led_to(), path, "{}", moved.text);
    assert_eq!(api.get(&format!("/tunnels/{tunnel}")).await.data()["node"]["id"], *other);
    // An id that is none's is refused at the list.
    let unknown = format!("device {}", Uuid::nil());
    let page = tab.get(&format!("{path}/settings")).await;
    let refused = tab.submit(&page, &format!("{path}/devices"), &[(&unknown, "yes")]).await;
    assert_eq!(refused.outcome(), "422 validation_failed", "{}", refused.text);
}

/// covers: device_pinned
#[both_engines]
async fn device_is_renamed_stopped_and_removed_by_who_may(engine: Engine) {
    let host = TestHost::start(engine).await;
    let (ada, grace) = (host.person("ada").await, host.person("grace").await);
    let team = host.team("Lab", &ada).await;
    host.join(team, &grace, Role::Member).await;
    let (device, mut wire) = host.wired(&grace, team).await;
    let path = format!("/dashboard/{team}/devices/{}", device.id);
    let mut adas = Tab::with_password(&host, ada.account_id).await;
    let mut graces = Tab::with_password(&host, grace.account_id).await;
    let page = graces.get(&path).await;
    is_sound(&path, &page);
    assert_eq!(graces.submit(&page, &format!("{path}/rename"), &[("name", "nas")]).await.led_to(), path);
    assert!(graces.get(&path).await.text.contains("<h1>nas</h1>"));
    // What it is asked for leads to the operation that tells what comes of it.
    let asked = graces.submit(&page, &format!("{path}/stop-all"), &[]).await;
    assert!(asked.led_to().starts_with(&format!("/dashboard/{team}/operations/")), "{}", asked.text);
    wire.obey(Done::StopAll { stopped: Vec::new() }).await;
    // Only its owner says what its commands may, whatever the role in the Team.
    let page = graces.get(&path).await;
    let switched = graces.submit(&page, &format!("{path}/may-create"), &[]).await;
    assert_eq!(switched.led_to(), path, "{}", switched.text);
    let others = adas.get(&path).await;
    assert!(
        others.text.contains("aria-disabled=\"true\">Let them create tunnels")
            || others.text.contains("aria-disabled=\"true\">Do not let them"),
        "{}",
        others.text
    );
    let form = adas.made_up(&host, &format!("{path}/may-create"), &[("may_create", "yes")]).await;
    assert_eq!(adas.post(&format!("{path}/may-create"), &form).await.outcome(), "403 not_device_owner");
    // A tunnel that only it may run keeps it.
    let key = host.key(ada.account_id, team, "full_access").await.key;
    let tunnel = json!({"local_port": 3000, "name": "only here", "device_ids": [device.id]});
    let tunnel = host.api(&key).post("/tunnels", tunnel).await.id();
    let page = adas.get(&path).await;
    let refused = adas.submit(&page, &format!("{path}/remove"), &[]).await;
    assert_eq!(refused.outcome(), "409 device_pinned");
    assert!(refused.text.contains("only here"), "{}", refused.text);
    host.api(&key).delete(&format!("/tunnels/{tunnel}")).await.data();
    let page = adas.get(&path).await;
    let list = format!("/dashboard/{team}/devices");
    assert_eq!(adas.submit(&page, &format!("{path}/remove"), &[]).await.led_to(), list);
    assert_eq!(adas.get(&path).await.outcome(), "404 not_found");
    assert_eq!(adas.submit(&page, &format!("{path}/remove"), &[]).await.led_to(), list, "a second click");
    let log = adas.get(&format!("/dashboard/{team}/audit")).await;
    assert!(log.text.contains("devices.remove") && log.text.contains("devices.set_may_create"));
}

/// A member's own device is theirs to remove; another member's is not.
#[both_engines]
async fn member_removes_own_devices_alone(engine: Engine) {
    let host = TestHost::start(engine).await;
    let (ada, grace) = (host.person("ada").await, host.person("grace").await);
    let team = host.team("Lab", &ada).await;
    host.join(team, &grace, Role::Member).await;
    let (adas, _one) = host.wired(&ada, team).await;
    let (own, _other) = host.wired(&grace, team).await;
    let mut tab = Tab::with_password(&host, grace.account_id).await;
    let path = |device: Uuid| format!("/dashboard/{team}/devices/{device}/remove");
    let form = tab.made_up(&host, &path(adas.id), &[]).await;
    assert_eq!(tab.post(&path(adas.id), &form).await.outcome(), "403 team_role_forbidden");
    let form = tab.made_up(&host, &path(own.id), &[]).await;
    assert_eq!(tab.post(&path(own.id), &form).await.led_to(), format!("/dashboard/{team}/devices"));
}
