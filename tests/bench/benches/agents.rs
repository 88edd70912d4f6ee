//! 10,000 agents of one host, each with a stopped tunnel: memory and processor when nothing happens, also with 1,000 of
//! the tunnels running, a start meanwhile, and how all come back after the host was killed.
//!
//! The agents are processes beside the host, on the same cores.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "this is what it is for")]
#![allow(clippy::disallowed_methods, reason = "it measures time")]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use culvert_bench::agents::{Agents, Plan, Report, make_key, play_if_asked};
use culvert_bench::load::paced;
use culvert_bench::service::{ADDRESS, Service, until};
use culvert_bench::verdict;
use culvert_wire::clock::Clock;
use futures_util::{StreamExt, stream};
use serde_json::json;
use sqlx::SqlitePool;
use sqlx::sqlite::SqliteConnectOptions;
use uuid::Uuid;

const AGENTS: usize = 10_000;
const PROCESSES: usize = 2;
const RUNNING: usize = 1_000;
const STARTS: usize = 200;
const WATCHED: Duration = Duration::from_secs(30);

fn main() {
    play_if_asked();
    tokio::runtime::Runtime::new().unwrap().block_on(measure());
}

async fn measure() {
    culvert_wire::socket::allow_many();
    let settings = [
        ("CULVERT_RATE_LIMIT__PER_MINUTE", "1000000"),
        ("CULVERT_RATE_LIMIT__PER_DAY", "10000000"),
        ("CULVERT_NODE__PORTS", "20000-31999"),
        ("CULVERT_API__CONNECTIONS", "30000"),
    ];
    let mut service = Service::with(&settings).await;
    let (devices, state) = enrol(&service).await;
    let tunnels = create_tunnels(&service).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let idle = service.host().resident();

    let (host, began) = (SocketAddr::new(ADDRESS.parse().unwrap(), 8080), Instant::now());
    let plan =
        |devices: &[Uuid]| Plan { host, state: state.clone(), devices: devices.into(), over: Duration::from_secs(30) };
    let processes: Vec<_> = devices.chunks(AGENTS / PROCESSES).map(|devices| Agents::spawn(&plan(devices))).collect();
    until(async || total(&processes).connected == AGENTS as u64).await;
    println!("{AGENTS} agents connected after {:.0} s", began.elapsed().as_secs_f64());
    tokio::time::sleep(Duration::from_secs(70)).await;
    let each = (service.host().resident() - idle) * 1024.0 / AGENTS as f64;
    verdict("KiB of the host for an agent", each, "<= 60", each <= 60.0);
    watch(&service, "nothing happens").await;

    let pairs: Vec<(Uuid, Uuid)> = devices.iter().copied().zip(tunnels).collect();
    let starts = time_starts(&service, &pairs[..STARTS]).await;
    verdict("ms until a start has succeeded, p99", starts, "<= 100", starts <= 100.0);
    stream::iter(&pairs[STARTS..RUNNING])
        .for_each_concurrent(8, async |pair| {
            let _ = start(&service, *pair).await;
        })
        .await;
    watch(&service, &format!("{RUNNING} of the tunnels run")).await;

    let before = total(&processes);
    service.kill_and_restart_host().await;
    let (ready, read) = (Instant::now(), read(&service));
    let api = tokio::spawn(async move { paced(host, 8, 200, Duration::from_secs(30), read).await });
    until(async || total(&processes).connected == AGENTS as u64).await;
    let back = ready.elapsed().as_secs_f64();
    verdict("s until all are back after a kill", back, "<= 30", back <= 30.0);
    let refused = (total(&processes).refused - before.refused) as f64;
    verdict("agents that were refused", refused, "= 0", refused == 0.0);
    let p99 = api.await.unwrap().p99.as_secs_f64() * 1e3;
    verdict("ms of a read by the API meanwhile, p99", p99, "<= 100", p99 <= 100.0);
}

fn total(processes: &[Agents]) -> Report {
    processes.iter().map(Agents::report).fold(Report::default(), |sum, one| Report {
        connected: sum.connected + one.connected,
        refused: sum.refused + one.refused,
    })
}

/// What enrolment leaves in the database, for all devices at once.
async fn enrol(service: &Service) -> (Vec<Uuid>, std::path::PathBuf) {
    let (state, public_key) = make_key(service.folder());
    let file = service.folder().join("culvert-data/culvert.db");
    let options = SqliteConnectOptions::new().filename(file).busy_timeout(Duration::from_secs(30));
    let pool = SqlitePool::connect_with(options).await.unwrap();
    let account: Uuid = sqlx::query_scalar("SELECT id FROM accounts").fetch_one(&pool).await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    let clock = Clock::system();
    let mut devices = Vec::new();
    for _ in 0..AGENTS {
        let id = clock.id();
        let insert = "INSERT INTO devices (id, scope_id, owner_id, capabilities, public_key, remote_control, \
                          consent_revision, created_at) VALUES ($1, $2, $2, '', $3, 1, 0, $4)";
        let insert = sqlx::query(insert).bind(id).bind(account).bind(&public_key);
        insert.bind(clock.now().timestamp_micros()).execute(&mut *tx).await.unwrap();
        devices.push(id);
    }
    tx.commit().await.unwrap();
    (devices, state)
}

async fn create_tunnels(service: &Service) -> Vec<Uuid> {
    let create = |_| async {
        let tunnel = service.post("tunnels", json!({"local_host": ADDRESS, "local_port": 80})).await;
        tunnel["id"].as_str().unwrap().parse::<Uuid>().unwrap()
    };
    stream::iter(0..AGENTS).map(create).buffer_unordered(8).collect().await
}

async fn watch(service: &Service, what: &str) {
    let (before, since) = (service.host().cpu(), Instant::now());
    tokio::time::sleep(WATCHED).await;
    let share = (service.host().cpu() - before) / since.elapsed().as_secs_f64() * 100.0;
    verdict(&format!("% of a core when {what}"), share, "<= 20", share <= 20.0);
}

/// Starts a tunnel at a device, and waits until the operation has succeeded.
async fn start(service: &Service, (device, tunnel): (Uuid, Uuid)) -> Duration {
    let began = Instant::now();
    let operation = service.post(&format!("tunnels/{tunnel}/actions/start"), json!({"device_id": device})).await;
    let path = format!("operations/{}", operation["id"].as_str().unwrap());
    loop {
        let operation = service.get(&path).await;
        match operation["status"].as_str().unwrap() {
            "succeeded" => return began.elapsed(),
            "queued" | "claimed" | "running" => tokio::time::sleep(Duration::from_millis(2)).await,
            _ => panic!("{operation}"),
        }
    }
}

/// The p99 in milliseconds.
async fn time_starts(service: &Service, pairs: &[(Uuid, Uuid)]) -> f64 {
    let mut times = Vec::new();
    for pair in pairs {
        times.push(start(service, *pair).await);
    }
    times.sort_unstable();
    times[times.len() * 99 / 100].as_secs_f64() * 1e3
}

fn read(service: &Service) -> impl Fn() -> String + Clone + Send + use<> + 'static {
    let request =
        format!("GET /v2/devices?limit=1 HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {}\r\n\r\n", service.key());
    move || request.clone()
}
