//! Time and random numbers, passed as a parameter.
//!
//! All code that waits, reads the time or needs random numbers uses a [`Clock`]. Only this file calls
//! the operating system for them. A test uses a manual clock, whose time changes only when the test
//! advances it.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use chrono::{DateTime, SubsecRound, TimeDelta, Utc};
use pin_project_lite::pin_project;
use rand::Rng;
use tokio::sync::watch;
use uuid::{ContextV7, Timestamp, Uuid};

use crate::tally::Tally;

#[derive(Clone)]
pub struct Clock(Arc<Inner>);

struct Inner {
    source: Source,
    /// The operating system's time at which the clock's own scale begins.
    base: Instant,
    /// The time of day, in microseconds, at the beginning of the clock's own scale, where the clock follows another one;
    /// else [`OF_ITS_OWN`].
    follows: AtomicI64,
    /// Keeps ids sorted in the order of creation, even within one millisecond.
    ids: Mutex<ContextV7>,
}

const OF_ITS_OWN: i64 = i64::MIN;

enum Source {
    System,
    Manual {
        start: DateTime<Utc>,
        elapsed: watch::Sender<Duration>,
        /// The moments that are waited for.
        awaited: watch::Sender<Tally<Moment>>,
        /// Stands for the clock that this one follows.
        followed: Option<Clock>,
    },
}

/// A point in time on a clock's own scale, which does not change when the wall clock is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(Duration);

impl Moment {
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0 + duration)
    }

    pub fn as_millis(self) -> u64 {
        self.0.as_millis() as u64
    }

    pub fn from_millis(millis: u64) -> Self {
        Self(Duration::from_millis(millis))
    }

    /// The time since `earlier`, or zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// The timeout elapsed before the future was ready.
#[derive(Debug, thiserror::Error)]
#[error("it took too long")]
pub struct Elapsed;

impl Clock {
    pub fn system() -> Self {
        Self::new(Source::System)
    }

    /// A clock that shows `start` until [`Clock::advance`] moves it.
    pub fn manual(start: DateTime<Utc>) -> Self {
        Self::with(start, None)
    }

    /// As [`Clock::manual`], of a host whose database has this other manual clock.
    pub fn manual_beside(start: DateTime<Utc>, database: Self) -> Self {
        Self::with(start, Some(database))
    }

    fn with(start: DateTime<Utc>, followed: Option<Self>) -> Self {
        let (elapsed, awaited) = (watch::Sender::new(Duration::ZERO), watch::Sender::default());
        Self::new(Source::Manual { start, elapsed, awaited, followed })
    }

    #[expect(clippy::disallowed_methods, reason = "this is the one place that asks the system")]
    fn new(source: Source) -> Self {
        let (follows, ids) = (AtomicI64::new(OF_ITS_OWN), Mutex::new(ContextV7::new()));
        Self(Arc::new(Inner { source, base: Instant::now(), follows, ids }))
    }

    /// The time in UTC, to the microsecond, which is the precision of the database: by the wall clock, or by the clock that
    /// this one follows.
    pub fn now(&self) -> DateTime<Utc> {
        match self.0.follows.load(Ordering::Relaxed) {
            OF_ITS_OWN => self.own_time(),
            zero => DateTime::UNIX_EPOCH + TimeDelta::microseconds(zero) + delta(self.moment().0),
        }
    }

    /// Has the clock show what another one showed at this moment, and go on from there. Whoever sets the wall clock changes
    /// nothing then.
    pub fn follow(&self, shown: DateTime<Utc>, at: Moment) {
        let zero = shown.timestamp_micros() - delta(at.0).num_microseconds().unwrap_or_default();
        self.0.follows.store(zero, Ordering::Relaxed);
    }

    /// The database's time, where a test says what that is.
    pub fn database_time(&self) -> Option<DateTime<Utc>> {
        match &self.0.source {
            Source::System => None,
            Source::Manual { followed, .. } => Some(followed.as_ref().unwrap_or(self).own_time()),
        }
    }

    #[expect(clippy::disallowed_methods, reason = "this is the one place that asks the system")]
    fn own_time(&self) -> DateTime<Utc> {
        match &self.0.source {
            Source::System => Utc::now().trunc_subsecs(6),
            Source::Manual { start, elapsed, .. } => *start + delta(*elapsed.borrow()),
        }
    }

    pub fn moment(&self) -> Moment {
        match &self.0.source {
            Source::System => Moment(self.0.base.elapsed()),
            Source::Manual { elapsed, .. } => Moment(*elapsed.borrow()),
        }
    }

    /// As [`Clock::moment`], on a scale that goes on while the machine is suspended (`CLOCK_BOOTTIME`), where the system has
    /// one. What others measure by clocks of their own ends by this one. Nothing can wait for it.
    pub fn since_boot(&self) -> Moment {
        match &self.0.source {
            #[cfg(target_os = "linux")]
            Source::System => {
                let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
                Moment(now.try_into().unwrap_or_default())
            }
            _ => self.moment(),
        }
    }

    /// The moment at which the clock shows a time; now, if it has.
    pub fn moment_of(&self, time: DateTime<Utc>) -> Moment {
        self.moment().plus((time - self.now()).to_std().unwrap_or_default())
    }

    /// As [`Clock::moment`], for libraries that take the standard library's type.
    pub fn instant(&self) -> Instant {
        self.0.base + self.moment().0
    }

