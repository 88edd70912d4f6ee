//! How many connections to the listeners for http tunnels each address has.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use culvert_wire::client_network::prefix;
use culvert_wire::tally::Tally;

use crate::lock;

pub(crate) struct Addresses {
    most: usize,
    counts: Mutex<Tally<IpAddr>>,
}

impl Addresses {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, counts: Mutex::default() })
    }

    /// Counts a connection of an address; `None` if it has too many.
    pub(crate) fn enter(self: &Arc<Self>, address: IpAddr) -> Option<Entry> {
        let network = prefix(address);
        let mut counts = lock(&self.counts);
        if counts.of(&network) >= self.most {
            return None;
        }
        counts.add(network, 1);
        Some(Entry { addresses: self.clone(), network })
    }
}

/// A connection that is counted for its address. Dropping it ends the count.
pub(crate) struct Entry {
    addresses: Arc<Addresses>,
    network: IpAddr,
}

impl Drop for Entry {
    fn drop(&mut self) {
        lock(&self.addresses.counts).end_one(&self.network);
    }
}
