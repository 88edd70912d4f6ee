//! Replacing the access rules for visitors.

use uuid::Uuid;

use crate::gate::Permit;
use crate::service::commit::Change;
use culvert_domain::access::{CountryRule, FirewallRule, NewFirewallRule};
use culvert_domain::error::Result;
use culvert_store::Write;

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

/// The rules after the change, and whether the tunnel's node can look up countries and enforce them.
pub struct ReplacedCountryRules {
    pub rules: Vec<CountryRule>,
    pub enforced: bool,
}

impl Change for ReplaceCountryRules {
    type Done = ReplacedCountryRules;

    async fn apply(&self, write: &mut Write, permit: &Permit) -> Result<ReplacedCountryRules> {
        let rules = write.replace_country_rules(self.tunnel_id, &self.rules).await?;
        Ok(ReplacedCountryRules { rules, enforced: permit.facts().tunnel()?.node.knows_countries })
    }
}
