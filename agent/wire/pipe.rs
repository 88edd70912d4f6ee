//! Copies bytes in both directions between two streams, until both directions have ended.
//!
//! When one side ends its direction cleanly, the other side sees a clean end, and the opposite
//! direction goes on. A slow reader delays only the writer that sends to it: each direction has one
//! buffer, and nothing is read while it is full. An error ends the pipe, and so does an idle timeout,
//! when no bytes move in either direction.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::clock::{Clock, Moment};

/// The limits of one pipe.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Largest size of each direction's buffer, in bytes.
    pub buffer_size: usize,
    /// The pipe ends after this time without bytes in either direction.
    pub idle_timeout: Duration,
}

/// Bytes read from each stream, counted while the pipe runs.
#[derive(Debug, Default)]
pub struct Counters {
    /// Read from the first stream.
    pub forth: AtomicU64,
    /// Read from the second stream.
    pub back: AtomicU64,
}

/// The bytes that the buffers of many pipes may take in total.
///
/// Every pipe gets its first buffers, even beyond the limit. Larger buffers are taken from the budget
/// only if enough is left, besides what the first buffers of other pipes may take; otherwise the pipe
/// keeps the buffers it has. All bytes are given back when the pipe rests or ends.
#[derive(Debug)]
pub struct Budget {
    most: usize,
    taken: AtomicUsize,
    /// What pipes without buffers take as soon as bytes come.
    promised: AtomicUsize,
}

impl Budget {
    pub fn new(most: usize) -> Self {
        Self { most, taken: AtomicUsize::new(0), promised: AtomicUsize::new(0) }
    }

    /// A budget without a limit, for callers that need none across their pipes.
    pub fn unlimited() -> Self {
        Self::new(usize::MAX)
    }

    /// The current size of all buffers, in bytes.
    pub fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    fn promise(&self, bytes: usize) {
        self.promised.fetch_add(bytes, Ordering::Relaxed);
    }

