//! Bodies as they are passed on: every frame when it comes, counted.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http_body_util::combinators::UnsyncBoxBody;
use hyper::HeaderMap;
use hyper::body::{Body as _, Bytes, Frame, Incoming, SizeHint};

use super::activity::Activity;

pub(super) type Body = UnsyncBoxBody<Bytes, io::Error>;

/// What follows the bytes of a body.
pub(super) trait Observer: Send + 'static {
    fn count(&self, bytes: usize);

    /// Counts trailers, and takes out what must not be passed on.
    fn pass_trailers(&self, trailers: &mut HeaderMap);

    /// Notes whether more bytes are known to come. Without a length, whoever sends them may wait for an answer first.
    fn note_awaited(&self, _: bool) {}

    /// Moves the bytes of the connection that the body comes on, if that has no task of its own.
    fn drive(&mut self, _: &mut Context<'_>) {}

    /// The body has been passed on completely.
    fn complete(&mut self) {}
}

/// A body that is passed on.
pub(super) struct PassedBody<O> {
    body: Incoming,
    activity: Arc<Activity>,
    observer: O,
    /// How the body has failed. Whoever writes it passes on first what came before.
    failed: Option<hyper::Error>,
}

impl<O: Observer> PassedBody<O> {
    pub(super) fn new(body: Incoming, activity: Arc<Activity>, observer: O) -> Self {
        let mut passed = Self { body, activity, observer, failed: None };
        if passed.body.is_end_stream() {
            passed.observer.complete();
        }
        passed
    }
}

impl<O: Observer + Unpin> hyper::body::Body for PassedBody<O> {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let this = &mut *self;
        if let Some(error) = this.failed.take() {
            return Poll::Ready(Some(Err(io::Error::other(error))));
        }
        this.observer.drive(context);
        let polled = Pin::new(&mut this.body).poll_frame(context);
        this.observer.note_awaited(polled.is_pending() && this.body.size_hint().exact().is_some());
        let mut frame = match ready!(polled) {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => {
                this.failed = Some(error);
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            None => {
                this.observer.complete();
                return Poll::Ready(None);
            }
        };
        this.activity.note();
        if let Some(data) = frame.data_ref() {
            this.observer.count(data.len());
        } else if let Some(trailers) = frame.trailers_mut() {
            this.observer.pass_trailers(trailers);
        }
        // Nothing follows trailers.
        if frame.is_trailers() || this.body.is_end_stream() {
            this.observer.complete();
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
