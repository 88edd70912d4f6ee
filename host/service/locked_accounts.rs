//! Accounts that an operator locks and unlocks. Nobody signs in to a locked one; its keys are no keys, and its devices do nothing.

use std::sync::Arc;

use culvert_domain::audit_log::{Actor, AuditAction, NewEntry};
use culvert_domain::error::{Error, Result};
use culvert_store::Store;
use uuid::Uuid;

use crate::{accounts, devices};

/// Devices that are stopped at a time.
const BATCH: u32 = 100;

/// Locks an account: its sign-ins, its links, the invitations and codes that it has made, and what its devices run end. Its keys
/// answer again when it is unlocked.
///
/// # Errors
///
/// `last_operator` if it is the only operator; if the database fails.
pub async fn lock(store: &Arc<Store>, account_id: Uuid, actor: Actor) -> Result<()> {
    let lock = store.write(Some(account_id), move |write| {
        Box::pin(async move {
            accounts::check_other_operator(write, account_id).await?;
            write.set_locked(account_id, true).await?;
            write.end_sign_ins_of(account_id).await?;
            write.delete_links_of(account_id).await?;
            write.delete_email_change(account_id).await?;
            write.delete_invitations_of(account_id).await?;
            write.delete_codes_of(account_id).await?;
            write.audit(NewEntry::new(account_id, actor, AuditAction::AccountsLock));
            Ok(())
        })
    });
    lock.await?;
    // In a task of its own, so that it is done even if nobody waits for it any longer.
    let store = store.clone();
    let stop = tokio::spawn(async move { stop_devices(&store).await });
    stop.await.map_err(Error::internal)?
}

/// Ends what devices of locked accounts still run. The ticker does it as well, for a host that stopped in the middle.
///
/// # Errors
///
/// If the database fails.
pub(crate) async fn stop_devices(store: &Store) -> Result<()> {
    loop {
        let running = store.devices_of_locked_accounts(BATCH).await?;
        let is_last = running.len() < BATCH as usize;
        for (scope_id, device_id) in running {
            let stop = store.write(Some(scope_id), move |write| Box::pin(devices::stop_of_locked(write, device_id)));
            stop.await?;
        }
        if is_last {
            return Ok(());
        }
    }
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
