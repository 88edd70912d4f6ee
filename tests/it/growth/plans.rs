//! How each engine would run each statement: which tables it would read whole.

use std::collections::BTreeSet;

use culvert_store::sql::STATEMENTS;
use serde_json::Value;
use sqlx::postgres::PgConnection;
use sqlx::sqlite::SqliteConnection;
use sqlx::{AssertSqlSafe, Connection, Row};

use super::GROWING;

/// The statements that have to read a growing table whole on PostgreSQL, or an index of all its rows, each with the table,
/// by the plans that hold for any parameters. It is not asked what it takes for the best one among so few rows, but whether an
/// index is there: the ways to read a table whole are off.
pub async fn scans_on_postgres(url: &str) -> String {
    let mut connection = PgConnection::connect(url).await.unwrap();
    run(&mut connection, "SET plan_cache_mode = force_generic_plan").await;
    for way in ["seqscan", "hashjoin", "mergejoin"] {
        run(&mut connection, &format!("SET enable_{way} = off")).await;
    }
    let partial =
        "SELECT c.relname::text FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE indpred IS NOT NULL";
    let partial: BTreeSet<String> =
        sqlx::query_scalar(partial).fetch_all(&mut connection).await.unwrap().into_iter().collect();
    let mut scans = BTreeSet::new();
    for (number, statement) in STATEMENTS.iter().enumerate() {
        run(&mut connection, &format!("PREPARE s{number} AS {}", statement.postgres)).await;
        let count = format!("SELECT cardinality(parameter_types) FROM pg_prepared_statements WHERE name = 's{number}'");
        let parameters: i32 = sqlx::query_scalar(AssertSqlSafe(count)).fetch_one(&mut connection).await.unwrap();
        let nulls = vec!["NULL"; usize::try_from(parameters).unwrap()].join(", ");
        let arguments = if nulls.is_empty() { String::new() } else { format!("({nulls})") };
        let explain = format!("EXPLAIN (FORMAT JSON) EXECUTE s{number}{arguments}");
        let plan = sqlx::raw_sql(AssertSqlSafe(explain)).fetch_one(&mut connection).await.unwrap();
        let plan: String = plan.get_unchecked(0);
        let mut tables = BTreeSet::new();
        collect_scans(&serde_json::from_str(&plan).unwrap(), &partial, &mut tables);
        scans.extend(tables.into_iter().map(|table| found(&table, statement.postgres)));
    }
    scans.into_iter().collect::<Vec<_>>().join("\n")
}

async fn run(connection: &mut PgConnection, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(connection).await.unwrap();
}

fn collect_scans(plan: &Value, partial: &BTreeSet<String>, tables: &mut BTreeSet<String>) {
    match plan {
        Value::Object(node) => {
            let is_whole = match node.get("Node Type").and_then(Value::as_str) {
                Some("Seq Scan") => true,
                Some("Index Scan" | "Index Only Scan" | "Bitmap Index Scan") => {
                    let index = node["Index Name"].as_str().unwrap();
                    node.get("Index Cond").is_none() && !partial.contains(index)
                }
                _ => false,
            };
            let table = node.get("Relation Name").and_then(Value::as_str);
            if let Some(table) = table.filter(|table| is_whole && GROWING.contains(table)) {
                tables.insert(table.into());
            }
            node.values().for_each(|part| collect_scans(part, partial, tables));
        }
        Value::Array(parts) => parts.iter().for_each(|part| collect_scans(part, partial, tables)),
        _ => {}
    }
}

/// As [`scans_on_postgres`], for SQLite, where a walk through a whole index counts as well.
pub async fn scans_on_sqlite(url: &str) -> String {
    let mut connection = SqliteConnection::connect(url).await.unwrap();
    let mut scans = BTreeSet::new();
    for statement in STATEMENTS.iter().filter(|statement| !statement.sqlite.is_empty()) {
        let explain = format!("EXPLAIN QUERY PLAN {}", statement.sqlite);
        let steps = sqlx::query(AssertSqlSafe(explain)).fetch_all(&mut connection).await.unwrap();
        for step in steps {
            let detail: String = step.get("detail");
            let Some(scanned) = detail.strip_prefix("SCAN ") else { continue };
            let table = table_of(statement.sqlite, scanned.split(' ').next().unwrap());
            if GROWING.contains(&table.as_str()) {
                scans.insert(found(&format!("{table}: {detail}"), statement.sqlite));
            }
        }
    }
    scans.into_iter().collect::<Vec<_>>().join("\n")
}

/// The table behind the name that a plan shows, which may be an alias.
fn table_of(sql: &str, name: &str) -> String {
    let words: Vec<&str> =
        sql.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty()).collect();
    let aliased = words.windows(2).find(|pair| pair[1] == name && GROWING.contains(&pair[0]));
    aliased.map_or(name, |pair| pair[0]).into()
}

fn found(table: &str, sql: &str) -> String {
    let sql = sql.split_whitespace().collect::<Vec<_>>().join(" ");
    format!("{table} | …{}", &sql[sql.len().saturating_sub(120)..])
}
