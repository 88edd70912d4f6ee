//! The listener for the agents' connections of QUIC: handshake, and then proof of a device (attach).

use std::io;
use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Duration;

use culvert_wire::data2::connection::Connection;
use culvert_wire::data2::lane;
use culvert_wire::data2::transport::Transport;
use culvert_wire::quic::{self, QuicStream};
use quinn::{ConnectionError, Endpoint, EndpointConfig, Incoming, ServerConfig, TokioRuntime};
use tokio_util::future::FutureExt;

use super::Shared;
use super::agent_listener::{ATTACH_WITHIN, ATTACHED_HERE, deny, proven};

/// From so many connections that have not attached on, an address has to prove itself before its handshake (Retry, RFC
/// 9000, section 8.1.2); from fewer where one address may have fewer.
const RETRY_FROM: usize = 64;
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
    let unproven = shared.bounds.unproven_entries();
    let (tasks, bounds) = (shared.tasks.clone(), shared.bounds.clone());
    let retry_from = RETRY_FROM.min(bounds.unproven_per_address / 2) as u64;
    tasks.spawn(async move {
        let stop = shared.stop.clone();
        while let Some(Some(incoming)) = endpoint.accept().with_cancellation_token(&stop).await {
            // Those that were closed stay for a moment.
            if endpoint.open_connections() as u64 > shared.counts.quic.get() + 2 * bounds.unproven as u64 {
                incoming.ignore();
                continue;
            }
            if shared.counts.unproven.get() >= retry_from && incoming.may_retry() {
                // This cannot fail: it was asked.
                let _ = incoming.retry();
                continue;
            }
            let entry = unproven.enter(incoming.remote_address().ip());
            shared.counts.unproven.enter();
            let shared = shared.clone();
            tokio::spawn(async move {
                let admitted = shared.clock.timeout(ATTACH_WITHIN, admit(&shared, incoming));
                let admitted = admitted.with_cancellation_token(&entry.evicted).await;
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
    // What comes before the attach is for nobody.
    let proven = tokio::select! {
        proven = proven(shared, &mut first) => proven?,
        error = discard_datagrams(&connection) => return Err(error.into()),
    };
    match proven.and_then(|(process, _)| shared.carriers.find(process)) {
        Ok(pool) => {
            connection.set_receive_window(quic::CONNECTION_WINDOW);
            pool.use_quic(connection.clone());
            let (receiver, pool) = (pool.receiver(), Arc::downgrade(&pool));
            let clock = shared.clock.clone();
            tokio::spawn(async move {
                if let Err(error) = first.send(&ATTACHED_HERE).await {
                    tracing::debug!(%error, "an agent was not told that its connection is taken");
                }
                let ended = lane::receive(&connection, &clock, receiver).await;
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

async fn discard_datagrams(connection: &quinn::Connection) -> ConnectionError {
    loop {
        if let Err(error) = connection.read_datagram().await {
            return error;
        }
    }
}
