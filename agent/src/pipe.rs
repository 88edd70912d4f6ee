//! Bytes both ways between two streams, until both directions have ended.
//!
//! What one side ends with a clean end of its direction, the other side gets as one, while the
//! opposite direction goes on. A slow reader holds up only its writer: there is one buffer a
//! direction and nothing is read while it is full. An error, or silence both ways for too long,
//! ends the whole.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::clock::{Clock, Moment};

/// What one pipe is bounded by.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of each direction's buffer.
    pub buffer_size: usize,
    /// Silence in both directions after which the pipe ends.
    pub idle_timeout: Duration,
}

/// Bytes that have been read on either side, counted while they flow.
#[derive(Debug, Default)]
pub struct Counters {
    /// Read from the first stream.
    pub forth: AtomicU64,
    /// Read from the second stream.
    pub back: AtomicU64,
}

/// Carries bytes between two streams.
///
/// # Errors
///
/// Whatever ends the pipe before both directions have ended; `TimedOut` where it was silent.
pub async fn run<A, B>(a: &mut A, b: &mut B, limits: Limits, counters: &Counters, clock: &Clock) -> io::Result<()>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let mut forth = Direction::new(limits.buffer_size);
    let mut back = Direction::new(limits.buffer_size);
    let active = AtomicU64::new(0);
    let both = poll_fn(|context| {
        let one = forth.poll(context, a, b, &counters.forth, &active);
        let other = back.poll(context, b, a, &counters.back, &active);
        match (one, other) {
            (Poll::Ready(Err(error)), _) | (_, Poll::Ready(Err(error))) => Poll::Ready(Err(error)),
            (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => Poll::Ready(Ok(())),
            _ => Poll::Pending,
        }
    });
    tokio::select! {
        biased;
        ended = both => ended,
        () = silence(limits.idle_timeout, &active, clock) => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// Ends when nothing has moved for a whole timeout.
async fn silence(timeout: Duration, active: &AtomicU64, clock: &Clock) {
    let mut seen = active.load(Ordering::Relaxed);
    let mut since: Moment = clock.moment();
    // Half the time between two looks would do for a bound; a quarter keeps it close.
    let step = (timeout / 4).max(Duration::from_millis(1));
    loop {
        clock.until(clock.moment().plus(step)).await;
        let now = active.load(Ordering::Relaxed);
        if now != seen {
            (seen, since) = (now, clock.moment());
        } else if clock.moment().since(since) >= timeout {
            return;
        }
    }
}

/// Bytes that a direction's buffer begins with: most connections say little at a time.
const FIRST_BUFFER: usize = 8 * 1024;

/// One direction: what was read and is not yet written.
struct Direction {
    buffer: Vec<u8>,
    largest: usize,
    start: usize,
    end: usize,
    state: State,
}

enum State {
    Open,
    /// The reader has ended; what is left is written, then the writer is shut down.
    Ending,
    Ended,
}

impl Direction {
    fn new(size: usize) -> Self {
        Self { buffer: vec![0; size.min(FIRST_BUFFER)], largest: size, start: 0, end: 0, state: State::Open }
    }

    fn poll<R, W>(
        &mut self,
        context: &mut Context<'_>,
        reader: &mut R,
        writer: &mut W,
        counter: &AtomicU64,
        active: &AtomicU64,
    ) -> Poll<io::Result<()>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        loop {
            if matches!(self.state, State::Ended) {
                return Poll::Ready(Ok(()));
            }
            while self.start < self.end {
                let left = &self.buffer[self.start..self.end];
                let written = ready!(Pin::new(&mut *writer).poll_write(context, left))?;
                if written == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                self.start += written;
                active.fetch_add(1, Ordering::Relaxed);
            }
            if self.end == self.buffer.len() && self.end < self.largest {
                // The last read filled it, so there is more to come.
                self.buffer.resize((self.end * 4).min(self.largest), 0);
            }
            if matches!(self.state, State::Ending) {
                ready!(Pin::new(&mut *writer).poll_shutdown(context))?;
                self.state = State::Ended;
                continue;
            }
            let mut space = ReadBuf::new(&mut self.buffer);
            if Pin::new(&mut *reader).poll_read(context, &mut space)?.is_pending() {
                // Nothing more to come for now: let go of what the writer holds back.
                ready!(Pin::new(&mut *writer).poll_flush(context))?;
                return Poll::Pending;
            }
            let read = space.filled().len();
            (self.start, self.end) = (0, read);
            counter.fetch_add(read as u64, Ordering::Relaxed);
            active.fetch_add(1, Ordering::Relaxed);
            if read == 0 {
                self.state = State::Ending;
            }
        }
    }
}
