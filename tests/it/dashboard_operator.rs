//! The operator's pages: accounts and policies, for operators alone.

use std::time::Duration;

use culvert_agent::device::DeviceKey;
use culvert_domain::audit_log::Actor;
use culvert_service::{accounts, locked_accounts};
use culvert_test_macros::both_engines;
use serde_json::json;
use uuid::Uuid;

use crate::dashboard::is_sound;
use crate::support::device::Remote;
use crate::support::host::{Engine, TestHost};
use crate::support::hostile::{DENY, GOOD, Module};
use crate::support::policies::{Swapped, builtin, entry};
use crate::support::tab::{PASSWORD, Tab};

const ACCOUNTS: &str = "/dashboard/operator/accounts";
const NODES: &str = "/dashboard/operator/nodes";
const POLICIES: &str = "/dashboard/operator/policies";
const PLAN: &str = "/dashboard/operator/policies/plan";
const RELOAD: &str = "/dashboard/operator/policies/reload";
const ROLL_BACK: &str = "/dashboard/operator/policies/rollback";

/// An operator's tab, whose password was just typed.
async fn operator(host: &TestHost) -> (Uuid, Tab) {
    let ada = host.person("ada").await;
    accounts::set_operator(&host.app.store, ada.account_id, true, Actor::CLI).await.unwrap();
    (ada.account_id, Tab::with_password(host, ada.account_id).await)
}

/// Each page and each form of operators, by somebody who is none.
#[both_engines]
async fn pages_of_operators_are_for_operators(engine: Engine) {
    let host = TestHost::start(engine).await;
    let (ada, _) = operator(&host).await;
    let eve = host.person("eve").await;
    let mut eves = Tab::with_password(&host, eve.account_id).await;
    let paths = culvert_dashboard::pages::PAGES.iter().map(|page| page.path);
    let pages: Vec<&str> = paths.filter(|path| path.starts_with("operator/")).collect();
    assert!(pages.len() >= 6, "{pages:?}");
    for page in pages {
        assert_eq!(eves.get(&format!("/dashboard/{page}")).await.outcome(), "404 not_found", "{page}");
    }
    let forms = culvert_dashboard::actions::ACTIONS.iter().map(|act| act.path);
    let forms: Vec<&str> = forms.filter(|path| path.starts_with("operator/")).collect();
    assert!(forms.len() >= 10, "{forms:?}");
    for form in forms {
        let path = format!("/dashboard/{}", form.replace("{id}", &eve.account_id.to_string()));
        let fields = [("operator", "yes"), ("plan", "self-hosted"), ("generation", "1"), ("status", "offline")];
        let fields = eves.made_up(&host, &path, &fields).await;
        assert_eq!(eves.post(&path, &fields).await.outcome(), "404 not_found", "{path}");
    }
    assert!(!eves.get("/dashboard/me").await.text.contains("/operator/"));
    // Whoever is no operator any more finds them no longer.
    accounts::set_operator(&host.app.store, eve.account_id, true, Actor::CLI).await.unwrap();
    host.clock.advance(Duration::from_secs(2));
    assert_eq!(eves.get(POLICIES).await.status, 200);
    accounts::set_operator(&host.app.store, eve.account_id, false, Actor::CLI).await.unwrap();
    host.clock.advance(Duration::from_secs(2));
    assert_eq!(eves.get(POLICIES).await.outcome(), "404 not_found");
    let refused = accounts::set_operator(&host.app.store, ada, false, Actor::CLI).await.unwrap_err();
    assert_eq!(refused.code.as_str(), "last_operator");
}

