//! Attaching a connection: the agent says who it is, and the node whether it takes the connection.

use serde::{Deserialize, Serialize};

use crate::base64_bytes::Base64Bytes;
use crate::open_enum::open_enum;

/// The agent's first frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attach {
    /// A device token ([`crate::device_token`]).
    pub token: Base64Bytes,
    /// The agent's version, for logs.
    pub version: String,
    #[serde(default, skip_serializing_if = "LaneKind::is_visits")]
    pub lane: LaneKind,
}

/// What a connection carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LaneKind {
    /// Visits, one after another.
    #[default]
    Visits,
    /// The datagrams of visitors.
    Datagrams,
}

impl LaneKind {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "the shape is serde's")]
    fn is_visits(&self) -> bool {
        *self == Self::Visits
    }
}

/// The node takes the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attached {
    /// Warm connections that the agent keeps while no visitors come; beside a connection of QUIC, at most
    /// [`super::MIN_WARM_BESIDE_QUIC`].
    pub ahead: usize,
    /// Warm connections of one device, at most.
    pub most: usize,
}

/// More visitors have come than there are warm connections. The node says so within a visit that has just begun, and again
/// when there are more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// The visitors that wait for a connection.
    pub waiting: usize,
}

/// The node does not take the connection, and closes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denied {
    pub code: DenialCode,
    /// When the agent may try again, in milliseconds.
    #[serde(default)]
    pub retry_after_ms: u64,
}

open_enum! {
    /// Why a connection was denied: the reasons that this program knows by name.
    DenialCode {
        /// The token is no longer valid.
        Expired "expired",
        /// The node serves no lease of this process of the device.
        Fenced "fenced",
        /// There are enough warm connections.
        Full "full",
        /// The token is not of this node, or is not signed by a key that the node accepts.
        Invalid "invalid",
        /// The node does not know at the moment what it serves, because its host does not reach its database.
        Later "later",
    }
}
