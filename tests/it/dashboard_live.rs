//! Streams that tell open pages of changes.

use std::time::Duration;

use culvert_domain::audit_log::Actor;
use culvert_domain::caller::Role;
use culvert_service::accounts;
use culvert_test_macros::both_engines;
use reqwest::{Method, Response};
use serde_json::json;

use crate::support::device::Remote;
use crate::support::fleet::TestFleet;
use crate::support::host::{Engine, TestHost, within};
use crate::support::program::command_at;
use crate::support::tab::Tab;

const MINE: &str = "/dashboard/me/live";
const OPERATORS: &str = "/dashboard/operator/live";

/// A stream, and what of it has not been read.
struct Stream(Response, String);

impl Stream {
    async fn open(tab: &Tab, path: &str) -> Self {
        let response = tab.request(Method::GET, path).header("sec-fetch-dest", "empty").send().await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let mut stream = Self(response, String::new());
        assert_eq!(stream.next().await.as_deref(), Some(": open"));
        stream
    }

    /// The next event or comment. `None` if the stream has ended.
    async fn next(&mut self) -> Option<String> {
        loop {
            if let Some((event, rest)) = self.1.split_once("\n\n") {
                let (event, rest) = (event.to_owned(), rest.to_owned());
                self.1 = rest;
                return Some(event);
            }
            let chunk = within(20, self.0.chunk()).await.unwrap()?;
            self.1.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }

    async fn tells_of_a_change(&mut self) {
        assert_eq!(self.next().await.as_deref(), Some("event: change\ndata: 1"));
    }
}

/// Lets half a second pass, before which no second change is told of.
async fn pause(host: &TestHost) {
    let pause = Duration::from_millis(500);
    within(20, host.clock.until_awaited(host.clock.moment().plus(pause))).await;
    host.clock.advance(pause);
}

#[both_engines]
async fn page_hears_of_every_change_of_its_scope_and_of_no_other(engine: Engine) {
    let host = TestHost::start(engine).await;
    let (ada, bob) = (host.person("ada").await, host.person("bob").await);
    let mut hers = Stream::open(&Tab::entered(&host, ada.account_id).await, MINE).await;
    let mut his = Stream::open(&Tab::entered(&host, bob.account_id).await, MINE).await;
    let api = host.api(&ada.key);
    // By a key.
    let tunnel = api.post("/tunnels", json!({"local_port": 8080})).await.id();
    hers.tells_of_a_change().await;
    pause(&host).await;
    // A device comes, and goes: no caller's request.
    let device = host.device(&ada, ada.account_id, Remote::Enabled).await;
    hers.tells_of_a_change().await;
    pause(&host).await;
    device.shut_down().await;
    hers.tells_of_a_change().await;
    pause(&host).await;
    // Many at once are one, and none is forgotten.
    for name in ["a", "b", "c"] {
        api.patch(&format!("/tunnels/{tunnel}"), json!({"name": name})).await.data();
    }
    hers.tells_of_a_change().await;
    // He heard nothing of it all: the first that he hears of is his own.
    host.clock.advance(Duration::from_secs(15));
    assert_eq!(his.next().await.as_deref(), Some(": nothing"));
    host.api(&bob.key).post("/tunnels", json!({"local_port": 8080})).await.data();
    his.tells_of_a_change().await;
}

/// Leaving a page open is no use of a sign-in.
#[both_engines]
async fn stream_ends_with_the_sign_in_and_does_not_prolong_it(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let mut tab = Tab::with_password(&host, ada.account_id).await;
    let mut stream = Stream::open(&tab, MINE).await;
    // Somebody ends it from elsewhere.
    let mut other = Tab::signed_in(&host, "ada@example.test").await;
    let page = other.get("/dashboard/account").await;
    assert_eq!(other.submit(&page, "/dashboard/account/sign-ins/end-others", &[]).await.status, 303);
    while stream.next().await.is_some() {
        pause(&host).await;
    }
    assert_eq!(tab.get(MINE).await.led_to(), "/dashboard/sign-in");
    // One that nobody uses for a week ends, however often a script has fetched pages.
    let mut idle = Stream::open(&other, MINE).await;
    for _ in 0..7 {
        host.clock.advance(Duration::from_hours(24));
        let _ = idle.next().await;
        let fetched = other.request(Method::GET, "/dashboard/me").header("sec-fetch-dest", "empty");
        let _ = other.send(fetched).await;
    }
    assert_eq!(idle.next().await, None);
    assert_eq!(other.get("/dashboard/me").await.status, 303);
}

#[both_engines]
async fn stream_of_a_team_ends_for_a_member_that_is_removed(engine: Engine) {
    let host = TestHost::start(engine).await;
    let (ada, grace) = (host.person("ada").await, host.person("grace").await);
    let team = host.team("Lab", &ada).await;
    host.join(team, &grace, Role::Member).await;
    let tab = Tab::entered(&host, grace.account_id).await;
    let mut stream = Stream::open(&tab, &format!("/dashboard/{team}/live")).await;
    host.leave(team, &grace).await;
    assert_eq!(stream.next().await, None);
    let mut stranger = Tab::entered(&host, host.person("eve").await.account_id).await;
    assert_eq!(stranger.get(&format!("/dashboard/{team}/live")).await.status, 404);
}

/// covers: rate_limited
#[both_engines]
async fn sign_in_has_eight_streams_at_most(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let mut tab = Tab::entered(&host, ada.account_id).await;
    let mut streams = Vec::new();
    for _ in 0..8 {
        streams.push(Stream::open(&tab, MINE).await);
    }
    let refused = tab.get(MINE).await;
    assert_eq!(
        (refused.outcome().as_str(), &refused.headers["retry-after"]),
        ("429 rate_limited", &"10".parse().unwrap())
    );
    // The refusal is a change of the scope. Nothing comes after it.
    streams[0].tells_of_a_change().await;
    // One that was closed makes room.
    streams.pop();
    let dashboard = host.app.dashboard.as_ref().unwrap();
    host.until_found(async || (dashboard.streams.count() == 7).then_some(())).await;
    let mut last = Stream::open(&tab, MINE).await;
    // All end when the host stops, also one that has just told of a change and waits before the next.
    let (first, ended, _host) = futures_util::join!(streams[0].next(), last.next(), host.restart());
    assert_eq!((first, ended), (None, None));
}

/// Pages of refusals and of certificates are as live as the others, and so are those of operators, which are for them alone.
#[both_engines]
async fn refusals_and_the_installation_are_told_of(engine: Engine) {
    let host = TestHost::start(engine).await;
    let (ada, bob) = (host.person("ada").await, host.person("bob").await);
    let mut tab = Tab::with_password(&host, ada.account_id).await;
    assert_eq!(tab.get(OPERATORS).await.outcome(), "404 not_found");
    accounts::set_operator(&host.app.store, ada.account_id, true, Actor::CLI).await.unwrap();
    host.clock.advance(Duration::from_secs(1));
    for page in ["accounts", "teams", "nodes", "policies", "health"] {
        let shown = tab.get(&format!("/dashboard/operator/{page}")).await;
        assert!(shown.text.contains(&format!("data-live=\"{OPERATORS}\"")), "{}", shown.text);
    }
    let mut hers = Stream::open(&tab, MINE).await;
    host.api(&ada.key).get("/tunnels/019bc186-de00-766e-b4a0-0dbd1a872323").await;
    hers.tells_of_a_change().await;
    drop(hers);

    let mut operators = Stream::open(&tab, OPERATORS).await;
    // What others do in their scopes is not of the installation.
    host.api(&bob.key).post("/tunnels", json!({"local_port": 8080})).await.data();
    host.clock.advance(Duration::from_secs(15));
    assert_eq!(operators.next().await.as_deref(), Some(": nothing"));
    accounts::create(&host.app.store, "eve@example.test".into(), "Eve".into(), "free".into()).await.unwrap();
    operators.tells_of_a_change().await;
    pause(&host).await;
    let page = tab.get("/dashboard/operator/policies").await;
    assert_eq!(tab.submit(&page, "/dashboard/operator/policies/reload", &[]).await.status, 303);
    operators.tells_of_a_change().await;
    accounts::set_operator(&host.app.store, bob.account_id, true, Actor::CLI).await.unwrap();
    accounts::set_operator(&host.app.store, ada.account_id, false, Actor::CLI).await.unwrap();
    pause(&host).await;
    while operators.next().await.is_some() {
        pause(&host).await;
    }
}

/// A command on the server writes to the database by itself: open pages hear of it within a second.
#[both_engines]
async fn command_on_the_server_is_told_of(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let mut stream = Stream::open(&Tab::entered(&host, ada.account_id).await, MINE).await;
    host.pass(Duration::from_secs(1)).await;
    command_at(&host, &["account", "link", "--email", "ada@example.test"]).await;
    host.pass(Duration::from_secs(1)).await;
    stream.tells_of_a_change().await;
    // It is told of once.
    pause(&host).await;
    let silence = Duration::from_secs(15);
    within(20, host.clock.until_awaited(host.clock.moment().plus(silence))).await;
    host.pass(silence).await;
    assert_eq!(stream.next().await.as_deref(), Some(": nothing"));
}

/// The pages of operators hear of commands as well, in whatever scope.
#[both_engines]
async fn command_is_told_of_to_operators(engine: Engine) {
    let host = TestHost::start(engine).await;
    let lin = host.person("lin").await;
    host.person("ada").await;
    accounts::set_operator(&host.app.store, lin.account_id, true, Actor::CLI).await.unwrap();
    let mut stream = Stream::open(&Tab::entered(&host, lin.account_id).await, OPERATORS).await;
    // The command that made the operator was there before the page.
    host.pass(Duration::from_secs(1)).await;
    stream.tells_of_a_change().await;
    pause(&host).await;
    command_at(&host, &["account", "link", "--email", "ada@example.test"]).await;
    host.pass(Duration::from_secs(1)).await;
    stream.tells_of_a_change().await;
}

/// A page at one host shows what another one has changed.
#[tokio::test]
async fn page_hears_of_a_change_by_another_host() {
    let fleet = TestFleet::start(2).await;
    let ada = fleet.hosts[0].person("ada").await;
    // The first host hears of the second one.
    fleet.pass(Duration::from_secs(3)).await;
    let tab = Tab::entered(&fleet.hosts[1], ada.account_id).await;
    let mut stream = Stream::open(&tab, MINE).await;
    fleet.hosts[0].api(&ada.key).post("/tunnels", json!({"local_port": 80})).await.id();
    stream.tells_of_a_change().await;
}
