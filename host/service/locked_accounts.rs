//! Accounts that an operator locks and unlocks. Nobody signs in to a locked one; its keys are no keys, and its devices do nothing.

use culvert_domain::audit_log::{Actor, AuditAction, NewEntry};
use culvert_domain::error::{Code, Error, Result};
use culvert_store::Store;
use uuid::Uuid;

use crate::devices;

/// Locks an account: its sign-ins, its links and what its devices run end. Its keys answer again when it is unlocked.
///
/// # Errors
///
/// `last_operator` if it is the only operator; if the database fails.
pub async fn lock(store: &Store, account_id: Uuid, actor: Actor) -> Result<()> {
    let lock = store.write(Some(account_id), move |write| {
        Box::pin(async move {
            if write.is_last_operator(account_id).await? {
                let detail = "The account is the only operator; make another one first.";
                return Err(Error::new(Code::LastOperator, detail));
            }
            write.set_locked(account_id, true).await?;
            write.end_sign_ins_of(account_id).await?;
            write.delete_links_of(account_id).await?;
            write.audit(NewEntry::new(account_id, actor, AuditAction::AccountsLock));
            Ok(())
        })
    });
    lock.await?;
    // Whatever comes of it, an agent of the account gets no new lease.
    for (scope_id, device_id) in store.devices_owned_by(account_id).await? {
        let stop = store.write(Some(scope_id), move |write| Box::pin(devices::stop_of_locked(write, device_id)));
        stop.await?;
    }
    Ok(())
}

/// Unlocks an account.
///
/// # Errors
///
/// If the database fails.
pub async fn unlock(store: &Store, account_id: Uuid, actor: Actor) -> Result<()> {
    let unlock = store.write(Some(account_id), move |write| {
        Box::pin(async move {
            write.audit(NewEntry::new(account_id, actor, AuditAction::AccountsUnlock));
            write.set_locked(account_id, false).await
        })
    });
    unlock.await
}
