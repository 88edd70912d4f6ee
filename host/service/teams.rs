//! Teams and their members, as the operator makes them.

use culvert_domain::caller::{Role, Scope};
use culvert_domain::error::{Code, Error, Result};
use culvert_store::Store;
use uuid::Uuid;

use crate::devices;

/// What happens to an account's membership of a Team.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Membership {
    Added(Role),
    Changed(Role),
    Removed,
}

impl Membership {
    /// The role that the account has afterwards.
    pub fn role(self) -> Option<Role> {
        match self {
            Self::Added(role) | Self::Changed(role) => Some(role),
            Self::Removed => None,
        }
    }
}

/// Creates a Team with its owner.
///
/// # Errors
///
/// If the database fails.
pub async fn create(store: &Store, name: String, plan: String, owner_id: Uuid) -> Result<Scope> {
    store.write(None, move |write| Box::pin(async move { write.create_team(&name, &plan, owner_id).await })).await
}

/// Adds a member, changes a member's role, or removes a member.
///
/// # Errors
///
/// `Code::ValidationFailed` if the account is in the Team already or not in it, or is its last owner and steps down; if
/// the database fails.
pub async fn change(store: &Store, team_id: Uuid, account_id: Uuid, what: Membership) -> Result<()> {
    let refuse = |detail: &'static str| Err(Error::new(Code::ValidationFailed, detail));
    store
        .write(Some(team_id), move |write| {
            Box::pin(async move {
                match (write.role_of(team_id, account_id).await?, what) {
                    (Some(_), Membership::Added(_)) => {
                        return refuse("the account is in the Team already; use set-role");
                    }
                    (None, Membership::Changed(_) | Membership::Removed) => {
                        return refuse("the account is not in the Team");
                    }
                    _ => {}
                }
                if what.role() != Some(Role::Owner) && write.is_last_owner(team_id, account_id).await? {
                    return refuse("the account is the Team's last owner; make another one first");
                }
                match what.role() {
                    Some(role) => write.set_role(team_id, account_id, role).await,
                    None => devices::remove_member(write, team_id, account_id).await,
                }
            })
        })
        .await
}
