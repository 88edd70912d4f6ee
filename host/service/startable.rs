//! Whether a tunnel may run on a device: one answer for every way to start it.

use culvert_domain::device::Device;
use culvert_domain::protocol::Protocol;
use culvert_domain::string_enum::StringEnum;
use culvert_domain::tunnel::{Tunnel, not_carried};
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
    /// The device's agent is older than http tunnels.
    AgentTooOld,
    /// No node carries the protocol yet.
    UnsupportedProtocol(Protocol),
}

impl StartRefusal {
    /// The reason, for the client who asked for the tunnel.
    pub(crate) fn detail(self) -> String {
        match self {
            Self::NodeWithoutHttp => "The tunnel's node does not serve http tunnels of this kind: it has no domain, or not the listener for it.".into(),
            Self::AgentTooOld => "The device's agent cannot serve http tunnels; upgrade it.".into(),
            Self::UnsupportedProtocol(protocol) => not_carried(protocol.as_str()),
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
            if !device.capabilities.iter().any(|capability| capability == Capability::DATA_CHANNEL_V2) {
                return Err(StartRefusal::AgentTooOld);
            }
        }
        protocol => return Err(StartRefusal::UnsupportedProtocol(protocol)),
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
