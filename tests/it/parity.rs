//! The two databases have the same tables and columns, and both understand every statement.

use std::collections::BTreeMap;

use culvert_store::sql::{STATEMENTS, Sql};
use culvert_test_macros::both_engines;
use sqlx::postgres::PgConnection;
use sqlx::sqlite::SqliteConnection;
use sqlx::{Connection, Executor, Row, SqlStr};

use crate::support::host::{Engine, TestHost};

/// Every column, with whether it may be null; and every index, with its columns.
type Schema = BTreeMap<String, String>;

async fn sqlite(url: &str) -> Schema {
    let mut connection = SqliteConnection::connect(url).await.unwrap();
    let columns = "SELECT t.name || '.' || c.name AS name, c.\"notnull\" AS required \
                   FROM sqlite_master t JOIN pragma_table_info(t.name) c \
                   WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite_%' AND t.name NOT LIKE '_sqlx_%'";
    let rows = sqlx::query(columns).fetch_all(&mut connection).await.unwrap();
    let mut schema: Schema = rows
        .iter()
        .map(|row| (row.get("name"), if row.get("required") { "required" } else { "optional" }.into()))
        .collect();
    let strict = "SELECT name FROM pragma_table_list WHERE type = 'table' AND strict = 0 \
                  AND name NOT LIKE 'sqlite_%' AND name NOT LIKE '_sqlx_%'";
    let loose: Vec<String> =
        sqlx::query(strict).fetch_all(&mut connection).await.unwrap().iter().map(|row| row.get("name")).collect();
    assert!(loose.is_empty(), "not STRICT: {loose:?}");
    let indexes = "SELECT i.name, i.\"unique\" AS one, (SELECT group_concat(c.name) FROM pragma_index_info(i.name) c) AS columns \
                   FROM sqlite_master t JOIN pragma_index_list(t.name) i WHERE t.type = 'table' AND i.origin = 'c'";
    for row in sqlx::query(indexes).fetch_all(&mut connection).await.unwrap() {
        let unique: bool = row.get("one");
        schema.insert(
            format!("index {}", row.get::<String, _>("name")),
            format!("{} {unique}", row.get::<String, _>("columns")),
        );
    }
    schema
}

async fn postgres(url: &str) -> Schema {
    let mut connection = PgConnection::connect(url).await.unwrap();
    let columns = "SELECT table_name || '.' || column_name AS name, is_nullable = 'NO' AS required \
                   FROM information_schema.columns WHERE table_schema = 'public' AND table_name NOT LIKE '\\_sqlx%'";
    let rows = sqlx::query(columns).fetch_all(&mut connection).await.unwrap();
    let mut schema: Schema = rows
        .iter()
        .map(|row| (row.get("name"), if row.get("required") { "required" } else { "optional" }.into()))
        .collect();
    let indexes = "SELECT c.relname::text AS name, i.indisunique AS one, \
                          string_agg(a.attname, ',' ORDER BY array_position(i.indkey::int[], a.attnum::int)) AS columns \
                   FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_class t ON t.oid = i.indrelid \
                   JOIN pg_namespace n ON n.oid = t.relnamespace \
                   JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum = ANY(i.indkey) \
                   LEFT JOIN pg_constraint k ON k.conindid = i.indexrelid \
                   WHERE n.nspname = 'public' AND k.oid IS NULL AND t.relname NOT LIKE '\\_sqlx%' GROUP BY 1, 2";
    for row in sqlx::query(indexes).fetch_all(&mut connection).await.unwrap() {
        let unique: bool = row.get("one");
        schema.insert(
            format!("index {}", row.get::<String, _>("name")),
            format!("{} {unique}", row.get::<String, _>("columns")),
        );
    }
    schema
}

#[tokio::test]
async fn sqlite_and_postgres_schemas_are_identical() {
    let (one, other) = (TestHost::start(Engine::Sqlite).await, TestHost::start(Engine::Postgres).await);
    let sqlite = sqlite(&one.config().database_url()).await;
    let postgres = postgres(&other.config().database_url()).await;
    assert!(sqlite.len() > 100);
    assert_eq!(sqlite, postgres);
}

fn migrations(engine: &str) -> BTreeMap<String, String> {
    let folder = std::fs::read_dir(format!("migrations/{engine}")).unwrap();
    let file = |file: std::io::Result<std::fs::DirEntry>| {
        let path = file.unwrap().path();
        (path.file_stem().unwrap().to_str().unwrap().to_owned(), std::fs::read_to_string(&path).unwrap())
    };
    folder.map(file).collect()
}

#[test]
fn embedded_migrations_equal_the_files() {
    let embedded: Vec<&str> = culvert_store::migrations::names().collect();
    for engine in ["sqlite", "postgres"] {
        assert_eq!(migrations(engine).into_keys().collect::<Vec<_>>(), embedded);
    }
}

/// The part of a migration that both engines have, without its comments, and with each engine's types under one name.
fn without_types(text: &str) -> String {
    let text = text.split("-- From here on, what each engine says in its own way.").next().unwrap();
    let lines = text.lines().map(|line| line.split("--").next().unwrap());
    let text = lines.collect::<Vec<_>>().join(" ").replace(") STRICT;", ");");
    let id = |word: &str| (word.len() == 36 && word.matches('-').count() == 4).then(|| word.replace('-', ""));
    let word = |word: &str| match word {
        "BLOB" | "UUID" | "BYTEA" => "bytes".to_owned(),
        "INTEGER" | "BIGINT" | "BOOLEAN" => "number".to_owned(),
        other => id(other).unwrap_or_else(|| other.to_owned()),
    };
    let separators = |c: char| !c.is_ascii_alphanumeric() && c != '-';
    let pieces = text.split_inclusive(separators).map(|piece| {
        let end = piece.trim_end_matches(separators);
        format!("{} {}", word(end), &piece[end.len()..])
    });
    pieces.collect::<String>().replace("X '", " '").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Keys, references, CHECK, UNIQUE and DEFAULT are said in the same words for both engines.
#[test]
fn migrations_differ_between_engines_in_types_only() {
    for ((name, sqlite), postgres) in migrations("sqlite").into_iter().zip(migrations("postgres").into_values()) {
        assert_eq!(without_types(&sqlite), without_types(&postgres), "{name}");
    }
}

/// The statements that an engine does not understand, with what it says of them.
async fn faults<C>(mut connection: C, text: fn(&Sql) -> &'static str) -> Vec<String>
where
    for<'c> &'c mut C: Executor<'c>,
{
    let mut faults = Vec::new();
    for statement in STATEMENTS {
        let text = text(statement);
        if let Err(error) = connection.prepare(SqlStr::from_static(text)).await {
            faults.push(format!("{error}: {text}"));
        }
    }
    faults
}

#[both_engines]
async fn every_statement_is_valid(engine: Engine) {
    let host = TestHost::start(engine).await;
    let url = host.config().database_url();
    let faults = match engine {
        Engine::Sqlite => faults(SqliteConnection::connect(&url).await.unwrap(), |statement| statement.sqlite).await,
        Engine::Postgres => faults(PgConnection::connect(&url).await.unwrap(), |statement| statement.postgres).await,
    };
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(STATEMENTS.len() >= 220, "{} statements were collected", STATEMENTS.len());
}
