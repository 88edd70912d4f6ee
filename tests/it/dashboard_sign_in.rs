//! Coming into the dashboard: links, passwords, sign-ins, and who may post what from where.

use std::time::Duration;

use culvert_domain::sign_in::{SignInClient, SignInMethod};
use culvert_service::links;
use culvert_store::sign_ins::NewSignIn;
use culvert_test_macros::both_engines;
use futures_util::future::join_all;
use insta::assert_snapshot;
use reqwest::Method;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::support::host::{Engine, TestHost, within};
use crate::support::program::{Place, fails};
use crate::support::tab::{PASSWORD, SITE, Shown, Tab};

const ENTER: &str = "/dashboard/enter";
const SIGN_IN: &str = "/dashboard/sign-in";
const ACCOUNT: &str = "/dashboard/account";
const COOKIE: &str = "__Host-culvert";

async fn link(host: &TestHost, account_id: Uuid) -> String {
    links::create(&host.app.store, account_id).await.unwrap().secret
}

async fn sign_in(tab: &mut Tab, email: &str, password: &str) -> Shown {
    let page = tab.get(SIGN_IN).await;
    tab.submit(&page, SIGN_IN, &[("email", email), ("password", password)]).await
}

/// covers: link_not_valid
#[both_engines]
async fn link_signs_in_once_and_within_thirty_minutes(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let secret = link(&host, ada.account_id).await;
    let mut tab = Tab::open(&host);
    let page = tab.get(ENTER).await;
    // Looking uses nothing up.
    assert_eq!((page.status, tab.get(&format!("{ENTER}?link={secret}")).await.status), (200, 200));
    let shown = tab.submit(&page, ENTER, &[("link", &secret)]).await;
    assert_eq!((shown.status, shown.led_to()), (303, ACCOUNT));
    let cookie = shown.headers["set-cookie"].to_str().unwrap().replace(&tab.cookies[COOKIE], "…");
    assert_snapshot!(cookie, @"__Host-culvert=…; Max-Age=2592000; Path=/; HttpOnly; SameSite=Lax; Secure");
    assert!(tab.get(ACCOUNT).await.text.contains("ada@example.test"));

    let mut other = Tab::open(&host);
    let page = other.get(ENTER).await;
    for typed in [secret.as_str(), "", "x", &"x".repeat(43)] {
        let shown = other.submit(&page, ENTER, &[("link", typed)]).await;
        assert_eq!(shown.outcome(), "410 link_not_valid", "{typed}");
        assert!(other.cookies.is_empty());
    }
    // A whole URL that was pasted is as good as the secret, and comes to its end in time.
    let secret = link(&host, ada.account_id).await;
    host.clock.advance(Duration::from_mins(30));
    let shown = other.submit(&page, ENTER, &[("link", &format!("{SITE}{ENTER}#{secret}"))]).await;
    assert_eq!(shown.outcome(), "410 link_not_valid");
    // Five wrong ones of an address in an hour.
    let secret = link(&host, ada.account_id).await;
    assert_eq!(other.submit(&page, ENTER, &[("link", &secret)]).await.outcome(), "429 rate_limited");
    host.clock.advance(Duration::from_hours(1));
    let secret = link(&host, ada.account_id).await;
    let shown = other.submit(&page, ENTER, &[("link", &format!(" {SITE}{ENTER}#{secret} "))]).await;
    assert_eq!(shown.led_to(), ACCOUNT);
}

#[both_engines]
async fn one_of_many_at_once_uses_a_link(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let secret = link(&host, ada.account_id).await;
    let tries = (0..50).map(|_| async {
        let client = culvert_service::sign_ins::Client::default();
        let dashboard = host.app.dashboard.as_ref().unwrap();
        dashboard.sign_ins.enter(&host.app.service, &secret, &client).await.is_ok()
    });
    assert_eq!(join_all(tries).await.into_iter().filter(|entered| *entered).count(), 1);
}

