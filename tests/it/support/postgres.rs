//! Databases on the PostgreSQL server of the tests.

use std::path::Path;

use culvert_wire::clock::Clock;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};
use uuid::Uuid;

/// The environment variable that says where the PostgreSQL server is: `postgres://user@host:port`.
const POSTGRES: &str = "TEST_POSTGRES";

/// How many databases of tests that have ended there may be. Each takes about ten MB.
const MOST_UNUSED: usize = 40;
/// How many of them one test drops: each takes two seconds on a busy disk, of the time that the test has.
const DROPPED_AT_ONCE: usize = 8;

/// A database of this test's own, made from the migrated template.
pub async fn new_database() -> String {
    create_database("culvert_template").await
}

/// A PostgreSQL database without any table.
pub async fn empty_database() -> String {
    create_database("template0").await
}

async fn create_database(template: &str) -> String {
    let server = std::env::var(POSTGRES)
        .unwrap_or_else(|_| panic!("{POSTGRES} is not set: `tests/run` starts a PostgreSQL server and sets it"));
    let mut connection = PgConnection::connect(&format!("{server}/postgres")).await.unwrap();
    drop_unused(&mut connection).await;
    let id = Uuid::from_bytes(Clock::system().random());
    let name = format!("test_{}_{}", std::process::id(), id.simple());
    let create = format!("CREATE DATABASE {name} TEMPLATE {template}");
    connection.execute(AssertSqlSafe(create)).await.unwrap();
    format!("{server}/{name}")
}

/// Drops the databases of processes that have ended, once there are many of them.
async fn drop_unused(connection: &mut PgConnection) {
    let names: Vec<String> = sqlx::query_scalar("SELECT datname::TEXT FROM pg_database WHERE datname LIKE 'test\\_%'")
        .fetch_all(&mut *connection)
        .await
        .unwrap();
    let unused: Vec<String> = names.into_iter().filter(|name| has_ended(name)).collect();
    if unused.len() < MOST_UNUSED {
        return;
    }
    for name in unused.into_iter().take(DROPPED_AT_ONCE) {
        // Another test may drop the same ones now.
        let _ = connection.execute(AssertSqlSafe(format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"))).await;
    }
}

/// Whether the process in the name of a database has ended.
fn has_ended(database: &str) -> bool {
    let process_id = database.split('_').nth(1).unwrap();
    Path::new("/proc/self").exists() && !Path::new("/proc").join(process_id).exists()
}
