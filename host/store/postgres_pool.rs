//! Connections to PostgreSQL. deadpool keeps them; sqlx's own pool was weighed, which pings the server after each use:
//! that is a second round trip for each statement.

use std::io::ErrorKind;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use deadpool::managed::{Manager, Metrics, Object, Pool, PoolError, QueueMode, RecycleError, RecycleResult};
use futures_util::future::BoxFuture;
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection as _, PgConnection};

/// How long a request waits for a connection of the pool.
pub(crate) const POOL_WAIT: Duration = Duration::from_secs(5);
/// How long a connection may take to answer a ping.
pub(crate) const PING_WAIT: Duration = Duration::from_secs(1);
/// A connection that nobody used for so long is replaced: a firewall may have forgotten it.
const MOST_IDLE: Duration = Duration::from_mins(10);
/// A connection that is older is replaced.
const MOST_AGE: Duration = Duration::from_mins(30);
/// The wait before a server that is starting is tried again. It doubles each time, up to [`MOST_RETRY`].
const FIRST_RETRY: Duration = Duration::from_millis(10);
const MOST_RETRY: Duration = Duration::from_secs(1);

type DbResult<T> = Result<T, sqlx::Error>;

#[derive(Clone)]
pub struct PostgresPool(Pool<Connector>);

impl PostgresPool {
    /// A pool that connects when it has to.
    pub(super) fn new(options: PgConnectOptions, most: usize) -> DbResult<Self> {
        let pool = Pool::builder(Connector { options, last_broken: LastBroken::default() })
            .max_size(most)
            .queue_mode(QueueMode::Lifo)
            .build();
        Ok(Self(pool.map_err(|error| sqlx::Error::Configuration(Box::new(error)))?))
    }

    #[expect(clippy::disallowed_methods, reason = "a database's time is the system's")]
    pub(super) async fn acquire(&self) -> DbResult<PooledConnection> {
        // Boxed: the compiler counts how deep futures are.
        let object: BoxFuture<'_, _> = Box::pin(self.0.get());
        let object = tokio::time::timeout(POOL_WAIT, object).await.map_err(|_| sqlx::Error::PoolTimedOut)?;
        let connection = object.map_err(|error| match error {
            PoolError::Backend(error) => error,
            PoolError::Timeout(_) => sqlx::Error::PoolTimedOut,
            PoolError::Closed | PoolError::NoRuntimeSpecified | PoolError::PostCreateHook(_) => sqlx::Error::PoolClosed,
        })?;
        let last_broken = self.0.manager().last_broken.clone();
        Ok(PooledConnection { connection: Some(connection), on_release: OnRelease::Check, last_broken })
    }

    /// Ends the connections that nobody uses now; the others end with their use.
    pub(super) async fn close(&self) {
        let unused = self.0.retain(|_, _| false).removed;
        self.0.close();
        for connection in unused {
            close(connection).await;
        }
    }
}

struct Connector {
    options: PgConnectOptions,
    last_broken: LastBroken,
}

/// When a connection was last found to be broken. Those that were acquired before are replaced without a ping: where the server's
/// address has moved, none of them answers, and each ping would take its time limit.
#[derive(Clone, Default)]
struct LastBroken(Arc<Mutex<Option<Instant>>>);

impl LastBroken {
    #[expect(clippy::disallowed_methods, reason = "a database's time is the system's")]
    fn note(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    fn is_since(&self, acquired: Instant) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some_and(|broken| broken >= acquired)
    }
}

impl Manager for Connector {
    type Type = PgConnection;
    type Error = sqlx::Error;

    /// Connects. A server that is starting is tried again until the caller's time limit ends.
    #[expect(clippy::disallowed_methods, reason = "a database's time is the system's")]
    async fn create(&self) -> DbResult<PgConnection> {
        let mut wait = FIRST_RETRY;
        loop {
            match PgConnection::connect_with(&self.options).await {
                Err(error) if is_starting(&error) => tokio::time::sleep(wait).await,
                connected => return connected,
            }
            wait = (wait * 2).min(MOST_RETRY);
        }
    }

    /// A connection that was acquired within the last second is not checked again.
    async fn recycle(&self, connection: &mut PgConnection, metrics: &Metrics) -> RecycleResult<sqlx::Error> {
        let (acquired, idle) = (metrics.recycled.unwrap_or(metrics.created), metrics.last_used());
        if metrics.age() > MOST_AGE || idle > MOST_IDLE || self.last_broken.is_since(acquired) {
            return Err(RecycleError::message("the connection is too old, or one like it is broken"));
        }
        if idle > PING_WAIT && !is_alive(connection).await {
            self.last_broken.note();
            return Err(RecycleError::message("the connection does not answer"));
        }
        Ok(())
    }
}

/// Whether a server that could not be connected to may only be starting.
fn is_starting(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(error) => error.kind() == ErrorKind::ConnectionRefused,
        sqlx::Error::Database(error) => error.is_transient_in_connect_phase(),
        _ => false,
    }
}

/// A connection for one statement, or for one transaction.
pub(super) struct PooledConnection {
    connection: Option<Object<Connector>>,
    on_release: OnRelease,
    last_broken: LastBroken,
}

/// What happens to a connection when it is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnRelease {
    Reuse,
    /// Reuse it if it answers a ping: its statement was dropped before the answer came, or has failed.
    Check,
    Close,
}

impl PooledConnection {
    pub(super) fn on_release(&mut self, what: OnRelease) {
        self.on_release = what;
    }

    /// Decides by the result of a statement outside of a transaction.
    pub(super) fn release_after<T>(&mut self, answer: &DbResult<T>) {
        self.on_release = match answer {
            Ok(_) => OnRelease::Reuse,
            Err(error) if is_unfit(error) => {
                self.last_broken.note();
                OnRelease::Close
            }
            Err(_) => OnRelease::Check,
        };
    }
}

impl Drop for PooledConnection {
    fn drop(&mut self) {
        let Some(mut connection) = self.connection.take() else { return };
        match self.on_release {
            OnRelease::Reuse => drop(connection),
            OnRelease::Close => drop(tokio::spawn(close(Object::take(connection)))),
            OnRelease::Check => drop(tokio::spawn(async move {
                if !is_alive(&mut connection).await {
                    close(Object::take(connection)).await;
                }
            })),
        }
    }
}

impl Deref for PooledConnection {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        self.connection.as_ref().expect("it is taken only at the end")
    }
}

impl DerefMut for PooledConnection {
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.connection.as_mut().expect("it is taken only at the end")
    }
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

/// Whether a connection answers a ping within [`PING_WAIT`].
#[expect(clippy::disallowed_methods, reason = "a database's time is the system's")]
async fn is_alive(connection: &mut PgConnection) -> bool {
    tokio::time::timeout(PING_WAIT, connection.ping()).await.is_ok_and(|pinged| pinged.is_ok())
}

/// Closes a connection in order, unless the server does not answer.
#[expect(clippy::disallowed_methods, reason = "a database's time is the system's")]
async fn close(connection: PgConnection) {
    let _ = tokio::time::timeout(PING_WAIT, connection.close()).await;
}
