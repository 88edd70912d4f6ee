//! What scopes and tunnels have carried, by day, hour and minute, with those in which they carried nothing.

use chrono::{DateTime, Days, NaiveDate, NaiveTime, TimeDelta, Utc};
use culvert_domain::caller::Caller;
use culvert_domain::error::Result;
use culvert_domain::tunnel::Tunnel;
use culvert_domain::usage::{HOURS_KEPT, Traffic, day_number, hour_number, minute_number};
use uuid::Uuid;

use crate::Service;

/// Days of which traffic is told.
const DAYS: u64 = 30;
/// Hours of which traffic is told at a time.
const HOURS: i64 = 24;

/// Minutes of which traffic is told.
const MINUTES: i64 = 60;

/// Traffic by hour.
pub struct HourlyUsage {
    /// The day that the hours are of; `None` for the last 24 hours, the present one at the end.
    pub day: Option<NaiveDate>,
    /// The first day whose hours are all kept.
    pub first_day: NaiveDate,
    /// By the begin of the hour.
    pub hours: Vec<(DateTime<Utc>, Traffic)>,
}

impl Service {
    /// The traffic of the caller's scope on each of the last 30 days, today at the end.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn scope_days(&self, caller: &Caller) -> Result<Vec<(NaiveDate, Traffic)>> {
        let dates = self.last_days();
        let known = self.store.scope_days(caller.scope.id, day_number(midnight(dates[0]))).await?;
        Ok(filled(dates, &known, |date| day_number(midnight(*date))))
    }

    /// The same of a tunnel of the caller's scope.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn tunnel_days(&self, caller: &Caller, tunnel_id: Uuid) -> Result<Vec<(NaiveDate, Traffic)>> {
        let dates = self.last_days();
        let known = self.store.tunnel_days(caller.scope.id, tunnel_id, day_number(midnight(dates[0]))).await?;
        Ok(filled(dates, &known, |date| day_number(midnight(*date))))
    }

    /// The traffic of the caller's scope, or of one of its tunnels, in the hours of a day. Of a day whose hours are not
    /// kept, it is that of the last 24 hours.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn hourly_usage(
        &self,
        caller: &Caller,
        tunnel_id: Option<Uuid>,
        day: Option<NaiveDate>,
    ) -> Result<HourlyUsage> {
        let now = self.clock().now();
        let first_day = (now - HOURS_KEPT).date_naive().succ_opt().unwrap_or_default();
        let day = day.filter(|day| (first_day..=now.date_naive()).contains(day));
        let start = day.map_or_else(|| hour_number(now) + 1 - HOURS, |day| hour_number(midnight(day)));
        let (scope_id, hours) = (caller.scope.id, start..start + HOURS);
        let known = match tunnel_id {
            Some(tunnel_id) => self.store.tunnel_hours(scope_id, tunnel_id, hours.clone()).await?,
            None => self.store.scope_hours(scope_id, hours.clone()).await?,
        };
        let begins = hours.map(|hour| DateTime::UNIX_EPOCH + TimeDelta::hours(hour)).collect();
        Ok(HourlyUsage { day, first_day, hours: filled(begins, &known, |hour| hour_number(*hour)) })
    }

    /// What a tunnel of the caller's scope carried in each of the last 60 minutes, the present one at the end.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn last_hour(&self, caller: &Caller, tunnel_id: Uuid) -> Result<Vec<(DateTime<Utc>, Traffic)>> {
        let now = minute_number(self.clock().now());
        let minutes = now + 1 - MINUTES..=now;
        let known = self.store.tunnel_minutes(caller.scope.id, tunnel_id, *minutes.start()).await?;
        let begins = minutes.map(|minute| DateTime::UNIX_EPOCH + TimeDelta::minutes(minute)).collect();
        Ok(filled(begins, &known, |minute| minute_number(*minute)))
    }

    /// How many visitors a tunnel has, as its node told a few seconds ago; `None` if it does not run, or if its node is not
    /// connected.
    pub fn visitors_now(&self, tunnel: &Tunnel) -> Option<u64> {
        tunnel.run.as_ref()?;
        self.nodes.visitors_of(tunnel.node.id, tunnel.id)
    }

    fn last_days(&self) -> Vec<NaiveDate> {
        let today = self.clock().now().date_naive();
        (0..DAYS).rev().map(|before| today.checked_sub_days(Days::new(before)).unwrap_or(today)).collect()
    }
}

fn midnight(date: NaiveDate) -> DateTime<Utc> {
    date.and_time(NaiveTime::MIN).and_utc()
}

/// The traffic at each time; none where nothing is known of it.
fn filled<T>(times: Vec<T>, known: &[(i64, Traffic)], number: impl Fn(&T) -> i64) -> Vec<(T, Traffic)> {
    let of = |at: i64| known.iter().find(|(known, _)| *known == at).map(|(_, traffic)| *traffic);
    let with = |time: T| {
        let traffic = of(number(&time)).unwrap_or_default();
        (time, traffic)
    };
    times.into_iter().map(with).collect()
}