    /// Waits until the clock reaches a moment.
    pub async fn until(&self, moment: Moment) {
        match &self.0.source {
            Source::System => tokio::time::sleep_until((self.0.base + moment.0).into()).await,
            Source::Manual { elapsed, awaited, .. } => {
                let _waiting = Waiting::new(awaited, moment);
                // `wait_for` fails only if the sender is dropped, and the sender lives as long as
                // `self`. In a box, so that the system clock does not need the room.
                let _ = Box::pin(elapsed.subscribe().wait_for(|elapsed| *elapsed >= moment.0)).await;
            }
        }
    }

    /// Waits until so much time has passed since the call.
    pub fn sleep(&self, duration: Duration) -> impl Future<Output = ()> {
        self.until(self.moment().plus(duration))
    }

    /// Waits for a future until so much time has passed since the call.
    ///
    /// # Errors
    ///
    /// [`Elapsed`], where the future takes longer.
    pub fn timeout<F: Future>(
        &self,
        duration: Duration,
        future: F,
    ) -> impl Future<Output = Result<F::Output, Elapsed>> {
        self.timeout_at(self.moment().plus(duration), future)
    }

    /// # Errors
    ///
    /// [`Elapsed`], where the future is not ready at this moment.
    pub fn timeout_at<F: Future>(&self, moment: Moment, future: F) -> impl Future<Output = Result<F::Output, Elapsed>> {
        Timeout { future, until: self.until(moment) }
    }

    /// Advances a manual clock; has no effect on the system clock.
    pub fn advance(&self, by: Duration) {
        if let Source::Manual { elapsed, .. } = &self.0.source {
            elapsed.send_modify(|elapsed| *elapsed += by);
        }
    }

    /// Waits until something waits for a moment of a manual clock, so that a test can advance the clock to it. Returns
    /// at once with the system clock.
    pub async fn until_awaited(&self, moment: Moment) {
        if let Source::Manual { awaited, .. } = &self.0.source {
            // As above, this cannot fail.
            let _ = awaited.subscribe().wait_for(|awaited| awaited.of(&moment) > 0).await;
        }
    }

    /// Creates a UUID version 7 (RFC 9562, section 5.7). Ids created later sort after earlier ones.
    pub fn id(&self) -> Uuid {
        let now = self.now();
        let context = self.0.ids.lock().unwrap_or_else(PoisonError::into_inner);
        let seconds = now.timestamp().try_into().unwrap_or_default();
        Uuid::new_v7(Timestamp::from_unix(&*context, seconds, now.timestamp_subsec_nanos()))
    }

    /// Random bytes, suitable for secrets.
    #[expect(clippy::disallowed_methods, reason = "this is the one place that draws")]
    pub fn random<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        rand::rng().fill_bytes(&mut bytes);
        bytes
    }

    /// The duration, randomly changed by up to 10 percent; unchanged with a manual clock.
    pub fn about(&self, duration: Duration) -> Duration {
        if matches!(self.0.source, Source::Manual { .. }) {
            return duration;
        }
        duration.mul_f64(0.9) + self.jitter(duration.mul_f64(0.2))
    }

    /// A random duration from zero to `bound`; always zero with a manual clock, so that tests are
    /// repeatable.
    pub fn jitter(&self, bound: Duration) -> Duration {
        if matches!(self.0.source, Source::Manual { .. }) {
            return Duration::ZERO;
        }
        let share = f64::from(u32::from_le_bytes(self.random())) / f64::from(u32::MAX);
        bound.mul_f64(share)
    }
}

pin_project! {
    /// A type of its own: an asynchronous function would hold the future twice, as what it is given and as what it waits for.
    struct Timeout<F, U> {
        #[pin]
        future: F,
        #[pin]
        until: U,
    }
}

impl<F: Future, U: Future> Future for Timeout<F, U> {
    type Output = Result<F::Output, Elapsed>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        match this.future.poll(context) {
            Poll::Ready(output) => Poll::Ready(Ok(output)),
            Poll::Pending => this.until.poll(context).map(|_| Err(Elapsed)),
        }
    }
}

fn delta(duration: Duration) -> TimeDelta {
    TimeDelta::from_std(duration).unwrap_or(TimeDelta::MAX)
}

/// Notes that a moment of a manual clock is waited for, until it is dropped.
struct Waiting<'a> {
    awaited: &'a watch::Sender<Tally<Moment>>,
    moment: Moment,
}

impl<'a> Waiting<'a> {
    fn new(awaited: &'a watch::Sender<Tally<Moment>>, moment: Moment) -> Self {
        awaited.send_modify(|awaited| awaited.add(moment, 1));
        Self { awaited, moment }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.awaited.send_modify(|awaited| awaited.end_one(&self.moment));
    }
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Clock({})", self.now())
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    /// Connections wait within timeouts, one in another, and there are many of them.
    #[test]
    fn timeout_holds_its_future_once() {
        let (clock, bytes) = (Clock::system(), [0_u8; 4096]);
        let future = async move {
            ready(()).await;
            bytes
        };
        let room = size_of_val(&future);
        let timeout = clock.timeout(Duration::from_secs(1), clock.timeout(Duration::from_secs(1), future));
        assert!(size_of_val(&timeout) < room + 512, "{} for {room}", size_of_val(&timeout));
    }

    #[tokio::test]
    async fn timeout_counts_from_its_call() {
        let clock = Clock::manual(DateTime::UNIX_EPOCH);
        let timeout = clock.timeout(Duration::from_secs(1), pending::<()>());
        clock.advance(Duration::from_secs(1));
        assert!(timeout.await.is_err());
    }
}
