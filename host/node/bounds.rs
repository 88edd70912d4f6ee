//! Limits on what visitors and agents may hold of one node at a time.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use culvert_wire::pipe::Budget;
use culvert_wire::socket::descriptor_limit;
use culvert_wire::unproven::Unproven;

/// The limit that refused a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// `node.visitors`
    Node,
    /// `node.visitors_per_tunnel`
    Tunnel,
    /// `node.visitors_per_address`
    Address,
    /// `node.unproven` or `node.unproven_per_address`
    Unproven,
}

impl Bound {
    pub const ALL: [Self; 4] = [Self::Node, Self::Tunnel, Self::Address, Self::Unproven];

    pub fn name(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Tunnel => "tunnel",
            Self::Address => "address",
            Self::Unproven => "unproven",
        }
    }
}

/// The limits of one node; see `docs/operate/settings.md`.
#[derive(Clone, Debug)]
pub struct Limits {
    pub visitors: usize,
    pub visitors_per_tunnel: usize,
    pub visitors_per_address: usize,
    pub flows: usize,
    pub flows_per_tunnel: usize,
    pub flows_per_address: usize,
    /// A second, of one tunnel.
    pub new_flows_per_second: usize,
    pub buffer_mib: usize,
    pub descriptor_reserve: f64,
    pub unproven: usize,
    pub unproven_per_address: usize,
}

pub struct Bounds {
    pub visitors_per_tunnel: usize,
    pub visitors_per_address: usize,
    pub flows_per_tunnel: usize,
    pub flows_per_address: usize,
    pub new_flows_per_second: usize,
    pub unproven: usize,
    pub unproven_per_address: usize,
    pub buffers: Budget,
    on_refused: Arc<dyn Fn(Bound) + Send + Sync>,
    /// Connections that were refused since they were last logged.
    refused: [AtomicUsize; Bound::ALL.len()],
    visitors: usize,
    flows: usize,
    /// How many visitors there are, and how many flows.
    inside: [AtomicUsize; 2],
    descriptors: Descriptors,
}

/// What a place is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceKind {
    /// A connection or an exchange.
    Visitor,
    /// A visitor of a UDP port.
    Flow,
}

/// A visitor's place on a node. Dropping it frees the place.
pub struct Place(Arc<Bounds>, PlaceKind);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.inside[self.1 as usize].fetch_sub(1, Ordering::Relaxed);
    }
}

impl Bounds {
    pub fn new(limits: &Limits, on_refused: Arc<dyn Fn(Bound) + Send + Sync>) -> Arc<Self> {
        Arc::new(Self {
            visitors: limits.visitors,
            visitors_per_tunnel: limits.visitors_per_tunnel,
            visitors_per_address: limits.visitors_per_address,
            flows: limits.flows,
            flows_per_tunnel: limits.flows_per_tunnel,
            flows_per_address: limits.flows_per_address,
            new_flows_per_second: limits.new_flows_per_second,
            unproven: limits.unproven,
            unproven_per_address: limits.unproven_per_address,
            buffers: Budget::new(limits.buffer_mib.saturating_mul(1024 * 1024)),
            on_refused,
            refused: Default::default(),
            inside: Default::default(),
            descriptors: Descriptors::of_this_process(limits.descriptor_reserve),
        })
    }

    /// The limits of a listener for agents.
    pub(crate) fn unproven_entries(self: &Arc<Self>) -> Arc<Unproven> {
        let bounds = self.clone();
        Unproven::new(self.unproven, self.unproven_per_address, move || bounds.refused(Bound::Unproven))
    }

    /// Counts a connection that a limit refused.
    pub fn refused(&self, bound: Bound) {
        (self.on_refused)(bound);
        self.refused[bound as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// The connections that were refused since the last call, by limit.
    pub fn take_refused(&self) -> Vec<(Bound, usize)> {
        let taken = Bound::ALL.map(|bound| (bound, self.refused[bound as usize].swap(0, Ordering::Relaxed)));
        taken.into_iter().filter(|(_, number)| *number > 0).collect()
    }

    /// Takes a place for one more; `None` if the node is full.
    pub fn take_place(self: &Arc<Self>, kind: PlaceKind) -> Option<Place> {
        let most = match kind {
            PlaceKind::Visitor => self.visitors,
            PlaceKind::Flow => self.flows,
        };
        let more = |inside: usize| (inside < most).then_some(inside + 1);
        let taken = self.inside[kind as usize].fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.is_ok().then(|| Place(self.clone(), kind))
    }

    /// Whether the socket of a visitor that was just accepted took a descriptor of the reserve.
    pub fn is_in_reserve(&self, visitor: &impl AsRawFd) -> bool {
        self.descriptors.reserve_from.is_some_and(|from| visitor.as_raw_fd() >= from)
    }

    /// Whether only the reserve of descriptors is left, so that visitors have to wait.
    pub fn is_short_of_descriptors(&self, any: &impl AsFd) -> bool {
        self.descriptors.are_short(any)
    }
}

/// The limit on file descriptors of this process. A share of them is reserved for the API and the agents.
struct Descriptors {
    /// The lowest descriptor number of the reserve; `None` if the process has no limit.
    reserve_from: Option<RawFd>,
}

impl Descriptors {
    fn of_this_process(reserve: f64) -> Self {
        let from = descriptor_limit().map(|limit| (limit as f64 * (1.0 - reserve)) as u64);
        Self { reserve_from: from.and_then(|from| RawFd::try_from(from).ok()) }
    }

    /// Whether a new descriptor comes from the reserve. It has the lowest free number (POSIX.1-2017, System
    /// Interfaces, section 2.14), so a number in the reserve means that all lower ones are taken.
    fn are_short(&self, any: &impl AsFd) -> bool {
        let Some(reserve_from) = self.reserve_from else { return false };
        any.as_fd().try_clone_to_owned().map_or(true, |probe| probe.as_raw_fd() >= reserve_from)
    }
}
