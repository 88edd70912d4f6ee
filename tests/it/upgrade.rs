//! Databases that earlier versions have left: each opens, with everything in it.
//!
//! `upgrade/<migration>.<engine>.sql` is a dump with rows in every table, made by the last program that had
//! this migration as its newest, and killed while a tunnel ran.

use std::collections::BTreeMap;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use culvert::config::Migrate;
use culvert_store::db::Db;
use culvert_test_macros::both_engines;
use serde_json::Value;
use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use crate::support::database::{WAITING_FOR_LOCKS, columns, execute_script, rows, run, until_there};
use crate::support::host::{Engine, TestHost, within};
use crate::support::postgres::empty_database;
use crate::support::program::{Place, fails};

/// The schemas that were released.
const RELEASED: [&str; 1] = ["0010"];
/// Columns that later migrations have renamed: table, former name, present name.
const RENAMED: [(&str, &str, &str); 3] = [
    ("tunnels", "wanted_on", "desired_device_id"),
    ("operations", "yields_id", "handoff_from_device_id"),
    ("idempotency", "api_key_id", "credential_id"),
];
/// The key of the host that made the dumps.
const KEY: [u8; 32] = [7; 32];

async fn restore(engine: Engine, folder: &Path, version: &str) -> String {
    let (url, name) = match engine {
        Engine::Sqlite => (format!("sqlite:{}", folder.join(format!("{version}.db")).display()), "sqlite"),
        Engine::Postgres => (empty_database().await, "postgres"),
    };
    let dump = std::fs::read_to_string(format!("tests/it/upgrade/{version}.{name}.sql")).unwrap();
    execute_script(&url, &dump).await;
    url
}

async fn migrate(url: &str) {
    let db = Db::open(url).await.unwrap();
    db.migrate().await.unwrap();
    db.close().await;
}

fn present_name<'n>(table: &str, column: &'n str) -> &'n str {
    let renamed = RENAMED.iter().find(|(of, former, _)| *of == table && *former == column);
    renamed.map_or(column, |(_, _, present)| present)
}

/// Rows with the present names of their columns.
fn present_names(table: &str, rows: &[Value]) -> Vec<Value> {
    let present = |row: &Value| {
        let fields = row.as_object().unwrap().iter();
        fields.map(|(name, value)| (present_name(table, name).to_owned(), value.clone())).collect()
    };
    rows.iter().map(present).collect()
}

#[both_engines]
async fn released_schema_migrates_with_all_rows(engine: Engine) {
    let folder = tempfile::tempdir().unwrap();
    for version in RELEASED {
        let url = restore(engine, folder.path(), version).await;
        let before = columns(&url).await;
        let mut kept: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (table, column) in before.keys().filter_map(|column| column.split_once('.')) {
            kept.entry(table.into()).or_default().push(column.into());
        }
        let mut old_rows = BTreeMap::new();
        for (table, names) in &kept {
            let found = rows(&url, table, names).await;
            assert!(!found.is_empty(), "the dump of {version} has no row in {table}");
            old_rows.insert(table.clone(), present_names(table, &found));
        }
        migrate(&url).await;
        for (table, names) in &kept {
            let names: Vec<String> = names.iter().map(|name| present_name(table, name).into()).collect();
            assert_eq!(rows(&url, table, &names).await, old_rows[table], "{version}: {table}");
        }
    }
}

#[both_engines]
async fn migrated_schema_equals_fresh_schema(engine: Engine) {
    let folder = tempfile::tempdir().unwrap();
    let fresh = match engine {
        Engine::Sqlite => format!("sqlite:{}", folder.path().join("fresh.db").display()),
        Engine::Postgres => empty_database().await,
    };
    migrate(&fresh).await;
    for version in RELEASED {
        let url = restore(engine, folder.path(), version).await;
        migrate(&url).await;
        assert_eq!(columns(&url).await, columns(&fresh).await, "{version}");
    }
}

#[both_engines]
async fn host_starts_on_released_database(engine: Engine) {
    let folder = tempfile::tempdir().unwrap();
    let url = restore(engine, folder.path(), RELEASED[0]).await;
    let host = TestHost::with(engine, |config| {
        let key = format!("v1:{}\n", STANDARD.encode(KEY));
        std::fs::write(config.data_dir.join("secret.key"), key).unwrap();
        config.database_url = Some(url);
        config.database.migrate = Some(Migrate::Auto);
    })
    .await;
    let accounts = rows(&host.config().database_url(), "accounts", &["id".into(), "email".into()]).await;
    let ada = accounts.iter().find(|row| row["email"] == "ada@example.com").unwrap();
    let ada = Uuid::parse_str(ada["id"].as_str().unwrap()).unwrap();
    let key = host.key(ada, ada, "full_access").await;
    let tunnels = host.api(&key.key).get("/tunnels").await;
    let names: Vec<&Value> = tunnels.data().as_array().unwrap().iter().map(|tunnel| &tunnel["name"]).collect();
    assert_eq!(names, ["web", "echo"]);
    let devices = host.api(&key.key).get("/devices").await;
    assert_eq!(devices.data()[0]["name"], "laptop");
    assert_eq!(devices.data()[0]["remote_control_enabled"], true);
}

