//! The TLS connections that carry datagrams where there is no QUIC.

use std::sync::Arc;
use std::time::Duration;

use culvert_wire::data2::attach::LaneKind;
use culvert_wire::data2::lane::TlsLane;

use super::pool::{RETRY_FIRST, RETRY_MOST, Shared};
use super::quic::QuicState;

/// How long a connection stays when QUIC has taken over.
const LINGER: Duration = Duration::from_secs(2);

impl Shared {
    /// Keeps one connection for as long as a tunnel takes datagrams and QUIC does not carry them.
    pub(super) async fn keep_lane(self: Arc<Self>) {
        let mut retry = RETRY_FIRST;
        loop {
            self.until_wanted(true).await;
            tokio::select! {
                carried = self.carry() => retry = if carried { RETRY_FIRST } else { (retry * 2).min(RETRY_MOST) },
                () = self.until_unused() => continue,
            }
            let clock = &self.visits.clock;
            tokio::select! {
                () = clock.sleep(retry + clock.jitter(retry)) => {}
                () = self.node_is_back.notified() => {}
            }
        }
    }

    /// Waits until a connection is no longer wanted, and what was on its way on it has arrived.
    async fn until_unused(&self) {
        self.until_wanted(false).await;
        self.visits.clock.sleep(LINGER).await;
    }

    /// Waits until a connection for datagrams is wanted, or is not.
    async fn until_wanted(&self, wanted: bool) {
        let (mut datagrams, mut quic) = (self.visits.served.datagrams(), self.quic.states());
        loop {
            let has_quic = *quic.borrow_and_update() == QuicState::Connected;
            if (*datagrams.borrow_and_update() && !has_quic) == wanted {
                return;
            }
            // They cannot fail: the senders live as long as `self`.
            tokio::select! {
                _ = datagrams.changed() => {}
                _ = quic.changed() => {}
            }
        }
    }

    /// Carries datagrams on a new connection until it ends. Returns whether it was attached.
    async fn carry(&self) -> bool {
        let token = self.token.borrow().clone();
        let mut connection = match Box::pin(self.attach(token, LaneKind::Datagrams)).await {
            Ok(Ok((connection, ..))) => connection,
            Ok(Err(denied)) => {
                tracing::debug!(code = %denied.code, "the node has denied a connection for datagrams");
                return false;
            }
            Err(error) => {
                tracing::debug!(%error, "the node did not answer");
                return false;
            }
        };
        if let Err(error) = connection.get_ref().keep_little_unsent() {
            tracing::debug!(%error, "an option of a connection for datagrams was refused");
        }
        let lane = TlsLane::new(self.visits.clock.clone());
        let _used = self.flows.use_tls(&lane);
        tracing::debug!("datagrams go over TLS");
        let ended = lane.run(&mut connection, &self.flows.receiver()).await;
        tracing::debug!(?ended, "a connection for datagrams has ended");
        true
    }
}