#[both_engines]
async fn password_is_set_once_by_link_and_then_signs_in(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let mut other = Tab::entered(&host, ada.account_id).await;
    let mut tab = Tab::entered(&host, ada.account_id).await;
    let page = tab.get(ACCOUNT).await;
    let path = "/dashboard/account/password";
    for (weak, fault) in [
        ("short", "must have 12 to 256 characters"),
        (&"x".repeat(257), "must have 12 to 256 characters"),
        ("ada@example.test1", "is too easy to guess"),
        ("passwordpassword", "is too easy to guess"),
    ] {
        let shown = tab.submit(&page, path, &[("password", weak)]).await;
        assert_eq!(shown.outcome(), "422 validation_failed");
        assert!(shown.fault("password").unwrap().starts_with(fault), "{weak}: {:?}", shown.fault("password"));
        assert!(!shown.text.contains(weak), "what was typed is not shown again");
    }
    let before = tab.cookies[COOKIE].clone();
    assert_eq!(tab.submit(&page, path, &[("password", PASSWORD)]).await.led_to(), "/dashboard");
    assert_ne!(tab.cookies[COOKIE], before, "the value changes with the password");
    assert_eq!(tab.get("/dashboard/me").await.status, 200);
    assert_eq!(other.get("/dashboard/me").await.led_to(), "/dashboard/sign-in?next=%2Fdashboard%2Fme");
    other.cookies.insert(COOKIE.into(), before);
    assert_eq!(other.get("/dashboard/me").await.status, 303);

    let mut stranger = Tab::open(&host);
    let wrong = sign_in(&mut stranger, "ada@example.test", "not the password").await;
    let unknown = sign_in(&mut stranger, "eve@example.test", "not the password").await;
    assert_eq!((wrong.outcome(), unknown.outcome()), ("401 sign_in_required".into(), "401 sign_in_required".into()));
    let shown = sign_in(&mut stranger, "ADA@example.test", PASSWORD).await;
    assert_eq!((shown.status, shown.led_to()), (303, "/dashboard"));
    // A link replaces a forgotten password, soon after it was used; else the present one has to be typed.
    let mut linked = Tab::entered(&host, ada.account_id).await;
    let unused = link(&host, ada.account_id).await;
    host.clock.advance(Duration::from_secs(601));
    assert!(!linked.get(ACCOUNT).await.text.contains(path));
    let mut linked = Tab::entered(&host, ada.account_id).await;
    let page = linked.get(ACCOUNT).await;
    let other = "another otter, another lantern";
    assert_eq!(linked.submit(&page, path, &[("password", other)]).await.led_to(), "/dashboard");
    assert_eq!(stranger.get("/dashboard/me").await.status, 303, "all other sign-ins have ended");
    let page = Tab::open(&host).get(ENTER).await;
    assert_eq!(Tab::open(&host).submit(&page, ENTER, &[("link", &unused)]).await.outcome(), "410 link_not_valid");
    assert_eq!(sign_in(&mut stranger, "ada@example.test", PASSWORD).await.status, 401);
    assert_eq!(sign_in(&mut stranger, "ada@example.test", other).await.led_to(), "/dashboard");
    host.clock.advance(Duration::from_secs(601));
    let page = stranger.get(ACCOUNT).await;
    assert!(!page.text.contains(path));
    let confirm = "/dashboard/account/confirm";
    let shown = stranger.submit(&page, confirm, &[("current_password", "wrong")]).await;
    assert_eq!((shown.status, shown.fault("current_password")), (422, Some("is wrong")));
    let shown = stranger.submit(&page, confirm, &[("current_password", other)]).await;
    assert_eq!(shown.led_to(), ACCOUNT);
    assert!(stranger.get(ACCOUNT).await.text.contains(path));
    // What is hard to rate is rated soon, and what the rating breaks at is easy to guess.
    let page = stranger.get(ACCOUNT).await;
    for password in ["12".repeat(50), "4@8({[<3&69#!1|0$5+7%2".repeat(10), "12121212".repeat(30)] {
        let shown = within(20, stranger.submit(&page, path, &[("password", &password)])).await;
        assert!(matches!(shown.status, 303 | 422), "{password}: {}", shown.outcome());
    }
    // An address of mail that no database takes is nobody's.
    let mut nobody = Tab::open(&host);
    assert_eq!(sign_in(&mut nobody, "a\0@example.test", other).await.outcome(), "401 sign_in_required");
}

