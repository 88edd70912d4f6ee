//! Access rules for visitors: reading and replacing them.

use crate::Service;
use culvert_domain::caller::Caller;
use uuid::Uuid;

use crate::commit::Change;
use crate::gate::Permit;
use culvert_domain::access::{CountryRule, FirewallRule, NewFirewallRule};
use culvert_domain::error::Result;
use culvert_domain::node::Node;
use culvert_store::Write;

impl Service {
    /// The firewall rules of a tunnel.
    ///
    /// # Errors
    ///
    /// `Code::NotFound` if the scope has no such tunnel; if the database fails.
    pub async fn firewall(&self, caller: &Caller, tunnel_id: Uuid) -> Result<FirewallRules> {
        let tunnel = self.tunnel(caller, tunnel_id).await?;
        Ok(FirewallRules { rules: self.store.firewall(tunnel.id).await?, enforced: tunnel.node.is_online() })
    }

    /// The GeoIP rules of a tunnel.
    ///
    /// # Errors
    ///
    /// `Code::NotFound` if the scope has no such tunnel; if the database fails.
    pub async fn country_rules(&self, caller: &Caller, tunnel_id: Uuid) -> Result<CountryRules> {
        let tunnel = self.tunnel(caller, tunnel_id).await?;
        let rules = self.store.country_rules(tunnel.id).await?;
        Ok(CountryRules { rules, enforced: knows_countries(&tunnel.node) })
    }
}

pub struct ReplaceFirewall {
    pub tunnel_id: Uuid,
    pub rules: Vec<NewFirewallRule>,
}

/// A tunnel's firewall rules, and whether they are in force.
pub struct FirewallRules {
    pub rules: Vec<FirewallRule>,
    /// False where the host of the node is not heard of: the node may go by earlier rules.
    pub enforced: bool,
}

impl Change for ReplaceFirewall {
    type Done = FirewallRules;

    async fn apply(&self, write: &mut Write, permit: &Permit) -> Result<FirewallRules> {
        let rules = write.replace_firewall(self.tunnel_id, &self.rules).await?;
        Ok(FirewallRules { rules, enforced: permit.facts().tunnel()?.node.is_online() })
    }
}

pub struct ReplaceCountryRules {
    pub tunnel_id: Uuid,
    pub rules: Vec<CountryRule>,
}

/// A tunnel's GeoIP rules, and whether they are in force.
pub struct CountryRules {
    pub rules: Vec<CountryRule>,
    /// False where the node knows no countries, or its host is not heard of.
    pub enforced: bool,
}

impl Change for ReplaceCountryRules {
    type Done = CountryRules;

    async fn apply(&self, write: &mut Write, permit: &Permit) -> Result<CountryRules> {
        let rules = write.replace_country_rules(self.tunnel_id, &self.rules).await?;
        Ok(CountryRules { rules, enforced: knows_countries(&permit.facts().tunnel()?.node) })
    }
}

fn knows_countries(node: &Node) -> bool {
    node.knows_countries && node.is_online()
}
