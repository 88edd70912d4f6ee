//! How much went through, by UTC day and calendar month.

use chrono::{DateTime, Datelike, Days, Months, NaiveDate, NaiveTime, TimeDelta, Utc};

/// Payload bytes: `bytes_in` from visitors to the device, `bytes_out` from the device to visitors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub bytes_in: u64,
    pub bytes_out: u64,
}

impl Traffic {
    pub fn total(self) -> u64 {
        self.bytes_in.saturating_add(self.bytes_out)
    }
}

impl std::ops::Add for Traffic {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        Self {
            bytes_in: self.bytes_in.saturating_add(more.bytes_in),
            bytes_out: self.bytes_out.saturating_add(more.bytes_out),
        }
    }
}

/// What one scope or tunnel used, today and in this month.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bandwidth {
    pub today: Traffic,
    pub month: Traffic,
}

/// What a scope uses, as decisions count it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub tunnels: u32,
    pub webhook_endpoints: u32,
    /// Extra ports of the tunnel that is asked about.
    pub extra_ports: u32,
    /// Payload bytes since the month began.
    pub bytes_this_month: u64,
}

/// Tunnels of a scope that run, and those of one of its accounts. One that is being started counts as running.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunningUsage {
    pub running_tunnels: u32,
    pub callers_tunnels: u32,
    pub callers_running_tunnels: u32,
}

/// How long traffic is kept by the hour.
pub const HOURS_KEPT: TimeDelta = TimeDelta::days(35);

/// A day, as a number since 1970-01-01.
pub fn day_number(at: DateTime<Utc>) -> i64 {
    at.timestamp().div_euclid(86_400)
}

/// An hour, as a number since 1970-01-01 00:00 UTC.
pub fn hour_number(at: DateTime<Utc>) -> i64 {
    at.timestamp().div_euclid(3_600)
}

/// A minute, as a number since 1970-01-01 00:00 UTC.
pub fn minute_number(at: DateTime<Utc>) -> i64 {
    at.timestamp().div_euclid(60)
}

/// 00:00 UTC of the day.
pub fn day_start(at: DateTime<Utc>) -> DateTime<Utc> {
    midnight(at.date_naive())
}

/// 00:00 UTC of the month's first day.
pub fn month_start(at: DateTime<Utc>) -> DateTime<Utc> {
    midnight(first_of_month(at))
}

/// 00:00 UTC of the next month's first day.
pub fn next_month(at: DateTime<Utc>) -> DateTime<Utc> {
    midnight(first_of_month(at).checked_add_months(Months::new(1)).unwrap_or(NaiveDate::MAX))
}

fn first_of_month(at: DateTime<Utc>) -> NaiveDate {
    let date = at.date_naive();
    date.checked_sub_days(Days::new(u64::from(date.day0()))).unwrap_or(date)
}

fn midnight(date: NaiveDate) -> DateTime<Utc> {
    date.and_time(NaiveTime::MIN).and_utc()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn month_and_day_boundaries_are_at_midnight_utc() {
        let at: DateTime<Utc> = "2024-02-29T23:59:59.999Z".parse().unwrap();
        assert_eq!(month_start(at).to_rfc3339(), "2024-02-01T00:00:00+00:00");
        assert_eq!(next_month(at).to_rfc3339(), "2024-03-01T00:00:00+00:00");
        assert_eq!(day_start(at).to_rfc3339(), "2024-02-29T00:00:00+00:00");
        assert_eq!(day_number(at), 19_782);
        assert_eq!(hour_number(at), 19_782 * 24 + 23);
        assert_eq!(minute_number(at).div_euclid(60), hour_number(at));
    }
}
