//! The audit log. Entries are written at the end of the transaction that makes the change, and never changed.

use std::sync::Arc;

use uuid::Uuid;

use super::arg::{StringArg, args};
use super::db::Read;
use super::error::{DbResult, StoreError};
use super::row::Row;
use super::sql::{by_ids, sql};
use super::{Hint, Store, Write};
use culvert_domain::audit_log::{Actor, Entry, NewEntry};
use culvert_domain::error::{Error, Result};
use culvert_domain::page::{CursorPosition, Page, PageRows};

/// Authenticates entries, by a key that the database does not have.
pub trait AuditKey: Send + Sync {
    fn mac(&self, entry: &[u8]) -> Vec<u8>;

    fn vouches_for(&self, entry: &[u8], mac: &[u8]) -> bool;
}

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

/// With the name of the account.
macro_rules! select_named_entry {
    ($rest:literal) => {
        select_entry!(", (SELECT name FROM scopes s WHERE s.id = account_id) AS account_name", $rest)
    };
}

impl Store {
    /// Sets what entries are authenticated with. Without it, nothing that is to be in the log is written.
    pub fn set_audit_key(&self, key: Arc<dyn AuditKey>) {
        let _ = self.audit_key.set(key);
    }

    /// A page of the entries of a scope, the newest first, each with the name of the account; with an account, of its own.
    pub async fn audit_entries(
        &self,
        scope_id: Uuid,
        account_id: Option<Uuid>,
        page: Page,
    ) -> Result<PageRows<(Entry, Option<String>)>> {
        // The place in the chain stands for the time: the later entry has the higher number.
        let (before, limit) = (page.after.micros(), page.limit_plus_one());
        let rows = match account_id {
            None => {
                let sql = select_named_entry!(
                    "WHERE scope_id = $1 AND number > 0 AND number < $2 ORDER BY number DESC LIMIT $3"
                );
                (&self.db).all(sql, args![scope_id, before, limit]).await?
            }
            Some(account_id) => {
                let sql = select_named_entry!(
                    "WHERE scope_id = $1 AND account_id = $2 AND number > 0 AND number < $3 ORDER BY number DESC LIMIT $4"
                );
                (&self.db).all(sql, args![scope_id, account_id, before, limit]).await?
            }
        };
        let named = |row: &Row| Ok((entry(row)?, row.optional_text("account_name")?));
        let entries = rows.iter().map(named).collect::<DbResult<Vec<_>>>()?;
        Ok(page.truncate(entries, |(entry, _)| CursorPosition::of_number(entry.number, entry.scope_id)))
    }

    /// The next scope that has entries, in the order of their ids. It may be a Team that was deleted.
    pub async fn audited_scope_after(&self, after: Uuid) -> Result<Option<Uuid>> {
        let sql = sql!("SELECT scope_id FROM audit_log WHERE scope_id > $1 ORDER BY scope_id LIMIT 1");
        let row = (&self.db).optional(sql, args![after]).await?;
        Ok(row.map(|row| row.id("scope_id")).transpose()?)
    }

    /// Whether a scope has rows that no entry can be: a chain begins with 1.
    pub async fn has_impossible_audit_entries(&self, scope_id: Uuid) -> Result<bool> {
        let sql = sql!("SELECT 1 AS one FROM audit_log WHERE scope_id = $1 AND number < 1 LIMIT 1");
        Ok((&self.db).optional(sql, args![scope_id]).await?.is_some())
    }

    /// The entries of a scope after one, the oldest first, at most so many.
    pub async fn audit_entries_after(&self, scope_id: Uuid, number: u64, most: u32) -> Result<Vec<Entry>> {
        let sql = select_entry!("WHERE scope_id = $1 AND number > $2 ORDER BY number LIMIT $3");
        let rows = (&self.db).all(sql, args![scope_id, number, most]).await?;
        Ok(rows.iter().map(entry).collect::<DbResult<_>>()?)
    }
}

