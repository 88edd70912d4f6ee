//! A look into the database, past everything that guards it.

use sqlx::postgres::PgConnection;
use sqlx::sqlite::SqliteConnection;
use sqlx::{AssertSqlSafe, Connection, Row};

use super::host::TestHost;

/// The column `bytes` of a query.
pub async fn bytes_of(host: &TestHost, sql: &'static str) -> Vec<Vec<u8>> {
    let url = host.config().database_url();
    if url.starts_with("sqlite:") {
        let mut connection = SqliteConnection::connect(&url).await.unwrap();
        let rows = sqlx::query(AssertSqlSafe(sql)).fetch_all(&mut connection).await.unwrap();
        rows.iter().map(|row| row.get("bytes")).collect()
    } else {
        let mut connection = PgConnection::connect(&url).await.unwrap();
        let rows = sqlx::query(AssertSqlSafe(sql)).fetch_all(&mut connection).await.unwrap();
        rows.iter().map(|row| row.get("bytes")).collect()
    }
}

/// Changes what is in it, as no program of ours would.
pub async fn execute(host: &TestHost, sql: &'static str) {
    let url = host.config().database_url();
    if url.starts_with("sqlite:") {
        let mut connection = SqliteConnection::connect(&url).await.unwrap();
        sqlx::query(AssertSqlSafe(sql)).execute(&mut connection).await.unwrap();
    } else {
        let mut connection = PgConnection::connect(&url).await.unwrap();
        sqlx::query(AssertSqlSafe(sql)).execute(&mut connection).await.unwrap();
    }
}

/// Runs statements on a PostgreSQL database, as its owner.
pub async fn run(url: &str, sql: &str) {
    let mut connection = PgConnection::connect(url).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}

/// The column `text` of a query on a PostgreSQL database.
pub async fn texts_of(url: &str, sql: &str) -> Vec<String> {
    let mut connection = PgConnection::connect(url).await.unwrap();
    let rows = sqlx::query(AssertSqlSafe(sql.to_owned())).fetch_all(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    rows.iter().map(|row| row.get("text")).collect()
}
