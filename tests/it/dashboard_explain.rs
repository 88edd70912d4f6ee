//! Why a request was refused: people look it up by its id, with the check, the rule and what it saw.

use std::time::Duration;

use culvert_domain::audit_log::Actor;
use culvert_domain::caller::Role;
use culvert_domain::refused_by::Stage;
use culvert_domain::sign_in::RequireSecondFactor;
use culvert_domain::string_enum::StringEnum;
use culvert_service::accounts;
use culvert_test_macros::both_engines;
use reqwest::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::dashboard::is_sound;
use crate::support::api::{Answer, Api};
use crate::support::host::{Engine, TestHost};
use crate::support::tab::{Shown, Tab};

pub fn request_id(answer: &Answer) -> Uuid {
    answer.body["request_id"].as_str().unwrap().parse().unwrap()
}

/// The page that explains a request, once it is there.
pub async fn explained(host: &TestHost, tab: &mut Tab, scope: &str, id: Uuid) -> Shown {
    let path = format!("/dashboard/{scope}/explain/{id}");
    let page = std::cell::RefCell::new(tab.clone());
    let shown = host
        .until_found(async || {
            let mut tab = page.borrow().clone();
            let shown = tab.get(&path).await;
            (shown.status == 200).then_some(shown)
        })
        .await;
    is_sound(&path, &shown);
    shown
}

/// What the page says of each check.
pub fn checks(shown: &Shown) -> Vec<String> {
    let list = shown.text.split("<ol class=\"checks\">").nth(1).unwrap().split("</ol>").next().unwrap();
    let word = |item: &str| item.rsplit("\">").next().unwrap().split('<').next().unwrap().to_owned();
    list.split("</li>").filter(|item| item.contains("<li>")).map(word).collect()
}

/// A member is refused by a rule: the page names the rule and its sentence, the module with its digest, the generation, and
/// the fact that decided. The same request of whoever made the tunnel is not refused.
#[both_engines]
async fn refusal_by_a_policy_names_rule_module_and_facts(engine: Engine) {
    let host = TestHost::start(engine).await;
    let (ada, eve) = (host.person("ada").await, host.person("eve").await);
    let team = host.team("Lab", &ada).await;
    host.join(team, &eve, Role::Member).await;
    let adas = host.api(&host.key(ada.account_id, team, "full_access").await.key);
    let eves = host.api(&host.key(eve.account_id, team, "full_access").await.key);
    let tunnel = adas.post("/tunnels", json!({"local_port": 3000})).await.id();
    let refused = eves.delete(&format!("/tunnels/{tunnel}")).await;
    assert_eq!(refused.outcome(), "403 team_role_forbidden");

    let mut tab = Tab::entered(&host, ada.account_id).await;
    let shown = explained(&host, &mut tab, &team.to_string(), request_id(&refused)).await;
    let status = host.app.policies.status();
    let module = status.modules.iter().find(|module| module.name == "team-role").unwrap();
    for part in [
        "403 team_role_forbidden",
        "another member",
        &format!("DELETE /v2/tunnels/{tunnel}"),
        "Rule <code>own-tunnel</code>: “Members change and delete the tunnels that they created”",
        &format!("team-role {}, generation {}", module.version, status.generation),
        &module.sha256,
        "<dt><code>caller.role</code></dt><dd><code>member</code></dd>",
        "<dt><code>tunnel.created-by-caller</code></dt><dd><code>false</code></dd>",
        "Members change what they created",
        "Owners and admins of the Team: ada.",
    ] {
        assert!(shown.text.contains(part), "{part}: {}", shown.text);
    }
    let said = checks(&shown);
    assert_eq!(said.iter().filter(|word| *word == "refused").count(), 1);
    let place = Stage::ALL.iter().position(|stage| *stage == Stage::TeamRole).unwrap();
    assert_eq!(
        (said[place - 1].as_str(), said[place].as_str(), said[place + 1].as_str()),
        ("passed", "refused", "not reached")
    );

    // Whoever asked sees it as well, and nobody of another scope.
    let mut eves_tab = Tab::entered(&host, eve.account_id).await;
    let path = format!("/dashboard/{team}/explain/{}", request_id(&refused));
    assert!(eves_tab.get(&path).await.text.contains("by you"));
    let own = format!("/dashboard/me/explain/{}", request_id(&refused));
    assert_eq!(tab.get(&own).await.outcome(), "404 not_found");
    // A member sees what was refused to them alone.
    let limited = host.key(ada.account_id, team, "read_only").await;
    let by_ada = host.api(&limited.key).post("/tunnels", json!({"local_port": 3000})).await;
    assert_eq!(by_ada.outcome(), "403 insufficient_scope");
    explained(&host, &mut tab, &team.to_string(), request_id(&by_ada)).await;
    let path = format!("/dashboard/{team}/explain/{}", request_id(&by_ada));
    assert_eq!(eves_tab.get(&path).await.outcome(), "404 not_found");
    let list = eves_tab.get(&format!("/dashboard/{team}/explain")).await;
    is_sound("explain", &list);
    let leads_to = |refused: &Answer| list.text.contains(&format!("/explain/{}\"", request_id(refused)));
    assert_eq!((leads_to(&refused), leads_to(&by_ada)), (true, false), "{}", list.text);
    let found = tab.get(&format!("/dashboard/{team}/explain?find={}", request_id(&by_ada))).await;
    assert!(found.text.contains("insufficient_scope") && !found.text.contains("team_role_forbidden"));
    let none = tab.get(&format!("/dashboard/{team}/explain?find={}", Uuid::nil())).await;
    assert!(none.text.contains("Nothing is known of that request"));

    assert_eq!(adas.delete(&format!("/tunnels/{tunnel}")).await.status, 200);
}

