//! What an operator sees of the whole installation: its Teams, and what waits or fails.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::Store;
use super::arg::args;
use super::error::DbResult;
use super::read::Read;
use super::row::{Row, row};
use super::sql::sql;
use culvert_domain::account::TeamRecord;
use culvert_domain::error::Result;
use culvert_domain::page::{CursorPosition, Page, PageRows};

/// Certificates that are named.
const NAMED: u32 = 20;
/// Endpoints that are counted.
const COUNTED: u32 = 1000;

impl Store {
    /// A page of all Teams, the newest first.
    pub async fn all_teams(&self, page: Page) -> Result<PageRows<TeamRecord>> {
        let sql = sql!(
            "SELECT s.id, s.name, s.plan, s.created_at, \
                 (SELECT COUNT(*) FROM team_members m WHERE m.team_id = s.id) AS members \
             FROM scopes s WHERE s.kind = 'team' AND s.deleted_at IS NULL AND s.id < $1 ORDER BY s.id DESC LIMIT $2"
        );
        let rows = (&self.db).all(sql, args![page.after.id, page.limit_plus_one()]).await?;
        let teams = rows.iter().map(team).collect::<DbResult<Vec<_>>>()?;
        Ok(page.truncate(teams, |team| CursorPosition { at: team.created_at, id: team.id }))
    }

    /// Whether there is a Team.
    pub async fn has_team(&self, id: Uuid) -> Result<bool> {
        let sql = sql!("SELECT 1 AS one FROM scopes WHERE id = $1 AND kind = 'team' AND deleted_at IS NULL");
        Ok((&self.db).optional(sql, args![id]).await?.is_some())
    }

    /// Names whose certificate could not be had, each with the last error. There may be more.
    pub async fn failing_certificates(&self) -> Result<Vec<(String, String)>> {
        let sql = sql!("SELECT name, error FROM certificates WHERE error IS NOT NULL ORDER BY id LIMIT $1");
        let rows = (&self.db).all(sql, args![NAMED]).await?;
        let named = rows.iter().map(|row| Ok((row.text("name")?, row.text("error")?)));
        Ok(named.collect::<DbResult<Vec<_>>>()?)
    }

    /// Webhook endpoints for which something is overdue, at most 1,000 of them, and since when.
    pub async fn overdue_endpoints(&self) -> Result<(u64, Option<DateTime<Utc>>)> {
        let sql = sql!(
            "SELECT COUNT(*) AS endpoints, MIN(due_at) AS since \
             FROM (SELECT due_at FROM webhooks WHERE due_at <= $1 ORDER BY due_at LIMIT $2) AS overdue"
        );
        let row = (&self.db).one(sql, args![self.clock.now(), COUNTED]).await?;
        Ok((row.number("endpoints")?, row.optional_time("since")?))
    }
}

fn team(row: &Row) -> DbResult<TeamRecord> {
    Ok(row!(row => TeamRecord { id: id, name: text, plan: text, created_at: time, members: number }))
}
