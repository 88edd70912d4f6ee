//! Keeps words out of the names of tunnels.

use culvert::policy::types::{Description, Problem, Rule, Violation};
use exports::culvert::policy::inputs::{Facts, Input};
use serde::Deserialize;

culvert_policy_sdk::policy!(Policy: "validation", wit: "wit");

const RULE: &str = "forbidden-word";

/// What the operator writes under `settings`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// Words that no tunnel's name may hold, in lower case.
    #[serde(default)]
    words: Vec<String>,
}

struct Policy {
    words: Vec<String>,
}

impl Policy {
    fn describe() -> Description {
        Description {
            name: env!("CARGO_PKG_NAME").into(),
            version: env!("CARGO_PKG_VERSION").into(),
            summary: "Keeps words out of the names of tunnels".into(),
            rules: vec![Rule { id: RULE.into(), summary: "A tunnel's name holds none of the forbidden words".into() }],
            codes: Vec::new(),
            settings_schema: include_str!("../settings.schema.json").into(),
        }
    }

    fn configure(settings: Settings) -> Result<Self, Vec<Problem>> {
        Ok(Self { words: settings.words })
    }

    fn validate(&self, input: &Input, _facts: &Facts) -> Vec<Violation> {
        let name = match input {
            Input::TunnelCreate(new) => new.name.as_deref(),
            Input::TunnelUpdate(patch) => patch.name.as_deref(),
            _ => None,
        };
        let name = name.unwrap_or_default().to_lowercase();
        let word = self.words.iter().find(|word| name.contains(word.as_str()));
        let violation = |word: &String| Violation {
            field: "name".into(),
            message: format!("must not hold the word {word}"),
            rule: RULE.into(),
        };
        word.map(violation).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use culvert_policy_sdk::Settings as _;

    use super::*;

    #[test]
    fn settings_are_read() {
        assert_eq!(Settings::parse(r#"{"words": ["darn"]}"#).unwrap().words, ["darn"]);
        assert!(Settings::parse(r#"{"word": "darn"}"#).is_err());
    }
}
