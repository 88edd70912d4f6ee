//! What holds when the database, or what a host needs to read it, fails: a line that says so, an
//! answer within seconds, and no hand of the operator's to go on afterwards.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use culvert_test_macros::both_engines;
use futures_util::future::join_all;
use serde_json::json;
use sqlx::{Connection, Executor, PgConnection};

use crate::support::api::{Answer, Api};
use crate::support::cable::Cable;
use crate::support::database::{WAITING_FOR_LOCKS, run, texts_of};
use crate::support::host::{Engine, TestHost, within};
use crate::support::postgres::{empty_database, new_database};
use crate::support::program::Place;

const SECOND: Duration = Duration::from_secs(1);

/// Seconds of real time within which whatever is to come has come.
const SOON: u64 = 20;

/// The settings that keep a connection from waiting for ever.
const BOUNDS: &str = "SELECT name, setting FROM pg_settings \
    WHERE name IN ('lock_timeout', 'statement_timeout', 'idle_in_transaction_session_timeout')";

/// `2: culvert: …`, the exit code and the last line of what stands on standard error.
async fn fails(place: &Place, line: &str) -> String {
    let output = within(SOON, place.run(line)).await;
    let said = String::from_utf8(output.stderr).unwrap();
    format!("{}: {}", output.status.code().unwrap(), said.trim_end().lines().last().unwrap_or_default())
}

/// Writes a key file as a host does: for itself alone.
fn write_keys(file: &Path, lines: &str) {
    let _ = fs::remove_file(file);
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(file).unwrap();
    file.write_all(lines.as_bytes()).unwrap();
}

fn key_line(version: u8, byte: u8) -> String {
    format!("v{version}:{}\n", STANDARD.encode([byte; 32]))
}

/// Nothing is sealed or vouched for with keys that are not the database's; and where those are
/// lost, nobody makes new ones in their place.
#[both_engines]
async fn secret_keys_not_matching_database_are_refused(engine: Engine) {
    let place = Place::new(engine).await;
    place.json("culvert account create --email ada@example.com --name Ada").await;
    assert_eq!(place.serve().await.interrupt().await, Some(0));
    let file = place.folder.path().join("culvert-data/secret.key");
    let right = fs::read_to_string(&file).unwrap();
    let commands = ["culvert serve", "culvert key list", "culvert account create --email bob@example.com --name Bob"];
    let wrong = [key_line(1, 7), key_line(2, 7), key_line(1, 7) + &key_line(2, 8)];
    for keys in &wrong {
        write_keys(&file, keys);
        for line in commands {
            let said = fails(&place, line).await;
            assert!(said.starts_with("2: culvert: secret_key_file: "), "{line}: {said}");
        }
        assert_eq!(&fs::read_to_string(&file).unwrap(), keys);
    }
    fs::remove_file(&file).unwrap();
    for line in commands {
        let said = fails(&place, line).await;
        assert!(said.starts_with("2: culvert: secret_key_file: "), "{line}: {said}");
        assert!(!file.exists(), "{line} has made a key");
    }
    // One line that is right is enough.
    for keys in [right.clone(), right + &key_line(2, 7)] {
        write_keys(&file, &keys);
        assert_eq!(place.serve().await.interrupt().await, Some(0));
    }
}

/// Where there is no database yet, there is a key to be made.
#[both_engines]
async fn first_command_creates_secret_keys(engine: Engine) {
    let place = Place::new(engine).await;
    let file = place.folder.path().join("culvert-data/secret.key");
    fs::remove_file(&file).unwrap();
    place.json("culvert account create --email ada@example.com --name Ada").await;
    let made = fs::read_to_string(&file).unwrap();
    assert_eq!(place.serve().await.interrupt().await, Some(0));
    assert_eq!(fs::read_to_string(&file).unwrap(), made);
}

/// A host on PostgreSQL, a client, and a tunnel.
struct Stage {
    host: TestHost,
    api: Api,
    tunnel: String,
}

impl Stage {
    async fn set() -> Self {
        Self::on(new_database().await).await
    }

    async fn on(url: String) -> Self {
        let host = TestHost::with(Engine::Postgres, |config| {
            (config.rate_limit.per_minute, config.rate_limit.per_day) = (100_000, 100_000);
            config.database_url = Some(url);
        })
        .await;
        let ada = host.person("ada").await;
        let api = host.api(&ada.key);
        let tunnel = format!("/tunnels/{}", create(&api).await.id());
        Self { host, api, tunnel }
    }

    fn url(&self) -> String {
        self.host.config().database_url()
    }

    async fn sql(&self, sql: &str) {
        within(SOON, run(&self.url(), sql)).await;
    }

    async fn rename(&self) -> Answer {
        self.api.patch(&self.tunnel, json!({"name": "another"})).await
    }

