//! Deadlines that are moved all the time, in the order in which they come.

use std::collections::{BTreeSet, HashMap};

use chrono::{DateTime, Utc};
use uuid::Uuid;

#[derive(Default)]
pub(super) struct Deadlines {
    by_id: HashMap<Uuid, DateTime<Utc>>,
    in_order: BTreeSet<(DateTime<Utc>, Uuid)>,
}

impl Deadlines {
    pub(super) fn set(&mut self, id: Uuid, at: DateTime<Utc>) {
        if let Some(former) = self.by_id.insert(id, at) {
            self.in_order.remove(&(former, id));
        }
        self.in_order.insert((at, id));
    }

    pub(super) fn get(&self, id: Uuid) -> Option<DateTime<Utc>> {
        self.by_id.get(&id).copied()
    }

    pub(super) fn remove(&mut self, id: Uuid) {
        if let Some(at) = self.by_id.remove(&id) {
            self.in_order.remove(&(at, id));
        }
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = Uuid> {
        self.by_id.keys().copied()
    }

    /// What is due at this time, the earliest first.
    pub(super) fn due(&self, now: DateTime<Utc>) -> impl Iterator<Item = Uuid> {
        self.in_order.iter().take_while(move |(at, _)| *at <= now).map(|(_, id)| *id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moved_deadline_is_due_at_its_new_time_alone() {
        let (at, one, other) = (DateTime::from_timestamp_micros, Uuid::from_u128(1), Uuid::from_u128(2));
        let at = |micros| at(micros).unwrap();
        let mut deadlines = Deadlines::default();
        deadlines.set(one, at(10));
        deadlines.set(other, at(20));
        deadlines.set(one, at(30));
        assert_eq!(deadlines.due(at(29)).collect::<Vec<_>>(), [other]);
        assert_eq!(deadlines.due(at(30)).collect::<Vec<_>>(), [other, one]);
        deadlines.remove(other);
        assert_eq!((deadlines.get(one), deadlines.get(other)), (Some(at(30)), None));
        assert_eq!(deadlines.due(at(30)).collect::<Vec<_>>(), [one]);
    }
}
