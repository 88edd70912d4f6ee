//! What runs on this device, and until when it may.

use std::collections::HashMap;
use std::time::Duration;

use uuid::Uuid;

use crate::clock::Moment;
use crate::local::TunnelStatus;
use crate::tunnel::{Node, Probe, Running, Surroundings};
use crate::wire::{Grant, Target};

pub struct Leases {
    around: Surroundings,
    /// How long a lease holds, from when its renewal was sent.
    term: Duration,
    held: HashMap<Uuid, Held>,
    /// The renewal that was sent last, and when.
    renewal: (u64, Option<Moment>),
}

struct Held {
    running: Running,
    until: Moment,
    serving: bool,
}

impl Leases {
    pub fn new(around: Surroundings) -> Self {
        Self { around, term: Duration::ZERO, held: HashMap::new(), renewal: (0, None) }
    }

    pub fn set_term(&mut self, term: Duration) {
        self.term = term;
    }

    pub fn ids(&self) -> Vec<Uuid> {
        self.held.keys().copied().collect()
    }

    /// Runs a tunnel under a new lease.
    pub fn begin(&mut self, grant: Grant, node: Node, probe: Probe) {
        let until = self.around.clock.moment().plus(self.term);
        let lease_id = grant.lease_id;
        let running = Running::start(grant, node, probe, self.around.clone());
        self.held.insert(lease_id, Held { running, until, serving: false });
    }

    /// Stops what runs under a lease.
    pub fn end(&mut self, lease_id: Uuid) -> Option<Grant> {
        self.held.remove(&lease_id).map(|held| held.running.into_grant())
    }

    /// The grant that runs, with its target as it is now.
    pub fn grant(&self, lease_id: Uuid) -> Option<Grant> {
        let running = &self.held.get(&lease_id)?.running;
        Some(Grant { target: running.target(), ..running.grant.clone() })
    }

    pub fn holds(&self, lease_id: Uuid) -> bool {
        self.held.contains_key(&lease_id)
    }

    /// The lease under which a tunnel runs.
    pub fn of_tunnel(&self, tunnel_id: Uuid) -> Option<Uuid> {
        let held = self.held.values().find(|held| held.running.grant.tunnel_id == tunnel_id);
        held.map(|held| held.running.grant.lease_id)
    }

    /// The tunnels that run under their leases, with them.
    pub fn tunnels(&self) -> Vec<(Uuid, Uuid)> {
        self.held.values().map(|held| (held.running.grant.lease_id, held.running.grant.tunnel_id)).collect()
    }

    /// By id, or by name where only one has it.
    pub fn find(&self, tunnel: &str) -> Option<Uuid> {
        let by_id = self.held.values().find(|held| held.running.grant.tunnel_id.to_string() == tunnel);
        let mut by_name = self.held.values().filter(|held| held.running.grant.name == tunnel);
        let found = by_id.or_else(|| by_name.next().filter(|_| by_name.next().is_none()));
        found.map(|held| held.running.grant.lease_id)
    }

    pub fn status(&self, lease_id: Uuid) -> Option<TunnelStatus> {
        let running = &self.held.get(&lease_id)?.running;
        let Target { host, port, .. } = running.target();
        Some(TunnelStatus {
            tunnel_id: running.grant.tunnel_id,
            name: running.grant.name.clone(),
            public_address: running.grant.public_address.clone(),
            local_target: format!("{host}:{port}"),
            target_error: running.target_error(),
        })
    }

    pub fn retarget(&mut self, lease_id: Uuid, target: Target) {
        if let Some(held) = self.held.get(&lease_id) {
            held.running.retarget(target);
        }
    }

    pub fn set_serving(&mut self, lease_id: Uuid) {
        if let Some(held) = self.held.get_mut(&lease_id) {
            held.serving = true;
        }
    }

    pub fn is_serving(&self, lease_id: Uuid) -> bool {
        self.held.get(&lease_id).is_some_and(|held| held.serving)
    }

    /// Whether everything that runs has come to stand ready.
    pub fn all_serving(&self) -> bool {
        self.held.values().all(|held| held.serving)
    }

    /// A renewal to be sent now.
    pub fn renewal(&mut self, now: Moment) -> (u64, Vec<Uuid>) {
        self.renewal = (self.renewal.0 + 1, Some(now));
        (self.renewal.0, self.ids())
    }

    /// The host has renewed leases. Their term counts from when they were asked for: the host's own
    /// count began later, so this device stops before the host gives a tunnel to another.
    pub fn renewed(&mut self, sequence: u64, lease_ids: &[Uuid]) {
        let (last, Some(sent)) = self.renewal else { return };
        if sequence != last {
            return;
        }
        let until = sent.plus(self.term);
        for lease_id in lease_ids {
            if let Some(held) = self.held.get_mut(lease_id) {
                held.until = held.until.max(until);
            }
        }
    }

    pub fn next_expiry(&self) -> Option<Moment> {
        self.held.values().map(|held| held.until).min()
    }

    pub fn expired(&self, now: Moment) -> Vec<Uuid> {
        self.held.iter().filter(|(_, held)| held.until <= now).map(|(id, _)| *id).collect()
    }

    pub fn probe_again(&self) {
        self.held.values().for_each(|held| held.running.probe_again());
    }
}
