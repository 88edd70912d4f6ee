//! The policies that decide, as the operator sees them.

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::engine::kind::Kind;
use crate::load::chain::{Loaded, Mode};
use crate::serve::module_guard::ModuleGuard;
use crate::serve::record_writer::RecordsHealth;

/// The last reload that failed.
#[derive(Clone, Debug, Serialize)]
pub struct Failure {
    pub at: DateTime<Utc>,
    pub problem: String,
}

/// The current policies, for the operator.
#[derive(Debug, Serialize)]
pub struct Status {
    pub generation: u64,
    /// SHA-256 of the generation's entries and the digests of their modules: the same at every host.
    pub digest: String,
    pub loaded_at: DateTime<Utc>,
    /// Whether a rollback has led to it.
    #[serde(rename = "rolled_back")]
    pub is_rollback: bool,
    pub modules: Vec<ModuleStatus>,
    /// The generations available for a rollback, most recent first.
    pub earlier: Vec<u64>,
    /// The last reload that failed, until one succeeds.
    pub last_failure: Option<Failure>,
    /// None where no decisions are recorded.
    pub records: Option<RecordsHealth>,
}

#[derive(Debug, Serialize)]
pub struct ModuleStatus {
    pub kind: Kind,
    /// The module's name in the configuration.
    pub module: String,
    pub name: String,
    pub version: String,
    pub sha256: String,
    /// SHA-256 of its settings as JSON.
    pub settings_sha256: String,
    pub mode: Mode,
    pub deadline_ms: u32,
    pub memory_kib: u32,
    /// Whether a trusted key has signed it.
    #[serde(rename = "signed")]
    pub is_signed: bool,
    /// Whether the module is not asked for a while, because it timed out again and again.
    pub breaker_open: bool,
}

impl ModuleStatus {
    pub(crate) fn of(loaded: &Loaded, guard: &ModuleGuard) -> Self {
        let Loaded { entry, module, is_signed } = loaded;
        Self {
            kind: module.kind,
            module: entry.module.clone(),
            name: module.description.name.clone(),
            version: module.description.version.clone(),
            sha256: module.digest.clone(),
            settings_sha256: module.settings_digest.clone(),
            mode: entry.mode,
            deadline_ms: entry.deadline_ms,
            memory_kib: entry.memory_kib,
            is_signed: *is_signed,
            breaker_open: guard.is_open(),
        }
    }
}
