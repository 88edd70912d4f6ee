//! The service that a request is for, and how connections to it are found or begun.

use std::net::SocketAddr;
use std::sync::Arc;

use culvert_wire::data2::visit::VisitKind;
use uuid::Uuid;

use super::upstream::{Key, Service};
use super::upstream_pool::UpstreamPool;
use crate::session::{SessionRelay, Visited};

/// Whom a connection is for.
#[derive(Clone, Copy)]
pub(super) struct Destination<'a> {
    pub run: &'a Arc<SessionRelay>,
    /// Where connections to its services are kept.
    pub pool: &'a Arc<UpstreamPool>,
    pub port_id: Option<Uuid>,
    pub visitor: SocketAddr,
    pub local: SocketAddr,
    pub name: &'a str,
    /// Whether the service is told who the visitor is.
    pub names_visitor: bool,
}

impl Destination<'_> {
    pub(super) fn key(&self) -> Key {
        let (session_id, target_version) = (self.run.session_id(), self.run.target_version());
        let service = Service { session_id, port_id: self.port_id, target_version };
        Key { service, visitor: self.names_visitor.then_some(self.visitor) }
    }

    pub(super) fn visited(&self, alpn: Option<&str>) -> Visited {
        Visited {
            port_id: self.port_id,
            visitor: self.visitor,
            local: self.local,
            kind: VisitKind::Http,
            name: Some(self.name.to_owned()),
            alpn: alpn.map(String::from),
        }
    }
}