/// The password of somebody who is being thrown out stays what it was.
#[both_engines]
async fn ended_sign_in_sets_no_password(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let mut owner = Tab::with_password(&host, ada.account_id).await;
    let thief = Tab::entered(&host, ada.account_id).await;
    let dashboard = host.app.dashboard.as_ref().unwrap();
    let value = &thief.cookies[COOKIE];
    let known = dashboard.sign_ins.find(&host.app.service, value, None, false).await.unwrap().unwrap();
    let page = owner.get(ACCOUNT).await;
    let ended = owner.submit(&page, "/dashboard/account/sign-ins/end-others", &[]).await;
    assert_eq!(ended.led_to(), ACCOUNT);
    let set = dashboard.sign_ins.set_password(&host.app.service, &known, "whoever took the browser".into()).await;
    assert_eq!(set.err().unwrap().code.as_str(), "sign_in_required");
    let mut again = Tab::open(&host);
    assert_eq!(sign_in(&mut again, "ada@example.test", PASSWORD).await.led_to(), "/dashboard");
    assert_eq!(owner.get("/dashboard/me").await.status, 200);
}

/// Whatever a stranger sends costs little.
#[both_engines]
async fn strangers_are_bounded(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let mut signed_in = Tab::with_password(&host, ada.account_id).await;
    let mut tab = Tab::open(&host);
    let many: Vec<_> = (0..30_000).map(|number| (format!("{number:x}"), String::new())).collect();
    assert_eq!(tab.post(SIGN_IN, &many).await.outcome(), "413 payload_too_large");
    // Twenty at once are no more tries than twenty one after the other.
    let page = tab.get(SIGN_IN).await;
    let typed = [("email", "ada@example.test"), ("password", "wrong")];
    let tries = (0..20).map(|_| {
        let (mut tab, page) = (tab.clone(), &page);
        async move { tab.submit(page, SIGN_IN, &typed).await.status }
    });
    let tries = join_all(tries).await;
    assert_eq!(tries.iter().filter(|status| **status == 401).count(), 3, "{tries:?}");
    // Sixty made-up cookies of an address are looked up in a minute. Beyond them, one that this host has not seen is none,
    // though it is right; one that it has seen is.
    let mut made_up = Tab::open(&host);
    for number in 0..60 {
        made_up.cookies.insert(COOKIE.into(), format!("{number:043}"));
        assert_eq!(made_up.get("/dashboard/me").await.status, 303);
    }
    let mut unseen = Tab::open(&host);
    unseen.cookies.insert(COOKIE.into(), "x".repeat(43));
    let new = NewSignIn {
        account_id: ada.account_id,
        hash: Sha256::digest("x".repeat(43)).into(),
        method: SignInMethod::Link,
        client: SignInClient::default(),
        expires_at: host.clock.now() + chrono::TimeDelta::days(1),
        elevated_until: None,
    };
    let made = host.app.store.write(None, move |write| Box::pin(async move { write.create_sign_in(&new, 50).await }));
    made.await.unwrap();
    assert_eq!(unseen.get("/dashboard/me").await.status, 303);
    assert_eq!(signed_in.get("/dashboard/me").await.status, 200);
    host.clock.advance(Duration::from_mins(1));
    assert_eq!(unseen.get("/dashboard/me").await.status, 200);
}

/// Wrong passwords cost a wait that doubles, for the account; and ten from one address in five minutes are all.
#[both_engines]
async fn wrong_passwords_are_slowed_down(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    Tab::with_password(&host, ada.account_id).await;
    let mut tab = Tab::open(&host);
    let mut waits = Vec::new();
    for _ in 0..3 {
        assert_eq!(sign_in(&mut tab, "ada@example.test", "wrong").await.status, 401);
    }
    for _ in 0..4 {
        let shown = sign_in(&mut tab, "ada@example.test", PASSWORD).await;
        assert_eq!(shown.outcome(), "429 rate_limited");
        let wait: u64 = shown.headers["retry-after"].to_str().unwrap().parse().unwrap();
        waits.push(wait);
        host.clock.advance(Duration::from_secs(wait));
        assert_eq!(sign_in(&mut tab, "ada@example.test", "wrong").await.status, 401);
    }
    assert_eq!(waits, [1, 2, 4, 8]);
    for _ in 0..3 {
        assert_eq!(sign_in(&mut tab, "eve@example.test", "wrong").await.status, 401);
    }
    // The address has had its ten.
    host.clock.advance(Duration::from_mins(1));
    assert_eq!(sign_in(&mut tab, "ada@example.test", PASSWORD).await.outcome(), "429 rate_limited");
    host.clock.advance(Duration::from_mins(5));
    assert_eq!(sign_in(&mut tab, "ada@example.test", PASSWORD).await.led_to(), "/dashboard");
}

