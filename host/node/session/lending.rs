//! Visits that are lent: somebody else carries their bytes.

use std::io;
use std::sync::Arc;

use tokio::io::AsyncReadExt;
use tokio::sync::oneshot;
use tokio_util::future::FutureExt;

use super::{END_WITHIN, STREAM_END_WITHIN, SessionRelay, VISITOR_WAIT, VisitCarrier, Visited, Work};
use crate::carriers::Carrier;

impl SessionRelay {
    /// Begins a visit whose bytes somebody else carries, and who gives it back by [`SessionRelay::take_back`].
    ///
    /// # Errors
    ///
    /// `TimedOut` if the agent brings no connection in time, another error if the tunnel is offline.
    pub(crate) async fn lend(&self, visited: Visited) -> io::Result<VisitCarrier> {
        let since = self.clock.moment();
        let carrier = self.clock.timeout(VISITOR_WAIT, self.borrow()).with_cancellation_token(&self.ended);
        let carrier = match carrier.await {
            Some(Ok(carrier)) => carrier?,
            Some(Err(_)) => return Err(io::ErrorKind::TimedOut.into()),
            None => return Err(io::ErrorKind::ConnectionAborted.into()),
        };
        self.begin_visit(carrier, visited, since)
    }

    /// As [`SessionRelay::lend`], at once and on a warm connection; `None` where there is none.
    pub(crate) async fn lend_warm(&self, visited: Visited) -> Option<VisitCarrier> {
        let since = self.clock.moment();
        let (borrower, warm) = oneshot::channel();
        self.pool()?.offer_warm(Work::Lend(borrower)).ok()?;
        self.begin_visit(warm.await.ok()?, visited, since).ok()
    }

    async fn borrow(&self) -> io::Result<Carrier> {
        self.ready.wait().await;
        loop {
            let pool = self.pool().filter(|_| !self.lease_connections.is_used());
            let pool = pool.ok_or(io::ErrorKind::ConnectionAborted)?;
            let (borrower, warm) = oneshot::channel();
            let carrier = match pool.offer(Work::Lend(borrower)) {
                Ok(()) => warm.await.ok(),
                Err((_, next)) => next.await,
            };
            if let Some(carrier) = carrier {
                return Ok(carrier);
            }
        }
    }

    /// Takes back a visit whose direction to the service has ended regularly. The service has a while to end the other one.
    pub(crate) fn take_back_ending(self: Arc<Self>, mut stream: VisitCarrier) {
        tokio::spawn(async move {
            let mut byte = [0];
            let within = if stream.is_single() { STREAM_END_WITHIN } else { END_WITHIN };
            let end = self.clock.timeout(within, stream.read(&mut byte));
            // If a byte comes instead, the visit is cut.
            let _ = end.with_cancellation_token(&self.ended).await;
            self.take_back(stream);
        });
    }
}
