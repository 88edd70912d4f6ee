//! TCP sockets, set up for carrying visitors.

use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// A peer that vanished is noticed after 15 + 3 × 5 seconds of silence, so that no waiting
/// connection is a dead one for long.
const KEEPALIVE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 3;

/// Lets this process have as many sockets as the system allows it at all: every visitor takes two,
/// and many systems begin with 1,024.
pub fn allow_many() {
    if let Err(error) = rlimit::increase_nofile_limit(u64::MAX) {
        tracing::warn!(%error, "the limit of open files could not be raised");
    }
}

/// How many files and sockets this process may have open; none where there is no limit.
pub fn descriptor_limit() -> Option<u64> {
    rlimit::Resource::NOFILE.get_soft().ok().filter(|limit| *limit != rlimit::INFINITY)
}

/// Sends at once, and notices a peer that is gone.
///
/// # Errors
///
/// Where the operating system refuses.
pub fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive =
        TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE_INTERVAL).with_retries(KEEPALIVE_RETRIES);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

/// Ends a connection with a reset: what was cut short must not look complete.
pub fn reset(stream: &TcpStream) {
    // Best effort: where it fails, the peer sees an end instead.
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}
