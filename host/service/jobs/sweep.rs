//! Timeouts: work that becomes due only because time has passed.

use culvert_domain::error::{Chain, Result};
use futures_util::{StreamExt, stream};

use crate::liveness::{Due as Held, Expired, Silent};
use crate::{Service, operations, presence, sessions, temporary_tunnels};
use culvert_store::due::Due;
use culvert_store::error::first_error;

/// Maximum number of due items that are processed concurrently. If one waits for a lock, the others go on.
const AT_ONCE: usize = 8;

/// Processes everything that is due now. A failure with one item does not stop the others.
///
/// # Errors
///
/// If what is due cannot be read.
pub async fn sweep(service: &Service, due: Due) -> Result<()> {
    // Together, so that a database that does not answer is waited for once.
    let (silent, timed) = tokio::join!(silent(service, due), timed(service, due));
    first_error(silent, timed)
}

/// What was silent for too long, wherever it was connected.
async fn silent(service: &Service, due: Due) -> Result<()> {
    if !service.fleet.may_end() {
        return Ok(());
    }
    let (store, liveness) = (&service.store, &service.liveness);
    // The devices of hosts that are ended now are silent at the next look.
    let (hosts, silent, expired, temporary) = tokio::join!(
        read_if(due.dead_hosts, store.end_dead_hosts(service.fleet.host_id())),
        read_if(due.silent_devices, store.silent_devices()),
        read_if(due.expired_leases, store.expired_leases()),
        read_if(due.temporary_tunnels, store.due_temporary_tunnels()),
    );
    // What this host holds is due by what it knows itself.
    let silent = silent.map(|mut all| {
        all.retain(|(device_id, _)| liveness.last_seen_at(*device_id).is_none());
        all
    });
    let expired = expired.map(|mut all| {
        all.retain(|(session_id, _)| liveness.lease_end(*session_id).is_none());
        all
    });
    let lost = each(silent, |(device_id, scope_id)| {
        store.write(Some(scope_id), move |write| Box::pin(presence::lose(write, device_id)))
    })
    .await;
    let ended = each(expired, |(session_id, scope_id)| {
        store.write(Some(scope_id), move |write| Box::pin(sessions::expire(write, session_id)))
    })
    .await;
    let deleted = each(temporary, |(tunnel_id, scope_id)| temporary_tunnels::look_at(store, scope_id, tunnel_id)).await;
    [lost, ended, deleted].into_iter().fold(hosts, first_error)
}

/// What is due by its own time.
async fn timed(service: &Service, due: Due) -> Result<()> {
    if !service.fleet.leads() {
        return Ok(());
    }
    let store = &service.store;
    let (unfinished, untold) = tokio::join!(
        read_if(due.operations, store.due_operations()),
        read_if(due.untold_devices, store.untold_devices()),
    );
    let timed_out = each(unfinished, |(operation_id, scope_id)| {
        store.write(Some(scope_id), move |write| Box::pin(operations::expire(write, operation_id)))
    })
    .await;
    let published = each(untold, |(device_id, scope_id)| {
        store.write(Some(scope_id), move |write| Box::pin(presence::publish(write, device_id)))
    })
    .await;
    first_error(timed_out, published)
}

/// Reads what is due, if something is.
async fn read_if<T: Default>(is_due: bool, read: impl Future<Output = Result<T>>) -> Result<T> {
    if is_due { read.await } else { Ok(T::default()) }
}

/// Ends the devices and leases that this host has held, and that were silent for too long. They stay due until the store knows.
///
/// # Errors
///
/// Does not fail as a whole: a failure with one of them is logged.
pub async fn held(service: &Service) -> Result<()> {
    if !service.fleet.may_end_own() {
        return Ok(());
    }
    let (store, liveness) = (&service.store, &service.liveness);
    let Held { silent, expired } = liveness.due();
    let lost = each(Ok(silent), async |Silent { connection, scope_id, seen_at }| {
        store.write(Some(scope_id), move |write| Box::pin(presence::lose_held(write, connection, seen_at))).await?;
        liveness.release(connection);
        Ok(())
    })
    .await;
    let ended = each(Ok(expired), async |Expired { session_id, connection, scope_id }| {
        let expire =
            store.write(Some(scope_id), move |write| Box::pin(sessions::expire_held(write, connection, session_id)));
        expire.await?;
        liveness.forget_lease(session_id);
        Ok(())
    })
    .await;
    first_error(lost, ended)
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
