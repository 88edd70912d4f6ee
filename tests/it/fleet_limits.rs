//! Requests of one key at several hosts: together they are as many as at one.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;

use crate::dashboard_limits::tried;
use crate::support::fleet::TestFleet;
use crate::support::tab::{PASSWORD, Tab};

const PER_MINUTE: u64 = 120;
const AT_ONCE: usize = 600;

/// However they come, exactly so many requests of a window are answered, and each is told what is left.
#[tokio::test]
async fn requests_of_one_key_at_all_hosts_are_counted_exactly() {
    let fleet = TestFleet::with_clocks(&[0, 60, -60]).await;
    fleet.pass(Duration::from_secs(3)).await;
    let ada = fleet.hosts[0].person("ada").await;
    let apis: Vec<_> = fleet.hosts.iter().map(|host| host.api(&ada.key)).collect();
    for window in 0..4 {
        let asked = (0..AT_ONCE).map(async |number| {
            let answer = apis[number % apis.len()].get("/account").await;
            let header = |name| answer.header(name).map(ToOwned::to_owned);
            (answer.outcome(), header("x-ratelimit-remaining"), header("retry-after"))
        });
        let mut answers: BTreeMap<_, usize> = BTreeMap::new();
        for answer in join_all(asked).await {
            *answers.entry(answer).or_default() += 1;
        }
        let mut wanted: BTreeMap<_, usize> =
            (0..PER_MINUTE).map(|left| (("200".into(), Some(left.to_string()), None), 1)).collect();
        let refused = ("429 rate_limited".into(), Some("0".into()), Some("60".into()));
        wanted.insert(refused, AT_ONCE - PER_MINUTE as usize);
        assert_eq!(answers, wanted, "window {window}");
        fleet.leap(Duration::from_secs(59)).await;
        assert_eq!(apis[window % 3].get("/account").await.header("retry-after"), Some("1"));
        fleet.leap(Duration::from_secs(1)).await;
    }
}

/// What one host has admitted, another one knows at once.
#[tokio::test]
async fn window_that_one_host_has_filled_is_full_at_another() {
    let fleet = TestFleet::start(2).await;
    fleet.pass(Duration::from_secs(3)).await;
    let ada = fleet.hosts[0].person("ada").await;
    for number in 0..PER_MINUTE {
        let answer = fleet.hosts[0].api(&ada.key).get("/account").await;
        assert_eq!(answer.outcome(), "200", "request {number}");
    }
    let refused = fleet.hosts[1].api(&ada.key).get("/account").await;
    assert_eq!((refused.outcome().as_str(), refused.header("retry-after")), ("429 rate_limited", Some("60")));
}

/// Who guesses at a password at one host after the other waits as at one, and the right one ends that.
#[tokio::test]
async fn wrong_passwords_at_all_hosts_are_counted_together() {
    let fleet = TestFleet::start(3).await;
    fleet.pass(Duration::from_secs(3)).await;
    let ada = fleet.hosts[0].person("ada").await;
    Tab::with_password(&fleet.hosts[0], ada.account_id).await;
    let wrong = tried(&fleet.hosts[1], "wrong").await;
    assert_eq!(wrong.1, None);
    for host in [1, 2] {
        assert_eq!(tried(&fleet.hosts[host], "wrong").await, wrong);
    }
    for host in [1, 2] {
        assert_eq!(tried(&fleet.hosts[host], "wrong").await, (429, Some(1)), "host {host}");
    }
    fleet.pass(Duration::from_secs(3)).await;
    assert_eq!(tried(&fleet.hosts[0], PASSWORD).await.0, 303);
    for host in [2, 1, 2] {
        assert_eq!(tried(&fleet.hosts[host], "wrong").await, wrong, "host {host}");
    }
}
