//! The two database engines, SQLite and PostgreSQL, behind one SQL text. No code outside of this file
//! depends on which engine is in use.
//!
//! Statements bind `$1`, `$2`, … and rows are read by column name. The engines differ in how a
//! transaction begins and how a row is locked.

use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::migrate::{AppliedMigration, Migrate, MigrateError, Migrator};
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use sqlx::postgres::{PgPoolOptions, PgRow};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteRow, SqliteSynchronous};
use sqlx::{
    ColumnIndex, Connection as _, Decode, Executor as _, PgConnection, PgPool, Postgres, Row as _, Sqlite, SqlitePool,
    Transaction, Type,
};
use uuid::Uuid;

use crate::error::StoreError;
use crate::migrations;
use culvert_domain::error::Chain;
use culvert_domain::string_enum::StringEnum;

/// How long a transaction waits for a lock that another one holds.
const LOCK_WAIT: Duration = Duration::from_secs(5);
/// How long a request waits for a connection of the pool.
const POOL_WAIT: Duration = Duration::from_secs(5);
/// How long PostgreSQL lets a statement run (`statement_timeout`). This program itself waits one second
/// longer ([`ANSWER_WAIT`]), for a server that does not answer at all.
const STATEMENT_WAIT: Duration = Duration::from_secs(7);
const ANSWER_WAIT: Duration = Duration::from_secs(8);
/// How long PostgreSQL keeps a transaction open without receiving a statement.
const IDLE_IN_TRANSACTION: Duration = Duration::from_secs(5);
/// How long a connection may take to answer a ping.
const PING_WAIT: Duration = Duration::from_secs(1);
/// Size in bytes to which SQLite truncates its write-ahead log (64 MiB).
const JOURNAL_BYTES: &str = "67108864";
const READERS: u32 = 4;
const CONNECTIONS: u32 = 16;

pub type DbResult<T, E = StoreError> = Result<T, E>;

#[derive(Clone)]
pub enum Db {
    /// SQLite allows one writer at a time, so one connection writes and the others are read-only.
    Sqlite { write: SqlitePool, read: SqlitePool },
    Postgres {
        pool: PgPool,
        /// Options without the statement timeouts: migrations may take longer.
        unbounded: Box<PgConnectOptions>,
    },
}

/// How the schema of a database compares with the schema of this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schema {
    Empty,
    Older,
    Current,
    Newer,
}

