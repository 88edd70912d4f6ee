//! Errors of the database.

use std::fmt;

use culvert_domain::error::{Chain, Error, Result};

/// A failure of the store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A transient failure: a retry, or another connection, may succeed.
    #[error("the database cannot answer now")]
    Unavailable(#[source] Cause),
    /// A column holds a value that this program never writes.
    #[error("the column {column} cannot be `{value}`")]
    Unreadable { column: &'static str, value: String },
    #[error("the database refused a statement")]
    Database(#[source] Cause),
}

/// What the driver says. Of an error of the database it is the message and the code, without the line of PostgreSQL's source.
#[derive(Debug)]
pub struct Cause(sqlx::Error);

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sqlx::Error::Database(error) = &self.0 else { return self.0.fmt(f) };
        f.write_str(error.message())?;
        error.code().map_or(Ok(()), |code| write!(f, " (code {code})"))
    }
}

impl std::error::Error for Cause {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0 {
            sqlx::Error::Database(_) => None,
            other => other.source(),
        }
    }
}

pub type DbResult<T, E = StoreError> = Result<T, E>;

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        let passes = match &error {
            sqlx::Error::PoolTimedOut | sqlx::Error::Io(_) | sqlx::Error::PoolClosed => true,
            sqlx::Error::Database(error) => error.code().is_some_and(|code| is_transient(&code)),
            _ => false,
        };
        if passes { Self::Unavailable(Cause(error)) } else { Self::Database(Cause(error)) }
    }
}

/// Converts to the error for the client: it hides the cause and says only whether a retry may help.
impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unavailable(_) => Error::unavailable(error),
            StoreError::Unreadable { .. } | StoreError::Database(_) => Error::internal(error),
        }
    }
}

/// Whether a database error is transient: a retry, or another connection, may succeed.
fn is_transient(code: &str) -> bool {
    // PostgreSQL: a standby server (25006), a transaction that took too long (25P03, 25P04), a serialization
    // failure (40001), a deadlock (40P01), a lock that was not available (55P03), a statement that took too
    // long (57014), a disk error (58030), too few resources such as disk space or connections (class 53),
    // a server that shuts down (57P), a broken connection (class 08).
    let postgres = matches!(code, "25006" | "25P03" | "25P04" | "40001" | "40P01" | "55P03" | "57014" | "58030")
        || ["08", "53", "57P"].iter().any(|class| code.len() == 5 && code.starts_with(class));
    // SQLite: busy (5), locked (6), a disk error (10), a full disk (13), each with its extended codes.
    let sqlite = code.parse::<u32>().is_ok_and(|code| code < 10_000 && matches!(code & 0xff, 5 | 6 | 10 | 13));
    postgres || sqlite
}

/// The first error of several steps, of which none prevents the next. Those after it are logged here, because
/// the caller gets one.
///
/// # Errors
///
/// The first one.
pub fn first_error(first: Result<()>, next: Result<()>) -> Result<()> {
    if let (Err(_), Err(error)) = (&first, &next) {
        tracing::warn!(error = %Chain(error), "another step failed as well");
    }
    first.and(next)
}