/// On PostgreSQL other hosts may run, so the operator says when.
#[tokio::test]
async fn database_of_an_earlier_version_is_migrated_by_command() {
    let folder = tempfile::tempdir().unwrap();
    let url = restore(Engine::Postgres, folder.path(), RELEASED[0]).await;
    let place =
        Place::new(Engine::Sqlite).await.set("CULVERT_DATABASE_URL", &url).set("CULVERT_DASHBOARD__ENABLED", "false");
    let data_dir = place.folder.path().join("culvert-data");
    std::fs::create_dir_all(&data_dir).unwrap();
    std::fs::write(data_dir.join("secret.key"), format!("v1:{}\n", STANDARD.encode(KEY))).unwrap();
    let refused = [
        fails(&place, "culvert serve").await,
        fails(&place, "culvert key list").await,
        fails(&place, "culvert migrate --check").await,
    ];
    insta::assert_snapshot!(refused.join("\n"), @r"
    2: culvert: database_url: the database is of an earlier version; call `culvert migrate` first
    2: culvert: database_url: the database is of an earlier version; call `culvert migrate` first
    1: culvert: the database is empty or of an earlier version; `culvert migrate` brings it up to date
    ");
    assert_eq!(place.json("culvert migrate").await["migrated"], true);
    assert_eq!(place.json("culvert migrate").await["migrated"], false);
    assert_eq!(place.json("culvert migrate --check").await["migrated"], false);
    assert_eq!(within(60, place.serve().await.interrupt()).await, Some(0));
}

/// What a newer version would do to the database.
const NEXT_MIGRATION: &str = "ALTER TABLE tunnels ADD COLUMN colour TEXT; \
    INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) VALUES (9999, 'colour', TRUE, 'x', 1)";

/// During an upgrade, hosts of both versions run. When the database needs the newer one, the others stop.
#[tokio::test]
async fn host_goes_on_with_a_newer_database_unless_that_needs_a_newer_host() {
    let place = Place::new(Engine::Postgres).await;
    let first = place.serve().await;
    run(&place.database_url(), NEXT_MIGRATION).await;
    place.json("culvert account create --email ada@example.com --name Ada").await;
    assert_eq!(place.json("culvert migrate").await["migrated"], false);
    assert_eq!(within(60, first.interrupt()).await, Some(0));
    let mut again = place.serve().await;
    run(&place.database_url(), "UPDATE cluster SET schema_min = 9999").await;
    within(20, again.until("the database needs a newer version of this program; this host stops")).await;
    assert_eq!(within(60, again.ended()).await, Some(2));
    let refused = [fails(&place, "culvert serve").await, fails(&place, "culvert migrate").await];
    insta::assert_snapshot!(refused.join("\n"), @r"
    2: culvert: database_url: the database needs a newer version of this program
    2: culvert: database_url: the database needs a newer version of this program
    ");
}

/// A reader of a table that a migration changes holds up the migration, and nobody else for long.
#[tokio::test]
async fn migration_that_waits_for_a_reader_lets_others_pass() {
    let folder = tempfile::tempdir().unwrap();
    let url = restore(Engine::Postgres, folder.path(), RELEASED[0]).await;
    let place = Place::new(Engine::Sqlite).await.set("CULVERT_DATABASE_URL", &url);
    let mut reader = PgConnection::connect(&url).await.unwrap();
    sqlx::raw_sql("BEGIN; SELECT * FROM tunnels").execute(&mut reader).await.unwrap();
    let mut migration = Box::pin(place.json("culvert migrate"));
    let another = async {
        until_there(&url, WAITING_FOR_LOCKS).await;
        run(&url, "BEGIN; LOCK TABLE tunnels IN ROW EXCLUSIVE MODE; COMMIT").await;
    };
    tokio::select! {
        _ = &mut migration => panic!("it did not wait"),
        () = within(30, another) => {}
    }
    reader.close().await.unwrap();
    assert_eq!(within(60, migration).await["migrated"], true);
}
