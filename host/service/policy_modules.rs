//! The policies that decide, as everybody may see them: without their settings and where they lie.

use chrono::TimeDelta;
use culvert_domain::caller::Caller;
use culvert_domain::error::Result;
use culvert_policy::load::chain::{Loaded, Mode};
use culvert_policy::serve::module_guard::ModuleGuard;

use crate::Service;

/// How far back refusals are counted.
const COUNTED: TimeDelta = TimeDelta::hours(24);

/// One module.
pub struct PolicyModule {
    pub kind: String,
    pub name: String,
    pub version: String,
    pub sha256: String,
    /// Where it comes from, in words.
    pub source: &'static str,
    /// Whether a key that the operator trusts has signed it.
    pub is_signed: bool,
    /// The facts about a request that it asks for.
    pub facts: Vec<String>,
    /// Its rules, and what each of them says.
    pub rules: Vec<(String, String)>,
    /// Whether it is asked, and decides nothing.
    pub is_shadow: bool,
    /// Whether it is not asked for a while, because it timed out again and again.
    pub is_away: bool,
}

impl Service {
    /// The modules of the policies that decide now, in their order.
    pub fn policy_modules(&self) -> Vec<PolicyModule> {
        self.policies.generations.current().guarded().map(|(loaded, guard)| module(loaded, guard)).collect()
    }

    /// How many requests each rule has refused in the caller's scope in the last 24 hours: to a member those of its own.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn refused_by_rule(&self, caller: &Caller) -> Result<Vec<(String, u64)>> {
        self.store.refused_by_rule(caller.scope.id, caller.own_alone(), self.clock().now() - COUNTED).await
    }
}

fn module(loaded: &Loaded, guard: &ModuleGuard) -> PolicyModule {
    let Loaded { entry, module, is_signed, .. } = loaded;
    let description = &module.description;
    PolicyModule {
        kind: module.kind.to_string(),
        name: description.name.clone(),
        version: description.version.clone(),
        sha256: module.digest.clone(),
        source: source(&entry.module),
        is_signed: *is_signed,
        facts: module.facts.iter().map(|fact| fact.to_string()).collect(),
        rules: description.rules.iter().map(|rule| (rule.id.clone(), rule.summary.clone())).collect(),
        is_shadow: entry.mode == Mode::Shadow,
        is_away: guard.is_open(),
    }
}

fn source(module: &str) -> &'static str {
    match module.split_once(':').map(|(scheme, _)| scheme) {
        Some("builtin") => "comes with the host",
        Some("oci") => "a registry",
        Some("https") => "the web",
        _ => "a file of the operator",
    }
}
