//! How often: requests of a key, and failures of an address.

use std::time::Duration;

use culvert_test_macros::both_engines;
use reqwest::Method;

use crate::support::host::{Engine, TestHost};

/// covers: rate_limited
/// covers: requests a minute: 120
#[both_engines]
async fn minute_rate_window_starts_with_first_request(engine: Engine) {
    let host = TestHost::with(engine, |config| config.rate_limit.per_minute = 3).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    for left in ["2", "1", "0"] {
        let answer = api.get("/account").await;
        assert_eq!(answer.status, 200);
        assert_eq!(
            (answer.header("x-ratelimit-limit"), answer.header("x-ratelimit-remaining")),
            (Some("3"), Some(left))
        );
        host.clock.advance(Duration::from_millis(500));
    }
    let refused = api.get("/account").await;
    assert_eq!(refused.outcome(), "429 rate_limited");
    assert_eq!(refused.header("x-ratelimit-remaining"), Some("0"));
    // 58.5 seconds are left, and half a second too early is too early.
    assert_eq!(refused.header("retry-after"), Some("59"));
    host.clock.advance(Duration::from_millis(58_499));
    let refused = api.get("/account").await;
    assert_eq!((refused.outcome().as_str(), refused.header("retry-after")), ("429 rate_limited", Some("1")));
    host.clock.advance(Duration::from_millis(1));
    assert_eq!(api.get("/account").await.header("x-ratelimit-remaining"), Some("2"));
}

/// covers: daily_quota_exceeded
/// covers: requests a day: 10,000
#[both_engines]
async fn daily_quota_is_reported_when_lower_than_minute_limit(engine: Engine) {
    let host = TestHost::with(engine, |config| {
        config.rate_limit.per_minute = 3;
        config.rate_limit.per_day = 4;
    })
    .await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    for _ in 0..3 {
        assert_eq!(
            api.get("/nothing").await.header("x-ratelimit-limit"),
            Some("3"),
            "what is refused later counts as well"
        );
    }
    host.clock.advance(Duration::from_mins(1));
    let last = api.get("/account").await;
    assert_eq!((last.header("x-ratelimit-limit"), last.header("x-ratelimit-remaining")), (Some("4"), Some("0")));
    let refused = api.get("/account").await;
    assert_eq!(
        (refused.outcome().as_str(), refused.header("retry-after")),
        ("429 daily_quota_exceeded", Some("86340"))
    );
    host.clock.advance(Duration::from_mins(1439));
    assert_eq!(api.get("/account").await.status, 200);
}

#[both_engines]
async fn rate_limit_counts_survive_host_restart(engine: Engine) {
    let host = TestHost::with(engine, |config| config.rate_limit.per_day = 3).await;
    let ada = host.person("ada").await;
    assert_eq!(host.api(&ada.key).get("/account").await.header("x-ratelimit-remaining"), Some("2"));
    assert_eq!(host.api(&ada.key).get("/account").await.header("x-ratelimit-remaining"), Some("1"));
    let host = host.restart().await;
    assert_eq!(host.api(&ada.key).get("/account").await.header("x-ratelimit-remaining"), Some("0"));
    assert_eq!(host.api(&ada.key).get("/account").await.outcome(), "429 daily_quota_exceeded");
}

/// What two hosts have counted on one database adds up with the next note that each takes.
#[both_engines]
async fn rate_limit_counts_of_two_hosts_are_added(engine: Engine) {
    let host = TestHost::with(engine, |config| config.rate_limit.per_day = 100).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    api.get("/account").await.data();
    host.pass(Duration::from_secs(1)).await;
    let elsewhere = culvert_store::rate::Window { start: host.clock.now(), count: 40 };
    let windows = culvert_store::rate::Windows { minute: elsewhere, day: elsewhere };
    let key_id = ada.key_id;
    host.app
        .store
        .write(None, move |write| Box::pin(async move { write.add_requests(key_id, windows).await }))
        .await
        .unwrap();
    api.get("/account").await.data();
    host.pass(Duration::from_secs(1)).await;
    assert_eq!(api.get("/account").await.header("x-ratelimit-remaining"), Some("57"));
}

#[both_engines]
async fn rate_limits_are_separate_per_key(engine: Engine) {
    let host = TestHost::with(engine, |config| config.rate_limit.per_minute = 1).await;
    let ada = host.person("ada").await;
    let other = host.key(ada.account_id, ada.account_id, "read_only").await;
    assert_eq!(host.api(&ada.key).get("/account").await.status, 200);
    assert_eq!(host.api(&ada.key).get("/account").await.outcome(), "429 rate_limited");
    assert_eq!(host.api(&other.key).get("/account").await.status, 200);
}

#[both_engines]
async fn auth_failure_limit_does_not_affect_valid_key(engine: Engine) {
    let host = TestHost::with(engine, |config| config.rate_limit.failed_auth_per_minute = 3).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    assert_eq!(api.get("/account").await.status, 200);
    assert_eq!(api.without_key().get("/account").await.outcome(), "401 missing_api_key");
    assert_eq!(api.with_key("x").get("/account").await.outcome(), "401 invalid_api_key");
    assert_eq!(api.with_key("x").get("/account").await.header("www-authenticate"), Some("Bearer"));
    let refused = api.with_key("x").get("/account").await;
    assert_eq!((refused.outcome().as_str(), refused.header("retry-after")), ("429 rate_limited", Some("60")));
    assert_eq!(api.get("/account").await.status, 200);
    host.clock.advance(Duration::from_mins(1));
    assert_eq!(api.with_key("x").get("/account").await.outcome(), "401 invalid_api_key");
}

/// Only a proxy that is trusted is believed about whom it speaks for.
#[both_engines]
async fn forwarded_header_is_used_only_from_trusted_proxy(engine: Engine) {
    let fail = async |host: &TestHost, forwarded: &str| {
        let api = host.api("x");
        let request = api.request(Method::GET, "/account").header("x-forwarded-for", forwarded);
        api.send(request).await.outcome()
    };
    let plain = TestHost::with(engine, |config| config.rate_limit.failed_auth_per_minute = 1).await;
    assert_eq!(fail(&plain, "192.0.2.1").await, "401 invalid_api_key");
    assert_eq!(fail(&plain, "192.0.2.2").await, "429 rate_limited");

    let proxied = TestHost::with(engine, |config| {
        config.rate_limit.failed_auth_per_minute = 1;
        config.trusted_proxies = vec!["127.0.0.0/8".parse().unwrap(), "10.0.0.0/8".parse().unwrap()];
    })
    .await;
    assert_eq!(fail(&proxied, "192.0.2.1").await, "401 invalid_api_key");
    assert_eq!(fail(&proxied, "192.0.2.1").await, "429 rate_limited");
    assert_eq!(fail(&proxied, "192.0.2.2, 10.1.1.1").await, "401 invalid_api_key", "behind two proxies");
    // What the client itself has written before the proxies does not count.
    assert_eq!(fail(&proxied, "192.0.2.9, 192.0.2.2").await, "429 rate_limited");
    // An IPv6 client has a /64 to itself.
    assert_eq!(fail(&proxied, "2001:db8:0:1::1").await, "401 invalid_api_key");
    assert_eq!(fail(&proxied, "2001:db8:0:1:ffff::2").await, "429 rate_limited");
    assert_eq!(fail(&proxied, "2001:db8:0:2::1").await, "401 invalid_api_key");
}
