//! The pages of the dashboard: what people see of their scopes, and what they do there by the use cases of the API.

use std::time::Duration;

use culvert_agent::device::DeviceKey;
use culvert_domain::audit_log::Actor;
use culvert_domain::caller::Role;
use culvert_service::accounts;
use culvert_test_macros::both_engines;
use culvert_wire::control::Done;
use insta::assert_snapshot;
use reqwest::Method;
use serde_json::json;
use uuid::Uuid;

use crate::support::host::{Engine, Person, TestHost, within};
use crate::support::program::{Place, fails};
use crate::support::tab::{PASSWORD, Shown, Tab};

/// Every page, with the scope and the ids of this test.
fn pages(scope: &str, ids: &[(&str, Uuid)]) -> Vec<String> {
    let path = |pattern: &str| {
        let named = ids.iter().filter(|(list, _)| pattern.contains(&format!("{list}/{{id}}")));
        let path = named.fold(pattern.replace("{s}", scope), |path, (_, id)| path.replacen("{id}", &id.to_string(), 1));
        format!("/dashboard/{path}")
    };
    culvert_dashboard::pages::PAGES.iter().map(|page| path(page.path)).collect()
}

async fn tunnel(host: &TestHost, person: &Person, name: &str) -> Uuid {
    let body = json!({"name": name, "local_port": 3000});
    let tunnel = host.api(&person.key).post("/tunnels", body).await;
    tunnel.data()["id"].as_str().unwrap().parse().unwrap()
}

