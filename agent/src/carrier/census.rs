//! How many connections to a node there are, and how many should be.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};

use culvert_wire::clock::{Clock, Moment};
use culvert_wire::data2::attach::Attached;
use culvert_wire::data2::{MAX_WARM, MIN_WARM, MIN_WARM_BESIDE_QUIC};

/// How long a peak of visits keeps connections warm, at least.
const RECENT: Duration = Duration::from_secs(10);

/// Whether the node takes the device's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reached {
    /// It has taken one that is still there.
    Yes,
    /// It does not take the device's token.
    TokenRefused,
}

pub(super) struct Census {
    clock: Clock,
    counts: Mutex<Counts>,
    /// Wakes the dialling task when more connections may be wanted.
    changed: Notify,
    reached: watch::Sender<Option<Reached>>,
}

struct Counts {
    /// Connections that wait for a visit or are being dialled.
    warm: usize,
    /// Connections that the node has taken.
    attached: usize,
    /// Whether the node is reached by QUIC.
    is_reached_by_quic: bool,
    /// Connections that serve a visit.
    busy: usize,
    /// Visits that streams of QUIC serve. They count for the peaks: the next visitors are to find warm connections.
    streams: usize,
    /// The most that were busy at once, in the current period of [`RECENT`] and in the one before.
    peaks: [usize; 2],
    /// When the current period has begun.
    period: Moment,
    /// Visitors that wait for a connection, as the node said.
    waiting: usize,
    /// What the node asks for. Beside a connection of QUIC, fewer are kept.
    asked: Attached,
    /// How long the node last took to answer an attach.
    round_trip: Option<Duration>,
}

/// The connections to a node at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Connections {
    /// Taken by the node, and waiting for a visit.
    pub warm: usize,
    /// Serving a visit.
    pub busy: usize,
    /// Visits on streams of QUIC.
    pub streams: usize,
    pub round_trip: Option<Duration>,
}

impl Counts {
    fn visits(&self) -> usize {
        self.busy + self.streams
    }

    fn is_reached(&self) -> bool {
        self.attached > 0 || self.is_reached_by_quic
    }

    /// How many connections should be warm while no visitors come.
    fn ahead(&self) -> usize {
        if self.is_reached_by_quic { self.asked.ahead.min(MIN_WARM_BESIDE_QUIC) } else { self.asked.ahead }
    }

    /// How many connections should be warm: a few more than what was busy at once lately needs.
    fn wanted(&mut self, now: Moment) -> usize {
        let periods = now.since(self.period).as_secs() / RECENT.as_secs();
        if periods > 0 {
            let visits = self.visits();
            self.peaks = [visits, if periods == 1 { self.peaks[0] } else { visits }];
            self.period = now;
        }
        let peak = self.peaks[0].max(self.peaks[1]);
        (self.ahead() + peak.saturating_sub(self.visits())).max(self.waiting).min(self.asked.most)
    }
}

