//! Coverage: which of a module's declared rules its cases exercise.

use std::collections::BTreeSet;

use crate::engine::bindings::types::Description;
use crate::load::cases::Outcome;

pub struct Coverage {
    pub rules: usize,
    /// Declared rules that no case exercises, in the module's order.
    pub missing: Vec<String>,
}

impl Coverage {
    pub fn of(description: &Description, outcomes: &[Outcome]) -> Self {
        let met: BTreeSet<&str> = outcomes.iter().flat_map(|outcome| &outcome.rules).map(String::as_str).collect();
        let declared = description.rules.iter().map(|rule| &rule.id);
        let missing = declared.filter(|rule| !met.contains(rule.as_str())).cloned().collect();
        Self { rules: description.rules.len(), missing }
    }

    /// The coverage from 0 to 100; 100 for a module without rules.
    pub fn percent(&self) -> f64 {
        match self.rules {
            0 => 100.0,
            rules => (rules - self.missing.len()) as f64 * 100.0 / rules as f64,
        }
    }
}
