//! Heartbeats: they keep devices online and leases alive without the database, which hears of them once a minute.

use std::time::Duration;

use chrono::TimeDelta;
use culvert_domain::session::EndReason;
use culvert_service::jobs::ticker;
use culvert_service::sessions;
use culvert_test_macros::both_engines;
use culvert_wire::control::{Done, Grant, ToAgent, ToHost};
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use uuid::Uuid;

use crate::support::api::Api;
use crate::support::cable::Cable;
use crate::support::database::texts_of;
use crate::support::host::{Engine, TestHost, within};
use crate::support::postgres::new_database;
use crate::support::wire::Wire;

const HEARTBEAT: Duration = Duration::from_secs(10);

/// A device that runs a tunnel, of which the test holds the wire.
struct Stage {
    host: TestHost,
    api: Api,
    scope: Uuid,
    tunnel: Uuid,
    device: Uuid,
    wire: Wire,
    grant: Grant,
}

impl Stage {
    async fn set(host: TestHost) -> Self {
        let ada = host.person("ada").await;
        let api = host.api(&ada.key);
        let tunnel = api.post("/tunnels", json!({"local_port": 80})).await.id();
        let (device, mut wire) = host.wired(&ada, ada.account_id).await;
        api.post(&format!("/tunnels/{tunnel}/actions/start"), json!({"device_id": device.id})).await.id();
        let grant = wire.obey(Done::Start).await.unwrap();
        Self { host, api, scope: ada.account_id, tunnel, device: device.id, wire, grant }
    }

    /// Lets heartbeats come, each ten seconds after the one before.
    async fn beat(&mut self, times: u32) {
        for _ in 0..times {
            self.host.clock.advance(HEARTBEAT);
            assert_eq!(self.wire.renew(&[self.grant.lease_id]).await, [self.grant.lease_id]);
        }
    }

    async fn states(&self) -> (String, bool) {
        let tunnel = self.api.get(&format!("/tunnels/{}", self.tunnel)).await;
        let device = self.api.get(&format!("/devices/{}", self.device)).await;
        (tunnel.data()["status"].as_str().unwrap().into(), device.data()["online"].as_bool().unwrap())
    }

    /// When the store takes the lease to end, in seconds from now.
    async fn stored_end(&self) -> i64 {
        let lease = self.host.app.store.lease_of_tunnel(self.tunnel).await.unwrap().unwrap();
        (lease.lease_until - self.host.clock.now()).num_seconds()
    }
}

fn running() -> (String, bool) {
    ("running".into(), true)
}

#[both_engines]
async fn heartbeat_that_changes_nothing_sends_no_statement(engine: Engine) {
    let mut stage = Stage::set(TestHost::start(engine).await).await;
    // The first one asks the store about the lease.
    stage.beat(1).await;
    // A heartbeat is counted after it was answered.
    let statements_of = async |stage: &Stage, beats: f64| {
        let host = &stage.host;
        let counted = async || host.metric("culvert_agent_heartbeats_total").await.filter(|count| *count == beats);
        host.until_found(counted).await;
        host.metric("culvert_agent_heartbeat_statements_total").await.unwrap()
    };
    let before = statements_of(&stage, 1.0).await;
    stage.beat(20).await;
    let sent = statements_of(&stage, 21.0).await - before;
    // The connection may hear of the start's last commits only now. Each has one heartbeat ask whether a tunnel waits.
    assert!(sent <= 3.0, "{sent} statements");
    stage.host.pass(Duration::ZERO).await;
    assert_eq!(stage.states().await, running());
}

#[both_engines]
async fn store_hears_once_a_minute_who_is_alive(engine: Engine) {
    let mut stage = Stage::set(TestHost::start(engine).await).await;
    stage.beat(1).await;
    let first = stage.stored_end().await;
    stage.beat(4).await;
    stage.host.pass(Duration::ZERO).await;
    assert_eq!(stage.stored_end().await, first - 40, "nothing was recorded");
    stage.beat(1).await;
    stage.host.pass(Duration::ZERO).await;
    assert_eq!(stage.stored_end().await, first, "a minute after the start");
}

/// The database has the device as alive for minutes, and the host knows better.
#[both_engines]
async fn silent_device_is_offline_after_45_seconds_and_its_lease_over_after_30(engine: Engine) {
    let mut stage = Stage::set(TestHost::start(engine).await).await;
    stage.beat(7).await;
    stage.host.pass(Duration::from_secs(29)).await;
    assert_eq!(stage.states().await, running());
    stage.host.pass(Duration::from_secs(1)).await;
    assert!(stage.states().await.1);
    assert_eq!(stage.host.app.store.lease_of_tunnel(stage.tunnel).await.unwrap().map(|lease| lease.session_id), None);
    stage.host.pass(Duration::from_secs(15)).await;
    assert!(!stage.states().await.1);
}

#[both_engines]
async fn lease_that_has_ended_is_not_renewed(engine: Engine) {
    let mut stage = Stage::set(TestHost::start(engine).await).await;
    stage.beat(1).await;
    assert_eq!(stage.api.delete(&format!("/tunnels/{}", stage.tunnel)).await.status, 200);
    let revoked = |frame| if let ToAgent::Revoke { lease_id, .. } = frame { Some(lease_id) } else { None };
    assert_eq!(stage.wire.until(revoked).await, stage.grant.lease_id);
    assert!(stage.wire.renew(&[stage.grant.lease_id]).await.is_empty());
}

