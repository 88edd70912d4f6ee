//! Accounts, Teams and their members.

use uuid::Uuid;

use super::arg::{StringArg, args};
use super::error::DbResult;
use super::read::Read;
use super::row::{Row, row};
use super::sql::sql;
use super::{Hint, Store, Write};
use culvert_domain::account::Account;
use culvert_domain::caller::{Role, Scope, ScopeKind};
use culvert_domain::error::Result;
use culvert_domain::page::{CursorPosition, Page, PageRows};
use culvert_domain::team::Member;

macro_rules! select_member {
    ($rest:literal) => {
        sql!(concat!(
            "SELECT m.account_id, m.role, m.created_at, a.email, s.name FROM team_members m \
             JOIN accounts a ON a.id = m.account_id JOIN scopes s ON s.id = m.account_id ",
            $rest
        ))
    };
}

macro_rules! select_account {
    ($rest:literal) => {
        sql!(concat!(
            "SELECT a.id, a.email, a.created_at, s.name, s.plan FROM accounts a JOIN scopes s ON s.id = a.id ",
            $rest
        ))
    };
}

impl Store {
    pub async fn account(&self, id: Uuid) -> Result<Option<Account>> {
        let row = (&self.db).optional(select_account!("WHERE a.id = $1"), args![id]).await?;
        Ok(row.as_ref().map(account).transpose()?)
    }

    /// Finds an account by its e-mail address, in upper or lower case.
    pub async fn account_by_email(&self, email: &str) -> Result<Option<Account>> {
        let email = email.to_lowercase();
        let row = (&self.db).optional(select_account!("WHERE a.email = $1"), args![&email]).await?;
        Ok(row.as_ref().map(account).transpose()?)
    }

    /// The account that has an e-mail address of which it is known whose it is.
    pub async fn account_by_proved_email(&self, email: &str) -> Result<Option<Uuid>> {
        let email = email.to_lowercase();
        let sql = sql!("SELECT id FROM accounts WHERE email = $1 AND email_proved");
        let row = (&self.db).optional(sql, args![&email]).await?;
        Ok(row.map(|row| row.id("id")).transpose()?)
    }

    /// Finds Teams by id or name. Several Teams can have the same name.
    pub async fn teams_by_name(&self, team: &str) -> Result<Vec<Scope>> {
        let id = Uuid::parse_str(team).unwrap_or_default();
        let sql = sql!(
            "SELECT id, kind, name, plan FROM scopes WHERE kind = 'team' AND deleted_at IS NULL AND (id = $1 OR name = $2) ORDER BY id"
        );
        let rows = (&self.db).all(sql, args![id, team]).await?;
        Ok(rows.iter().map(scope).collect::<DbResult<_>>()?)
    }

    pub async fn scope(&self, id: Uuid) -> Result<Option<Scope>> {
        let row = (&self.db).optional(sql!("SELECT id, kind, name, plan FROM scopes WHERE id = $1"), args![id]).await?;
        Ok(row.as_ref().map(scope).transpose()?)
    }

    /// All scopes in the order of their ids, a page at a time.
    pub async fn scopes_after(&self, after: Uuid, limit: u32) -> Result<Vec<Scope>> {
        let sql =
            sql!("SELECT id, kind, name, plan FROM scopes WHERE id > $1 AND deleted_at IS NULL ORDER BY id LIMIT $2");
        let rows = (&self.db).all(sql, args![after, limit]).await?;
        Ok(rows.iter().map(scope).collect::<DbResult<_>>()?)
    }

    pub async fn members(&self, team_id: Uuid) -> Result<Vec<Member>> {
        let sql = select_member!("WHERE m.team_id = $1 ORDER BY m.created_at, m.account_id");
        let rows = (&self.db).all(sql, args![team_id]).await?;
        Ok(rows.iter().map(member).collect::<DbResult<_>>()?)
    }

