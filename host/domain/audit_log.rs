//! The audit log: who has changed what. The entries of a scope are a chain.

use std::net::IpAddr;

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use super::caller::{Caller, Credential};
use super::sign_in::SignIn;
use super::string_enum::{StringEnum, string_enum};

/// How long an entry is kept.
pub const KEPT: TimeDelta = TimeDelta::days(400);

string_enum! {
    /// By what a change was made.
    Origin {
        Api "api",
        Dashboard "dashboard",
        Cli "cli",
        Agent "agent",
    }
}

string_enum! {
    /// What is noted beside the actions that policies decide on.
    AuditAction {
        AccountsCreate "accounts.create",
        AccountsLink "accounts.link",
        AccountsRecover "accounts.recover",
        AccountsSetPlan "accounts.set_plan",
        AccountsSetOperator "accounts.set_operator",
        AccountUpdate "account.update",
        AccountsLock "accounts.lock",
        AccountsUnlock "accounts.unlock",
        CredentialsSetPassword "credentials.set_password",
        CredentialsEnableTotp "credentials.enable_totp",
        CredentialsDisableTotp "credentials.disable_totp",
        CredentialsNewRecoveryCodes "credentials.new_recovery_codes",
        CredentialsAddPasskey "credentials.add_passkey",
        CredentialsRemovePasskey "credentials.remove_passkey",
        CredentialsLinkOidc "credentials.link_oidc",
        CredentialsUnlinkOidc "credentials.unlink_oidc",
        SignInsCreate "sign_ins.create",
        SignInsEnd "sign_ins.end",
        SignInsFail "sign_ins.fail",
        KeysRevoke "keys.revoke",
        TeamsCreate "teams.create",
        MembersLeave "members.leave",
        InvitationsAccept "invitations.accept",
        DevicesEnrol "devices.enrol",
        DevicesSetRemoteControl "devices.set_remote_control",
        NodesSetStatus "nodes.set_status",
        PoliciesReload "policies.reload",
        PoliciesRollback "policies.rollback",
        WebhooksReadDelivery "webhooks.read_delivery",
        AuditExport "audit.export",
    }
}

/// Who has made a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    pub origin: Origin,
    /// None for the command line: whoever may run it on the host's machine.
    pub account_id: Option<Uuid>,
    /// The API key, the sign-in or the device.
    pub credential_id: Option<Uuid>,
    pub request_id: Option<Uuid>,
    /// Empty where it is not known.
    pub address: String,
}

impl Actor {
    /// Whoever runs `culvert` on the host's machine.
    pub const CLI: Self =
        Self { origin: Origin::Cli, account_id: None, credential_id: None, request_id: None, address: String::new() };

    /// The caller of a request.
    pub fn of(caller: &Caller, request_id: Option<Uuid>, address: Option<IpAddr>) -> Self {
        let origin = match caller.credential {
            Credential::Key { .. } => Origin::Api,
            Credential::SignIn(_) => Origin::Dashboard,
            Credential::Device(_) => Origin::Agent,
        };
        let credential_id = Some(caller.credential.id());
        Self { origin, credential_id, request_id, ..Self::account(origin, caller.account_id, address) }
    }

    /// Somebody who is signed in, from where the sign-in came.
    pub fn signed_in(sign_in: &SignIn) -> Self {
        let (credential_id, address) = (Some(sign_in.id), sign_in.client.address.clone().unwrap_or_default());
        Self { credential_id, address, ..Self::account(Origin::Dashboard, sign_in.account_id, None) }
    }

    /// The owner of a device, by its agent.
    pub fn device(device_id: Uuid, owner_id: Uuid) -> Self {
        Self { credential_id: Some(device_id), ..Self::account(Origin::Agent, owner_id, None) }
    }

    /// Somebody at the dashboard who is not signed in.
    pub fn visitor(address: Option<IpAddr>) -> Self {
        let address = address.map(|address| address.to_string()).unwrap_or_default();
        Self { origin: Origin::Dashboard, address, ..Self::CLI }
    }

    /// An account that has shown no more than who it is.
    pub fn account(origin: Origin, account_id: Uuid, address: Option<IpAddr>) -> Self {
        Self { origin, account_id: Some(account_id), ..Self::visitor(address) }
    }
}

/// A change that is to be in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEntry {
    /// The chain: the scope that the change is in.
    pub scope_id: Uuid,
    pub actor: Actor,
    pub action: &'static str,
    /// What was changed, if it has an id.
    pub subject_id: Option<Uuid>,
    /// What was asked for, as JSON, without secrets; may be empty.
    pub details: String,
}

impl NewEntry {
    /// Whether it is about what operators look at: accounts, Teams, nodes and policies.
    pub fn is_of_installation(&self) -> bool {
        ["account", "teams.", "nodes.", "policies."].iter().any(|kind| self.action.starts_with(kind))
    }

    pub fn new(scope_id: Uuid, actor: Actor, action: impl StringEnum) -> Self {
        Self { scope_id, actor, action: action.as_str(), subject_id: None, details: String::new() }
    }

    pub fn about(self, subject_id: Uuid) -> Self {
        Self { subject_id: Some(subject_id), ..self }
    }

    pub fn with(self, details: &serde_json::Value) -> Self {
        Self { details: details.to_string(), ..self }
    }
}

/// An entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub scope_id: Uuid,
    /// Its place in the chain, from 1 on.
    pub number: u64,
    pub at: DateTime<Utc>,
    pub actor: Actor,
    pub action: String,
    pub subject_id: Option<Uuid>,
    pub details: String,
    /// When the entry before it was written.
    pub previous_at: Option<DateTime<Utc>>,
    /// The digest of the entry before it; empty for the first.
    pub previous: Vec<u8>,
    /// The MAC of all this.
    pub digest: Vec<u8>,
}

impl Entry {
    /// What is authenticated: the entry, and by the digest of the one before it all those before.
    pub fn authenticated(&self) -> Vec<u8> {
        let Self { scope_id, number, at, actor, action, subject_id, details, previous_at, previous, .. } = self;
        let Actor { origin, account_id, credential_id, request_id, address } = actor;
        let micros = |at: &DateTime<Utc>| at.timestamp_micros();
        serde_json::to_vec(&(
            scope_id,
            number,
            micros(at),
            origin,
            account_id,
            credential_id,
            action,
            subject_id,
            details,
            request_id,
            address,
            previous_at.as_ref().map(micros),
            previous,
        ))
        .expect("no value of an entry fails to be written")
    }
}
