//! Invitations to Teams: made by owners and admins, and accepted by whoever has the link.

use culvert_api_types::requests::Input;
use culvert_domain::account;
use culvert_domain::audit_log::{Actor, AuditAction, NewEntry, Origin};
use culvert_domain::caller::{Caller, Role};
use culvert_domain::error::{Code, Error, Fault, Result};
use culvert_domain::facts::ResourceFacts;
use culvert_domain::mail::SealedMail;
use culvert_domain::plan::Entitlement;
use culvert_domain::team::{INVITATION_LIFETIME, Invitation, OPEN_INVITATIONS};
use culvert_store::Write;
use culvert_store::invitations::NewInvitation;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::Service;
use crate::call::Answered;
use crate::commit::Change;
use crate::gate::{Permit, RequestDraft};
use crate::idempotency::IdempotencyKey;
use crate::links;
use crate::teams::{check_rank, role};

/// Somebody who is to be invited, as typed.
#[derive(Clone, Debug, Default)]
pub struct WantedInvitation {
    pub email: String,
    pub role: String,
}

/// Somebody who may be invited.
#[derive(Clone, Debug)]
pub struct InvitationDefinition {
    email: String,
    role: Role,
}

impl RequestDraft for WantedInvitation {
    type Valid = InvitationDefinition;

    fn input(&self) -> Option<Input<'_>> {
        None
    }

    fn validate(self, _: &ResourceFacts, _: &Entitlement) -> Result<InvitationDefinition, Vec<Fault>> {
        match (account::email(&self.email), role(&self.role)) {
            (Ok(email), Ok(role)) => Ok(InvitationDefinition { email, role }),
            (email, role) => {
                let faults = email.err().map(|problem| Fault::new("email", problem)).into_iter();
                Err(faults.chain(role.err()).collect())
            }
        }
    }
}

/// Invites somebody to the caller's Team, by a link with this secret.
pub struct CreateInvitation {
    pub definition: InvitationDefinition,
    pub id: Uuid,
    pub secret: String,
    /// The mail that brings the link, where mail is sent.
    pub mail: Option<SealedMail>,
}

impl InvitationDefinition {
    pub fn email(&self) -> &str {
        &self.email
    }
}

impl Change for CreateInvitation {
    /// Whether the link was mailed.
    type Done = bool;

    async fn apply(&self, write: &mut Write, permit: &Permit) -> Result<bool> {
        let caller = permit.caller();
        let InvitationDefinition { email, role } = self.definition.clone();
        let replaced = write.invited_role(caller.scope.id, Uuid::nil(), &email).await?;
        check_rank(caller, &[Some(role), replaced])?;
        if write.open_invitations(caller.scope.id).await? >= OPEN_INVITATIONS {
            return Err(Error::of(Code::LimitReached));
        }
        let new = NewInvitation {
            id: self.id,
            hash: links::hash(&self.secret),
            team_id: caller.scope.id,
            email,
            role,
            invited_by: caller.account_id,
            expires_at: write.now + INVITATION_LIFETIME,
        };
        write.create_invitation(&new).await?;
        if let Some(mail) = &self.mail {
            write.insert_mail(mail).await?;
        }
        Ok(self.mail.is_some())
    }

    fn subject(&self, _: &bool) -> Option<Uuid> {
        Some(self.id)
    }

    fn details(&self, _: &bool) -> Value {
        json!({"email": self.definition.email, "role": self.definition.role})
    }
}

/// Ends an invitation to the caller's Team.
pub struct RevokeInvitation {
    pub id: Uuid,
}

impl Change for RevokeInvitation {
    type Done = ();

    async fn apply(&self, write: &mut Write, permit: &Permit) -> Result<()> {
        let team_id = permit.caller().scope.id;
        check_rank(permit.caller(), &[write.invited_role(team_id, self.id, "").await?])?;
        // It may be over or accepted meanwhile: there is none afterwards.
        write.delete_invitation(team_id, self.id).await.map(drop)
    }

    fn subject(&self, (): &()) -> Option<Uuid> {
        Some(self.id)
    }
}

impl Service {
    /// The open invitations to the caller's Team.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn invitations(&self, caller: &Caller) -> Result<Vec<Invitation>> {
        self.store.invitations_of(caller.scope.id).await
    }

    /// Adds an account to the Team that a link invites to, and stores the Team's id as the response. Whoever is in the Team
    /// already keeps its role.
    ///
    /// # Errors
    ///
    /// `link_not_valid` if the link invites to none; if the database fails.
    pub(crate) async fn accept(&self, account_id: Uuid, hash: [u8; 32], key: &IdempotencyKey) -> Result<Answered> {
        let not_valid = || Error::of(Code::LinkNotValid);
        let team_id = self.store.invitation(&hash).await?.ok_or_else(not_valid)?.team_id;
        let credential_id = Some(key.credential_id);
        let accept = self.store_once(team_id, key, move |write| {
            Box::pin(async move {
                let invitation = write.take_invitation(&hash).await?.ok_or_else(not_valid)?;
                let actor = Actor { credential_id, ..Actor::account(Origin::Dashboard, account_id, None) };
                join(write, &invitation, account_id, actor).await?;
                Ok(team_id)
            })
        });
        accept.await
    }
}

/// Adds an account to the Team of an invitation, unless it is there already.
pub(crate) async fn join(write: &mut Write, invitation: &Invitation, account_id: Uuid, actor: Actor) -> Result<()> {
    if write.role_of(invitation.team_id, account_id).await?.is_none() {
        let entry = NewEntry::new(invitation.team_id, actor, AuditAction::InvitationsAccept).about(account_id);
        write.audit(entry.with(&json!({"email": invitation.email, "role": invitation.role})));
        write.set_role(invitation.team_id, account_id, invitation.role).await?;
    }
    Ok(())
}
