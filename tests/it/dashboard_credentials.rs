//! What becomes of sign-ins and passwords when credentials are used or changed.

use culvert_test_macros::both_engines;

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
