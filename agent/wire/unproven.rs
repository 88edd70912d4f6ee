//! Limits connections that are not authenticated yet: at the node by a lease, at the API by a device's
//! key.
//!
//! An honest agent authenticates within milliseconds. So if there are too many connections, the oldest
//! is closed, because it has waited the longest without authenticating. One that has said what it has to say and waits
//! for the other side's work is not closed any more; it still counts for its address.

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
    /// Those that may be evicted, by number, in the order of arrival.
    connections: BTreeMap<u64, (IpAddr, CancellationToken)>,
    by_address: HashMap<IpAddr, OfAddress>,
}

/// The connections of one address.
#[derive(Default)]
struct OfAddress {
    /// The numbers of those that may be evicted, oldest first.
    evictable: BTreeSet<u64>,
    /// How many are held.
    held: usize,
}

impl OfAddress {
    fn count(&self) -> usize {
        self.evictable.len() + self.held
    }
}

/// The entry of one connection; dropping it removes the connection from the limits.
pub struct Entry {
    unproven: Arc<Unproven>,
    number: u64,
    /// The address for which it is held.
    held: Option<IpAddr>,
    /// Cancelled when the connection must close to make room for another one.
    pub evicted: CancellationToken,
}

impl Unproven {
    pub fn new(most: usize, per_address: usize, count: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { most, per_address, count: Box::new(count), table: Mutex::default() })
    }

    /// Adds a connection. If there is no room, for its address or in total, the oldest one is evicted; it is the new one
    /// itself if all others of its address are held.
    pub fn enter(self: &Arc<Self>, address: IpAddr) -> Entry {
        let address = prefix(address);
        let mut table = self.table();
        let (number, evicted) = (table.next, CancellationToken::new());
        table.next += 1;
        table.connections.insert(number, (address, evicted.clone()));
        let own = table.by_address.entry(address).or_default();
        own.evictable.insert(number);
        let oldest = if own.count() > self.per_address {
            own.evictable.first().copied()
        } else if table.connections.len() > self.most {
            table.connections.keys().next().copied()
        } else {
            None
        };
        if let Some((_, evicted)) = oldest.and_then(|oldest| table.remove(oldest)) {
            (self.count)();
            evicted.cancel();
        }
        drop(table);
        Entry { unproven: self.clone(), number, held: None, evicted }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn remove(&mut self, number: u64) -> Option<(IpAddr, CancellationToken)> {
        let removed = self.connections.remove(&number)?;
        self.change(removed.0, |own| {
            own.evictable.remove(&number);
        });
        Some(removed)
    }

    /// Changes what is known of an address, and forgets it when it has no connection.
    fn change(&mut self, address: IpAddr, change: impl FnOnce(&mut OfAddress)) {
        let own = self.by_address.entry(address).or_default();
        change(own);
        if own.count() == 0 {
            self.by_address.remove(&address);
        }
    }
}

impl Entry {
    /// From now on the connection is not evicted.
    pub fn hold(&mut self) {
        let mut table = self.unproven.table();
        if let Some((address, _)) = table.remove(self.number) {
            table.change(address, |own| own.held += 1);
            self.held = Some(address);
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut table = self.unproven.table();
        table.remove(self.number);
        if let Some(address) = self.held {
            table.change(address, |own| own.held -= 1);
        }
    }
}