    fn end_promise(&self, bytes: usize) {
        self.promised.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn take_promised(&self, bytes: usize) {
        // In this order, so that the sum is never less than it should be.
        self.taken.fetch_add(bytes, Ordering::Relaxed);
        self.end_promise(bytes);
    }

    /// Takes bytes if so many are left, and returns whether it did.
    fn try_take(&self, bytes: usize) -> bool {
        let left = self.most.saturating_sub(self.promised.load(Ordering::Relaxed));
        let add = |taken: usize| taken.checked_add(bytes).filter(|sum| *sum <= left);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.taken.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// The counters and the budget that a pipe uses.
#[derive(Clone, Copy)]
pub struct Account<'a> {
    pub counters: &'a Counters,
    pub budget: &'a Budget,
}

/// Copies bytes between two streams.
///
/// # Errors
///
/// Whatever ends the pipe before both directions have ended; `TimedOut` after the idle timeout.
pub async fn run<A, B>(a: &mut A, b: &mut B, limits: Limits, account: Account<'_>, clock: &Clock) -> io::Result<()>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let Account { counters, budget } = account;
    let mut forth = Direction::new(limits.buffer_size, budget);
    let mut back = Direction::new(limits.buffer_size, budget);
    let active = Activity::new(clock);
    // Whether the buffers were given back since bytes last moved.
    let mut rests = false;
    loop {
        let (before, patience) =
            (active.last(), if rests { limits.idle_timeout } else { limits.idle_timeout.min(REST) });
        let moves = poll_fn(|context| {
            let one = forth.poll(context, a, b, &counters.forth, &active);
            let other = back.poll(context, b, a, &counters.back, &active);
            match (one, other) {
                (Poll::Ready(Err(error)), _) | (_, Poll::Ready(Err(error))) => Poll::Ready(Err(error)),
                (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => Poll::Ready(Ok(true)),
                _ if rests && active.last() != before => Poll::Ready(Ok(false)),
                _ => Poll::Pending,
            }
        });
        tokio::select! {
            biased;
            ended = moves => {
                if ended? {
                    return Ok(());
                }
                rests = false;
            }
            () = active.silence(patience) => {
                if patience == limits.idle_timeout {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                forth.rest();
                back.rest();
                rests = true;
            }
        }
    }
}

/// The time at which bytes last moved, in either direction.
struct Activity<'a> {
    clock: &'a Clock,
    start: Moment,
    /// In microseconds after `start`.
    last: AtomicU64,
}

impl<'a> Activity<'a> {
    fn new(clock: &'a Clock) -> Self {
        Self { clock, start: clock.moment(), last: AtomicU64::new(0) }
    }

    fn note(&self) {
        let since = self.clock.moment().since(self.start).as_micros();
        self.last.store(u64::try_from(since).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn last(&self) -> u64 {
        self.last.load(Ordering::Relaxed)
    }

    /// Waits until no bytes have moved for a whole timeout.
    async fn silence(&self, timeout: Duration) {
        loop {
            let end = self.start.plus(Duration::from_micros(self.last()) + timeout);
            if self.clock.moment() >= end {
                return;
            }
            self.clock.until(end).await;
        }
    }
}

/// Initial bytes of a direction's buffer. It is small, because most connections send little at a time.
const FIRST_BUFFER: usize = 8 * 1024;
/// Most bytes that are read while there is no buffer.
const FIRST_READ: usize = 1024;
/// How long a pipe keeps empty buffers after bytes have moved. Connections that are open and quiet need none.
const REST: Duration = Duration::from_secs(1);

/// One direction of a pipe, with the bytes that were read and not yet written.
struct Direction<'a> {
    budget: &'a Budget,
    /// Empty while the direction rests.
    buffer: Vec<u8>,
    /// Bytes of the buffer that it begins with.
    first: usize,
    largest: usize,
    start: usize,
    end: usize,
    state: State,
}

enum State {
    Open,
    /// The reader has ended. The remaining bytes are written, then the writer is shut down.
    Ending,
    Ended,
}

impl Drop for Direction<'_> {
    fn drop(&mut self) {
        if self.buffer.is_empty() {
            self.budget.end_promise(self.first);
        } else {
            self.budget.give_back(self.buffer.len());
        }
    }
}

impl<'a> Direction<'a> {
    fn new(size: usize, budget: &'a Budget) -> Self {
        let first = size.clamp(FIRST_READ, FIRST_BUFFER);
        budget.promise(first);
        Self { budget, buffer: Vec::new(), first, largest: size, start: 0, end: 0, state: State::Open }
    }

    /// Gives the buffer back, if no bytes are in it.
    fn rest(&mut self) {
        if self.start == self.end && !self.buffer.is_empty() {
            self.budget.promise(self.first);
            self.budget.give_back(self.buffer.len());
            (self.buffer, self.start, self.end) = (Vec::new(), 0, 0);
        }
    }

    /// Reads into the buffer, from its start. Where there is none, the bytes are passed on at once, and a buffer is taken
    /// only for what the writer does not take, or where more bytes are probably waiting.
    fn poll_read<R, W>(
        &mut self,
        context: &mut Context<'_>,
        reader: &mut R,
        writer: &mut W,
        counter: &AtomicU64,
    ) -> Poll<io::Result<usize>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        if !self.buffer.is_empty() {
            let mut space = ReadBuf::new(&mut self.buffer);
            ready!(Pin::new(reader).poll_read(context, &mut space))?;
            let read = space.filled().len();
            counter.fetch_add(read as u64, Ordering::Relaxed);
            (self.start, self.end) = (0, read);
            return Poll::Ready(Ok(read));
        }
        let mut first = [0; FIRST_READ];
        let mut space = ReadBuf::new(&mut first);
        ready!(Pin::new(reader).poll_read(context, &mut space))?;
        let bytes = space.filled();
        counter.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let mut left = bytes;
        while !left.is_empty()
            && let Poll::Ready(written) = Pin::new(&mut *writer).poll_write(context, left)
        {
            left = &left[taken(written?)?..];
        }
        if !left.is_empty() || bytes.len() == FIRST_READ {
            self.buffer = vec![0; self.first];
            self.budget.take_promised(self.first);
            self.buffer[..left.len()].copy_from_slice(left);
            (self.start, self.end) = (0, left.len());
        }
        Poll::Ready(Ok(bytes.len()))
    }

    /// Enlarges the buffer. Called when a read has filled it, which means that more bytes are probably
    /// waiting.
    fn grow(&mut self) {
        let larger = (self.buffer.len() * 4).min(self.largest);
        if self.budget.try_take(larger - self.buffer.len()) {
            self.buffer.resize(larger, 0);
        }
    }

    fn poll<R, W>(
        &mut self,
        context: &mut Context<'_>,
        reader: &mut R,
        writer: &mut W,
        counter: &AtomicU64,
        active: &Activity<'_>,
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
                self.start += taken(ready!(Pin::new(&mut *writer).poll_write(context, left))?)?;
                active.note();
            }
            if self.end > 0 && self.end == self.buffer.len() && self.end < self.largest {
                self.grow();
            }
            if matches!(self.state, State::Ending) {
                ready!(Pin::new(&mut *writer).poll_shutdown(context))?;
                self.state = State::Ended;
                continue;
            }
            let Poll::Ready(read) = self.poll_read(context, reader, writer, counter)? else {
                // Nothing more can be read for now, so the writer must send what it has buffered.
                ready!(Pin::new(&mut *writer).poll_flush(context))?;
                return Poll::Pending;
            };
            active.note();
            if read == 0 {
                self.state = State::Ending;
            }
        }
    }
}

/// The bytes that a writer has taken. One that takes none takes no more.
fn taken(written: usize) -> io::Result<usize> {
    if written == 0 { Err(io::ErrorKind::WriteZero.into()) } else { Ok(written) }
}
