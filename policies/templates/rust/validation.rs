//! Keeps words out of the names of tunnels.

use culvert::policy::types::Violation;
use exports::culvert::policy::inputs::{Facts, Input};
use serde::Deserialize;

culvert_policy_sdk::policy! {
    Policy: "validation", wit: "wit",
    settings: "../settings.schema.json",
    rules: { "forbidden-word": "A tunnel's name holds none of the forbidden words" },
}

/// What the operator writes under `settings`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Policy {
    /// Words that no tunnel's name may hold, in lower case.
    #[serde(default)]
    words: Vec<String>,
}

impl Policy {
    fn validate(&self, input: &Input, _facts: &Facts) -> Vec<Violation> {
        let name = match input {
            Input::TunnelCreate(new) => new.name.as_deref(),
            Input::TunnelUpdate(patch) => patch.name.as_deref(),
            _ => None,
        };
        let name = name.unwrap_or_default().to_lowercase();
        let word = self.words.iter().find(|word| name.contains(word.as_str()));
        let refused = |word: &String| violation("name", "forbidden-word", format!("must not hold the word {word}"));
        word.map(refused).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use culvert_policy_sdk::Settings as _;

    use super::*;

    #[test]
    fn settings_are_read() {
        assert_eq!(Policy::parse(r#"{"words": ["darn"]}"#).unwrap().words, ["darn"]);
        assert!(Policy::parse(r#"{"word": "darn"}"#).is_err());
    }
}
