//! What the platform offers to all: nodes, domains and game presets.

use culvert_domain::error::Result;
use culvert_domain::node::{Node, PlatformDomain};
use culvert_domain::preset::Preset;
use culvert_store::Store;
use culvert_store::catalog::NodeRegistration;
use uuid::Uuid;

use crate::Service;

impl Service {
    /// All nodes of the platform.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn listed_nodes(&self) -> Result<Vec<Node>> {
        self.store.listed_nodes().await
    }

    /// All game presets.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn presets(&self) -> Result<Vec<Preset>> {
        self.store.presets().await
    }

    /// All domains of the platform.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn platform_domains(&self) -> Result<Vec<PlatformDomain>> {
        self.store.platform_domains().await
    }
}

/// Registers a node and its domain, and extends its leases, so that agents have time to reconnect. Nothing is changed where a
/// node of another host has the domain, whose id is returned.
///
/// # Errors
///
/// If the database fails.
pub async fn register_node(store: &Store, node: NodeRegistration) -> Result<Option<Uuid>> {
    store
        .write(None, move |write| {
            Box::pin(async move {
                if let Some(domain) = &node.domain
                    && let Some(other_id) = write.node_with_domain(domain).await?
                {
                    return Ok(Some(other_id));
                }
                let former = write.node(node.id).await?.filter(|known| known.domain_id.is_none());
                write.register_node(&node).await?;
                if node.domain.is_none() {
                    // Every tunnel belongs to some domain.
                    write.register_domain(&node.hostname).await?;
                }
                let former = former.map(|known| known.hostname);
                write.set_node_domain(node.id, former.as_deref(), node.domain.as_deref()).await?;
                // The host has the id of its first node.
                write.resume_host(node.id).await?;
                write.extend_leases(node.id).await?;
                Ok(None)
            })
        })
        .await
}

/// Stores what the operator has changed of a node.
///
/// # Errors
///
/// If the database fails.
pub async fn update_node(store: &Store, node: Node) -> Result<()> {
    store.write(None, move |write| Box::pin(async move { write.update_node(&node).await })).await
}