/// What an operator says of a node is what the API lists, and whether it gets new tunnels.
#[both_engines]
async fn operator_takes_a_node_out_of_service(engine: Engine) {
    let host = TestHost::start(engine).await;
    let (ada, mut tab) = operator(&host).await;
    let api = host.api(&host.key(ada, ada, "full_access").await.key);
    let node = api.get("/nodes").await.data()[0].clone();
    let path = format!("{NODES}/{}/status", node["id"].as_str().unwrap());
    let page = tab.get(NODES).await;
    is_sound(NODES, &page);
    let status = format!("status-{}", node["id"].as_str().unwrap());
    for wrong in ["", "on", "ONLINE"] {
        let refused = tab.submit(&page, &path, &[(&status, wrong)]).await;
        assert_eq!(refused.outcome(), "422 validation_failed", "{wrong}");
    }
    assert_eq!(tab.submit(&page, &path, &[(&status, "maintenance")]).await.led_to(), NODES);
    assert_eq!(api.get("/nodes").await.data()[0]["status"], "maintenance");
    assert_eq!(api.post("/tunnels", json!({"local_port": 80})).await.outcome(), "409 node_unavailable");
    let page = tab.get(NODES).await;
    assert_eq!(tab.submit(&page, &path, &[(&status, "online")]).await.led_to(), NODES);
    assert_eq!(api.post("/tunnels", json!({"local_port": 80})).await.status, 201);
    let unknown = format!("{NODES}/{ada}/status");
    let form = tab.made_up(&host, &unknown, &[(&format!("status-{ada}"), "online")]).await;
    assert_eq!(tab.post(&unknown, &form).await.outcome(), "404 not_found");
}

#[both_engines]
async fn operator_makes_and_changes_accounts(engine: Engine) {
    let host = TestHost::start(engine).await;
    let (ada, mut tab) = operator(&host).await;
    let page = tab.get(ACCOUNTS).await;
    let shown = tab.submit(&page, ACCOUNTS, &[("email", "grace"), ("name", ""), ("plan", "gold")]).await;
    assert_eq!(shown.outcome(), "422 validation_failed");
    assert_eq!(
        (shown.fault("email"), shown.fault("name"), shown.fault("plan")),
        (
            Some("must be an e-mail address with at most 254 characters"),
            Some("must have 1 to 100 characters, none of them a control character"),
            Some("must be a plan that a policy knows")
        )
    );
    let typed = [("email", "Grace@example.test"), ("name", "Grace")];
    let made = tab.submit(&page, ACCOUNTS, &typed).await;
    let link = made.link();
    assert_eq!(tab.submit(&page, ACCOUNTS, &typed).await.link(), link, "a reload makes no other");
    let page = tab.get(ACCOUNTS).await;
    assert_eq!(tab.submit(&page, ACCOUNTS, &typed).await.fault("email"), Some("has an account"));

    let mut graces = Tab::open(&host);
    let enter = graces.get("/dashboard/enter").await;
    assert_eq!(graces.submit(&enter, "/dashboard/enter", &[("link", &link)]).await.led_to(), "/dashboard/account");
    let found = tab.get(&format!("{ACCOUNTS}?find=GRACE%40example.test")).await;
    assert!(found.text.contains("grace@example.test") && !found.text.contains("ada@example.test</td>"));
    assert!(tab.get(&format!("{ACCOUNTS}?find=nobody%40example.test")).await.text.contains("There is no such account"));

    let grace = host.app.store.account_by_email("grace@example.test").await.unwrap().unwrap().id;
    let page = tab.get(ACCOUNTS).await;
    let path = |id: Uuid, action: &str| format!("{ACCOUNTS}/{id}/{action}");
    let (plan, field) = (path(grace, "plan"), format!("plan-{grace}"));
    assert_eq!(tab.submit(&page, &plan, &[(&field, "gold")]).await.outcome(), "422 validation_failed");
    assert_eq!(tab.submit(&page, &plan, &[(&field, "free")]).await.led_to(), ACCOUNTS);
    assert_eq!(host.app.store.account(grace).await.unwrap().unwrap().plan, "free");
    let page = tab.get(ACCOUNTS).await;
    let link = tab.submit(&page, &path(grace, "link"), &[]).await.link();
    assert_eq!(link.len(), 43);
    assert_eq!(tab.submit(&page, &path(ada, "operator"), &[]).await.outcome(), "409 last_operator");
    assert_eq!(tab.submit(&page, &path(grace, "operator"), &[]).await.led_to(), ACCOUNTS);
    host.clock.advance(Duration::from_secs(2));
    assert_eq!(graces.get(ACCOUNTS).await.status, 200);
    // More than one page.
    for number in 0..30 {
        host.person(&format!("person{number}")).await;
    }
    let page = tab.get(ACCOUNTS).await;
    let next = page.text.split("href=\"/dashboard/operator/accounts?after=").nth(1).unwrap().split('"').next().unwrap();
    let older = tab.get(&format!("{ACCOUNTS}?after={next}")).await;
    assert!(page.text.contains("person29@") && !page.text.contains("ada@example.test"));
    assert!(older.text.contains("ada@example.test") && !older.text.contains("person29@"));
    // A sign-in whose password was typed long ago changes nothing.
    host.clock.advance(Duration::from_secs(601));
    assert_eq!(tab.submit(&found, &plan, &[(&field, "free")]).await.outcome(), "403 elevation_required");
}

