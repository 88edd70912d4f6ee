//! Who asks, and whose resources they may see.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::permission::Permissions;
use super::string_enum::string_enum;

string_enum! {
    /// Whose resources a scope holds.
    ScopeKind {
        Personal "personal",
        Team "team",
    }
}

string_enum! {
    /// What a member is in a Team.
    Role {
        Owner "owner",
        Admin "admin",
        Member "member",
    }
}

/// The personal scope of an account, or a Team's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// The account's id, or the Team's.
    pub id: Uuid,
    pub kind: ScopeKind,
    pub name: String,
    pub plan: String,
}

/// The account behind an API key, in the key's scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    pub key_id: Uuid,
    pub key_created_at: DateTime<Utc>,
    pub account_id: Uuid,
    pub scope: Scope,
    /// None in a personal scope.
    pub role: Option<Role>,
    pub permissions: Permissions,
}