/// A transaction that writes.
pub enum Tx {
    Sqlite(Transaction<'static, Sqlite>),
    Postgres(PostgresTx),
}

/// One bound value of a statement.
#[derive(Clone, Copy, Debug)]
pub enum Arg<'a> {
    Id(Option<Uuid>),
    Int(Option<i64>),
    Flag(bool),
    Text(Option<&'a str>),
    Bytes(&'a [u8]),
    /// A list of ids, for `by_ids`.
    Ids(&'a [Uuid]),
}

pub enum Row {
    Sqlite(SqliteRow),
    Postgres(PgRow),
}

/// Builds the bound values of a statement, in the order of its placeholders.
macro_rules! args {
    ($($value:expr),* $(,)?) => { &[$($crate::db::Arg::from($value)),*] };
}
pub(super) use args;

/// A statement with a condition on a list of ids, in the SQL of each engine. The list is bound as one value.
pub struct ByIds {
    pub sqlite: &'static str,
    pub postgres: &'static str,
}

/// Builds a `ByIds` from the SQL before the list, the list's placeholder and the SQL after it. `locked` is a
/// row-lock clause that ends the statement on PostgreSQL; SQLite has no row locks.
macro_rules! by_ids {
    ($before:literal, $list:literal, $after:literal) => {
        by_ids!($before, $list, $after, locked: "")
    };
    ($before:literal, $list:literal, $after:literal, locked: $locked:literal) => {
        $crate::db::ByIds {
            sqlite: concat!($before, " IN (SELECT unhex(value) FROM json_each(", $list, ")) ", $after),
            postgres: concat!($before, " = ANY(", $list, ") ", $after, $locked),
        }
    };
}
pub(super) use by_ids;

/// Builds a query of either engine and binds its values.
macro_rules! query {
    ($sql:expr, $args:expr, $ids:ident) => {{
        let mut query = sqlx::query($sql);
        for arg in $args {
            query = match *arg {
                Arg::Id(id) => query.bind(id),
                Arg::Int(number) => query.bind(number),
                Arg::Flag(flag) => query.bind(flag),
                Arg::Text(text) => query.bind(text),
                Arg::Bytes(bytes) => query.bind(bytes),
                Arg::Ids(ids) => query.bind($ids(ids)),
            };
        }
        query
    }};
}

impl Db {
    /// Opens a database, `sqlite:<path>` or `postgres://…`, without changing its contents.
    pub async fn open(url: &str) -> DbResult<Self, sqlx::Error> {
        match url.strip_prefix("sqlite:") {
            Some(path) => open_sqlite(path).await,
            None => open_postgres(url).await,
        }
    }

    /// Brings the schema up to date.
    pub async fn migrate(&self) -> Result<(), MigrateError> {
        match self {
            Self::Sqlite { write, .. } => migrations::SQLITE.run(write).await,
            Self::Postgres { unbounded, .. } => {
                let mut connection = PgConnection::connect_with(unbounded).await?;
                let migrated = migrations::POSTGRES.run(&mut connection).await;
                connection.close().await?;
                migrated
            }
        }
    }

    /// Compares the schema of the database with that of this program.
    pub async fn schema(&self) -> Schema {
        let (migrator, applied) = match self {
            Self::Sqlite { write, .. } => (&*migrations::SQLITE, applied(write.acquire().await.ok()).await),
            Self::Postgres { pool, .. } => (&*migrations::POSTGRES, applied(pool.acquire().await.ok()).await),
        };
        compare(migrator, &applied)
    }

    /// Begins a transaction that writes.
    pub async fn begin(&self) -> DbResult<Tx> {
        Ok(match self {
            Self::Sqlite { write, .. } => Tx::Sqlite(write.begin_with("BEGIN IMMEDIATE").await?),
            Self::Postgres { pool, .. } => Tx::Postgres(PostgresTx::begin(pool).await?),
        })
    }

    /// Whether the database answers a query within one second.
    #[expect(clippy::disallowed_methods, reason = "a database's time is the system's")]
    pub async fn answers(&self) -> bool {
        let mut db = self;
        let asked = tokio::time::timeout(PING_WAIT, Read::optional(&mut db, "SELECT 1 AS one", args![]));
        asked.await.is_ok_and(|answered| answered.is_ok())
    }

    /// As [`Read::all`], for a statement about a list of ids.
    pub async fn all_by_ids(&self, sql: ByIds, args: &[Arg<'_>]) -> DbResult<Vec<Row>> {
        let sql = if matches!(self, Self::Sqlite { .. }) { sql.sqlite } else { sql.postgres };
        Read::all(&mut &*self, sql, args).await
    }

    pub async fn close(&self) {
        match self {
            Self::Sqlite { write, read } => {
                read.close().await;
                write.close().await;
            }
            Self::Postgres { pool, .. } => pool.close().await,
        }
    }
}

/// The migrations that were applied to a database. Empty if it has no schema or does not answer.
async fn applied<D: sqlx::Database>(connection: Option<PoolConnection<D>>) -> Vec<AppliedMigration>
where
    D::Connection: Migrate,
{
    match connection {
        Some(mut connection) => connection.list_applied_migrations("_sqlx_migrations").await.unwrap_or_default(),
        None => Vec::new(),
    }
}

/// Compares the applied migrations with those of this program. A migration with a known number and another
/// checksum belongs to a schema that this program does not know.
fn compare(migrator: &Migrator, applied: &[AppliedMigration]) -> Schema {
    let own = |one: &AppliedMigration| migrator.iter().any(|m| m.version == one.version && m.checksum == one.checksum);
    match applied.len() {
        0 => Schema::Empty,
        _ if !applied.iter().all(own) => Schema::Newer,
        count if count < migrator.iter().count() => Schema::Older,
        _ => Schema::Current,
    }
}

/// A PostgreSQL transaction. Its connection returns to the pool only after a successful commit or rollback.
pub struct PostgresTx {
    connection: PoolConnection<Postgres>,
    ended: bool,
}

impl Drop for PostgresTx {
    fn drop(&mut self) {
        if !self.ended {
            self.connection.close_on_drop();
        }
    }
}

impl PostgresTx {
    async fn begin(pool: &PgPool) -> DbResult<Self> {
        let mut tx = Self { connection: pool.acquire().await?, ended: false };
        bounded(tx.connection.execute("BEGIN")).await?;
        Ok(tx)
    }

    async fn end(mut self, how: &'static str) -> DbResult<()> {
        bounded(self.connection.execute(how)).await?;
        self.ended = true;
        Ok(())
    }
}

/// Runs a statement and fails with a timeout if there is no answer within [`ANSWER_WAIT`].
#[expect(clippy::disallowed_methods, reason = "a database's time is the system's")]
async fn bounded<T>(statement: impl Future<Output = DbResult<T, sqlx::Error>>) -> DbResult<T, sqlx::Error> {
    let answered = tokio::time::timeout(ANSWER_WAIT, statement).await;
    answered.unwrap_or_else(|_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()))
}

/// Whether a connection answers a ping within [`PING_WAIT`].
#[expect(clippy::disallowed_methods, reason = "a database's time is the system's")]
async fn is_alive(connection: &mut PgConnection) -> bool {
    tokio::time::timeout(PING_WAIT, connection.ping()).await.is_ok_and(|pinged| pinged.is_ok())
}

/// Whether any further statement on the same connection would fail too. That is so if the connection is
/// broken (SQLSTATE class 08), or its server has become a standby (25006), is shutting down or has ended
/// the database session (57P01 to 57P05).
fn is_unfit(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Database(error) => {
            let unfit = |code: &str| code == "25006" || code.starts_with("08") || code.starts_with("57P");
            error.code().is_some_and(|code| unfit(&code))
        }
        sqlx::Error::Io(_) | sqlx::Error::Protocol(_) => true,
        _ => false,
    }
}

/// Runs a query outside of a transaction and closes the connection if it is unfit for another query.
macro_rules! on_pool {
    ($pool:expr, $query:expr, $fetch:ident) => {{
        let mut connection = $pool.acquire().await?;
        let answered = bounded($query.$fetch(&mut *connection)).await;
        if answered.as_ref().err().is_some_and(is_unfit) {
            connection.close_on_drop();
        }
        answered?
    }};
}

/// Parses the connection options of a URL. A server on another machine must present a valid certificate
/// for its host name, unless the URL sets `sslmode`.
fn postgres_options(url: &str) -> DbResult<PgConnectOptions, sqlx::Error> {
    let options = PgConnectOptions::from_str(url)?.application_name("culvert");
    let host = options.get_host();
    let is_local = options.get_socket().is_some()
        || host.starts_with('/')
        || host == "localhost"
        || host.trim_matches(['[', ']']).parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback());
    let query = url.split_once('?').map_or("", |(_, query)| query);
    let says = query.split('&').any(|pair| pair.starts_with("sslmode=") || pair.starts_with("ssl-mode="));
    Ok(if is_local || says { options } else { options.ssl_mode(PgSslMode::VerifyFull) })
}

async fn open_postgres(url: &str) -> DbResult<Db, sqlx::Error> {
    let unbounded = postgres_options(url)?;
    // Connects once without the pool, because a pool that cannot connect reports only a timeout.
    bounded(PgConnection::connect_with(&unbounded)).await?.close().await?;
    let millis = |wait: Duration| format!("{}ms", wait.as_millis());
    let bounds = [
        ("statement_timeout", millis(STATEMENT_WAIT)),
        ("lock_timeout", millis(LOCK_WAIT)),
        ("idle_in_transaction_session_timeout", millis(IDLE_IN_TRANSACTION)),
    ];
    let pool = PgPoolOptions::new()
        .max_connections(CONNECTIONS)
        .acquire_timeout(POOL_WAIT)
        .test_before_acquire(false)
        .before_acquire(|connection, about| {
            // A connection that was idle for less than a second is not pinged again.
            let is_fresh = about.idle_for < PING_WAIT;
            Box::pin(async move { Ok(is_fresh || is_alive(connection).await) })
        })
        .after_release(|connection, _| Box::pin(async move { Ok(is_alive(connection).await) }))
        .connect_with(unbounded.clone().options(bounds))
        .await?;
    Ok(Db::Postgres { pool, unbounded: Box::new(unbounded) })
}

async fn open_sqlite(path: &str) -> DbResult<Db, sqlx::Error> {
    let options = SqliteConnectOptions::new()
        .filename(Path::new(path.strip_prefix("//").unwrap_or(path)))
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .pragma("journal_size_limit", JOURNAL_BYTES)
        .foreign_keys(true)
        .busy_timeout(LOCK_WAIT)
        .optimize_on_close(true, None);
    // A connection to a file needs no ping: it cannot be lost.
    let pool =
        |most| SqlitePoolOptions::new().max_connections(most).acquire_timeout(POOL_WAIT).test_before_acquire(false);
    let write = pool(1).connect_with(options.clone()).await?;
    let read = pool(READERS).connect_with(options.read_only(true)).await?;
    Ok(Db::Sqlite { write, read })
}

/// Reads rows, inside or outside of a transaction.
pub trait Read {
    fn all(&mut self, sql: &'static str, args: &[Arg<'_>]) -> impl Future<Output = DbResult<Vec<Row>>> + Send;