/// Where a module of each kind fails, everybody's changes are refused, and an operator signs in and rolls back all the same.
///
/// covers: policies_kept
#[both_engines]
async fn operator_rolls_broken_policies_back(engine: Engine) {
    let swapped = Swapped::on(engine, |_| {}).await;
    let (host, others) = (&swapped.host, ["plan-access", "validation"]);
    let (ada, mut tab) = operator(host).await;
    let api = host.api(&host.key(ada, ada, "full_access").await.key);
    let create = async || api.post("/tunnels", json!({"local_port": 80})).await.outcome();
    let page = tab.get(POLICIES).await;
    assert!(page.text.contains("Generation <strong>1</strong>") && page.text.contains("There are no earlier policies"));
    let broken = Module { check: "unreachable", ..GOOD };
    let modules = [
        ("plan-access", swapped.write_wasm("plans.wasm", &broken.plan_access())),
        ("team-role", swapped.write("roles.wasm", &broken)),
        ("validation", swapped.write_wasm("fields.wasm", &broken.validation())),
    ];
    let entries: String = modules.iter().map(|(kind, file)| entry(kind, file, "")).collect();
    swapped.configure(&(entries + &builtin(&["plan-access"])));
    assert_eq!(tab.submit(&page, RELOAD, &[]).await.led_to(), POLICIES);
    assert_eq!(create().await, "503 policy_unavailable");

    // Whoever was signed out signs in, while every policy that is asked fails.
    let sign_in = tab.get("/dashboard/sign-in").await;
    let mut tab = Tab::open(host);
    assert_eq!(sign_in.status, 303);
    let sign_in = tab.get("/dashboard/sign-in").await;
    let typed = [("email", "ada@example.test"), ("password", PASSWORD)];
    assert_eq!(tab.submit(&sign_in, "/dashboard/sign-in", &typed).await.led_to(), "/dashboard");
    let page = tab.get(POLICIES).await;
    assert!(page.text.contains("Generation <strong>2</strong>"), "{}", page.text);
    // A second click goes back no further.
    assert_eq!(tab.submit(&page, ROLL_BACK, &[]).await.led_to(), POLICIES);
    assert_eq!(tab.submit(&page, ROLL_BACK, &[]).await.led_to(), POLICIES);
    assert!(tab.get(POLICIES).await.text.contains("Generation <strong>3</strong>"));
    assert_eq!(create().await, "201");

    // What cannot be loaded is told, and changes nothing.
    let missing = "[[policy]]\nkind = \"team-role\"\nmodule = \"no/such.wasm\"\n";
    swapped.configure(&(builtin(&others) + missing));
    let page = tab.get(POLICIES).await;
    let shown = tab.submit(&page, RELOAD, &[]).await;
    assert_eq!(shown.outcome(), "409 policies_kept");
    assert!(shown.text.contains("no/such.wasm"), "{}", shown.text);
    assert!(shown.text.contains("The last reload failed") && shown.text.contains("Generation <strong>3</strong>"));
}

/// What a reload would change is shown before it is done, with the decisions of the last hour that would be others.
#[both_engines]
async fn operator_sees_what_a_reload_would_change(engine: Engine) {
    let folder = tempfile::tempdir().unwrap();
    let records = folder.path().join("decisions.jsonl");
    let swapped = Swapped::on(engine, |config| config.decisions.file = Some(records.clone())).await;
    let host = &swapped.host;
    let (ada, mut tab) = operator(host).await;
    let api = host.api(&host.key(ada, ada, "full_access").await.key);
    let made = api.post("/tunnels", json!({"local_port": 80, "name": "web"})).await;
    assert_eq!(made.status, 201);
    let id = made.header("x-request-id").unwrap().to_owned();
    host.until_found(async || std::fs::read_to_string(&records).ok().filter(|text| text.contains(&id))).await;

    let shipped = builtin(&["plan-access", "team-role", "validation"]);
    let page = tab.get(POLICIES).await;
    let same = tab.submit(&page, PLAN, &[]).await;
    is_sound(PLAN, &same);
    assert!(same.text.contains("They are the ones that are in use"), "{}", same.text);
    let refusing = swapped.write("refusing.wasm", &Module { check: DENY, ..GOOD });
    swapped.configure(&(entry("team-role", &refusing, "") + &shipped));
    let shown = tab.submit(&page, PLAN, &[]).await;
    is_sound(PLAN, &shown);
    for part in ["comes: <code>team-role", "<strong>1 would change</strong>", "<td>tunnels.create</td><td>allow</td>"] {
        assert!(shown.text.contains(part), "{part}: {}", shown.text);
    }
    assert_eq!(host.app.policies.status().generation, 1, "nothing is taken over");
    assert_eq!(api.post("/tunnels", json!({"local_port": 81})).await.status, 201);

    swapped.configure(&(shipped + "[[policy]]\nkind = \"team-role\"\nmodule = \"no/such.wasm\"\n"));
    let shown = tab.submit(&page, PLAN, &[]).await;
    assert_eq!(shown.outcome(), "409 policies_kept");
    assert!(shown.text.contains("no/such.wasm"), "{}", shown.text);
    let status = host.app.policies.status();
    assert!(status.last_failure.is_none(), "what was only looked at has not failed");
}

