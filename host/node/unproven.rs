//! Connections to the agents' listener that have not proved a lease yet.
//!
//! An honest agent needs some milliseconds, so where there are too many, the oldest has to go: it
//! is the one that has been silent for the longest.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use tokio_util::sync::CancellationToken;

use super::bounds::{Bound, Bounds};
use super::lock;
use crate::domain::prefix::prefix;

pub struct Unproven {
    bounds: Arc<Bounds>,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    next: u64,
    /// By the order in which they came.
    connections: BTreeMap<u64, (IpAddr, CancellationToken)>,
    /// The numbers of each address's connections, the oldest first.
    by_address: HashMap<IpAddr, BTreeSet<u64>>,
}

/// One connection's entry, until it is dropped.
pub struct Entry {
    unproven: Arc<Unproven>,
    number: u64,
    /// Cancelled when others need its place.
    pub evicted: CancellationToken,
}

impl Unproven {
    pub fn new(bounds: Arc<Bounds>) -> Arc<Self> {
        Arc::new(Self { bounds, table: Mutex::default() })
    }

    /// Enters a connection; an older one goes, where there is no place left.
    pub fn enter(self: &Arc<Self>, address: IpAddr) -> Entry {
        let address = prefix(address);
        let mut table = lock(&self.table);
        let of_address = table.by_address.get(&address).filter(|own| own.len() >= self.bounds.unproven_per_address);
        let oldest = match of_address {
            Some(own) => own.first().copied(),
            None if table.connections.len() >= self.bounds.unproven => table.connections.keys().next().copied(),
            None => None,
        };
        if let Some((_, evicted)) = oldest.and_then(|oldest| table.remove(oldest)) {
            self.bounds.refusals.count(Bound::Unproven);
            evicted.cancel();
        }
        let (number, evicted) = (table.next, CancellationToken::new());
        table.next += 1;
        table.connections.insert(number, (address, evicted.clone()));
        table.by_address.entry(address).or_default().insert(number);
        drop(table);
        Entry { unproven: self.clone(), number, evicted }
    }
}

impl Table {
    fn remove(&mut self, number: u64) -> Option<(IpAddr, CancellationToken)> {
        let removed = self.connections.remove(&number)?;
        if let Some(own) = self.by_address.get_mut(&removed.0) {
            own.remove(&number);
            if own.is_empty() {
                self.by_address.remove(&removed.0);
            }
        }
        Some(removed)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        lock(&self.unproven.table).remove(self.number);
    }
}
