//! The devices of a tunnel: the one that runs it, and those that may.

use super::device::Device;
use super::tunnel::Tunnel;

/// How many of the devices that may run a tunnel a client is shown, at most.
pub const AUTHORIZED_SHOWN: u32 = 100;

/// The devices of a tunnel.
#[derive(Clone, Debug)]
pub struct TunnelDevices {
    /// The one that runs it.
    pub current: Option<Device>,
    /// Those that may run it: the ones that were enrolled last.
    pub authorized: Vec<Device>,
    pub authorized_total: u32,
}

impl TunnelDevices {
    /// `devices` are the newest of those that may run the tunnel, and the one that runs it; the newest come first.
    pub fn new(tunnel: &Tunnel, devices: Vec<Device>, authorized_total: u32) -> Self {
        let current = devices.iter().find(|device| tunnel.running_on() == Some(device.id)).cloned();
        let authorized = devices.into_iter().filter(|device| tunnel.allows(device.id));
        Self { current, authorized: authorized.take(AUTHORIZED_SHOWN as usize).collect(), authorized_total }
    }
}
