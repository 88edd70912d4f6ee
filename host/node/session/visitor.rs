//! A visitor of a public port, from its admission to its end.

use std::net::SocketAddr;
use std::sync::Arc;

use culvert_wire::clock::Moment;
use culvert_wire::data2::visit::VisitKind;
use culvert_wire::socket;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio_util::task::task_tracker::TaskTrackerToken;
use uuid::Uuid;

use super::SessionRelay;
use crate::addresses::Entry;
use crate::admission::AdmittedVisitor;
use crate::carriers::{Carrier, Job};

/// A visitor. If it is dropped before its transfer is complete, its connection is reset: a transfer that was cut
/// short must not look complete.
pub(crate) struct Visitor {
    pub socket: VisitorSocket,
    pub visited: Visited,
    pub admission: AdmittedVisitor,
    /// Of a visitor who came to a listener for http tunnels.
    _entry: Option<Entry>,
    pub came: Moment,
    /// Dropped last: whoever waits for the end of a run's visitors knows that their sockets are closed.
    pub run: ActiveRun,
}

/// Who comes, and to what.
#[derive(Clone, Debug)]
pub(crate) struct Visited {
    /// The extra port that it came to; `None` for the tunnel's own port.
    pub port_id: Option<Uuid>,
    pub visitor: SocketAddr,
    /// The public address that it came to.
    pub local: SocketAddr,
    pub kind: VisitKind,
    /// The name that it came to.
    pub name: Option<String>,
    /// What the node would speak to a service over TLS.
    pub alpn: Option<String>,
}

pub(crate) struct VisitorSocket {
    pub stream: TcpStream,
    pub is_complete: bool,
}

impl Drop for VisitorSocket {
    fn drop(&mut self) {
        if !self.is_complete {
            socket::reset(&self.stream);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VisitorKind {
    /// A connection.
    Tcp,
    /// An exchange.
    Http,
    /// The datagrams of one address.
    Udp,
}

/// The run that a visitor belongs to, which counts it.
pub(crate) struct ActiveRun {
    run: Arc<SessionRelay>,
    kind: VisitorKind,
    _counted: TaskTrackerToken,
}

impl ActiveRun {
    pub(crate) fn new(run: Arc<SessionRelay>, kind: VisitorKind) -> Self {
        let counted = run.enter(kind);
        Self { run, kind, _counted: counted }
    }

    pub(crate) fn relay(&self) -> &Arc<SessionRelay> {
        &self.run
    }
}

impl Drop for ActiveRun {
    fn drop(&mut self) {
        self.run.leave(self.kind);
    }
}

impl Visitor {
    pub(crate) fn new(
        stream: TcpStream,
        visited: Visited,
        (admission, entry): (AdmittedVisitor, Option<Entry>),
        run: Arc<SessionRelay>,
        came: Moment,
    ) -> Self {
        let socket = VisitorSocket { stream, is_complete: false };
        Self { socket, visited, admission, _entry: entry, came, run: ActiveRun::new(run, VisitorKind::Tcp) }
    }
}

/// What a data connection is used for.
pub(crate) enum Work {
    /// A visitor's bytes.
    Relay(Box<Visitor>),
    /// Somebody else uses it. Without a connection, they ask again.
    Lend(oneshot::Sender<Carrier>),
}

impl Job for Work {
    async fn run(self, carrier: Carrier) {
        match self {
            Self::Relay(visitor) => visitor.run.relay().clone().relay(*visitor, carrier).await,
            Self::Lend(borrower) => drop(borrower.send(carrier)),
        }
    }

    fn retry(self) {
        if let Self::Relay(visitor) = self {
            visitor.run.relay().clone().serve(*visitor);
        }
    }
}
