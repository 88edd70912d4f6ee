//! Connections that have not proved yet whose they are: at the node a lease, at the API a device's key.
//!
//! An honest agent needs some milliseconds, so where there are too many, the oldest has to go: it
//! is the one that has been silent for the longest.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use crate::client_network::prefix;

pub struct Unproven {
    most: usize,
    per_address: usize,
    /// Called for each that has to go.
    count: Box<dyn Fn() + Send + Sync>,
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
    pub fn new(most: usize, per_address: usize, count: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { most, per_address, count: Box::new(count), table: Mutex::default() })
    }

    /// Enters a connection; an older one goes, where there is no place left.
    pub fn enter(self: &Arc<Self>, address: IpAddr) -> Entry {
        let address = prefix(address);
        let mut table = self.table();
        let of_address = table.by_address.get(&address).filter(|own| own.len() >= self.per_address);
        let oldest = match of_address {
            Some(own) => own.first().copied(),
            None if table.connections.len() >= self.most => table.connections.keys().next().copied(),
            None => None,
        };
        if let Some((_, evicted)) = oldest.and_then(|oldest| table.remove(oldest)) {
            (self.count)();
            evicted.cancel();
        }
        let (number, evicted) = (table.next, CancellationToken::new());
        table.next += 1;
        table.connections.insert(number, (address, evicted.clone()));
        table.by_address.entry(address).or_default().insert(number);
        drop(table);
        Entry { unproven: self.clone(), number, evicted }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
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
        self.unproven.table().remove(self.number);
    }
}
