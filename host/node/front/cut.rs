//! What ends a visitor's connection although neither side has ended it: the exchange on it has to be cut.

use std::io;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use super::body::Activity;
use crate::lock;

/// The cut of the exchange that is under way on a connection. The connection's task polls it, also while it waits for
/// a visitor who takes nothing.
#[derive(Default)]
pub(super) struct CutSlot(Mutex<Option<BoxFuture<'static, io::Error>>>);

impl CutSlot {
    /// Cuts the connection when changed rules deny the visitor, the run ends, or nothing moves any longer, until the
    /// guard is dropped.
    pub(super) fn arm(self: &Arc<Self>, out: CancellationToken, activity: Arc<Activity>, idle: Duration) -> Armed {
        let cut = async move {
            tokio::select! {
                () = out.cancelled() => io::ErrorKind::ConnectionAborted.into(),
                () = activity.silence(idle) => io::ErrorKind::TimedOut.into(),
            }
        };
        *lock(&self.0) = Some(cut.boxed());
        Armed(self.clone())
    }

    pub(super) fn poll(&self, context: &mut Context<'_>) -> Poll<io::Error> {
        match &mut *lock(&self.0) {
            Some(cut) => cut.as_mut().poll(context),
            None => Poll::Pending,
        }
    }
}

/// An exchange that can be cut.
pub(super) struct Armed(Arc<CutSlot>);

impl Drop for Armed {
    fn drop(&mut self) {
        lock(&self.0.0).take();
    }
}
