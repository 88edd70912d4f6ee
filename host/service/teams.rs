//! Teams and their members, as people and the operator make and change them.

use culvert_api_types::requests::Input;
use culvert_domain::account;
use culvert_domain::action::Action;
use culvert_domain::audit_log::{Actor, AuditAction, NewEntry, Origin};
use culvert_domain::caller::{Caller, Role, Scope};
use culvert_domain::error::{Code, Error, Fault, Result};
use culvert_domain::facts::ResourceFacts;
use culvert_domain::page::{Page, PageRows};
use culvert_domain::plan::Entitlement;
use culvert_domain::team::Member;
use culvert_store::{Store, Write};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::Service;
use crate::call::Answered;
use crate::commit::Change;
use crate::devices;
use crate::gate::{Permit, RequestDraft};
use crate::idempotency::IdempotencyKey;

/// Owners and admins that a page names.
const MANAGERS_SHOWN: u32 = 5;
/// Teams that an account may own.
const TEAMS_PER_ACCOUNT: u32 = 20;

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
    let create = store.write(Some(owner_id), move |write| {
        Box::pin(async move {
            let team = write.create_team(&name, &plan, owner_id).await?;
            write.audit(
                NewEntry::new(team.id, Actor::CLI, AuditAction::TeamsCreate).with(&json!({"owner_id": owner_id})),
            );
            Ok(team)
        })
    });
    create.await
}

/// Adds a member, changes a member's role, or removes a member, on behalf of the operator.
///
/// # Errors
///
/// As [`Service::leave_team`]; `Code::ValidationFailed` if the account is in the Team already, or not in it.
pub async fn change(store: &Store, team_id: Uuid, account_id: Uuid, what: Membership) -> Result<()> {
    store
        .write(Some(team_id), move |write| {
            Box::pin(async move {
                match (write.role_of(team_id, account_id).await?, what) {
                    (Some(_), Membership::Added(_)) => {
                        Err(Error::new(Code::ValidationFailed, "the account is in the Team already; use set-role"))
                    }
                    (None, Membership::Changed(_) | Membership::Removed) => {
                        Err(Error::new(Code::ValidationFailed, "the account is not in the Team"))
                    }
                    _ => {
                        write.audit(entry(team_id, Actor::CLI, account_id, what));
                        apply(write, team_id, account_id, what).await
                    }
                }
            })
        })
        .await
}

/// The entry of the audit log for a change of a membership.
fn entry(team_id: Uuid, actor: Actor, account_id: Uuid, what: Membership) -> NewEntry {
    let action = if what == Membership::Removed { Action::MembersRemove } else { Action::MembersSetRole };
    NewEntry::new(team_id, actor, action).about(account_id).with(&json!({"role": what.role()}))
}

async fn apply(write: &mut Write, team_id: Uuid, account_id: Uuid, what: Membership) -> Result<()> {
    if what.role() != Some(Role::Owner) && write.is_last_owner(team_id, account_id).await? {
        return Err(Error::new(Code::LastOwner, "The account is the Team's last owner; make another one first."));
    }
    if what.role() != Some(Role::Owner) {
        // Whoever knows the link of an invitation must not come back by it, nor rise.
        write.delete_invitations_by(team_id, account_id).await?;
    }
    match what.role() {
        Some(role) => write.set_role(team_id, account_id, role).await,
        None => devices::remove_member(write, team_id, account_id).await,
    }
}

impl Service {
    /// Makes a Team of an account, on the plan of its own scope, and stores its id as the response.
    ///
    /// # Errors
    ///
    /// `limit_reached` if the account owns too many; `validation_failed` for its name; if the database fails.
    pub async fn create_team(&self, owner_id: Uuid, name: &str, key: &IdempotencyKey) -> Result<Answered> {
        let name = account::name(name).map_err(|problem| Error::invalid(vec![Fault::new("name", problem)]))?;
        let plan = self.store.account(owner_id).await?.ok_or_else(Error::not_found)?.plan;
        let owner = Actor::account(Origin::Dashboard, owner_id, None);
        let actor = Actor { credential_id: Some(key.credential_id), ..owner };
        let create = self.store_once(owner_id, key, move |write| {
            Box::pin(async move {
                if write.teams_owned_by(owner_id).await? >= TEAMS_PER_ACCOUNT {
                    return Err(Error::of(Code::LimitReached));
                }
                let team_id = write.create_team(&name, &plan, owner_id).await?.id;
                write.audit(NewEntry::new(team_id, actor, AuditAction::TeamsCreate));
                Ok(team_id)
            })
        });
        create.await
    }

