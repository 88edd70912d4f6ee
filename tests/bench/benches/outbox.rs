//! Deliveries: what a claim costs amid ten thousand others, and how soon what is due is taken up.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark ends where something is not as it must be")]
#![allow(clippy::disallowed_methods, reason = "this is what measures time")]

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use culvert::app::Host;
use culvert::config::Config;
use culvert_bench::{median, verdict};
use culvert_domain::event::EventKind;
use culvert_domain::webhook::{AttemptError, Outcome, Webhook, WebhookStatus};
use culvert_service::jobs::Ticker;
use culvert_service::secrets::{Purpose, Secrets};
use culvert_store::Store;
use culvert_store::db::Db;
use culvert_store::outbox::UnderWay;
use culvert_wire::clock::Clock;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool};
use sqlx::{Row, SqliteConnection};
use tempfile::TempDir;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

const OPEN: usize = 10_000;
const CLAIMS: usize = 300;
const EVENTS: usize = 200;
/// How long a claim holds (`store/outbox.rs`): a claimed row's `run_at` is so much behind its claim.
const LEASE_MICROS: i64 = 60_000_000;

#[tokio::main]
async fn main() {
    let (alone, scheduled, due) = (Stage::new().await, Stage::new().await, Stage::new().await);
    scheduled.fill(500, OPEN / 500, Duration::from_hours(1)).await;
    due.fill(1, OPEN, Duration::ZERO).await;
    // Two of the one endpoint's are under way from here on; the others wait for them.
    assert_eq!(due.store.claim_deliveries(64, UnderWay::default(), opened).await.unwrap().len(), 2);
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..CLAIMS {
        for (times, stage) in times.iter_mut().zip([&alone, &scheduled, &due]) {
            times.push(stage.claim_one().await.as_secs_f64() * 1e6);
        }
    }
    let [alone, amid_scheduled, amid_due] = times.map(median);
    println!("one claim, the median of {CLAIMS}, in microseconds");
    println!(
        "  alone {alone:.0}, amid {OPEN} for later {amid_scheduled:.0}, amid {OPEN} due to one hung endpoint {amid_due:.0}"
    );
    verdict("amid 10,000 for later, to alone", amid_scheduled / alone, "<= 1.10", amid_scheduled <= 1.1 * alone);
    verdict("amid 10,000 due to a hung endpoint, to alone", amid_due / alone, "<= 1.10", amid_due <= 1.1 * alone);
    pick_up(&scheduled).await;
}

