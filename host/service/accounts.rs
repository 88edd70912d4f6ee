//! Accounts, and what the platform offers them.

use culvert_domain::account::Account;
use culvert_domain::caller::Caller;
use culvert_domain::error::{Error, Result};
use culvert_domain::node::{Node, PlatformDomain};
use culvert_domain::preset::Preset;
use culvert_domain::usage::Bandwidth;

use crate::Service;

/// The use of a scope.
#[derive(Clone, Copy, Debug)]
pub struct ScopeUsage {
    pub total_tunnels: u64,
    pub active_tunnels: u64,
    pub bandwidth: Bandwidth,
}

impl Service {
    /// The account of the caller's key.
    ///
    /// # Errors
    ///
    /// `Code::NotFound` if there is no such account any longer; if the database fails.
    pub async fn account(&self, caller: &Caller) -> Result<Account> {
        self.store.account(caller.account_id).await?.ok_or_else(Error::not_found)
    }

    /// The tunnels of the caller's scope, and its traffic.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn scope_usage(&self, caller: &Caller) -> Result<ScopeUsage> {
        let (total_tunnels, active_tunnels) = self.store.tunnel_counts(caller.scope.id).await?;
        let bandwidth = self.store.scope_bandwidth(caller.scope.id).await?;
        Ok(ScopeUsage { total_tunnels, active_tunnels, bandwidth })
    }

    /// All nodes of the platform.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn listed_nodes(&self) -> Result<Vec<Node>> {
        self.store.nodes().await
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
