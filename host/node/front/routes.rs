//! The names of http tunnels, and where they lead.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock};

use culvert_wire::node::{Route, RouteName};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

#[derive(Default)]
pub(crate) struct Routes(RwLock<Table>);

#[derive(Default)]
struct Table {
    by_tunnel: HashMap<Uuid, RouteEntry>,
    by_name: HashMap<String, Found>,
    /// How many tunnels make TLS themselves.
    passed_through: usize,
}

struct RouteEntry {
    route: Arc<Route>,
    /// Whose TLS is passed through; `None` where the node makes it.
    passing: Option<CancellationToken>,
}

impl RouteEntry {
    /// Keeps those whose TLS is passed through where that is still so; cuts them off otherwise.
    fn handed_over(self, next: &Route) -> Option<CancellationToken> {
        if next.tls_passthrough && self.route.names == next.names {
            return self.passing;
        }
        self.cut_off();
        None
    }

    fn cut_off(self) {
        self.passing.iter().for_each(CancellationToken::cancel);
    }
}

/// Where a name leads.
#[derive(Clone)]
pub(crate) struct Found {
    pub route: Arc<Route>,
    /// The extra port; `None` for the tunnel's own port.
    pub port_id: Option<Uuid>,
    /// Whether the agent makes TLS with the service.
    pub tls: bool,
    /// Where TLS is passed through: cancelled when it no longer is, or the tunnel's names change.
    pub passing: Option<CancellationToken>,
}

impl Routes {
    pub(crate) fn find(&self, name: &str) -> Option<Found> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).by_name.get(name).cloned()
    }

    /// Whether there is any tunnel whose service makes TLS itself.
    pub(crate) fn has_passed_through(&self) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).passed_through > 0
    }

    /// Replaces all routes.
    pub(crate) fn replace(&self, routes: Vec<Route>) {
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let former = std::mem::take(&mut *table);
        table.put_all(routes, former.by_tunnel);
    }

    pub(crate) fn change(&self, put: Vec<Route>, drop: &[Uuid]) {
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        // A name may go from one tunnel to another in one change.
        let gone: HashSet<Uuid> = drop.iter().copied().chain(put.iter().map(|route| route.tunnel_id)).collect();
        let former = gone.iter().filter_map(|tunnel_id| Some((*tunnel_id, table.remove(*tunnel_id)?))).collect();
        table.put_all(put, former);
    }
}

impl Table {
    /// Adds routes. Visitors whose TLS is passed through stay where that is still so.
    fn put_all(&mut self, routes: Vec<Route>, mut former: HashMap<Uuid, RouteEntry>) {
        for route in routes {
            let former = former.remove(&route.tunnel_id).and_then(|entry| entry.handed_over(&route));
            let passing = route.tls_passthrough.then(|| former.unwrap_or_default());
            self.put(route, passing);
        }
        former.into_values().for_each(RouteEntry::cut_off);
    }

    fn put(&mut self, route: Route, passing: Option<CancellationToken>) {
        let route = Arc::new(route);
        self.passed_through += usize::from(route.tls_passthrough);
        for RouteName { name, port_id, tls } in &route.names {
            let found = Found { route: route.clone(), port_id: *port_id, tls: *tls, passing: passing.clone() };
            self.by_name.insert(name.clone(), found);
        }
        self.by_tunnel.insert(route.tunnel_id, RouteEntry { route, passing });
    }

    fn remove(&mut self, tunnel_id: Uuid) -> Option<RouteEntry> {
        let entry = self.by_tunnel.remove(&tunnel_id)?;
        self.passed_through -= usize::from(entry.route.tls_passthrough);
        for name in &entry.route.names {
            self.by_name.remove(&name.name);
        }
        Some(entry)
    }
}
