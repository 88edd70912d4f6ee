//! Rows of either engine, read by column name.

use chrono::{DateTime, Utc};
use sqlx::postgres::PgRow;
use sqlx::sqlite::SqliteRow;
use sqlx::{ColumnIndex, Decode, Postgres, Row as _, Sqlite, Type};
use uuid::Uuid;

use crate::error::{DbResult, StoreError};
use culvert_domain::error::Chain;
use culvert_domain::string_enum::StringEnum;

/// A value of a row. Each field is the column of its name, read by the method of [`Row`] that is named behind it.
/// Fields that are made otherwise follow the semicolon.
macro_rules! row {
    ($row:ident => $type:ident { $($column:ident: $read:ident),* $(,)? $(; $($other:tt)*)? }) => {
        $type { $($column: $row.$read(stringify!($column))?,)* $($($other)*)? }
    };
}
pub(crate) use row;

pub(crate) enum Row {
    Sqlite(SqliteRow),
    Postgres(PgRow),
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

    pub(crate) fn id(&self, column: &'static str) -> DbResult<Uuid> {
        self.get(column)
    }

    pub(crate) fn optional_id(&self, column: &'static str) -> DbResult<Option<Uuid>> {
        self.get(column)
    }

    pub(crate) fn int(&self, column: &'static str) -> DbResult<i64> {
        self.get(column)
    }

    /// An integer, converted to a narrower type.
    pub(crate) fn number<T: TryFrom<i64>>(&self, column: &'static str) -> DbResult<T> {
        self.int(column).and_then(|number| narrow(column, number))
    }

    pub(crate) fn optional_number<T: TryFrom<i64>>(&self, column: &'static str) -> DbResult<Option<T>> {
        let number: Option<i64> = self.get(column)?;
        number.map(|number| narrow(column, number)).transpose()
    }

    pub(crate) fn flag(&self, column: &'static str) -> DbResult<bool> {
        self.get(column)
    }

    pub(crate) fn optional_flag(&self, column: &'static str) -> DbResult<Option<bool>> {
        self.get(column)
    }

    pub(crate) fn text(&self, column: &'static str) -> DbResult<String> {
        self.get(column)
    }

    pub(crate) fn optional_text(&self, column: &'static str) -> DbResult<Option<String>> {
        self.get(column)
    }

    pub(crate) fn bytes(&self, column: &'static str) -> DbResult<Vec<u8>> {
        self.get(column)
    }

    pub(crate) fn optional_bytes(&self, column: &'static str) -> DbResult<Option<Vec<u8>>> {
        self.get(column)
    }

    pub(crate) fn time(&self, column: &'static str) -> DbResult<DateTime<Utc>> {
        let micros = self.int(column)?;
        DateTime::from_timestamp_micros(micros).ok_or_else(|| unreadable(column, &micros))
    }

    pub(crate) fn optional_time(&self, column: &'static str) -> DbResult<Option<DateTime<Utc>>> {
        let micros: Option<i64> = self.get(column)?;
        micros
            .map(|micros| DateTime::from_timestamp_micros(micros).ok_or_else(|| unreadable(column, &micros)))
            .transpose()
    }

    pub(crate) fn string_enum<W: StringEnum>(&self, column: &'static str) -> DbResult<W> {
        let word = self.text(column)?;
        W::parse(&word).ok_or_else(|| unreadable(column, &word))
    }

    pub(crate) fn optional_string_enum<W: StringEnum>(&self, column: &'static str) -> DbResult<Option<W>> {
        let word = self.optional_text(column)?;
        word.map(|word| W::parse(&word).ok_or_else(|| unreadable(column, &word))).transpose()
    }

    /// The error for a column with a value that this program never writes.
    pub(crate) fn unreadable(&self, column: &'static str) -> StoreError {
        unreadable(column, &"what it is")
    }

    /// JSON that is stored as text.
    pub(crate) fn json<T: serde::de::DeserializeOwned>(&self, column: &'static str) -> DbResult<Option<T>> {
        let text = self.optional_text(column)?;
        text.map(|text| serde_json::from_str(&text).map_err(|e| unreadable(column, &e))).transpose()
    }
}

/// Decodes rows and skips those that cannot be decoded, with a log entry. It is for jobs that process all
/// rows of a kind: one broken row must not stop the others.
pub(crate) fn readable<T>(rows: &[Row], what: &str, read: impl Fn(&Row) -> DbResult<T>) -> Vec<T> {
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
