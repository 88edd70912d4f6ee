//! What can go wrong with the database.

use culvert_domain::error::Error;

/// A failure of the store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It passes by itself, or with another connection.
    #[error("the database cannot answer now")]
    Unavailable(#[source] sqlx::Error),
    /// The database holds what this program never wrote.
    #[error("the column {column} cannot be `{value}`")]
    Unreadable { column: &'static str, value: String },
    #[error("the database refused a statement")]
    Database(#[source] sqlx::Error),
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        let passes = match &error {
            sqlx::Error::PoolTimedOut | sqlx::Error::Io(_) | sqlx::Error::PoolClosed => true,
            sqlx::Error::Database(error) => error.code().is_some_and(|code| is_transient(&code)),
            _ => false,
        };
        if passes { Self::Unavailable(error) } else { Self::Database(error) }
    }
}

/// What a client is told of the database's failure: nothing of it, but whether to try again.
impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unavailable(_) => Error::unavailable(error),
            StoreError::Unreadable { .. } | StoreError::Database(_) => Error::internal(error),
        }
    }
}

/// Whether a database's error passes by itself, or with another connection.
fn is_transient(code: &str) -> bool {
    // PostgreSQL: a server that is a standby, a statement or transaction that took too long, a lock that
    // was not had, a deadlock, a serialization failure, too few resources (53: a full disk, too many
    // connections), a server that goes away (57P), a connection that broke (08), an error of its disk.
    let postgres = matches!(code, "25006" | "25P03" | "25P04" | "40001" | "40P01" | "55P03" | "57014" | "58030")
        || ["08", "53", "57P"].iter().any(|class| code.len() == 5 && code.starts_with(class));
    // SQLite: busy, locked, an error of the disk, a full disk; with their extended codes.
    let sqlite = code.parse::<u32>().is_ok_and(|code| code < 10_000 && matches!(code & 0xff, 5 | 6 | 10 | 13));
    postgres || sqlite
}