/// Each check that refuses is told as the one that did.
#[both_engines]
async fn every_check_is_told_that_refuses(engine: Engine) {
    let host = TestHost::with(engine, |config| config.rate_limit.per_minute = 12).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let mut tab = Tab::entered(&host, ada.account_id).await;
    let limited = host.api(&host.key(ada.account_id, ada.account_id, "read_only").await.key);
    let tunnel = api.post("/tunnels", json!({"local_port": 3000})).await.id();
    let unknown = format!("/tunnels/{}", Uuid::nil());
    let stop = format!("/tunnels/{tunnel}/actions/stop");
    let raw = async |api: &Api, method: Method, path: &str, body: &str| {
        api.send(api.request(method, path).header("content-type", "application/json").body(body.to_owned())).await
    };
    let refusals = [
        (Stage::Route, raw(&api, Method::PUT, "/tunnels", "{}").await),
        (Stage::Permission, limited.post("/tunnels", json!({"local_port": 3000})).await),
        (Stage::Body, raw(&api, Method::PATCH, &format!("/tunnels/{tunnel}"), "{").await),
        (Stage::Replay, raw(&api, Method::POST, "/tunnels", "{}").await),
        (Stage::Resource, api.get(&unknown).await),
        (Stage::Validation, api.post("/tunnels", json!({"local_port": 0})).await),
        (Stage::State, api.post(&stop, json!({})).await),
    ];
    for (stage, answer) in refusals {
        let shown = explained(&host, &mut tab, "me", request_id(&answer)).await;
        let place = Stage::ALL.iter().position(|known| *known == stage).unwrap();
        assert_eq!(checks(&shown)[place], "refused", "{stage}: {}", shown.text);
        assert!(shown.text.contains(answer.body["code"].as_str().unwrap()));
    }
    // The plan, and the limit of requests.
    host.set_plan(ada.account_id, "free").await;
    let mut refused = Value::Null;
    for number in 0..12 {
        let answer = api.post("/tunnels", json!({"local_port": 3000, "name": format!("t{number}")})).await;
        if answer.status != 201 {
            refused = answer.body;
            break;
        }
    }
    assert!(refused["code"] == "plan_limit_reached" || refused["code"] == "rate_limited", "{refused}");
    let id = refused["request_id"].as_str().unwrap().parse().unwrap();
    let shown = explained(&host, &mut tab, "me", id).await;
    let stage = if refused["code"] == "rate_limited" { Stage::Rate } else { Stage::PlanAccess };
    let place = Stage::ALL.iter().position(|known| *known == stage).unwrap();
    assert_eq!(checks(&shown)[place], "refused", "{}", shown.text);
}

/// What the dashboard refuses leads to why, and secrets are in no page and in no row.
#[both_engines]
async fn refused_form_leads_to_its_explanation(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let mut tab = Tab::entered(&host, ada.account_id).await;
    let page = tab.get("/dashboard/me/tunnels/new").await;
    let shown = tab.submit(&page, "/dashboard/me/tunnels", &[("local_port", "99999")]).await;
    assert_eq!(shown.outcome(), "422 validation_failed");
    let why = shown.text.split("<a href=\"/dashboard/me/explain/").nth(1).unwrap().split('"').next().unwrap();
    let shown = explained(&host, &mut tab, "me", why.parse().unwrap()).await;
    assert!(
        shown.text.contains("POST /dashboard/me/tunnels") && shown.text.contains("with a sign-in"),
        "{}",
        shown.text
    );

    let secret = "hunter2-hunter2";
    let body = json!({"local_port": 3000, "protocol": "http", "name": "x".repeat(300), "http_basic_auth_enabled": true,
        "http_basic_auth_username": "ada", "http_basic_auth_password": secret});
    let refused = host.api(&ada.key).post("/tunnels", body).await;
    assert_eq!(refused.outcome(), "422 validation_failed");
    let shown = explained(&host, &mut tab, "me", request_id(&refused)).await;
    assert!(shown.text.contains("http-basic-auth-password") && !shown.text.contains(secret), "{}", shown.text);
}

