//! Whether a tunnel may run on a device: one answer for every way to start it.

use culvert_domain::device::Device;
use culvert_domain::error::{Code, Error, Result};
use culvert_domain::node::NodeStatus;
use culvert_domain::protocol::Protocol;
use culvert_domain::tunnel::Tunnel;
use culvert_store::Write;
use culvert_wire::control::Capability;

/// Whether the scope's plan leaves bandwidth for this month, as far as the caller knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bandwidth {
    Left,
    UsedUp,
}

/// Why a tunnel must not run on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartRefusal {
    BandwidthUsedUp,
    /// The device's owner is no longer a member of its Team.
    OwnerInactive,
    /// The tunnel's allowlist does not contain the device.
    DeviceNotAllowed,
    /// The tunnel's node has no domain, or not the listener that the tunnel needs.
    NodeWithoutHttp,
    /// The device's agent is older than what the tunnel needs.
    AgentTooOld,
    /// The host of the tunnel's node is not heard of.
    NodeAway,
    /// The node that the tunnel was moved from may serve it for another device.
    MovedFromServingNode,
}

impl StartRefusal {
    /// The reason, for the client who asked for the tunnel.
    pub(crate) fn detail(self) -> String {
        match self {
            Self::NodeWithoutHttp => "The tunnel's node does not serve http tunnels of this kind: it has no domain, or not the listener for it.".into(),
            Self::AgentTooOld => "The device's agent is too old for this tunnel; upgrade it.".into(),
            Self::NodeAway => "The host of the tunnel's node is not heard of; the tunnel can be moved to another node.".into(),
            Self::MovedFromServingNode => "The node that the tunnel was moved from may serve it still, on another device.".into(),
            Self::BandwidthUsedUp => "The month's bandwidth is used up.".into(),
            Self::OwnerInactive => "The device's owner is no longer a member of its Team.".into(),
            Self::DeviceNotAllowed => "The device is no longer allowed for this tunnel.".into(),
        }
    }
}

/// Checks whether a tunnel may run on a device.
///
/// # Errors
///
/// Why it may not.
pub(crate) fn check_startable(
    tunnel: &Tunnel,
    device: &Device,
    bandwidth: Bandwidth,
) -> std::result::Result<(), StartRefusal> {
    if tunnel.spec.protocol == Protocol::Http && !tunnel.node.takes_http(tunnel.spec.needs_https()) {
        return Err(StartRefusal::NodeWithoutHttp);
    }
    check_agent(tunnel, device)?;
    if tunnel.suspended || bandwidth == Bandwidth::UsedUp {
        return Err(StartRefusal::BandwidthUsedUp);
    }
    if !device.owner_active {
        return Err(StartRefusal::OwnerInactive);
    }
    if !tunnel.allows(device.id) {
        return Err(StartRefusal::DeviceNotAllowed);
    }
    if tunnel.node.reach != NodeStatus::Online {
        return Err(StartRefusal::NodeAway);
    }
    if tunnel.moving_from.is_some_and(|former| former.device_id != device.id) {
        return Err(StartRefusal::MovedFromServingNode);
    }
    Ok(())
}

/// Checks whether a device's agent can do what a tunnel needs. An older one would leave it out without a word.
///
/// # Errors
///
/// [`StartRefusal::AgentTooOld`]
fn check_agent(tunnel: &Tunnel, device: &Device) -> std::result::Result<(), StartRefusal> {
    let needed = [
        (tunnel.spec.protocol == Protocol::Http, Capability::DATA_CHANNEL_V2),
        (tunnel.takes_datagrams(), Capability::DATAGRAMS),
        (tunnel.needs_local_services(), Capability::LOCAL_SERVICES),
    ];
    let has = |capability: &str| device.capabilities.iter().any(|known| known == capability);
    if needed.iter().all(|(is_needed, capability)| !is_needed || has(capability)) {
        Ok(())
    } else {
        Err(StartRefusal::AgentTooOld)
    }
}

/// Checks that the agent of a running tunnel can do what the tunnel needs now.
///
/// # Errors
///
/// [`Code::UpgradeRequired`]; if the database fails.
pub(crate) async fn check_running_agent(write: &mut Write, tunnel: &Tunnel) -> Result<()> {
    let Some(run) = &tunnel.run else { return Ok(()) };
    let Some(device) = write.device(tunnel.scope_id, run.device_id).await? else { return Ok(()) };
    check_agent(tunnel, &device).map_err(|refusal| Error::new(Code::UpgradeRequired, refusal.detail()))
}
