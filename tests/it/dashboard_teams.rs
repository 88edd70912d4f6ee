//! Teams in the dashboard: made, shared by invitations, changed by roles, left and deleted; and the first operator.

use std::process::Stdio;
use std::time::Duration;

use culvert_domain::caller::Role;
use culvert_domain::sign_in::SignUp;
use culvert_service::forms::FormId;
use culvert_service::links;
use culvert_service::sign_ins::{Client, NewPerson};
use culvert_test_macros::both_engines;
use futures_util::future::join_all;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use uuid::Uuid;

use crate::dashboard::is_sound;
use crate::support::host::{Engine, Person, TestHost, within};
use crate::support::program::Place;
use crate::support::tab::{PASSWORD, Shown, Tab};

const ENTER: &str = "/dashboard/enter";
const BEGIN: &str = "/dashboard/enter/account";
const MINE: &str = "/dashboard/me/team";

/// Makes a Team by the form; its path.
async fn made(tab: &mut Tab, name: &str) -> String {
    let page = tab.get(MINE).await;
    let shown = tab.submit(&page, MINE, &[("name", name)]).await;
    assert_eq!(shown.status, 303, "{}", shown.text);
    shown.led_to().to_owned()
}

/// Invites somebody; the link's secret.
async fn invited(tab: &mut Tab, team: &str, email: &str, role: &str) -> String {
    let page = tab.get(team).await;
    let shown = tab.submit(&page, &format!("{team}/invitations"), &[("email", email), ("role", role)]).await;
    assert_eq!(shown.status, 200, "{}", shown.text);
    shown.link()
}

async fn opened(tab: &mut Tab, link: &str) -> Shown {
    let page = tab.get(ENTER).await;
    tab.submit(&page, ENTER, &[("link", link)]).await
}

/// Does something to a member, as the page of the Team offers it.
async fn act(tab: &mut Tab, team: &str, person: &Person, action: &str, fields: &[(&str, &str)]) -> String {
    let page = tab.get(team).await;
    let named: Vec<_> = fields.iter().map(|(name, value)| (format!("{name}-{}", person.account_id), *value)).collect();
    let named: Vec<_> = named.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    let shown = tab.submit(&page, &format!("{team}/members/{}/{action}", person.account_id), &named).await;
    shown.outcome()
}

/// covers: team_not_empty
/// covers: limit_reached
#[both_engines]
async fn team_is_made_renamed_and_deleted_when_empty(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let mut tab = Tab::with_password(&host, ada.account_id).await;
    let page = tab.get(MINE).await;
    for name in ["", " ", "a\u{202e}b", &"x".repeat(101)] {
        let shown = tab.submit(&page, MINE, &[("name", name)]).await;
        assert_eq!(
            (shown.outcome().as_str(), shown.fault("name")),
            ("422 validation_failed", Some("must have 1 to 100 characters, none of them a control character")),
            "{name:?}"
        );
    }
    is_sound(MINE, &page);
    // The same form twice makes one Team.
    let (first, second) = (
        tab.submit(&page, MINE, &[("name", "Lab")]).await.led_to().to_owned(),
        tab.submit(&page, MINE, &[("name", "Lab")]).await.led_to().to_owned(),
    );
    assert_eq!(first, second);
    let team = first;
    let id: Uuid = team.split('/').nth(2).unwrap().parse().unwrap();
    let page = tab.get(&team).await;
    is_sound(&team, &page);
    let rename = format!("{team}/name");
    assert_eq!(tab.submit(&page, &rename, &[("name", "")]).await.outcome(), "422 validation_failed");
    assert_eq!(tab.submit(&page, &rename, &[("name", "Workshop")]).await.led_to(), team);
    let page = tab.get(&team).await;
    assert!(page.text.contains("<h1>Workshop</h1>"), "{}", page.text);

    let key = host.key(ada.account_id, id, "full_access").await;
    let api = host.api(&key.key);
    let tunnel = api.post("/tunnels", json!({"local_port": 3000})).await.id();
    let webhook = host.webhook(id).await;
    let delete = format!("{team}/delete");
    let page = tab.get(&team).await;
    let shown = tab.submit(&page, &delete, &[("confirm_name", "Lab")]).await;
    assert_eq!(shown.fault("confirm_name"), Some("must be the name of this Team"));
    let shown = tab.submit(&page, &delete, &[("confirm_name", "Workshop")]).await;
    assert_eq!(shown.outcome(), "409 team_not_empty");
    assert_eq!(api.delete(&format!("/tunnels/{tunnel}")).await.status, 200);
    assert_eq!(api.get(&format!("/webhooks/{webhook}")).await.status, 200);
    let page = tab.get(&team).await;
    assert_eq!(tab.submit(&page, &delete, &[("confirm_name", "Workshop")]).await.led_to(), "/dashboard");
    assert_eq!(tab.get(&team).await.outcome(), "404 not_found");
    assert!(!tab.get("/dashboard/me").await.text.contains("Workshop"));
    host.clock.advance(Duration::from_secs(2));
    assert_eq!(api.get("/tunnels").await.outcome(), "401 invalid_api_key", "its keys are revoked");

    for number in 0..20 {
        made(&mut tab, &format!("Team {number}")).await;
    }
    let page = tab.get(MINE).await;
    assert_eq!(tab.submit(&page, MINE, &[("name", "one too many")]).await.outcome(), "409 limit_reached");
}

