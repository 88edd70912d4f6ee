//! The listener for the agents' connections of QUIC: handshake, and then proof of a device (attach).

use std::io;
use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Duration;

use culvert_wire::data2::connection::Connection;
use culvert_wire::data2::transport::Transport;
use culvert_wire::quic::{self, QuicStream};
use quinn::{Endpoint, EndpointConfig, Incoming, ServerConfig, TokioRuntime};

use super::Shared;
use super::agent_listener::{ATTACH_WITHIN, ATTACHED_HERE, deny, proven};

/// From so many connections that have not attached on, an address has to prove itself before its handshake (Retry, RFC
/// 9000, section 8.1.2).
const RETRY_FROM: u64 = 64;
/// How long the connections may take to end when the node stops.
const CLOSED_WITHIN: Duration = Duration::from_secs(1);

/// Accepts agents until the node stops.
///
/// # Errors
///
/// Where the operating system refuses an option of the socket.
pub(crate) fn open(
    shared: Arc<Shared>,
    socket: UdpSocket,
    endpoint: EndpointConfig,
    server: ServerConfig,
) -> io::Result<()> {
    let endpoint = Endpoint::new(endpoint, Some(server), socket, Arc::new(TokioRuntime))?;
    let unproven = shared.bounds.unproven();
    let tasks = shared.tasks.clone();
    tasks.spawn(async move {
        let stop = shared.stop.clone();
        while let Some(Some(incoming)) = stop.run_until_cancelled(endpoint.accept()).await {
            if shared.counts.unproven.get() >= RETRY_FROM && incoming.may_retry() {
                // This cannot fail: it was asked.
                let _ = incoming.retry();
                continue;
            }
            let entry = unproven.enter(incoming.remote_address().ip());
            shared.counts.unproven.enter();
            let shared = shared.clone();
            tokio::spawn(async move {
                let admitted = shared.clock.timeout(ATTACH_WITHIN, admit(&shared, incoming));
                let admitted = entry.evicted.run_until_cancelled(admitted).await;
                drop(entry);
                shared.counts.unproven.leave();
                if !matches!(admitted, Some(Ok(Ok(())))) {
                    tracing::debug!(?admitted, "an agent's connection of QUIC was not taken");
                }
            });
        }
        endpoint.close(quic::REGULAR, b"the node stops");
        // The agents are told so.
        let _ = shared.clock.timeout(CLOSED_WITHIN, endpoint.wait_idle()).await;
    });
    Ok(())
}

/// Performs handshake and attach, and keeps the connection if it proves whose it is.
async fn admit(shared: &Shared, incoming: Incoming) -> io::Result<()> {
    let connection = incoming.await?;
    let first = QuicStream::new(connection.accept_bi().await?);
    let mut first = Connection::new(Transport::Quic(first));
    match proven(shared, &mut first).await?.and_then(|process| shared.carriers.find(process)) {
        Ok(pool) => {
            first.send(&ATTACHED_HERE).await?;
            pool.use_quic(connection.clone());
            let pool = Arc::downgrade(&pool);
            tokio::spawn(async move {
                let ended = connection.closed().await;
                tracing::debug!(%ended, "a connection of QUIC has ended");
                if let Some(pool) = pool.upgrade() {
                    pool.lose_quic(&connection);
                }
                drop(first);
            });
            Ok(())
        }
        Err(code) => {
            deny(first, code).await?;
            // The agent closes the connection when it has read why.
            connection.closed().await;
            Ok(())
        }
    }
}
