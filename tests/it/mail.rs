//! Mail, taken by an SMTP server that nobody here wrote (aiosmtpd).

use std::process::Stdio;
use std::time::Duration;

use culvert::config::Config;
use culvert_dashboard::Dashboard;
use culvert_domain::audit_log::Actor;
use culvert_service::accounts;
use culvert_test_macros::both_engines;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout};

use crate::support::database::count;
use crate::support::host::{Engine, TestHost, within};
use crate::support::program::python;
use crate::support::tab::{PASSWORD, Shown, Tab};

const ASK: &str = "/dashboard/sign-in/link";

/// A server for mail. Dropping it ends it.
pub struct MailServer {
    pub port: u16,
    lines: Lines<BufReader<ChildStdout>>,
    _program: Child,
}

impl MailServer {
    /// Answers the first recipients with these codes, or takes mail over TLS.
    pub async fn start(options: &[&str]) -> Self {
        let mut program = python("mail_server.py").args(options).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
        let port = within(60, lines.next_line()).await.unwrap().expect("the server has ended");
        Self { port: port.parse().unwrap(), lines, _program: program }
    }

    async fn host(&self, engine: Engine) -> TestHost {
        self.host_with(engine, |_| {}).await
    }

    pub async fn host_with(&self, engine: Engine, change: impl FnOnce(&mut Config)) -> TestHost {
        TestHost::with(engine, |config| {
            change(config);
            config.mail.smtp_url = Some(format!("smtp://127.0.0.1:{}", self.port));
            config.mail.from = Some("Culvert <culvert@example.test>".into());
        })
        .await
    }

    /// The next mail, or that one was refused.
    pub async fn next(&mut self) -> Value {
        let line = within(30, self.lines.next_line()).await.unwrap().expect("the server has ended");
        serde_json::from_str(&line).unwrap()
    }
}

/// Mails that wait to be sent.
async fn waiting(host: &TestHost) -> i64 {
    count(&host.config().database_url(), "mails").await
}

/// When the next mail is tried.
async fn due(host: &TestHost) -> Option<chrono::DateTime<chrono::Utc>> {
    host.app.store.next_mail().await.unwrap()
}

/// The secret of the link in a mail.
pub fn link(mail: &Value) -> String {
    let text = mail["text"].as_str().unwrap();
    let line = text.lines().find(|line| line.contains("/dashboard/enter#")).unwrap_or_else(|| panic!("{text}"));
    line.split_once('#').unwrap().1.to_owned()
}

/// Opens a link in a browser of nobody.
pub async fn open(host: &TestHost, secret: &str) -> Shown {
    let mut tab = Tab::open(host);
    let page = tab.get("/dashboard/enter").await;
    tab.submit(&page, "/dashboard/enter", &[("link", secret)]).await
}

#[both_engines]
async fn invitation_is_mailed_and_its_link_is_good(engine: Engine) {
    let mut server = MailServer::start(&[]).await;
    let host = server.host(engine).await;
    let ada = host.person("ada").await;
    let team = host.team("Läb \u{202e}& <Co>", &ada).await;
    let mut tab = Tab::with_password(&host, ada.account_id).await;
    let (list, path) = (format!("/dashboard/{team}/team"), format!("/dashboard/{team}/team/invitations"));
    let page = tab.get(&list).await;
    let made = tab.submit(&page, &path, &[("email", "grace@example.test"), ("role", "member")]).await;
    assert!(made.text.contains("on its way to them by mail"), "{}", made.text);
    let mail = server.next().await;
    assert_eq!((&mail["from"], &mail["to"][0]), (&"culvert@example.test".into(), &"grace@example.test".into()));
    let headers = &mail["headers"];
    assert_eq!(headers["from"], "Culvert <culvert@example.test>");
    assert_eq!(headers["auto-submitted"], "auto-generated");
    assert_eq!(headers["subject"], "ada invites you to Läb \u{202e}& <Co>");
    assert!(mail["text"].as_str().unwrap().contains("https://api.example.test"), "{mail}");
    assert_eq!(link(&mail), made.link());
    let shown = open(&host, &link(&mail)).await;
    assert!(shown.text.contains("Join"), "{}", shown.text);
    host.until(async || (waiting(&host).await == 0).then_some(())).await;
}

