//! What one host asks the host of a node, and the answers: rows that each of the two changes only as long as the other has not.

use chrono::{DateTime, TimeDelta, Utc};
use culvert_domain::error::Result;
use culvert_domain::fleet::ForHost;
use culvert_domain::node_request::RequestKind;
use uuid::Uuid;

use super::arg::{StringArg, args};
use super::error::DbResult;
use super::fleet::has_authority;
use super::read::Read;
use super::row::{Row, readable, row};
use super::sql::{by_ids, sql};
use super::{Hint, Store, Write};

/// How long a request stands. An end that was answered is taken up by then, or withdrawn.
const STANDS: TimeDelta = TimeDelta::seconds(10);
/// Requests that are read at once.
const BATCH: u32 = 500;

/// Of whom something is asked, and what.
#[derive(Clone, Copy, Debug)]
pub struct NewRequest {
    pub id: Uuid,
    pub node_id: Uuid,
    pub kind: RequestKind,
    /// The tunnel, its session and the session's epoch.
    pub session: Option<(Uuid, Uuid, i64)>,
}

/// What became of a new request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The node's host will read it.
    Asked,
    /// The node's host is not heard of, and the node may serve still.
    HostAway,
    /// The node serves nothing: it has no other host, or one that has stopped, or was silent for too long.
    NoHost,
}

/// What has to be true still when ends of sessions are written that nodes of other hosts have served.
#[derive(Clone, Debug, Default)]
pub struct EndsElsewhere {
    /// The requests to end them, which were answered.
    pub request_ids: Vec<Uuid>,
    /// The nodes that serve nothing because they have no host.
    pub without_host: Vec<Uuid>,
}

/// What another host asks.
#[derive(Clone, Debug)]
pub struct NodeRequest {
    pub id: Uuid,
    pub node_id: Uuid,
    pub kind: RequestKind,
    pub tunnel_id: Option<Uuid>,
    pub session_id: Option<Uuid>,
    pub epoch: Option<i64>,
    pub expires_at: DateTime<Utc>,
}

/// What a host has not answered yet, and somebody waits for.
macro_rules! waiting_requests {
    ($host:literal, $now:literal) => {
        concat!("FROM node_requests WHERE state = 'waiting' AND host_id = ", $host, " AND expires_at > ", $now)
    };
}
pub(crate) use waiting_requests;

impl Store {
    /// Asks the hosts of nodes.
    pub async fn ask_nodes(&self, requests: Vec<NewRequest>) -> Result<Vec<Sent>> {
        let ask = self.write_liveness(move |write| {
            Box::pin(async move {
                let mut sent = Vec::new();
                for request in &requests {
                    sent.push(write.ask_node(request).await?);
                }
                Ok(sent)
            })
        });
        ask.await
    }

    /// What other hosts ask of the nodes of this one.
    pub async fn waiting_requests(&self) -> Result<Vec<NodeRequest>> {
        let sql = sql!(concat!(
            "SELECT id, node_id, kind, tunnel_id, session_id, epoch, expires_at ",
            waiting_requests!("$1", "$2"),
            " LIMIT $3"
        ));
        let db = self.db.for_liveness();
        let rows = (&db).all(sql, args![self.own_id(), self.clock.now(), BATCH]).await?;
        Ok(readable(&rows, "request", request))
    }

    /// Answers a request. False if nobody waits for it any longer.
    pub async fn answer_request(&self, id: Uuid, answer: String) -> Result<bool> {
        self.write_liveness(move |write| Box::pin(async move { write.answer_request(id, &answer).await })).await
    }

    /// The answers to what this host has asked.
    pub async fn node_answers(&self) -> Result<Vec<(Uuid, String)>> {
        let sql = sql!("SELECT id, answer FROM node_requests WHERE asked_by = $1 AND state = 'answered'");
        let db = self.db.for_liveness();
        let rows = (&db).all(sql, args![self.own_id()]).await?;
        Ok(readable(&rows, "answer", |row| Ok((row.id("id")?, row.text("answer")?))))
    }

    pub(super) fn own_id(&self) -> Uuid {
        self.host_id().unwrap_or_default()
    }

    /// Takes back that a session has ended, where the host that has asked for it has not taken it up.
    pub async fn withdraw_request(&self, id: Uuid) -> Result<()> {
        let sql = sql!("UPDATE node_requests SET state = 'withdrawn' WHERE id = $1");
        let withdraw = self.write_liveness(move |write| {
            Box::pin(async move {
                write.execute(sql, args![id]).await?;
                Ok(())
            })
        });
        withdraw.await
    }

    /// Forgets requests that nobody waits for any longer.
    pub async fn forget_requests(&self, ids: Vec<Uuid>) -> Result<()> {
        let forget = self.write_liveness(move |write| {
            Box::pin(async move {
                write.execute(by_ids!("DELETE FROM node_requests WHERE id", "$1", ""), args![&ids[..]]).await?;
                Ok(())
            })
        });
        forget.await
    }
}