#[both_engines]
async fn invited_newcomer_gets_an_account_in_the_team(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let mut adas = Tab::with_password(&host, ada.account_id).await;
    let team = made(&mut adas, "Lab").await;
    let page = adas.get(&team).await;
    let invitations = format!("{team}/invitations");
    let shown = adas.submit(&page, &invitations, &[("email", "grace"), ("role", "queen")]).await;
    assert_eq!(
        (shown.fault("email"), shown.fault("role")),
        (Some("must be an e-mail address with at most 254 characters"), Some("must be owner, admin or member"))
    );
    let typed = [("email", "Grace@Example.test"), ("role", "admin")];
    let link = adas.submit(&page, &invitations, &typed).await.link();
    assert_eq!(adas.submit(&page, &invitations, &typed).await.link(), link, "a reload makes no other");
    assert!(adas.get(&team).await.text.contains("grace@example.test"));

    let mut graces = Tab::open(&host);
    let page = opened(&mut graces, &link).await;
    assert_eq!(page.status, 200, "{}", page.text);
    assert!(page.text.contains("ada@example.test invites grace@example.test to be an admin of the Team “Lab”"));
    let weak = graces.submit(&page, BEGIN, &[("name", " "), ("password", "grace@example.test")]).await;
    assert_eq!(weak.outcome(), "422 validation_failed");
    assert_eq!(weak.fault("name"), Some("must have 1 to 100 characters, none of them a control character"));
    assert!(weak.fault("password").unwrap().starts_with("is too easy to guess"));
    // What was refused can be mended on the page that is shown again.
    let typed = [("name", "Grace"), ("password", PASSWORD)];
    let begun = graces.submit(&weak, BEGIN, &typed).await;
    assert_eq!(begun.led_to(), "/dashboard", "{}", begun.text);
    let page = graces.get(&team).await;
    assert!(page.text.contains("You are an admin"), "{}", page.text);
    assert!(
        page.text.contains("Grace") && !adas.get(&team).await.text.contains("Nobody is invited") || page.status == 200
    );
    assert_eq!(Tab::open(&host).submit(&weak, BEGIN, &typed).await.outcome(), "410 link_not_valid");
    assert_eq!(opened(&mut Tab::open(&host), &link).await.outcome(), "410 link_not_valid");

    // A newer invitation of the same address ends the older one; one that was revoked or is too old is none.
    let older = invited(&mut adas, &team, "eve@example.test", "member").await;
    let newer = invited(&mut adas, &team, "eve@example.test", "member").await;
    assert_eq!(opened(&mut Tab::open(&host), &older).await.outcome(), "410 link_not_valid");
    assert_eq!(opened(&mut Tab::open(&host), &newer).await.status, 200);
    let page = adas.get(&team).await;
    let revoke = page.text.split(&format!("action=\"{team}/invitations/")).nth(1).unwrap().split('"').next().unwrap();
    let revoke = format!("{team}/invitations/{revoke}");
    assert_eq!(adas.submit(&page, &revoke, &[]).await.led_to(), team);
    assert_eq!(opened(&mut Tab::open(&host), &newer).await.outcome(), "410 link_not_valid");
    let link = invited(&mut adas, &team, "eve@example.test", "member").await;
    host.clock.advance(Duration::from_hours(24 * 7));
    assert_eq!(opened(&mut Tab::open(&host), &link).await.outcome(), "410 link_not_valid");
}

