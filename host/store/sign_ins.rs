//! How people come in: one-time links, passwords, and sign-ins.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::arg::{StringArg, args};
use super::error::{DbResult, StoreError};
use super::read::Read;
use super::row::{Row, row};
use super::sql::sql;
use super::{Hint, Store, Write, scopes};
use culvert_domain::caller::{Caller, Credential, Role, Scope};
use culvert_domain::error::Result;
use culvert_domain::permission::{Permission, Permissions};
use culvert_domain::sign_in::{SignIn, SignInClient, SignInMethod};
use culvert_domain::string_enum::StringEnum;

/// Teams that are shown of one account, and sign-ins.
const SHOWN: u32 = 100;

/// A new sign-in.
pub struct NewSignIn {
    pub account_id: Uuid,
    /// SHA-256 of the cookie's value.
    pub hash: [u8; 32],
    pub method: SignInMethod,
    pub client: SignInClient,
    pub expires_at: DateTime<Utc>,
    pub elevated_until: Option<DateTime<Utc>>,
}

macro_rules! select_sign_in {
    ($condition:literal) => {
        sql!(concat!(
            "SELECT i.id, i.account_id, i.method, i.address, i.agent, i.created_at, i.last_seen_at, i.expires_at, \
                    i.elevated_until, a.email, a.operator_since IS NOT NULL AS is_operator, s.name, \
                    p.account_id IS NOT NULL AS has_password, t.confirmed_at IS NOT NULL AS has_second_factor, \
                    EXISTS (SELECT 1 FROM passkeys k WHERE k.account_id = i.account_id) AS has_passkey \
             FROM sign_ins i JOIN accounts a ON a.id = i.account_id JOIN scopes s ON s.id = i.account_id \
             LEFT JOIN passwords p ON p.account_id = i.account_id LEFT JOIN totp t ON t.account_id = i.account_id WHERE ",
            $condition
        ))
    };
}

impl Store {
    /// A sign-in by the hash of its cookie's value, unless it is over.
    pub async fn sign_in(&self, hash: &[u8]) -> Result<Option<SignIn>> {
        let sql = select_sign_in!("i.hash = $1 AND i.expires_at > $2");
        let row = (&self.db).optional(sql, args![hash, self.clock.now()]).await?;
        Ok(row.as_ref().map(sign_in).transpose()?)
    }

    /// The sign-ins of an account, the last used first.
    pub async fn sign_ins_of(&self, account_id: Uuid) -> Result<Vec<SignIn>> {
        let sql = select_sign_in!("i.account_id = $1 AND i.expires_at > $2 ORDER BY i.last_seen_at DESC LIMIT $3");
        let rows = (&self.db).all(sql, args![account_id, self.clock.now(), SHOWN]).await?;
        Ok(rows.iter().map(sign_in).collect::<DbResult<_>>()?)
    }

    /// The person behind a sign-in, in a scope. `None` if the sign-in is over, or the account is not in the scope.
    pub async fn caller_of_sign_in(&self, id: Uuid, scope_id: Uuid) -> Result<Option<Caller>> {
        let sql = sql!(
            "SELECT i.account_id, s.id, s.kind, s.name, s.plan, m.role FROM sign_ins i JOIN scopes s ON s.id = $2 \
             LEFT JOIN team_members m ON m.team_id = s.id AND m.account_id = i.account_id \
             WHERE i.id = $1 AND i.expires_at > $3 AND (s.id = i.account_id OR m.role IS NOT NULL)"
        );
        let row = (&self.db).optional(sql, args![id, scope_id, self.clock.now()]).await?;
        let caller = |row: &Row| {
            let permissions = Permissions::of(Permission::ALL);
            Ok::<_, StoreError>(row!(row => Caller {
                account_id: id;
                credential: Credential::SignIn(id), scope: scopes::scope(row)?,
                role: row.optional_string_enum::<Role>("role")?, permissions,
            }))
        };
        Ok(row.as_ref().map(caller).transpose()?)
    }

