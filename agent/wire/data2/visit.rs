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
    /// The public address that the visitor came to.
    pub local: SocketAddr,
    #[serde(default)]
    pub kind: VisitKind,
    /// The name that the visitor came to, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The protocol that the node would speak to a service over TLS (ALPN).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alpn: Option<String>,
    /// How many more visitors wait for a connection.
    pub waiting: usize,
}

/// What the bytes of a visit are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VisitKind {
    #[default]
    Tcp,
    /// HTTP, which the node speaks.
    Http,
    /// TLS, which the visitor makes with the service.
    Passthrough,
    /// One of a newer node.
    #[serde(other)]
    Other,
}

/// HTTP/2 and HTTP/1.1 over TLS (RFC 9113, section 3.2; RFC 7301, section 6).
pub const H2: &str = "h2";
pub const HTTP_11: &str = "http/1.1";

/// The agent has connected to the local target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepted {
    /// The protocol that a service over TLS has chosen (ALPN).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alpn: Option<String>,
    /// The number of the target within the run.
    #[serde(default)]
    pub target_version: u64,
}

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
        /// The service's certificate could not be verified, or it does not speak TLS.
        TargetTls "target_tls",
        UnknownPort "unknown_port",
    }
}