/// The audit log of an account tells of wrong passwords, once a minute for an address, and of those of nobody's account nothing.
#[both_engines]
async fn wrong_passwords_are_in_the_audit_log(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    Tab::with_password(&host, ada.account_id).await;
    let mut tab = Tab::open(&host);
    let noted = async |count: usize| {
        host.until_seen(async || {
            let entries = host.app.store.audit_entries_after(ada.account_id, 0, 500).await.unwrap();
            let failed: Vec<_> = entries.into_iter().filter(|entry| entry.action == "sign_ins.fail").collect();
            if failed.len() == count { Ok(failed) } else { Err(failed.len()) }
        })
        .await
    };
    for email in ["ada@example.test", "nobody@example.test", "ada@example.test"] {
        assert_eq!(sign_in(&mut tab, email, "wrong").await.status, 401);
    }
    let failed = noted(1).await;
    assert_eq!((failed[0].actor.account_id, failed[0].actor.address.as_str()), (None, "127.0.0.1"));
    assert_eq!(failed[0].details, r#"{"wrong":"password"}"#);
    host.clock.advance(Duration::from_mins(1));
    assert_eq!(sign_in(&mut tab, "ada@example.test", "wrong").await.status, 401);
    noted(2).await;
}

#[both_engines]
async fn sign_in_ends_by_time_and_by_hand(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let day = Duration::from_hours(24);
    let mut idle = Tab::entered(&host, ada.account_id).await;
    host.clock.advance(day * 6);
    assert_eq!(idle.get("/dashboard/me").await.status, 200);
    host.clock.advance(day * 6);
    assert_eq!(idle.get("/dashboard/me").await.status, 200, "it was used in between");
    host.clock.advance(day * 7);
    assert_eq!(idle.get("/dashboard/me").await.status, 303, "seven days without a request");

    let mut used = Tab::entered(&host, ada.account_id).await;
    for _ in 0..5 {
        host.clock.advance(Duration::from_secs(6 * 86_400 - 1));
        assert_eq!(used.get("/dashboard/me").await.status, 200);
    }
    host.clock.advance(Duration::from_secs(5));
    assert_eq!(used.get("/dashboard/me").await.status, 303, "thirty days");

    let mut one = Tab::with_password(&host, ada.account_id).await;
    let mut other = Tab::entered(&host, ada.account_id).await;
    let mut third = Tab::entered(&host, ada.account_id).await;
    let page = one.get(ACCOUNT).await;
    let end = page.text.split("action=\"").find(|form| form.contains("/end\"") && form.starts_with(ACCOUNT)).unwrap();
    let end = end.split('"').next().unwrap();
    // Whoever only found the browser open ends none.
    let mut found = third.clone();
    assert!(!found.get(ACCOUNT).await.text.contains(&format!("action=\"{ACCOUNT}/sign-ins")));
    let form = found.made_up(&host, end, &[]).await;
    assert_eq!(found.post(end, &form).await.outcome(), "403 elevation_required");
    assert_eq!(one.submit(&page, end, &[]).await.led_to(), ACCOUNT);
    let alive = (other.get("/dashboard/me").await.status, third.get("/dashboard/me").await.status);
    assert!(matches!(alive, (200, 303) | (303, 200)), "one of the two has ended: {alive:?}");
    assert_eq!(one.submit(&page, "/dashboard/account/sign-ins/end-others", &[]).await.led_to(), ACCOUNT);
    for tab in [&mut other, &mut third] {
        assert_eq!(tab.get("/dashboard/me").await.status, 303);
    }
    let page = one.get("/dashboard/me").await;
    let (before, shown) = (one.clone(), one.submit(&page, "/dashboard/sign-out", &[]).await);
    assert_eq!((shown.led_to(), one.cookies.len()), (SIGN_IN, 0));
    assert_eq!(shown.headers["clear-site-data"], "\"cache\", \"storage\"");
    assert_eq!(before.clone().get("/dashboard/me").await.status, 303, "the cookie is good for nothing");
}

/// Of more than fifty, the one that was not used for the longest time ends.
#[both_engines]
async fn account_has_fifty_sign_ins(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let mut first = Tab::entered(&host, ada.account_id).await;
    let mut second = Tab::entered(&host, ada.account_id).await;
    host.clock.advance(Duration::from_secs(61));
    assert_eq!(first.get("/dashboard/me").await.status, 200);
    for _ in 0..49 {
        host.clock.advance(Duration::from_secs(1));
        Tab::entered(&host, ada.account_id).await;
    }
    assert_eq!((first.get("/dashboard/me").await.status, second.get("/dashboard/me").await.status), (200, 303));
}

/// covers: cross_origin_request
/// covers: form_expired
/// covers: sign_in_required
#[both_engines]
async fn change_is_taken_from_our_own_form_alone(engine: Engine) {
    let host = TestHost::start(engine).await;
    let (ada, eve) = (host.person("ada").await, host.person("eve").await);
    let mut tab = Tab::entered(&host, ada.account_id).await;
    let mut eves = Tab::entered(&host, eve.account_id).await;
    let path = "/dashboard/me/devices/code";
    let devices = tab.get("/dashboard/me/devices").await;
    let right = devices.form(path);
    let altered = vec![("form_key".to_owned(), right[0].1.replace(['A', 'b'], "c"))];
    let others = eves.get("/dashboard/me/devices").await.form(path);
    let of_another_path = tab.get("/dashboard/me").await.form("/dashboard/sign-out");
    let mut table = Vec::new();
    for site in [Some("same-origin"), Some("same-site"), Some("cross-site"), Some("none"), None] {
        for origin in
            [Some(SITE), Some("https://t.example.test"), Some("https://api.example.test:8443"), Some("null"), None]
        {
            for (name, key) in [
                ("right", &right),
                ("another's", &others),
                ("another path's", &of_another_path),
                ("altered", &altered),
                ("absent", &vec![]),
            ] {
                let mut request = tab.form_request(path, key);
                for (header, value) in [("sec-fetch-site", site), ("origin", origin)] {
                    if let Some(value) = value {
                        request = request.header(header, value);
                    }
                }
                let shown = tab.send(request).await;
                let from_ours = site == Some("same-origin") || (site.is_none() && origin == Some(SITE));
                let expected = match (from_ours, name) {
                    (true, "right") => "200 -",
                    (true, _) => "403 form_expired",
                    (false, _) => "403 cross_origin_request",
                };
                if shown.outcome().split(' ').next() != expected.split(' ').next()
                    || (expected != "200 -" && shown.outcome() != expected)
                {
                    table.push(format!("{site:?} {origin:?} {name}: {}", shown.outcome()));
                }
                // So many changes in a minute are more than a person makes.
                host.clock.advance(Duration::from_secs(2));
            }
        }
    }
    assert_eq!(table, Vec::<String>::new());
    // Twelve hours are the end of a form.
    host.clock.advance(Duration::from_hours(12));
    assert_eq!(tab.post(path, &right).await.outcome(), "403 form_expired");
    // Without a sign-in nothing is done.
    let mut nobody = Tab::open(&host);
    assert_eq!(nobody.post(path, &right).await.outcome(), "401 sign_in_required");
    for method in [Method::PUT, Method::DELETE, Method::PATCH] {
        let request = tab.request(method, path);
        let shown = tab.send(request).await;
        assert_eq!(
            (shown.outcome(), &shown.headers["allow"]),
            ("405 method_not_allowed".into(), &"GET, HEAD, POST".parse().unwrap())
        );
    }
}

#[both_engines]
async fn another_host_name_is_answered_nothing(engine: Engine) {
    let host = TestHost::start(engine).await;
    let tab = Tab::open(&host);
    for name in ["evil.test", "api.example.test.evil.test", "api.example.test:8080", "127.0.0.1"] {
        let client = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none()).build().unwrap();
        let request = client.get(format!("{}/dashboard/sign-in", host.url())).header("host", name);
        assert_eq!(tab.clone().send(request).await.status, 421, "{name}");
    }
    let local = host
        .restart_with(|config| {
            let port = config.listen.port();
            config.dashboard.url = Some(format!("http://localhost:{port}/dashboard"));
        })
        .await;
    let client = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none()).build().unwrap();
    let shown = client.get(format!("{}/dashboard/me", local.url())).send().await.unwrap();
    let port = local.address.port();
    assert_eq!(shown.headers()["location"], format!("http://localhost:{port}/dashboard/me"));
    // In the clear on a network, nobody signs in.
    let exposed =
        local.restart_with(|config| config.dashboard.url = Some("http://culvert.test/dashboard".into())).await;
    let request = client.get(format!("{}/dashboard/sign-in", exposed.url())).header("host", "culvert.test");
    let shown = request.send().await.unwrap();
    assert_eq!(shown.status(), 403);
    assert!(shown.text().await.unwrap().contains("Put the host behind HTTPS"));
    let off = exposed.restart_with(|config| config.dashboard.enabled = false).await;
    let shown =
        client.get(format!("{}/dashboard/sign-in", off.url())).header("host", "culvert.test").send().await.unwrap();
    assert_eq!(shown.status(), 404);
    let start = client.get(format!("{}/", off.url())).send().await.unwrap();
    assert_eq!((start.status().as_u16(), &start.headers()["location"]), (302, &"/docs".parse().unwrap()));
}

