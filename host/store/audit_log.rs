//! The audit log. Entries are written at the end of the transaction that makes the change, and never changed.

use std::collections::BTreeSet;
use std::sync::Arc;

use uuid::Uuid;

use super::arg::args;
use super::audit_append::{append, entry, select_entry};
use super::audit_heads::{AuditKey, Due};
use super::db::Tx;
use super::error::{DbResult, StoreError};
use super::read::Read;
use super::row::Row;
use super::sql::{by_ids, sql};
use super::{Hint, Store, Write};
use culvert_domain::audit_log::{Entry, NewEntry};
use culvert_domain::error::Result;
use culvert_domain::page::{CursorPosition, Page, PageRows};

/// With the name of the account.
macro_rules! select_named_entry {
    ($rest:literal) => {
        select_entry!(", (SELECT name FROM scopes s WHERE s.id = account_id) AS account_name", $rest)
    };
}

impl Store {
    /// Sets what entries are authenticated with. Without it, nothing that is to be in the log is written.
    pub fn set_audit_key(&self, key: Arc<dyn AuditKey>) {
        let _ = self.audit_heads.key.set(key);
    }

    /// A page of the entries of a scope, the newest first, each with the name of the account; of a Team, with an account, its
    /// own.
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
                    "WHERE scope_id = $1 AND account_id = $2 AND account_id <> scope_id AND number > 0 AND number < $3 \
                     ORDER BY number DESC LIMIT $4"
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
        let at = self.now;
        self.audit.due.push(Due { entry, at });
    }

    /// Appends the entries of this transaction, where it is committed alone.
    pub(super) async fn append_audit_entries(&mut self) -> Result<()> {
        if matches!(**self, Tx::Sqlite(_)) {
            return Ok(());
        }
        let of_others = self.audit.due.iter().map(|due| due.entry.scope_id).filter(|id| Some(*id) != self.locked_scope);
        for scope_id in of_others.collect::<BTreeSet<_>>() {
            self.lock(sql!("SELECT id FROM scopes WHERE id = $1", locked: " FOR NO KEY UPDATE"), args![scope_id])
                .await?;
        }
        append(&mut self.tx, &mut self.audit).await
    }
}
