//! Tunnels that people at the device start and stop. They use the same leases as remote starts, but need no
//! consent, because consent is only about remote control.

use culvert_wire::control::Failure;
use culvert_wire::failure_code::FailureCode;
use uuid::Uuid;

use super::startable::{Bandwidth, StartRefusal, check_startable};
use super::{Service, sessions};
use crate::gate::{self, PinnedPolicies};
use culvert_domain::action::Action;
use culvert_domain::audit_log::{Actor, NewEntry};
use culvert_domain::device::Device;
use culvert_domain::error::{Code, Error, Result};
use culvert_domain::plan::Entitlement;
use culvert_domain::session::EndReason;
use culvert_domain::tunnel::Tunnel;
use culvert_store::Write;

/// The result of a local start: a session, or why there is none.
pub(crate) type LocalStart = std::result::Result<Uuid, Failure>;

/// A tunnel that a device of its scope may ask to start.
pub(crate) struct Found {
    tunnel_id: Uuid,
    plan: String,
    /// None where no policy knows the plan.
    entitlement: Option<Entitlement>,
    /// The policies that say so.
    generation: u64,
}

/// Whether the tunnels of a scope may run: a policy defines what its plan includes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MayRun {
    pub is_known: bool,
    /// The policies that say so.
    pub generation: u64,
}

/// Finds a tunnel of a scope by id or name, with what the scope's plan includes.
///
/// # Errors
///
/// `Code::PolicyUnavailable` if a policy fails; if the database fails.
pub(crate) async fn find(
    service: &Service,
    policies: &PinnedPolicies,
    scope_id: Uuid,
    tunnel: &str,
) -> Result<std::result::Result<Found, Failure>> {
    let found = service.store.tunnels_by_name(scope_id, tunnel).await?;
    let tunnel_id = match found.as_slice() {
        [id] => *id,
        [] => return Ok(Err(Failure::new(FailureCode::NotFound, format!("There is no tunnel `{tunnel}`.")))),
        _ => {
            return Ok(Err(Failure::new(
                FailureCode::Ambiguous,
                format!("Several tunnels are called `{tunnel}`; use an id."),
            )));
        }
    };
    let plan = scope_plan(service, scope_id).await?;
    let entitlement = gate::known_entitlement(policies, &plan).await?;
    Ok(Ok(Found { tunnel_id, plan, entitlement, generation: policies.generation() }))
}

/// Starts a found tunnel on the device that asks. None if other policies decide now.
///
/// # Errors
///
/// If the database fails.
pub(crate) async fn start(
    write: &mut Write,
    device: &Device,
    boot_id: Uuid,
    found: &Found,
) -> Result<Option<LocalStart>> {
    if write.active_policy_number().await? != found.generation {
        return Ok(None);
    }
    let Some(entitlement) = &found.entitlement else {
        let detail = format!("No policy knows the plan `{}`; the operator has to change it.", found.plan);
        return Ok(Some(Err(Failure::new(FailureCode::FeatureNotAvailable, detail))));
    };
    let Some(tunnel) = write.tunnel(device.scope_id, found.tunnel_id).await? else {
        return Ok(Some(Err(Failure::new(FailureCode::NotFound, "The tunnel was deleted."))));
    };
    let used = write.scope_bandwidth(device.scope_id).await?.month.total();
    let used_up = entitlement.bandwidth_limit_bytes.is_some_and(|limit| used >= limit);
    let bandwidth = if used_up { Bandwidth::UsedUp } else { Bandwidth::Left };
    open(write, device, boot_id, &tunnel, bandwidth).await.map(Some)
}

