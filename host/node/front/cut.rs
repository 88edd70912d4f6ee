//! Bodies on a connection of HTTP/2, each of which is cut alone.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, SizeHint};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::activity::Activity;
use super::exchanges::Exchanges;
use crate::lock;

/// Ends when an exchange has to be cut: changed rules deny the visitor, the run ends, or nothing moves any longer.
async fn cut(out: CancellationToken, activity: Arc<Activity>, idle: Duration) {
    tokio::select! {
        () = out.cancelled() => {}
        () = activity.silence(idle) => {}
    }
}

/// How long a stream of HTTP/2 may be there after it was cut. Then its connection ends.
const LET_GO_WITHIN: Duration = Duration::from_secs(10);

/// A body on a connection of HTTP/2, where the other exchanges go on when it is cut. What it holds of the service is
/// let go at once, even while its visitor takes nothing.
pub(super) struct CutBody<B> {
    state: Arc<Mutex<CutState<B>>>,
    _cut: AbortOnDropHandle<()>,
}

struct CutState<B> {
    /// `None` after the cut.
    body: Option<B>,
    waker: Option<Waker>,
}

impl<B: Body<Data = Bytes, Error = io::Error> + Send + Unpin + 'static> CutBody<B> {
    pub(super) fn new(
        body: B,
        exchanges: Arc<Exchanges>,
        out: CancellationToken,
        activity: Arc<Activity>,
        idle: Duration,
    ) -> Self {
        let state = Arc::new(Mutex::new(CutState { body: Some(body), waker: None }));
        let cut_state = state.clone();
        let cut = tokio::spawn(async move {
            cut(out, activity, idle).await;
            let (body, waker) = {
                let mut state = lock(&cut_state);
                (state.body.take(), state.waker.take())
            };
            drop(body);
            waker.into_iter().for_each(Waker::wake);
            // hyper asks for no more of an answer while its visitor takes nothing. Then this is not dropped.
            exchanges.clock().sleep(LET_GO_WITHIN).await;
            exchanges.stuck();
        });
        Self { state, _cut: AbortOnDropHandle::new(cut) }
    }
}

impl<B: Body<Data = Bytes, Error = io::Error> + Unpin> Body for CutBody<B> {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let mut state = lock(&self.state);
        let Some(body) = &mut state.body else {
            return Poll::Ready(Some(Err(io::ErrorKind::ConnectionAborted.into())));
        };
        let polled = Pin::new(body).poll_frame(context);
        if polled.is_pending() {
            state.waker = Some(context.waker().clone());
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        lock(&self.state).body.as_ref().is_some_and(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        lock(&self.state).body.as_ref().map_or_else(SizeHint::default, Body::size_hint)
    }
}
