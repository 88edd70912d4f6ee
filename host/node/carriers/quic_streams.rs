//! Streams of an agent's connection of QUIC, one for each visit.

use std::sync::Arc;

use culvert_wire::data2::connection::Connection;
use culvert_wire::data2::transport::Transport;
use culvert_wire::quic::{self, QuicStream, VISITS};
use futures_util::FutureExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

#[derive(Clone)]
pub(super) struct QuicStreams {
    connection: quinn::Connection,
    places: Arc<Semaphore>,
}

impl QuicStreams {
    pub(super) fn new(connection: quinn::Connection) -> Self {
        Self { connection, places: Arc::new(Semaphore::new(VISITS)) }
    }

    pub(super) fn are_of(&self, connection: &quinn::Connection) -> bool {
        self.connection.stable_id() == connection.stable_id()
    }

    /// Opens one, if that is possible at once.
    pub(super) fn open_now(&self) -> Option<Connection<Transport>> {
        let place = self.places.clone().try_acquire_owned().ok()?;
        self.open_in(place).now_or_never().flatten()
    }

    /// Opens one as soon as fewer than [`VISITS`] are open; `None` if the connection has ended then.
    pub(super) async fn open(&self) -> Option<Connection<Transport>> {
        let place = self.places.clone().acquire_owned().await.ok()?;
        self.open_in(place).await
    }

    async fn open_in(&self, place: OwnedSemaphorePermit) -> Option<Connection<Transport>> {
        match self.connection.open_bi().await {
            Ok(stream) => Some(Connection::single(Transport::Quic(QuicStream::in_place(stream, place)))),
            Err(error) => {
                tracing::debug!(%error, "a connection of QUIC has ended");
                None
            }
        }
    }

    pub(super) fn close(&self, reason: &[u8]) {
        self.connection.close(quic::REGULAR, reason);
    }
}