    /// The owners and admins of a Team, the first ones, at most so many.
    pub async fn managers(&self, team_id: Uuid, most: u32) -> Result<Vec<Member>> {
        let sql =
            select_member!("WHERE m.team_id = $1 AND m.role <> 'member' ORDER BY m.created_at, m.account_id LIMIT $2");
        let rows = (&self.db).all(sql, args![team_id, most]).await?;
        Ok(rows.iter().map(member).collect::<DbResult<_>>()?)
    }

    /// A page of the members of a Team, the newest first.
    pub async fn members_page(&self, team_id: Uuid, page: Page) -> Result<PageRows<Member>> {
        let sql = select_member!(
            "WHERE m.team_id = $1 AND (m.created_at, m.account_id) < ($2, $3) \
             ORDER BY m.created_at DESC, m.account_id DESC LIMIT $4"
        );
        let args = args![team_id, page.after.micros(), page.after.id, page.limit_plus_one()];
        let rows = (&self.db).all(sql, args).await?;
        let members = rows.iter().map(member).collect::<DbResult<Vec<_>>>()?;
        Ok(page.truncate(members, |member| CursorPosition { at: member.created_at, id: member.account_id }))
    }
}

impl Write {
    /// Creates an account and its personal scope. `None` if the e-mail address already has an account.
    pub async fn create_account(&mut self, email: &str, name: &str, plan: &str) -> Result<Option<Account>> {
        let id = self.clock.id();
        let email = email.to_lowercase();
        self.create_scope(id, ScopeKind::Personal, name, plan).await?;
        let sql = sql!("INSERT INTO accounts (id, email, created_at) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING");
        let now = self.now;
        let created = self.execute(sql, args![id, &email, now]).await? == 1;
        Ok(created.then(|| Account { id, email, name: name.into(), plan: plan.into(), created_at: now }))
    }

    pub async fn create_team(&mut self, name: &str, plan: &str, owner: Uuid) -> Result<Scope> {
        let id = self.clock.id();
        self.create_scope(id, ScopeKind::Team, name, plan).await?;
        self.set_role(id, owner, Role::Owner).await?;
        Ok(Scope { id, kind: ScopeKind::Team, name: name.into(), plan: plan.into() })
    }

    async fn create_scope(&mut self, id: Uuid, kind: ScopeKind, name: &str, plan: &str) -> Result<()> {
        let sql = sql!("INSERT INTO scopes (id, kind, name, plan, created_at) VALUES ($1, $2, $3, $4, $5)");
        let now = self.now;
        self.execute(sql, args![id, StringArg(kind), name, plan, now]).await?;
        Ok(())
    }

    /// Adds a member, or changes the role of one.
    pub async fn set_role(&mut self, team_id: Uuid, account_id: Uuid, role: Role) -> Result<()> {
        let sql = sql!(
            "INSERT INTO team_members (team_id, account_id, role, created_at) VALUES ($1, $2, $3, $4) \
             ON CONFLICT (team_id, account_id) DO UPDATE SET role = excluded.role"
        );
        let now = self.now;
        self.execute(sql, args![team_id, account_id, StringArg(role), now]).await?;
        Ok(())
    }

    pub async fn role_of(&mut self, team_id: Uuid, account_id: Uuid) -> Result<Option<Role>> {
        let sql = sql!("SELECT role FROM team_members WHERE team_id = $1 AND account_id = $2");
        let row = self.optional(sql, args![team_id, account_id]).await?;
        Ok(row.map(|row| row.string_enum("role")).transpose()?)
    }

    /// Whether this account is the only owner of the Team.
    pub async fn is_last_owner(&mut self, team_id: Uuid, account_id: Uuid) -> Result<bool> {
        let sql = sql!(
            "SELECT COUNT(*) AS others FROM team_members WHERE team_id = $1 AND role = 'owner' AND account_id <> $2"
        );
        let others = self.one(sql, args![team_id, account_id]).await?.int("others")?;
        Ok(others == 0 && self.role_of(team_id, account_id).await? == Some(Role::Owner))
    }

