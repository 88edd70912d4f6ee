//! Leases across a reconnect: those that nobody holds end, and tunnels that should run get new ones.

use culvert_domain::device::Device;
use culvert_domain::error::Result;
use culvert_domain::session::{EndReason, Target};
use culvert_domain::tunnel::Tunnel;
use culvert_wire::control::Hello;
use uuid::Uuid;

use super::local_runs::MayRun;
use super::sessions;
use super::startable::{Bandwidth, StartRefusal, check_startable};
use culvert_store::Write;

/// Ends the leases that nobody holds any longer: those of a former agent process, and those that this process
/// has given up.
///
/// # Errors
///
/// If the database fails.
pub(crate) async fn end_lost_leases(write: &mut Write, device_id: Uuid, hello: &Hello) -> Result<()> {
    for lease in write.leases_of_device(device_id).await? {
        if lease.boot_id != hello.boot_id {
            sessions::end(write, lease.session_id, EndReason::AgentRestart).await?;
        } else if lease.ready && !hello.lease_ids.contains(&lease.session_id) {
            sessions::end(write, lease.session_id, EndReason::LeaseExpired).await?;
        }
    }
    Ok(())
}

/// What has become of the tunnels that a device should run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resumed {
    /// None waits for anything that nobody would tell of.
    All,
    /// One waits for the host of its node, or for policies that can say whether it may run.
    Waits,
    /// Other policies decide now: they are to be asked with the next heartbeat.
    Again,
}

/// Opens sessions for the tunnels that the device should run and that nobody runs: after a restart, after a
/// long absence, or at the end of a suspension.
///
/// # Errors
///
/// If the database fails.
pub(crate) async fn resume_tunnels(
    write: &mut Write,
    device: &Device,
    boot_id: Uuid,
    may_run: Option<MayRun>,
) -> Result<Resumed> {
    let Some(MayRun { is_known, generation }) = may_run else { return Ok(Resumed::Waits) };
    if write.active_policy_number().await? != generation {
        return Ok(Resumed::Again);
    }
    if !is_known {
        return Ok(Resumed::All);
    }
    let mut resumed = Resumed::All;
    for tunnel in write.pending_resumes(device.scope_id, device.id).await? {
        match check_startable(&tunnel, device, Bandwidth::Left) {
            Ok(()) => {}
            Err(StartRefusal::NodeAway) => {
                resumed = Resumed::Waits;
                continue;
            }
            Err(_) => continue,
        }
        let target = target(write, device, &tunnel).await?;
        sessions::open(write, &tunnel, device.id, boot_id, &target).await?;
    }
    Ok(resumed)
}

/// The target of a resumed tunnel. Without remote control, it is the one that somebody at the device last
/// agreed to.
async fn target(write: &mut Write, device: &Device, tunnel: &Tunnel) -> Result<Target> {
    let now = tunnel.target();
    let device = write.device(device.scope_id, device.id).await?;
    if device.is_some_and(|device| device.remote_control) {
        return Ok(now);
    }
    let last = match tunnel.desired_device_id {
        Some(device_id) => write.last_target(tunnel.id, device_id).await?,
        None => None,
    };
    Ok(last.unwrap_or(now))
}
