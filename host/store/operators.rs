//! Accounts that operate the installation, and the link by which the first of them comes in.

use uuid::Uuid;

use super::arg::args;
use super::error::DbResult;
use super::read::Read;
use super::row::{Row, row};
use super::sql::sql;
use super::{Store, Write};
use culvert_domain::account::AccountRecord;
use culvert_domain::error::Result;
use culvert_domain::page::{CursorPosition, Page, PageRows};

macro_rules! select_account {
    ($rest:literal) => {
        sql!(concat!(
            "SELECT a.id, a.email, a.created_at, s.name, s.plan, a.operator_since IS NOT NULL AS is_operator, \
                    a.locked_at IS NOT NULL AS is_locked, \
                    (SELECT 1 FROM passwords p WHERE p.account_id = a.id LIMIT 1) IS NOT NULL AS has_password \
             FROM accounts a JOIN scopes s ON s.id = a.id ",
            $rest
        ))
    };
}

impl Store {
    /// A page of all accounts, the newest first.
    pub async fn accounts(&self, page: Page) -> Result<PageRows<AccountRecord>> {
        let sql = select_account!("WHERE a.id < $1 ORDER BY a.id DESC LIMIT $2");
        let rows = (&self.db).all(sql, args![page.after.id, page.limit_plus_one()]).await?;
        let accounts = rows.iter().map(account).collect::<DbResult<Vec<_>>>()?;
        Ok(page.truncate(accounts, |account| CursorPosition { at: account.created_at, id: account.id }))
    }

    /// The account of an e-mail address, as an operator sees it.
    pub async fn account_record(&self, email: &str) -> Result<Option<AccountRecord>> {
        let row = (&self.db).optional(select_account!("WHERE a.email = $1"), args![&email.to_lowercase()]).await?;
        Ok(row.as_ref().map(account).transpose()?)
    }

    /// Whether any account has a password or a passkey.
    pub async fn somebody_can_sign_in(&self) -> Result<bool> {
        for sql in [sql!("SELECT 1 AS one FROM passwords LIMIT 1"), sql!("SELECT 1 AS one FROM passkeys LIMIT 1")] {
            if (&self.db).optional(sql, args![]).await?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether this is the link of the first operator.
    pub async fn has_setup_link(&self, hash: &[u8]) -> Result<bool> {
        let sql = sql!("SELECT 1 AS one FROM setup_links WHERE hash = $1");
        Ok((&self.db).optional(sql, args![hash]).await?.is_some())
    }
}

impl Write {
    /// Makes a link for the first operator; former ones end. With none, they only end.
    pub async fn replace_setup_link(&mut self, hash: Option<&[u8]>) -> Result<()> {
        self.execute(sql!("DELETE FROM setup_links"), args![]).await?;
        let Some(hash) = hash else { return Ok(()) };
        let now = self.now;
        self.execute(sql!("INSERT INTO setup_links (hash, created_at) VALUES ($1, $2)"), args![hash, now]).await?;
        Ok(())
    }

    /// Uses the link of the first operator. False if it is none, or an operator can sign in by now.
    pub async fn take_setup_link(&mut self, hash: &[u8]) -> Result<bool> {
        let sql = sql!(
            "DELETE FROM setup_links WHERE hash = $1 AND NOT EXISTS (SELECT 1 FROM accounts a \
                 JOIN passwords p ON p.account_id = a.id WHERE a.operator_since IS NOT NULL)"
        );
        Ok(self.execute(sql, args![hash]).await? == 1)
    }

    /// Makes an account an operator, or no operator any more.
    pub async fn set_operator(&mut self, account_id: Uuid, is_operator: bool) -> Result<()> {
        let since = is_operator.then_some(self.now);
        let sql = sql!(
            "UPDATE accounts SET operator_since = CASE WHEN CAST($2 AS BIGINT) IS NULL THEN NULL \
                 ELSE COALESCE(operator_since, $2) END WHERE id = $1"
        );
        self.execute(sql, args![account_id, since]).await?;
        Ok(())
    }

    /// Locks an account, or unlocks it.
    pub async fn set_locked(&mut self, account_id: Uuid, is_locked: bool) -> Result<()> {
        let since = is_locked.then_some(self.now);
        let sql = sql!(
            "UPDATE accounts SET locked_at = CASE WHEN CAST($2 AS BIGINT) IS NULL THEN NULL \
                 ELSE COALESCE(locked_at, $2) END WHERE id = $1"
        );
        self.execute(sql, args![account_id, since]).await?;
        Ok(())
    }

    /// Whether an account is locked.
    pub async fn is_locked(&mut self, account_id: Uuid) -> Result<bool> {
        let sql = sql!("SELECT 1 AS one FROM accounts WHERE id = $1 AND locked_at IS NOT NULL");
        Ok(self.optional(sql, args![account_id]).await?.is_some())
    }

    /// Whether this account is the only operator that is not locked. Others that look take turns.
    pub async fn is_last_operator(&mut self, account_id: Uuid) -> Result<bool> {
        let operators = sql!(
            "SELECT id FROM accounts WHERE operator_since IS NOT NULL ORDER BY id",
            locked: " FOR UPDATE"
        );
        self.lock(operators, args![]).await?;
        let sql = sql!(
            "SELECT (EXISTS (SELECT 1 FROM accounts WHERE id = $1 AND operator_since IS NOT NULL AND locked_at IS NULL) \
                 AND NOT EXISTS (SELECT 1 FROM accounts WHERE id <> $1 AND operator_since IS NOT NULL AND locked_at IS NULL)) \
                 AS is_last"
        );
        Ok(self.one(sql, args![account_id]).await?.flag("is_last")?)
    }
}

fn account(row: &Row) -> DbResult<AccountRecord> {
    Ok(row!(row => AccountRecord {
        id: id, email: text, name: text, plan: text, created_at: time, is_operator: flag, is_locked: flag,
        has_password: flag,
    }))
}
