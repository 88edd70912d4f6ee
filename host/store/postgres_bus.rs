//! How hosts on one PostgreSQL tell each other that there is something to look at: LISTEN and NOTIFY. A notification that is
//! lost costs a second: each host looks that often by itself.

use sqlx::postgres::{PgListener, PgNotification, PgPoolOptions};
use uuid::Uuid;

use super::Store;
use super::arg::args;
use super::db::{Db, bounded};
use super::error::{DbResult, StoreError};
use super::postgres_pool::{POOL_WAIT, PostgresPool};
use super::read::Read;
use super::row::Row;
use super::sql::by_ids;
use super::statements::{PartOf, count};
use culvert_domain::error::{Error, Result};
use culvert_domain::fleet::ForHost;
use culvert_domain::string_enum::StringEnum;

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
    /// There is something for this host.
    Something(ForHost),
    /// Another host has changed something of these scopes.
    Scopes(Vec<Uuid>),
    /// Of more than it names.
    AllScopes,
    /// The connection is alive: what this host has notified itself of under this number.
    Echo(u64),
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

    /// Tells hosts that there is something for them.
    pub async fn notify_hosts(&self, hosts: &[(Uuid, ForHost)]) -> Result<()> {
        let message = |(host_id, what): &(Uuid, ForHost)| (channel(*host_id), what.to_string());
        self.notify(hosts.iter().map(message).collect()).await
    }

    /// Has this host hear itself, and this number.
    pub async fn notify_itself(&self, host_id: Uuid, number: u64) -> Result<()> {
        self.notify(vec![(channel(host_id), format!("{ECHO} {number}"))]).await
    }

    /// Tells the hosts of nodes, if they are others, that there is something for their nodes.
    pub async fn notify_of_nodes(&self, own_id: Uuid, node_ids: &[Uuid]) -> Result<()> {
        let sql = by_ids!("SELECT DISTINCT host_id FROM nodes WHERE host_id <> $2 AND id", "$1", "");
        let rows = (&self.db.for_liveness()).all(sql, args![node_ids, own_id]).await?;
        let host = |row: &Row| Ok::<_, StoreError>((row.id("host_id")?, ForHost::Nodes));
        let hosts = rows.iter().map(host).collect::<DbResult<Vec<_>>>()?;
        if hosts.is_empty() { Ok(()) } else { self.notify_hosts(&hosts).await }
    }

    /// Tells the other hosts that something of these scopes has changed.
    pub async fn notify_of_scopes(&self, host_id: Uuid, scope_ids: &[Uuid]) -> Result<()> {
        let words = if scope_ids.len() > MOST_SCOPES {
            vec![host_id.simple().to_string(), ALL.into()]
        } else {
            [host_id].iter().chain(scope_ids).map(|id| id.simple().to_string()).collect()
        };
        self.notify(vec![(FLEET.into(), words.join(" "))]).await
    }

    async fn notify(&self, messages: Vec<(String, String)>) -> Result<()> {
        let Db::Postgres { liveness, .. } = &self.db else { return Err(no_server()) };
        Ok(notify(liveness, messages).await?)
    }
}

async fn notify(pool: &PostgresPool, messages: Vec<(String, String)>) -> DbResult<()> {
    count(PartOf::Nothing);
    let (channels, words): (Vec<String>, Vec<String>) = messages.into_iter().unzip();
    let notify = sqlx::query("SELECT pg_notify(channel, word) FROM unnest($1, $2) AS message (channel, word)");
    let mut connection = pool.acquire().await?;
    let answered = bounded(notify.bind(channels).bind(words).execute(&mut *connection)).await;
    connection.release_after(&answered);
    answered?;
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
            if let Some((ECHO, number)) = payload.split_once(' ') {
                return number.parse().ok().map(Heard::Echo);
            }
            // What a later version tells of is found within a second.
            return ForHost::parse(payload).map(Heard::Something);
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
