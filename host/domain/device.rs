//! A device: a machine that runs an agent.

use std::time::Duration;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::operation::RemoteAction;
use crate::error::{Code, Error, Result};

/// How long a device counts as online after it was last heard of.
pub const OFFLINE_AFTER: Duration = Duration::from_secs(45);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    pub id: Uuid,
    pub scope_id: Uuid,
    /// The account that enrolled it.
    pub owner_id: Uuid,
    /// Whether the owner is still a member of the scope.
    pub owner_active: bool,
    pub name: Option<String>,
    pub platform: Option<String>,
    pub version: Option<String>,
    pub capabilities: Vec<String>,
    pub online: bool,
    pub remote_control: bool,
    pub consent_revision: i64,
    pub last_seen_at: Option<DateTime<Utc>>,
    pub created_at: DateTime<Utc>,
}

impl Device {
    /// Whether it would do what it is asked for: it must be online, consent, and be able to.
    pub fn can(&self, action: RemoteAction) -> Result<()> {
        if !self.online {
            return Err(Error::of(Code::DeviceOffline));
        }
        self.consents_to(action)
    }

    /// Consent and capabilities alone: what is checked once more when a command is claimed.
    pub fn consents_to(&self, action: RemoteAction) -> Result<()> {
        if !self.remote_control {
            return Err(Error::of(Code::RemoteControlDisabled));
        }
        let missing = action.capabilities().iter().find(|needed| !self.capabilities.iter().any(|has| has == *needed));
        match missing {
            Some(missing) => {
                let detail = format!("The device's agent lacks the capability {missing}. Update it on the device.");
                Err(Error::new(Code::UpgradeRequired, detail))
            }
            None => Ok(()),
        }
    }
}
