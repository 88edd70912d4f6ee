//! The journal of traffic: batches that the host has not acknowledged. In the host's process the journal is in
//! memory, so a crash loses what was not stored yet and counts nothing twice. It holds one batch of a scope and the last counts of
//! sessions that have ended since: as none begins without the host, its size is bounded by what the node serves.

use std::collections::BTreeMap;
use std::time::Duration;

use culvert_wire::clock::Moment;
use culvert_wire::node::{SessionTraffic, TrafficBatch};
use culvert_wire::tally::Tally;
use tokio::sync::watch;
use uuid::Uuid;

/// When an unacknowledged batch is sent again.
const RESEND_AFTER: Duration = Duration::from_secs(10);
/// Most sessions in one batch.
const ROWS: usize = 500;

/// Which unacknowledged batches are sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resend {
    /// Those that were sent too long ago.
    Due,
    /// All of them, after a reconnect.
    All,
}

pub(crate) struct Journal {
    boot_id: Uuid,
    last: u64,
    /// By number.
    batches: BTreeMap<u64, Pending>,
    /// The number of unacknowledged batches of each scope.
    scopes: Tally<Uuid>,
    /// The number of unacknowledged batches.
    waiting: watch::Sender<usize>,
}

struct Pending {
    scope_id: Uuid,
    rows: Vec<SessionTraffic>,
    sent: Moment,
}

impl Journal {
    pub(crate) fn new(boot_id: Uuid) -> Self {
        let (batches, scopes) = (BTreeMap::new(), Tally::default());
        Self { boot_id, last: 0, batches, scopes, waiting: watch::Sender::new(0) }
    }

    /// Whether a batch of this scope waits for the host. Running sessions then keep their counts, so that the
    /// journal does not grow while the host cannot store them.
    pub(crate) fn waits_for(&self, scope_id: Uuid) -> bool {
        self.scopes.of(&scope_id) > 0
    }

    /// Adds the traffic of a scope's sessions, and returns the batches to send.
    pub(crate) fn add(&mut self, scope_id: Uuid, rows: &[SessionTraffic], now: Moment) -> Vec<TrafficBatch> {
        let from = self.last + 1;
        for rows in rows.chunks(ROWS) {
            self.last += 1;
            self.batches.insert(self.last, Pending { scope_id, rows: rows.to_vec(), sent: now });
            self.scopes.add(scope_id, 1);
        }
        self.report();
        (from..=self.last).filter_map(|number| self.batch(number)).collect()
    }

    /// The host has stored these batches.
    pub(crate) fn acknowledge(&mut self, boot_id: Uuid, numbers: &[u64]) {
        if boot_id != self.boot_id {
            return;
        }
        for number in numbers {
            if let Some(pending) = self.batches.remove(number) {
                self.scopes.end_one(&pending.scope_id);
            }
        }
        self.report();
    }

    /// The batches to send again.
    pub(crate) fn due(&mut self, now: Moment, resend: Resend) -> Vec<TrafficBatch> {
        let due = |pending: &Pending| resend == Resend::All || now.since(pending.sent) >= RESEND_AFTER;
        let numbers: Vec<u64> = self.batches.iter().filter(|(_, p)| due(p)).map(|(number, _)| *number).collect();
        for number in &numbers {
            if let Some(pending) = self.batches.get_mut(number) {
                pending.sent = now;
            }
        }
        numbers.into_iter().filter_map(|number| self.batch(number)).collect()
    }

    /// The number of unacknowledged batches, as it changes.
    pub(crate) fn waiting(&self) -> watch::Receiver<usize> {
        self.waiting.subscribe()
    }

    fn batch(&self, number: u64) -> Option<TrafficBatch> {
        let oldest = *self.batches.first_key_value()?.0;
        let Pending { scope_id, rows, .. } = self.batches.get(&number)?;
        Some(TrafficBatch { boot_id: self.boot_id, number, oldest, scope_id: *scope_id, rows: rows.clone() })
    }

    fn report(&self) {
        self.waiting.send_replace(self.batches.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(bytes_in: u64) -> SessionTraffic {
        SessionTraffic { session_id: Uuid::nil(), tunnel_id: Uuid::nil(), bytes_in, bytes_out: 0 }
    }

    fn numbers(batches: &[TrafficBatch]) -> Vec<(u64, u64)> {
        batches.iter().map(|batch| (batch.number, batch.oldest)).collect()
    }

    #[test]
    fn batch_is_sent_again_until_it_is_acknowledged() {
        let (boot_id, ada, bob) = (Uuid::from_u128(1), Uuid::from_u128(2), Uuid::from_u128(3));
        let mut journal = Journal::new(boot_id);
        let start = Moment::default();
        assert_eq!(numbers(&journal.add(ada, &[row(1)], start)), [(1, 1)]);
        assert_eq!(numbers(&journal.add(bob, &[row(2)], start.plus(Duration::from_secs(5)))), [(2, 1)]);
        assert!(journal.waits_for(ada) && journal.waits_for(bob));
        let late = start.plus(RESEND_AFTER);
        assert_eq!(numbers(&journal.due(late, Resend::Due)), [(1, 1)]);
        assert!(journal.due(late, Resend::Due).is_empty(), "it was just sent");
        assert_eq!(numbers(&journal.due(late, Resend::All)), [(1, 1), (2, 1)]);
        journal.acknowledge(Uuid::from_u128(9), &[1, 2]);
        assert_eq!(*journal.waiting().borrow(), 2, "another process's numbers");
        journal.acknowledge(boot_id, &[1, 1, 7]);
        assert!(!journal.waits_for(ada) && journal.waits_for(bob));
        assert_eq!(numbers(&journal.due(late, Resend::All)), [(2, 2)]);
        journal.acknowledge(boot_id, &[2]);
        assert_eq!(*journal.waiting().borrow(), 0);
    }

    #[test]
    fn many_sessions_make_several_batches() {
        let mut journal = Journal::new(Uuid::nil());
        let batches = journal.add(Uuid::nil(), &vec![row(1); ROWS + 1], Moment::default());
        assert_eq!(batches.iter().map(|batch| batch.rows.len()).collect::<Vec<_>>(), [ROWS, 1]);
        assert!(journal.add(Uuid::nil(), &[], Moment::default()).is_empty());
    }
}