impl Write {
    async fn ask_node(&mut self, new: &NewRequest) -> Result<Sent> {
        let (own_id, expires_at) = (self.host_id.unwrap_or_default(), self.now + STANDS);
        let sql = sql!(
            "INSERT INTO node_requests \
                 (id, host_id, asked_by, node_id, kind, tunnel_id, session_id, epoch, state, expires_at) \
             SELECT $1, h.id, $2, n.id, $4, $5, $6, $7, 'waiting', $8 FROM nodes n JOIN hosts h ON h.id = n.host_id \
             WHERE n.id = $3 AND h.id <> $2 AND h.ended_at IS NULL AND h.lease_until > $9 RETURNING host_id"
        );
        let (tunnel_id, session_id, epoch) =
            new.session.map_or((None, None, None), |(tunnel_id, session_id, epoch)| {
                (Some(tunnel_id), Some(session_id), Some(epoch))
            });
        let (kind, now) = (StringArg(new.kind), self.now);
        let args = args![new.id, own_id, new.node_id, kind, tunnel_id, session_id, epoch, expires_at, now];
        if let Some(row) = self.optional(sql, args).await? {
            self.notify(Hint::Host(row.id("host_id")?, ForHost::Requests));
            return Ok(Sent::Asked);
        }
        let sql = sql!(concat!(
            "SELECT n.id FROM nodes n JOIN hosts h ON h.id = n.host_id WHERE n.id = $1 AND h.id <> $2 AND ",
            has_authority!("$3")
        ));
        let is_away = self.optional(sql, args![new.node_id, own_id, now]).await?.is_some();
        Ok(if is_away { Sent::HostAway } else { Sent::NoHost })
    }

    async fn answer_request(&mut self, id: Uuid, answer: &str) -> Result<bool> {
        let sql = sql!(
            "UPDATE node_requests SET state = 'answered', answer = $2 \
             WHERE id = $1 AND state = 'waiting' AND expires_at > $3 RETURNING asked_by"
        );
        let now = self.now;
        let Some(row) = self.optional(sql, args![id, answer, now]).await? else { return Ok(false) };
        self.notify(Hint::Host(row.id("asked_by")?, ForHost::Answers));
        Ok(true)
    }

    /// Withdraws that nodes of a host have ended sessions, which its new process may serve again. An answer of the former process
    /// whose commit is under way is waited for.
    pub(super) async fn withdraw_answers(&mut self, host_id: Uuid) -> Result<()> {
        let sql = sql!(
            "UPDATE node_requests SET state = CASE state WHEN 'answered' THEN 'withdrawn' ELSE state END \
             WHERE (host_id = $1 AND state = 'waiting') OR (host_id = $1 AND state = 'answered')"
        );
        self.execute(sql, args![host_id]).await?;
        Ok(())
    }

    /// Takes up that nodes of other hosts have ended sessions: from here on they do not serve them again. False if one of
    /// them may have been withdrawn, or if a node that had no host may serve now.
    pub async fn take_up_ends(&mut self, ends: &EndsElsewhere) -> Result<bool> {
        let EndsElsewhere { request_ids, without_host } = ends;
        if !without_host.is_empty() && self.may_serve_now(without_host).await? {
            return Ok(false);
        }
        if request_ids.is_empty() {
            return Ok(true);
        }
        let sql = by_ids!(
            "DELETE FROM node_requests WHERE state = 'answered' AND expires_at > $2 AND id",
            "$1",
            "RETURNING id"
        );
        let now = self.now;
        Ok(self.all(sql, args![&request_ids[..], now]).await?.len() == request_ids.len())
    }

    /// Whether another host of one of these nodes is there. One that takes a node meanwhile, starts, or is heard of again waits
    /// until this is written, and reads then what its nodes are to serve.
    async fn may_serve_now(&mut self, node_ids: &[Uuid]) -> Result<bool> {
        let sql = by_ids!("SELECT id FROM nodes WHERE id", "$1", "ORDER BY id", locked: " FOR SHARE");
        self.all(sql, args![node_ids]).await?;
        let sql = by_ids!(
            concat!(
                "SELECT (h.id <> $2 AND ",
                has_authority!("$3"),
                ") AS may_serve FROM nodes n JOIN hosts h ON h.id = n.host_id WHERE n.id"
            ),
            "$1",
            "",
            locked: " FOR SHARE OF h"
        );
        let (own_id, now) = (self.host_id.unwrap_or_default(), self.now);
        let rows = self.all(sql, args![node_ids, own_id, now]).await?;
        Ok(rows.iter().map(|row| row.flag("may_serve")).collect::<DbResult<Vec<_>>>()?.contains(&true))
    }
}

fn request(row: &Row) -> DbResult<NodeRequest> {
    Ok(row!(row => NodeRequest {
        id: id, node_id: id, kind: string_enum, tunnel_id: optional_id, session_id: optional_id, epoch: optional_number,
        expires_at: time,
    }))
}
