//! What a node measures for its host's metrics, since its process started.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use culvert_wire::node::{self, Count, Counted, Measured, TIME_BOUNDS, Timed};

use crate::lock;

/// The classes of statuses (RFC 9110, section 15), by their first digit.
const CLASSES: [&str; 6] = ["other", "1xx", "2xx", "3xx", "4xx", "5xx"];

#[derive(Default)]
pub(crate) struct Counts {
    labelled: Mutex<BTreeMap<(Counted, &'static str), u64>>,
    answers: [AtomicU64; CLASSES.len()],
    pub visit_waits: Times,
    pub exchanges: Times,
    pub tcp_visitors: Level,
    pub http_visitors: Level,
    pub flows: Level,
    /// Datagrams that were passed on.
    pub datagrams_in: Level,
    pub datagrams_out: Level,
    pub warm: Level,
    pub busy: Level,
    pub quic: Level,
    pub streams: Level,
    pub unproven: Level,
}

impl Counts {
    pub(crate) fn count(&self, what: Counted, label: &'static str) {
        *lock(&self.labelled).entry((what, label)).or_default() += 1;
    }

    /// Counts an answer to a visitor.
    pub(crate) fn answered(&self, status: u16, took: Duration) {
        let class = usize::from(status / 100);
        self.answers[if class < CLASSES.len() { class } else { 0 }].fetch_add(1, Ordering::Relaxed);
        self.exchanges.note(took);
    }

    pub(crate) fn all(&self) -> Vec<Count> {
        let answers = CLASSES.iter().zip(&self.answers).map(|(label, count)| Count {
            what: Counted::Answers,
            label: (*label).into(),
            count: count.load(Ordering::Relaxed),
        });
        let labelled = lock(&self.labelled);
        let labelled =
            labelled.iter().map(|((what, label), count)| Count { what: *what, label: (*label).into(), count: *count });
        let datagrams = [("in", &self.datagrams_in), ("out", &self.datagrams_out)].map(|(label, count)| Count {
            what: Counted::Datagrams,
            label: label.into(),
            count: count.get(),
        });
        labelled.chain(answers.chain(datagrams).filter(|count| count.count > 0)).collect()
    }

    pub(crate) fn levels(&self) -> Vec<node::Level> {
        let levels = [
            (Measured::Visitors, "tcp", &self.tcp_visitors),
            (Measured::Visitors, "http", &self.http_visitors),
            (Measured::Visitors, "udp", &self.flows),
            (Measured::Carriers, "warm", &self.warm),
            (Measured::Carriers, "busy", &self.busy),
            (Measured::QuicCarriers, "open", &self.quic),
            (Measured::QuicCarriers, "busy", &self.streams),
            (Measured::Unproven, "", &self.unproven),
        ];
        levels.map(|(what, label, level)| node::Level { what, label: label.into(), level: level.get() }).into()
    }

    pub(crate) fn times(&self) -> Vec<node::Times> {
        vec![self.visit_waits.report(Timed::VisitWaits), self.exchanges.report(Timed::Exchanges)]
    }
}

/// How many of something there are, or were.
#[derive(Default)]
pub(crate) struct Level(AtomicU64);

impl Level {
    pub(crate) fn enter(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn leave(&self) {
        self.leave_all(1);
    }

    pub(crate) fn leave_all(&self, number: usize) {
        self.0.fetch_sub(number as u64, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How often something took how long.
#[derive(Default)]
pub(crate) struct Times {
    buckets: [AtomicU64; TIME_BOUNDS.len() + 1],
    sum_micros: AtomicU64,
}

impl Times {
    pub(crate) fn note(&self, took: Duration) {
        let bucket = TIME_BOUNDS.partition_point(|bound| *bound < took.as_secs_f64());
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_micros.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn report(&self, what: Timed) -> node::Times {
        node::Times {
            what,
            buckets: self.buckets.iter().map(|count| count.load(Ordering::Relaxed)).collect(),
            sum_micros: self.sum_micros.load(Ordering::Relaxed),
        }
    }
}
