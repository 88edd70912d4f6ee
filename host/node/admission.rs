//! Admission of visitors to one tunnel, and eviction of visitors that changed rules deny.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use tokio_util::sync::CancellationToken;

use super::bounds::{Bound, Bounds, Place, PlaceKind};
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
    visitors: Admitted,
    flows: Admitted,
    next: u64,
}

/// Those that are admitted.
#[derive(Default)]
struct Admitted {
    by_number: HashMap<u64, (IpAddr, CancellationToken)>,
    /// How many are from each client network.
    by_address: Tally<IpAddr>,
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
    kind: PlaceKind,
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

    /// How many are admitted now.
    pub(crate) fn visitors(&self) -> u64 {
        let door = lock(&self.door);
        (door.visitors.by_number.len() + door.flows.by_number.len()) as u64
    }

    /// Admits or refuses a visitor. The admission ends at the latest when `port` is cancelled.
    pub(crate) fn enter(
        self: &Arc<Self>,
        visitor: IpAddr,
        port: &CancellationToken,
    ) -> Result<AdmittedVisitor, AdmissionRefusal> {
        self.admit(visitor, port.child_token(), PlaceKind::Visitor, self.bounds.visitors_per_address)
    }

    /// As [`Admission::enter`], for a visitor of a UDP port.
    pub(crate) fn enter_flow(self: &Arc<Self>, visitor: IpAddr) -> Result<AdmittedVisitor, AdmissionRefusal> {
        self.admit(visitor, CancellationToken::new(), PlaceKind::Flow, self.bounds.flows_per_address)
    }

    fn admit(
        self: &Arc<Self>,
        visitor: IpAddr,
        out: CancellationToken,
        kind: PlaceKind,
        per_address: usize,
    ) -> Result<AdmittedVisitor, AdmissionRefusal> {
        let mut door = lock(&self.door);
        if !door.rules.admit(visitor, |address| self.countries.of(address)) {
            return Err(AdmissionRefusal::Rules);
        }
        let place = self.place(door.inside(kind), visitor, kind, per_address).map_err(AdmissionRefusal::Bound)?;
        let number = door.next;
        door.next += 1;
        let inside = door.inside(kind);
        inside.by_number.insert(number, (visitor, out.clone()));
        inside.by_address.add(prefix(visitor), 1);
        Ok(AdmittedVisitor { access: self.clone(), number, kind, _place: place, out })
    }

    /// As [`Admission::enter`], for one exchange of HTTP. Many of one address may be under way: its connections are
    /// limited instead.
    pub(crate) fn enter_exchange(
        self: &Arc<Self>,
        visitor: IpAddr,
        run: &CancellationToken,
    ) -> Result<AdmittedVisitor, AdmissionRefusal> {
        self.admit(visitor, run.child_token(), PlaceKind::Visitor, usize::MAX)
    }

    fn place(&self, inside: &Admitted, visitor: IpAddr, kind: PlaceKind, per_address: usize) -> Result<Place, Bound> {
        if inside.by_address.of(&prefix(visitor)) >= per_address {
            return Err(Bound::Address);
        }
        let per_tunnel = match kind {
            PlaceKind::Visitor => self.bounds.visitors_per_tunnel,
            PlaceKind::Flow => self.bounds.flows_per_tunnel,
        };
        if inside.by_number.len() >= per_tunnel {
            return Err(Bound::Tunnel);
        }
        self.bounds.take_place(kind).ok_or(Bound::Node)
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
        for (visitor, out) in door.visitors.by_number.values().chain(door.flows.by_number.values()) {
            if !door.rules.admit(*visitor, |address| self.countries.of(address)) {
                out.cancel();
            }
        }
    }
}

impl Drop for AdmittedVisitor {
    fn drop(&mut self) {
        lock(&self.access.door).inside(self.kind).leave(self.number);
    }
}

impl AdmissionState {
    fn inside(&mut self, kind: PlaceKind) -> &mut Admitted {
        match kind {
            PlaceKind::Visitor => &mut self.visitors,
            PlaceKind::Flow => &mut self.flows,
        }
    }
}

impl Admitted {
    fn leave(&mut self, number: u64) {
        if let Some((visitor, _)) = self.by_number.remove(&number) {
            self.by_address.end_one(&prefix(visitor));
        }
    }
}