#[both_engines]
async fn invited_account_joins_when_it_is_signed_in(engine: Engine) {
    let host = TestHost::start(engine).await;
    let (ada, eve) = (host.person("ada").await, host.person("eve").await);
    let mut adas = Tab::with_password(&host, ada.account_id).await;
    let team = made(&mut adas, "Lab").await;
    let link = invited(&mut adas, &team, "eve@example.test", "member").await;
    // Whoever has the link cannot take the account over, nor make another one with its address.
    let mut strangers = Tab::open(&host);
    let page = opened(&mut strangers, &link).await;
    let shown = strangers.submit(&page, BEGIN, &[("name", "Eve"), ("password", PASSWORD)]).await;
    assert_eq!(shown.outcome(), "422 validation_failed");
    assert!(shown.text.contains("has an account; sign in with it first"), "{}", shown.text);

    let mut eves = Tab::entered(&host, eve.account_id).await;
    let page = opened(&mut eves, &link).await;
    assert!(page.text.contains("Join as eve@example.test") && !page.text.contains("was made for"), "{}", page.text);
    let join = "/dashboard/account/join";
    let led_to = eves.submit(&page, join, &[]).await.led_to().to_owned();
    assert_eq!(format!("{led_to}/team"), team);
    assert_eq!(eves.submit(&page, join, &[]).await.led_to(), led_to, "a second click changes nothing");
    assert!(eves.get(&team).await.text.contains("You are a member"));

    // Another address than the one that was invited is told so; whoever is in the Team keeps its role.
    let link = invited(&mut adas, &team, "grace@example.test", "owner").await;
    let page = opened(&mut eves, &link).await;
    assert!(page.text.contains("was made for <strong>grace@example.test</strong>"), "{}", page.text);
    assert_eq!(eves.submit(&page, join, &[]).await.led_to(), led_to);
    assert!(eves.get(&team).await.text.contains("You are a member"));
    let shown = eves.submit(&page, join, &[]).await;
    assert_eq!(shown.led_to(), led_to);
}