/// What nobody can store is cleaned, and takes no other refusal along; those that come too often are counted.
#[both_engines]
async fn hostile_refusals_are_bounded(engine: Engine) {
    let host = TestHost::with(engine, |config| config.rate_limit.per_minute = 500).await;
    let ada = host.person("ada").await;
    let (api, mut tab) = (host.api(&ada.key), Tab::entered(&host, ada.account_id).await);
    let hostile = api.get("/tunnels/%00%E2%80%AE").await;
    assert_eq!(hostile.status, 404);
    let shown = explained(&host, &mut tab, "me", request_id(&hostile)).await;
    assert!(!shown.text.contains('\0') && !shown.text.contains('\u{202e}'), "{}", shown.text);
    for _ in 0..245 {
        api.get(&format!("/tunnels/{}", Uuid::nil())).await;
    }
    let page = tab.get("/dashboard/me/explain").await;
    // Those of the page that looked too early for the first one count as well.
    let lost = page.text.split("since the host started, ").nth(1).unwrap().split(' ').next().unwrap();
    assert!(lost.parse::<u32>().unwrap() >= 6, "{lost}");
}

/// A refusal is kept for 30 days.
#[both_engines]
async fn refusal_is_deleted_after_its_time(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let mut tab = Tab::entered(&host, ada.account_id).await;
    let refused = host.api(&ada.key).get(&format!("/tunnels/{}", Uuid::nil())).await;
    explained(&host, &mut tab, "me", request_id(&refused)).await;
    host.clock.advance(Duration::from_hours(24 * 30 - 1));
    host.app.store.prune().await.unwrap();
    let mut tab = Tab::entered(&host, ada.account_id).await;
    explained(&host, &mut tab, "me", request_id(&refused)).await;
    host.clock.advance(Duration::from_hours(1));
    host.app.store.prune().await.unwrap();
    let shown = tab.get(&format!("/dashboard/me/explain/{}", request_id(&refused))).await;
    assert_eq!(shown.outcome(), "404 not_found");
}

/// What a sign-in is refused is explained, whichever check has refused it: also what no form has asked for.
#[both_engines]
async fn refusals_of_a_sign_in_are_explained(engine: Engine) {
    let host = TestHost::with(engine, |config| {
        config.dashboard.require_second_factor = RequireSecondFactor::Operators;
    })
    .await;
    let ada = host.person("ada").await;
    accounts::set_operator(&host.app.store, ada.account_id, true, Actor::CLI).await.unwrap();
    let mut tab = Tab::entered(&host, ada.account_id).await;
    let mut ids = Vec::new();
    for (path, outcome, stage) in [
        (format!("/dashboard/me/tunnels/{}", Uuid::nil()), "404 not_found", "resource"),
        ("/dashboard/me/nothing".into(), "404 not_found", "route"),
        ("/dashboard/operator/accounts".into(), "403 second_factor_required", "permission"),
    ] {
        let shown = tab.get(&path).await;
        assert_eq!(shown.outcome(), outcome, "{path}");
        let id = shown.text.split("Request <code>").nth(1).unwrap().split('<').next().unwrap().to_owned();
        ids.push((id, path, stage));
    }
    let form = tab.made_up(&host, "/dashboard/me/usage", &[]).await;
    let refused = tab.post("/dashboard/me/usage", &form).await;
    assert_eq!(refused.outcome(), "405 method_not_allowed");
    for (id, path, stage) in ids {
        let shown = explained(&host, &mut tab, "me", id.parse().unwrap()).await;
        assert!(shown.text.contains(&format!("GET {path}")), "{}", shown.text);
        let stored = host.app.store.refusal(ada.account_id, None, id.parse().unwrap()).await.unwrap().unwrap();
        assert_eq!(stored.stage.as_str(), stage, "{path}");
    }
    // Of those that come too often, one a minute.
    for _ in 0..600 {
        tab.get("/dashboard/me/usage").await;
    }
    assert_eq!(tab.get("/dashboard/me/usage").await.outcome(), "429 rate_limited");
    host.clock.advance(Duration::from_mins(1));
    host.until_found(async || {
        let page = tab.get("/dashboard/me/explain").await;
        (page.text.contains("rate_limited") && page.text.contains("method_not_allowed")).then_some(())
    })
    .await;
}
