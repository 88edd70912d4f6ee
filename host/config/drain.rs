//! How long a host goes on that was told to stop.

use std::time::Duration;

use culvert_service::jobs::drain::Times;
use serde::{Deserialize, Serialize};

use super::ConfigError;

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
