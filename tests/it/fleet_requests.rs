//! Requests of one client that go to any host.

use std::time::Duration;

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::json;

use crate::support::api::{Answer, Api};
use crate::support::fleet::TestFleet;

/// A fleet that hosts have heard of each other in, and somebody's access to each of them.
async fn stage() -> (TestFleet, Vec<Api>) {
    let fleet = TestFleet::start(3).await;
    fleet.pass(Duration::from_secs(3)).await;
    let ada = fleet.hosts[0].person("ada").await;
    let apis = fleet.hosts.iter().map(|host| host.api(&ada.key)).collect();
    (fleet, apis)
}

async fn create(api: &Api, key: &str) -> Answer {
    let create = api.request(Method::POST, "/tunnels").json(&json!({"local_port": 80, "name": key}));
    api.send(create.header("idempotency-key", key)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twins_at_all_hosts_have_one_effect_and_one_answer() {
    let (_fleet, apis) = stage().await;
    for number in 0..20 {
        let key = format!("key-{number}");
        let answers = join_all(apis.iter().map(|api| create(api, &key))).await;
        let outcomes: Vec<_> = answers.iter().map(Answer::outcome).collect();
        assert!(answers.iter().all(|answer| answer.status == 201), "{outcomes:?}");
        assert!(answers.iter().all(|answer| answer.text == answers[0].text));
        let replayed = answers.iter().filter(|answer| answer.header("idempotent-replayed") == Some("true"));
        assert_eq!(replayed.count(), 2);
    }
    assert_eq!(apis[0].get("/account/usage").await.data()["total_tunnels"], 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_of_one_scope_at_all_hosts_are_refused_to_nobody() {
    let (_fleet, apis) = stage().await;
    let keys: Vec<_> = (0..96).map(|number| format!("key-{number}")).collect();
    let creates = keys.iter().enumerate().map(|(number, key)| create(&apis[number % apis.len()], key));
    let refused: Vec<_> =
        join_all(creates).await.iter().filter(|answer| answer.status != 201).map(Answer::outcome).collect();
    assert_eq!(refused, [""; 0]);
    assert_eq!(apis[0].get("/account/usage").await.data()["total_tunnels"], keys.len());
}

#[tokio::test]
async fn page_is_continued_at_another_host() {
    let (_fleet, apis) = stage().await;
    for number in 0..7 {
        create(&apis[number % apis.len()], &format!("key-{number}")).await.id();
    }
    let (mut names, mut next, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let page = apis[pages % apis.len()].get(&format!("/tunnels?limit=2{next}")).await;
        names.extend(page.body["data"].as_array().unwrap().iter().map(|tunnel| tunnel["name"].clone()));
        pages += 1;
        match page.body["meta"]["next_cursor"].as_str() {
            Some(cursor) => next = format!("&cursor={cursor}"),
            None => break,
        }
    }
    names.sort_by_key(ToString::to_string);
    let created: Vec<_> = (0..7).map(|number| json!(format!("key-{number}"))).collect();
    assert_eq!((names, pages), (created, 4));
}
