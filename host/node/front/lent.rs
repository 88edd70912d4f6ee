//! Visits that are lent to hyper, and what becomes of them.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use culvert_wire::data2::visit::{Accepted, RefusalCode};
use culvert_wire::data2::waiters::Waiters;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;

use super::pages::Page;
use crate::session::{SessionRelay, VisitCarrier, Visited};

/// A visit on which nothing was sent.
///
/// # Errors
///
/// The answer for the visitor.
pub(super) async fn lend(run: &Arc<SessionRelay>, visited: Visited) -> Result<Begun, Page> {
    let stream = run.lend(visited).await.map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => Page::DEVICE_TIMEOUT,
        _ => Page::TUNNEL_OFFLINE,
    })?;
    Ok(begin(run, stream))
}

/// As [`lend`], on a warm connection; `None` where there is none.
pub(super) async fn lend_warm(run: &Arc<SessionRelay>, visited: Visited) -> Option<Begun> {
    Some(begin(run, run.lend_warm(visited).await?))
}

fn begin(run: &Arc<SessionRelay>, stream: VisitCarrier) -> Begun {
    let outcome = Arc::new(Outcome {
        is_single: stream.is_single(),
        is_ending: AtomicBool::new(false),
        accepted: stream.accepted(),
        waiters: stream.waiters().cloned(),
        refusal: OnceLock::new(),
        spoken: watch::Sender::new(Spoken::Nothing),
    });
    (Lent { run: run.clone(), stream: Some(stream), outcome: outcome.clone(), is_begun: false }, outcome)
}

/// A visit, and what becomes of it.
pub(super) type Begun = (Lent, Arc<Outcome>);

/// What became of a visit.
pub(super) struct Outcome {
    /// Whether it is the only visit of its connection, a stream of QUIC.
    pub is_single: bool,
    /// Whether the node ends it while nothing is under way.
    pub is_ending: AtomicBool,
    accepted: Arc<OnceLock<Accepted>>,
    /// The visitors who wait for a connection of the agent.
    waiters: Option<Arc<Waiters>>,
    refusal: OnceLock<RefusalCode>,
    pub spoken: watch::Sender<Spoken>,
}

impl Outcome {
    pub(super) fn is_accepted(&self) -> bool {
        self.accepted.get().is_some()
    }

    /// Whether a service over TLS has chosen a protocol.
    pub(super) fn has_chosen(&self, protocol: &str) -> bool {
        self.accepted.get().is_some_and(|accepted| accepted.alpn.as_deref() == Some(protocol))
    }

    /// Whether the agent has connected to this target of the run.
    pub(super) fn leads_to(&self, target_version: u64) -> bool {
        self.accepted.get().is_some_and(|accepted| accepted.target_version == target_version)
    }

    /// Whether visitors wait for its stream of QUIC. Connections of TLS are dialled for them.
    pub(super) fn is_wanted(&self) -> bool {
        self.is_single && self.waiters.as_ref().is_some_and(|waiters| waiters.count() > 0)
    }

    /// Why the agent has refused the visit.
    pub(super) fn refusal(&self) -> Option<&RefusalCode> {
        self.refusal.get()
    }
}

/// With which an alert of TLS begins (RFC 8446, section 5.1). Many services over TLS answer with one to anything else.
const TLS_ALERT: [u8; 2] = [0x15, 0x03];

/// What a service has begun with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spoken {
    Nothing,
    /// The end of the connection.
    End,
    /// `HTTP/1`.
    Http1,
    /// Something else, as a frame of HTTP/2.
    Other,
}

/// A visit that is lent to hyper. Its end gives the data connection back.
pub(super) struct Lent {
    run: Arc<SessionRelay>,
    stream: Option<VisitCarrier>,
    outcome: Arc<Outcome>,
    /// Whether the service has said something, or has ended.
    is_begun: bool,
}

impl Lent {
    /// Waits until the agent has accepted the visit.
    pub(super) async fn until_accepted(&mut self) -> io::Result<()> {
        let stream = self.stream.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        let accepted = stream.until_accepted().await;
        self.note_refusal();
        accepted
    }

    fn note_refusal(&self) {
        if let Some(refused) = self.stream.as_ref().and_then(VisitCarrier::refusal) {
            let _ = self.outcome.refusal.set(refused.code.clone());
        }
    }

    fn stream(&mut self) -> io::Result<Pin<&mut VisitCarrier>> {
        self.stream.as_mut().map(Pin::new).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(stream) = self.stream.take() {
            let run = self.run.clone();
            // hyper ends its direction also where an answer was cut short.
            if self.outcome.is_ending.load(Ordering::Relaxed) && stream.is_half_ended() {
                run.take_back_ending(stream);
            } else {
                run.take_back(stream);
            }
        }
    }
}

impl AsyncRead for Lent {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, space: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = space.filled().len();
        let polled = self.stream()?.poll_read(context, space);
        if matches!(polled, Poll::Ready(Err(_))) {
            self.note_refusal();
        }
        if !self.is_begun && polled.is_ready() {
            self.is_begun = true;
            let begin = &space.filled()[before..];
            if begin.starts_with(&TLS_ALERT) {
                self.run.note_unexpected_tls();
            }
            self.outcome.spoken.send_replace(match begin {
                [] => Spoken::End,
                _ if begin.starts_with(b"HTTP") || b"HTTP".starts_with(begin) => Spoken::Http1,
                _ => Spoken::Other,
            });
        }
        polled
    }
}

impl AsyncWrite for Lent {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.stream()?.poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_shutdown(context)
    }
}