/// What a shadow module would have refused is listed, and only the newest of it.
#[both_engines]
async fn operator_sees_where_shadow_modules_disagree(engine: Engine) {
    let swapped = Swapped::on(engine, |config| config.rate_limit.per_minute = 10_000).await;
    let host = &swapped.host;
    let (ada, mut tab) = operator(host).await;
    let api = host.api(&host.key(ada, ada, "full_access").await.key);
    let path = format!("{POLICIES}/shadows");
    assert!(tab.get(&path).await.text.contains("No shadow module has disagreed"));
    let refusing = swapped.write("refusing.wasm", &Module { check: DENY, ..GOOD });
    let shipped = builtin(&["plan-access", "team-role", "validation"]);
    swapped.configure(&(shipped + &entry("team-role", &refusing, "mode = \"shadow\"")));
    assert_eq!(swapped.reload().await, Ok(2));
    let tunnel = api.post("/tunnels", json!({"local_port": 80})).await.id();
    let rename = async |number: u32| {
        let changed = api.patch(&format!("/tunnels/{tunnel}"), json!({"name": format!("t{number}")})).await;
        assert_eq!(changed.status, 200);
        changed.header("x-request-id").unwrap().to_owned()
    };
    for number in 1..200 {
        rename(number).await;
    }
    let last = rename(200).await;
    let tab = std::cell::RefCell::new(tab);
    let page = host
        .until_found(async || {
            let mut tab = tab.borrow().clone();
            Some(tab.get(&path).await).filter(|page| page.text.contains(&last))
        })
        .await;
    is_sound(&path, &page);
    assert_eq!(page.text.matches("<td class=\"long\">deny test-rule</td>").count(), 200, "the first is forgotten");
}

/// Every Team with its plan, which an operator changes; the plan is one that a policy knows.
#[both_engines]
async fn operator_gives_a_team_another_plan(engine: Engine) {
    let host = TestHost::start(engine).await;
    let (_, mut tab) = operator(&host).await;
    let grace = host.person("grace").await;
    let team = host.team("Lab", &grace).await;
    let list = "/dashboard/operator/teams";
    let page = tab.get(list).await;
    is_sound(list, &page);
    assert!(page.text.contains("Lab") && page.text.contains(&team.to_string()));
    let path = format!("{list}/{team}/plan");
    let field = format!("plan-{team}");
    let refused = tab.submit(&page, &path, &[(&field, "gold")]).await;
    assert_eq!(refused.outcome(), "422 validation_failed");
    assert_eq!(tab.submit(&page, &path, &[(&field, "free")]).await.led_to(), list);
    let key = host.key(grace.account_id, team, "full_access").await.key;
    assert_eq!(host.api(&key).get("/account").await.data()["plan_name"], "free");
    // An account's own scope is no Team.
    let path = format!("{list}/{}/plan", grace.account_id);
    let form = tab.made_up(&host, &path, &[(&format!("plan-{}", grace.account_id), "free")]).await;
    assert_eq!(tab.post(&path, &form).await.outcome(), "404 not_found");
}

