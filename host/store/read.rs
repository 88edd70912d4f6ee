//! Reads rows.

use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;

use crate::arg::{Arg, check, query, sqlite_ids};
use crate::error::{DbResult, StoreError};
use crate::row::Row;
use crate::sql::Sql;
use crate::statements::{PartOf, count};

/// Reads rows, inside or outside of a transaction.
pub(crate) trait Read {
    fn all(&mut self, sql: Sql, args: &[Arg<'_>]) -> impl Future<Output = DbResult<Vec<Row>>> + Send;

    fn optional(&mut self, sql: Sql, args: &[Arg<'_>]) -> impl Future<Output = DbResult<Option<Row>>> + Send;

    /// The first row of a statement that always has one.
    fn one(&mut self, sql: Sql, args: &[Arg<'_>]) -> impl Future<Output = DbResult<Row>> + Send {
        let row = self.optional(sql, args);
        async { row.await?.ok_or(StoreError::from(sqlx::Error::RowNotFound)) }
    }
}

/// A transaction that also writes.
pub(crate) trait Execute: Read {
    /// Executes a statement and returns the number of changed rows.
    fn execute(&mut self, sql: Sql, args: &[Arg<'_>]) -> impl Future<Output = DbResult<u64>> + Send;
}

impl Execute for SqliteConnection {
    async fn execute(&mut self, sql: Sql, args: &[Arg<'_>]) -> DbResult<u64> {
        check(sql, args);
        count(PartOf::Transaction);
        Ok(query!(sql.sqlite, args, sqlite_ids).execute(self).await?.rows_affected())
    }
}

impl Read for SqliteConnection {
    async fn all(&mut self, sql: Sql, args: &[Arg<'_>]) -> DbResult<Vec<Row>> {
        check(sql, args);
        count(PartOf::Transaction);
        Ok(sqlite_rows(query!(sql.sqlite, args, sqlite_ids).fetch_all(self).await?))
    }

    async fn optional(&mut self, sql: Sql, args: &[Arg<'_>]) -> DbResult<Option<Row>> {
        check(sql, args);
        count(PartOf::Transaction);
        Ok(query!(sql.sqlite, args, sqlite_ids).fetch_optional(self).await?.map(Row::Sqlite))
    }
}

pub(crate) fn sqlite_rows(rows: Vec<SqliteRow>) -> Vec<Row> {
    rows.into_iter().map(Row::Sqlite).collect()
}