impl Store {
    /// The number of the newest entry of each of these scopes, and by what it was made.
    pub async fn newest_audit_entries(&self, scope_ids: &[Uuid]) -> Result<Vec<(Uuid, u64, String)>> {
        let sql = by_ids!(
            "SELECT scope_id, number, origin FROM audit_log AS entry WHERE entry.scope_id",
            "$1",
            "AND number = (SELECT MAX(number) FROM audit_log WHERE scope_id = entry.scope_id)"
        );
        let rows = (&self.db).all(sql, args![scope_ids]).await?;
        let newest = |row: &Row| Ok((row.id("scope_id")?, row.number("number")?, row.text("origin")?));
        Ok(rows.iter().map(newest).collect::<DbResult<_>>()?)
    }

    /// The newest entry that a command on the server has made: its scope and number.
    pub async fn newest_command(&self) -> Result<Option<(Uuid, u64)>> {
        let sql = sql!("SELECT scope_id, number FROM audit_log WHERE origin = 'cli' ORDER BY at DESC LIMIT 1");
        let row = (&self.db).optional(sql, args![]).await?;
        let entry = |row: Row| Ok::<_, StoreError>((row.id("scope_id")?, row.number("number")?));
        Ok(row.map(entry).transpose()?)
    }

    /// Has the log tell of something that changes nothing else.
    pub async fn audit(&self, entry: NewEntry) -> Result<()> {
        let append = self.write(Some(entry.scope_id), move |write| {
            write.audit(entry);
            Box::pin(async { Ok(()) })
        });
        append.await
    }
}

impl Write {
    /// Has a change be in the log when the transaction commits.
    pub fn audit(&mut self, entry: NewEntry) {
        if entry.is_of_installation() {
            self.notify(Hint::Installation);
        }
        self.audited.push(entry);
    }

    /// Appends the entries of this transaction, each to the chain of its scope.
    pub(super) async fn append_audit_entries(&mut self) -> Result<()> {
        for new in std::mem::take(&mut self.audited) {
            self.append_audit_entry(new).await?;
        }
        Ok(())
    }

    async fn append_audit_entry(&mut self, new: NewEntry) -> Result<()> {
        let key = self.audit_key.clone().ok_or_else(|| Error::internal("the audit log has no key"))?;
        let NewEntry { scope_id, actor, action, subject_id, details } = new;
        if self.locked_scope != Some(scope_id) {
            let sql = sql!("SELECT id FROM scopes WHERE id = $1", locked: " FOR NO KEY UPDATE");
            self.lock(sql, args![scope_id]).await?;
        }
        let sql = select_entry!("WHERE scope_id = $1 AND number > 0 ORDER BY number DESC LIMIT 1");
        let last = self.optional(sql, args![scope_id]).await?.as_ref().map(entry).transpose()?;
        let (number, previous_at, previous) = match last {
            Some(last) => {
                // A time that somebody has put there is not authenticated along.
                let is_ours = key.vouches_for(&last.authenticated(), &last.digest);
                (last.number + 1, Some(if is_ours { last.at } else { self.now }), last.digest)
            }
            None => (1, None, Vec::new()),
        };
        // A clock that was set back must not have an entry be deleted before those that it follows.
        let at = previous_at.map_or(self.now, |previous| previous.max(self.now));
        let action = action.to_owned();
        let digest = Vec::new();
        let mut entry =
            Entry { scope_id, number, at, actor, action, subject_id, details, previous_at, previous, digest };
        entry.digest = key.mac(&entry.authenticated());
        self.insert_audit_entry(&entry).await
    }

    async fn insert_audit_entry(&mut self, entry: &Entry) -> Result<()> {
        let Entry { scope_id, number, at, actor, action, subject_id, details, previous_at, previous, digest } = entry;
        let Actor { origin, account_id, credential_id, request_id, address } = actor;
        let sql = sql!(
            "INSERT INTO audit_log (scope_id, number, at, origin, account_id, credential_id, action, subject_id, details, \
                 request_id, address, previous_at, previous, digest) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)"
        );
        let args = args![
            *scope_id,
            *number,
            *at,
            StringArg(*origin),
            *account_id,
            *credential_id,
            action,
            *subject_id,
            details,
            *request_id,
            address,
            *previous_at,
            &previous[..],
            &digest[..],
        ];
        self.execute(sql, args).await?;
        Ok(())
    }
}

fn entry(row: &Row) -> DbResult<Entry> {
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