/// What waits and what fails is told with the setting that mends it.
#[both_engines]
async fn health_tells_what_waits_and_what_is_unwise(engine: Engine) {
    let host = TestHost::with(engine, |config| config.node.hostname = "t1.example.test".into()).await;
    let (_, mut tab) = operator(&host).await;
    let page = tab.get("/dashboard/operator/health").await;
    is_sound("health", &page);
    for part in [
        "public_url (api.example.test) and the tunnels of node are below one registrable domain (example.test)",
        "0 connected",
        "0 have something due",
        "geoip.database is not set",
    ] {
        assert!(page.text.contains(part), "{part}: {}", page.text);
    }
}

/// Nobody signs in to a locked account, its keys are no keys, and its devices stop; unlocked, keys are good again.
#[both_engines]
async fn locked_account_does_nothing_until_it_is_unlocked(engine: Engine) {
    let host = TestHost::start(engine).await;
    let (ada, mut tab) = operator(&host).await;
    let grace = host.person("grace").await;
    let api = host.api(&grace.key);
    let device = host.device(&grace, grace.account_id, Remote::Enabled).await;
    let tunnel = api.post("/tunnels", json!({"local_port": 3000})).await.id();
    host.run_tunnel(&api, &device, tunnel).await;
    let mut graces = Tab::with_password(&host, grace.account_id).await;
    let team = format!("/dashboard/{}/team", host.team("Lab", &grace).await);
    let page = graces.get(&team).await;
    let invited = [("email", "second@example.test"), ("role", "admin")];
    let invitation = graces.submit(&page, &format!("{team}/invitations"), &invited).await.link();
    let code = host.device_code(grace.account_id, grace.account_id).await;
    let path = format!("{ACCOUNTS}/{}/lock", grace.account_id);
    let page = tab.get(ACCOUNTS).await;
    for wrong in ["", "true"] {
        assert_eq!(tab.submit(&page, &path, &[("locked", wrong)]).await.outcome(), "422 validation_failed");
    }
    let form = tab.made_up(&host, &path, &[("locked", "yes")]).await;
    assert_eq!(tab.post(&path, &form).await.led_to(), ACCOUNTS);
    // Keys are remembered for a second.
    host.clock.advance(Duration::from_secs(2));
    assert_eq!(api.get("/account").await.outcome(), "401 invalid_api_key");
    assert_eq!(graces.get("/dashboard/me").await.led_to(), "/dashboard/sign-in?next=%2Fdashboard%2Fme");
    host.until(async || {
        let store = &host.app.store;
        store.tunnel(grace.account_id, tunnel).await.unwrap().unwrap().run.is_none().then_some(())
    })
    .await;
    let sign_in = async || {
        let mut tab = Tab::open(&host);
        let page = tab.get("/dashboard/sign-in").await;
        tab.submit(&page, "/dashboard/sign-in", &[("email", "grace@example.test"), ("password", PASSWORD)]).await
    };
    let refused = sign_in().await;
    assert_eq!(refused.outcome(), "401 sign_in_required");
    assert!(refused.text.contains("The account is locked."), "{}", refused.text);
    let page = tab.get(ACCOUNTS).await;
    assert!(page.text.contains("locked") && page.text.contains(">Unlock</button>"));
    // What the account has handed out is no good any more.
    let mut stranger = Tab::open(&host);
    let page_of_links = stranger.get("/dashboard/enter").await;
    let opened = stranger.submit(&page_of_links, "/dashboard/enter", &[("link", &invitation)]).await;
    assert_eq!(opened.outcome(), "410 link_not_valid");
    assert_ne!(
        host.redeem(&code, &DeviceKey::generate(&host.clock), &[]).await.status().as_u16(),
        200,
        "a code of a locked account enrols a device"
    );
    // An operator that is locked is none that could unlock others.
    let lin = host.person("lin").await;
    accounts::set_operator(&host.app.store, lin.account_id, true, Actor::CLI).await.unwrap();
    locked_accounts::lock(&host.app.store, lin.account_id, Actor::CLI).await.unwrap();
    // The last operator stays.
    let own = format!("{ACCOUNTS}/{ada}/lock");
    let form = tab.made_up(&host, &own, &[("locked", "yes")]).await;
    assert_eq!(tab.post(&own, &form).await.outcome(), "409 last_operator");

    let form = tab.made_up(&host, &path, &[("locked", "no")]).await;
    assert_eq!(tab.post(&path, &form).await.led_to(), ACCOUNTS);
    host.clock.advance(Duration::from_secs(2));
    assert_eq!(sign_in().await.led_to(), "/dashboard");
    assert_eq!(api.get("/account").await.status, 200);
}
