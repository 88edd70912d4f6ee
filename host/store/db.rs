//! The two database engines, SQLite and PostgreSQL, behind one SQL text. Outside of this
//! file, only `arg.rs`, `row.rs`, `sql.rs`, `schema.rs`, `assignments.rs`, `postgres_bus.rs` and `postgres_pool.rs` depend on
//! which engine is in use.
//!
//! Statements bind `$1`, `$2`, … and rows are read by column name. The engines differ in how a
//! transaction begins and how a row is locked.

use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgRow, PgSslMode};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection, SqlitePool};

use uuid::Uuid;

use crate::arg::{Arg, args, check, postgres_ids, query, sqlite_ids};
use crate::audit_heads::Appender;
use crate::error::DbResult;
use crate::group_commit::{Member, Writer};
use crate::postgres_pool::{OnRelease, PING_WAIT, POOL_WAIT, PooledConnection, PostgresPool};
use crate::read::{Execute, Read, sqlite_rows};
use crate::row::Row;
use crate::sql::{Sql, sql};
use crate::statements::{PartOf, count};

/// How long a transaction waits for a lock that another one holds.
const LOCK_WAIT: Duration = Duration::from_secs(5);
/// How long PostgreSQL lets a statement run (`statement_timeout`). This program itself waits one second
/// longer ([`ANSWER_WAIT`]), for a server that does not answer at all.
const STATEMENT_WAIT: Duration = Duration::from_secs(7);
const ANSWER_WAIT: Duration = Duration::from_secs(8);
/// How long PostgreSQL keeps a transaction open without receiving a statement.
const IDLE_IN_TRANSACTION: Duration = Duration::from_secs(5);
/// Size in bytes to which SQLite truncates its write-ahead log (64 MiB).
const JOURNAL_BYTES: &str = "67108864";
/// Pages of SQLite's write-ahead log after which they are written to the database (32 MiB). A page that changes often is
/// written there once, so that fewer such moments are less work.
const CHECKPOINT_PAGES: &str = "8192";
const READERS: u32 = 4;
const CONNECTIONS: usize = 16;
const LIVENESS_CONNECTIONS: usize = 4;

#[derive(Clone)]
pub enum Db {
    /// SQLite allows one writer at a time, so one connection writes and the others are read-only.
    Sqlite { write: Writer, read: SqlitePool },
    Postgres {
        pool: PostgresPool,
        /// What is alive is recorded by connections that nothing else uses.
        liveness: PostgresPool,
        /// Counts requests, without waiting for the disk: after a crash of the server, a second of counts may be missing.
        counting: PostgresPool,
        /// Options without the statement timeouts: migrations may take longer.
        unbounded: Arc<PgConnectOptions>,
    },
}

/// A transaction that writes.
pub enum Tx {
    Sqlite(Member),
    Postgres(PostgresTx),
}

impl Db {
    /// Opens a database, `sqlite:<path>` or `postgres://…`, without changing its contents.
    pub async fn open(url: &str) -> DbResult<Self, sqlx::Error> {
        match url.strip_prefix("sqlite:") {
            Some(path) => open_sqlite(path).await,
            None => open_postgres(url).await,
        }
    }

    /// Begins a transaction that writes. With a scope, it locks the scope's row against other transactions that do; on
    /// SQLite a transaction that writes locks the whole database.
    pub async fn begin(&self, scope_id: Option<Uuid>) -> DbResult<Tx> {
        Ok(match self {
            Self::Sqlite { write, .. } => Tx::Sqlite(write.begin().await?),
            Self::Postgres { pool, .. } => Tx::Postgres(PostgresTx::begin(pool, scope_id).await?),
        })
    }

    /// The same database by connections that nothing else uses.
    pub(crate) fn for_liveness(&self) -> Self {
        let mut other = self.clone();
        if let Self::Postgres { pool, liveness, .. } = &mut other {
            *pool = liveness.clone();
        }
        other
    }

    /// The same database by the connection that counts requests.
    pub(crate) fn for_counting(&self) -> Self {
        let mut other = self.clone();
        if let Self::Postgres { pool, counting, .. } = &mut other {
            *pool = counting.clone();
        }
        other
    }

    /// Whether the database answers a query within one second.
    #[expect(clippy::disallowed_methods, reason = "a database's time is the system's")]
    pub async fn answers(&self) -> bool {
        let mut db = self;
        let asked = tokio::time::timeout(PING_WAIT, Read::optional(&mut db, sql!("SELECT 1 AS one"), args![]));
        asked.await.is_ok_and(|answered| answered.is_ok())
    }

    pub async fn close(&self) {
        match self {
            Self::Sqlite { write, read } => {
                read.close().await;
                write.pool().close().await;
            }
            Self::Postgres { pool, liveness, counting, .. } => {
                pool.close().await;
                liveness.close().await;
                counting.close().await;
            }
        }
    }
}

/// A PostgreSQL transaction. Its connection returns to the pool only after a successful commit or rollback.
pub struct PostgresTx {
    connection: PooledConnection,
}