    fn optional(&mut self, sql: &'static str, args: &[Arg<'_>]) -> impl Future<Output = DbResult<Option<Row>>> + Send;

    /// The first row of a statement that always has one.
    fn one(&mut self, sql: &'static str, args: &[Arg<'_>]) -> impl Future<Output = DbResult<Row>> + Send {
        let row = self.optional(sql, args);
        async { row.await?.ok_or(StoreError::Database(sqlx::Error::RowNotFound)) }
    }
}

impl Read for &Db {
    async fn all(&mut self, sql: &'static str, args: &[Arg<'_>]) -> DbResult<Vec<Row>> {
        check(sql, args);
        Ok(match self {
            Db::Sqlite { read, .. } => sqlite_rows(query!(sql, args, sqlite_ids).fetch_all(read).await?),
            Db::Postgres { pool, .. } => postgres_rows(on_pool!(pool, query!(sql, args, postgres_ids), fetch_all)),
        })
    }

    async fn optional(&mut self, sql: &'static str, args: &[Arg<'_>]) -> DbResult<Option<Row>> {
        check(sql, args);
        Ok(match self {
            Db::Sqlite { read, .. } => query!(sql, args, sqlite_ids).fetch_optional(read).await?.map(Row::Sqlite),
            Db::Postgres { pool, .. } => {
                on_pool!(pool, query!(sql, args, postgres_ids), fetch_optional).map(Row::Postgres)
            }
        })
    }
}

