//! Access rules for visitors: reading and replacing them.

use crate::Service;
use culvert_domain::caller::Caller;
use uuid::Uuid;

use crate::commit::Change;
use crate::gate::Permit;
use culvert_domain::access::{CountryRule, FirewallRule, NewFirewallRule};
use culvert_domain::error::Result;
use culvert_store::Write;

impl Service {
    /// The firewall rules of a tunnel.
    ///
    /// # Errors
    ///
    /// `Code::NotFound` if the scope has no such tunnel; if the database fails.
    pub async fn firewall(&self, caller: &Caller, tunnel_id: Uuid) -> Result<Vec<FirewallRule>> {
        let tunnel = self.tunnel(caller, tunnel_id).await?;
        self.store.firewall(tunnel.id).await
    }

    /// The GeoIP rules of a tunnel.
    ///
    /// # Errors
    ///
    /// `Code::NotFound` if the scope has no such tunnel; if the database fails.
    pub async fn country_rules(&self, caller: &Caller, tunnel_id: Uuid) -> Result<CountryRules> {
        let tunnel = self.tunnel(caller, tunnel_id).await?;
        let rules = self.store.country_rules(tunnel.id).await?;
        Ok(CountryRules { rules, enforced: tunnel.node.knows_countries })
    }
}

pub struct ReplaceFirewall {
    pub tunnel_id: Uuid,
    pub rules: Vec<NewFirewallRule>,
}

impl Change for ReplaceFirewall {
    type Done = Vec<FirewallRule>;

    async fn apply(&self, write: &mut Write, _: &Permit) -> Result<Vec<FirewallRule>> {
        write.replace_firewall(self.tunnel_id, &self.rules).await
    }
}

pub struct ReplaceCountryRules {
    pub tunnel_id: Uuid,
    pub rules: Vec<CountryRule>,
}

/// A tunnel's GeoIP rules, and whether its node can enforce them.
pub struct CountryRules {
    pub rules: Vec<CountryRule>,
    pub enforced: bool,
}

impl Change for ReplaceCountryRules {
    type Done = CountryRules;

    async fn apply(&self, write: &mut Write, permit: &Permit) -> Result<CountryRules> {
        let rules = write.replace_country_rules(self.tunnel_id, &self.rules).await?;
        Ok(CountryRules { rules, enforced: permit.facts().tunnel()?.node.knows_countries })
    }
}
