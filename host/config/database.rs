//! What the host does with a database of an earlier version.

use serde::{Deserialize, Serialize};

use super::Config;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DatabaseConfig {
    /// What `serve` does with a database of an earlier version: `auto` migrates it; with `check` it refuses to start until
    /// `culvert migrate` was called (default: `auto` on SQLite, `check` on PostgreSQL).
    pub migrate: Option<Migrate>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Migrate {
    Auto,
    Check,
}

impl Config {
    /// Whether the host migrates a database of an earlier version.
    pub(crate) fn migrates(&self) -> bool {
        let is_a_file = self.database_url().starts_with("sqlite:");
        self.database.migrate.map_or(is_a_file, |migrate| migrate == Migrate::Auto)
    }
}
