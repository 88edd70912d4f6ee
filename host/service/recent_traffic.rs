//! The traffic of the last hour, minute by minute: in memory, since this host started.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use chrono::{DateTime, TimeDelta, Utc};
use culvert_domain::caller::Caller;
use culvert_domain::error::Result;
use culvert_domain::usage::Traffic;
use culvert_wire::node::SessionTraffic;
use hashlink::LruCache;
use uuid::Uuid;

use crate::Service;

/// Minutes that are kept of a tunnel.
const MINUTES: i64 = 60;
/// Tunnels that are remembered. Beyond them, the one that carried nothing for the longest time is forgotten.
const REMEMBERED: usize = 10_000;

/// The minutes of one tunnel in which it carried something, the oldest first.
type Minutes = VecDeque<(i64, Traffic)>;

pub(crate) struct RecentTraffic(Mutex<LruCache<Uuid, Minutes>>);

impl Default for RecentTraffic {
    fn default() -> Self {
        Self(Mutex::new(LruCache::new(REMEMBERED)))
    }
}

impl RecentTraffic {
    /// Adds what nodes have counted.
    pub(crate) fn add(&self, rows: &[SessionTraffic], now: DateTime<Utc>) {
        let (minute, mut tunnels) = (minute_of(now), self.lock());
        for row in rows {
            let traffic = Traffic { bytes_in: row.bytes_in, bytes_out: row.bytes_out };
            let minutes = tunnels.entry(row.tunnel_id).or_insert_with(VecDeque::new);
            while minutes.front().is_some_and(|(old, _)| *old <= minute - MINUTES) {
                minutes.pop_front();
            }
            match minutes.back_mut() {
                Some((last, sum)) if *last >= minute => *sum = *sum + traffic,
                _ => minutes.push_back((minute, traffic)),
            }
        }
    }

    /// Each of the last 60 minutes, the present one at the end.
    fn last_hour(&self, tunnel_id: Uuid, now: DateTime<Utc>) -> Vec<(DateTime<Utc>, Traffic)> {
        let this = minute_of(now);
        let known = self.lock().peek(&tunnel_id).cloned().unwrap_or_default();
        let of = |minute: i64| known.iter().find(|(known, _)| *known == minute).map(|(_, traffic)| *traffic);
        let at = |minute: i64| DateTime::UNIX_EPOCH + TimeDelta::minutes(minute);
        (this - MINUTES + 1..=this).map(|minute| (at(minute), of(minute).unwrap_or_default())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, LruCache<Uuid, Minutes>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn minute_of(at: DateTime<Utc>) -> i64 {
    at.timestamp().div_euclid(60)
}

impl Service {
    /// What a tunnel of the caller's scope carried in each of the last 60 minutes, as far as this host was told of it.
    ///
    /// # Errors
    ///
    /// `not_found` if the scope has no such tunnel; if the database fails.
    pub async fn last_hour(&self, caller: &Caller, tunnel_id: Uuid) -> Result<Vec<(DateTime<Utc>, Traffic)>> {
        let tunnel = self.tunnel(caller, tunnel_id).await?;
        Ok(self.nodes.recent_traffic().last_hour(tunnel.id, self.clock().now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(tunnel_id: Uuid, bytes_in: u64) -> SessionTraffic {
        SessionTraffic { tunnel_id, session_id: Uuid::nil(), bytes_in, bytes_out: 2 * bytes_in }
    }

    #[test]
    fn traffic_is_summed_by_minute_and_forgotten_after_an_hour() {
        let (recent, tunnel) = (RecentTraffic::default(), Uuid::from_u128(1));
        let at = |seconds: i64| DateTime::from_timestamp(6000 + seconds, 0).unwrap();
        recent.add(&[row(tunnel, 1), row(Uuid::from_u128(2), 100)], at(0));
        recent.add(&[row(tunnel, 2)], at(59));
        recent.add(&[row(tunnel, 4)], at(60));
        let seen = |now| {
            let hour = recent.last_hour(tunnel, now);
            assert_eq!(hour.len(), 60);
            hour.into_iter().map(|(_, traffic)| traffic.bytes_in).filter(|bytes| *bytes > 0).collect::<Vec<_>>()
        };
        assert_eq!(seen(at(60)), [3, 4]);
        assert_eq!(seen(at(59 * 60)), [3, 4]);
        assert_eq!(seen(at(60 * 60)), [4]);
        recent.add(&[row(tunnel, 8)], at(62 * 60));
        assert_eq!(seen(at(62 * 60)), [8]);
        assert_eq!(recent.lock().peek(&tunnel).unwrap().len(), 1, "what is old is not kept");
        // A clock that was set back loses nothing.
        recent.add(&[row(tunnel, 1)], at(61 * 60));
        assert_eq!(seen(at(62 * 60)), [9]);
    }
}
