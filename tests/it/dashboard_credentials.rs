//! What becomes of sign-ins and passwords when credentials are used or changed.

use std::collections::BTreeMap;
use std::time::Duration;

use culvert_test_macros::both_engines;

use crate::dashboard::is_sound;
use crate::support::database::{execute_script, rows};
use crate::support::host::{Engine, TestHost};
use crate::support::tab::{PASSWORD, Tab};

/// What elevates and what changes the credentials gives the sign-in another value: a copy of the cookie is of no use any more,
/// and after a change of credentials nor are the others.
#[both_engines]
async fn copied_cookie_ends_with_each_proof_and_each_change_of_credentials(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let mut tab = Tab::entered(&host, ada.account_id).await;
    for (path, ends_others, typed) in [
        ("/dashboard/account/password", true, [("password", PASSWORD)]),
        ("/dashboard/account/confirm", false, [("current_password", PASSWORD)]),
        ("/dashboard/account/password", true, [("password", "other gravel lantern 17")]),
    ] {
        let (copy, other) = (tab.clone(), Tab::entered(&host, ada.account_id).await);
        let form = tab.made_up(&host, path, &typed).await;
        let shown = tab.post(path, &form).await;
        assert_eq!(shown.status, 303, "{path}: {}", shown.text);
        assert_eq!((tab.is_in().await, copy.is_in().await), (true, false), "{path}");
        assert_eq!(other.is_in().await, !ends_others, "{path}");
    }
}

/// A password whose hash was made with less work gets a new hash when it is used.
#[both_engines]
async fn hash_of_a_password_is_made_anew_when_its_parameters_have_risen(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    Tab::with_password(&host, ada.account_id).await;
    let url = host.config().database_url();
    let stored = async || rows(&url, "passwords", &["hash".into()]).await[0]["hash"].to_string();
    let of_today = stored().await;
    Tab::signed_in(&host, "ada@example.test").await;
    assert_eq!(stored().await, of_today, "nothing is to be done");
    // Of `PASSWORD`, by argon2-cffi.
    let weak = "$argon2id$v=19$m=8192,t=1,p=1$BwcHBwcHBwcHBwcHBwcHBw$9Xjuo8FPpDePmnfoARkilOX4jwHtVVJOr4S003l0Qfk";
    execute_script(&url, &format!("UPDATE passwords SET hash = '{weak}'")).await;
    for _ in 0..2 {
        Tab::signed_in(&host, "ada@example.test").await;
        let now = stored().await;
        assert!(now.starts_with("\"$argon2id$v=19$m=19456,t=2,p=1$"), "{now}");
    }
}

/// A form that needs a proof which has become too old goes along with the question, and is shown filled in afterwards; passwords in it
/// are not kept, and nobody else opens it.
#[both_engines]
async fn form_waits_while_somebody_proves_who_they_are(engine: Engine) {
    let host = TestHost::start(engine).await;
    let (ada, eve) = (host.person("ada").await, host.person("eve").await);
    let team = host.team("Lab", &ada).await;
    let mut tab = Tab::with_password(&host, ada.account_id).await;
    let (list, path) = (format!("/dashboard/{team}/team"), format!("/dashboard/{team}/team/invitations"));
    let confirm = "/dashboard/account/confirm";
    let page = tab.get(&list).await;
    host.clock.advance(Duration::from_mins(10));
    let invited = [("email", "grace@example.test"), ("role", "admin"), ("password", "of no use here")];
    let asked = tab.submit(&page, &path, &invited).await;
    assert_eq!(asked.outcome(), "403 elevation_required");
    assert!(!asked.text.contains("grace@example.test"), "it is sealed");
    let wrong = tab.submit(&asked, confirm, &[("current_password", "wrong")]).await;
    assert_eq!(wrong.outcome(), "422 validation_failed");

    let copy = tab.clone();
    assert!(wrong.form(confirm).iter().any(|(name, _)| name == "held_form"), "a wrong password does not lose it");
    let held = asked.form(confirm).into_iter().find(|(name, _)| name == "held_form").expect("it goes along").1;
    let shown = tab.submit(&asked, confirm, &[("current_password", PASSWORD)]).await;
    assert_eq!(shown.status, 200, "{}", shown.text);
    is_sound(&list, &shown);
    assert!(shown.text.contains("You have proved who you are"), "{}", shown.text);
    assert_eq!((tab.is_in().await, copy.is_in().await), (true, false), "the proof has renewed the sign-in");
    let filled: BTreeMap<String, String> = shown.form(&path).into_iter().collect();
    assert_eq!((&*filled["email"], &*filled["role"]), ("grace@example.test", "admin"));
    assert!(!filled.contains_key("password"));
    assert_eq!(tab.submit(&shown, &path, &[]).await.status, 200);
    assert!(tab.get(&list).await.text.contains("grace@example.test"));

    // Another's sign-in opens nothing, and what took too long is gone; who they are is proved all the same.
    let mut eves = Tab::with_password(&host, eve.account_id).await;
    let form = eves.made_up(&host, confirm, &[("current_password", PASSWORD), ("held_form", &held)]).await;
    assert_eq!(eves.post(confirm, &form).await.led_to(), "/dashboard");
    host.clock.advance(Duration::from_mins(10));
    let form = tab.made_up(&host, confirm, &[("current_password", PASSWORD), ("held_form", &held)]).await;
    assert_eq!(tab.post(confirm, &form).await.led_to(), "/dashboard");
}
