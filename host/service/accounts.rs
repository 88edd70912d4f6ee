//! Accounts, their scopes and what these use.

use culvert_domain::account::Account;
use culvert_domain::audit_log::{Actor, AuditAction, NewEntry};
use culvert_domain::caller::Caller;
use culvert_domain::error::{Code, Error, Result};
use culvert_domain::usage::Bandwidth;
use culvert_store::{Store, Write};
use serde_json::json;
use uuid::Uuid;

use crate::Service;

/// The use of a scope.
#[derive(Clone, Copy, Debug)]
pub struct ScopeUsage {
    pub total_tunnels: u64,
    pub active_tunnels: u64,
    pub bandwidth: Bandwidth,
}

impl Service {
    /// The account of the caller's key.
    ///
    /// # Errors
    ///
    /// `Code::NotFound` if there is no such account any longer; if the database fails.
    pub async fn account(&self, caller: &Caller) -> Result<Account> {
        self.store.account(caller.account_id).await?.ok_or_else(Error::not_found)
    }

    /// The tunnels of the caller's scope, and its traffic.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn scope_usage(&self, caller: &Caller) -> Result<ScopeUsage> {
        let (total_tunnels, active_tunnels) = self.store.tunnel_counts(caller.scope.id).await?;
        let bandwidth = self.store.scope_bandwidth(caller.scope.id).await?;
        Ok(ScopeUsage { total_tunnels, active_tunnels, bandwidth })
    }
}

/// Creates an account with its personal scope.
///
/// # Errors
///
/// `Code::ValidationFailed` if the e-mail address has an account; if the database fails.
pub async fn create(store: &Store, email: String, name: String, plan: String) -> Result<Account> {
    store
        .write(None, move |write| {
            Box::pin(async move {
                // An error undoes the scope that was made for it as well.
                let account = write.create_account(&email, &name, &plan).await?;
                let account =
                    account.ok_or_else(|| Error::new(Code::ValidationFailed, "the e-mail address has an account"))?;
                let entry = NewEntry::new(account.id, Actor::CLI, AuditAction::AccountsCreate);
                write.audit(entry.with(&json!({"email": email, "plan": plan})));
                Ok(account)
            })
        })
        .await
}

/// Whether there would be an operator without this account.
pub(crate) async fn check_other_operator(write: &mut Write, account_id: Uuid) -> Result<()> {
    if write.is_last_operator(account_id).await? {
        return Err(Error::new(Code::LastOperator, "The account is the only operator; make another one first."));
    }
    Ok(())
}

/// Makes an account an operator of the installation, or no operator any more.
///
/// # Errors
///
/// `last_operator` if there would be none; if the database fails.
pub async fn set_operator(store: &Store, account_id: Uuid, is_operator: bool, actor: Actor) -> Result<()> {
    store
        .write(Some(account_id), move |write| {
            Box::pin(async move {
                if !is_operator {
                    check_other_operator(write, account_id).await?;
                }
                let entry = NewEntry::new(account_id, actor, AuditAction::AccountsSetOperator);
                write.audit(entry.with(&json!({"operator": is_operator})));
                write.set_operator(account_id, is_operator).await
            })
        })
        .await
}

/// Gives an account's personal scope or a Team a plan.
///
/// # Errors
///
/// If the database fails.
pub async fn set_plan(store: &Store, scope_id: Uuid, plan: String, actor: Actor) -> Result<()> {
    let set = store.write(Some(scope_id), move |write| {
        Box::pin(async move {
            write.audit(NewEntry::new(scope_id, actor, AuditAction::AccountsSetPlan).with(&json!({"plan": plan})));
            write.set_plan(scope_id, &plan).await
        })
    });
    set.await
}
