//! Connections of devices to the control channel.

use uuid::Uuid;

/// One connection of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    pub device_id: Uuid,
    /// Increases with every connection of the device. Messages of a connection with an older epoch are
    /// ignored.
    pub epoch: i64,
}

/// What is recorded of a new connection.
#[derive(Clone, Copy, Debug)]
pub struct NewConnection {
    pub host_id: Uuid,
    pub boot_id: Uuid,
    /// Whether the agent takes the token of a repeated grant.
    pub renews_tokens: bool,
}
