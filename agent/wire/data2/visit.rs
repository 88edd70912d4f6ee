//! A visit: one connection of a visitor, or of the node's HTTP front, to the local target.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::open_enum::open_enum;

/// Announces a visit. Its bytes may follow at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Visit {
    /// A number that the node gives, for logs.
    pub visit: u64,
    pub tunnel_id: Uuid,
    pub epoch: i64,
    /// The extra port that the visitor came to; `None` for the tunnel's own port.
    #[serde(default)]
    pub port_id: Option<Uuid>,
    pub visitor: SocketAddr,
    /// The node's address that the visitor came to.
    pub local: SocketAddr,
    /// How many more visitors wait for a connection.
    pub waiting: usize,
}

/// The agent has connected to the local target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepted {}

/// The agent does not serve the visit. This also ends the agent's direction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    pub code: RefusalCode,
    /// For the node's log. Visitors never see it.
    pub detail: String,
}

open_enum! {
    /// Why a visit was refused: the reasons that this program knows by name.
    RefusalCode {
        /// The agent does not hold this epoch of the tunnel.
        Fenced "fenced",
        /// Nobody at the device has agreed to the target.
        NotAgreed "not_agreed",
        TargetRefused "target_refused",
        TargetSilent "target_silent",
        UnknownPort "unknown_port",
    }
}
