//! The two engines behind one SQL text. Nothing outside of this file knows which one is there.
//!
//! A statement is compiled once, binds `$1`, `$2`, … and reads rows by their columns' names. What
//! differs is how a transaction begins and how a row is locked.

use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::migrate::{Migrate, Migrator};
use sqlx::postgres::{PgPoolOptions, PgRow};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteRow, SqliteSynchronous};
use sqlx::{
    ColumnIndex, Connection as _, Decode, PgConnection, PgPool, Postgres, Row as _, Sqlite, SqlitePool, Transaction,
    Type,
};
use uuid::Uuid;

use crate::domain::word::Word;

/// How long a writer waits for another one.
const LOCK_WAIT: Duration = Duration::from_secs(5);
/// How long a request waits for a connection of the pool.
const POOL_WAIT: Duration = Duration::from_secs(5);
const READERS: u32 = 4;
const CONNECTIONS: u32 = 16;

static SQLITE_MIGRATIONS: Migrator = sqlx::migrate!("migrations/sqlite");
static POSTGRES_MIGRATIONS: Migrator = sqlx::migrate!("migrations/postgres");

pub type DbResult<T> = Result<T, sqlx::Error>;

#[derive(Clone)]
pub enum Db {
    /// SQLite takes one writer at a time, so one connection writes and others only read.
    Sqlite {
        write: SqlitePool,
        read: SqlitePool,
    },
    Postgres(PgPool),
}

/// What a database holds, as seen from this program.
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
    Postgres(Transaction<'static, Postgres>),
}

