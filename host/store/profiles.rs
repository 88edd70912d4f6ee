//! The e-mail address of an account, and one that it is to have once a link to it was opened.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::arg::args;
use super::read::Read;
use super::sql::sql;
use super::{Store, Write};
use culvert_domain::error::Result;

impl Store {
    /// The account whose address a link changes, if it can still be used.
    pub async fn account_of_email_change(&self, hash: &[u8]) -> Result<Option<Uuid>> {
        let sql = sql!("SELECT account_id FROM email_changes WHERE hash = $1 AND expires_at > $2");
        let row = (&self.db).optional(sql, args![hash, self.clock.now()]).await?;
        Ok(row.map(|row| row.id("account_id")).transpose()?)
    }
}

impl Write {
    /// Has a link change the address of an account. A former one ends.
    pub async fn replace_email_change(
        &mut self,
        hash: &[u8],
        account_id: Uuid,
        email: &str,
        expires_at: DateTime<Utc>,
    ) -> Result<()> {
        self.delete_email_change(account_id).await?;
        let sql = sql!("INSERT INTO email_changes (hash, account_id, email, expires_at) VALUES ($1, $2, $3, $4)");
        self.execute(sql, args![hash, account_id, email, expires_at]).await?;
        Ok(())
    }

    /// Ends the link that would change the address of an account.
    pub async fn delete_email_change(&mut self, account_id: Uuid) -> Result<()> {
        self.execute(sql!("DELETE FROM email_changes WHERE account_id = $1"), args![account_id]).await?;
        Ok(())
    }

    /// Uses a link that changes an address, which can be done once. Returns the address if it could be used.
    pub async fn take_email_change(&mut self, hash: &[u8]) -> Result<Option<String>> {
        let now = self.now;
        let sql = sql!("DELETE FROM email_changes WHERE hash = $1 AND expires_at > $2 RETURNING email");
        let row = self.optional(sql, args![hash, now]).await?;
        Ok(row.map(|row| row.text("email")).transpose()?)
    }

    /// Gives an account another address, which was proved to be its own or not. False if another account has it.
    pub async fn set_email(&mut self, account_id: Uuid, email: &str, is_proved: bool) -> Result<bool> {
        let sql = sql!(
            "UPDATE accounts SET email = $2, email_proved = $3 \
             WHERE id = $1 AND NOT EXISTS (SELECT 1 FROM accounts WHERE email = $2 AND id <> $1)"
        );
        Ok(self.execute(sql, args![account_id, email, is_proved]).await? == 1)
    }

    /// Notes whether the address of an account is its own.
    pub async fn set_email_proved(&mut self, account_id: Uuid, is_proved: bool) -> Result<()> {
        let sql = sql!("UPDATE accounts SET email_proved = $2 WHERE id = $1");
        self.execute(sql, args![account_id, is_proved]).await?;
        Ok(())
    }
}