/// Roles are the host's own rules beside the policy's: only owners make, change and remove owners.
///
/// covers: last_owner
#[both_engines]
async fn roles_decide_who_changes_a_team(engine: Engine) {
    let host = TestHost::start(engine).await;
    let (ada, alan, eve) = (host.person("ada").await, host.person("alan").await, host.person("eve").await);
    let id = host.team("Lab", &ada).await;
    host.join(id, &alan, Role::Admin).await;
    host.join(id, &eve, Role::Member).await;
    let team = format!("/dashboard/{id}/team");
    let mut adas = Tab::with_password(&host, ada.account_id).await;
    let mut alans = Tab::with_password(&host, alan.account_id).await;
    let mut eves = Tab::with_password(&host, eve.account_id).await;

    assert_eq!(act(&mut alans, &team, &ada, "role", &[("role", "member")]).await, "403 team_role_forbidden");
    assert_eq!(act(&mut alans, &team, &eve, "role", &[("role", "owner")]).await, "403 team_role_forbidden");
    assert_eq!(act(&mut alans, &team, &ada, "remove", &[]).await, "403 team_role_forbidden");
    let page = alans.get(&team).await;
    let invite = format!("{team}/invitations");
    let shown = alans.submit(&page, &invite, &[("email", "joe@example.test"), ("role", "owner")]).await;
    assert_eq!(shown.outcome(), "403 team_role_forbidden");
    assert!(!page.text.contains(&format!("action=\"{team}/delete\"")), "an admin is not offered it");
    // A member is offered nothing, and refused by the policy, which the page names.
    let page = eves.get(&team).await;
    assert!(!page.text.contains(&format!("{team}/members")) && !page.text.contains(&format!("action=\"{invite}\"")));
    let role = format!("role-{}", eve.account_id);
    for (path, fields) in [
        (format!("{team}/members/{}/remove", alan.account_id), vec![]),
        (format!("{team}/members/{}/role", eve.account_id), vec![(role.as_str(), "admin")]),
        (invite.clone(), vec![("email", "joe@example.test"), ("role", "member")]),
        (format!("{team}/name"), vec![("name", "Mine")]),
        (format!("{team}/delete"), vec![("confirm_name", "Lab")]),
    ] {
        let form = eves.made_up(&host, &path, &fields).await;
        let shown = eves.post(&path, &form).await;
        assert_eq!(shown.outcome(), "403 team_role_forbidden", "{path}: {}", shown.text);
        assert!(shown.text.contains("membership-changes"), "{path}: {}", shown.text);
    }

    assert_eq!(act(&mut alans, &team, &eve, "role", &[("role", "admin")]).await, "303 -");
    assert_eq!(act(&mut adas, &team, &alan, "role", &[("role", "owner")]).await, "303 -");
    assert_eq!(act(&mut adas, &team, &alan, "role", &[("role", "member")]).await, "303 -");
    let page = adas.get(&team).await;
    let leave = format!("{team}/leave");
    assert_eq!(adas.submit(&page, &leave, &[]).await.outcome(), "409 last_owner");

    // Whoever is removed is out at once, with its keys.
    let key = host.key(eve.account_id, id, "full_access").await;
    assert_eq!(host.api(&key.key).get("/tunnels").await.status, 200);
    assert_eq!(act(&mut adas, &team, &eve, "remove", &[]).await, "303 -");
    host.clock.advance(Duration::from_secs(2));
    assert_eq!(eves.get(&team).await.outcome(), "404 not_found");
    assert_eq!(host.api(&key.key).get("/tunnels").await.outcome(), "401 invalid_api_key");
    // What somebody has invited ends with its role: it knows the links.
    assert_eq!(act(&mut adas, &team, &alan, "role", &[("role", "admin")]).await, "303 -");
    let own = invited(&mut alans, &team, "mallory@example.test", "admin").await;
    assert_eq!(opened(&mut Tab::open(&host), &own).await.status, 200);
    assert_eq!(act(&mut adas, &team, &alan, "role", &[("role", "member")]).await, "303 -");
    assert_eq!(opened(&mut Tab::open(&host), &own).await.outcome(), "410 link_not_valid");
    // No policy is asked whether somebody may leave.
    let page = alans.get(&team).await;
    assert_eq!(alans.submit(&page, &leave, &[]).await.led_to(), "/dashboard");
    assert_eq!(alans.get(&team).await.outcome(), "404 not_found");
}