/// How long it takes from when a delivery is due to when it is taken up, for new events and for
/// retries, with the delivery worker running.
async fn pick_up(stage: &Stage) {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut config =
        Config { data_dir: stage.folder.path().into(), listen: any, admin_listen: any, ..Config::default() };
    config.node.listen = any;
    config.webhooks.allow_networks = vec!["127.0.0.0/8".parse().unwrap()];
    let host = Host::start(config, Clock::system(), Ticker::Auto).await.unwrap();
    let webhooks: Vec<Uuid> = stage.webhooks(20).await;
    for number in 0..EVENTS {
        let (scope_id, webhook_id) = (stage.scope_id, webhooks[number % webhooks.len()]);
        let write = host.app.store.write(Some(scope_id), move |write| {
            Box::pin(async move { culvert_service::events::webhook_test(write, scope_id, webhook_id).await })
        });
        write.await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::time::sleep(Duration::from_secs(72)).await;
    let pool = stage.pool().await;
    let first = "SELECT run_at - created_at AS late FROM deliveries WHERE attempt = 1 AND lease = 1 AND error = 'connect_failed'";
    let again = "SELECT n.run_at - d.next_attempt_at AS late FROM deliveries d JOIN deliveries n ON n.event_id = d.event_id \
                 AND n.attempt = 2 AND n.lease = 1 WHERE d.attempt = 1 AND d.error = 'connect_failed'";
    println!("from due to taken up, in milliseconds, with {OPEN} other open deliveries");
    for (what, sql) in [("new events", first), ("first retries", again)] {
        let rows = sqlx::query(sql).fetch_all(&pool).await.unwrap();
        let mut late: Vec<f64> =
            rows.iter().map(|row| (row.get::<i64, _>("late") - LEASE_MICROS) as f64 / 1e3).collect();
        late.sort_by(f64::total_cmp);
        assert!(late.len() >= EVENTS * 9 / 10, "{} of {EVENTS}", late.len());
        let p99 = late[(late.len() - 1) * 99 / 100];
        println!("  {what}: p50 {:.1}", late[late.len() / 2]);
        verdict(&format!("{what}, p99"), p99, "<= 50", p99 <= 50.0);
    }
}

/// A database, and nobody who delivers.
struct Stage {
    store: Store,
    secrets: Secrets,
    clock: Clock,
    folder: TempDir,
    scope_id: Uuid,
}

impl Stage {
    async fn new() -> Self {
        let (folder, clock) = (tempfile::tempdir().unwrap(), Clock::system());
        let db = Db::open(&format!("sqlite:{}", folder.path().join("culvert.db").display())).await.unwrap();
        db.migrate().await.unwrap();
        let secrets = Secrets::open(&folder.path().join("secret.key"), &clock).unwrap();
        let (store, _) = Store::new(db, clock.clone(), TaskTracker::new());
        let account = store.write(None, |write| {
            Box::pin(async move { write.create_account("b@example.com", "B", "self-hosted").await })
        });
        let scope_id = account.await.unwrap().unwrap().id;
        Self { store, secrets, clock, folder, scope_id }
    }

    /// Endpoints at which nobody listens.
    async fn webhooks(&self, count: usize) -> Vec<Uuid> {
        let mut ids = Vec::new();
        for _ in 0..count {
            let (id, now) = (self.clock.id(), self.clock.now());
            let secret = self.secrets.seal(Purpose::Webhooks, id.as_bytes(), b"secret");
            let webhook = Webhook {
                id,
                scope_id: self.scope_id,
                url: "https://127.0.0.1:1/".into(),
                events: vec![EventKind::DeviceOnline],
                description: None,
                status: WebhookStatus::Enabled,
                last_delivery: None,
                created_at: now,
                updated_at: now,
            };
            let write = self
                .store
                .write(None, move |write| Box::pin(async move { write.insert_webhook(&webhook, &secret).await }));
            write.await.unwrap();
            ids.push(id);
        }
        ids
    }

    async fn pool(&self) -> SqlitePool {
        let file = self.folder.path().join("culvert.db");
        SqlitePool::connect_with(SqliteConnectOptions::new().filename(Path::new(&file))).await.unwrap()
    }

    /// Deliveries that are open, written straight into the database.
    async fn fill(&self, endpoints: usize, each: usize, later: Duration) {
        let webhooks = self.webhooks(endpoints).await;
        let now = self.clock.now().timestamp_micros();
        let at = now + i64::try_from(later.as_micros()).unwrap();
        let mut connection = self.pool().await.acquire().await.unwrap().detach();
        sqlx::query("BEGIN").execute(&mut connection).await.unwrap();
        for webhook in webhooks {
            for _ in 0..each {
                insert(&mut connection, self.scope_id, webhook, now, at).await;
            }
            sqlx::query("UPDATE webhooks SET due_at = $2 WHERE id = $1")
                .bind(webhook)
                .bind(at)
                .execute(&mut connection)
                .await
                .unwrap();
        }
        sqlx::query("COMMIT").execute(&mut connection).await.unwrap();
    }

    /// How long it takes to take up the one delivery that is due.
    async fn claim_one(&self) -> Duration {
        let store = &self.store;
        let (scope_id, webhook_id) = (self.scope_id, self.webhooks(1).await[0]);
        let write = store.write(Some(scope_id), move |write| {
            Box::pin(async move { culvert_service::events::webhook_test(write, scope_id, webhook_id).await })
        });
        write.await.unwrap();
        let start = Instant::now();
        let mut claimed = store.claim_deliveries(64, UnderWay::default(), opened).await.unwrap();
        let took = start.elapsed();
        assert_eq!(claimed.len(), 1);
        let outcome = Outcome { status_code: None, error: Some(AttemptError::Timeout), duration: Duration::ZERO };
        store.settle_delivery(claimed.remove(0), outcome).await.unwrap();
        took
    }
}

/// The secret of every endpoint here.
fn opened(_: Uuid, _: &[u8]) -> Option<String> {
    Some("secret".into())
}

async fn insert(connection: &mut SqliteConnection, scope: Uuid, webhook: Uuid, now: i64, at: i64) {
    let event = Uuid::new_v4();
    let sql = "INSERT INTO events (id, scope_id, kind, body, created_at) VALUES ($1, $2, 'device.online', X'7b7d', $3)";
    sqlx::query(sql).bind(event).bind(scope).bind(now).execute(&mut *connection).await.unwrap();
    let sql = "INSERT INTO deliveries (id, webhook_id, event_id, attempt, status, run_at, in_flight, lease, next_attempt_at, \
                   created_at) VALUES ($1, $2, $3, 1, 'pending', $4, FALSE, 0, $4, $5)";
    let insert = sqlx::query(sql).bind(Uuid::new_v4()).bind(webhook).bind(event).bind(at).bind(now);
    insert.execute(&mut *connection).await.unwrap();
}
