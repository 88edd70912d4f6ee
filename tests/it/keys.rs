//! API keys: which are good, and for how long.

use std::time::Duration;

use culvert_domain::caller::Role;
use culvert_domain::key::ApiKey;
use culvert_domain::permission::Permissions;
use culvert_test_macros::both_engines;
use reqwest::Method;

use crate::support::database::{count, execute};
use crate::support::host::{Engine, Person, TestHost};

/// covers: invalid_api_key
#[both_engines]
async fn malformed_or_unknown_api_key_is_unauthorized(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let never_made = ApiKey::generate(&host.clock);
    let mut last_changed = ada.key.clone();
    let last = last_changed.pop().unwrap();
    last_changed.push(if last == 'a' { 'b' } else { 'a' });
    // The public part of one key with the secret of another, checksum and all, is no key.
    for bad in ["", "x", "ctk_", never_made.reveal(), &last_changed, &ada.key[1..], "sk_live_0123456789"] {
        assert_eq!(api.with_key(bad).get("/account").await.outcome(), "401 invalid_api_key", "{bad}");
    }
    let header =
        |value: &str| api.without_key().request(Method::GET, "/account").header("authorization", value.to_owned());
    assert_eq!(api.send(header(&format!("bearer {}", ada.key))).await.status, 200, "the scheme has no case");
    for bad in [ada.key.clone(), format!("Basic {}", ada.key), "Bearer".into(), format!("Bearer {} x", ada.key)] {
        assert_eq!(api.send(header(&bad)).await.outcome(), "401 invalid_api_key", "{bad}");
    }
    let twice = header(&format!("Bearer {}", ada.key)).header("authorization", format!("Bearer {}", ada.key));
    assert_eq!(api.send(twice).await.outcome(), "401 invalid_api_key");
}

#[both_engines]
async fn revoked_key_is_rejected_within_a_second(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    assert_eq!(api.get("/account").await.status, 200);
    host.revoke(ada.key_id).await;
    host.clock.advance(Duration::from_secs(1));
    assert_eq!(api.get("/account").await.outcome(), "401 invalid_api_key");
}

async fn key_for_a_minute(host: &TestHost, person: &Person) -> ApiKey {
    let key = ApiKey::generate(&host.clock);
    let (made, id, until) = (key.clone(), person.account_id, host.clock.now() + chrono::TimeDelta::minutes(1));
    let permissions = Permissions::parse("account:read").unwrap();
    host.app
        .store
        .write(None, move |write| {
            Box::pin(async move { write.create_key(&made, id, id, permissions, Some(until), "").await })
        })
        .await
        .unwrap();
    key
}

#[both_engines]
async fn expired_key_is_rejected_at_expiry_time(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let key = key_for_a_minute(&host, &ada).await;
    let api = host.api(key.reveal());
    host.clock.advance(Duration::from_millis(59_999));
    assert_eq!(api.get("/account").await.status, 200);
    host.clock.advance(Duration::from_millis(1));
    assert_eq!(api.get("/account").await.outcome(), "401 invalid_api_key");
}

#[both_engines]
async fn ended_keys_are_deleted_after_thirty_days(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let revoked = host.key(ada.account_id, ada.account_id, "full_access").await;
    host.revoke(revoked.key_id).await;
    key_for_a_minute(&host, &ada).await;
    execute(&host, "INSERT INTO rate_windows SELECT id, 0, 0, 0, 0, 0 FROM api_keys").await;
    let url = host.config().database_url();
    let mut left = Vec::new();
    for days in [29, 2] {
        host.clock.advance(Duration::from_hours(24 * days));
        host.app.store.prune().await.unwrap();
        left.push((count(&url, "api_keys").await, count(&url, "rate_windows").await));
    }
    assert_eq!(left, [(3, 3), (1, 1)]);
    assert_eq!(host.api(&ada.key).get("/account").await.status, 200);
}

#[both_engines]
async fn team_key_is_rejected_after_membership_ends(engine: Engine) {
    let host = TestHost::start(engine).await;
    let (ada, bob) = (host.person("ada").await, host.person("bob").await);
    let team = host.team("Engines", &ada).await;
    host.join(team, &bob, Role::Member).await;
    let key = host.key(bob.account_id, team, "full_access").await;
    assert_eq!(host.api(&key.key).get("/account").await.data()["scope"]["role"], "member");
    let account_id = bob.account_id;
    host.app
        .store
        .write(Some(team), move |write| {
            Box::pin(async move { culvert_service::devices::remove_member(write, team, account_id).await })
        })
        .await
        .unwrap();
    host.clock.advance(Duration::from_secs(1));
    assert_eq!(host.api(&key.key).get("/account").await.outcome(), "401 invalid_api_key");
    assert_eq!(host.api(&bob.key).get("/account").await.status, 200, "their own scope is theirs");
}

#[both_engines]
async fn key_last_used_time_is_updated_once_a_minute(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let last_used = async || host.app.store.keys().await.unwrap()[0].last_used_at;
    assert_eq!(last_used().await, None);
    let first = host.clock.now();
    host.api(&ada.key).get("/account").await.data();
    host.pass(Duration::from_secs(1)).await;
    assert_eq!(last_used().await, Some(first));
    host.api(&ada.key).get("/account").await.data();
    host.pass(Duration::from_secs(1)).await;
    assert_eq!(last_used().await, Some(first));
    host.clock.advance(Duration::from_mins(1));
    let later = host.clock.now();
    host.api(&ada.key).get("/account").await.data();
    host.pass(Duration::from_secs(1)).await;
    assert_eq!(last_used().await, Some(later));
}
