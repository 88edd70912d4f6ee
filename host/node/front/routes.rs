//! The names of http tunnels, and where they lead.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock};

use culvert_wire::node::Route;
use uuid::Uuid;

#[derive(Default)]
pub(crate) struct Routes(RwLock<Table>);

#[derive(Default)]
struct Table {
    by_tunnel: HashMap<Uuid, Arc<Route>>,
    by_name: HashMap<String, Found>,
}

/// Where a name leads.
#[derive(Clone)]
pub(crate) struct Found {
    pub route: Arc<Route>,
    /// The extra port; `None` for the tunnel's own port.
    pub port_id: Option<Uuid>,
}

impl Routes {
    pub(crate) fn find(&self, name: &str) -> Option<Found> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).by_name.get(name).cloned()
    }

    /// Replaces all routes.
    pub(crate) fn replace(&self, routes: Vec<Route>) {
        let mut table = Table::default();
        routes.into_iter().for_each(|route| table.put(route));
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = table;
    }

    pub(crate) fn change(&self, put: Vec<Route>, drop: &[Uuid]) {
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        // A name may go from one tunnel to another in one change.
        let gone: HashSet<Uuid> = drop.iter().copied().chain(put.iter().map(|route| route.tunnel_id)).collect();
        gone.iter().for_each(|tunnel_id| table.remove(*tunnel_id));
        put.into_iter().for_each(|route| table.put(route));
    }
}

impl Table {
    fn put(&mut self, route: Route) {
        let route = Arc::new(route);
        for name in &route.names {
            self.by_name.insert(name.name.clone(), Found { route: route.clone(), port_id: name.port_id });
        }
        self.by_tunnel.insert(route.tunnel_id, route);
    }

    fn remove(&mut self, tunnel_id: Uuid) {
        let Some(route) = self.by_tunnel.remove(&tunnel_id) else { return };
        for name in &route.names {
            self.by_name.remove(&name.name);
        }
    }
}