/// One value of a statement.
#[derive(Clone, Copy, Debug)]
pub enum Arg<'a> {
    Id(Option<Uuid>),
    Int(Option<i64>),
    Flag(bool),
    Text(Option<&'a str>),
    Bytes(&'a [u8]),
}

pub enum Row {
    Sqlite(SqliteRow),
    Postgres(PgRow),
}

/// The values of a statement, in the order of their numbers.
macro_rules! args {
    ($($value:expr),* $(,)?) => { &[$($crate::store::db::Arg::from($value)),*] };
}
pub(super) use args;

/// A statement that locks the rows it reads, where an engine locks rows: those that somebody else
/// has locked are left out.
pub struct SkipLocked {
    pub sqlite: &'static str,
    pub postgres: &'static str,
}

macro_rules! skip_locked {
    ($sql:literal) => {
        $crate::store::db::SkipLocked { sqlite: $sql, postgres: concat!($sql, " FOR UPDATE SKIP LOCKED") }
    };
}
pub(super) use skip_locked;

/// A query of either engine with its values bound.
macro_rules! query {
    ($sql:expr, $args:expr) => {{
        let mut query = sqlx::query($sql);
        for arg in $args {
            query = match *arg {
                Arg::Id(id) => query.bind(id),
                Arg::Int(number) => query.bind(number),
                Arg::Flag(flag) => query.bind(flag),
                Arg::Text(text) => query.bind(text),
                Arg::Bytes(bytes) => query.bind(bytes),
            };
        }
        query
    }};
}

impl Db {
    /// Opens a database, `sqlite:<path>` or `postgres://…`, without touching what is in it.
    pub async fn open(url: &str) -> DbResult<Self> {
        if let Some(path) = url.strip_prefix("sqlite:") {
            let options = SqliteConnectOptions::new()
                .filename(Path::new(path.strip_prefix("//").unwrap_or(path)))
                .create_if_missing(true)
                .journal_mode(SqliteJournalMode::Wal)
                .synchronous(SqliteSynchronous::Full)
                .foreign_keys(true)
                .busy_timeout(LOCK_WAIT)
                .optimize_on_close(true, None);
            let pool = |most| SqlitePoolOptions::new().max_connections(most).acquire_timeout(POOL_WAIT);
            let write = pool(1).connect_with(options.clone()).await?;
            let read = pool(READERS).connect_with(options.read_only(true)).await?;
            return Ok(Self::Sqlite { write, read });
        }
        let options = sqlx::postgres::PgConnectOptions::from_str(url)?
            .application_name("culvert")
            .options([("lock_timeout", format!("{}ms", LOCK_WAIT.as_millis()))]);
        // A pool that cannot connect says only that it took too long.
        PgConnection::connect_with(&options).await?.close().await?;
        let pool = PgPoolOptions::new().max_connections(CONNECTIONS).acquire_timeout(POOL_WAIT);
        Ok(Self::Postgres(pool.connect_with(options).await?))
    }

    /// Brings the schema up to date.
    pub async fn migrate(&self) -> Result<(), sqlx::migrate::MigrateError> {
        match self {
            Self::Sqlite { write, .. } => SQLITE_MIGRATIONS.run(write).await,
            Self::Postgres(pool) => POSTGRES_MIGRATIONS.run(pool).await,
        }
    }

    /// How the schema stands to that of this program.
    pub async fn schema(&self) -> Schema {
        let applied = match self {
            Self::Sqlite { write, .. } => match write.acquire().await {
                Ok(mut connection) => connection.list_applied_migrations("_sqlx_migrations").await.ok(),
                Err(_) => None,
            },
            Self::Postgres(pool) => match pool.acquire().await {
                Ok(mut connection) => connection.list_applied_migrations("_sqlx_migrations").await.ok(),
                Err(_) => None,
            },
        };
        match applied.map(|applied| applied.len()).unwrap_or_default() {
            0 => Schema::Empty,
            applied if applied < SQLITE_MIGRATIONS.iter().count() => Schema::Older,
            applied if applied > SQLITE_MIGRATIONS.iter().count() => Schema::Newer,
            _ => Schema::Current,
        }
    }

    /// Begins a transaction that writes.
    pub async fn begin(&self) -> DbResult<Tx> {
        Ok(match self {
            Self::Sqlite { write, .. } => Tx::Sqlite(write.begin_with("BEGIN IMMEDIATE").await?),
            Self::Postgres(pool) => Tx::Postgres(pool.begin().await?),
        })
    }

    pub async fn close(&self) {
        match self {
            Self::Sqlite { write, read } => {
                read.close().await;
                write.close().await;
            }
            Self::Postgres(pool) => pool.close().await,
        }
    }
}

/// Reading, inside of a transaction or outside.
pub trait Read {
    fn all(&mut self, sql: &'static str, args: &[Arg<'_>]) -> impl Future<Output = DbResult<Vec<Row>>> + Send;

    fn optional(&mut self, sql: &'static str, args: &[Arg<'_>]) -> impl Future<Output = DbResult<Option<Row>>> + Send;

    /// The first row of a statement that always has one.
    fn one(&mut self, sql: &'static str, args: &[Arg<'_>]) -> impl Future<Output = DbResult<Row>> + Send {
        let row = self.optional(sql, args);
        async { row.await?.ok_or(sqlx::Error::RowNotFound) }
    }
}

impl Read for &Db {
    async fn all(&mut self, sql: &'static str, args: &[Arg<'_>]) -> DbResult<Vec<Row>> {
        check(sql, args);
        Ok(match self {
            Db::Sqlite { read, .. } => sqlite_rows(query!(sql, args).fetch_all(read).await?),
            Db::Postgres(pool) => postgres_rows(query!(sql, args).fetch_all(pool).await?),
        })
    }

    async fn optional(&mut self, sql: &'static str, args: &[Arg<'_>]) -> DbResult<Option<Row>> {
        check(sql, args);
        Ok(match self {
            Db::Sqlite { read, .. } => query!(sql, args).fetch_optional(read).await?.map(Row::Sqlite),
            Db::Postgres(pool) => query!(sql, args).fetch_optional(pool).await?.map(Row::Postgres),
        })
    }
}

impl Read for Tx {
    async fn all(&mut self, sql: &'static str, args: &[Arg<'_>]) -> DbResult<Vec<Row>> {
        check(sql, args);
        Ok(match self {
            Tx::Sqlite(tx) => sqlite_rows(query!(sql, args).fetch_all(&mut **tx).await?),
            Tx::Postgres(tx) => postgres_rows(query!(sql, args).fetch_all(&mut **tx).await?),
        })
    }

    async fn optional(&mut self, sql: &'static str, args: &[Arg<'_>]) -> DbResult<Option<Row>> {
        check(sql, args);
        Ok(match self {
            Tx::Sqlite(tx) => query!(sql, args).fetch_optional(&mut **tx).await?.map(Row::Sqlite),
            Tx::Postgres(tx) => query!(sql, args).fetch_optional(&mut **tx).await?.map(Row::Postgres),
        })
    }
}