/// Before the Team is changed, the password is asked for once more.
#[both_engines]
async fn change_of_a_team_takes_a_password_just_typed(engine: Engine) {
    let host = TestHost::start(engine).await;
    let (ada, eve) = (host.person("ada").await, host.person("eve").await);
    let mut adas = Tab::with_password(&host, ada.account_id).await;
    let team = made(&mut adas, "Lab").await;
    let id: Uuid = team.split('/').nth(2).unwrap().parse().unwrap();
    host.join(id, &eve, Role::Member).await;
    let page = adas.get(&team).await;
    host.clock.advance(Duration::from_secs(601));
    let remove = format!("{team}/members/{}/remove", eve.account_id);
    let shown = adas.submit(&page, &remove, &[]).await;
    assert_eq!(shown.outcome(), "403 elevation_required");
    let confirm = "/dashboard/account/confirm";
    assert_eq!(adas.submit(&shown, confirm, &[("current_password", PASSWORD)]).await.led_to(), team);
    let page = adas.get(&team).await;
    assert_eq!(adas.submit(&page, &remove, &[]).await.led_to(), team);
}

#[both_engines]
async fn first_operator_is_set_up_once(engine: Engine) {
    let host = TestHost::start(engine).await;
    let former = links::offer_setup(&host.app.store).await.unwrap().unwrap();
    let link = links::offer_setup(&host.app.store).await.unwrap().unwrap();
    assert_eq!(
        opened(&mut Tab::open(&host), &former).await.outcome(),
        "410 link_not_valid",
        "a start ends the former link"
    );
    let mut tab = Tab::open(&host);
    let page = opened(&mut tab, &link).await;
    assert!(page.text.contains("<h1>Set up Culvert</h1>"), "{}", page.text);
    let shown = tab.submit(&page, BEGIN, &[("name", "Ada"), ("email", "ada"), ("password", PASSWORD)]).await;
    assert_eq!(shown.fault("email"), Some("must be an e-mail address with at most 254 characters"));
    // Of many at once, one succeeds.
    let tries = (0..10).map(|number| {
        let (host, link) = (&host, &link);
        async move {
            let email = format!("ada{number}@example.test");
            let person = NewPerson { name: "Ada".into(), email, password: PASSWORD.into() };
            let dashboard = host.app.dashboard.as_ref().unwrap();
            // From many addresses, because five wrong links of one are too many.
            let client = Client { address: Some(std::net::IpAddr::from([10, 0, 0, number])), agent: String::new() };
            dashboard.sign_ins.begin(&host.app.service, link, person, &client).await.is_ok()
        }
    });
    assert_eq!(join_all(tries).await.into_iter().filter(|begun| *begun).count(), 1);
    assert_eq!(opened(&mut Tab::open(&host), &link).await.outcome(), "410 link_not_valid");
    assert!(links::offer_setup(&host.app.store).await.unwrap().is_none(), "somebody can sign in");
}

/// Where operators make accounts, an invitation is for who has one.
#[both_engines]
async fn invitation_makes_no_account_where_sign_up_is_off(engine: Engine) {
    let host = TestHost::with(engine, |config| config.dashboard.sign_up = SignUp::Off).await;
    let (ada, grace) = (host.person("ada").await, host.person("grace").await);
    let mut tab = Tab::with_password(&host, ada.account_id).await;
    let team = made(&mut tab, "Lab").await;
    let link = invited(&mut tab, &team, "grace@example.test", "member").await;
    let mut stranger = Tab::open(&host);
    let page = opened(&mut stranger, &link).await;
    assert!(page.text.contains("Operators make accounts here.") && !page.text.contains("Create account"));
    let key = host.app.service.form_key(FormId { sign_in: Uuid::nil(), path: BEGIN });
    let fields = [("form_key", key.as_str()), ("link", &link), ("name", "Eve"), ("password", PASSWORD)];
    let fields = fields.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(stranger.post(BEGIN, &fields).await.outcome(), "422 validation_failed");
    // The link is not used up.
    let mut hers = Tab::entered(&host, grace.account_id).await;
    let page = opened(&mut hers, &link).await;
    let joined = hers.submit(&page, "/dashboard/account/join", &[]).await;
    assert_eq!(joined.led_to(), team.strip_suffix("/team").unwrap());
    // The first operator makes an account all the same.
    let host = TestHost::with(engine, |config| config.dashboard.sign_up = SignUp::Off).await;
    let link = links::offer_setup(&host.app.store).await.unwrap().unwrap();
    let mut tab = Tab::open(&host);
    let page = opened(&mut tab, &link).await;
    let typed = [("name", "Ada"), ("email", "ada@example.test"), ("password", PASSWORD)];
    assert_eq!(tab.submit(&page, BEGIN, &typed).await.led_to(), "/dashboard");
}