/// Cookies know no ports: a dashboard with the host name of tunnels would be theirs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dashboard_with_a_name_of_tunnels_is_refused() {
    let mut said = Vec::new();
    for (url, domain) in [
        ("http://{address}:8080/dashboard", "tunnel.localhost"),
        ("https://example.test/dashboard", "example.test"),
        ("https://culvert.example.test/dashboard", "example.test"),
        ("https://CULVERT.Example.TEST/dashboard", "example.test"),
        ("https://culvert.example.test./dashboard", "example.test"),
        ("https://a.b.example.test/dashboard", "b.example.test"),
        ("https://culvert.example.test", "tunnel.localhost"),
        ("https://culvert.example.test/dashboard?x", "tunnel.localhost"),
        ("ftp://culvert.example.test/dashboard", "tunnel.localhost"),
    ] {
        let place = Place::new(Engine::Sqlite).await;
        let address = place.address.to_string();
        let place = place.set("CULVERT_DASHBOARD__URL", &url.replace("{address}", &address));
        let place = place.set("CULVERT_NODE__DOMAIN", domain);
        said.push(fails(&place, "culvert serve").await.replace(&address, "<address>").trim().to_owned());
    }
    assert_snapshot!(said.join("\n"), @"
    2: culvert: dashboard.url: must not be a name that tunnels are served under (node.hostname is the same); give it another name, or set dashboard.enabled to false
    2: culvert: dashboard.url: must not be a name that tunnels are served under (node.domain leads there); give it another name, or set dashboard.enabled to false
    2: culvert: dashboard.url: must not be a name that tunnels are served under (node.domain leads there); give it another name, or set dashboard.enabled to false
    2: culvert: dashboard.url: must not be a name that tunnels are served under (node.domain leads there); give it another name, or set dashboard.enabled to false
    2: culvert: dashboard.url: must not be a name that tunnels are served under (node.domain leads there); give it another name, or set dashboard.enabled to false
    2: culvert: dashboard.url: must not be a name that tunnels are served under (node.domain leads there); give it another name, or set dashboard.enabled to false
    2: culvert: dashboard.url: must be an http:// or https:// URL with the path /dashboard
    2: culvert: dashboard.url: must be an http:// or https:// URL with the path /dashboard
    2: culvert: dashboard.url: must be an http:// or https:// URL with the path /dashboard
    ");
    for (setting, value) in [("SESSION_DAYS", "0"), ("SESSION_DAYS", "366"), ("SESSION_IDLE_DAYS", "31")] {
        let place = Place::new(Engine::Sqlite).await.set(&format!("CULVERT_DASHBOARD__{setting}"), value);
        let said = fails(&place, "culvert serve").await;
        assert!(
            said.starts_with(&format!("2: culvert: dashboard.{}: must be between 1 and ", setting.to_lowercase())),
            "{said}"
        );
    }
    let place = Place::new(Engine::Sqlite).await.set("CULVERT_DASHBOARD__SIGN_UP", "open");
    assert_eq!(
        fails(&place, "culvert serve").await,
        "2: culvert: dashboard.sign_up: cannot be open without mail.smtp_url"
    );
    let place = Place::new(Engine::Sqlite).await;
    let own = format!("http://{}:8080/dashboard", place.address);
    let place = place.set("CULVERT_DASHBOARD__URL", &own).set("CULVERT_DASHBOARD__ENABLED", "false");
    assert_eq!(place.serve().await.interrupt().await, Some(0));
}
