//! For how long the nodes of this host serve, and what other hosts wait for: that a node does not serve any longer what was
//! moved from it.

use culvert_domain::error::{Chain, Result};
use culvert_domain::lease::Lease;
use culvert_store::error::first_error;
use culvert_wire::clock::Moment;
use culvert_wire::control::NodeAddress;
use uuid::Uuid;

use super::{Link, Nodes, report};

impl Nodes {
    /// Tells the nodes until when they may serve, where that has a limit.
    pub(crate) fn extend_authority(&self, until: Option<Moment>) {
        self.links().iter().for_each(|link| link.extend_authority(until));
    }

    /// Ends what those nodes serve that an operator has given up, or that another host has taken.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub(crate) async fn end_lost(&self, host_id: Uuid) -> Result<()> {
        for node_id in self.store.lost_nodes(host_id, &self.ids()).await? {
            let Some(link) = self.link(node_id) else { continue };
            if link.lose() {
                tracing::error!(%node_id, "this node was abandoned; it serves nothing before its host is started again");
                link.extend_authority(None);
            }
        }
        Ok(())
    }

    /// As [`Nodes::confirm_moves`], for these nodes, as far as they are here.
    pub(crate) async fn confirm_moves_from(&self, node_ids: impl IntoIterator<Item = Uuid>) {
        for link in node_ids.into_iter().filter_map(|node_id| self.link(node_id)) {
            report("a move could not be confirmed", self.apply_and_confirm_moves(&link).await);
        }
    }

    /// Says of the tunnels that were moved from the nodes here that they are not served here any longer.
    ///
    /// # Errors
    ///
    /// If the database fails, or a node does not answer in time.
    pub(crate) async fn confirm_moves(&self) -> Result<()> {
        let mut result = Ok(());
        for link in self.links() {
            result = first_error(result, self.apply_and_confirm_moves(&link).await);
        }
        result
    }

    /// Has a node apply what has changed.
    pub(super) async fn apply_and_confirm_moves(&self, link: &Link) -> Result<()> {
        // What is moved after this look is told by the next one.
        let moved = self.store.moved_from(link.node_id()).await?;
        self.apply_here(link).await?;
        if moved.is_empty() { Ok(()) } else { self.store.confirm_moves(link.node_id(), moved).await }
    }

    /// Where agents reach the node of a lease that they hold, although its host does not answer: it serves them still.
    pub(crate) async fn serving_address(&self, lease: &Lease) -> Option<NodeAddress> {
        let address = self.store.serving_address(lease.node_id).await.unwrap_or_else(|error| {
            tracing::warn!(error = %Chain(&error), "the address of a node could not be read");
            None
        });
        let address = serde_json::from_str(&address?);
        address.inspect_err(|error| tracing::error!(%error, "the address of a node cannot be read")).ok()
    }
}
