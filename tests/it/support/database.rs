//! A look into the database, past everything that guards it.

use std::collections::BTreeMap;

use serde_json::Value;
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
    execute_at(&host.config().database_url(), sql).await;
}

/// As [`execute`], by the database's URL.
pub async fn execute_at(url: &str, sql: &'static str) {
    try_execute(url, sql).await.unwrap();
}

/// As [`execute_at`]; what the database says against it.
pub async fn try_execute(url: &str, sql: &'static str) -> Result<(), String> {
    let done = if url.starts_with("sqlite:") {
        let mut connection = SqliteConnection::connect(url).await.unwrap();
        sqlx::query(AssertSqlSafe(sql)).execute(&mut connection).await.map(drop)
    } else {
        let mut connection = PgConnection::connect(url).await.unwrap();
        sqlx::query(AssertSqlSafe(sql)).execute(&mut connection).await.map(drop)
    };
    done.map_err(|error| error.to_string())
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

/// Statements of a PostgreSQL database that wait for a lock.
pub const WAITING_FOR_LOCKS: &str = "SELECT query AS text FROM pg_stat_activity \
                                      WHERE datname = current_database() AND wait_event_type = 'Lock'";

/// Ends the sessions of a PostgreSQL database that listen.
pub const END_LISTENERS: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                                 WHERE datname = current_database() AND query LIKE 'LISTEN%'";

/// Waits until a statement finds something.
pub async fn until_there(url: &str, sql: &str) {
    while texts_of(url, sql).await.is_empty() {}
}

/// The number of rows in a table.
pub async fn count(url: &str, table: &str) -> i64 {
    let sql = AssertSqlSafe(format!("SELECT COUNT(*) FROM {table}"));
    if url.starts_with("sqlite:") {
        let mut connection = SqliteConnection::connect(url).await.unwrap();
        sqlx::query_scalar(sql).fetch_one(&mut connection).await.unwrap()
    } else {
        let mut connection = PgConnection::connect(url).await.unwrap();
        sqlx::query_scalar(sql).fetch_one(&mut connection).await.unwrap()
    }
}

/// Runs a script of statements, such as a dump, and makes a SQLite file that is not there.
pub async fn execute_script(url: &str, script: &str) {
    let script = sqlx::raw_sql(AssertSqlSafe(script.to_owned()));
    if url.starts_with("sqlite:") {
        let mut connection = SqliteConnection::connect(&format!("{url}?mode=rwc")).await.unwrap();
        script.execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
    } else {
        let mut connection = PgConnection::connect(url).await.unwrap();
        script.execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
    }
}

/// Columns of a table as objects; ids and bytes as hexadecimal text.
pub async fn rows(url: &str, table: &str, columns: &[String]) -> Vec<Value> {
    let is_sqlite = url.starts_with("sqlite:");
    let value = |column: &String| {
        if is_sqlite {
            format!("'{column}', CASE typeof({column}) WHEN 'blob' THEN lower(hex({column})) ELSE {column} END")
        } else {
            format!("'{column}', {column}")
        }
    };
    let columns: Vec<String> = columns.iter().map(value).collect();
    let object = if is_sqlite { "json_object" } else { "json_build_object" };
    let sql = format!("SELECT CAST({object}({}) AS TEXT) AS text FROM {table} ORDER BY 1", columns.join(", "));
    let texts: Vec<String> = if is_sqlite {
        let mut connection = SqliteConnection::connect(url).await.unwrap();
        let rows = sqlx::query(AssertSqlSafe(sql)).fetch_all(&mut connection).await.unwrap();
        rows.iter().map(|row| row.get("text")).collect()
    } else {
        texts_of(url, &sql).await
    };
    texts.iter().map(|text| serde_json::from_str(text).unwrap()).collect()
}

/// Every column of every table: its type, whether it may be null, its default.
pub async fn columns(url: &str) -> BTreeMap<String, String> {
    if url.starts_with("sqlite:") {
        let sql = "SELECT t.name || '.' || c.name AS name, \
                          c.type || ' ' || c.\"notnull\" || ' ' || COALESCE(c.dflt_value, '-') || ' ' || c.pk AS about \
                   FROM sqlite_master t JOIN pragma_table_info(t.name) c \
                   WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite_%' AND t.name NOT LIKE '_sqlx_%' \
                   UNION ALL \
                   SELECT 'index ' || name, COALESCE(sql, '-') FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL";
        let mut connection = SqliteConnection::connect(url).await.unwrap();
        let rows = sqlx::query(sql).fetch_all(&mut connection).await.unwrap();
        rows.iter().map(|row| (row.get("name"), row.get("about"))).collect()
    } else {
        let sql = "SELECT table_name || '.' || column_name AS name, \
                          data_type || ' ' || is_nullable || ' ' || COALESCE(column_default, '-') AS about \
                   FROM information_schema.columns WHERE table_schema = 'public' AND table_name NOT LIKE '\\_sqlx%' \
                   UNION ALL \
                   SELECT 'constraint ' || conrelid::regclass || ' ' || conname, pg_get_constraintdef(oid) \
                   FROM pg_constraint WHERE connamespace = 'public'::regnamespace \
                   UNION ALL \
                   SELECT 'index ' || indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'";
        let mut connection = PgConnection::connect(url).await.unwrap();
        let rows = sqlx::query(sql).fetch_all(&mut connection).await.unwrap();
        rows.iter().map(|row| (row.get("name"), row.get("about"))).collect()
    }
}
