//! Members of Teams, and invitations to them.

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use super::caller::Role;

/// How long an invitation can be accepted.
pub const INVITATION_LIFETIME: TimeDelta = TimeDelta::days(7);
/// Open invitations of a Team.
pub const OPEN_INVITATIONS: u32 = 100;

/// Somebody who is in a Team.
#[derive(Clone, Debug)]
pub struct Member {
    pub account_id: Uuid,
    pub email: String,
    /// What the account is called.
    pub name: String,
    pub role: Role,
    /// Since when.
    pub created_at: DateTime<Utc>,
}

/// An invitation that has not been accepted yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invitation {
    pub id: Uuid,
    pub team_id: Uuid,
    pub team_name: String,
    /// Who is invited.
    pub email: String,
    pub role: Role,
    /// The address of whoever invites.
    pub invited_by: String,
    pub created_at: DateTime<Utc>,
    pub expires_at: DateTime<Utc>,
}
