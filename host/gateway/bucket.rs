//! A token bucket: a burst, and a rate per second after it. (The crate `governor` was considered: it has its
//! own clock types, and is made to refuse many keys, not to make one caller wait.)

use std::time::Duration;

use culvert_wire::clock::Moment;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    per_second: f64,
    most: f64,
    /// Negative if more was taken than there was.
    left: f64,
    at: Moment,
}

impl Bucket {
    /// A full bucket.
    pub(crate) fn new(most: u32, per_second: u32, now: Moment) -> Self {
        let most = f64::from(most);
        Self { per_second: f64::from(per_second), most, left: most, at: now }
    }

    /// How long it takes until one token is available; `None` if one is available now.
    pub(crate) fn wait(&mut self, now: Moment) -> Option<Duration> {
        self.fill(now);
        (self.left < 1.0).then(|| Duration::from_secs_f64((1.0 - self.left) / self.per_second))
    }

    /// Takes tokens. The balance may become negative.
    pub(crate) fn take(&mut self, cost: u32, now: Moment) {
        self.fill(now);
        self.left -= f64::from(cost);
    }

    /// Adds tokens. A negative balance is cleared first, and the result may exceed the capacity.
    pub(crate) fn give(&mut self, more: u32, now: Moment) {
        self.fill(now);
        self.left = self.left.max(0.0) + f64::from(more);
    }

    pub(crate) fn is_full(&mut self, now: Moment) -> bool {
        self.fill(now);
        self.left >= self.most
    }

    fn fill(&mut self, now: Moment) {
        let filled = (self.left + now.since(self.at).as_secs_f64() * self.per_second).min(self.most);
        self.left = self.left.max(filled);
        self.at = now;
    }
}

#[cfg(test)]
mod tests {
    use culvert_wire::clock::Clock;

    use super::*;

    #[test]
    fn token_bucket_allows_burst_then_steady_rate() {
        let clock = Clock::manual("2026-01-01T00:00:00Z".parse().unwrap());
        let mut bucket = Bucket::new(3, 2, clock.moment());
        for _ in 0..3 {
            assert_eq!(bucket.wait(clock.moment()), None);
            bucket.take(1, clock.moment());
        }
        assert_eq!(bucket.wait(clock.moment()), Some(Duration::from_millis(500)));
        clock.advance(Duration::from_millis(500));
        assert_eq!(bucket.wait(clock.moment()), None);
        bucket.take(5, clock.moment());
        assert_eq!(bucket.wait(clock.moment()), Some(Duration::from_millis(2500)));
        clock.advance(Duration::from_mins(1));
        assert!(bucket.is_full(clock.moment()));
    }
}