    /// Locks the client's scope until it is rolled back or dropped.
    async fn sit_on_scope(&self) -> PgConnection {
        let mut sitter = PgConnection::connect(&self.url()).await.unwrap();
        sitter.execute("BEGIN").await.unwrap();
        sitter.execute("SELECT id FROM scopes WHERE name = 'ada' FOR UPDATE").await.unwrap();
        sitter
    }

    /// It goes on by itself: until then, clients are told to try again, and nothing else.
    async fn recovers(&self) {
        within(SOON, async {
            loop {
                let answer = create(&self.api).await;
                if answer.status == 201 {
                    break;
                }
                is_unavailable(&answer);
            }
        })
        .await;
        assert_eq!(within(SOON, self.rename()).await.outcome(), "200");
    }
}

async fn create(api: &Api) -> Answer {
    api.post("/tunnels", json!({"local_port": 80})).await
}

/// A client is told to try again, and nothing of what is inside.
#[track_caller]
fn is_unavailable(answer: &Answer) {
    assert_eq!(answer.outcome(), "503 service_unavailable");
    assert!(answer.header("retry-after").is_some());
    assert_eq!(answer.body["detail"], "The service cannot answer right now; try again.");
}

/// Every insert of a tunnel does this first.
fn before_inserts(what: &str) -> String {
    format!(
        "CREATE FUNCTION of_a_test() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {what}; RETURN NEW; END $$; \
         CREATE TRIGGER of_a_test BEFORE INSERT ON tunnels FOR EACH ROW EXECUTE FUNCTION of_a_test()"
    )
}

const AS_BEFORE: &str = "DROP TRIGGER of_a_test ON tunnels; DROP FUNCTION of_a_test()";

/// A full disk, a database that may only be read, a server that is shutting down.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transient_database_error_returns_service_unavailable() {
    let stage = Stage::set().await;
    for code in ["53100", "25006", "57P01"] {
        stage.sql(&before_inserts(&format!("RAISE EXCEPTION 'of a test' USING ERRCODE = '{code}'"))).await;
        for _ in 0..2 {
            let refused = within(SOON, create(&stage.api)).await;
            is_unavailable(&refused);
            assert!(!refused.text.contains("of a test"), "{code}");
        }
        assert_eq!(within(SOON, stage.rename()).await.outcome(), "200", "other statements are not concerned");
        stage.sql(AS_BEFORE).await;
        assert_eq!(within(SOON, create(&stage.api)).await.status, 201, "{code}");
    }
    // What no time mends is our fault.
    stage.sql(&before_inserts("RAISE EXCEPTION 'of a test' USING ERRCODE = '22012'")).await;
    assert_eq!(within(SOON, create(&stage.api)).await.outcome(), "500 internal_error");
}

/// As after a failover to a server that only follows, and back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_resume_when_database_leaves_read_only_mode() {
    let stage = Stage::set().await;
    let url = stage.url();
    let (server, name) = url.rsplit_once('/').unwrap();
    let elsewhere = format!("{server}/postgres");
    let cut_off = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'");
    within(SOON, run(&elsewhere, &format!("ALTER DATABASE {name} SET default_transaction_read_only = on"))).await;
    within(SOON, run(&elsewhere, &cut_off)).await;
    for _ in 0..3 {
        is_unavailable(&within(SOON, create(&stage.api)).await);
        is_unavailable(&within(SOON, stage.rename()).await);
    }
    // Requests are counted there, so nothing is read either.
    is_unavailable(&within(SOON, stage.api.get(&stage.tunnel)).await);
    within(SOON, stage.host.pass(SECOND)).await;
    within(SOON, run(&elsewhere, &format!("ALTER DATABASE {name} RESET default_transaction_read_only"))).await;
    within(SOON, run(&elsewhere, &cut_off)).await;
    stage.recovers().await;
}

/// Connections that the server has ended: while nobody uses them, and while somebody waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn terminated_database_connections_are_reopened() {
    let stage = Stage::set().await;
    for _ in 0..3 {
        let others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                      WHERE datname = current_database() AND pid <> pg_backend_pid()";
        stage.sql(others).await;
        stage.recovers().await;
    }
    let mut sitter = stage.sit_on_scope().await;
    let end_waiting = async {
        let waiting = "SELECT pg_terminate_backend(pid)::text AS text FROM pg_stat_activity \
                       WHERE datname = current_database() AND wait_event_type = 'Lock'";
        while texts_of(&stage.url(), waiting).await.is_empty() {}
    };
    let (refused, ()) = within(SOON, async { tokio::join!(stage.rename(), end_waiting) }).await;
    is_unavailable(&refused);
    sitter.execute("ROLLBACK").await.unwrap();
    stage.recovers().await;
}