impl Read for Tx {
    async fn all(&mut self, sql: &'static str, args: &[Arg<'_>]) -> DbResult<Vec<Row>> {
        check(sql, args);
        Ok(match self {
            Tx::Sqlite(tx) => sqlite_rows(query!(sql, args, sqlite_ids).fetch_all(&mut **tx).await?),
            Tx::Postgres(tx) => {
                postgres_rows(bounded(query!(sql, args, postgres_ids).fetch_all(&mut *tx.connection)).await?)
            }
        })
    }

    async fn optional(&mut self, sql: &'static str, args: &[Arg<'_>]) -> DbResult<Option<Row>> {
        check(sql, args);
        Ok(match self {
            Tx::Sqlite(tx) => query!(sql, args, sqlite_ids).fetch_optional(&mut **tx).await?.map(Row::Sqlite),
            Tx::Postgres(tx) => {
                bounded(query!(sql, args, postgres_ids).fetch_optional(&mut *tx.connection)).await?.map(Row::Postgres)
            }
        })
    }
}

impl Tx {
    /// Executes a statement and returns the number of changed rows.
    pub async fn execute(&mut self, sql: &'static str, args: &[Arg<'_>]) -> DbResult<u64> {
        check(sql, args);
        Ok(match self {
            Tx::Sqlite(tx) => query!(sql, args, sqlite_ids).execute(&mut **tx).await?.rows_affected(),
            Tx::Postgres(tx) => {
                bounded(query!(sql, args, postgres_ids).execute(&mut *tx.connection)).await?.rows_affected()
            }
        })
    }

    /// Runs a statement that only locks rows. SQLite skips it: there a writing transaction locks the whole
    /// database.
    pub async fn lock(&mut self, sql: &'static str, args: &[Arg<'_>]) -> DbResult<()> {
        match self {
            Tx::Sqlite(_) => Ok(()),
            Tx::Postgres(_) => self.all(sql, args).await.map(drop),
        }
    }

    pub async fn all_by_ids(&mut self, sql: ByIds, args: &[Arg<'_>]) -> DbResult<Vec<Row>> {
        let sql = if matches!(self, Tx::Sqlite(_)) { sql.sqlite } else { sql.postgres };
        self.all(sql, args).await
    }

    pub async fn commit(self) -> DbResult<()> {
        match self {
            Tx::Sqlite(tx) => Ok(tx.commit().await?),
            Tx::Postgres(tx) => tx.end("COMMIT").await,
        }
    }

    pub async fn rollback(self) -> DbResult<()> {
        match self {
            Tx::Sqlite(tx) => Ok(tx.rollback().await?),
            Tx::Postgres(tx) => tx.end("ROLLBACK").await,
        }
    }
}

