//! Sessions: opening and ending them, with the events of each.

use culvert_domain::connection::Connection;
use culvert_domain::error::Result;
use culvert_domain::lease::Lease;
use culvert_domain::session::{EndReason, SESSION_LEASE, Target};
use culvert_domain::tunnel::Tunnel;
use uuid::Uuid;

use super::events;
use culvert_store::sessions::NewSession;
use culvert_store::{Hint, Store, Write};

/// Opens a session: gives the lease of a tunnel to a device's agent, with a new epoch. The caller ends the
/// tunnel's former session before.
///
/// # Errors
///
/// If the database fails.
pub async fn open(write: &mut Write, tunnel: &Tunnel, device_id: Uuid, boot_id: Uuid, target: &Target) -> Result<Uuid> {
    let epoch = write.next_epoch(tunnel.id, device_id).await?;
    let (id, now) = (write.clock.id(), write.now);
    let lease_until = now + SESSION_LEASE;
    let new = NewSession { id, tunnel, device_id, boot_id, epoch, target, lease_until };
    write.insert_session(&new).await?;
    write.touch(tunnel.node.id, tunnel.id);
    write.notify(Hint::Device(device_id));
    Ok(id)
}

/// Ends a session. Returns whether it was open.
///
/// # Errors
///
/// If the database fails.
pub async fn end(write: &mut Write, session_id: Uuid, reason: EndReason) -> Result<bool> {
    let Some((run, was_ready)) = write.set_session_ended(session_id, reason).await? else { return Ok(false) };
    write.touch(run.node_id, run.tunnel_id);
    write.notify(Hint::Device(run.device_id));
    write.clear_moving(run.tunnel_id).await?;
    if was_ready {
        events::tunnel_stopped(write, run, reason).await?;
    }
    Ok(true)
}

/// Ends a session that its owner wanted to end, and clears the desired device so that none resumes it.
///
/// # Errors
///
/// If the database fails.
pub async fn stop(write: &mut Write, session_id: Uuid, reason: EndReason) -> Result<bool> {
    write.clear_desired_device_of(session_id).await?;
    end(write, session_id, reason).await
}

/// Records that the agent of a session is ready to serve visitors.
///
/// # Errors
///
/// If the database fails.
pub async fn set_ready(write: &mut Write, session_id: Uuid) -> Result<()> {
    let Some(run) = write.set_session_ready(session_id).await? else { return Ok(()) };
    // From here on the node serves visitors.
    write.touch(run.node_id, run.tunnel_id);
    write.clear_moving(run.tunnel_id).await?;
    events::tunnel_started(write, run).await
}

/// Ends all open sessions of a scope. Desired devices stay, so the tunnels are resumed when possible.
///
/// # Errors
///
/// If the database fails.
pub async fn end_of_scope(write: &mut Write, scope_id: Uuid, reason: EndReason) -> Result<()> {
    for session_id in write.open_sessions_of_scope(scope_id).await? {
        end(write, session_id, reason).await?;
    }
    Ok(())
}

/// Ends a session whose lease was not renewed in time.
///
/// # Errors
///
/// If the database fails.
pub async fn expire(write: &mut Write, session_id: Uuid) -> Result<()> {
    match write.lease(session_id).await? {
        Some(lease) if lease.lease_until <= write.now => end_expired(write, &lease).await,
        _ => Ok(()),
    }
}

/// Ends a session whose lease this host has held, and whose agent did not renew it in time. An agent that has connected
/// elsewhere meanwhile renews it there.
///
/// # Errors
///
/// If the database fails.
pub async fn expire_held(write: &mut Write, connection: Connection, session_id: Uuid) -> Result<()> {
    if !write.is_current(connection).await? {
        return Ok(());
    }
    match write.lease(session_id).await? {
        Some(lease) => end_expired(write, &lease).await,
        None => Ok(()),
    }
}

async fn end_expired(write: &mut Write, lease: &Lease) -> Result<()> {
    let gone = write.is_disconnected(lease.device_id).await?;
    let reason = if gone { EndReason::DeviceDisconnected } else { EndReason::LeaseExpired };
    end(write, lease.session_id, reason).await?;
    Ok(())
}

/// Ends sessions of one scope in a transaction of their own.
///
/// # Errors
///
/// If the database fails.
pub async fn end_all(store: &Store, scope_id: Uuid, session_ids: Vec<Uuid>, reason: EndReason) -> Result<()> {
    store
        .write(Some(scope_id), move |write| {
            Box::pin(async move {
                for session_id in session_ids {
                    end(write, session_id, reason).await?;
                }
                Ok(())
            })
        })
        .await
}

/// Ends the sessions on a node whose agents prove their leases by tokens of an earlier version. Tunnels with a
/// desired device are resumed under new leases.
///
/// # Errors
///
/// If the database fails.
pub async fn end_with_older_tokens(store: &Store, node_id: Uuid, version: u32) -> Result<()> {
    for (session_id, scope_id) in store.sessions_with_older_tokens(node_id, version).await? {
        end_all(store, scope_id, vec![session_id], EndReason::NodeShutdown).await?;
    }
    Ok(())
}
