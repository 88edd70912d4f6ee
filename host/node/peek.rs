//! Looking at what a connection begins with, without taking it.

use std::io;

use rustix::net::{RecvFlags, recv};
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Waits until `look` can tell what the first bytes are. It says `WouldBlock` while they are too few.
///
/// # Errors
///
/// `UnexpectedEof` if no more will come; what `look` says else.
pub(crate) async fn peek<T>(
    stream: &TcpStream,
    longest: usize,
    mut look: impl FnMut(&[u8]) -> io::Result<T>,
) -> io::Result<T> {
    let mut space = vec![0; longest];
    loop {
        let ready = stream.ready(Interest::READABLE).await?;
        let looked = stream.try_io(Interest::READABLE, || match recv(stream, &mut space[..], RecvFlags::PEEK)? {
            (_, 0) => Err(io::ErrorKind::UnexpectedEof.into()),
            (_, seen) => look(&space[..seen]),
        });
        match looked {
            // A stream that has ended stays ready.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && ready.is_read_closed() => {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            looked => return looked,
        }
    }
}