/// What is alive goes on without the database, and is not ended when it is back.
#[tokio::test]
async fn database_that_is_away_for_90_seconds_ends_nothing() {
    let cable = Cable::of_database(&new_database().await).await;
    let host = TestHost::with(Engine::Postgres, |config| config.database_url = Some(cable.url.clone())).await;
    let mut stage = Stage::set(host).await;
    stage.beat(5).await;
    cable.cut();
    stage.beat(9).await;
    ticker::tick(&stage.host.app.jobs, 1).await;
    cable.mend();
    stage.host.until_found(async || stage.host.app.store.answers().await.then_some(())).await;
    stage.host.pass(Duration::from_secs(1)).await;
    assert_eq!(stage.states().await, running());
    stage.beat(1).await;
}

/// The agent stays connected all the time.
#[both_engines]
async fn end_of_a_suspension_resumes_what_ran(engine: Engine) {
    let mut stage = Stage::set(TestHost::start(engine).await).await;
    let (scope, until) = (stage.scope, stage.host.clock.now() + TimeDelta::seconds(20));
    let suspended = stage.host.app.store.write(Some(scope), move |write| {
        Box::pin(async move {
            write.suspend_scope(scope, until).await?;
            sessions::end_of_scope(write, scope, EndReason::LimitReached).await
        })
    });
    suspended.await.unwrap();
    stage.host.pass(Duration::ZERO).await;
    assert_eq!(stage.states().await, ("suspended".into(), true));
    stage.host.pass(Duration::from_secs(19)).await;
    assert!(stage.wire.renew(&[]).await.is_empty());
    stage.host.pass(Duration::from_secs(1)).await;
    let resumed = within(20, async {
        loop {
            stage.wire.send(ToHost::Renew { sequence: 1, lease_ids: Vec::new() }).await;
            if let ToAgent::Resume { grant } = stage.wire.next().await.unwrap() {
                break grant;
            }
        }
    });
    assert_eq!(resumed.await.tunnel_id, stage.tunnel);
}

/// Who is alive is recorded by connections of its own.
#[tokio::test]
async fn scopes_that_are_locked_do_not_keep_the_store_from_hearing_who_is_alive() {
    let mut stage = Stage::set(TestHost::start(Engine::Postgres).await).await;
    stage.beat(1).await;
    let first = stage.stored_end().await;
    let mut apis = Vec::new();
    for number in 0..16 {
        apis.push(stage.host.api(&stage.host.person(&format!("person-{number}")).await.key));
    }
    let url = stage.host.config().database_url();
    let mut locking = PgConnection::connect(&url).await.unwrap();
    let mut watching = PgConnection::connect(&url).await.unwrap();
    sqlx::raw_sql("BEGIN; SELECT id FROM scopes FOR UPDATE").execute(&mut locking).await.unwrap();
    // As many requests as the host has connections, each of a scope of its own.
    let request = |api: Api| async move { api.post("/tunnels", json!({"local_port": 80})).await.status };
    let waiting: Vec<_> = apis.into_iter().map(|api| tokio::spawn(request(api))).collect();
    let waits = "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    stage
        .host
        .until_found(async || {
            let waits: i64 = sqlx::query_scalar(waits).fetch_one(&mut watching).await.unwrap();
            (waits == 16).then_some(())
        })
        .await;
    stage.beat(5).await;
    let recorded = "SELECT MAX(lease_until) FROM sessions";
    let before: i64 = sqlx::query_scalar(recorded).fetch_one(&mut watching).await.unwrap();
    let jobs = stage.host.app.jobs.clone();
    let tick = tokio::spawn(async move { ticker::tick(&jobs, 1).await });
    stage
        .host
        .until_found(async || {
            let now: i64 = sqlx::query_scalar(recorded).fetch_one(&mut watching).await.unwrap();
            (now > before).then_some(())
        })
        .await;
    sqlx::raw_sql("ROLLBACK").execute(&mut locking).await.unwrap();
    for answer in waiting {
        assert_eq!(answer.await.unwrap(), 201);
    }
    tick.await.unwrap();
    assert_eq!(stage.stored_end().await, first, "it was recorded");
}

/// An agent that hangs up while it is let in is held by nobody, so that it is found silent in time.
#[tokio::test]
async fn agent_that_hangs_up_while_it_is_let_in_is_not_held() {
    let host = TestHost::start(Engine::Postgres).await;
    let ada = host.person("ada").await;
    let device = host.enrol(&ada, ada.account_id, &[]).await;
    let url = host.config().database_url();
    let mut other = PgConnection::connect(&url).await.unwrap();
    let lock = format!("BEGIN; SELECT id FROM scopes WHERE id = '{}' FOR UPDATE", ada.account_id);
    sqlx::raw_sql(AssertSqlSafe(lock)).execute(&mut other).await.unwrap();
    let waits =
        async { while texts_of(&url, "SELECT 'waits' AS text FROM pg_locks WHERE NOT granted").await.is_empty() {} };
    tokio::select! {
        _ = host.hello(&device, |_| {}) => panic!("it is let in"),
        () = within(20, waits) => {}
    }
    other.close().await.unwrap();
    let held = "SELECT COALESCE(CAST(host_id AS TEXT), 'nobody') AS text FROM device_presence";
    within(20, async { while texts_of(&url, held).await != ["nobody"] {} }).await;
}
