//! The listener for the agents' data connections: TLS handshake, proof of a lease (attach), and then the wait
//! for a visitor as an idle connection.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use culvert_wire::data::{ATTACHED, Attach, FENCED, read_frame};
use culvert_wire::socket;
use rustls::ServerConfig;
use rustls::server::Acceptor;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

use super::bounds::Bound;
use super::session::SessionRelay;
use super::{Shared, lock};
use culvert_wire::unproven::Unproven;

/// How long a connection may take to send its ClientHello. An agent sends it at once.
const HELLO_WITHIN: Duration = Duration::from_secs(3);
/// How long a connection may take to prove its lease, counted from its acceptance.
const ATTACH_WITHIN: Duration = Duration::from_secs(10);
/// How long to wait after a failed accept, for example when no file descriptor is free.
pub(super) const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

pub(crate) fn open(shared: Arc<Shared>, listener: TcpListener, tls: Arc<ServerConfig>) {
    let bounds = shared.bounds.clone();
    let (most, per_address) = (bounds.unproven, bounds.unproven_per_address);
    let unproven = Unproven::new(most, per_address, move || bounds.refused(Bound::Unproven));
    let tasks = shared.tasks.clone();
    tasks.spawn(async move {
        let stop = shared.stop.clone();
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                accepted = listener.accept() => accepted,
            };
            let Ok((stream, address)) = accepted else {
                shared.clock.sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            };
            let entry = unproven.enter(address.ip());
            let (shared, tls) = (shared.clone(), tls.clone());
            tokio::spawn(async move {
                let admitted = shared.clock.timeout(ATTACH_WITHIN, admit(&shared, tls, stream));
                let admitted = entry.evicted.run_until_cancelled(admitted).await;
                drop(entry);
                match admitted {
                    Some(Ok(Ok(Some((run, connection))))) => run.add_idle_connection(connection),
                    Some(Ok(Ok(None))) => {}
                    Some(Ok(Err(error))) => tracing::debug!(%error, "an agent's connection was not taken"),
                    Some(Err(_)) => tracing::debug!("an agent's connection did not attach in time"),
                    None => tracing::debug!("an agent's connection had to go before it attached"),
                }
            });
        }
    });
}

/// Performs TLS handshake and attach. Returns the session relay for the connection; `None` if its lease does
/// not hold.
async fn admit(
    shared: &Shared,
    tls: Arc<ServerConfig>,
    stream: TcpStream,
) -> io::Result<Option<(Arc<SessionRelay>, TlsStream<TcpStream>)>> {
    socket::prepare(&stream)?;
    let hello = LazyConfigAcceptor::new(Acceptor::default(), stream);
    let hello = shared.clock.timeout(HELLO_WITHIN, hello).await;
    let hello = hello.map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "it did not begin in time"))??;
    let mut connection = hello.into_stream(tls).await?;
    let attach: Attach = read_frame(&mut connection).await?;
    let run = lock(&shared.tunnels).get(&attach.tunnel_id).map(super::Tunnel::run);
    let answer = run.as_ref().map_or(FENCED, |run| run.admit(&attach, shared));
    connection.write_all(&[answer]).await?;
    connection.flush().await?;
    if let Some(run) = run.filter(|_| answer == ATTACHED) {
        Ok(Some((run, connection)))
    } else {
        connection.shutdown().await?;
        Ok(None)
    }
}