/// What the server does not take now is tried again after one minute, also by another start of the host; what it never takes is
/// given up. The link is shown either way.
#[both_engines]
async fn mail_is_tried_again_until_it_is_taken_or_refused_for_good(engine: Engine) {
    // 535 is what a server says of a wrong password: the operator's to mend.
    let mut server = MailServer::start(&["535", "421", "550"]).await;
    let host = server.host(engine).await;
    let ada = host.person("ada").await;
    accounts::set_operator(&host.app.store, ada.account_id, true, Actor::CLI).await.unwrap();
    let grace = host.person("grace").await;
    let mut tab = Tab::with_password(&host, ada.account_id).await;
    let list = "/dashboard/operator/accounts";
    let path = format!("{list}/{}/link", grace.account_id);
    let page = tab.get(list).await;
    let made = tab.submit(&page, &path, &[]).await;
    let secret = made.link();
    assert_eq!(server.next().await["refused"], "535");
    // Not as long as the worker has it: that time is another one.
    let after = host.clock.now() + chrono::TimeDelta::minutes(1);
    host.until(async || (due(&host).await == Some(after)).then_some(())).await;
    let host = host.restart().await;
    host.clock.advance(Duration::from_mins(1));
    assert_eq!(server.next().await["refused"], "421");
    let after = host.clock.now() + chrono::TimeDelta::minutes(4);
    host.until(async || (due(&host).await == Some(after)).then_some(())).await;
    host.clock.advance(Duration::from_mins(4));
    assert_eq!(server.next().await["refused"], "550");
    host.until(async || (waiting(&host).await == 0).then_some(())).await;
    let given_up = r#"culvert_mail_attempts_total{outcome="given_up"}"#;
    assert_eq!(host.metric(given_up).await, Some(1.0));
    assert_eq!(open(&host, &secret).await.led_to(), "/dashboard/account");
}

/// A mail whose link is over is not sent.
#[both_engines]
async fn mail_that_came_too_late_is_not_sent(engine: Engine) {
    let mut server = MailServer::start(&["451"]).await;
    let host = server.host(engine).await;
    host.person("ada").await;
    ask(&host, "ada@example.test").await;
    assert_eq!(server.next().await["refused"], "451");
    let after = host.clock.now() + chrono::TimeDelta::minutes(1);
    host.until(async || (due(&host).await == Some(after)).then_some(())).await;
    host.clock.advance(Duration::from_mins(31));
    host.until(async || (waiting(&host).await == 0).then_some(())).await;
    // The next that arrives is another.
    ask(&host, "ada@example.test").await;
    let mail = server.next().await;
    assert_eq!(open(&host, &link(&mail)).await.led_to(), "/dashboard/account");
}

async fn ask(host: &TestHost, email: &str) -> Shown {
    let mut tab = Tab::open(host);
    let page = tab.get(ASK).await;
    tab.submit(&page, ASK, &[("email", email)]).await
}

/// Whoever cannot sign in is mailed a link; of an unknown address nothing is told.
#[both_engines]
async fn link_is_mailed_to_whoever_cannot_sign_in(engine: Engine) {
    let mut server = MailServer::start(&[]).await;
    let host = server.host(engine).await;
    let ada = host.person("ada").await;
    assert!(Tab::open(&host).get("/dashboard/sign-in").await.text.contains(&format!("href=\"{ASK}\"")));
    let unknown = ask(&host, "nobody@example.test").await;
    let known = ask(&host, "ADA@example.test").await;
    assert_eq!((unknown.status, known.status), (200, 200));
    assert_eq!(known.text.replace("ADA@", "nobody@"), unknown.text);
    let mail = server.next().await;
    assert_eq!(mail["to"][0], "ada@example.test", "to the address of the account");
    let shown = open(&host, &link(&mail)).await;
    assert_eq!(shown.led_to(), "/dashboard/account");
    assert!(!open(&host, &link(&mail)).await.text.contains("/dashboard/account"), "it is good once");
    // The log of the account says that somebody has asked.
    let log = Tab::entered(&host, ada.account_id).await.get("/dashboard/me/audit").await;
    assert!(log.text.contains("somebody at the sign-in page"), "{}", log.text);
    for _ in 0..3 {
        assert_eq!(ask(&host, "nobody@example.test").await.status, 200);
    }
    let refused = ask(&host, "ada@example.test").await;
    assert_eq!(refused.outcome(), "429 rate_limited");
}