    /// How many Teams an account owns.
    pub async fn teams_owned_by(&mut self, account_id: Uuid) -> Result<u32> {
        let sql = sql!("SELECT COUNT(*) AS teams FROM team_members WHERE account_id = $1 AND role = 'owner'");
        Ok(self.one(sql, args![account_id]).await?.number("teams")?)
    }

    pub async fn rename_scope(&mut self, id: Uuid, name: &str) -> Result<()> {
        self.execute(sql!("UPDATE scopes SET name = $2 WHERE id = $1"), args![id, name]).await?;
        Ok(())
    }

    /// Whether a scope has neither tunnels nor devices.
    pub async fn is_empty_scope(&mut self, scope_id: Uuid) -> Result<bool> {
        let sql = sql!(
            "SELECT NOT (EXISTS (SELECT 1 FROM tunnels WHERE scope_id = $1) \
                 OR EXISTS (SELECT 1 FROM devices WHERE scope_id = $1)) AS is_empty"
        );
        Ok(self.one(sql, args![scope_id]).await?.flag("is_empty")?)
    }

    /// Deletes a Team that is empty: its keys are revoked; codes, webhook endpoints, invitations and members go.
    pub async fn delete_team(&mut self, team_id: Uuid) -> Result<()> {
        let now = self.now;
        for sql in [
            sql!("UPDATE api_keys SET revoked_at = $2 WHERE scope_id = $1 AND revoked_at IS NULL"),
            sql!("UPDATE scopes SET deleted_at = $2 WHERE id = $1"),
        ] {
            self.execute(sql, args![team_id, now]).await?;
        }
        for sql in [
            sql!(
                "DELETE FROM device_codes WHERE (account_id, scope_id) IN \
                     (SELECT account_id, team_id FROM team_members WHERE team_id = $1)"
            ),
            sql!("DELETE FROM webhooks WHERE scope_id = $1"),
            sql!("DELETE FROM invitations WHERE team_id = $1"),
            sql!("DELETE FROM team_members WHERE team_id = $1"),
        ] {
            self.execute(sql, args![team_id]).await?;
        }
        Ok(())
    }

    /// Sets the plan of a scope and lifts its suspension, because that belonged to the former plan's limit.
    pub async fn set_plan(&mut self, scope_id: Uuid, plan: &str) -> Result<()> {
        let sql = sql!("UPDATE scopes SET plan = $2, suspended_until = NULL WHERE id = $1");
        self.execute(sql, args![scope_id, plan]).await?;
        // Devices may run again what was suspended.
        let sql = sql!(
            "SELECT DISTINCT desired_device_id AS id FROM tunnels WHERE scope_id = $1 AND desired_device_id IS NOT NULL"
        );
        for row in self.all(sql, args![scope_id]).await? {
            self.notify(Hint::Device(row.id("id")?));
        }
        // The host looks again at what runs under the plan.
        self.touch_scope(scope_id).await
    }

    /// Removes a member, whose codes for devices of the Team end.
    pub async fn delete_member(&mut self, team_id: Uuid, account_id: Uuid) -> Result<()> {
        for sql in [
            sql!("DELETE FROM team_members WHERE team_id = $1 AND account_id = $2"),
            sql!("DELETE FROM device_codes WHERE scope_id = $1 AND account_id = $2"),
        ] {
            self.execute(sql, args![team_id, account_id]).await?;
        }
        Ok(())
    }
}

fn account(row: &Row) -> DbResult<Account> {
    Ok(row!(row => Account {
        id: id, email: text, name: text, plan: text, created_at: time,
    }))
}

pub(super) fn scope(row: &Row) -> DbResult<Scope> {
    Ok(Scope { id: row.id("id")?, kind: row.string_enum("kind")?, name: row.text("name")?, plan: row.text("plan")? })
}

fn member(row: &Row) -> DbResult<Member> {
    Ok(row!(row => Member { account_id: id, email: text, name: text, role: string_enum, created_at: time }))
}
