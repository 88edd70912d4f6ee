//! hyper's timer, over the project's clock.

use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use culvert_wire::clock::Clock;
use futures_util::future::BoxFuture;
use hyper::rt::{Sleep, Timer};

#[derive(Clone)]
pub(super) struct ClockTimer(pub(super) Clock);

impl Timer for ClockTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        let (clock, end) = (self.0.clone(), self.0.moment().plus(duration));
        Box::pin(ClockSleep(Mutex::new(Box::pin(async move { clock.until(end).await }))))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        self.sleep(deadline.saturating_duration_since(self.now()))
    }

    fn now(&self) -> Instant {
        self.0.instant()
    }
}

/// hyper asks for a future that threads can share; the mutex makes it one. It is never locked.
struct ClockSleep(Mutex<BoxFuture<'static, ()>>);

impl Sleep for ClockSleep {}

impl Future for ClockSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner).as_mut().poll(context)
    }
}