    /// A page of the members of the caller's Team.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn members(&self, caller: &Caller, page: Page) -> Result<PageRows<Member>> {
        self.store.members_page(caller.scope.id, page).await
    }

    /// The first owners and admins of the caller's Team, whom a member can ask.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn managers(&self, caller: &Caller) -> Result<Vec<Member>> {
        self.store.managers(caller.scope.id, MANAGERS_SHOWN).await
    }

    /// Has the caller leave its Team. No policy is asked whether it may.
    ///
    /// # Errors
    ///
    /// `last_owner` if the Team would have none; if the database fails.
    pub async fn leave_team(&self, caller: &Caller) -> Result<()> {
        let (team_id, account_id) = (caller.scope.id, caller.account_id);
        let entry = NewEntry::new(team_id, Actor::of(caller, None, None), AuditAction::MembersLeave).about(account_id);
        let leave = self.store.write(Some(team_id), move |write| {
            Box::pin(async move {
                write.audit(entry);
                apply(write, team_id, account_id, Membership::Removed).await
            })
        });
        leave.await
    }
}

/// Refuses what the host lets nobody but owners and admins do, and only owners to owners, whatever the policies say.
pub(crate) fn check_rank(caller: &Caller, concerned: &[Option<Role>]) -> Result<()> {
    let forbidden = |detail| Err(Error::new(Code::from_policy("team_role_forbidden".into()), detail));
    match caller.role {
        Some(Role::Owner) => Ok(()),
        Some(Role::Admin) if !concerned.contains(&Some(Role::Owner)) => Ok(()),
        Some(Role::Admin) => forbidden("Only owners make, change and remove owners, and delete the Team."),
        Some(Role::Member) | None => forbidden("Only owners and admins change the Team."),
    }
}

/// The name that a Team is to have, as typed.
#[derive(Clone, Debug)]
pub struct WantedName(pub String);

impl RequestDraft for WantedName {
    type Valid = String;

    fn input(&self) -> Option<Input<'_>> {
        None
    }

    fn validate(self, _: &ResourceFacts, _: &Entitlement) -> Result<String, Vec<Fault>> {
        account::name(&self.0).map_err(|problem| vec![Fault::new("name", problem)])
    }
}

/// The role that a member is to have, as typed.
#[derive(Clone, Debug)]
pub struct WantedRole(pub String);

impl RequestDraft for WantedRole {
    type Valid = Role;

    fn input(&self) -> Option<Input<'_>> {
        None
    }

    fn validate(self, _: &ResourceFacts, _: &Entitlement) -> Result<Role, Vec<Fault>> {
        role(&self.0).map_err(|fault| vec![fault])
    }
}

pub(crate) fn role(typed: &str) -> Result<Role, Fault> {
    typed.parse().map_err(|_| Fault::new("role", "must be owner, admin or member"))
}

/// Gives the caller's Team another name.
pub struct RenameTeam {
    pub name: String,
}

impl Change for RenameTeam {
    type Done = ();

    async fn apply(&self, write: &mut Write, permit: &Permit) -> Result<()> {
        check_rank(permit.caller(), &[])?;
        write.rename_scope(permit.caller().scope.id, &self.name).await
    }

    fn details(&self, (): &()) -> Value {
        json!({"name": self.name})
    }
}

/// Deletes the caller's Team, which has neither tunnels nor devices.
pub struct DeleteTeam;

impl Change for DeleteTeam {
    type Done = ();

    async fn apply(&self, write: &mut Write, permit: &Permit) -> Result<()> {
        let team_id = permit.caller().scope.id;
        check_rank(permit.caller(), &[Some(Role::Owner)])?;
        if !write.is_empty_scope(team_id).await? {
            return Err(Error::of(Code::TeamNotEmpty));
        }
        write.delete_team(team_id).await
    }
}

/// Changes the role of a member of the caller's Team, or removes it.
pub struct ChangeMember {
    pub account_id: Uuid,
    pub what: Membership,
}

impl Change for ChangeMember {
    type Done = ();

    async fn apply(&self, write: &mut Write, permit: &Permit) -> Result<()> {
        let (team_id, account_id) = (permit.caller().scope.id, self.account_id);
        let present = write.role_of(team_id, account_id).await?.ok_or_else(Error::not_found)?;
        check_rank(permit.caller(), &[Some(present), self.what.role()])?;
        apply(write, team_id, account_id, self.what).await
    }

    fn subject(&self, (): &()) -> Option<Uuid> {
        Some(self.account_id)
    }

    fn details(&self, (): &()) -> Value {
        json!({"role": self.what.role()})
    }
}