/// Encodes ids as a JSON array of hexadecimal strings, which `json_each` and `unhex` decode in SQL.
fn sqlite_ids(ids: &[Uuid]) -> String {
    let texts: Vec<String> = ids.iter().map(|id| id.simple().to_string()).collect();
    format!("[{}]", texts.iter().map(|text| format!("\"{text}\"")).collect::<Vec<_>>().join(","))
}

fn postgres_ids(ids: &[Uuid]) -> Vec<Uuid> {
    ids.to_vec()
}

fn sqlite_rows(rows: Vec<SqliteRow>) -> Vec<Row> {
    rows.into_iter().map(Row::Sqlite).collect()
}

fn postgres_rows(rows: Vec<PgRow>) -> Vec<Row> {
    rows.into_iter().map(Row::Postgres).collect()
}

/// Checks in debug builds that a statement gets as many values as it has placeholders. SQLite silently
/// reads a missing value as NULL.
fn check(sql: &str, args: &[Arg<'_>]) {
    if cfg!(debug_assertions) {
        let numbers = sql.split('$').skip(1).filter_map(|rest| {
            let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            rest[..digits].parse::<usize>().ok()
        });
        assert_eq!(numbers.max().unwrap_or(0), args.len(), "values of: {sql}");
    }
}

impl Row {
    fn get<'r, T>(&'r self, column: &'static str) -> DbResult<T>
    where
        T: Decode<'r, Sqlite> + Type<Sqlite> + Decode<'r, Postgres> + Type<Postgres>,
        &'static str: ColumnIndex<SqliteRow> + ColumnIndex<PgRow>,
    {
        match self {
            Row::Sqlite(row) => Ok(row.try_get(column)?),
            Row::Postgres(row) => Ok(row.try_get(column)?),
        }
    }

    pub fn id(&self, column: &'static str) -> DbResult<Uuid> {
        self.get(column)
    }

    pub fn optional_id(&self, column: &'static str) -> DbResult<Option<Uuid>> {
        self.get(column)
    }

    pub fn int(&self, column: &'static str) -> DbResult<i64> {
        self.get(column)
    }

    /// An integer, converted to a narrower type.
    pub fn number<T: TryFrom<i64>>(&self, column: &'static str) -> DbResult<T> {
        self.int(column).and_then(|number| narrow(column, number))
    }

    pub fn optional_number<T: TryFrom<i64>>(&self, column: &'static str) -> DbResult<Option<T>> {
        let number: Option<i64> = self.get(column)?;
        number.map(|number| narrow(column, number)).transpose()
    }

    pub fn flag(&self, column: &'static str) -> DbResult<bool> {
        self.get(column)
    }

    pub fn text(&self, column: &'static str) -> DbResult<String> {
        self.get(column)
    }

    pub fn optional_text(&self, column: &'static str) -> DbResult<Option<String>> {
        self.get(column)
    }

    pub fn bytes(&self, column: &'static str) -> DbResult<Vec<u8>> {
        self.get(column)
    }

    pub fn time(&self, column: &'static str) -> DbResult<DateTime<Utc>> {
        let micros = self.int(column)?;
        DateTime::from_timestamp_micros(micros).ok_or_else(|| unreadable(column, &micros))
    }

    pub fn optional_time(&self, column: &'static str) -> DbResult<Option<DateTime<Utc>>> {
        let micros: Option<i64> = self.get(column)?;
        micros
            .map(|micros| DateTime::from_timestamp_micros(micros).ok_or_else(|| unreadable(column, &micros)))
            .transpose()
    }

    pub fn string_enum<W: StringEnum>(&self, column: &'static str) -> DbResult<W> {
        let word = self.text(column)?;
        W::parse(&word).ok_or_else(|| unreadable(column, &word))
    }

    pub fn optional_string_enum<W: StringEnum>(&self, column: &'static str) -> DbResult<Option<W>> {
        let word = self.optional_text(column)?;
        word.map(|word| W::parse(&word).ok_or_else(|| unreadable(column, &word))).transpose()
    }

    /// The error for a column with a value that this program never writes.
    pub fn unreadable(&self, column: &'static str) -> StoreError {
        unreadable(column, &"what it is")
    }

    /// JSON that is stored as text.
    pub fn json<T: serde::de::DeserializeOwned>(&self, column: &'static str) -> DbResult<Option<T>> {
        let text = self.optional_text(column)?;
        text.map(|text| serde_json::from_str(&text).map_err(|e| unreadable(column, &e))).transpose()
    }
}

/// Decodes rows and skips those that cannot be decoded, with a log entry. It is for jobs that process all
/// rows of a kind: one broken row must not stop the others.
pub fn readable<T>(rows: &[Row], what: &str, read: impl Fn(&Row) -> DbResult<T>) -> Vec<T> {
    let read = |row: &Row| {
        read(row).inspect_err(|error| tracing::error!(error = %Chain(error), what, "a row cannot be read")).ok()
    };
    rows.iter().filter_map(read).collect()
}

fn narrow<T: TryFrom<i64>>(column: &'static str, number: i64) -> DbResult<T> {
    T::try_from(number).map_err(|_| unreadable(column, &number))
}

/// The error for a column with a value that this program never writes.
fn unreadable(column: &'static str, value: &dyn std::fmt::Display) -> StoreError {
    StoreError::Unreadable { column, value: value.to_string() }
}

impl From<Uuid> for Arg<'_> {
    fn from(id: Uuid) -> Self {
        Arg::Id(Some(id))
    }
}

