//! TLS that visitors make with the service itself: the name in the handshake says whose it is, and all bytes are passed on
//! as they come.

use std::io;
use std::time::Duration;

use culvert_wire::data2::visit::VisitKind;
use rustls::server::Acceptor;
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use super::peer::Peer;
use super::routes::Found;
use crate::addresses::Entry;
use crate::admission::AdmissionRefusal;
use crate::peek::peek;
use crate::session::Visited;
use crate::{Shared, lock};

/// Bytes of the first message, at most (RFC 8446, section 4.1.2).
const LONGEST_HELLO: usize = 16 * 1024;

/// A name whose service makes TLS itself.
pub(super) struct PassedName {
    name: String,
    found: Found,
    passing: CancellationToken,
}

/// The name in a visitor's handshake, if its service makes TLS itself. Nothing is taken from the stream.
///
/// # Errors
///
/// If too little comes in time.
pub(super) async fn name(stream: &TcpStream, shared: &Shared, within: Duration) -> io::Result<Option<PassedName>> {
    let seen = shared.clock.timeout(within, peek(stream, LONGEST_HELLO, look)).await;
    let Some(name) = seen.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))? else { return Ok(None) };
    let passed = shared.routes.find(&name).and_then(|found| Some((found.passing.clone()?, found)));
    Ok(passed.map(|(passing, found)| PassedName { name, found, passing }))
}

/// The name in a handshake; none where it is no handshake or has no name. `WouldBlock` if it is too short to tell.
fn look(seen: &[u8]) -> io::Result<Option<String>> {
    let mut bytes = seen;
    let mut acceptor = Acceptor::default();
    while !bytes.is_empty() {
        if acceptor.read_tls(&mut bytes).is_err() {
            return Ok(None);
        }
        match acceptor.accept() {
            Ok(Some(accepted)) => return Ok(accepted.client_hello().server_name().map(str::to_ascii_lowercase)),
            Ok(None) => {}
            Err(_) => return Ok(None),
        }
    }
    if seen.len() == LONGEST_HELLO { Ok(None) } else { Err(io::ErrorKind::WouldBlock.into()) }
}

/// Relays a visitor to the service of a name.
pub(super) fn relay(
    shared: &Shared,
    peer: Peer,
    passed: PassedName,
    stream: TcpStream,
    entry: Option<Entry>,
) -> io::Result<()> {
    let PassedName { name, found, passing } = passed;
    let refuse = |why: &str| {
        culvert_wire::socket::reset(&stream);
        Err(io::Error::other(why.to_owned()))
    };
    if entry.is_none() {
        return refuse("a trusted proxy has not said who its visitor is");
    }
    if found.route.suspended_until.is_some_and(|until| shared.clock.now() < until) {
        return refuse("the tunnel is suspended");
    }
    let tunnel = lock(&shared.tunnels).get(&found.route.tunnel_id).map(|tunnel| (tunnel.run(), tunnel.access.clone()));
    let Some((run, access)) = tunnel else { return refuse("the tunnel is offline") };
    let admission = match access.enter_exchange(peer.address.ip(), &passing) {
        Ok(admission) => admission,
        Err(AdmissionRefusal::Rules) => return refuse("the rules deny the visitor"),
        Err(AdmissionRefusal::Bound(bound)) => {
            shared.bounds.refused(bound);
            return refuse("there are too many visitors");
        }
    };
    let visited = Visited {
        port_id: found.port_id,
        visitor: peer.address,
        local: peer.local,
        kind: VisitKind::Passthrough,
        name: Some(name),
        alpn: None,
    };
    run.relay_visitor(stream, visited, admission, entry);
    Ok(())
}
