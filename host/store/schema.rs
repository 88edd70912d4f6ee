//! The schema of a database: how it compares with that of this program, and how it is brought up to date.

use std::time::Duration;

use sqlx::error::DatabaseError;
use sqlx::migrate::{AppliedMigration, Migrate, MigrateError, Migrator};
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection as _, PgConnection};

use crate::arg::args;
use crate::db::Db;
use crate::error::DbResult;
use crate::migrations;
use crate::read::Read;
use crate::sql::sql;

/// How the schema of a database compares with the schema of this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schema {
    Empty,
    Older,
    /// This program works with it. A newer version may have added to it.
    Current,
    /// It needs a newer version of this program.
    Newer,
}

/// What is said of a database with [`Schema::Newer`].
pub const NEWER: &str = "the database needs a newer version of this program";

impl Db {
    /// Brings the schema up to date.
    pub async fn migrate(&self) -> Result<(), MigrateError> {
        match self {
            Self::Sqlite { write, .. } => migrations::SQLITE.run(write.pool()).await,
            Self::Postgres { unbounded, .. } => migrate_postgres(unbounded).await,
        }
    }

    /// Compares the schema of the database with that of this program.
    pub async fn schema(&self) -> DbResult<Schema> {
        let mut db = self;
        let sql = sql!(
            sqlite: "SELECT COUNT(*) AS tables FROM sqlite_master WHERE name = '_sqlx_migrations'",
            postgres: "SELECT COUNT(to_regclass('_sqlx_migrations')) AS tables"
        );
        if Read::one(&mut db, sql, args![]).await?.int("tables")? == 0 {
            return Ok(Schema::Empty);
        }
        let (migrator, applied) = match self {
            Self::Sqlite { write, .. } => (&*migrations::SQLITE, applied(&mut *write.pool().acquire().await?).await?),
            Self::Postgres { pool, .. } => (&*migrations::POSTGRES, applied(&mut *pool.acquire().await?).await?),
        };
        Ok(match compare(migrator, &applied) {
            Comparison::Known(schema) => schema,
            Comparison::Extended if self.oldest_schema().await? <= migrations::newest() => Schema::Current,
            Comparison::Extended => Schema::Newer,
        })
    }

    /// The oldest schema that a program must know to work on the database.
    async fn oldest_schema(&self) -> DbResult<i64> {
        let mut db = self;
        Read::one(&mut db, sql!("SELECT schema_min FROM cluster WHERE id = 1"), args![]).await?.int("schema_min")
    }
}

enum Comparison {
    Known(Schema),
    /// It has everything that this program knows, and migrations of a newer version.
    Extended,
}

/// Compares the applied migrations with those of this program. A migration with a known number and another
/// checksum belongs to a schema that this program does not know.
fn compare(migrator: &Migrator, applied: &[AppliedMigration]) -> Comparison {
    let known = |one: &&AppliedMigration| migrator.iter().any(|m| m.version == one.version);
    let own = |one: &&AppliedMigration| migrator.iter().any(|m| m.version == one.version && m.checksum == one.checksum);
    let (known, own) = (applied.iter().filter(known).count(), applied.iter().filter(own).count());
    let all = migrator.iter().count();
    Comparison::Known(match applied.len() {
        0 => Schema::Empty,
        _ if own < known => Schema::Newer,
        count if own == all && count > all => return Comparison::Extended,
        count if count > own => Schema::Newer,
        _ if own < all => Schema::Older,
        _ => Schema::Current,
    })
}

/// The migrations that were applied to a database.
async fn applied(connection: &mut impl Migrate) -> DbResult<Vec<AppliedMigration>, sqlx::Error> {
    let applied = connection.list_applied_migrations("_sqlx_migrations").await;
    applied.map_err(|error| sqlx::Error::Migrate(Box::new(error)))
}

/// How long a migration waits for a lock: whoever wants the same table waits behind it, and so do the heartbeats of hosts.
const MIGRATION_LOCK_WAIT: &str = "2s";
/// How often it tries again, with a second between.
const MIGRATION_ATTEMPTS: u32 = 100;
/// PostgreSQL: a lock was not to be had in time.
const LOCK_NOT_AVAILABLE: &str = "55P03";

#[expect(clippy::disallowed_methods, reason = "a database's time is the system's")]
async fn migrate_postgres(unbounded: &PgConnectOptions) -> Result<(), MigrateError> {
    let options = unbounded.clone().options([("lock_timeout", MIGRATION_LOCK_WAIT)]);
    let mut attempt = 1;
    loop {
        let mut connection = PgConnection::connect_with(&options).await?;
        let migrated = migrations::POSTGRES.run(&mut connection).await;
        connection.close().await?;
        match migrated {
            Err(MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _))
                if attempt < MIGRATION_ATTEMPTS && is_lock_timeout(&error) =>
            {
                attempt += 1;
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            migrated => return migrated,
        }
    }
}

fn is_lock_timeout(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(DatabaseError::code);
    code.is_some_and(|code| code == LOCK_NOT_AVAILABLE)
}
