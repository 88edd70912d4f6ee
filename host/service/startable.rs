//! Whether a tunnel may run on a device: one answer for every way to start it.

use culvert_domain::device::Device;
use culvert_domain::protocol::Protocol;
use culvert_domain::tunnel::Tunnel;
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
    /// The device's agent is older than tunnels of this protocol.
    AgentTooOld,
}

impl StartRefusal {
    /// The reason, for the client who asked for the tunnel.
    pub(crate) fn detail(self) -> String {
        match self {
            Self::NodeWithoutHttp => "The tunnel's node does not serve http tunnels of this kind: it has no domain, or not the listener for it.".into(),
            Self::AgentTooOld => "The device's agent cannot serve tunnels of this protocol; upgrade it.".into(),
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
pub(crate) fn check_startable(tunnel: &Tunnel, device: &Device, bandwidth: Bandwidth) -> Result<(), StartRefusal> {
    match tunnel.spec.protocol {
        Protocol::Tcp => {}
        Protocol::Http => {
            if !tunnel.node.takes_http(tunnel.spec.https) {
                return Err(StartRefusal::NodeWithoutHttp);
            }
            needed(device, Capability::DATA_CHANNEL_V2)?;
        }
        Protocol::Udp | Protocol::Both => needed(device, Capability::DATAGRAMS)?,
    }
    if tunnel.suspended || bandwidth == Bandwidth::UsedUp {
        return Err(StartRefusal::BandwidthUsedUp);
    }
    if !device.owner_active {
        return Err(StartRefusal::OwnerInactive);
    }
    if !tunnel.allows(device.id) {
        return Err(StartRefusal::DeviceNotAllowed);
    }
    Ok(())
}

fn needed(device: &Device, capability: &str) -> Result<(), StartRefusal> {
    if device.capabilities.iter().any(|known| known == capability) { Ok(()) } else { Err(StartRefusal::AgentTooOld) }
}
