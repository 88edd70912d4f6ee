//! Limits connections that are not authenticated yet: at the node by a lease, at the API by a device's
//! key.
//!
//! An honest agent authenticates within milliseconds. So if there are too many connections, the oldest
//! is closed, because it has waited the longest without authenticating.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use crate::client_network::prefix;

pub struct Unproven {
    most: usize,
    per_address: usize,
    /// Called for each connection that is evicted.
    count: Box<dyn Fn() + Send + Sync>,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    next: u64,
    /// By number, in the order of arrival.
    connections: BTreeMap<u64, (IpAddr, CancellationToken)>,
    /// The numbers of each address's connections, oldest first.
    by_address: HashMap<IpAddr, BTreeSet<u64>>,
}

/// The entry of one connection; dropping it removes the connection from the limits.
pub struct Entry {
    unproven: Arc<Unproven>,
    number: u64,
    /// Cancelled when the connection must close to make room for another one.
    pub evicted: CancellationToken,
}

impl Unproven {
    pub fn new(most: usize, per_address: usize, count: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { most, per_address, count: Box::new(count), table: Mutex::default() })
    }

    /// Adds a connection. If there is no room, for its address or in total, the oldest one is evicted.
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
