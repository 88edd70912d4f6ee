//! How many visitors each tunnel has, as the host was told.

use std::collections::HashMap;

use culvert_wire::node::TunnelVisitors;
use uuid::Uuid;

/// Tunnels without visitors are left out.
#[derive(Default)]
pub(crate) struct ReportedVisitors(HashMap<Uuid, TunnelVisitors>);

impl ReportedVisitors {
    /// Takes the present numbers of all tunnels, and returns what the host has to be told.
    pub(crate) fn changes(&mut self, now: impl Iterator<Item = TunnelVisitors>) -> Vec<TunnelVisitors> {
        let now: HashMap<Uuid, TunnelVisitors> =
            now.filter(|tunnel| tunnel.visitors > 0).map(|tunnel| (tunnel.tunnel_id, tunnel)).collect();
        let left = self.0.values().filter(|told| !now.contains_key(&told.tunnel_id));
        let left = left.map(|told| TunnelVisitors { visitors: 0, ..*told });
        let changed = now.values().filter(|tunnel| self.0.get(&tunnel.tunnel_id) != Some(tunnel)).copied();
        let changes = left.chain(changed).collect();
        self.0 = now;
        changes
    }

    /// Forgets what was told: there is another host to tell.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_is_told_what_has_changed_and_everything_after_a_reconnect() {
        let mut reported = ReportedVisitors::default();
        let of = |tunnel: u128, visitors| {
            let scope_id = Uuid::from_u128(9);
            TunnelVisitors { tunnel_id: Uuid::from_u128(tunnel), scope_id, visitors }
        };
        assert_eq!(reported.changes([of(1, 0), of(2, 5)].into_iter()), [of(2, 5)]);
        assert_eq!(reported.changes([of(1, 0), of(2, 5)].into_iter()), []);
        assert_eq!(reported.changes([of(1, 3), of(2, 0)].into_iter()), [of(2, 0), of(1, 3)]);
        assert_eq!(reported.changes([].into_iter()), [of(1, 0)], "a tunnel that is no longer served");
        reported.changes([of(2, 7)].into_iter());
        reported.clear();
        assert_eq!(reported.changes([of(2, 7)].into_iter()), [of(2, 7)]);
    }
}
