//! Asks for a region where a Team has one by default. A policy cannot fill it in: it says which one to name.

use std::collections::HashMap;

use culvert::policy::types::Violation;
use culvert_policy_sdk::facts::TEAM_NAME;
use exports::culvert::policy::inputs::{Facts, Input};

culvert_policy_sdk::policy! {
    DefaultRegion: "validation", wit: "../../../wit",
    settings: "../settings.schema.json",
    facts: [TEAM_NAME],
    rules: { "region": "Tunnels of the Team are created in its region" },
}

#[derive(serde::Deserialize)]
struct DefaultRegion {
    regions: HashMap<String, String>,
}

impl DefaultRegion {
    fn validate(&self, input: &Input, facts: &Facts) -> Vec<Violation> {
        let Input::TunnelCreate(new) = input else { return Vec::new() };
        let region = TEAM_NAME.of(&facts.attributes).and_then(|team| self.regions.get(&team));
        match region {
            Some(region) if new.region.as_ref() != Some(region) => {
                vec![violation("region", "region", format!("must be {region} for this Team"))]
            }
            _ => Vec::new(),
        }
    }
}
