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

impl Role {
    /// As in "to be an owner".
    pub fn with_article(self) -> &'static str {
        match self {
            Self::Owner => "an owner",
            Self::Admin => "an admin",
            Self::Member => "a member",
        }
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

/// What a caller has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credential {
    Key {
        id: Uuid,
        created_at: DateTime<Utc>,
    },
    /// A device's key, on the control channel: a command at the device acts for the device's owner.
    Device(Uuid),
    /// A person's sign-in, in the dashboard.
    SignIn(Uuid),
}

impl Credential {
    /// The id of the API key, of the device or of the sign-in.
    pub fn id(self) -> Uuid {
        match self {
            Self::Key { id, .. } | Self::Device(id) | Self::SignIn(id) => id,
        }
    }
}

/// The account behind a credential, in the credential's scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    pub credential: Credential,
    pub account_id: Uuid,
    pub scope: Scope,
    /// None in a personal scope.
    pub role: Option<Role>,
    pub permissions: Permissions,
}

impl Caller {
    /// The account whose keys and refusals alone are the caller's business, if not those of the whole scope: a member's own.
    pub fn own_alone(&self) -> Option<Uuid> {
        (self.role == Some(Role::Member)).then_some(self.account_id)
    }
}
