//! What clients may hold of the API's listener: how many connections, and how long each may take to
//! say something and to take its answer.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ipnet::IpNet;
use salvo::async_trait;
use salvo::conn::ConnCtrl;
use salvo::fuse::{ArcConnObserver, ConnObserver, FuseAction, FuseConfig, FuseInfo, FusePolicy};

use culvert_service::metrics::ConnectionRefusals;
use culvert_wire::client_network::{is_trusted, prefix};
use culvert_wire::tally::Tally;

/// For a request's head, and between two requests.
const HEAD_WITHIN: Duration = Duration::from_secs(10);
/// Between two pieces of a request's body, and for a client to take a piece of an answer.
const STALLED_FOR: Duration = Duration::from_secs(30);
/// Bytes that are read ahead at a time. The HTTP library judges a request's head by what it has before
/// it reads more, so a head of 16 KiB always fits, and one of more than 32 KiB never does.
pub const READ_AHEAD: usize = 16 * 1024;

/// Timeouts of one connection. A WebSocket is let off them by the framework.
pub fn timeouts() -> FuseConfig {
    FuseConfig::default()
        .with_http1_header_timeout(HEAD_WITHIN)
        .with_request_body_timeout(STALLED_FOR)
        .with_write_stall_timeout(STALLED_FOR)
}

/// The connections that are open, by their clients' addresses.
pub struct Connections {
    per_address: usize,
    /// Many clients come from one address of these.
    trusted: Vec<IpNet>,
    refused: ConnectionRefusals,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    by_address: Tally<IpAddr>,
    /// By the peer's address and port: the connection's number, and whose count it is in.
    peers: HashMap<SocketAddr, (u64, IpAddr)>,
    next: u64,
}

impl Connections {
    pub fn new(per_address: usize, trusted: Vec<IpNet>, refused: ConnectionRefusals) -> Arc<Self> {
        Arc::new(Self { per_address, trusted, refused, open: Mutex::default() })
    }

    /// A connection is no longer an unknown client's: it is an agent's whose device is known.
    pub fn release(&self, peer: SocketAddr) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).leave(peer);
    }

    fn admits(&self, peer: SocketAddr) -> bool {
        if is_trusted(peer.ip(), &self.trusted) {
            return true;
        }
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.by_address.of(&prefix(peer.ip())) < self.per_address
    }

    /// Counts a connection, and gives it a number: its peer may use the port again before it is dropped.
    fn enter(&self, peer: SocketAddr) -> u64 {
        let address = prefix(peer.ip());
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.leave(peer);
        let number = open.next;
        open.next += 1;
        open.peers.insert(peer, (number, address));
        open.by_address.add(address, 1);
        number
    }

    fn leave(&self, peer: SocketAddr, number: u64) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.peers.get(&peer).is_some_and(|(newest, _)| *newest == number) {
            open.leave(peer);
        }
    }
}

impl Open {
    fn leave(&mut self, peer: SocketAddr) {
        if let Some((_, address)) = self.peers.remove(&peer) {
            self.by_address.end_one(&address);
        }
    }
}

/// Who decides on a new connection.
pub struct Admission(pub Arc<Connections>);

#[async_trait]
impl FusePolicy for Admission {
    async fn decide(&self, info: &FuseInfo) -> FuseAction {
        match info.remote_addr.clone().into_std() {
            Some(peer) if !self.0.admits(peer) => {
                self.0.refused.count("address");
                FuseAction::Reject
            }
            _ => FuseAction::Accept(timeouts()),
        }
    }

    fn observe(&self, info: &FuseInfo, _: &ConnCtrl) -> Option<ArcConnObserver> {
        let peer = info.remote_addr.clone().into_std()?;
        let number = self.0.enter(peer);
        Some(Arc::new(Entry { connections: self.0.clone(), peer, number }))
    }
}

/// An open connection's entry: it goes with the connection.
struct Entry {
    connections: Arc<Connections>,
    peer: SocketAddr,
    number: u64,
}

impl ConnObserver for Entry {}

impl Drop for Entry {
    fn drop(&mut self) {
        self.connections.leave(self.peer, self.number);
    }
}
