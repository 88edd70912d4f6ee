//! Names follow a pattern, and subdomains begin with the name of the Team.

use culvert::policy::types::Violation;
use culvert_policy_sdk::facts::TEAM_NAME;
use culvert_policy_sdk::pattern::Regex;
use exports::culvert::policy::inputs::{Facts, Input};

culvert_policy_sdk::policy! {
    Naming: "validation", wit: "../../../wit",
    settings: "../settings.schema.json",
    facts: [TEAM_NAME],
    rules: { "name-pattern": "Names follow the pattern", "team-subdomain": "Subdomains begin with the Team's name" },
}

#[derive(serde::Deserialize)]
struct Naming {
    name: Regex,
}

impl Naming {
    fn validate(&self, input: &Input, facts: &Facts) -> Vec<Violation> {
        let Input::TunnelCreate(new) = input else { return Vec::new() };
        let team = TEAM_NAME.of(&facts.attributes).map(|team| format!("{}-", team.to_lowercase()));
        let mut found = Vec::new();
        if !self.name.is_match(new.name.as_deref().unwrap_or_default()) {
            found.push(violation("name", "name-pattern", "must follow the operator's pattern for names"));
        }
        if let (Some(team), Some(subdomain)) = (team, &new.subdomain) {
            let begins = subdomain.to_lowercase().starts_with(&team);
            found
                .extend((!begins).then(|| violation("subdomain", "team-subdomain", format!("must begin with {team}"))));
        }
        found
    }
}
