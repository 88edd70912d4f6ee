//! Invitations to Teams.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::arg::{StringArg, args};
use super::error::DbResult;
use super::read::Read;
use super::row::{Row, row};
use super::sql::sql;
use super::{Store, Write};
use culvert_domain::caller::Role;
use culvert_domain::error::Result;
use culvert_domain::team::{Invitation, OPEN_INVITATIONS};

/// A new invitation.
#[derive(Clone, Debug)]
pub struct NewInvitation {
    pub id: Uuid,
    /// SHA-256 of the link's secret.
    pub hash: [u8; 32],
    pub team_id: Uuid,
    pub email: String,
    pub role: Role,
    pub invited_by: Uuid,
    pub expires_at: DateTime<Utc>,
}

macro_rules! select_invitation {
    ($condition:literal) => {
        sql!(concat!(
            "SELECT i.id, i.team_id, s.name AS team_name, i.email, i.role, a.email AS invited_by, i.created_at, i.expires_at \
             FROM invitations i JOIN scopes s ON s.id = i.team_id JOIN accounts a ON a.id = i.invited_by WHERE ",
            $condition
        ))
    };
}

impl Store {
    /// The invitation of a link, unless it is over.
    pub async fn invitation(&self, hash: &[u8]) -> Result<Option<Invitation>> {
        let sql = select_invitation!("i.hash = $1 AND i.expires_at > $2");
        let row = (&self.db).optional(sql, args![hash, self.clock.now()]).await?;
        Ok(row.as_ref().map(invitation).transpose()?)
    }

    /// The open invitations to a Team, by their addresses.
    pub async fn invitations_of(&self, team_id: Uuid) -> Result<Vec<Invitation>> {
        let sql = select_invitation!("i.team_id = $1 AND i.expires_at > $2 ORDER BY i.email LIMIT $3");
        let rows = (&self.db).all(sql, args![team_id, self.clock.now(), OPEN_INVITATIONS]).await?;
        Ok(rows.iter().map(invitation).collect::<DbResult<_>>()?)
    }
}

impl Write {
    /// Adds an invitation. One that the address has already ends.
    pub async fn create_invitation(&mut self, new: &NewInvitation) -> Result<()> {
        let sql = sql!("DELETE FROM invitations WHERE team_id = $1 AND email = $2");
        self.execute(sql, args![new.team_id, &new.email]).await?;
        let now = self.now;
        let sql = sql!(
            "INSERT INTO invitations (id, hash, team_id, email, role, invited_by, created_at, expires_at) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)"
        );
        let NewInvitation { id, hash, team_id, email, role, invited_by, expires_at } = new;
        let args = args![*id, &hash[..], *team_id, email, StringArg(*role), *invited_by, now, *expires_at];
        self.execute(sql, args).await?;
        Ok(())
    }

    /// How many invitations to a Team are open.
    pub async fn open_invitations(&mut self, team_id: Uuid) -> Result<u32> {
        let now = self.now;
        let sql = sql!("SELECT COUNT(*) AS open FROM invitations WHERE team_id = $1 AND expires_at > $2");
        Ok(self.one(sql, args![team_id, now]).await?.number("open")?)
    }

    /// Uses an invitation, which can be done once. Returns it if it was open.
    pub async fn take_invitation(&mut self, hash: &[u8]) -> Result<Option<Invitation>> {
        let now = self.now;
        let row = self.optional(select_invitation!("i.hash = $1 AND i.expires_at > $2"), args![hash, now]).await?;
        let Some(row) = row else { return Ok(None) };
        let is_first = self.execute(sql!("DELETE FROM invitations WHERE hash = $1"), args![hash]).await? == 1;
        Ok(if is_first { Some(invitation(&row)?) } else { None })
    }

    /// Ends the invitations to a Team that an account has made.
    pub async fn delete_invitations_by(&mut self, team_id: Uuid, account_id: Uuid) -> Result<()> {
        let sql = sql!("DELETE FROM invitations WHERE team_id = $1 AND invited_by = $2");
        self.execute(sql, args![team_id, account_id]).await?;
        Ok(())
    }

    /// Ends the invitations that an account has made, to whatever Team.
    pub async fn delete_invitations_of(&mut self, account_id: Uuid) -> Result<()> {
        let sql = sql!(
            "DELETE FROM invitations WHERE invited_by = $1 \
             AND team_id IN (SELECT team_id FROM team_members WHERE account_id = $1)"
        );
        self.execute(sql, args![account_id]).await?;
        Ok(())
    }

    /// The role that an open invitation gives, by its id or by the address that it was made for.
    pub async fn invited_role(&mut self, team_id: Uuid, id: Uuid, email: &str) -> Result<Option<Role>> {
        let sql = sql!("SELECT role FROM invitations WHERE team_id = $1 AND (id = $2 OR email = $3)");
        let row = self.optional(sql, args![team_id, id, email]).await?;
        Ok(row.map(|row| row.string_enum("role")).transpose()?)
    }

    /// Ends an invitation to a Team. False if there is none.
    pub async fn delete_invitation(&mut self, team_id: Uuid, id: Uuid) -> Result<bool> {
        let sql = sql!("DELETE FROM invitations WHERE id = $1 AND team_id = $2");
        Ok(self.execute(sql, args![id, team_id]).await? == 1)
    }
}

fn invitation(row: &Row) -> DbResult<Invitation> {
    Ok(row!(row => Invitation {
        id: id, team_id: id, team_name: text, email: text, role: string_enum, invited_by: text, created_at: time,
        expires_at: time,
    }))
}