impl PostgresTx {
    /// `BEGIN` and the lock go in one message. `FOR NO KEY UPDATE` does not block transactions that only check a foreign
    /// key to the scope: one that holds an endpoint's row and changes that row twice makes PostgreSQL do such a check. What is
    /// read after the lock on decisions shows the generation of the policies that decides until the transaction ends.
    async fn begin(pool: &PostgresPool, scope_id: Option<Uuid>) -> DbResult<Self> {
        let mut tx = Self { connection: pool.acquire().await? };
        tx.connection.on_release(OnRelease::Close);
        let begin = match scope_id {
            Some(scope_id) => format!(
                "BEGIN; SELECT pg_advisory_xact_lock_shared({DECISIONS}); \
                 SELECT id FROM scopes WHERE id = '{scope_id}' FOR NO KEY UPDATE"
            ),
            None => "BEGIN".into(),
        };
        bounded(sqlx::raw_sql(AssertSqlSafe(begin)).execute(&mut *tx.connection)).await?;
        Ok(tx)
    }

    async fn end(mut self, how: &'static str) -> DbResult<()> {
        bounded(self.connection.execute(how)).await?;
        self.connection.on_release(OnRelease::Reuse);
        Ok(())
    }
}

/// The advisory lock that each transaction on a scope shares, and that activating other policies takes alone.
pub(crate) const DECISIONS: i64 = 0x6375_6c76_0001;

/// Runs a statement and fails with a timeout if there is no answer within [`ANSWER_WAIT`].
#[expect(clippy::disallowed_methods, reason = "a database's time is the system's")]
pub(crate) async fn bounded<T>(statement: impl Future<Output = DbResult<T, sqlx::Error>>) -> DbResult<T, sqlx::Error> {
    let answered = tokio::time::timeout(ANSWER_WAIT, statement).await;
    answered.unwrap_or_else(|_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()))
}

/// Runs a query outside of a transaction.
macro_rules! on_pool {
    ($pool:expr, $query:expr, $fetch:ident) => {{
        let mut connection = $pool.acquire().await?;
        let answered = bounded($query.$fetch(&mut *connection)).await;
        connection.release_after(&answered);
        answered?
    }};
}

/// Parses the connection options of a URL. A server on another machine must present a valid certificate
/// for its host name, unless the URL sets `sslmode`.
fn postgres_options(url: &str) -> DbResult<PgConnectOptions, sqlx::Error> {
    let options = PgConnectOptions::from_str(url)?.application_name("culvert");
    let host = options.get_host();
    let is_local = options.get_socket().is_some() || host.starts_with('/') || culvert_wire::loopback::is_loopback(host);
    let query = url.split_once('?').map_or("", |(_, query)| query);
    let says = query.split('&').any(|pair| pair.starts_with("sslmode=") || pair.starts_with("ssl-mode="));
    Ok(if is_local || says { options } else { options.ssl_mode(PgSslMode::VerifyFull) })
}

async fn open_postgres(url: &str) -> DbResult<Db, sqlx::Error> {
    let unbounded = postgres_options(url)?;
    // Connects once without the pool, because a pool that cannot connect reports only a timeout.
    bounded(PgConnection::connect_with(&unbounded)).await?.close().await?;
    let millis = |wait: Duration| format!("{}ms", wait.as_millis());
    let settings = [
        ("statement_timeout", millis(STATEMENT_WAIT)),
        ("lock_timeout", millis(LOCK_WAIT)),
        ("idle_in_transaction_session_timeout", millis(IDLE_IN_TRANSACTION)),
        // Every statement has its index. PostgreSQL would read some tables whole nevertheless, such as the presence of all
        // devices each second, for it takes it that many of them are due. Plans that cannot do without would have it compile
        // them, for what they seem to cost.
        ("enable_seqscan", "off".into()),
        ("jit", "off".into()),
    ];
    let options = unbounded.clone().options(settings);
    let liveness = PostgresPool::new(options.clone(), LIVENESS_CONNECTIONS)?;
    let counting = PostgresPool::new(options.clone().options([("synchronous_commit", "off")]), 1)?;
    let pool = PostgresPool::new(options, CONNECTIONS)?;
    pool.acquire().await?;
    Ok(Db::Postgres { pool, liveness, counting, unbounded: Arc::new(unbounded) })
}

async fn open_sqlite(path: &str) -> DbResult<Db, sqlx::Error> {
    let options = SqliteConnectOptions::new()
        .filename(Path::new(path.strip_prefix("//").unwrap_or(path)))
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .pragma("journal_size_limit", JOURNAL_BYTES)
        .pragma("wal_autocheckpoint", CHECKPOINT_PAGES)
        .foreign_keys(true)
        .busy_timeout(LOCK_WAIT)
        .optimize_on_close(true, None);
    // A connection to a file needs no ping: it cannot be lost.
    let pool =
        |most| SqlitePoolOptions::new().max_connections(most).acquire_timeout(POOL_WAIT).test_before_acquire(false);
    // After an error of the disk SQLite has rolled back by itself, which sqlx does not notice: it would refuse to begin another
    // transaction. The ping comes after a rollback that waits to be sent.
    let write = pool(1).after_release(|connection, _| {
        Box::pin(async move {
            connection.ping().await?;
            Ok(!connection.is_in_transaction())
        })
    });
    let write = Writer::new(write.connect_with(options.clone()).await?, POOL_WAIT);
    let read = pool(READERS).connect_with(options.read_only(true)).await?;
    Ok(Db::Sqlite { write, read })
}

