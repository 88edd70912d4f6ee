//! What keeps strangers from using up a node by datagrams with forged addresses: a rate of new flows, a memory of refused
//! addresses, and a limit on answers to addresses that nobody has proved.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::Duration;

use culvert_wire::client_network::network;
use culvert_wire::clock::Moment;

use crate::lock;

/// How long a refused address is remembered, and how many are.
const REFUSED_FOR: Duration = Duration::from_secs(10);
const REFUSED_MOST: usize = 1024;
/// Bytes a second that all unproven visitors of a network are answered with: of a /24, or of a /56 of IPv6.
const UNPROVEN_BYTES: usize = 64 * 1024;
/// Networks are counted in so many places, by a hash that strangers do not know. Two networks may share one.
const UNPROVEN_PLACES: usize = 4096;

/// Something that may happen so many times a second.
pub(super) struct Rate {
    most: usize,
    second: Option<(Moment, usize)>,
}

impl Rate {
    pub(super) fn new(most: usize) -> Self {
        Self { most, second: None }
    }

    /// Takes a part of this second's share; false if too little is left.
    pub(super) fn take(&mut self, part: usize, now: Moment) -> bool {
        let (begun, taken) =
            self.second.filter(|(begun, _)| now.since(*begun) < Duration::from_secs(1)).unwrap_or((now, 0));
        let allowed = taken + part <= self.most;
        self.second = Some((begun, if allowed { taken + part } else { taken }));
        allowed
    }
}

/// The addresses that the rules have refused of late: at most so many, the others are looked up again.
pub(super) struct RefusedAddresses {
    hashes: RandomState,
    places: Vec<Option<(IpAddr, Moment)>>,
}

impl RefusedAddresses {
    pub(super) fn new() -> Self {
        Self { hashes: RandomState::new(), places: Vec::new() }
    }

    pub(super) fn contains(&self, address: IpAddr, now: Moment) -> bool {
        let place = self.places.get(self.place(address)).copied().flatten();
        place.is_some_and(|(refused, at)| refused == address && now.since(at) < REFUSED_FOR)
    }

    pub(super) fn add(&mut self, address: IpAddr, now: Moment) {
        self.places.resize(REFUSED_MOST, None);
        let place = self.place(address);
        self.places[place] = Some((address, now));
    }

    /// The rules have changed.
    pub(super) fn clear(&mut self) {
        self.places.clear();
    }

    fn place(&self, address: IpAddr) -> usize {
        place(&self.hashes, address, REFUSED_MOST)
    }
}

/// What unproven visitors may still be answered with, by network.
pub(crate) struct UnprovenAnswers {
    hashes: RandomState,
    places: Mutex<Vec<Rate>>,
}

impl UnprovenAnswers {
    pub(crate) fn new() -> Self {
        Self { hashes: RandomState::new(), places: Mutex::default() }
    }

    /// Takes the bytes of an answer from a network's share; false if too little is left.
    pub(super) fn take(&self, visitor: IpAddr, bytes: usize, now: Moment) -> bool {
        let mut places = lock(&self.places);
        places.resize_with(UNPROVEN_PLACES, || Rate::new(UNPROVEN_BYTES));
        places[place(&self.hashes, network(visitor, 24, 56), UNPROVEN_PLACES)].take(bytes, now)
    }
}

fn place(hashes: &RandomState, address: IpAddr, places: usize) -> usize {
    (hashes.hash_one(address) % places as u64) as usize
}