impl Tx {
    /// How many rows were changed.
    pub async fn execute(&mut self, sql: &'static str, args: &[Arg<'_>]) -> DbResult<u64> {
        check(sql, args);
        Ok(match self {
            Tx::Sqlite(tx) => query!(sql, args).execute(&mut **tx).await?.rows_affected(),
            Tx::Postgres(tx) => query!(sql, args).execute(&mut **tx).await?.rows_affected(),
        })
    }

    /// Runs a statement that only locks, where a transaction does not lock everything as it is.
    pub async fn lock(&mut self, sql: &'static str, args: &[Arg<'_>]) -> DbResult<()> {
        match self {
            Tx::Sqlite(_) => Ok(()),
            Tx::Postgres(_) => self.all(sql, args).await.map(drop),
        }
    }

    pub async fn all_skip_locked(&mut self, sql: SkipLocked, args: &[Arg<'_>]) -> DbResult<Vec<Row>> {
        let sql = if matches!(self, Tx::Sqlite(_)) { sql.sqlite } else { sql.postgres };
        self.all(sql, args).await
    }

    pub async fn commit(self) -> DbResult<()> {
        match self {
            Tx::Sqlite(tx) => tx.commit().await,
            Tx::Postgres(tx) => tx.commit().await,
        }
    }

    pub async fn rollback(self) -> DbResult<()> {
        match self {
            Tx::Sqlite(tx) => tx.rollback().await,
            Tx::Postgres(tx) => tx.rollback().await,
        }
    }
}

fn sqlite_rows(rows: Vec<SqliteRow>) -> Vec<Row> {
    rows.into_iter().map(Row::Sqlite).collect()
}

fn postgres_rows(rows: Vec<PgRow>) -> Vec<Row> {
    rows.into_iter().map(Row::Postgres).collect()
}

/// SQLite takes a missing value for NULL, without a word.
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
            Row::Sqlite(row) => row.try_get(column),
            Row::Postgres(row) => row.try_get(column),
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

    /// A number in a narrower type.
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

    pub fn word<W: Word>(&self, column: &'static str) -> DbResult<W> {
        let word = self.text(column)?;
        W::parse(&word).ok_or_else(|| unreadable(column, &word))
    }

    pub fn optional_word<W: Word>(&self, column: &'static str) -> DbResult<Option<W>> {
        let word = self.optional_text(column)?;
        word.map(|word| W::parse(&word).ok_or_else(|| unreadable(column, &word))).transpose()
    }

    /// The database holds what this program never wrote.
    pub fn unreadable(&self, column: &'static str) -> sqlx::Error {
        unreadable(column, &"what it is")
    }

    /// JSON that was stored as text.
    pub fn json<T: serde::de::DeserializeOwned>(&self, column: &'static str) -> DbResult<Option<T>> {
        let text = self.optional_text(column)?;
        text.map(|text| serde_json::from_str(&text).map_err(|e| unreadable(column, &e))).transpose()
    }
}

fn narrow<T: TryFrom<i64>>(column: &'static str, number: i64) -> DbResult<T> {
    T::try_from(number).map_err(|_| unreadable(column, &number))
}

/// The database holds what this program never wrote.
fn unreadable(column: &str, value: &dyn std::fmt::Display) -> sqlx::Error {
    sqlx::Error::ColumnDecode { index: column.into(), source: format!("cannot be `{value}`").into() }
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

/// A count of bytes. More than 2^63 of them do not come together.
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

/// A word of a closed set.
impl<W: Word> From<WordArg<W>> for Arg<'_> {
    fn from(WordArg(word): WordArg<W>) -> Self {
        Arg::Text(Some(word.word()))
    }
}

/// Binds a word.
#[derive(Clone, Copy)]
pub struct WordArg<W>(pub W);