/// Whether the tunnels of a scope may run; None where the policies cannot say now.
///
/// # Errors
///
/// If the database fails.
pub(crate) async fn may_run(service: &Service, scope_id: Uuid) -> Result<Option<MayRun>> {
    let asked = async {
        let (plan, policies) = (scope_plan(service, scope_id).await?, service.policies_now());
        let is_known = gate::known_entitlement(&policies, &plan).await?.is_some();
        Ok(MayRun { is_known, generation: policies.generation() })
    };
    match asked.await {
        Ok(may_run) => Ok(Some(may_run)),
        Err(Error { code: Code::PolicyUnavailable, .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

async fn scope_plan(service: &Service, scope_id: Uuid) -> Result<String> {
    // Where this host does not have the policies that decide, nothing starts by others.
    service.policies.check()?;
    let scope = service.store.scope(scope_id).await?;
    Ok(scope.map(|scope| scope.plan).unwrap_or_default())
}

async fn open(
    write: &mut Write,
    device: &Device,
    boot_id: Uuid,
    tunnel: &Tunnel,
    bandwidth: Bandwidth,
) -> Result<LocalStart> {
    let refuse = |code: FailureCode, detail: String| Ok(Err(Failure::new(code, detail)));
    if let Err(refusal) = check_startable(tunnel, device, bandwidth) {
        return match refusal {
            StartRefusal::AgentTooOld => refuse(FailureCode::UnsupportedAction, refusal.detail()),
            StartRefusal::NodeWithoutHttp | StartRefusal::NodeAway => {
                refuse(FailureCode::NodeUnavailable, refusal.detail())
            }
            StartRefusal::MovedFromServingNode => refuse(FailureCode::OperationInProgress, refusal.detail()),
            StartRefusal::BandwidthUsedUp => refuse(FailureCode::TunnelSuspended, refusal.detail()),
            StartRefusal::OwnerInactive | StartRefusal::DeviceNotAllowed => {
                refuse(FailureCode::DeviceNotAllowed, "This device is not allowed for the tunnel.".into())
            }
        };
    }
    if let Some(operation) = &tunnel.operation {
        return refuse(FailureCode::OperationInProgress, format!("The operation {} has not ended yet.", operation.id));
    }
    match &tunnel.run {
        Some(run) if run.device_id == device.id => Ok(Ok(run.session_id)),
        Some(run) => {
            refuse(FailureCode::TunnelAlreadyRunning, format!("The device {} runs the tunnel.", run.device_id))
        }
        None => {
            let target = tunnel.target();
            let session_id = sessions::open(write, tunnel, device.id, boot_id, &target).await?;
            write.audit(entry(device, Action::TunnelsStart, tunnel.id));
            Ok(Ok(session_id))
        }
    }
}

/// Ends the session of a resumed tunnel that did not become ready. The next heartbeat of the device tries
/// again.
///
/// # Errors
///
/// If the database fails.
pub(crate) async fn not_resumed(write: &mut Write, device: &Device, session_id: Uuid, detail: &str) -> Result<()> {
    if let Some(lease) = write.lease(session_id).await?.filter(|lease| lease.device_id == device.id) {
        sessions::end(write, session_id, EndReason::Error).await?;
        write.set_start_error(lease.tunnel_id, Some(detail)).await?;
    }
    Ok(())
}

/// Ends the sessions that somebody at the device stopped.
///
/// # Errors
///
/// If the database fails.
pub(crate) async fn stop(write: &mut Write, device: &Device, session_ids: &[Uuid]) -> Result<()> {
    if session_ids.is_empty() {
        return Ok(());
    }
    // A lease may have ended meanwhile. In that case, too, its tunnel must not be resumed.
    write.clear_desired_devices(session_ids, device.id).await?;
    for lease in write.leases_of_device(device.id).await? {
        if session_ids.contains(&lease.session_id) {
            sessions::end(write, lease.session_id, EndReason::StoppedLocal).await?;
            write.audit(entry(device, Action::TunnelsStop, lease.tunnel_id));
        }
    }
    Ok(())
}

/// The entry of the audit log for what somebody at a device did.
fn entry(device: &Device, action: Action, tunnel_id: Uuid) -> NewEntry {
    NewEntry::new(device.scope_id, Actor::device(device.id, device.owner_id), action).about(tunnel_id)
}
