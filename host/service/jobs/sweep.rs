//! Timeouts: work that becomes due only because time has passed.

use culvert_domain::error::{Chain, Result};
use futures_util::{StreamExt, stream};

use crate::{operations, presence, sessions, temporary_tunnels};
use culvert_store::Store;
use culvert_store::error::first_error;

/// Maximum number of due items that are processed concurrently. If one waits for a lock, the others go on.
const AT_ONCE: usize = 8;

/// Processes everything that is due now. A failure with one item does not stop the others.
///
/// # Errors
///
/// If what is due cannot be read.
pub async fn sweep(store: &Store) -> Result<()> {
    let (silent, expired, unfinished, untold, temporary) = tokio::join!(
        store.silent_devices(),
        store.expired_leases(),
        store.due_operations(),
        store.untold_devices(),
        store.due_temporary_tunnels(),
    );
    let lost = each(silent, |(device_id, scope_id)| {
        store.write(Some(scope_id), move |write| Box::pin(presence::lose(write, device_id)))
    })
    .await;
    let ended = each(expired, |(session_id, scope_id)| {
        store.write(Some(scope_id), move |write| Box::pin(sessions::expire(write, session_id)))
    })
    .await;
    let timed_out = each(unfinished, |(operation_id, scope_id)| {
        store.write(Some(scope_id), move |write| Box::pin(operations::expire(write, operation_id)))
    })
    .await;
    let published = each(untold, |(device_id, scope_id)| {
        store.write(Some(scope_id), move |write| Box::pin(presence::publish(write, device_id)))
    })
    .await;
    let deleted = each(temporary, |(tunnel_id, scope_id)| temporary_tunnels::look_at(store, scope_id, tunnel_id)).await;
    [ended, timed_out, published, deleted].into_iter().fold(lost, first_error)
}

/// Processes due items and logs the failures. An error is returned only if the items could not be read.
async fn each<T, F: Future<Output = Result<()>>>(due: Result<Vec<T>>, act: impl Fn(T) -> F) -> Result<()> {
    let acts = stream::iter(due?).map(act).buffer_unordered(AT_ONCE);
    acts.for_each(async |done| {
        if let Err(error) = done {
            tracing::warn!(error = %Chain(&error), "something that is due could not be done");
        }
    })
    .await;
    Ok(())
}
