//! Coverage: which of a module's declared rules its cases exercise.

use std::collections::BTreeSet;

use crate::load::cases::Results;

pub struct Coverage {
    pub rules: usize,
    /// Declared rules that no case exercises, in the module's order.
    pub missing: Vec<String>,
}

impl Coverage {
    pub fn of(results: &[Results]) -> Self {
        let outcomes = results.iter().flat_map(|results| &results.outcomes);
        let met: BTreeSet<&String> = outcomes.flat_map(|outcome| &outcome.rules).collect();
        let mut declared: Vec<&String> = Vec::new();
        for rule in results.iter().flat_map(|results| &results.rules) {
            if !declared.contains(&rule) {
                declared.push(rule);
            }
        }
        let missing = declared.iter().filter(|rule| !met.contains(**rule)).map(|rule| (*rule).clone()).collect();
        Self { rules: declared.len(), missing }
    }

    /// The coverage from 0 to 100; 100 for a module without rules.
    pub fn percent(&self) -> f64 {
        match self.rules {
            0 => 100.0,
            rules => (rules - self.missing.len()) as f64 * 100.0 / rules as f64,
        }
    }
}
