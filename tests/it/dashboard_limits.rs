//! Numbers that bound people and strangers at the dashboard.

use std::time::Duration;

use culvert_domain::refusal::{PER_SCOPE, RefusedRequest};
use culvert_test_macros::both_engines;
use futures_util::future::join_all;
use reqwest::Method;
use uuid::Uuid;

use crate::support::database::count;
use crate::support::host::{Engine, TestHost};
use crate::support::tab::{PASSWORD, SITE, Tab};

const SIGN_IN: &str = "/dashboard/sign-in";
const FIVE_MINUTES: Duration = Duration::from_mins(5);

/// What the sign-in page answers to a password, and for how long it wants to be left alone.
pub async fn tried(host: &TestHost, password: &str) -> (u16, Option<u64>) {
    let mut tab = Tab::open(host);
    let page = tab.get(SIGN_IN).await;
    let shown = tab.submit(&page, SIGN_IN, &[("email", "ada@example.test"), ("password", password)]).await;
    (shown.status, shown.headers.get("retry-after").map(|wait| wait.to_str().unwrap().parse().unwrap()))
}

/// The wait after wrong passwords for an account is a minute at most, and is forgotten when it is right, and after a day.
#[both_engines]
async fn wait_of_an_account_is_a_minute_at_most_and_is_forgotten(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    Tab::with_password(&host, ada.account_id).await;
    let mut waits = Vec::new();
    for number in 0..11 {
        assert_eq!(tried(&host, "wrong").await.0, 401, "{number}");
        if number >= 2 {
            // Not even the right one is looked at.
            let (status, wait) = tried(&host, PASSWORD).await;
            assert_eq!(status, 429, "{number}");
            waits.push(wait.unwrap());
        }
        // So long a time that the address has its ten again.
        host.clock.advance(FIVE_MINUTES);
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
    assert_eq!(tried(&host, PASSWORD).await.0, 303);
    for _ in 0..3 {
        assert_eq!(tried(&host, "wrong").await.0, 401, "begun anew");
    }
}

#[both_engines]
async fn wrong_passwords_of_yesterday_cost_no_wait(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    Tab::with_password(&host, ada.account_id).await;
    for _ in 0..3 {
        assert_eq!(tried(&host, "wrong").await, (401, None));
    }
    assert_eq!(tried(&host, PASSWORD).await, (429, Some(1)));
    host.clock.advance(Duration::from_hours(24));
    for _ in 0..3 {
        assert_eq!(tried(&host, "wrong").await, (401, None));
    }
}

/// Of many who sign in at once, so many wait for their turn; the others are told to try again.
#[both_engines]
async fn sign_ins_that_wait_for_a_hash_are_few(engine: Engine) {
    let host = TestHost::with(engine, |config| config.trusted_proxies = vec!["127.0.0.1/32".parse().unwrap()]).await;
    let page = Tab::open(&host).get(SIGN_IN).await;
    let sign_in = async |number: usize| {
        let mut fields = page.form(SIGN_IN);
        for (name, value) in [("email", format!("n{number}@example.test")), ("password", "wrong".into())] {
            fields.retain(|(known, _)| known != name);
            fields.push((name.into(), value));
        }
        let mut tab = Tab::open(&host);
        let request = tab.form_request(SIGN_IN, &fields).header("origin", SITE);
        let request = request.header("sec-fetch-site", "same-origin");
        let shown = tab.send(request.header("x-forwarded-for", format!("10.0.{number}.1"))).await;
        let waits = shown.headers.get("retry-after").map(|wait| wait.to_str().unwrap().to_owned());
        (shown.outcome(), waits)
    };
    let answers = join_all((0..100).map(&sign_in)).await;
    let busy = ("503 service_unavailable".to_owned(), Some("2".to_owned()));
    assert!(answers.contains(&busy), "{answers:?}");
    assert!(answers.iter().all(|answer| *answer == busy || answer.0 == "401 sign_in_required"), "{answers:?}");
    assert!(answers.iter().filter(|answer| **answer != busy).count() >= 17, "{answers:?}");
    // A password that was not looked at is no wrong one: three are free still.
    let number = answers.iter().position(|answer| *answer == busy).unwrap();
    for _ in 0..3 {
        assert_eq!(sign_in(number).await.0, "401 sign_in_required");
    }
}

#[both_engines]
async fn team_has_a_hundred_open_invitations(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let team = host.team("Lab", &ada).await;
    let mut tab = Tab::with_password(&host, ada.account_id).await;
    let (list, path) = (format!("/dashboard/{team}/team"), format!("/dashboard/{team}/team/invitations"));
    for number in 0..=100 {
        let page = tab.get(&list).await;
        let invited = [("email", &*format!("n{number}@example.test")), ("role", "member")];
        let shown = tab.submit(&page, &path, &invited).await;
        let expected = if number < 100 { "200 -" } else { "409 limit_reached" };
        assert_eq!(shown.outcome(), expected, "{number}");
        host.clock.advance(Duration::from_secs(2));
    }
    // Those that are over make room.
    host.clock.advance(Duration::from_hours(7 * 24));
    let mut tab = Tab::signed_in(&host, "ada@example.test").await;
    let page = tab.get(&list).await;
    assert_eq!(tab.submit(&page, &path, &[("email", "new@example.test"), ("role", "member")]).await.status, 200);
}

/// A host has five hundred open streams, over all sign-ins.
#[tokio::test]
async fn host_has_five_hundred_streams_at_most() {
    let host = TestHost::with(Engine::Sqlite, |config| config.api.connections_per_address = 1000).await;
    let mut open = Vec::new();
    let mut people = Vec::new();
    for name in ["ada", "bea"] {
        people.push(host.person(name).await);
    }
    for number in 0..63 {
        let tab = Tab::entered(&host, people[number % 2].account_id).await;
        for _ in 0..8 {
            let stream = tab.request(Method::GET, "/dashboard/me/live").header("sec-fetch-dest", "empty");
            open.push(stream.send().await.unwrap());
        }
    }
    let refused: Vec<u16> =
        open.iter().map(|stream| stream.status().as_u16()).filter(|status| *status != 200).collect();
    assert_eq!(refused, [429; 4]);
    assert_eq!(host.app.dashboard.as_ref().unwrap().streams.count(), 500);
}

/// Of a scope, some ten thousand refusals are kept, the newest.
#[both_engines]
async fn refusals_of_a_scope_are_trimmed(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let error = culvert_domain::error::Error::not_found();
    let (store, clock) = (&host.app.store, host.clock.clone());
    let write = store.write(None, move |write| {
        Box::pin(async move {
            for _ in 0..PER_SCOPE + 50 {
                let credential = culvert_domain::caller::Credential::SignIn(Uuid::nil());
                let (request_id, scope_id, account_id) = (clock.id(), ada.account_id, ada.account_id);
                let refused = RefusedRequest {
                    request_id,
                    scope_id,
                    account_id,
                    credential: &credential,
                    method: "GET",
                    path: "/",
                    status: 404,
                    is_routed: true,
                };
                let refusal = culvert_domain::refusal::Refusal::of(&refused, &error, clock.now());
                write.insert_refusal(&refusal).await?;
            }
            Ok(())
        })
    });
    write.await.unwrap();
    // It is looked at after a hundred more.
    let api = host.api(&ada.key);
    for _ in 0..100 {
        api.get(&format!("/tunnels/{}", Uuid::nil())).await;
    }
    let url = host.config().database_url();
    host.until_found(async || (count(&url, "refusals").await <= i64::from(PER_SCOPE) + 100).then_some(())).await;
}

/// Where a sign-in leads is a path of ours that is not too long.
#[tokio::test]
async fn page_after_the_sign_in_is_a_short_path_of_ours() {
    let host = TestHost::start(Engine::Sqlite).await;
    let ada = host.person("ada").await;
    let mut tab = Tab::entered(&host, ada.account_id).await;
    let long = |length: usize| format!("/dashboard/{}", "a".repeat(length - "/dashboard/".len()));
    for (next, led_to) in [
        (long(512), long(512)),
        (long(513), "/dashboard".into()),
        ("//evil.example".into(), "/dashboard".into()),
        ("/dashboard//evil.example".into(), "/dashboard".into()),
        ("https://evil.example/dashboard".into(), "/dashboard".into()),
    ] {
        let shown = tab.get(&format!("{SIGN_IN}?next={next}")).await;
        assert_eq!(shown.led_to(), led_to, "{next}");
    }
}
