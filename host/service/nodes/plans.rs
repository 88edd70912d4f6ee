//! The plans of the scopes whose tunnels a node serves.

use std::collections::HashMap;

use culvert_wire::tally::Tally;
use uuid::Uuid;

#[derive(Default)]
pub struct Plans {
    by_tunnel: HashMap<Uuid, (Uuid, String)>,
    /// The number of tunnels of each scope, by plan.
    scopes: HashMap<String, Tally<Uuid>>,
}

impl Plans {
    pub fn put(&mut self, tunnel_id: Uuid, scope_id: Uuid, plan: &str) {
        self.remove(tunnel_id);
        self.by_tunnel.insert(tunnel_id, (scope_id, plan.into()));
        self.scopes.entry(plan.into()).or_default().add(scope_id, 1);
    }

    pub fn remove(&mut self, tunnel_id: Uuid) {
        let Some((scope_id, plan)) = self.by_tunnel.remove(&tunnel_id) else { return };
        if let Some(scopes) = self.scopes.get_mut(&plan) {
            scopes.end_one(&scope_id);
            if scopes.keys().next().is_none() {
                self.scopes.remove(&plan);
            }
        }
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.scopes.keys().map(String::as_str)
    }

    pub fn scopes(&self, plan: &str) -> impl Iterator<Item = Uuid> {
        self.scopes.get(plan).into_iter().flat_map(Tally::keys).copied()
    }
}
