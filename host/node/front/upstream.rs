//! A connection to a local service: a visit, on which requests follow each other.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};

use culvert_wire::clock::Clock;
use futures_util::FutureExt as _;
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1};
use hyper::{Request, Response};
use tokio_util::future::FutureExt as _;
use uuid::Uuid;

use super::body::Body;
use super::lent::Outcome;
use crate::session::{END_WITHIN, SessionRelay};

/// The service behind a port of a run.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Service {
    pub session_id: Uuid,
    pub port_id: Option<Uuid>,
    pub target_version: u64,
}

/// A service, and the visitor if it is told who that is. Connections of others are never used for it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub service: Service,
    pub visitor: Option<SocketAddr>,
}

/// A connection of HTTP/1.1 to a service. Whoever waits for its bytes moves them, which saves two changes of tasks with
/// each request.
pub(super) struct Upstream {
    pub sender: http1::SendRequest<Body>,
    /// `None` if the connection has a task of its own, or has ended.
    pub driver: Option<Driver>,
    pub outcome: Arc<Outcome>,
}

/// Moves the bytes of a connection until it or the run ends.
pub(super) type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Upstream {
    /// Moves the bytes that can be moved now.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) {
        if let Some(driver) = &mut self.driver
            && driver.as_mut().poll(context).is_ready()
        {
            self.driver = None;
        }
    }

    pub(super) async fn send(
        &mut self,
        request: Request<Body>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Body>>> {
        let mut answer = pin!(self.sender.try_send_request(request));
        poll_fn(|context| {
            self.poll(context);
            answer.as_mut().poll(context)
        })
        .await
    }

    /// Whether it can take a request now.
    pub(super) fn is_ready(&mut self) -> bool {
        self.poll(&mut Context::from_waker(Waker::noop()));
        self.sender.is_ready()
    }

    /// Waits until it can take a request; false if it has ended.
    pub(super) async fn ready(&mut self) -> bool {
        let ready = poll_fn(|context| {
            self.poll(context);
            self.sender.poll_ready(context)
        });
        ready.await.is_ok()
    }

    /// Gives the connection a task of its own, where nobody will wait for its bytes.
    pub(super) fn detach(&mut self) {
        self.driver.take().map(tokio::spawn);
    }

    /// Ends a connection on which nothing is under way.
    pub(super) fn end(self, clock: &Clock) {
        let Self { sender, driver, outcome } = self;
        outcome.is_ending.store(true, Ordering::Relaxed);
        // Without it, hyper ends the connection.
        drop(sender);
        if let Some(driver) = driver {
            let clock = clock.clone();
            tokio::spawn(async move { clock.timeout(END_WITHIN, driver).await });
        }
    }
}

/// Moves the bytes of a connection until it or the run ends.
pub(super) fn driver(
    run: &SessionRelay,
    connection: impl Future<Output = hyper::Result<()>> + Send + 'static,
) -> impl Future<Output = ()> + Send + 'static {
    connection.with_cancellation_token_owned(run.ended()).map(|ended| {
        if let Some(Err(error)) = ended {
            tracing::debug!(%error, "a connection to a service has ended");
        }
    })
}
