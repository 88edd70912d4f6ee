//! Rates, from a count and the time in which it came about.

use crate::time::Time;

/// How many a day there were since a moment. A period shorter than an hour counts as one, so that the first ones are
/// no high rate.
pub fn per_day(count: u32, since: Time, now: Time) -> f64 {
    const HOUR: i64 = 3600;
    f64::from(count) * (24 * HOUR) as f64 / now.since(since).max(HOUR) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_is_the_count_by_the_time_that_passed() {
        let is = |rate: f64, expected: f64| assert!((rate - expected).abs() < 1e-9, "{rate}");
        is(per_day(6, Time(0), Time(2 * 86_400)), 3.0);
        is(per_day(1, Time(0), Time(1)), 24.0);
        is(per_day(0, Time(0), Time(86_400)), 0.0);
    }
}
