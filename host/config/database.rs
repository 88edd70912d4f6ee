//! What the host does with its database, and before it stops.

use std::time::Duration;

use culvert_service::jobs::drain::Times;
use serde::{Deserialize, Serialize};

use super::{Config, ConfigError};

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

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DrainConfig {
    /// Seconds for which a host that was told to stop goes on where others share its database, so that load balancers and
    /// agents turn to them, 0 to 3600.
    pub seconds: u64,
    /// Seconds for which it goes on after that while visitors of its nodes or agents are left, 0 to 3600.
    pub visitors_seconds: u64,
}

impl Default for DrainConfig {
    fn default() -> Self {
        Self { seconds: 10, visitors_seconds: 30 }
    }
}

impl DrainConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        for (setting, seconds) in [("drain.seconds", self.seconds), ("drain.visitors_seconds", self.visitors_seconds)] {
            if seconds > 3600 {
                return Err(ConfigError::new(setting, "must be between 0 and 3600"));
            }
        }
        Ok(())
    }

    pub(crate) fn times(&self) -> Times {
        let (requests, visitors) = (Duration::from_secs(self.seconds), Duration::from_secs(self.visitors_seconds));
        Times { requests, visitors }
    }
}

impl Config {
    /// Whether the host migrates a database of an earlier version.
    pub(crate) fn migrates(&self) -> bool {
        let is_a_file = self.database_url().starts_with("sqlite:");
        self.database.migrate.map_or(is_a_file, |migrate| migrate == Migrate::Auto)
    }
}