/// What every page must have, whoever wrote it.
pub fn is_sound(path: &str, page: &Shown) {
    let text = &page.text;
    assert_eq!(text.matches("<h1>").count(), 1, "{path}");
    assert!(
        text.contains("<html lang=\"en\">") && text.contains("<main") && text.contains(" id=\"content\""),
        "{path}"
    );
    for forbidden in [" style=", "<style", " onclick", " onload", " onerror", "javascript:", "<script>"] {
        assert!(!text.contains(forbidden), "{path}: {forbidden}");
    }
    let forms = text.split("<form").skip(1).filter(|form| !form.starts_with(" method=\"get\"")).count();
    assert_eq!(
        text.matches("name=\"form_key\"").count(),
        forms,
        "{path}: each form that changes something has its key"
    );
    for label in text.split("<label for=\"").skip(1) {
        let field = label.split('"').next().unwrap();
        assert!(text.contains(&format!(" id=\"{field}\"")), "{path}: {field}");
    }
    for link in text.split(" href=\"#").skip(1) {
        let id = link.split('"').next().unwrap();
        assert!(text.contains(&format!(" id=\"{id}\"")), "{path}: #{id} leads nowhere");
    }
    let first = text.split_once("<body").unwrap().1.split_once('>').unwrap().1;
    assert!(first.starts_with("<a class=\"skip\" href=\"#content\">"), "{path}: the link to the content comes first");
    let levels: Vec<u32> = text.split("<h").skip(1).filter_map(|rest| rest.chars().next()?.to_digit(10)).collect();
    let is_in_order = levels.windows(2).all(|pair| pair[1] <= pair[0] + 1);
    assert!(levels[0] == 1 && is_in_order, "{path}: headings {levels:?}");
    let mut ids: Vec<&str> = text.split(" id=\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count, "{path}: an id stands twice");
}

/// Each page for its owner, for a stranger and for nobody; every link of it leads somewhere.
#[both_engines]
async fn pages_are_for_members_of_the_scope(engine: Engine) {
    let host = TestHost::start(engine).await;
    let (ada, eve) = (host.person("ada").await, host.person("eve").await);
    let team = host.team("Lab", &ada).await;
    let (_, mut wire) = host.wired(&ada, ada.account_id).await;
    let own = tunnel(&host, &ada, "web").await;
    let api = host.api(&ada.key);
    let device = api.get("/devices").await.data()[0]["id"].clone();
    let asked = api.post(&format!("/tunnels/{own}/actions/start"), json!({"device_id": device})).await;
    let operation: Uuid = asked.data()["id"].as_str().unwrap().parse().unwrap();
    wire.obey(Done::Start).await;
    host.until_ended(&api, operation).await;
    accounts::set_operator(&host.app.store, ada.account_id, true, Actor::CLI).await.unwrap();
    let mut adas = Tab::with_password(&host, ada.account_id).await;
    let mut eves = Tab::entered(&host, eve.account_id).await;
    let mut nobodys = Tab::open(&host);
    let webhook = host.webhook(ada.account_id).await;
    api.post(&format!("/webhooks/{webhook}/test"), json!({})).await.data();
    let event = api.get(&format!("/webhooks/{webhook}/deliveries")).await.data()[0]["event_id"].clone();
    let event: Uuid = event.as_str().unwrap().parse().unwrap();
    let refused = api.get(&format!("/tunnels/{}", Uuid::nil())).await;
    let refusal: Uuid = refused.body["request_id"].as_str().unwrap().parse().unwrap();
    let (store, scope) = (&host.app.store, ada.account_id);
    host.until_found(async || store.refusal(scope, None, refusal).await.unwrap()).await;
    let own_device: Uuid = device.as_str().unwrap().parse().unwrap();
    let ids = [
        ("devices", own_device),
        ("tunnels", own),
        ("operations", operation),
        ("webhooks", webhook),
        ("deliveries", event),
        ("explain", refusal),
    ];
    for path in pages("me", &ids) {
        let shown = adas.get(&path).await;
        assert_eq!(shown.status, 200, "{path}");
        is_sound(&path, &shown);
        for link in shown.text.split(" href=\"").skip(1).map(|rest| rest.split('"').next().unwrap()) {
            if link.starts_with('/') {
                assert!(matches!(adas.get(link).await.status, 200 | 303), "{path} leads to {link}");
            }
        }
        let is_adas = path.contains("/operator/") || ids.iter().any(|(_, id)| path.contains(&id.to_string()));
        let expected = if is_adas { 404 } else { 200 };
        assert_eq!(eves.get(&path).await.status, expected, "{path}");
        let shown = nobodys.get(&path).await;
        assert!(shown.status == 303 && shown.led_to().starts_with("/dashboard/sign-in?next=%2Fdashboard%2F"), "{path}");
        // So many pages in a minute are more than a person looks at.
        host.clock.advance(Duration::from_secs(10));
    }
    let of_team = format!("/dashboard/{team}");
    assert_eq!((adas.get(&of_team).await.status, eves.get(&of_team).await.status), (200, 404));
    let unknown =
        ["/dashboard/me/nothing", "/dashboard/you", "/dashboard/me/tunnels/1", &format!("/dashboard/{}", Uuid::nil())];
    for path in unknown {
        assert_eq!(adas.get(path).await.outcome(), "404 not_found", "{path}");
    }
    // Whoever leaves the Team sees nothing of it any more.
    host.join(team, &eve, Role::Member).await;
    assert_eq!(eves.get(&of_team).await.status, 200);
    host.leave(team, &eve).await;
    assert_eq!(eves.get(&of_team).await.outcome(), "404 not_found");
}

/// Each form, by who may not send it: nobody who is signed out, and nobody of another scope, even with a key of ours.
#[both_engines]
async fn forms_are_for_members_of_the_scope(engine: Engine) {
    let host = TestHost::start(engine).await;
    let (ada, eve) = (host.person("ada").await, host.person("eve").await);
    let team = host.team("Lab", &ada).await;
    let own = tunnel(&host, &ada, "web").await;
    let mut eves = Tab::with_password(&host, eve.account_id).await;
    for action in culvert_dashboard::actions::ACTIONS {
        for scope in ["me".to_owned(), team.to_string()] {
            let path = action.path.replace("{s}", &scope).replace("{id}", &own.to_string());
            let path = format!("/dashboard/{path}");
            let form = eves.made_up(&host, &path, &[("confirm_name", "web")]).await;
            assert_eq!(Tab::open(&host).post(&path, &form).await.outcome(), "401 sign_in_required", "{path}");
            let shown = eves.post(&path, &form).await;
            let is_of_others = scope != "me" || action.path.contains("{id}");
            if action.path.starts_with("{s}") && is_of_others {
                let is_gone = matches!(
                    shown.led_to(),
                    "/dashboard/me/tunnels" | "/dashboard/me/webhooks" | "/dashboard/me/devices"
                );
                let refused = shown.outcome() == "404 not_found" || is_gone;
                assert!(refused, "{path}: {}", shown.outcome());
            }
            host.clock.advance(Duration::from_secs(2));
        }
        let seen = eves
            .get(&format!("/dashboard/{}", action.path.replace("{s}", "me").replace("{id}", &own.to_string())))
            .await;
        assert!(matches!(seen.status, 200 | 303 | 404), "{}: {}", action.path, seen.outcome());
    }
    let tunnels = host.api(&ada.key).get("/tunnels").await;
    assert_eq!(tunnels.data()[0]["name"], "web", "hers is untouched");
}

/// A sign-in leads back to the page that was asked for, and to no other place.
#[both_engines]
async fn sign_in_leads_to_pages_of_ours_alone(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    Tab::with_password(&host, ada.account_id).await;
    for (next, led_to) in [
        ("/dashboard/me/keys", "/dashboard/me/keys"),
        ("https://evil.test/", "/dashboard"),
        ("//evil.test", "/dashboard"),
        ("/dashboard/../v2", "/dashboard"),
        ("/dashboard/me/keys?x=1", "/dashboard"),
        ("/docs", "/dashboard"),
    ] {
        let mut tab = Tab::open(&host);
        let page = tab.get("/dashboard/sign-in").await;
        let typed = [("email", "ada@example.test"), ("password", PASSWORD), ("next", next)];
        assert_eq!(tab.submit(&page, "/dashboard/sign-in", &typed).await.led_to(), led_to, "{next}");
    }
}

#[both_engines]
async fn tunnel_is_created_once_for_a_form_and_faults_stand_at_their_fields(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let mut tab = Tab::entered(&host, ada.account_id).await;
    let (page, path) = (tab.get("/dashboard/me/tunnels/new").await, "/dashboard/me/tunnels");
    let bad =
        [("name", "<img src=x onerror=alert(1)>"), ("protocol", "tcp"), ("local_host", "no host"), ("local_port", "x")];
    let shown = tab.submit(&page, path, &bad).await;
    assert_eq!(shown.outcome(), "422 validation_failed");
    assert_snapshot!(format!("{:?}\n{:?}", shown.fault("local_host"), shown.fault("local_port")), @r#"
    Some("must be a host name or an IP address of at most 253 characters")
    Some("must be an integer")
    "#);
    assert!(shown.text.contains("value=\"&lt;img src=x onerror=alert(1)&gt;\""), "what was typed is there, as text");
    is_sound(path, &Shown { text: shown.text.replace("onerror", ""), ..shown });

    let good = [("name", "game"), ("protocol", "tcp"), ("local_host", "127.0.0.1"), ("local_port", "25565")];
    let created = tab.submit(&page, path, &good).await;
    assert_eq!(created.status, 303, "{}", created.text);
    // A double click, a reload and a retry get the first answer.
    assert_eq!(tab.submit(&page, path, &good).await.led_to(), created.led_to());
    let other = tab.submit(&page, path, &[("name", "other"), ("protocol", "tcp"), ("local_port", "1")]).await;
    assert_eq!(other.outcome(), "409 idempotency_conflict");
    let tunnels = host.api(&ada.key).get("/tunnels").await;
    assert_eq!((tunnels.data().as_array().unwrap().len(), &tunnels.data()[0]["local_port"]), (1, &json!(25565)));
    let one = tab.get(created.led_to()).await;
    assert!(one.text.contains("game") && one.text.contains("stopped") && one.text.contains("No device may run it"));
    let delete = format!("{}/delete", created.led_to());
    let one = tab.get(&format!("{}/settings", created.led_to())).await;
    let shown = tab.submit(&one, &delete, &[("confirm_name", "other")]).await;
    assert_eq!((shown.status, shown.fault("confirm_name")), (422, Some("must be the name of this tunnel")));
    assert_eq!(tab.submit(&one, &delete, &[("confirm_name", "game")]).await.led_to(), path);
    assert_eq!(tab.get(created.led_to()).await.status, 404);
}

#[both_engines]
async fn tunnel_is_changed_and_says_who_may_visit(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let (id, api) = (tunnel(&host, &ada, "web").await, host.api(&ada.key));
    let mut tab = Tab::entered(&host, ada.account_id).await;
    let path = format!("/dashboard/me/tunnels/{id}");
    let settings = format!("{path}/settings");
    let page = tab.get(&settings).await;
    let shown = tab.submit(&page, &settings, &[("name", "shop"), ("local_port", "0")]).await;
    assert_eq!(
        (shown.outcome().as_str(), shown.fault("local_port")),
        ("422 validation_failed", Some("must be between 1 and 65535"))
    );
    assert!(shown.text.contains("value=\"shop\""), "what was typed is there");
    let typed = [("name", "shop"), ("local_port", "8000")];
    assert_eq!(tab.submit(&page, &settings, &typed).await.led_to(), settings);
    let changed = api.get(&format!("/tunnels/{id}")).await;
    assert_eq!((&changed.data()["name"], &changed.data()["local_port"]), (&json!("shop"), &json!(8000)));

    let access = format!("{path}/access");
    let page = tab.get(&access).await;
    assert!(page.text.contains("everybody may visit."));
    let addresses = format!("{access}/addresses");
    let bad = [("refuse", "203.0.113.0/24 the scanner\r\nnowhere"), ("let_in", "2001:db8::/32\r\n\r\n300.1.1.1")];
    let shown = tab.submit(&page, &addresses, &bad).await;
    let faults = [shown.fault("refuse"), shown.fault("let_in")].map(|fault| fault.unwrap_or("none").to_owned());
    assert_eq!(shown.status, 422);
    assert_snapshot!(faults.join("\n"), @"
    “nowhere” must be an IPv4 or IPv6 address, in ip_cidr with or without a prefix length
    “300.1.1.1” must be an IPv4 or IPv6 address, in ip_cidr with or without a prefix length
    ");
    assert!(shown.text.contains("203.0.113.0/24 the scanner\r\nnowhere</textarea>"));
    let good = [("refuse", "203.0.113.0/24 the scanner"), ("let_in", "2001:db8::/32\r\n198.51.100.7")];
    let page = tab.get(&access).await;
    assert_eq!(tab.submit(&page, &addresses, &good).await.led_to(), access);
    let countries = [("refuse_countries", "kp, ir"), ("let_in_countries", "de AT")];
    assert_eq!(tab.submit(&page, &format!("{access}/countries"), &countries).await.led_to(), access);
    let firewall = api.get(&format!("/tunnels/{id}/firewall")).await;
    let rules = firewall.data()["rules"].as_array().unwrap();
    let rule = |number: usize| (rules[number]["rule_type"].clone(), rules[number]["ip_cidr"].clone());
    assert_eq!(rule(0), (json!("blacklist"), json!("203.0.113.0/24")));
    assert_eq!((rules.len(), rule(2)), (3, (json!("whitelist"), json!("198.51.100.7/32"))));
    assert_eq!(rules[0]["description"], "the scanner");
    let geoip = api.get(&format!("/tunnels/{id}/geoip")).await;
    assert_eq!(geoip.data()["rules"].as_array().unwrap().len(), 4);
    let page = tab.get(&access).await;
    assert!(
        page.text
            .contains("the addresses that are let in may visit, from the countries that are let in, but for those")
    );
    assert!(
        page.text.contains("198.51.100.7/32</textarea>") && page.text.contains("value=\"AT DE\"")
            || page.text.contains("value=\"DE AT\"")
    );
    // A refused list of countries leaves the addresses on the page as they are.
    let shown = tab.submit(&page, &format!("{access}/countries"), &[("let_in_countries", "Germany")]).await;
    assert!(shown.status == 422 && shown.text.contains("203.0.113.0/24 the scanner</textarea>"), "{}", shown.text);
}

#[both_engines]
async fn tunnel_is_started_and_stopped_by_its_buttons(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let id = tunnel(&host, &ada, "web").await;
    let (device, mut wire) = host.wired(&ada, ada.account_id).await;
    let mut tab = Tab::entered(&host, ada.account_id).await;
    let path = format!("/dashboard/me/tunnels/{id}");
    let page = tab.get(&path).await;
    assert!(!page.text.contains("http-equiv=\"refresh\""));
    assert_eq!(tab.submit(&page, &format!("{path}/start"), &[]).await.led_to(), path);
    let under_way = tab.get(&path).await;
    assert!(under_way.text.contains("starting") && under_way.text.contains("http-equiv=\"refresh\""));
    wire.obey(Done::Start).await;
    let api = host.api(&ada.key);
    host.until_tunnel(&api, id, "running").await;
    let running = tab.get(&path).await;
    assert!(running.text.contains("runs it"), "{}", running.text);
    assert_eq!(tab.submit(&running, &format!("{path}/stop"), &[]).await.led_to(), path);
    wire.obey(Done::Stop).await;
    host.until_tunnel(&api, id, "stopped").await;
    // What becomes of an operation stands on its page, with what to do.
    let stopped = tab.get(&path).await;
    assert_eq!(tab.submit(&stopped, &format!("{path}/start"), &[]).await.led_to(), path);
    // A device that would not do it says so beside its name, and to who tries anyway.
    let off = format!("/dashboard/me/devices/{}/remote-control-off", device.id);
    let devices = tab.get("/dashboard/me/devices").await;
    assert_eq!(tab.submit(&devices, &off, &[]).await.led_to(), "/dashboard/me/devices");
    let canceled = api.get("/operations").await.data()[0]["id"].as_str().unwrap().to_owned();
    let operation = tab.get(&format!("/dashboard/me/operations/{canceled}")).await;
    assert!(operation.text.contains("<code>culvert-agent remote-control enable</code>"), "{}", operation.text);
    let page = tab.get(&path).await;
    assert!(page.text.contains("remote_control_disabled") && !page.text.contains(&format!("action=\"{path}/start\"")));
    let stop = tab.submit(&running, &format!("{path}/restart"), &[]).await;
    assert_eq!(stop.outcome(), "409 tunnel_not_running");
    assert!(stop.text.contains("role=\"alert\"") && stop.text.contains("Start it first."), "{}", stop.text);
    assert!(stop.text.contains("/errors#tunnel_not_running\""), "{}", stop.text);
}

/// What a policy refuses to a key it refuses to a person, and the page names the rule.
#[both_engines]
async fn policies_decide_in_the_dashboard_as_in_the_api(engine: Engine) {
    let host = TestHost::start(engine).await;
    let (ada, grace) = (host.person("ada").await, host.person("grace").await);
    let team = host.team("Lab", &ada).await;
    host.join(team, &grace, Role::Member).await;
    let owner = host.key(ada.account_id, team, "full_access").await;
    let id = tunnel(&host, &owner, "web").await;
    let mut tab = Tab::with_password(&host, grace.account_id).await;
    let path = format!("/dashboard/{team}/tunnels/{id}");
    let page = tab.get(&format!("{path}/settings")).await;
    let refused = tab.submit(&page, &format!("{path}/delete"), &[("confirm_name", "web")]).await;
    assert_eq!(refused.outcome(), "403 team_role_forbidden");
    assert!(refused.text.contains("The rule of a policy that refuses it: <code>own-tunnel</code>"), "{}", refused.text);
    let key = host.key(grace.account_id, team, "full_access").await;
    assert_eq!(host.api(&key.key).delete(&format!("/tunnels/{id}")).await.outcome(), "403 team_role_forbidden");
    // The form of one scope is good for no other one.
    let keys = tab.get("/dashboard/me/keys").await.form("/dashboard/me/keys");
    assert_eq!(tab.post(&format!("/dashboard/{team}/keys"), &keys).await.outcome(), "403 form_expired");
    // A plan without the API has people read why.
    host.set_plan(ada.account_id, "nothing").await;
    let mut adas = Tab::entered(&host, ada.account_id).await;
    assert_eq!(adas.get("/dashboard/me").await.status, 200);
    let page = adas.get("/dashboard/me/devices").await;
    assert!(page.text.contains("<code>feature_not_available</code>"), "{}", page.text);
    let form = adas.made_up(&host, "/dashboard/me/devices/code", &[]).await;
    let refused = adas.post("/dashboard/me/devices/code", &form).await;
    assert_eq!(refused.outcome(), "403 feature_not_available");
}

/// covers: elevation_required
/// covers: key_limit_reached
#[both_engines]
async fn key_is_made_by_who_has_just_proved_who_it_is_and_shown_once(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let path = "/dashboard/me/keys";
    let mut linked = Tab::entered(&host, ada.account_id).await;
    assert!(linked.get(path).await.text.contains("Set a password"));
    let mut tab = Tab::with_password(&host, ada.account_id).await;
    let page = tab.get(path).await;
    let shown = tab.submit(&page, path, &[("name", ""), ("scopes", "everything"), ("days", "0")]).await;
    let faults = ["name", "scopes", "days"].map(|field| shown.fault(field).unwrap_or("none").to_owned());
    assert_eq!(shown.outcome(), "422 validation_failed");
    assert_snapshot!(faults.join("\n"), @"
    must have 1 to 100 characters, none of them a control character
    `everything` is no scope; the scopes are account:read, tunnels:read, tunnels:write, tunnels:control, devices:read, devices:write, devices:control, operations:read, webhooks:read, webhooks:write, the presets read_only, operator, tunnel_manager, webhook_manager, full_access
    must be a number from 1 to 3650, or empty
    ");
    let typed = [("name", "backup"), ("scopes", "read_only"), ("days", "30")];
    // The newest key comes first in the list.
    host.clock.advance(Duration::from_secs(1));
    let made = tab.submit(&page, path, &typed).await;
    let key =
        |shown: &Shown| shown.text.split("<code>").find(|text| text.starts_with("ctk_")).unwrap()[..54].to_owned();
    let secret = key(&made);
    assert_eq!(
        (made.status, key(&tab.submit(&page, path, &typed).await)),
        (200, secret.clone()),
        "a reload makes no other"
    );
    assert_eq!(made.headers["cache-control"], "no-store");
    let api = host.api(&secret);
    assert_eq!(api.get("/tunnels").await.status, 200);
    assert_eq!(api.post("/tunnels", json!({"local_port": 1})).await.outcome(), "403 insufficient_scope");
    let list = tab.get(path).await;
    assert!(list.text.contains("backup") && !list.text.contains(&secret));
    let revoke =
        list.text.split("action=\"").find(|form| form.contains("/revoke\"")).unwrap().split('"').next().unwrap();
    assert_eq!(tab.submit(&list, revoke, &[]).await.led_to(), path);
    host.clock.advance(Duration::from_secs(1));
    assert_eq!(api.get("/tunnels").await.outcome(), "401 invalid_api_key");
    assert_eq!(host.api(&ada.key).get("/tunnels").await.status, 200, "the other key is as it was");

    // Ten minutes later the password is asked for again, also by a form that was open.
    host.clock.advance(Duration::from_mins(10));
    let late = tab.submit(&page, path, &[("name", "late"), ("scopes", "read_only"), ("days", "")]).await;
    assert_eq!(late.outcome(), "403 elevation_required");
    let confirm = "/dashboard/account/confirm";
    let shown = tab.submit(&late, confirm, &[("current_password", PASSWORD)]).await;
    assert_eq!(shown.status, 200, "{}", shown.text);
    assert!(shown.text.contains("value=\"late\""), "what was typed is there still: {}", shown.text);
    for _ in 0..50 {
        host.key(ada.account_id, ada.account_id, "read_only").await;
    }
    let page = tab.get(path).await;
    assert_eq!(tab.submit(&page, path, &typed).await.outcome(), "409 key_limit_reached");
}

/// A member sees and revokes its own keys alone.
#[both_engines]
async fn keys_of_a_team_are_shown_by_role(engine: Engine) {
    let host = TestHost::start(engine).await;
    let (ada, grace) = (host.person("ada").await, host.person("grace").await);
    let team = host.team("Lab", &ada).await;
    host.join(team, &grace, Role::Member).await;
    let of_ada = host.key(ada.account_id, team, "full_access").await;
    let of_grace = host.key(grace.account_id, team, "read_only").await;
    let path = format!("/dashboard/{team}/keys");
    let mut adas = Tab::with_password(&host, ada.account_id).await;
    let mut graces = Tab::with_password(&host, grace.account_id).await;
    let shown = (adas.get(&path).await.text, graces.get(&path).await.text);
    assert!(shown.0.contains("ada@example.test") && shown.0.contains("grace@example.test"));
    assert!(!shown.1.contains("ada@example.test") && shown.1.contains("grace@example.test"));
    // Whatever policies say to a member: its own key it takes back, and no other.
    let page = graces.get(&path).await;
    let own = format!("{path}/{}/revoke", of_grace.key_id);
    assert_eq!(graces.submit(&page, &own, &[]).await.led_to(), path);
    host.clock.advance(Duration::from_secs(1));
    assert_eq!(host.api(&of_grace.key).get("/tunnels").await.outcome(), "401 invalid_api_key");
    let revoke = format!("{path}/{}/revoke", of_ada.key_id);
    let page = adas.get(&path).await;
    assert_eq!(adas.submit(&page, &revoke, &[]).await.led_to(), path);
    host.clock.advance(Duration::from_secs(1));
    assert_eq!(host.api(&of_ada.key).get("/tunnels").await.outcome(), "401 invalid_api_key");
}

#[both_engines]
async fn enrolment_code_of_the_dashboard_makes_a_device_of_the_scope(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let mut tab = Tab::entered(&host, ada.account_id).await;
    let page = tab.get("/dashboard/me").await;
    assert!(page.text.contains("Add a device: the machine"), "somebody without devices is told how to begin");
    let shown = tab.submit(&page, "/dashboard/me/devices/code", &[]).await;
    let code = shown.text.split("--code ").nth(1).unwrap()[..24].to_owned();
    assert!(shown.text.contains("culvert-agent enroll --server https://api.example.test --code "));
    let key = DeviceKey::generate(&host.clock);
    let answer = host.redeem(&code, &key, &[]).await;
    assert!(answer.status().is_success());
    assert!(tab.get("/dashboard/me/devices").await.text.contains("culvert-agent remote-control enable"));
    assert!(!tab.get("/dashboard/me").await.text.contains("Add a device: the machine"));
}

#[both_engines]
async fn lists_go_on_page_by_page(engine: Engine) {
    let host = TestHost::with(engine, |config| config.rate_limit.per_minute = 1_000).await;
    let ada = host.person("ada").await;
    for number in 0..30 {
        tunnel(&host, &ada, &format!("tunnel-{number:02}")).await;
        host.clock.advance(Duration::from_secs(1));
    }
    let mut tab = Tab::entered(&host, ada.account_id).await;
    let first = tab.get("/dashboard/me/tunnels").await;
    assert!(first.text.contains("tunnel-29") && first.text.contains("tunnel-05") && !first.text.contains("tunnel-04"));
    let older = first.text.split("href=\"").find(|link| link.contains("?after=")).unwrap().split('"').next().unwrap();
    let second = tab.get(older).await;
    assert!(
        second.text.contains("tunnel-04") && !second.text.contains("tunnel-05") && !second.text.contains("?after=")
    );
    assert!(tab.get("/dashboard/me/tunnels?after=x").await.text.contains("tunnel-29"), "what is no cursor begins anew");
}

#[both_engines]
async fn sign_in_has_so_many_requests_in_a_minute(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let mut tab = Tab::entered(&host, ada.account_id).await;
    let page = tab.get("/dashboard/me/devices").await;
    for _ in 0..60 {
        assert_eq!(tab.submit(&page, "/dashboard/me/devices/code", &[]).await.status, 200);
    }
    let shown = tab.submit(&page, "/dashboard/me/devices/code", &[]).await;
    assert_eq!((shown.outcome(), &shown.headers["retry-after"]), ("429 rate_limited".into(), &"60".parse().unwrap()));
    for _ in 0..539 {
        assert_eq!(tab.get("/dashboard/me/keys").await.status, 200);
    }
    assert_eq!(tab.get("/dashboard/me/keys").await.outcome(), "429 rate_limited");
    // The limits of keys are others.
    assert_eq!(host.api(&ada.key).get("/tunnels").await.status, 200);
    host.clock.advance(Duration::from_mins(1));
    assert_eq!(tab.get("/dashboard/me/keys").await.status, 200);
}

#[both_engines]
async fn pages_and_assets_have_their_headers(engine: Engine) {
    let host = TestHost::start(engine).await;
    let mut tab = Tab::open(&host);
    let page = tab.get("/dashboard/sign-in").await;
    let shown = |page: &Shown| {
        let mut lines: Vec<String> = page
            .headers
            .iter()
            .filter(|(name, _)| !matches!(name.as_str(), "date" | "x-request-id" | "content-length"))
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect();
        lines.sort_unstable();
        lines.join("\n")
    };
    assert_snapshot!(shown(&page), @"
    cache-control: no-store
    content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'
    content-type: text/html; charset=utf-8
    cross-origin-opener-policy: same-origin
    cross-origin-resource-policy: same-origin
    permissions-policy: accelerometer=(), camera=(), display-capture=(), geolocation=(), gyroscope=(), magnetometer=(), microphone=(), midi=(), payment=(), usb=()
    referrer-policy: same-origin
    strict-transport-security: max-age=31536000
    x-content-type-options: nosniff
    x-policy-generation: 1
    ");
    let assets = page.text.split('"').filter(|text| text.starts_with("/assets/"));
    let mut size = page.text.len();
    for asset in assets {
        let request = tab.request(Method::GET, asset);
        let got = tab.clone().send(request).await;
        assert_eq!(
            (got.status, &got.headers["cache-control"]),
            (200, &"public, max-age=31536000, immutable".parse().unwrap())
        );
        size += got.text.len();
    }
    assert!(size < 90_000, "the first visit has {size} bytes");
    assert_eq!(tab.get("/assets/ui-0000000000000000.js").await.status, 404);
    assert_eq!(tab.get("/").await.led_to(), "/dashboard");
    assert_eq!(tab.get("/favicon.ico").await.status, 404, "it is no wrong key of the browser's address");
    let head = tab.request(Method::HEAD, "/dashboard/sign-in");
    let head = tab.send(head).await;
    assert_eq!((head.status, head.text.as_str()), (200, ""));
    let too_long = tab.form_request("/dashboard/sign-in", &[("email".into(), "x".repeat(300_000))]);
    let too_long = too_long.header("sec-fetch-site", "same-origin");
    assert_eq!(tab.send(too_long).await.outcome(), "413 payload_too_large");
    let twice = [("email".to_owned(), "a".to_owned()), ("email".to_owned(), "b".to_owned())];
    assert_eq!(tab.post("/dashboard/sign-in", &twice).await.status, 422);
}

/// The command's link is printed and comes into no log, however much is logged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn command_makes_a_link_that_is_in_no_log() {
    let place = Place::new(Engine::Sqlite).await.set("RUST_LOG", "trace");
    let mut host = place.serve().await;
    place.json("culvert account create --email ada@example.com --name Ada").await;
    let link = place.json("culvert account link --email ada@example.com").await;
    let url = link["url"].as_str().unwrap();
    let (page, secret) = url.split_once('#').unwrap();
    assert_eq!((page, secret.len()), ("http://localhost:8080/dashboard/enter", 43));
    let client = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none()).build().unwrap();
    let address = format!("http://{}:8080/dashboard/enter", place.address);
    let ask = |request: reqwest::RequestBuilder| request.header("host", "localhost:8080");
    let shown = ask(client.get(&address)).send().await.unwrap().text().await.unwrap();
    let key = shown.split("name=\"form_key\" value=\"").nth(1).unwrap().split('"').next().unwrap();
    let form = format!("form_key={key}&link={secret}");
    let request = client.post(&address).header("content-type", "application/x-www-form-urlencoded").body(form);
    let entered = ask(request).header("origin", "http://localhost:8080").send().await.unwrap();
    assert_eq!(entered.status(), 303);
    let cookie = entered.headers()["set-cookie"].to_str().unwrap().to_owned();
    assert!(cookie.starts_with("culvert_local=") && !cookie.contains("Secure"), "{cookie}");
    let value = cookie.split(['=', ';']).nth(1).unwrap().to_owned();
    let last = ask(client.get(format!("http://{}:8080/v2/the-last", place.address)));
    last.send().await.unwrap();
    let log = within(60, host.lines_until("/v2/the-last")).await.join("\n");
    assert!(!log.contains(secret) && !log.contains(&value), "{log}");
    let unknown = fails(&place, "culvert account link --email eve@example.com").await;
    assert_eq!(unknown, "1: culvert: there is no account eve@example.com; `culvert account create` makes one");
}