impl From<Option<Uuid>> for Arg<'_> {
    fn from(id: Option<Uuid>) -> Self {
        Arg::Id(id)
    }
}

impl From<i64> for Arg<'_> {
    fn from(number: i64) -> Self {
        Arg::Int(Some(number))
    }
}

impl From<u32> for Arg<'_> {
    fn from(number: u32) -> Self {
        Arg::Int(Some(number.into()))
    }
}

impl From<u16> for Arg<'_> {
    fn from(number: u16) -> Self {
        Arg::Int(Some(number.into()))
    }
}

impl From<Option<u32>> for Arg<'_> {
    fn from(number: Option<u32>) -> Self {
        Arg::Int(number.map(i64::from))
    }
}

/// A count of bytes. Counts of 2^63 and more do not occur; they would be stored as `i64::MAX`.
impl From<u64> for Arg<'_> {
    fn from(number: u64) -> Self {
        Arg::Int(Some(i64::try_from(number).unwrap_or(i64::MAX)))
    }
}

impl From<bool> for Arg<'_> {
    fn from(flag: bool) -> Self {
        Arg::Flag(flag)
    }
}

impl<'a> From<&'a str> for Arg<'a> {
    fn from(text: &'a str) -> Self {
        Arg::Text(Some(text))
    }
}

impl<'a> From<&'a String> for Arg<'a> {
    fn from(text: &'a String) -> Self {
        Arg::Text(Some(text))
    }
}

impl<'a> From<Option<&'a str>> for Arg<'a> {
    fn from(text: Option<&'a str>) -> Self {
        Arg::Text(text)
    }
}

impl<'a> From<&'a [u8]> for Arg<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Arg::Bytes(bytes)
    }
}

impl<'a> From<&'a [Uuid]> for Arg<'a> {
    fn from(ids: &'a [Uuid]) -> Self {
        Arg::Ids(ids)
    }
}

impl From<DateTime<Utc>> for Arg<'_> {
    fn from(time: DateTime<Utc>) -> Self {
        Arg::Int(Some(time.timestamp_micros()))
    }
}

impl From<Option<DateTime<Utc>>> for Arg<'_> {
    fn from(time: Option<DateTime<Utc>>) -> Self {
        Arg::Int(time.map(|time| time.timestamp_micros()))
    }
}

/// The text of an enum value.
impl<W: StringEnum> From<StringArg<W>> for Arg<'_> {
    fn from(StringArg(word): StringArg<W>) -> Self {
        Arg::Text(Some(word.as_str()))
    }
}

/// Binds an enum value as its text.
#[derive(Clone, Copy)]
pub struct StringArg<W>(pub W);
