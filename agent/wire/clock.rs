//! Time and chance, as a parameter.
//!
//! Everything that waits, stamps or draws does so through a [`Clock`], and this file alone asks the
//! operating system. A test holds a clock that stands still until it is moved by hand.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use chrono::{DateTime, SubsecRound, TimeDelta, Utc};
use rand::Rng;
use tokio::sync::watch;
use uuid::{ContextV7, Timestamp, Uuid};

#[derive(Clone)]
pub struct Clock(Arc<Inner>);

struct Inner {
    source: Source,
    /// Keeps the ids of one millisecond in the order in which they were made.
    ids: Mutex<ContextV7>,
}

enum Source {
    System { start: Instant },
    Manual { start: DateTime<Utc>, elapsed: watch::Sender<Duration> },
}

/// A point of a clock's own, which no change of the wall clock moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(Duration);

impl Moment {
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0 + duration)
    }

    /// How long ago `earlier` was; nothing, if it is later.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// A wait that ended without its event.
#[derive(Debug, thiserror::Error)]
#[error("it took too long")]
pub struct Elapsed;

impl Clock {
    #[expect(clippy::disallowed_methods, reason = "this is the one place that asks the system")]
    pub fn system() -> Self {
        Self::new(Source::System { start: Instant::now() })
    }

    /// A clock that stands at `start` until [`Clock::advance`] moves it.
    pub fn manual(start: DateTime<Utc>) -> Self {
        Self::new(Source::Manual { start, elapsed: watch::Sender::new(Duration::ZERO) })
    }

    fn new(source: Source) -> Self {
        Self(Arc::new(Inner { source, ids: Mutex::new(ContextV7::new()) }))
    }

    /// The wall clock, in UTC, to the microsecond: what the store can keep.
    #[expect(clippy::disallowed_methods, reason = "this is the one place that asks the system")]
    pub fn now(&self) -> DateTime<Utc> {
        match &self.0.source {
            Source::System { .. } => Utc::now().trunc_subsecs(6),
            Source::Manual { start, elapsed } => {
                *start + TimeDelta::from_std(*elapsed.borrow()).unwrap_or(TimeDelta::MAX)
            }
        }
    }

    pub fn moment(&self) -> Moment {
        match &self.0.source {
            Source::System { start } => Moment(start.elapsed()),
            Source::Manual { elapsed, .. } => Moment(*elapsed.borrow()),
        }
    }

    /// Waits until the clock has come to a moment.
    pub async fn until(&self, moment: Moment) {
        match &self.0.source {
            Source::System { start } => tokio::time::sleep_until((*start + moment.0).into()).await,
            Source::Manual { elapsed, .. } => {
                // The sender lives as long as `self`.
                let _ = elapsed.subscribe().wait_for(|elapsed| *elapsed >= moment.0).await;
            }
        }
    }

    pub async fn sleep(&self, duration: Duration) {
        self.until(self.moment().plus(duration)).await;
    }

    /// # Errors
    ///
    /// [`Elapsed`], where the future takes longer.
    pub async fn timeout<F: Future>(&self, duration: Duration, future: F) -> Result<F::Output, Elapsed> {
        tokio::select! {
            biased;
            output = future => Ok(output),
            () = self.sleep(duration) => Err(Elapsed),
        }
    }

    /// Moves a manual clock. The system's moves by itself.
    pub fn advance(&self, by: Duration) {
        if let Source::Manual { elapsed, .. } = &self.0.source {
            elapsed.send_modify(|elapsed| *elapsed += by);
        }
    }

    /// A new UUID, version 7: later ones sort behind earlier ones.
    pub fn id(&self) -> Uuid {
        let now = self.now();
        let context = self.0.ids.lock().unwrap_or_else(PoisonError::into_inner);
        let seconds = now.timestamp().try_into().unwrap_or_default();
        Uuid::new_v7(Timestamp::from_unix(&*context, seconds, now.timestamp_subsec_nanos()))
    }

    /// Random bytes, fit for secrets.
    #[expect(clippy::disallowed_methods, reason = "this is the one place that draws")]
    pub fn random<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        rand::rng().fill_bytes(&mut bytes);
        bytes
    }

    /// A duration, a tenth shorter or longer as chance has it; with a manual clock the duration itself.
    pub fn about(&self, duration: Duration) -> Duration {
        if matches!(self.0.source, Source::Manual { .. }) {
            return duration;
        }
        duration.mul_f64(0.9) + self.jitter(duration.mul_f64(0.2))
    }

    /// A random duration below a bound; with a manual clock none at all, for chance stands still as
    /// well.
    pub fn jitter(&self, bound: Duration) -> Duration {
        if matches!(self.0.source, Source::Manual { .. }) {
            return Duration::ZERO;
        }
        let share = f64::from(u32::from_le_bytes(self.random())) / f64::from(u32::MAX);
        bound.mul_f64(share)
    }
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Clock({})", self.now())
    }
}
