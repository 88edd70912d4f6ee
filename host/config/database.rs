//! Where the database is, and what the host does with one of an earlier version.

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
    /// Whether several hosts can share the database.
    pub(crate) fn is_on_a_server(&self) -> bool {
        !self.database_url().starts_with("sqlite:")
    }

    /// Whether the host migrates a database of an earlier version.
    pub(crate) fn migrates(&self) -> bool {
        self.database.migrate.map_or(!self.is_on_a_server(), |migrate| migrate == Migrate::Auto)
    }
}
