//! Accounts that people make by themselves, with a link that is mailed to them.

use culvert_domain::sign_in::SignUp;
use culvert_service::forms::FormId;
use culvert_test_macros::both_engines;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::dashboard::is_sound;
use crate::mail::{MailServer, link, open};
use crate::support::database::count;
use crate::support::host::{Engine, TestHost};
use crate::support::tab::{PASSWORD, Shown, Tab};

const SIGN_UP: &str = "/dashboard/sign-up";
const BEGIN: &str = "/dashboard/enter/account";

async fn ask(host: &TestHost, email: &str) -> Shown {
    let mut tab = Tab::open(host);
    let page = tab.get(SIGN_UP).await;
    is_sound(SIGN_UP, &page);
    tab.submit(&page, SIGN_UP, &[("email", email)]).await
}

#[both_engines]
async fn whoever_opens_the_mailed_link_makes_an_account(engine: Engine) {
    let mut server = MailServer::start(&[]).await;
    let host = server.host_with(engine, |config| config.dashboard.sign_up = SignUp::Open).await;
    let ada = host.person("ada").await;
    assert!(Tab::open(&host).get("/dashboard/sign-in").await.text.contains(&format!("href=\"{SIGN_UP}\"")));
    let wrong = ask(&host, "nobody").await;
    assert_eq!(wrong.outcome(), "422 validation_failed");
    assert!(wrong.fault("email").is_some(), "{}", wrong.text);
    let shown = ask(&host, " New@example.test ").await;
    assert!(shown.text.contains("on its way to <strong>New@example.test</strong>"), "{}", shown.text);
    let mail = server.next().await;
    assert_eq!(
        (&mail["to"][0], &mail["headers"]["subject"]),
        (&"new@example.test".into(), &"Your account for Culvert".into())
    );
    // A newer link is in the place of the older one.
    let older = link(&mail);
    ask(&host, "new@example.test").await;
    let newer = link(&server.next().await);
    assert_eq!(open(&host, &older).await.outcome(), "410 link_not_valid");

    let mut tab = Tab::open(&host);
    let page = tab.get("/dashboard/enter").await;
    let page = tab.submit(&page, "/dashboard/enter", &[("link", &newer)]).await;
    is_sound("/dashboard/enter", &page);
    assert!(page.text.contains("You sign in with <strong>new@example.test</strong>"), "{}", page.text);
    let weak = tab.submit(&page, BEGIN, &[("name", "Nova"), ("password", "password1234")]).await;
    assert!(weak.fault("password").is_some(), "{}", weak.text);
    let begun = tab.submit(&weak, BEGIN, &[("name", "Nova"), ("password", PASSWORD)]).await;
    assert_eq!(begun.led_to(), "/dashboard", "{}", begun.text);
    assert!(tab.get("/dashboard/me/audit").await.text.contains("accounts.create"));
    // It operates nothing, and its link is used up.
    assert_eq!(tab.get("/dashboard/operator/accounts").await.status, 404);
    assert_eq!(open(&host, &newer).await.outcome(), "410 link_not_valid");

    // Whoever has an account gets a link to that; the page says the same.
    let shown = ask(&host, "ada@example.test").await;
    assert!(shown.text.contains("on its way to <strong>ada@example.test</strong>"), "{}", shown.text);
    let entered = open(&host, &link(&server.next().await)).await;
    assert_eq!(entered.led_to(), "/dashboard/account", "{}", ada.account_id);
    assert_eq!(count(&host.config().database_url(), "accounts").await, 2);
}

#[both_engines]
async fn link_for_an_account_ends_after_a_day_and_links_of_an_address_are_few(engine: Engine) {
    let mut server = MailServer::start(&[]).await;
    let host = server.host_with(engine, |config| config.dashboard.sign_up = SignUp::Open).await;
    ask(&host, "new@example.test").await;
    let secret = link(&server.next().await);
    host.clock.advance(std::time::Duration::from_hours(24));
    assert_eq!(open(&host, &secret).await.outcome(), "410 link_not_valid");
    host.app.store.prune().await.unwrap();
    assert_eq!(count(&host.config().database_url(), "sign_ups").await, 0);
    for number in 0..5 {
        assert_eq!(ask(&host, &format!("{number}@example.test")).await.status, 200, "{number}");
    }
    assert_eq!(ask(&host, "6@example.test").await.outcome(), "429 rate_limited");
}

/// Whoever invites sees the link, so where everybody may invite, an invitation makes no account; it is good for who has one.
#[both_engines]
async fn invitation_makes_no_account_where_sign_up_is_open(engine: Engine) {
    let mut server = MailServer::start(&[]).await;
    let host = server.host_with(engine, |config| config.dashboard.sign_up = SignUp::Open).await;
    let ada = host.person("ada").await;
    let team = host.team("Lab", &ada).await;
    let mut tab = Tab::with_password(&host, ada.account_id).await;
    let (list, path) = (format!("/dashboard/{team}/team"), format!("/dashboard/{team}/team/invitations"));
    let page = tab.get(&list).await;
    let invited = tab.submit(&page, &path, &[("email", "ceo@example.test"), ("role", "member")]).await;
    server.next().await;
    let mut mallory = Tab::open(&host);
    let page = mallory.get("/dashboard/enter").await;
    let page = mallory.submit(&page, "/dashboard/enter", &[("link", &invited.link())]).await;
    is_sound("/dashboard/enter", &page);
    assert!(page.text.contains(SIGN_UP) && !page.text.contains(&format!("action=\"{BEGIN}\"")), "{}", page.text);
    let key = host.app.service.form_key(FormId { sign_in: Uuid::nil(), path: BEGIN });
    let form = [("form_key", key), ("link", invited.link()), ("name", "M".into()), ("password", PASSWORD.into())];
    let form: Vec<(String, String)> = form.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    let refused = mallory.post(BEGIN, &form).await;
    assert_eq!(refused.outcome(), "422 validation_failed");
    assert_eq!(count(&host.config().database_url(), "accounts").await, 1);
}

/// Unless it is open, there is no such page, and a link from before makes no account.
#[both_engines]
async fn nobody_makes_an_account_where_sign_up_is_not_open(engine: Engine) {
    let host = TestHost::start(engine).await;
    let mut tab = Tab::open(&host);
    assert!(!tab.get("/dashboard/sign-in").await.text.contains(SIGN_UP));
    assert_eq!(tab.get(SIGN_UP).await.led_to(), "/dashboard/sign-in");
    let secret = culvert_service::links::new_secret(&host.clock);
    let hash: [u8; 32] = Sha256::digest(&secret).into();
    let until = host.clock.now() + chrono::TimeDelta::hours(1);
    let write = host.app.store.write(None, move |write| {
        Box::pin(async move { write.replace_sign_up(&hash, "new@example.test", until).await })
    });
    write.await.unwrap();
    assert_eq!(open(&host, &secret).await.outcome(), "410 link_not_valid");
}