/// An operator's sign-in is short.
#[both_engines]
async fn operator_is_signed_in_for_a_day_at_most(engine: Engine) {
    let host = TestHost::start(engine).await;
    let link = links::offer_setup(&host.app.store).await.unwrap().unwrap();
    let mut tab = Tab::open(&host);
    let page = opened(&mut tab, &link).await;
    let typed = [("name", "Ada"), ("email", "ada@example.test"), ("password", PASSWORD)];
    assert_eq!(tab.submit(&page, BEGIN, &typed).await.led_to(), "/dashboard");
    let mut idle = tab.clone();
    for _ in 0..23 {
        host.clock.advance(Duration::from_hours(1));
        assert_eq!(tab.get("/dashboard/me").await.status, 200);
    }
    host.clock.advance(Duration::from_hours(1));
    assert_eq!(tab.get("/dashboard/me").await.status, 303, "after a day");
    let page = tab.get("/dashboard/sign-in").await;
    let typed = [("email", "ada@example.test"), ("password", PASSWORD)];
    assert_eq!(idle.submit(&page, "/dashboard/sign-in", &typed).await.led_to(), "/dashboard");
    host.clock.advance(Duration::from_hours(2));
    assert_eq!(idle.get("/dashboard/me").await.status, 303, "after two hours without a request");
}

/// covers: last_operator
#[both_engines]
async fn serve_offers_a_link_to_the_first_operator(engine: Engine) {
    let place = Place::new(engine).await.set("RUST_LOG", "trace");
    let mut host = place.start_logged("culvert serve");
    let said = host.lines_until("the link in this file").await.join("\n");
    let link = std::fs::read_to_string(place.folder.path().join("culvert-data/setup-link")).unwrap();
    let secret = link.trim().strip_prefix("http://localhost:8080/dashboard/enter#").unwrap().to_owned();
    assert_eq!(secret.len(), 43);
    assert!(!said.contains(&secret), "the log has the path alone");
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(place.folder.path().join("culvert-data/setup-link")).unwrap().permissions(),
    );
    assert_eq!(mode & 0o777, 0o600);
    host.interrupt().await;
    // On a terminal it is shown, and kept nowhere.
    let mut terminal = place.command_of("script");
    let serve = format!("{} serve", Place::programs().join("culvert").display());
    let terminal = terminal.args(["-qfc", &serve, "/dev/null"]);
    let mut terminal = terminal.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut keys = terminal.stdin.take().unwrap();
    let mut lines = BufReader::new(terminal.stdout.take().unwrap()).lines();
    let shown = within(60, async {
        loop {
            let line = lines.next_line().await.unwrap().expect("it ended without a link");
            if line.contains("http://localhost:8080/dashboard/enter#") {
                return line;
            }
        }
    });
    assert!(!shown.await.contains(&secret), "a start ends the former link");
    assert!(!place.folder.path().join("culvert-data/setup-link").exists());
    // Ctrl-C ends it. What it logs until then is read, so that nothing waits for room in the terminal.
    keys.write_all(&[3]).await.unwrap();
    within(60, async { while lines.next_line().await.unwrap().is_some() {} }).await;
    within(60, terminal.wait()).await.unwrap();

    place.json("culvert account create --email ada@example.com --name Ada").await;
    let made = place.json("culvert account operator --email ada@example.com").await;
    assert_eq!(made["operator"], true);
    assert_eq!(
        crate::support::program::fails(&place, "culvert account operator --email ada@example.com --off").await,
        "1: culvert: The account is the only operator; make another one first."
    );
}
