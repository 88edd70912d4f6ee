//! The database's time, as far as a host knows it: each heartbeat tells it, as late as the answer took.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use culvert_wire::clock::Moment;

/// Heartbeats of which the fastest is believed.
const KEPT: usize = 8;
/// A time that differs by more than this from what the former ones tell has jumped: the former ones say nothing any longer.
const JUMP: TimeDelta = TimeDelta::seconds(1);

/// What the last heartbeats have told.
#[derive(Debug, Default)]
pub struct DatabaseClock(Mutex<VecDeque<Answer>>);

#[derive(Clone, Copy, Debug)]
struct Answer {
    shown: DateTime<Utc>,
    /// The middle between question and answer.
    at: Moment,
    took: Duration,
}

impl DatabaseClock {
    /// Notes what the database's clock showed between two moments. Returns the best that is known: what it showed at a moment,
    /// off by half of what the answer took at most.
    pub fn note(&self, shown: DateTime<Utc>, asked: Moment, answered: Moment) -> (DateTime<Utc>, Moment) {
        let took = answered.since(asked);
        let answer = Answer { shown, at: asked.plus(took / 2), took };
        let mut answers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if best(&answers).is_some_and(|best| (answer.zero() - best.zero()).abs() > JUMP) {
            answers.clear();
        }
        if answers.len() == KEPT {
            answers.pop_front();
        }
        answers.push_back(answer);
        let best = best(&answers).unwrap_or(answer);
        (best.shown, best.at)
    }
}

fn best(answers: &VecDeque<Answer>) -> Option<Answer> {
    answers.iter().min_by_key(|answer| answer.took).copied()
}

impl Answer {
    /// What the database's clock showed at the beginning of the host's own scale.
    fn zero(&self) -> DateTime<Utc> {
        self.shown - TimeDelta::from_std(self.at.since(Moment::default())).unwrap_or_default()
    }
}