impl Read for &Db {
    async fn all(&mut self, sql: Sql, args: &[Arg<'_>]) -> DbResult<Vec<Row>> {
        check(sql, args);
        count(PartOf::Nothing);
        Ok(match self {
            Db::Sqlite { read, .. } => sqlite_rows(query!(sql.sqlite, args, sqlite_ids).fetch_all(read).await?),
            Db::Postgres { pool, .. } => {
                postgres_rows(on_pool!(pool, query!(sql.postgres, args, postgres_ids), fetch_all))
            }
        })
    }

    async fn optional(&mut self, sql: Sql, args: &[Arg<'_>]) -> DbResult<Option<Row>> {
        check(sql, args);
        count(PartOf::Nothing);
        Ok(match self {
            Db::Sqlite { read, .. } => {
                query!(sql.sqlite, args, sqlite_ids).fetch_optional(read).await?.map(Row::Sqlite)
            }
            Db::Postgres { pool, .. } => {
                on_pool!(pool, query!(sql.postgres, args, postgres_ids), fetch_optional).map(Row::Postgres)
            }
        })
    }
}

impl Read for PostgresTx {
    async fn all(&mut self, sql: Sql, args: &[Arg<'_>]) -> DbResult<Vec<Row>> {
        check(sql, args);
        count(PartOf::Transaction);
        let rows = bounded(query!(sql.postgres, args, postgres_ids).fetch_all(&mut *self.connection)).await?;
        Ok(postgres_rows(rows))
    }

    async fn optional(&mut self, sql: Sql, args: &[Arg<'_>]) -> DbResult<Option<Row>> {
        check(sql, args);
        count(PartOf::Transaction);
        let row = bounded(query!(sql.postgres, args, postgres_ids).fetch_optional(&mut *self.connection)).await?;
        Ok(row.map(Row::Postgres))
    }
}

impl Execute for PostgresTx {
    async fn execute(&mut self, sql: Sql, args: &[Arg<'_>]) -> DbResult<u64> {
        check(sql, args);
        count(PartOf::Transaction);
        Ok(bounded(query!(sql.postgres, args, postgres_ids).execute(&mut *self.connection)).await?.rows_affected())
    }
}

impl Execute for Tx {
    async fn execute(&mut self, sql: Sql, args: &[Arg<'_>]) -> DbResult<u64> {
        self.execute(sql, args).await
    }
}

impl Read for Tx {
    async fn all(&mut self, sql: Sql, args: &[Arg<'_>]) -> DbResult<Vec<Row>> {
        match self {
            Tx::Sqlite(tx) => tx.connection().all(sql, args).await,
            Tx::Postgres(tx) => tx.all(sql, args).await,
        }
    }

    async fn optional(&mut self, sql: Sql, args: &[Arg<'_>]) -> DbResult<Option<Row>> {
        match self {
            Tx::Sqlite(tx) => tx.connection().optional(sql, args).await,
            Tx::Postgres(tx) => tx.optional(sql, args).await,
        }
    }
}

impl Tx {
    /// Executes a statement and returns the number of changed rows.
    pub async fn execute(&mut self, sql: Sql, args: &[Arg<'_>]) -> DbResult<u64> {
        match self {
            Tx::Sqlite(tx) => Execute::execute(tx.connection(), sql, args).await,
            Tx::Postgres(tx) => tx.execute(sql, args).await,
        }
    }

    /// Runs a statement that only locks rows. SQLite skips it: there a writing transaction locks the whole
    /// database.
    pub async fn lock(&mut self, sql: Sql, args: &[Arg<'_>]) -> DbResult<()> {
        match self {
            Tx::Sqlite(_) => Ok(()),
            Tx::Postgres(_) => self.all(sql, args).await.map(drop),
        }
    }

    /// Commits, on SQLite together with others, and with what is to be in the audit log.
    pub(crate) async fn commit(self, audit: Appender) -> DbResult<()> {
        match self {
            Tx::Sqlite(tx) => Ok(tx.commit(audit).await?),
            Tx::Postgres(tx) => {
                tx.end("COMMIT").await?;
                audit.committed();
                Ok(())
            }
        }
    }

    pub async fn rollback(self) -> DbResult<()> {
        match self {
            Tx::Sqlite(tx) => Ok(tx.rollback().await?),
            Tx::Postgres(tx) => tx.end("ROLLBACK").await,
        }
    }
}

fn postgres_rows(rows: Vec<PgRow>) -> Vec<Row> {
    rows.into_iter().map(Row::Postgres).collect()
}