/// What is mailed stands nowhere in the clear, and no more than five in an hour go to one address.
#[both_engines]
async fn mails_are_sealed_and_few(engine: Engine) {
    let server = MailServer::start(&["451"; 9]).await;
    let host = server.host(engine).await;
    let ada = host.person("ada").await;
    accounts::set_operator(&host.app.store, ada.account_id, true, Actor::CLI).await.unwrap();
    let grace = host.person("grace").await;
    let mut tab = Tab::with_password(&host, ada.account_id).await;
    let list = "/dashboard/operator/accounts";
    let mut mailed = 0;
    for _ in 0..7 {
        let page = tab.get(list).await;
        let made = tab.submit(&page, &format!("{list}/{}/link", grace.account_id), &[]).await;
        assert!(!made.link().is_empty());
        mailed += u32::from(made.text.contains("on its way"));
    }
    assert_eq!(mailed, 5);
    assert_eq!(waiting(&host).await, 5);
    let readable = "mails WHERE CAST(content AS TEXT) LIKE '%enter#%'";
    assert_eq!(count(&host.config().database_url(), readable).await, 0);
}

/// Without a server for mail, the page says how to get a link.
#[tokio::test]
async fn host_without_mail_says_whom_to_ask() {
    let host = TestHost::start(Engine::Sqlite).await;
    assert!(!host.app.dashboard.as_deref().is_some_and(|dashboard: &Dashboard| dashboard.mails.are_sent()));
    let page = Tab::open(&host).get(ASK).await;
    assert!(page.text.contains("culvert account link --email") && !page.text.contains("<form"), "{}", page.text);
}

/// A new address is the account's once the link to it was opened; that another account has it is not told.
#[both_engines]
async fn new_address_is_used_when_its_link_was_opened(engine: Engine) {
    let mut server = MailServer::start(&[]).await;
    let host = server.host(engine).await;
    let (ada, _) = (host.person("ada").await, host.person("grace").await);
    let mut tab = Tab::with_password(&host, ada.account_id).await;
    let (account, path) = ("/dashboard/account", "/dashboard/account/profile");
    let page = tab.get(account).await;
    let refused = tab.submit(&page, path, &[("display_name", ""), ("email", "nobody")]).await;
    assert!(refused.status == 422 && refused.fault("display_name").is_some() && refused.fault("email").is_some());
    let page = tab.get(account).await;
    let taken = tab.submit(&page, path, &[("display_name", "Ada L."), ("email", "grace@example.test")]).await;
    let page = tab.get(account).await;
    assert!(page.text.contains("Ada L."), "the name is changed at once");
    let asked = tab.submit(&page, path, &[("email", "lovelace@example.test")]).await;
    assert_eq!((taken.status, asked.status), (200, 200), "{}", asked.text);
    let said = |page: &Shown| {
        page.text.split("role=\"status\">A link").nth(1).unwrap().split("</p>").next().unwrap().to_owned()
    };
    assert_eq!(said(&taken).replace("grace@", "lovelace@"), said(&asked));
    let mail = server.next().await;
    assert_eq!(mail["to"][0], "lovelace@example.test");
    // A link is good for a day, and another one in its place as long.
    host.clock.advance(Duration::from_hours(24));
    assert_eq!(open(&host, &link(&mail)).await.outcome(), "410 link_not_valid");
    let mut tab = Tab::signed_in(&host, "ada@example.test").await;
    let page = tab.get(account).await;
    assert_eq!(tab.submit(&page, path, &[("email", "lovelace@example.test")]).await.status, 200);
    let mail = server.next().await;
    let sign_in = async |email: &str| {
        let mut tab = Tab::open(&host);
        let page = tab.get("/dashboard/sign-in").await;
        tab.submit(&page, "/dashboard/sign-in", &[("email", email), ("password", PASSWORD)]).await.status
    };
    assert_eq!((sign_in("ada@example.test").await, sign_in("lovelace@example.test").await), (303, 401));
    let opened = open(&host, &link(&mail)).await;
    assert!(opened.text.contains("lovelace@example.test"), "{}", opened.text);
    assert_eq!((sign_in("ada@example.test").await, sign_in("lovelace@example.test").await), (401, 303));
    assert_eq!(open(&host, &link(&mail)).await.outcome(), "410 link_not_valid");
}

