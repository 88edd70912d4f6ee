//! Options of the TCP sockets that carry visitors.

use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// Idle time before the first keepalive probe. A peer that vanished is detected after 15 + 3 × 5
/// seconds of silence, so that dead connections do not stay among the waiting ones for long.
const KEEPALIVE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 3;

/// Raises the limit of open files to the highest that the system allows. Every visitor needs two
/// sockets, and many systems start with a limit of 1,024.
pub fn allow_many() {
    if let Err(error) = rlimit::increase_nofile_limit(u64::MAX) {
        tracing::warn!(%error, "the limit of open files could not be raised");
    }
}

/// Most files and sockets that this process may have open; `None` if there is no limit.
pub fn descriptor_limit() -> Option<u64> {
    rlimit::Resource::NOFILE.get_soft().ok().filter(|limit| *limit != rlimit::INFINITY)
}

/// Turns off Nagle's algorithm, so that data is sent at once, and turns on keepalive.
///
/// # Errors
///
/// Where the operating system refuses an option.
pub fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive =
        TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE_INTERVAL).with_retries(KEEPALIVE_RETRIES);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

/// Makes the connection end with a reset when it is closed, so that truncated data does not look
/// complete.
pub fn reset(stream: &TcpStream) {
    // Best effort: if it fails, the peer sees a normal end instead.
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}
