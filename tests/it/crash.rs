//! The host is killed in the middle of creates, again and again: what was acknowledged is there, and
//! every Idempotency-Key has one effect.

use std::collections::BTreeSet;

use crate::support::host::Engine;
use culvert_test_macros::both_engines;
use culvert_wire::clock::Clock;
use reqwest::Client;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::program::Place;

/// Kills of one engine, unless `KILLS` says how many there are of both.
const ROUNDS: usize = 50;

/// The environment variable that says how often hosts are killed.
const KILLS: &str = "KILLS";
/// Creates that a round begins; it is killed before they are all answered.
const CREATES: usize = 48;

/// One create, named by its Idempotency-Key: what it made, and whether that had been made before.
/// The error is that of the network.
async fn create(client: &Client, url: &str, key: &str, name: &str) -> reqwest::Result<(Value, bool)> {
    let request = client.post(format!("{url}/v2/tunnels")).bearer_auth(key).header("idempotency-key", name);
    let response = request.json(&json!({"local_port": 80, "name": name})).send().await?;
    let (status, replayed) = (response.status().as_u16(), response.headers().contains_key("idempotent-replayed"));
    let body: Value = response.json().await?;
    assert_eq!(status, 201, "{name}: {body}");
    Ok((body["data"].clone(), replayed))
}

/// Begins creates and kills the host in the middle; the tunnels that were acknowledged, by their keys.
async fn round(place: &Place, key: &str, round: usize) -> Vec<(String, Option<Value>)> {
    let host = place.serve().await;
    let client = Client::builder().no_proxy().build().unwrap();
    let mut creates = JoinSet::new();
    for number in 0..CREATES {
        let (client, url, key, name) = (client.clone(), place.url(), key.to_owned(), format!("{round}-{number}"));
        creates.spawn(async move {
            let made = create(&client, &url, &key, &name).await.ok();
            (name, made.map(|(tunnel, _)| tunnel))
        });
    }
    let [draw] = Clock::system().random::<1>();
    let mut asked = Vec::new();
    for _ in 0..usize::from(draw) % (CREATES / 2) {
        asked.push(creates.join_next().await.unwrap().unwrap());
    }
    host.kill().await;
    asked.extend(creates.join_all().await);
    asked
}

#[both_engines]
async fn host_kill_neither_loses_nor_duplicates_creates(engine: Engine) {
    let place = Place::new(engine)
        .await
        .set("CULVERT_RATE_LIMIT__PER_MINUTE", "1000000")
        .set("CULVERT_RATE_LIMIT__PER_DAY", "1000000");
    place.json("culvert account create --email ada@example.com --name Ada").await;
    let key = place.json("culvert key create --account ada@example.com --scopes full_access").await;
    let key = key["key"].as_str().unwrap();
    let mut asked = Vec::new();
    let rounds = std::env::var(KILLS).map_or(ROUNDS, |kills| kills.parse::<usize>().unwrap() / 2);
    for number in 0..rounds {
        asked.extend(round(&place, key, number).await);
    }
    let host = place.serve().await;
    let client = Client::builder().no_proxy().build().unwrap();
    let mut ids = BTreeSet::new();
    for (name, acknowledged) in &asked {
        let (now, replayed) = create(&client, &place.url(), key, name).await.unwrap();
        if let Some(acknowledged) = acknowledged {
            assert_eq!((&now, replayed), (acknowledged, true), "{name}");
        }
        ids.insert(now["id"].as_str().unwrap().to_owned());
    }
    assert_eq!(ids.len(), rounds * CREATES);
    let acknowledged = asked.iter().filter(|(_, answer)| answer.is_some()).count();
    assert!((1..asked.len()).contains(&acknowledged), "{acknowledged} of {} were answered", asked.len());
    let usage = client.get(format!("{}/v2/account/usage", place.url())).bearer_auth(key).send().await.unwrap();
    assert_eq!(usage.json::<Value>().await.unwrap()["data"]["total_tunnels"], rounds * CREATES);
    host.interrupt().await;
}