/// Somebody who sits on a row: a few seconds, and then an answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn write_waiting_for_locked_row_times_out() {
    let stage = Stage::set().await;
    let mut sitter = stage.sit_on_scope().await;
    let reads = async {
        for _ in 0..10 {
            assert_eq!(stage.api.get(&stage.tunnel).await.outcome(), "200", "readers wait for nobody");
        }
    };
    let (refused, ()) = within(SOON, async { tokio::join!(stage.rename(), reads) }).await;
    is_unavailable(&refused);
    sitter.execute("ROLLBACK").await.unwrap();
    assert_eq!(within(SOON, stage.rename()).await.outcome(), "200");
}

/// A statement that does not come to its end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_database_statement_times_out() {
    let stage = Stage::set().await;
    stage.sql(&before_inserts("PERFORM pg_sleep(30)")).await;
    is_unavailable(&within(SOON, create(&stage.api)).await);
    stage.sql(AS_BEFORE).await;
    assert_eq!(within(SOON, create(&stage.api)).await.status, 201);
}

/// The bounds are those of the host's own connections, and migrations, which may take long, have none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn database_timeouts_apply_to_queries_not_migrations() {
    const SEEN: &str = "SELECT DISTINCT name || ' ' || value AS text FROM seen ORDER BY text";
    let stage = Stage::set().await;
    let note =
        format!("CREATE TABLE seen (name TEXT, value TEXT); {}", before_inserts(&format!("INSERT INTO seen {BOUNDS}")));
    stage.sql(&note).await;
    create(&stage.api).await.id();
    let seen = texts_of(&stage.url(), SEEN).await;
    assert_eq!(seen.len(), 3, "{seen:?}");
    for bound in &seen {
        let (name, milliseconds) = bound.split_once(' ').unwrap();
        let milliseconds: u64 = milliseconds.parse().unwrap();
        assert!((1..=60_000).contains(&milliseconds), "{name} is {milliseconds}");
    }

    let url = empty_database().await;
    let note = format!(
        "CREATE TABLE seen (name TEXT, value TEXT); \
         CREATE FUNCTION of_a_test() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO seen {BOUNDS}; END $$; \
         CREATE EVENT TRIGGER of_a_test ON ddl_command_end WHEN TAG IN ('CREATE TABLE', 'ALTER TABLE', 'CREATE INDEX') \
         EXECUTE FUNCTION of_a_test()"
    );
    within(SOON, run(&url, &note)).await;
    let migrated = Stage::on(url).await;
    assert_eq!(
        texts_of(&migrated.url(), SEEN).await,
        ["idle_in_transaction_session_timeout 0", "lock_timeout 2000", "statement_timeout 0"]
    );
}

/// A network that swallows everything, and says nothing of it: neither requests nor what the host
/// does by itself hang in it, and all of it goes on when the network does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unresponsive_database_fails_requests_until_recovery() {
    let cable = Cable::of_database(&new_database().await).await;
    let stage = Stage::on(cable.url.clone()).await;
    within(SOON, stage.host.pass(SECOND)).await;
    cable.cut();
    let reads = within(SOON, stage.api.get(&stage.tunnel));
    let writes = within(SOON, stage.rename());
    let creates = within(SOON, create(&stage.api));
    let time = within(SOON, stage.host.pass(SECOND));
    let (read, written, created, ()) = tokio::join!(reads, writes, creates, time);
    [read, written, created].iter().for_each(is_unavailable);
    cable.mend();
    stage.recovers().await;
    within(SOON, stage.host.pass(SECOND)).await;
}

/// After a failover without a word, no old connection answers. The first time-out replaces them all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_timeout_replaces_all_connections_after_failover() {
    let url = new_database().await;
    let cable = Cable::of_database(&url).await;
    let stage = Stage::on(cable.url.clone()).await;
    let mut locked = PgConnection::connect(&url).await.unwrap();
    locked.execute("BEGIN").await.unwrap();
    locked.execute("LOCK TABLE accounts IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let asked = join_all((0..10).map(async |_| stage.api.get("/account").await.outcome()));
    let unlock = async {
        while texts_of(&url, WAITING_FOR_LOCKS).await.len() < 10 {}
        locked.execute("ROLLBACK").await.unwrap();
    };
    let (answers, ()) = within(SOON, async { tokio::join!(asked, unlock) }).await;
    assert_eq!(answers, ["200"; 10]);
    cable.fail_over();
    let first = within(SOON, stage.api.get("/account")).await;
    if first.status != 200 {
        is_unavailable(&first);
    }
    for _ in 0..3 {
        assert_eq!(within(SOON, stage.api.get("/account")).await.outcome(), "200");
    }
}
