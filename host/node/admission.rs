//! Admission of visitors to one tunnel, and eviction of visitors that changed rules deny.

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

pub(crate) struct Admission {
    countries: Arc<Countries>,
    bounds: Arc<Bounds>,
    door: Mutex<AdmissionState>,
}

/// Rules and admitted visitors. They are under one lock, so that a change of the rules applies to every
/// visitor: those admitted before it are checked again, those after it are checked by the new rules.
#[derive(Default)]
struct AdmissionState {
    version: i64,
    rules: AccessRules,
    inside: HashMap<u64, (IpAddr, CancellationToken)>,
    /// The number of admitted visitors from each client network.
    by_address: Tally<IpAddr>,
    next: u64,
}

/// Why a visitor was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdmissionRefusal {
    Rules,
    /// A limit on the number of visitors is reached.
    Bound(Bound),
}

/// An admitted visitor. Dropping it ends the admission.
pub(crate) struct AdmittedVisitor {
    access: Arc<Admission>,
    number: u64,
    _place: Place,
    /// Cancelled when changed rules deny the visitor, or when the visitor's port is closed.
    pub out: CancellationToken,
}

impl Admission {
    pub(crate) fn new(countries: Arc<Countries>, bounds: Arc<Bounds>, version: i64, rules: AccessRules) -> Arc<Self> {
        Arc::new(Self {
            countries,
            bounds,
            door: Mutex::new(AdmissionState { version, rules, ..AdmissionState::default() }),
        })
    }

    pub(crate) fn version(&self) -> i64 {
        lock(&self.door).version
    }

    /// Admits or refuses a visitor. The admission ends at the latest when `port` is cancelled.
    pub(crate) fn enter(
        self: &Arc<Self>,
        visitor: IpAddr,
        port: &CancellationToken,
    ) -> Result<AdmittedVisitor, AdmissionRefusal> {
        self.admit(visitor, port, self.bounds.visitors_per_address)
    }

    fn admit(
        self: &Arc<Self>,
        visitor: IpAddr,
        port: &CancellationToken,
        per_address: usize,
    ) -> Result<AdmittedVisitor, AdmissionRefusal> {
        let mut door = lock(&self.door);
        if !door.rules.admit(visitor, |address| self.countries.of(address)) {
            return Err(AdmissionRefusal::Rules);
        }
        let place = self.place(&door, visitor, per_address).map_err(AdmissionRefusal::Bound)?;
        let (number, out) = (door.next, port.child_token());
        door.next += 1;
        door.inside.insert(number, (visitor, out.clone()));
        door.by_address.add(prefix(visitor), 1);
        Ok(AdmittedVisitor { access: self.clone(), number, _place: place, out })
    }

    /// As [`Admission::enter`], for one exchange of HTTP. Many of one address may be under way: its connections are
    /// limited instead.
    pub(crate) fn enter_exchange(
        self: &Arc<Self>,
        visitor: IpAddr,
        run: &CancellationToken,
    ) -> Result<AdmittedVisitor, AdmissionRefusal> {
        self.admit(visitor, run, usize::MAX)
    }

    fn place(&self, door: &AdmissionState, visitor: IpAddr, per_address: usize) -> Result<Place, Bound> {
        if door.by_address.of(&prefix(visitor)) >= per_address {
            return Err(Bound::Address);
        }
        if door.inside.len() >= self.bounds.visitors_per_tunnel {
            return Err(Bound::Tunnel);
        }
        self.bounds.take_place().ok_or(Bound::Node)
    }

    /// Replaces the rules, and evicts the visitors that the new rules deny.
    pub(crate) fn replace(&self, version: i64, rules: AccessRules) {
        let mut door = lock(&self.door);
        (door.version, door.rules) = (version, rules);
        self.evict_denied(&door);
    }

    /// Applies the rules again to the admitted visitors, after the country database has changed.
    pub(crate) fn reevaluate(&self) {
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