impl Census {
    pub(super) fn new(clock: Clock) -> Self {
        let asked = Attached { ahead: MIN_WARM, most: MAX_WARM };
        let period = clock.moment();
        let counts = Counts {
            warm: 0,
            attached: 0,
            is_reached_by_quic: false,
            busy: 0,
            streams: 0,
            peaks: [0; 2],
            period,
            waiting: 0,
            asked,
            round_trip: None,
        };
        Self { clock, counts: Mutex::new(counts), changed: Notify::new(), reached: watch::Sender::new(None) }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until more connections may be wanted.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// How many connections are to be dialled. They count as warm from here on.
    pub(super) fn missing(&self) -> usize {
        let now = self.clock.moment();
        let mut counts = self.counts();
        let missing = counts.wanted(now).saturating_sub(counts.warm);
        (counts.warm, counts.waiting) = (counts.warm + missing, 0);
        missing
    }

    pub(super) fn connections(&self) -> Connections {
        let counts = self.counts();
        let Counts { attached, busy, streams, round_trip, .. } = *counts;
        Connections { warm: attached.saturating_sub(busy), busy, streams, round_trip }
    }

    /// The node has taken a connection, after this time.
    pub(super) fn attach(&self, asked: Attached, round_trip: Duration) {
        let mut counts = self.counts();
        (counts.asked, counts.attached) = (asked, counts.attached + 1);
        counts.round_trip = Some(round_trip);
        self.reached.send_replace(Some(Reached::Yes));
    }

    /// A connection that the node had taken has ended.
    pub(super) fn detach(&self) {
        let mut counts = self.counts();
        counts.attached -= 1;
        self.note_loss(&counts);
    }

    /// The node has taken a connection of QUIC.
    pub(super) fn reach(&self) {
        self.counts().is_reached_by_quic = true;
        self.reached.send_replace(Some(Reached::Yes));
    }

    /// That connection has ended.
    pub(super) fn lose_reach(&self) {
        let mut counts = self.counts();
        counts.is_reached_by_quic = false;
        self.note_loss(&counts);
        drop(counts);
        self.changed.notify_one();
    }

    fn note_loss(&self, counts: &Counts) {
        if !counts.is_reached() {
            self.reached.send_replace(None);
        }
    }

    /// The node does not take the device's token.
    pub(super) fn refuse_token(&self) {
        let counts = self.counts();
        if !counts.is_reached() {
            self.reached.send_replace(Some(Reached::TokenRefused));
        }
    }

    /// Waits until it is known whether the node takes the device's connections.
    pub(super) fn reached(&self) -> impl Future<Output = Reached> + Send + use<> {
        let mut reached = self.reached.subscribe();
        async move {
            // If the pool has ended, nobody waits any longer.
            let found = reached.wait_for(Option::is_some).await;
            found.ok().and_then(|found| *found).unwrap_or(Reached::TokenRefused)
        }
    }

    /// A warm connection begins a visit. So many more visitors wait for one.
    pub(super) fn begin_visit(&self, waiting: usize) {
        let mut counts = self.counts();
        counts.warm -= 1;
        counts.busy += 1;
        counts.peaks[0] = counts.peaks[0].max(counts.visits());
        counts.waiting = counts.waiting.max(waiting);
        drop(counts);
        self.changed.notify_one();
    }

    /// So many visitors wait for a connection.
    pub(super) fn note_waiting(&self, waiting: usize) {
        let mut counts = self.counts();
        counts.waiting = counts.waiting.max(waiting);
        drop(counts);
        self.changed.notify_one();
    }

    /// A stream begins a visit.
    pub(super) fn begin_stream(&self) {
        let mut counts = self.counts();
        counts.streams += 1;
        counts.peaks[0] = counts.peaks[0].max(counts.visits());
        drop(counts);
        self.changed.notify_one();
    }

    /// The visit of a stream has ended.
    pub(super) fn end_stream(&self) {
        self.counts().streams -= 1;
        self.changed.notify_one();
    }

    /// A visit has ended. Its connection is warm again if it was kept.
    pub(super) fn end_visit(&self, is_kept: bool) {
        let mut counts = self.counts();
        counts.busy -= 1;
        counts.warm += usize::from(is_kept);
        drop(counts);
        if !is_kept {
            self.changed.notify_one();
        }
    }

    /// A warm connection was lost.
    pub(super) fn lose(&self) {
        self.counts().warm -= 1;
        self.changed.notify_one();
    }

    /// Whether a connection that waits for a visit is one too many. If so, it no longer counts as warm. Those that are being
    /// dialled do not make it one: they may fail.
    pub(super) fn is_surplus(&self) -> bool {
        self.end_surplus(|counts| counts.warm.min(counts.attached.saturating_sub(counts.busy)))
    }

    /// The same of a connection that is being dialled.
    pub(super) fn is_surplus_dial(&self) -> bool {
        self.end_surplus(|counts| counts.warm)
    }

    fn end_surplus(&self, connections: impl FnOnce(&Counts) -> usize) -> bool {
        let now = self.clock.moment();
        let mut counts = self.counts();
        let is_surplus = connections(&counts) > counts.wanted(now);
        counts.warm -= usize::from(is_surplus);
        is_surplus
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use futures_util::FutureExt;

    use super::*;

    /// The node takes connections.
    fn attach(census: &Census, connections: usize) {
        for _ in 0..connections {
            census.attach(Attached { ahead: MIN_WARM, most: MAX_WARM }, Duration::ZERO);
        }
    }

    /// After a burst, as many connections stay warm as were busy at once, for 10 to 20 s.
    #[test]
    fn warm_connections_follow_the_peak_of_visits() {
        let clock = Clock::manual(DateTime::UNIX_EPOCH);
        let census = Census::new(clock.clone());
        assert_eq!(census.missing(), MIN_WARM);
        assert_eq!(census.missing(), 0, "they are being dialled");
        for _ in 0..MIN_WARM {
            census.begin_visit(5);
        }
        assert_eq!(census.missing(), 5, "for the visitors who wait");
        for _ in 0..5 {
            census.begin_visit(0);
        }
        assert_eq!(census.missing(), MIN_WARM);
        attach(&census, 7 + MIN_WARM);
        for _ in 0..7 {
            census.end_visit(true);
        }
        assert!(!census.is_surplus(), "seven were busy at once");
        clock.advance(RECENT);
        assert!(!census.is_surplus());
        clock.advance(RECENT);
        for _ in 0..7 {
            assert!(census.is_surplus());
        }
        assert!(!census.is_surplus(), "{MIN_WARM} are kept");
    }

    /// Beside a connection of QUIC, one connection is kept, and more again when that has ended.
    #[test]
    fn fewer_warm_connections_are_kept_beside_quic() {
        let census = Census::new(Clock::manual(DateTime::UNIX_EPOCH));
        assert_eq!(census.missing(), MIN_WARM);
        attach(&census, MIN_WARM);
        census.reach();
        assert!(census.is_surplus());
        assert!(!census.is_surplus(), "{MIN_WARM_BESIDE_QUIC} is kept");
        census.lose_reach();
        assert_eq!(census.changed().now_or_never(), Some(()), "the dialling task wakes");
        assert_eq!(census.missing(), MIN_WARM - MIN_WARM_BESIDE_QUIC);
    }

    /// A connection that the node has taken does not give way to one that it may not take.
    #[test]
    fn dialled_connection_gives_way_to_attached_one() {
        let census = Census::new(Clock::manual(DateTime::UNIX_EPOCH));
        assert_eq!(census.missing(), MIN_WARM);
        attach(&census, 1);
        census.reach();
        assert!(!census.is_surplus());
        assert!(census.is_surplus_dial());
        assert!(!census.is_surplus_dial());
    }

    /// Connections that are being dialled count.
    #[test]
    fn visitors_who_wait_get_a_connection_each() {
        let census = Census::new(Clock::manual(DateTime::UNIX_EPOCH));
        assert_eq!(census.missing(), MIN_WARM);
        census.note_waiting(5);
        assert_eq!(census.missing(), 5 - MIN_WARM);
        census.note_waiting(5);
        assert_eq!(census.missing(), 0);
    }

    #[test]
    fn warm_connections_have_a_bound() {
        let census = Census::new(Clock::manual(DateTime::UNIX_EPOCH));
        census.missing();
        census.begin_visit(100_000);
        assert_eq!(census.missing(), MAX_WARM - (MIN_WARM - 1));
    }
}
