//! How entries are appended to the audit log: all those that are committed together by one statement.

use std::collections::{HashMap, HashSet, hash_map};

use chrono::{DateTime, Utc};
use culvert_domain::audit_log::{Actor, Entry, NewEntry};
use culvert_domain::error::{Error, Result};
use serde::Serialize;
use uuid::Uuid;

use super::arg::args;
use super::audit_heads::{Appender, AuditKey, ChainHead, Due};
use super::error::DbResult;
use super::read::{Execute, Read};
use super::row::Row;
use super::sql::sql;

macro_rules! select_entry {
    ($rest:literal) => {
        select_entry!("", $rest)
    };
    ($more:literal, $rest:literal) => {
        sql!(concat!(
            "SELECT scope_id, number, at, origin, account_id, credential_id, action, subject_id, details, request_id, \
                    address, previous_at, previous, digest",
            $more,
            " FROM audit_log ",
            $rest
        ))
    };
}
pub(super) use select_entry;

macro_rules! insert_entries {
    () => {
        sql!(
            sqlite: concat!(
                insert_entries!(columns),
                "SELECT unhex(value ->> 0), value ->> 1, value ->> 2, value ->> 3, unhex(value ->> 4), unhex(value ->> 5), \
                     value ->> 6, unhex(value ->> 7), value ->> 8, unhex(value ->> 9), value ->> 10, value ->> 11, \
                     unhex(value ->> 12), unhex(value ->> 13) \
                 FROM jsonb_each($1) \
                 WHERE NOT EXISTS (SELECT 1 FROM audit_log a WHERE a.scope_id = unhex(value ->> 0) AND a.number > value ->> 14)"
            ),
            postgres: concat!(
                insert_entries!(columns),
                "SELECT CAST(value ->> 0 AS UUID), CAST(value ->> 1 AS BIGINT), CAST(value ->> 2 AS BIGINT), value ->> 3, \
                     CAST(value ->> 4 AS UUID), CAST(value ->> 5 AS UUID), value ->> 6, CAST(value ->> 7 AS UUID), \
                     value ->> 8, CAST(value ->> 9 AS UUID), value ->> 10, CAST(value ->> 11 AS BIGINT), \
                     decode(value ->> 12, 'hex'), decode(value ->> 13, 'hex') \
                 FROM json_array_elements(CAST($1 AS JSON)) \
                 WHERE NOT EXISTS (SELECT 1 FROM audit_log a \
                     WHERE a.scope_id = CAST(value ->> 0 AS UUID) AND a.number > CAST(value ->> 14 AS BIGINT))"
            )
        )
    };
    (columns) => {
        "INSERT INTO audit_log (scope_id, number, at, origin, account_id, credential_id, action, subject_id, details, \
             request_id, address, previous_at, previous, digest) "
    };
}

/// Appends entries, each to the chain of its scope: after the newest one that this process has written. Where somebody else
/// has written since, it is read.
pub(super) async fn append(db: &mut impl Execute, audit: &mut Appender) -> Result<()> {
    let due = std::mem::take(&mut audit.due);
    if due.is_empty() {
        return Ok(());
    }
    let overtaken = append_known(db, audit, due).await?;
    if overtaken.is_empty() || append_known(db, audit, overtaken).await?.is_empty() {
        return Ok(());
    }
    Err(Error::internal("somebody writes to an audit log whose scope is locked"))
}

/// Where a chain is continued.
struct Chain {
    /// The number of the entry that is taken for the newest one.
    after: u64,
    head: Option<ChainHead>,
}

/// Returns the entries that could not be appended, for what was taken for the newest entry of their chain is not.
async fn append_known(db: &mut impl Execute, audit: &mut Appender, due: Vec<Due>) -> Result<Vec<Due>> {
    let key = audit.key()?;
    let mut chains = HashMap::new();
    let mut entries = Vec::with_capacity(due.len());
    for due in &due {
        let scope_id = due.entry.scope_id;
        let chain = match chains.entry(scope_id) {
            hash_map::Entry::Occupied(known) => known.into_mut(),
            hash_map::Entry::Vacant(unknown) => {
                let known = audit.take(scope_id);
                let head = if known.is_some() { known } else { read_head(db, &*key, scope_id, due.at).await? };
                unknown.insert(Chain { after: head.as_ref().map_or(0, |head| head.number), head })
            }
        };
        let entry = after(chain.head.take(), due, &*key);
        chain.head = Some(ChainHead { number: entry.number, at: entry.at, digest: entry.digest.clone() });
        entries.push((entry, chain.after));
    }
    let appended = db.execute(insert_entries!(), args![&as_json(&entries)?]).await?;
    let overtaken = if appended == entries.len() as u64 { HashSet::new() } else { overtaken(db, &chains).await? };
    chains.retain(|scope_id, _| !overtaken.contains(scope_id));
    for (scope_id, chain) in chains {
        if let Some(head) = chain.head {
            audit.put(scope_id, head);
        }
    }
    Ok(due.into_iter().filter(|due| overtaken.contains(&due.entry.scope_id)).collect())
}