    /// The Teams that an account is in, by their names.
    pub async fn teams_of(&self, account_id: Uuid) -> Result<Vec<Scope>> {
        let sql = sql!(
            "SELECT s.id, s.kind, s.name, s.plan FROM team_members m JOIN scopes s ON s.id = m.team_id \
             WHERE m.account_id = $1 ORDER BY s.name, s.id LIMIT $2"
        );
        let rows = (&self.db).all(sql, args![account_id, SHOWN]).await?;
        Ok(rows.iter().map(scopes::scope).collect::<DbResult<_>>()?)
    }

    /// The account of an e-mail address, and its password's hash.
    pub async fn password_by_email(&self, email: &str) -> Result<Option<(Uuid, String)>> {
        let sql =
            sql!("SELECT a.id, p.hash FROM accounts a JOIN passwords p ON p.account_id = a.id WHERE a.email = $1");
        let row = (&self.db).optional(sql, args![&email.to_lowercase()]).await?;
        Ok(row.map(|row| Ok::<_, StoreError>((row.id("id")?, row.text("hash")?))).transpose()?)
    }

    /// The account of a link that can be used.
    pub async fn account_of_link(&self, hash: &[u8]) -> Result<Option<Uuid>> {
        let sql = sql!("SELECT account_id FROM links WHERE hash = $1 AND expires_at > $2");
        let row = (&self.db).optional(sql, args![hash, self.clock.now()]).await?;
        Ok(row.map(|row| row.id("account_id")).transpose()?)
    }
}

impl Write {
    pub async fn create_link(&mut self, hash: &[u8], account_id: Uuid, expires_at: DateTime<Utc>) -> Result<()> {
        let sql = sql!("INSERT INTO links (hash, account_id, expires_at) VALUES ($1, $2, $3)");
        self.execute(sql, args![hash, account_id, expires_at]).await?;
        Ok(())
    }

    /// Uses a link, which can be done once. Returns its account if it was valid.
    pub async fn take_link(&mut self, hash: &[u8]) -> Result<Option<Uuid>> {
        let now = self.now;
        let sql = sql!("DELETE FROM links WHERE hash = $1 AND expires_at > $2 RETURNING account_id");
        let row = self.optional(sql, args![hash, now]).await?;
        Ok(row.map(|row| row.id("account_id")).transpose()?)
    }

    /// Ends the links of an account that were not used.
    pub async fn delete_links_of(&mut self, account_id: Uuid) -> Result<()> {
        self.execute(sql!("DELETE FROM links WHERE account_id = $1"), args![account_id]).await?;
        Ok(())
    }

    /// A sign-in as it is now, unless it is over.
    pub async fn sign_in(&mut self, id: Uuid) -> Result<Option<SignIn>> {
        let now = self.now;
        let row = self.optional(select_sign_in!("i.id = $1 AND i.expires_at > $2"), args![id, now]).await?;
        Ok(row.as_ref().map(sign_in).transpose()?)
    }

    /// Adds a sign-in. Of more than `most` of the account, those that were not used for the longest time end.
    pub async fn create_sign_in(&mut self, new: &NewSignIn, most: u32) -> Result<Uuid> {
        let (id, now) = (self.clock.id(), self.now);
        let sql = sql!(
            "INSERT INTO sign_ins (id, hash, account_id, method, address, agent, created_at, last_seen_at, expires_at, \
                 elevated_until) VALUES ($1, $2, $3, $4, $5, $6, $7, $7, $8, $9)"
        );
        let NewSignIn { account_id, hash, method, client, expires_at, elevated_until } = new;
        let (address, agent) = (client.address.as_deref(), client.agent.as_str());
        let args =
            args![id, &hash[..], *account_id, StringArg(*method), address, agent, now, *expires_at, *elevated_until];
        self.execute(sql, args).await?;
        let sql = sql!(
            "DELETE FROM sign_ins WHERE id IN (SELECT id FROM (SELECT id FROM sign_ins WHERE account_id = $1 AND id <> $2 \
                 ORDER BY last_seen_at DESC LIMIT 1000 OFFSET $3) AS longest_idle)"
        );
        self.execute(sql, args![*account_id, id, i64::from(most) - 1]).await?;
        Ok(id)
    }

