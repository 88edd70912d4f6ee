//! The second factor of people who sign in: an authenticator app, recovery codes, and who must have one.

use std::process::Command;
use std::time::Duration;

use culvert_domain::audit_log::Actor;
use culvert_domain::sign_in::RequireSecondFactor;
use culvert_service::accounts;
use culvert_test_macros::both_engines;

use crate::support::host::{Engine, Person, TestHost};
use crate::support::program::{Place, fails};
use crate::support::tab::{PASSWORD, Shown, Tab};

const ACCOUNT: &str = "/dashboard/account";
const BEGIN: &str = "/dashboard/account/second-factor";
const CONFIRM: &str = "/dashboard/account/second-factor/confirm";
const NEW_CODES: &str = "/dashboard/account/second-factor/recovery-codes";
const OFF: &str = "/dashboard/account/second-factor/off";
const SIGN_IN: &str = "/dashboard/sign-in";
const CODE: &str = "/dashboard/sign-in/code";

/// An authenticator app: RFC 6238 by Python's standard library, for no test believes the host's own crate.
struct App(String);

const APP: &str = r#"
import base64, hmac, struct, sys
key = base64.b32decode(sys.argv[1])
digest = hmac.digest(key, struct.pack(">Q", int(sys.argv[2]) // 30), "sha1")
at = digest[-1] & 15
print("%06d" % ((int.from_bytes(digest[at:at + 4], "big") & 0x7fffffff) % 10**6), end="")
"#;

impl App {
    /// With the secret of the page, which is base32.
    fn of(page: &Shown) -> Self {
        let secret = page.text.split("<pre><code>").nth(1).expect("the secret is shown");
        Self(secret.split('<').next().unwrap().to_owned())
    }

    /// The code so many seconds from now.
    fn code(&self, host: &TestHost, after: i64) -> String {
        let at = (host.clock.now().timestamp() + after).to_string();
        let output = Command::new("python3").args(["-c", APP, &self.0, &at]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }
}

fn recovery_codes(page: &Shown) -> Vec<String> {
    let codes = page.text.split("<pre><code>").nth(1).expect("codes are shown").split('<').next().unwrap();
    codes.lines().map(str::to_owned).collect()
}

/// Somebody with a second factor: the tab, the app, and the recovery codes.
async fn set_up(host: &TestHost, person: &Person) -> (Tab, App, Vec<String>) {
    let mut tab = Tab::with_password(host, person.account_id).await;
    let page = tab.get(ACCOUNT).await;
    let page = tab.submit(&page, BEGIN, &[]).await;
    assert_eq!(page.status, 200, "{}", page.text);
    let app = App::of(&page);
    let shown = tab.submit(&page, CONFIRM, &[("code", &app.code(host, 0))]).await;
    assert_eq!(shown.status, 200, "{}", shown.text);
    (tab, app, recovery_codes(&shown))
}

/// Types the password; the page that asks for the code.
async fn with_password(tab: &mut Tab) -> Shown {
    let page = tab.get(SIGN_IN).await;
    let page = tab.submit(&page, SIGN_IN, &[("email", "ada@example.test"), ("password", PASSWORD)]).await;
    assert!(page.status == 200 && page.text.contains("<h1>Type the code</h1>"), "{}", page.text);
    assert!(tab.cookies.is_empty(), "a password alone signs nobody in");
    page
}

#[both_engines]
async fn code_is_asked_for_beside_the_password(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let mut other = Tab::with_password(&host, ada.account_id).await;
    let mut tab = Tab::with_password(&host, ada.account_id).await;
    let page = tab.get(ACCOUNT).await;
    let page = tab.submit(&page, BEGIN, &[]).await;
    assert!(page.text.contains("<svg class=\"qr\" viewBox=\"0 0 "), "{}", page.text);
    let app = App::of(&page);
    let wrong = tab.submit(&page, CONFIRM, &[("code", "000000")]).await;
    assert_eq!((wrong.outcome().as_str(), wrong.fault("code")), ("422 validation_failed", Some("is wrong")));
    // It can be typed again on the page that is shown.
    let shown = tab.submit(&wrong, CONFIRM, &[("code", &format!(" {} ", app.code(&host, 0)))]).await;
    assert_eq!(recovery_codes(&shown).len(), 10, "{}", shown.text);
    let again = tab.submit(&wrong, CONFIRM, &[("code", &format!(" {} ", app.code(&host, 0)))]).await;
    assert_eq!(recovery_codes(&again), recovery_codes(&shown), "a second click shows the same");
    assert_eq!(other.get("/dashboard/me").await.status, 303, "all other sign-ins have ended");

    // The step that was used is not good again; the one before is not, either.
    let mut stranger = Tab::open(&host);
    let page = with_password(&mut stranger).await;
    for code in [app.code(&host, 0), app.code(&host, -30), "000000".into(), String::new()] {
        assert_eq!(stranger.submit(&page, CODE, &[("code", &code)]).await.outcome(), "401 sign_in_required", "{code}");
    }
    host.clock.advance(Duration::from_mins(1));
    // A clock that is a step behind or ahead is near enough, two are not.
    assert_eq!(stranger.submit(&page, CODE, &[("code", &app.code(&host, 60))]).await.outcome(), "401 sign_in_required");
    // Five in five minutes, right ones among them.
    assert_eq!(stranger.submit(&page, CODE, &[("code", &app.code(&host, 0))]).await.outcome(), "429 rate_limited");
    host.clock.advance(Duration::from_mins(4));
    let page = with_password(&mut stranger).await;
    let code = app.code(&host, 30);
    assert_eq!(stranger.submit(&page, CODE, &[("code", &code)]).await.led_to(), "/dashboard");
    assert_eq!(stranger.get("/dashboard/me").await.status, 200);
    let mut again = Tab::open(&host);
    let page = with_password(&mut again).await;
    assert_eq!(again.submit(&page, CODE, &[("code", &code)]).await.outcome(), "401 sign_in_required");
    // The password is good for five minutes.
    host.clock.advance(Duration::from_secs(301));
    let late = again.submit(&page, CODE, &[("code", &app.code(&host, 0))]).await;
    assert!(late.outcome() == "401 sign_in_required" && late.text.contains("took too long"), "{}", late.text);
    let mut forged = page.form(CODE);
    forged.iter_mut().filter(|(name, _)| name == "ticket").for_each(|(_, ticket)| ticket.replace_range(..4, "AAAA"));
    forged.iter_mut().filter(|(name, _)| name == "code").for_each(|(_, code)| *code = app.code(&host, 0));
    assert_eq!(again.post(CODE, &forged).await.outcome(), "401 sign_in_required");
}

#[both_engines]
async fn recovery_code_is_good_once_and_a_link_needs_a_code_as_well(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let (mut tab, app, codes) = set_up(&host, &ada).await;
    assert!(tab.get(ACCOUNT).await.text.contains("10 recovery codes are left"));
    let mut lost = Tab::open(&host);
    let page = with_password(&mut lost).await;
    assert_eq!(lost.submit(&page, CODE, &[("code", &codes[3].to_uppercase())]).await.led_to(), "/dashboard");
    let mut again = Tab::open(&host);
    let page = with_password(&mut again).await;
    assert_eq!(again.submit(&page, CODE, &[("code", &codes[3])]).await.outcome(), "401 sign_in_required");
    assert!(tab.get(ACCOUNT).await.text.contains("9 recovery codes are left"));
    // New ones end those that are left; a reload shows the same.
    let page = tab.get(ACCOUNT).await;
    let newer = recovery_codes(&tab.submit(&page, NEW_CODES, &[]).await);
    assert_eq!(recovery_codes(&tab.submit(&page, NEW_CODES, &[]).await), newer);
    let page = with_password(&mut again).await;
    assert_eq!(again.submit(&page, CODE, &[("code", &codes[4])]).await.outcome(), "401 sign_in_required");
    assert_eq!(again.submit(&page, CODE, &[("code", &newer[0])]).await.led_to(), "/dashboard");

    let link = culvert_service::links::create(&host.app.store, ada.account_id).await.unwrap();
    let mut linked = Tab::open(&host);
    let page = linked.get("/dashboard/enter").await;
    let page = linked.submit(&page, "/dashboard/enter", &[("link", &link.secret)]).await;
    assert!(page.text.contains("<h1>Type the code</h1>") && linked.cookies.is_empty(), "{}", page.text);
    host.clock.advance(Duration::from_mins(1));
    assert_eq!(linked.submit(&page, CODE, &[("code", &app.code(&host, 0))]).await.led_to(), ACCOUNT);
    // Whoever came by a link has not shown that it knows the password.
    assert!(!linked.get(ACCOUNT).await.text.contains(&format!("action=\"{OFF}\"")));
}

#[both_engines]
async fn proof_takes_the_code_as_well_and_turns_the_factor_off(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let (mut tab, app, codes) = set_up(&host, &ada).await;
    let page = tab.get(ACCOUNT).await;
    host.clock.advance(Duration::from_secs(601));
    assert_eq!(tab.submit(&page, OFF, &[]).await.outcome(), "403 elevation_required");
    let page = tab.get(ACCOUNT).await;
    let confirm = "/dashboard/account/confirm";
    let shown = tab.submit(&page, confirm, &[("current_password", PASSWORD), ("code", "000000")]).await;
    assert_eq!((shown.status, shown.fault("code")), (422, Some("is wrong, or was used before")));
    let typed = [("current_password", PASSWORD), ("code", &app.code(&host, 0))];
    assert_eq!(tab.submit(&page, confirm, &typed).await.led_to(), ACCOUNT);
    // New recovery codes and the end of the factor end all others; the end leaves no use to a copy of the cookie.
    for path in [NEW_CODES, OFF] {
        host.clock.advance(Duration::from_mins(1));
        let (copy, mut other) = (tab.clone(), Tab::open(&host));
        let page = with_password(&mut other).await;
        assert_eq!(other.submit(&page, CODE, &[("code", &app.code(&host, 0))]).await.led_to(), "/dashboard");
        let page = tab.get(ACCOUNT).await;
        assert!(tab.submit(&page, path, &[]).await.status < 400, "{path}");
        assert_eq!((tab.is_in().await, other.is_in().await), (true, false), "{path}");
        assert_eq!(copy.is_in().await, path == NEW_CODES, "{path}");
    }
    let mut plain = Tab::open(&host);
    let page = plain.get(SIGN_IN).await;
    let typed = [("email", "ada@example.test"), ("password", PASSWORD)];
    assert_eq!(plain.submit(&page, SIGN_IN, &typed).await.led_to(), "/dashboard");
    assert_eq!(codes.len(), 10);
}

/// covers: second_factor_required
#[both_engines]
async fn second_factor_is_required_of_operators_or_of_all(engine: Engine) {
    for (required, of_ada, of_eve) in [
        (RequireSecondFactor::Never, "200 -", "200 -"),
        (RequireSecondFactor::Operators, "403 second_factor_required", "200 -"),
        (RequireSecondFactor::All, "403 second_factor_required", "403 second_factor_required"),
    ] {
        let host = TestHost::with(engine, |config| config.dashboard.require_second_factor = required).await;
        let (ada, eve) = (host.person("ada").await, host.person("eve").await);
        accounts::set_operator(&host.app.store, ada.account_id, true, Actor::CLI).await.unwrap();
        let mut adas = Tab::with_password(&host, ada.account_id).await;
        let mut eves = Tab::with_password(&host, eve.account_id).await;
        let of_operators = "/dashboard/operator/policies";
        assert_eq!(adas.get(of_operators).await.outcome(), of_ada, "{required:?}");
        assert_eq!(eves.get("/dashboard/me").await.outcome(), of_eve, "{required:?}");
        assert_eq!((adas.get(ACCOUNT).await.status, eves.get(ACCOUNT).await.status), (200, 200));
        let (mut adas, _, _) = set_up(&host, &ada).await;
        assert_eq!(adas.get(of_operators).await.status, 200, "{required:?}");
    }
}

/// Whoever has lost the app and the recovery codes begins anew with a link of the server.
#[both_engines]
async fn account_is_recovered_on_the_server(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let (mut tab, _, _) = set_up(&host, &ada).await;
    let former = culvert_service::links::create(&host.app.store, ada.account_id).await.unwrap();
    let link = culvert_service::links::recover(&host.app.store, ada.account_id).await.unwrap();
    host.clock.advance(Duration::from_secs(2));
    assert_eq!(tab.get("/dashboard/me").await.status, 303, "all sign-ins have ended");
    let page = tab.get(SIGN_IN).await;
    let typed = [("email", "ada@example.test"), ("password", PASSWORD)];
    assert_eq!(tab.submit(&page, SIGN_IN, &typed).await.outcome(), "401 sign_in_required", "the password has ended");
    let page = tab.get("/dashboard/enter").await;
    assert_eq!(
        tab.submit(&page, "/dashboard/enter", &[("link", &former.secret)]).await.outcome(),
        "410 link_not_valid"
    );
    assert_eq!(tab.submit(&page, "/dashboard/enter", &[("link", &link.secret)]).await.led_to(), ACCOUNT);
    assert!(tab.get(ACCOUNT).await.text.contains("a code is asked for beside the password"));

    let place = Place::new(engine).await;
    place.json("culvert account create --email ada@example.com --name Ada").await;
    let made = place.json("culvert account recover --email ada@example.com").await;
    assert!(made["url"].as_str().unwrap().starts_with("http://localhost:8080/dashboard/enter#"));
    let unknown = fails(&place, "culvert account recover --email eve@example.com").await;
    assert_eq!(unknown, "1: culvert: there is no account eve@example.com; `culvert account create` makes one");
}