/// Where no mail is sent, a new address is the account's at once.
#[both_engines]
async fn address_is_changed_at_once_without_mail(engine: Engine) {
    let host = TestHost::start(engine).await;
    let (ada, _) = (host.person("ada").await, host.person("grace").await);
    let mut tab = Tab::with_password(&host, ada.account_id).await;
    let path = "/dashboard/account/profile";
    let page = tab.get("/dashboard/account").await;
    let taken = tab.submit(&page, path, &[("email", "grace@example.test")]).await;
    assert_eq!(taken.fault("email"), Some("has an account"));
    let page = tab.get("/dashboard/account").await;
    assert_eq!(tab.submit(&page, path, &[("email", "Lovelace@example.test")]).await.led_to(), "/dashboard/account");
    assert!(tab.get("/dashboard/account").await.text.contains("lovelace@example.test"));
}

/// An account has no more than twenty mails sent in an hour, to whomever; the link is shown all the same.
#[both_engines]
async fn account_mails_to_a_few_strangers_alone(engine: Engine) {
    let server = MailServer::start(&[]).await;
    let host = server.host(engine).await;
    let ada = host.person("ada").await;
    let team = host.team("Lab", &ada).await;
    let mut tab = Tab::with_password(&host, ada.account_id).await;
    let (list, path) = (format!("/dashboard/{team}/team"), format!("/dashboard/{team}/team/invitations"));
    let mut mailed = 0;
    for number in 0..23 {
        let page = tab.get(&list).await;
        let made = tab.submit(&page, &path, &[("email", &format!("n{number}@example.test")), ("role", "member")]).await;
        assert!(!made.link().is_empty());
        mailed += u32::from(made.text.contains("on its way"));
    }
    assert_eq!(mailed, 20);
}

/// A mail is tried at once and after 1, 5, 15 and 60 minutes, and then given up.
#[both_engines]
async fn mail_is_tried_five_times(engine: Engine) {
    let mut server = MailServer::start(&["451"; 5]).await;
    let host = server.host(engine).await;
    let ada = host.person("ada").await;
    let team = host.team("Lab", &ada).await;
    let mut tab = Tab::with_password(&host, ada.account_id).await;
    let page = tab.get(&format!("/dashboard/{team}/team")).await;
    let path = format!("/dashboard/{team}/team/invitations");
    tab.submit(&page, &path, &[("email", "grace@example.test"), ("role", "member")]).await;
    let begun = host.clock.now();
    assert_eq!(server.next().await["refused"], "451");
    for minutes in [1, 5, 15, 60] {
        let after = begun + chrono::TimeDelta::minutes(minutes);
        host.until_seen(async || {
            let seen = due(&host).await;
            if seen == Some(after) { Ok(()) } else { Err(seen) }
        })
        .await;
        host.clock.advance((after - host.clock.now()).to_std().unwrap());
        assert_eq!(server.next().await["refused"], "451");
    }
    host.until(async || (waiting(&host).await == 0).then_some(())).await;
}

/// A link that would change the address ends with a new password, and when an account is recovered: it may be a stranger's.
#[both_engines]
async fn pending_change_of_the_address_ends_with_a_new_password_and_with_recovery(engine: Engine) {
    let mut server = MailServer::start(&[]).await;
    let host = server.host(engine).await;
    let ada = host.person("ada").await;
    let mut tab = Tab::with_password(&host, ada.account_id).await;
    let (account, path) = ("/dashboard/account", "/dashboard/account/profile");
    for is_recovered in [false, true] {
        let page = tab.get(account).await;
        assert_eq!(tab.submit(&page, path, &[("email", "mallory@example.test")]).await.status, 200);
        let pending = link(&server.next().await);
        if is_recovered {
            culvert_service::links::recover(&host.app.store, ada.account_id).await.unwrap();
        } else {
            let page = tab.get(account).await;
            let new = [("password", "other gravel lantern 17")];
            assert_eq!(tab.submit(&page, "/dashboard/account/password", &new).await.status, 303);
        }
        assert_eq!(open(&host, &pending).await.outcome(), "410 link_not_valid", "{is_recovered}");
    }
}
