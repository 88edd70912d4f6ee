//! Passkeys: added, used to sign in, refused and removed.

use std::time::Duration;

use culvert_domain::audit_log::Actor;
use culvert_service::accounts;
use culvert_test_macros::both_engines;

use crate::dashboard::is_sound;
use crate::support::authenticator::{Asked, Authenticator};
use crate::support::host::{Engine, Person, TestHost};
use crate::support::tab::{PASSWORD, Shown, Tab};

const ACCOUNT: &str = "/dashboard/account";
const PASSKEYS: &str = "/dashboard/account/passkeys";
const CONFIRM: &str = "/dashboard/account/confirm-by-passkey";
const SIGN_IN: &str = "/dashboard/sign-in";
const BY_PASSKEY: &str = "/dashboard/sign-in/passkey";

/// Adds a passkey by the form of the account's page.
async fn add(tab: &mut Tab, authenticator: &mut Authenticator, name: &str) -> Shown {
    let page = tab.get(ACCOUNT).await;
    is_sound(ACCOUNT, &page);
    let answer = authenticator.create(&Asked::of(&page, PASSKEYS));
    tab.submit(&page, PASSKEYS, &[("name", name), ("answer", &answer)]).await
}

/// Signs in on a page that was opened before.
async fn answer(tab: &mut Tab, page: &Shown, authenticator: &mut Authenticator) -> Shown {
    let answer = authenticator.get(&Asked::of(page, BY_PASSKEY));
    tab.submit(page, BY_PASSKEY, &[("answer", &answer)]).await
}

async fn sign_in(host: &TestHost, authenticator: &mut Authenticator) -> (Tab, Shown) {
    let mut tab = Tab::open(host);
    let page = tab.get(SIGN_IN).await;
    let shown = answer(&mut tab, &page, authenticator).await;
    (tab, shown)
}

/// Where the button that removes the first passkey leads.
fn first_removal(page: &Shown) -> String {
    let mut paths = page.text.split("action=\"").map(|rest| rest.split('"').next().unwrap());
    paths.find(|path| path.ends_with("/remove")).unwrap().to_owned()
}

async fn with_passkey(host: &TestHost) -> (Person, Tab, Authenticator) {
    let ada = host.person("ada").await;
    let mut tab = Tab::with_password(host, ada.account_id).await;
    let mut authenticator = Authenticator::new();
    assert_eq!(add(&mut tab, &mut authenticator, "telephone").await.led_to(), ACCOUNT);
    (ada, tab, authenticator)
}

/// Wrong passwords make nobody wait who has a passkey.
#[both_engines]
async fn passkey_is_taken_whatever_passwords_were_tried(engine: Engine) {
    let host = TestHost::start(engine).await;
    let (_, _, mut authenticator) = with_passkey(&host).await;
    let mut stranger = Tab::open(&host);
    let page = stranger.get(SIGN_IN).await;
    let wrong = [("email", "ada@example.test"), ("password", "wrong")];
    while stranger.submit(&page, SIGN_IN, &wrong).await.status != 429 {}
    assert_eq!(sign_in(&host, &mut authenticator).await.1.led_to(), "/dashboard");
}

