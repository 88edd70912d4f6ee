//! Who is let in to one tunnel, and who has to go when its rules change.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use tokio_util::sync::CancellationToken;

use super::bounds::{Bound, Bounds, Place};
use super::countries::Countries;
use super::lock;
use culvert_domain::access::AccessRules;
use culvert_wire::client_network::prefix;
use culvert_wire::tally::Tally;

pub struct Admission {
    countries: Arc<Countries>,
    bounds: Arc<Bounds>,
    door: Mutex<AdmissionState>,
}

/// Rules and visitors under one lock: whoever comes in while the rules change is judged by the new
/// ones, if not at the door then right behind it.
#[derive(Default)]
struct AdmissionState {
    version: i64,
    rules: AccessRules,
    inside: HashMap<u64, (IpAddr, CancellationToken)>,
    /// How many of them came from one address.
    by_address: Tally<IpAddr>,
    next: u64,
}

/// Why a visitor was turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmissionRefusal {
    Rules,
    /// There are too many.
    Bound(Bound),
}

/// A visitor who was let in. Dropped, they are gone.
pub struct AdmittedVisitor {
    access: Arc<Admission>,
    number: u64,
    _place: Place,
    /// Cancelled when the rules turn against them, or their port is taken away.
    pub out: CancellationToken,
}

impl Admission {
    pub fn new(countries: Arc<Countries>, bounds: Arc<Bounds>, version: i64, rules: AccessRules) -> Arc<Self> {
        Arc::new(Self {
            countries,
            bounds,
            door: Mutex::new(AdmissionState { version, rules, ..AdmissionState::default() }),
        })
    }

    pub fn version(&self) -> i64 {
        lock(&self.door).version
    }

    /// Lets a visitor in at a port, for as long as that is open; or not.
    pub fn enter(
        self: &Arc<Self>,
        visitor: IpAddr,
        port: &CancellationToken,
    ) -> Result<AdmittedVisitor, AdmissionRefusal> {
        let mut door = lock(&self.door);
        if !door.rules.admit(visitor, |address| self.countries.of(address)) {
            return Err(AdmissionRefusal::Rules);
        }
        let place = self.place(&door, visitor).map_err(AdmissionRefusal::Bound)?;
        let (number, out) = (door.next, port.child_token());
        door.next += 1;
        door.inside.insert(number, (visitor, out.clone()));
        door.by_address.add(prefix(visitor), 1);
        Ok(AdmittedVisitor { access: self.clone(), number, _place: place, out })
    }

    fn place(&self, door: &AdmissionState, visitor: IpAddr) -> Result<Place, Bound> {
        if door.by_address.of(&prefix(visitor)) >= self.bounds.visitors_per_address {
            return Err(Bound::Address);
        }
        if door.inside.len() >= self.bounds.visitors_per_tunnel {
            return Err(Bound::Tunnel);
        }
        self.bounds.take_place().ok_or(Bound::Node)
    }

    /// From now on other rules hold, for those who are inside as well.
    pub fn replace(&self, version: i64, rules: AccessRules) {
        let mut door = lock(&self.door);
        (door.version, door.rules) = (version, rules);
        self.evict_denied(&door);
    }

    /// The countries are known anew.
    pub fn reevaluate(&self) {
        self.evict_denied(&lock(&self.door));
    }

    fn evict_denied(&self, door: &AdmissionState) {
        for (visitor, out) in door.inside.values() {
            if !door.rules.admit(*visitor, |address| self.countries.of(address)) {
                out.cancel();
            }
        }
    }
}

impl Drop for AdmittedVisitor {
    fn drop(&mut self) {
        lock(&self.access.door).leave(self.number);
    }
}

impl AdmissionState {
    fn leave(&mut self, number: u64) {
        if let Some((visitor, _)) = self.inside.remove(&number) {
            self.by_address.end_one(&prefix(visitor));
        }
    }
}