    pub async fn note_sign_in_seen(&mut self, id: Uuid) -> Result<()> {
        let now = self.now;
        self.execute(sql!("UPDATE sign_ins SET last_seen_at = $2 WHERE id = $1"), args![id, now]).await?;
        Ok(())
    }

    /// Gives a sign-in another value, and notes how long the person has just proved who it is. False if it is over.
    pub async fn elevate_sign_in(&mut self, id: Uuid, hash: &[u8], until: DateTime<Utc>) -> Result<bool> {
        let now = self.now;
        let sql = sql!(
            "UPDATE sign_ins SET hash = $2, elevated_until = $3, last_seen_at = $4 WHERE id = $1 AND expires_at > $4"
        );
        Ok(self.execute(sql, args![id, hash, until, now]).await? == 1)
    }

    /// Gives a sign-in another value.
    pub async fn renew_sign_in(&mut self, id: Uuid, hash: &[u8]) -> Result<()> {
        self.execute(sql!("UPDATE sign_ins SET hash = $2 WHERE id = $1"), args![id, hash]).await?;
        Ok(())
    }

    /// Ends one sign-in of an account.
    pub async fn end_sign_in(&mut self, account_id: Uuid, id: Uuid) -> Result<()> {
        self.notify(Hint::Scope(account_id));
        let sql = sql!("DELETE FROM sign_ins WHERE id = $1 AND account_id = $2");
        self.execute(sql, args![id, account_id]).await?;
        Ok(())
    }

    /// Ends all sign-ins of an account.
    pub async fn end_sign_ins_of(&mut self, account_id: Uuid) -> Result<()> {
        self.notify(Hint::Scope(account_id));
        self.execute(sql!("DELETE FROM sign_ins WHERE account_id = $1"), args![account_id]).await?;
        Ok(())
    }

    /// Ends all sign-ins of an account but one.
    pub async fn end_other_sign_ins(&mut self, account_id: Uuid, id: Uuid) -> Result<()> {
        self.notify(Hint::Scope(account_id));
        let sql = sql!("DELETE FROM sign_ins WHERE account_id = $1 AND id <> $2");
        self.execute(sql, args![account_id, id]).await?;
        Ok(())
    }

    pub async fn remove_password(&mut self, account_id: Uuid) -> Result<()> {
        self.execute(sql!("DELETE FROM passwords WHERE account_id = $1"), args![account_id]).await?;
        Ok(())
    }

    /// Whether this is the hash of an account's password still.
    pub async fn has_password_hash(&mut self, account_id: Uuid, hash: &str) -> Result<bool> {
        let sql = sql!("SELECT 1 AS one FROM passwords WHERE account_id = $1 AND hash = $2");
        Ok(self.optional(sql, args![account_id, hash]).await?.is_some())
    }

    /// Replaces the hash of a password that stays the same.
    pub async fn replace_password_hash(&mut self, account_id: Uuid, hash: &str) -> Result<()> {
        self.execute(sql!("UPDATE passwords SET hash = $2 WHERE account_id = $1"), args![account_id, hash]).await?;
        Ok(())
    }

    pub async fn set_password(&mut self, account_id: Uuid, hash: &str) -> Result<()> {
        let now = self.now;
        let sql = sql!(
            "INSERT INTO passwords (account_id, hash, changed_at) VALUES ($1, $2, $3) \
             ON CONFLICT (account_id) DO UPDATE SET hash = excluded.hash, changed_at = excluded.changed_at"
        );
        self.execute(sql, args![account_id, hash, now]).await?;
        Ok(())
    }
}

fn sign_in(row: &Row) -> DbResult<SignIn> {
    Ok(row!(row => SignIn {
        id: id, account_id: id, email: text, name: text, method: string_enum, created_at: time, last_seen_at: time,
        expires_at: time, elevated_until: optional_time, has_password: flag, has_passkey: flag, has_second_factor: flag,
        is_operator: flag;
        client: SignInClient { address: row.optional_text("address")?, agent: row.text("agent")? },
    }))
}