#[both_engines]
async fn passkey_signs_in_without_password_and_code(engine: Engine) {
    let host = TestHost::with(engine, |config| {
        config.dashboard.require_second_factor = culvert_domain::sign_in::RequireSecondFactor::Operators;
    })
    .await;
    let ada = host.person("ada").await;
    accounts::set_operator(&host.app.store, ada.account_id, true, Actor::CLI).await.unwrap();
    let mut tab = Tab::with_password(&host, ada.account_id).await;
    let mut other = Tab::entered(&host, ada.account_id).await;
    let mut authenticator = Authenticator::new();
    // Names are checked, and a refused form is shown again.
    let refused = add(&mut tab, &mut authenticator, "").await;
    assert!(refused.fault("name").is_some(), "{}", refused.text);
    assert_eq!(add(&mut tab, &mut authenticator, "telephone").await.led_to(), ACCOUNT);
    assert_eq!(other.get(ACCOUNT).await.status, 303, "other sign-ins end");
    assert!(tab.get(ACCOUNT).await.text.contains("telephone"));

    let (mut by_passkey, shown) = sign_in(&host, &mut authenticator).await;
    assert_eq!(shown.led_to(), "/dashboard");
    let account = by_passkey.get(ACCOUNT).await;
    assert!(account.text.contains("<td>passkey</td>"), "{}", account.text);
    // It is both factors in one, and has just proved who it is.
    assert_eq!(by_passkey.get("/dashboard/operator/accounts").await.status, 200);
    assert_eq!(tab.get("/dashboard/operator/accounts").await.outcome(), "403 second_factor_required");
    // Whoever knows the password alone gets no further by it, and adds no passkey of their own.
    let mut knows_password = Tab::open(&host);
    let page = knows_password.get(SIGN_IN).await;
    let typed = [("email", "ada@example.test"), ("password", PASSWORD)];
    assert_eq!(knows_password.submit(&page, SIGN_IN, &typed).await.led_to(), "/dashboard");
    let page = knows_password.get(ACCOUNT).await;
    assert!(!page.text.contains(PASSKEYS) && !page.text.contains("current_password"), "{}", page.text);
    let confirm = "/dashboard/account/confirm";
    let form = knows_password.made_up(&host, confirm, &[("current_password", PASSWORD)]).await;
    assert_eq!(knows_password.post(confirm, &form).await.outcome(), "422 validation_failed");
    let form = knows_password.made_up(&host, PASSKEYS, &[("name", "another")]).await;
    assert_eq!(knows_password.post(PASSKEYS, &form).await.outcome(), "403 elevation_required");
    let mut came_by_link = Tab::entered(&host, ada.account_id).await;
    let form = came_by_link.made_up(&host, "/dashboard/account/password", &[("password", PASSWORD)]).await;
    assert_eq!(came_by_link.post("/dashboard/account/password", &form).await.outcome(), "403 elevation_required");
    let keys = by_passkey.get("/dashboard/me/keys").await;
    let typed = [("name", "k"), ("scopes", "read_only"), ("days", "")];
    assert_eq!(by_passkey.submit(&keys, "/dashboard/me/keys", &typed).await.status, 200);
    // Ten minutes later, it proves that once more; somebody else's does not.
    host.clock.advance(Duration::from_mins(10));
    let page = by_passkey.get("/dashboard/me/keys").await;
    let right = authenticator.get(&Asked::of(&page, CONFIRM));
    let bob = host.person("bob").await;
    let mut his = Authenticator::new();
    assert_eq!(add(&mut Tab::with_password(&host, bob.account_id).await, &mut his, "his").await.led_to(), ACCOUNT);
    let wrong = his.get(&Asked::of(&page, CONFIRM));
    let shown = by_passkey.submit(&page, CONFIRM, &[("answer", &wrong)]).await;
    assert_eq!(shown.outcome(), "422 validation_failed");
    let mut elsewhere = sign_in(&host, &mut authenticator).await.0;
    let its_page = elsewhere.get("/dashboard/me/tunnels").await;
    assert!(!its_page.text.contains(CONFIRM));
    let shown = by_passkey.submit(&page, CONFIRM, &[("answer", &right)]).await;
    assert_eq!(shown.outcome(), "422 validation_failed", "the passkey was used since");
    let right = authenticator.get(&Asked::of(&page, CONFIRM));
    let shown = by_passkey.submit(&page, CONFIRM, &[("answer", &right)]).await;
    assert_eq!(shown.led_to(), "/dashboard/me/keys");
    let keys = by_passkey.get("/dashboard/me/keys").await;
    assert!(keys.text.contains("Make key"), "{}", keys.text);
}

