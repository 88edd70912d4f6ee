//! Options of the sockets that carry visitors.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};

/// Idle time before the first keepalive probe. A peer that vanished is detected after 15 + 3 × 5
/// seconds of silence, so that dead connections do not stay among the waiting ones for long.
const KEEPALIVE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 3;
/// Bytes that wait in a socket that carries datagrams (`TCP_NOTSENT_LOWAT`).
const UNSENT: u32 = 32 * 1024;

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

/// Has the connections that a listener accepts send data at once, as [`prepare`] does for one: on Linux they inherit the option.
///
/// # Errors
///
/// Where the operating system refuses it.
pub fn accept_without_delay(listener: &TcpListener) -> io::Result<()> {
    SockRef::from(listener).set_tcp_nodelay(true)
}

/// Makes the connection end with a reset when it is closed, so that truncated data does not look
/// complete.
pub fn reset(stream: &TcpStream) {
    // Best effort: if it fails, the peer sees a normal end instead.
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}

/// Keeps little in the socket of what is not sent yet, so that what waits can still be dropped.
///
/// # Errors
///
/// Where the operating system refuses the option.
pub fn keep_little_unsent(stream: &TcpStream) -> io::Result<()> {
    SockRef::from(stream).set_tcp_notsent_lowat(UNSENT)
}

/// Binds a UDP socket with buffers of so many bytes, or as many as the system allows. Returns how many these are.
///
/// # Errors
///
/// Where the address cannot be bound.
pub fn bind_udp(address: SocketAddr, buffers: usize) -> io::Result<(UdpSocket, usize)> {
    let socket = UdpSocket::bind(address)?;
    let options = SockRef::from(&socket);
    options.set_recv_buffer_size(buffers)?;
    options.set_send_buffer_size(buffers)?;
    let least = options.recv_buffer_size()?.min(options.send_buffer_size()?);
    Ok((socket, least))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn accepted_connection_sends_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        accept_without_delay(&listener).unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        assert!(listener.accept().await.unwrap().0.nodelay().unwrap());
    }
}
