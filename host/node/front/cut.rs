//! What ends a visitor's connection although neither side has ended it: the exchange on it has to be cut.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
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
pub(super) struct CutSlot {
    cut: Mutex<Option<BoxFuture<'static, io::Error>>>,
    /// Whether an answer has not been passed on completely. If the connection ends now, it must not look complete.
    is_under_way: AtomicBool,
}

impl CutSlot {
    /// Cuts the connection when changed rules deny the visitor, the run ends, or nothing moves any longer.
    pub(super) fn arm(self: &Arc<Self>, out: CancellationToken, activity: Arc<Activity>, idle: Duration) -> Armed {
        let silence = activity.clone().silence(idle);
        let cut = async move {
            tokio::select! {
                () = out.cancelled() => io::ErrorKind::ConnectionAborted.into(),
                () = silence => io::ErrorKind::TimedOut.into(),
            }
        };
        *lock(&self.cut) = Some(cut.boxed());
        self.is_under_way.store(true, Ordering::Relaxed);
        Armed { slot: self.clone(), activity, idle }
    }

    pub(super) fn poll(&self, context: &mut Context<'_>) -> Poll<io::Error> {
        match &mut *lock(&self.cut) {
            Some(cut) => cut.as_mut().poll(context),
            None => Poll::Pending,
        }
    }

    pub(super) fn is_under_way(&self) -> bool {
        self.is_under_way.load(Ordering::Relaxed)
    }
}

/// An exchange that can be cut.
pub(super) struct Armed {
    slot: Arc<CutSlot>,
    activity: Arc<Activity>,
    idle: Duration,
}

impl Armed {
    /// The answer has been passed on completely. The visitor may not have taken the last of it, so that silence still
    /// ends the connection; the next exchange has a cut of its own.
    pub(super) fn complete(&self) {
        self.slot.is_under_way.store(false, Ordering::Relaxed);
        let silence = self.activity.clone().silence(self.idle);
        *lock(&self.slot.cut) = Some(silence.map(|()| io::ErrorKind::TimedOut.into()).boxed());
    }
}