/// Whatever is not as it should be: the origin, the challenge, the person, the counter, the key, the time.
#[both_engines]
async fn passkey_that_is_not_right_is_refused(engine: Engine) {
    let host = TestHost::start(engine).await;
    let (_, _, mut authenticator) = with_passkey(&host).await;
    let refused = "401 sign_in_required";
    let mut tab = Tab::open(&host);
    let page = tab.get(SIGN_IN).await;
    let later = tab.get(SIGN_IN).await;

    authenticator.origin = "https://tunnel.example.test".into();
    assert_eq!(answer(&mut tab, &page, &mut authenticator).await.outcome(), refused, "another origin");
    authenticator.origin = crate::support::tab::SITE.into();
    authenticator.verifies = false;
    assert_eq!(answer(&mut tab, &page, &mut authenticator).await.outcome(), refused, "a person who was not verified");
    authenticator.verifies = true;
    let other_challenge = authenticator.get(&Asked::of(&later, BY_PASSKEY));
    let shown = tab.submit(&page, BY_PASSKEY, &[("answer", &other_challenge)]).await;
    assert_eq!(shown.outcome(), refused, "another challenge");
    let mut stranger = Authenticator::new();
    assert_eq!(answer(&mut tab, &page, &mut stranger).await.outcome(), refused, "a passkey that nobody has");
    for nonsense in ["", "{}", "\u{0}", &"[".repeat(10_000)] {
        let shown = tab.submit(&page, BY_PASSKEY, &[("answer", nonsense)]).await;
        assert_eq!(shown.outcome(), refused, "{nonsense:.20}");
    }

    // The right one is good once, and a copy of the key is noticed by its counter.
    let right = authenticator.get(&Asked::of(&page, BY_PASSKEY));
    assert_eq!(tab.clone().submit(&page, BY_PASSKEY, &[("answer", &right)]).await.led_to(), "/dashboard");
    let shown = tab.clone().submit(&page, BY_PASSKEY, &[("answer", &right)]).await;
    assert_eq!(shown.outcome(), refused, "a second time");
    authenticator.counter -= 1;
    assert_eq!(answer(&mut tab, &later, &mut authenticator).await.outcome(), refused, "a counter that has not grown");
    // Ten of one address are too many.
    assert_eq!(answer(&mut tab, &later, &mut authenticator).await.outcome(), "429 rate_limited");
    host.clock.advance(Duration::from_mins(5));
    assert_eq!(answer(&mut tab, &later, &mut authenticator).await.outcome(), "403 form_expired", "after five minutes");
    assert_eq!(sign_in(&host, &mut authenticator).await.1.led_to(), "/dashboard");
}

/// covers: last_credential
#[both_engines]
async fn passkeys_are_limited_removed_and_recovered_from(engine: Engine) {
    let host = TestHost::start(engine).await;
    let (ada, mut tab, mut authenticator) = with_passkey(&host).await;
    // The same one twice, somebody else's, and an eleventh.
    let page = tab.get(ACCOUNT).await;
    let again = authenticator.create(&Asked::of(&page, PASSKEYS));
    let shown = tab.submit(&page, PASSKEYS, &[("name", "again"), ("answer", &again)]).await;
    assert_eq!(shown.outcome(), "422 validation_failed");
    let bob = host.person("bob").await;
    let mut his = Tab::with_password(&host, bob.account_id).await;
    let shown = his.submit(&his.clone().get(ACCOUNT).await, PASSKEYS, &[("name", "hers"), ("answer", &again)]).await;
    assert_eq!(shown.outcome(), "422 validation_failed");
    for number in 2..=10 {
        let added = add(&mut tab, &mut Authenticator::new(), &format!("{number}")).await;
        assert_eq!(added.led_to(), ACCOUNT, "{number}");
    }
    assert_eq!(add(&mut tab, &mut Authenticator::new(), "11").await.outcome(), "409 limit_reached");

    // A removed one signs nobody in; removing it again changes nothing.
    let page = tab.get(ACCOUNT).await;
    let remove = first_removal(&page);
    let (copy, other) = (tab.clone(), sign_in(&host, &mut authenticator).await.0);
    assert!(copy.is_in().await && other.is_in().await);
    for _ in 0..2 {
        assert_eq!(tab.submit(&page, &remove, &[]).await.led_to(), ACCOUNT);
        assert_eq!((tab.is_in().await, copy.is_in().await, other.is_in().await), (true, false, false));
    }
    assert_eq!(sign_in(&host, &mut authenticator).await.1.outcome(), "401 sign_in_required");

    // Recovery ends them all. Without a password the last one stays.
    let link = culvert_service::links::recover(&host.app.store, ada.account_id).await.unwrap();
    let mut tab = Tab::open(&host);
    let page = tab.get("/dashboard/enter").await;
    assert_eq!(tab.submit(&page, "/dashboard/enter", &[("link", &link.secret)]).await.led_to(), ACCOUNT);
    let page = tab.get(ACCOUNT).await;
    assert!(!page.text.contains("aria-label=\"Passkeys\""), "{}", page.text);
    let shown = tab.submit(&page, "/dashboard/account/password", &[("password", PASSWORD)]).await;
    assert_eq!(shown.led_to(), "/dashboard");
    assert_eq!(add(&mut tab, &mut authenticator, "new").await.led_to(), ACCOUNT);
    crate::support::database::execute(&host, "DELETE FROM passwords").await;
    let (mut tab, shown) = sign_in(&host, &mut authenticator).await;
    assert_eq!(shown.led_to(), "/dashboard");
    let page = tab.get(ACCOUNT).await;
    let remove = first_removal(&page);
    assert_eq!(tab.submit(&page, &remove, &[]).await.outcome(), "409 last_credential");
}
