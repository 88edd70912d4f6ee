//! How hosts on one PostgreSQL tell each other that there is something to look at: LISTEN and NOTIFY. A notification that is
//! lost costs a second: each host looks that often by itself.

use sqlx::PgPool;
use sqlx::postgres::{PgListener, PgNotification, PgPoolOptions};
use uuid::Uuid;

use super::Store;
use super::db::{Db, POOL_WAIT, bounded};
use super::error::{DbResult, StoreError};
use super::statements::{PartOf, count};
use culvert_domain::error::{Error, Result};

/// What all hosts listen to. Each listens to a channel of its own as well.
const FLEET: &str = "culvert_fleet";
/// Scopes that one message names: PostgreSQL takes 8,000 bytes.
const MOST_SCOPES: usize = 100;
/// In place of more scopes.
const ALL: &str = "all";
const ECHO: &str = "echo";

/// The connection on which a host listens.
pub struct Listener {
    listener: PgListener,
    host_id: Uuid,
}

/// What a host hears.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// There are hints to take.
    Hints,
    /// Another host has changed something of these scopes.
    Scopes(Vec<Uuid>),
    /// Of more than it names.
    AllScopes,
    /// The connection is alive.
    Echo,
}

impl Store {
    /// Listens to what other hosts notify this one of.
    pub async fn listen(&self, host_id: Uuid) -> Result<Listener> {
        let Db::Postgres { unbounded, .. } = &self.db else { return Err(no_server()) };
        let pool = PgPoolOptions::new().max_connections(1).acquire_timeout(POOL_WAIT);
        let pool = pool.connect_lazy_with((**unbounded).clone());
        let mut listener = PgListener::connect_with(&pool).await.map_err(StoreError::from)?;
        listener.eager_reconnect(false);
        listener.listen_all([channel(host_id).as_str(), FLEET]).await.map_err(StoreError::from)?;
        Ok(Listener { listener, host_id })
    }

    /// Tells hosts that there are hints for them.
    pub async fn notify_hosts(&self, host_ids: &[Uuid]) -> Result<()> {
        self.notify(host_ids.iter().copied().map(channel).collect(), String::new()).await
    }

    /// Has this host hear itself.
    pub async fn notify_itself(&self, host_id: Uuid) -> Result<()> {
        self.notify(vec![channel(host_id)], ECHO.into()).await
    }

    /// Tells the other hosts that something of these scopes has changed.
    pub async fn notify_of_scopes(&self, host_id: Uuid, scope_ids: &[Uuid]) -> Result<()> {
        let words = if scope_ids.len() > MOST_SCOPES {
            vec![host_id.simple().to_string(), ALL.into()]
        } else {
            [host_id].iter().chain(scope_ids).map(|id| id.simple().to_string()).collect()
        };
        self.notify(vec![FLEET.into()], words.join(" ")).await
    }

    async fn notify(&self, channels: Vec<String>, payload: String) -> Result<()> {
        let Db::Postgres { liveness, .. } = &self.db else { return Err(no_server()) };
        Ok(notify(liveness, channels, payload).await?)
    }
}

async fn notify(pool: &PgPool, channels: Vec<String>, payload: String) -> DbResult<()> {
    count(PartOf::Nothing);
    let notify = sqlx::query("SELECT pg_notify(channel, $2) FROM unnest($1) AS channel");
    bounded(notify.bind(channels).bind(payload).execute(pool)).await?;
    Ok(())
}

impl Listener {
    /// Waits for what is heard next. After an error, or where it is not waited for any longer, something may have been missed.
    pub async fn next(&mut self) -> Result<Heard> {
        loop {
            let notification = self.listener.try_recv().await.map_err(StoreError::from)?;
            let notification = notification.ok_or_else(|| Error::unavailable("the connection was closed"))?;
            if let Some(heard) = self.heard(&notification) {
                return Ok(heard);
            }
        }
    }

    /// None for what this host has said itself, or what no host says.
    fn heard(&self, notification: &PgNotification) -> Option<Heard> {
        let payload = notification.payload();
        if notification.channel() != FLEET {
            return Some(if payload == ECHO { Heard::Echo } else { Heard::Hints });
        }
        let (sender, scopes) = payload.split_once(' ')?;
        if sender.parse() == Ok(self.host_id) {
            return None;
        }
        if scopes == ALL {
            return Some(Heard::AllScopes);
        }
        scopes.split(' ').map(|id| id.parse().ok()).collect::<Option<Vec<Uuid>>>().map(Heard::Scopes)
    }
}

fn channel(host_id: Uuid) -> String {
    format!("culvert_h_{}", host_id.simple())
}

fn no_server() -> Error {
    Error::internal("this database does not notify")
}