/// The scopes whose chains do not end as they were to.
async fn overtaken(db: &mut impl Execute, chains: &HashMap<Uuid, Chain>) -> Result<HashSet<Uuid>> {
    let mut overtaken = HashSet::new();
    for (scope_id, chain) in chains {
        let newest = newest(db, *scope_id).await?;
        if newest.map(|entry| entry.digest) != chain.head.as_ref().map(|head| head.digest.clone()) {
            overtaken.insert(*scope_id);
        }
    }
    Ok(overtaken)
}

async fn newest(db: &mut impl Read, scope_id: Uuid) -> Result<Option<Entry>> {
    let sql = select_entry!("WHERE scope_id = $1 AND number > 0 ORDER BY number DESC LIMIT 1");
    Ok(db.optional(sql, args![scope_id]).await?.as_ref().map(entry).transpose()?)
}

async fn read_head(
    db: &mut impl Read,
    key: &dyn AuditKey,
    scope_id: Uuid,
    now: DateTime<Utc>,
) -> Result<Option<ChainHead>> {
    let Some(last) = newest(db, scope_id).await? else { return Ok(None) };
    // A time that somebody has put there is not authenticated along.
    let at = if key.vouches_for(&last.authenticated(), &last.digest) { last.at } else { now };
    Ok(Some(ChainHead { number: last.number, at, digest: last.digest }))
}

/// The entry that follows another one.
fn after(head: Option<ChainHead>, due: &Due, key: &dyn AuditKey) -> Entry {
    let NewEntry { scope_id, actor, action, subject_id, details } = due.entry.clone();
    let (number, previous_at, previous) = match head {
        Some(head) => (head.number + 1, Some(head.at), head.digest),
        None => (1, None, Vec::new()),
    };
    // A clock that was set back must not have an entry be deleted before those that it follows.
    let at = previous_at.map_or(due.at, |previous| previous.max(due.at));
    let (action, digest) = (action.to_owned(), Vec::new());
    let mut entry = Entry { scope_id, number, at, actor, action, subject_id, details, previous_at, previous, digest };
    entry.digest = key.mac(&entry.authenticated());
    entry
}

/// Rows as `insert_entries` takes them: each is inserted where no entry of its chain is after its last number.
fn as_json(entries: &[(Entry, u64)]) -> Result<String> {
    let rows: Vec<_> = entries.iter().map(|(entry, after)| stored(entry, *after)).collect();
    serde_json::to_string(&rows).map_err(Error::internal)
}

fn stored(entry: &Entry, after: u64) -> impl Serialize {
    let Entry { scope_id, number, at, actor, action, subject_id, details, previous_at, previous, digest } = entry;
    let Actor { origin, account_id, credential_id, request_id, address } = actor;
    (
        scope_id.simple(),
        number,
        at.timestamp_micros(),
        origin,
        account_id.map(Uuid::simple),
        credential_id.map(Uuid::simple),
        action,
        subject_id.map(Uuid::simple),
        details,
        request_id.map(Uuid::simple),
        address,
        previous_at.map(|at| at.timestamp_micros()),
        hex::encode(previous),
        hex::encode(digest),
        after,
    )
}

pub(super) fn entry(row: &Row) -> DbResult<Entry> {
    let actor = Actor {
        origin: row.string_enum("origin")?,
        account_id: row.optional_id("account_id")?,
        credential_id: row.optional_id("credential_id")?,
        request_id: row.optional_id("request_id")?,
        address: row.text("address")?,
    };
    Ok(Entry {
        scope_id: row.id("scope_id")?,
        number: row.number("number")?,
        at: row.time("at")?,
        actor,
        action: row.text("action")?,
        subject_id: row.optional_id("subject_id")?,
        details: row.text("details")?,
        previous_at: row.optional_time("previous_at")?,
        previous: row.bytes("previous")?,
        digest: row.bytes("digest")?,
    })
}
